"""The site's diagrams: `python docs/figures.py` writes pages/figures/*.svg, `--check` lists those that are out of date.

Each file has its own colours, light and dark, for use as an image (in the README). The pages contain the drawings
without these colours and use those of stylesheets/extra.css.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

FOLDER = Path(__file__).parent / "pages" / "figures"
LOG = Path(__file__).parent.parent / "benchmarks" / "results" / "recipe-texts.json"
"""The log of the recipe for one's own texts."""
COLOURS = {
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9da7b3"),
    "line": ("#d1d9e0", "#3d444d"),
    "paper": ("#ffffff", "#0d1117"),
    "blue": ("#3f51b5", "#9fa8da"),
    "orange": ("#c2410c", "#ff8a65"),
    "green": ("#00796b", "#4db6ac"),
}
"""(light, dark): all but the lines have a contrast of at least 4.5 with the paper."""
TEXT, FAINT, LINE, PAPER, BLUE, ORANGE, GREEN = (f"var(--figure-{name})" for name in COLOURS)
WIDTH = 760


def text(
    x: float, y: float, words: str, anchor: str = "start", size: int = 13, fill: str = TEXT, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{words}</text>'


def box(
    x: float, y: float, width: float, height: float, fill: str = "none", opacity: float = 1, stroke: str = LINE
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
        f'fill-opacity="{opacity:g}" stroke="{stroke}"/>'
    )


def path(
    points: list[tuple[float, float]], colour: str, width: float = 1.5, dashed: bool = False, arrow: bool = False
) -> str:
    steps = " ".join(f"{x:g},{y:g}" for x, y in points)
    extra = (' stroke-dasharray="4 3"' if dashed else "") + (' marker-end="url(#tip)"' if arrow else "")
    return f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="{width:g}"{extra}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, dashed: bool = False) -> str:
    return path([(x1, y1), (x2, y2)], colour, dashed=dashed, arrow=True)


def drawing(height: int, parts: Iterator[str], width: int = WIDTH) -> str:
    light, dark = ("".join(f"--figure-{name}: {pair[i]}; " for name, pair in COLOURS.items()) for i in range(2))
    style = f"<style>svg {{ {light}}} @media (prefers-color-scheme: dark) {{ svg {{ {dark}}} }}</style>"
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, style, tip, paper, *parts, "</svg>", ""])


def row() -> str:
    """A row of bfloat16 that starts 6 columns after a 16-byte boundary: head, body, tail."""

    def parts() -> Iterator[str]:
        vector, cell, left, top, size, start = 8, 17, 20, 46, 29, 6
        for column in range(start, start + size):
            x = left + column * cell
            in_body = vector <= column < (start + size) // vector * vector
            yield box(x, top, cell, 34, BLUE if in_body else ORANGE, 0.35)
            yield text(x + cell / 2, top + 22, str(column - start), "middle", 9)
        for boundary in range(0, 42, vector):
            x = left + boundary * cell
            yield path([(x, top - 14), (x, top + 48)], FAINT, 1, dashed=True)
            yield text(x, top - 20, f"{2 * boundary}", "middle", 10, FAINT)
        yield text(left + 41 * cell, top - 36, "byte of memory", "end", 10, FAINT)
        body_end = (start + size) // vector * vector
        for begin, end, name, colour in (
            (start, vector, "head", ORANGE),
            (vector, body_end, "body: whole vectors of 16 bytes, one load each", BLUE),
            (body_end, start + size, "tail", ORANGE),
        ):
            middle = left + (begin + end) / 2 * cell
            yield text(middle, top + 66, name, "middle", 12, colour, bold=True)
        yield text(
            left, top + 100, "Thread 0 reads the first vector, thread 1 the second: neighbours read adjacent vectors."
        )
        yield text(
            left, top + 120, "Head and tail together are one small masked load. The gradient starts at the same offset"
        )
        yield text(left, top + 140, "modulo 16 bytes, so it is split in the same way.")

    return drawing(196, parts())


def walks() -> str:
    """The two walks over a row, and where its bytes are: the front on the left, the kept part on the right."""

    def parts() -> Iterator[str]:
        left, front, kept = 130, 210, 390
        middle, right = left + front + kept / 2, left + front + kept
        for y, name in ((10, "memory"), (94, "L2 cache"), (178, "registers")):
            yield text(20, y + 20, name, bold=True)
        yield box(left, 10, front + kept, 32, BLUE, 0.3)
        yield text(
            left + (front + kept) / 2, 31, "a row of logits; in place, the same bytes become the gradient", "middle"
        )
        yield box(left, 94, front, 32, GREEN, 0.25)
        yield text(left + front / 2, 115, "the front", "middle", 12)
        yield box(left + front, 178, kept, 32, ORANGE, 0.25)
        yield text(middle, 199, "kept: up to 16 vectors per thread, from walk 1 to walk 2", "middle", 12)
        yield box(left, 178, front, 32)
        yield text(left + front / 2, 199, "a few vectors at a time", "middle", 12)
        yield arrow(left + 40, 42, left + 40, 178, BLUE)
        yield text(left + 46, 70, "walk 1", "start", 12)
        yield arrow(left + 100, 126, left + 100, 178, GREEN)
        yield text(left + 106, 155, "walk 2", "start", 12)
        yield arrow(left + 180, 178, left + 180, 42, ORANGE)
        yield text(left + 174, 70, "write", "end", 12)
        yield arrow(middle - 110, 42, middle - 110, 178, BLUE)
        yield text(middle - 102, 115, "walk 1: read once", "start", 12)
        yield arrow(middle + 150, 178, middle + 150, 42, ORANGE)
        yield text(middle + 142, 115, "walk 2: write once", "end", 12)
        yield text(left + front / 2, 232, "long rows only", "middle", 11, FAINT)
        yield text(right, 232, "column →", "end", 11, FAINT)

    return drawing(240, parts())


TRAFFIC = (
    ("F.cross_entropy, log_softmax", 1, 1),
    ("F.cross_entropy, backward of nll_loss", 0, 1),
    ("F.cross_entropy, backward of log_softmax", 2, 1),
)
"""(operation, reads, writes) of N x V elements: the minimum for torch's operations, called one by one."""
FUSED = ("cross_entropy_ntl, both in one kernel", 1, 1)


def traffic() -> str:
    """Passes over N x V elements through memory."""

    def parts() -> Iterator[str]:
        left, unit, top = 300, 72, 30
        for i, (name, reads, writes) in enumerate((*TRAFFIC, FUSED)):
            y = top + 34 * i + (14 if i == len(TRAFFIC) else 0)
            yield text(left - 12, y + 17, name, "end", 12, bold=i == len(TRAFFIC))
            for j in range(reads + writes):
                is_read = j < reads
                yield box(left + j * unit, y, unit - 4, 24, BLUE if is_read else ORANGE, 0.3)
                yield text(left + j * unit + unit / 2 - 2, y + 17, "read" if is_read else "write", "middle", 12)
        total = sum(reads + writes for _, reads, writes in TRAFFIC)
        yield text(left + 3 * unit + 12, top + 34 + 17, f"{total} passes in total", "start", 12, FAINT)
        yield text(
            left + 2 * unit + 12, top + 34 * 3 + 14 + 17, f"{sum(FUSED[1:])} passes, NTL included", "start", 12, FAINT
        )

    return drawing(190, parts())


def device() -> str:
    """The work of the host and of the device, over time."""

    def parts() -> Iterator[str]:
        yield text(20, 46, "host", bold=True)
        yield text(20, 126, "device", bold=True)
        yield arrow(100, 76, 740, 76)
        yield text(740, 92, "time", "end", 11, FAINT)
        calls = (
            (100, 96, "check", "arguments", None),
            (200, 60, "launch", "", (200, 110, "count", "the denominators")),
            (264, 60, "launch", "", (320, 200, "rows", "loss and gradient")),
            (328, 60, "launch", "", (530, 90, "finish", "sums")),
            (470, 70, "backward", "launch", (630, 90, "scale", "no-op for 1")),
        )
        for x, width, first, second, kernel in calls:
            yield box(x, 26, width, 34, FAINT, 0.12)
            yield text(x + width / 2, 41 if second else 47, first, "middle", 11)
            yield text(x + width / 2, 55, second, "middle", 11)
            if kernel is not None:
                at, length, name, what = kernel
                yield box(at, 106, length, 40, BLUE if name == "rows" else GREEN, 0.35)
                yield text(at + length / 2, 123, name, "middle", 12, bold=True)
                yield text(at + length / 2, 139, what, "middle", 11)
                yield arrow(x + width / 2, 60, at + 8, 104, dashed=True)
        yield text(
            100,
            176,
            "The host never waits: counts, denominators and the loss stay on the device until you read them.",
            size=12,
        )

    return drawing(192, parts())


EXAMPLE = (0.02, 0.05, 0.08, 0.25, 0.3, 0.1, 0.05, 0.05, 0.04, 0.06)
"""q over the digits, in the figure of the cumulative distributions."""
LABEL = 4


def transport() -> str:
    """The area between the cumulative distributions of q and of a one-hot label, cut in two ways."""

    def parts() -> Iterator[str]:
        left, top, size, step = 60, 40, 180, 31
        cumulative = [sum(EXAMPLE[: k + 1]) for k in range(10)]
        colours = [ORANGE if k < LABEL else BLUE for k in range(10)]
        titles = ("column by column: |F_q − F_t| × 1", "token by token: q_k × |v_k − v_y|")
        for panel, title in enumerate(titles):
            x0 = left + panel * 370

            def x(value: float, x0: float = x0) -> float:
                return x0 + step * value

            def y(probability: float) -> float:
                return top + size * (1 - probability)

            yield text(x0, top - 16, title, "start", 12, bold=True)
            if panel == 0:
                for k in range(9):
                    low, high = sorted((cumulative[k], float(k >= LABEL)))
                    yield box(x(k), y(high), step, size * (high - low), colours[k], 0.35)
            else:
                for k in range(10):
                    below = cumulative[k] - EXAMPLE[k]
                    near, far = sorted((k, LABEL))
                    if k != LABEL:
                        yield box(
                            x(near), y(below + EXAMPLE[k]), step * (far - near), size * EXAMPLE[k], colours[k], 0.35
                        )
            yield path([(x(0), y(0)), (x(9.6), y(0))], FAINT, 1)
            yield path([(x(0), y(0)), (x(0), y(1.05))], FAINT, 1)
            steps = [(x(0), y(0)), (x(0), y(cumulative[0]))]
            for k, (before, after) in enumerate(pairwise(cumulative)):
                steps += [(x(k + 1), y(before)), (x(k + 1), y(after))]
            yield path([*steps, (x(9.6), y(1))], TEXT, 2)
            yield path([(x(0), y(0)), (x(LABEL), y(0)), (x(LABEL), y(1)), (x(9.6), y(1))], GREEN, 2, dashed=True)
            for k in range(10):
                yield text(x(k), y(0) + 16, str(k), "middle", 11, FAINT)
            yield text(x0 - 8, y(1) + 4, "1", "end", 11, FAINT)
            yield text(x0 - 8, y(0) + 4, "0", "end", 11, FAINT)
        total = sum(q * abs(k - LABEL) for k, q in enumerate(EXAMPLE))
        legend = f"solid: F_q; dashed: F_t, the label {LABEL}. Both areas are {total:.2f}."
        yield text(left, top + size + 42, legend, size=12)

    return drawing(278, parts())


SHARE, WEIGHT = 0.9, 0.3
"""Probability on the predicted digit in the comparison of losses, and lambda there."""


def compared_losses() -> dict[str, list[float]]:
    """The loss of a prediction with SHARE on each digit in turn and the rest on the label."""
    ce = [0.0 if digit == LABEL else -math.log(1 - SHARE) for digit in range(10)]
    ntl = [SHARE * abs(digit - LABEL) for digit in range(10)]
    return {"CE": ce, "CE + 0.3 NTL-WAS": [a + WEIGHT * b for a, b in zip(ce, ntl, strict=True)]}


def comparison() -> str:
    """The losses over the predicted digit, in letters that can be read at 360 pixels."""

    def parts() -> Iterator[str]:
        left, top, slot, height, most, size = 66, 74, 44, 200, 4, 17
        right, bottom = left + 10 * slot, top + height

        def y(loss: float) -> float:
            return bottom - height * loss / most

        for level in range(most + 1):
            yield path([(left, y(level)), (right, y(level))], LINE, 1)
            yield text(left - 10, y(level) + 6, str(level), "end", size)
        yield f'<g transform="rotate(-90 22 {y(2):g})">{text(22, y(2), "loss", "middle", size)}</g>'
        for digit, (ce, total) in enumerate(zip(*compared_losses().values(), strict=True)):
            middle = left + (digit + 0.5) * slot
            yield text(middle, bottom + 24, str(digit), "middle", size, bold=digit == LABEL)
            if digit == LABEL:
                yield text(middle, bottom - 9, "truth", "middle", size, GREEN, bold=True)
                continue
            yield bar(middle, y(ce), bottom, BLUE)
            yield bar(middle, y(total), y(ce), ORANGE)
            if abs(digit - LABEL) in (1, 9 - LABEL):
                yield text(middle, y(total) - 7, f"{total:.1f}", "middle", size, bold=True)
        yield text((left + right) / 2, bottom + 52, f"digit predicted with probability {SHARE:g}", "middle", size)
        for line, (colour, words) in enumerate(
            (
                (BLUE, "cross-entropy: the same for every wrong digit"),
                (ORANGE, f"+ {WEIGHT:g} NTL: grows with the distance"),
            )
        ):
            yield f'<rect x="{left}" y="{10 + 26 * line}" width="16" height="16" fill="{colour}"/>'
            yield text(left + 24, 24 + 26 * line, words, size=size)

    return drawing(336, parts(), width=520)


TOKENS = [f"{number:0{length}}" for length in (1, 2, 3) for number in range(10**length)]
"""Those of Llama 3."""
GUESSES, TRUTH, CERTAIN = ("813", "912", "81", "8"), "812", 0.99
"""The guesses, the label, and the probability of a guess; the label gets the rest."""


def losses_of_guesses() -> dict[str, list[float]]:
    """CE, and 0.3 NTL by each way to compare tokens of several digits."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {text: token for token, text in enumerate(TOKENS)})
    places = torch.tensor([TOKENS.index(guess) for guess in GUESSES])
    p = torch.zeros(len(GUESSES), len(TOKENS), dtype=torch.float64).scatter(1, places[:, None], CERTAIN)
    labels = torch.full(places.shape, TOKENS.index(TRUTH))
    p[:, labels[0]] += 1 - CERTAIN
    found = {}
    for name, group_by, squash_factor in (
        ("by value", None, None),
        ("squashed", None, 9),
        ("within a length", "length", None),
    ):
        numbers = NumberTokens.from_tokenizer(tokenizer, digits_only=False, group_by=group_by)
        config = NTLConfig(weight=WEIGHT, squash_factor=squash_factor)
        parts = cross_entropy_ntl(p.log(), labels, numbers, config=config, reduction="none", return_parts=True)
        found.setdefault("cross-entropy", parts.cross_entropy.tolist())
        found[name] = [WEIGHT * loss for loss in parts.ntl.tolist()]
    return found


def lengths() -> str:
    """The losses of tokens of other lengths, in letters that can be read at 360 pixels."""

    def parts() -> Iterator[str]:
        left, top, slot, height, size = 216, 58, 76, 88, 17
        yield text(10, 28, f"label {TRUTH}, guess:", size=size)
        middles = [left + (i + 0.5) * slot for i in range(len(GUESSES))]
        for middle, guess in zip(middles, GUESSES, strict=True):
            yield text(middle, 28, guess, "middle", size, bold=True)
        for row, (name, losses) in enumerate(losses_of_guesses().items()):
            bottom = top + (row + 1) * height - 14
            words = [name] if row == 0 else [f"{WEIGHT:g} NTL,", name]
            for line, word in enumerate(reversed(words)):
                yield text(10, bottom - 20 * line, word, size=size)
            for middle, loss in zip(middles, losses, strict=True):
                above = bottom - (round(50 * (math.log10(loss) + 3) / 6, 1) if loss else 0)
                yield bar(middle, above, bottom, ORANGE if row else BLUE)
                yield text(middle, above - 6, f"{loss:.3g}", "middle", size)
            yield path([(left, bottom), (left + len(GUESSES) * slot, bottom)], FAINT, 1)
        yield text(10, bottom + 38, "All bars have one logarithmic scale, from 0.001 to 1,000.", size=size, fill=FAINT)

    return drawing(450, parts(), width=530)


def bar(middle: float, top: float, bottom: float, colour: str) -> str:
    return f'<rect x="{middle - 15:g}" y="{top:g}" width="30" height="{bottom - top:g}" fill="{colour}"/>'


def training() -> str:
    """What the recipe for one's own texts logged: lines of the training batches, dots of the test rows."""
    log = json.loads(LOG.read_text(encoding="utf-8"))["log"]

    def points(name: str) -> list[tuple[int, float]]:
        return [(entry["step"], float(entry[name])) for entry in log if name in entry]

    def parts() -> Iterator[str]:
        left, right, height, size = 150, 480, 84, 15
        steps = max(entry["step"] for entry in log)
        for panel, (name, words) in enumerate({"ce": "CE", "ntl": "NTL", "number_mae": "number_mae"}.items()):
            lines, dots, bottom = points(name), points(f"eval_{name}"), 20 + (panel + 1) * height
            top = max(value for _, value in [*lines, *dots])

            def place(point: tuple[int, float], bottom: int = bottom, top: float = top) -> tuple[float, float]:
                step, value = point
                return left + (right - left) * step / steps, round(bottom - (height - 24) * value / top, 1)

            yield text(10, bottom - 26, words, size=size, bold=True)
            yield path([(left, bottom), (right, bottom)], FAINT, 1)
            yield path([place(point) for point in lines], BLUE, 2)
            for point in dots:
                x, y = place(point)
                yield f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{ORANGE}"/>'
            x, y = place(dots[0])
            yield text(x - 10, y + 5, f"{dots[0][1]:.2f}", "end", size, ORANGE)
            x, y = place(dots[-1])
            yield text(x + 10, y + 5, f"{dots[-1][1]:.2f}", size=size, fill=ORANGE)
        for step in (0, steps // 2, steps):
            yield text(left + (right - left) * step / steps, 294, f"{step}", "middle", size, FAINT)
        yield text(left, 318, "steps; line: training batches, dots: test rows", size=size, fill=FAINT)

    return drawing(330, parts(), width=540)


LAYERS = (
    ("demo | integrations | ntloss", "built on the functions: Trainers, drop-in classes, tools"),
    ("evaluation | modules | number_weights", "numbers in texts; the functions as nn.Modules; weights of labels"),
    ("functional | statistics", "public functions: check the arguments, build a Problem"),
    ("parallel", "the same over the ranks of a group; DTensors"),
    ("dispatch", "chooses how to compute a Problem: plain, traced or reference"),
    ("autograd", "the autograd.Function of plain calls"),
    ("ops", "the operators of traced calls"),
    ("loss", "a loss and its gradients, of all columns or of one rank's"),
    ("steps", "steps of a loss that a trace sees as operators"),
    ("checks", "checks of the arguments"),
    ("backends", "the loss of rows, in torch operations or kernel launches"),
    ("reference | kernels", "the specification; Triton kernels"),
    ("problem", "labels, weights, numbers and options of one call; the results of rows"),
    ("spec", "LossSpec: the options of a loss, and what follows from them"),
    ("formulas", "costs of numbers"),
    ("config | tokens", "NTLConfig, NumberTokens"),
    ("tracing | value_losses | digit_runs", "whether a call is traced; f(e); digits along a row"),
    ("command_line | extras", "errors of a command line; which extra installs a library"),
)
"""The modules of `ntl_kernels`, highest first, as in pyproject.toml, and their purpose."""


def layers() -> str:
    """The layers of the package."""

    def parts() -> Iterator[str]:
        top, height, left, width = 10, 30, 30, 290
        for i, (names, what) in enumerate(LAYERS):
            y = top + i * (height + 4)
            is_public = names.startswith(("functional", "evaluation"))
            yield box(left, y, width, height, BLUE if is_public else FAINT, 0.3 if is_public else 0.1)
            shown = names.replace(" | ", " · ")
            yield text(left + width / 2, y + 20, shown, "middle", 13, bold=True)
            yield text(left + width + 16, y + 20, what, size=12)
        yield arrow(14, top, 14, top + len(LAYERS) * (height + 4) - 4)

    return drawing(10 + len(LAYERS) * 34 + 10, parts())


FIGURES = {
    "comparison": comparison,
    "row": row,
    "walks": walks,
    "traffic": traffic,
    "device": device,
    "transport": transport,
    "lengths": lengths,
    "training": training,
    "layers": layers,
}


def main() -> int:
    """Write the figures, or with --check name those that differ."""
    if "--check" in sys.argv[1:]:
        stale = [name for name, draw in FIGURES.items() if read(name) != draw()]
        print("\n".join(f"{name}.svg is out of date: run python docs/figures.py" for name in stale))
        return len(stale)
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


def read(name: str) -> str:
    path = FOLDER / f"{name}.svg"
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
