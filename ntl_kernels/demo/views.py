"""The numbers of the three pages as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from . import charts
from .charts import Mark, Series, legend, line_chart, shown, table
from .live import Progress
from .losses import TEXT_TOKENS, Comparison, Curve, Gradients, Vocabulary
from .tokenizer_file import Finding, histogram

CE_SCALE = 10.0
"""Nats at which cross-entropy's bar is full: it has no largest value of its own."""
MOST_ROWS = 200
"""Of the table of number tokens."""
MOST_WARNING_LETTERS = 1000


def notice(words: str, kind: str = "note") -> str:
    """A sentence that a screen reader says when it appears; ``kind`` is "note" or "error"."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="notice {kind}" role="{role}">{escape(words)}</p>' if words else ""


def prediction(vocabulary: Vocabulary, probabilities: Sequence[float], label: int, result: Comparison) -> str:
    """The distribution over all tokens, and what can be read off it."""
    text_style = ["text" if text in TEXT_TOKENS else "" for text in vocabulary.texts]
    special = ["label" if token == label else style for token, style in enumerate(text_style)]
    facts = [
        ("p-label", "probability of the true number", probabilities[label]),
        ("mass", "probability on numbers", result.number_mass),
        ("error", "distance of the expected value from the truth", result.number_mae),
    ]
    return (
        charts.bar_chart(
            "Predicted probability of every token",
            vocabulary.texts,
            [Series("probability", "blue", probabilities)],
            "token",
            special,
            label,
        )
        + legend([("blue label", "true number"), ("blue", "other numbers"), ("blue text", "text")])
        + '<ul class="facts">'
        + "".join(f'<li>{words} <b data-fact="{name}">{shown(value)}</b></li>' for name, words, value in facts)
        + "</ul>"
    )


def bar(style: str, name: str, loss: float, full: float) -> str:
    """A bar whose whole length is ``full``, with the loss written behind it."""
    share = min(1.0, max(0.0, loss / full))
    return (
        f'<span class="track"><i class="fill {style}" style="width:{100 * share:.2f}%"></i></span>'
        f'<b data-loss="{escape(name)}">{shown(loss)}</b>'
    )


def loss_bars(result: Comparison) -> str:
    """Every loss of the prediction, with and without reweighing."""
    rows = [
        f'<tr><th scope="row">Cross-entropy<small>full bar: {CE_SCALE:g} nats</small></th><td colspan="2">'
        + bar("ink", "CE", result.cross_entropy.now, CE_SCALE)
        + "</td></tr>"
    ]
    for name, loss in result.number_losses.items():
        cells = (
            bar("blue", f"{name}, reweigh=True", loss.reweighed.now, loss.worst),
            bar("orange", f"{name}, reweigh=False", loss.plain.now, loss.worst),
        )
        rows.append(
            f'<tr><th scope="row">{escape(name)}<small>full bar: {shown(loss.worst)}</small></th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    return (
        '<table class="bars"><caption>A full bar is the largest value that the loss can take for this true number.'
        '</caption><thead><tr><td></td><th scope="col"><i class="key blue"></i>reweigh=True</th>'
        '<th scope="col"><i class="key orange"></i>reweigh=False</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def loss_curves(result: Comparison, truth: float, peak: float) -> str:
    """A small chart for each loss: what it becomes as the first peak moves over the numbers."""
    panels = [curve_panel("Cross-entropy", result, truth, peak, [("CE", "ink", result.cross_entropy)])]
    for name, loss in result.number_losses.items():
        lines = [("reweigh=True", "blue under", loss.reweighed), ("reweigh=False", "orange dashed", loss.plain)]
        panels.append(curve_panel(name, result, truth, peak, lines))
    return (
        legend([("ink", "cross-entropy"), ("blue", "reweigh=True"), ("orange", "reweigh=False (dashed)")])
        + f'<div class="panels">{"".join(panels)}</div>'
    )


def curve_panel(
    name: str, result: Comparison, truth: float, peak: float, lines: Sequence[tuple[str, str, Curve]]
) -> str:
    series = [Series(line, style, curve.moved) for line, style, curve in lines]
    marks = [Mark(style.split()[0], peak, curve.now) for _, style, curve in reversed(lines)]
    title = f"{name} as the first peak moves from {result.peaks[0]:g} to {result.peaks[-1]:g}; the truth is {truth:g}"
    chart = line_chart(title, result.peaks, series, "place of the first peak", marks, truth)
    return f"<figure><figcaption>{escape(name)}</figcaption>{chart}</figure>"


def gradient_bars(vocabulary: Vocabulary, found: Gradients, label: int, name: str, weight: float) -> str:
    """The gradient on every token, and the same as a table."""
    part, whole = f"{weight:g} · {name}", f"CE + {weight:g} · {name}"
    ntl = [total - ce for ce, total in zip(found.cross_entropy, found.total, strict=True)]
    series = [
        Series("CE alone", "ink", found.cross_entropy),
        Series(part, "violet", ntl),
        Series(whole, "blue", found.total),
    ]
    title = f"Gradient by the logit of every token: of cross-entropy, of {part}, and of both"
    chart = charts.bar_chart(title, vocabulary.texts, series, "token", marked=label)
    rows = [
        [text, str(token), *(shown(one.heights[token]) for one in series)]
        for token, text in enumerate(vocabulary.texts)
    ]
    heads = ["token", "id", *(one.name for one in series)]
    return chart + legend([(one.style, one.name) for one in series]) + table(heads, rows, "The same numbers")


def found_numbers(finding: Finding) -> str:
    """What the library found in a tokenizer: summary, warnings, histogram, table."""
    numbers = finding.numbers
    warned = "".join(notice(short(warning), "error") for warning in finding.warnings)
    bins = histogram([value for _, _, value in finding.tokens])
    chart = charts.bar_chart(
        "How many number tokens have which value",
        [name for name, _ in bins],
        [Series("tokens", "blue", [float(count) for _, count in bins])],
        "value",
    )
    rows = [[str(token), repr(text), f"{value:g}"] for token, text, value in finding.tokens[:MOST_ROWS]]
    left = len(finding.tokens) - len(rows)
    caption = "Number tokens by value" + (f", the first {MOST_ROWS} of {len(finding.tokens)}" if left else "")
    return (
        f'{warned}<pre id="describe">{escape(numbers.describe())}</pre>'
        f"<h3>How many tokens have which value</h3>{chart}" + table(["id", "token", "value"], rows, caption)
    )


def short(words: str) -> str:
    """A sentence of bearable length, since some errors quote whole files."""
    return words if len(words) <= MOST_WARNING_LETTERS else words[:MOST_WARNING_LETTERS] + " …"


def training(progress: Progress, steps: int) -> str:
    """The state of a live run: how far, how well, and what the models answer."""
    done = progress.step == steps
    pace = 1000 * progress.seconds / progress.step if progress.step else float("nan")
    left = progress.seconds / progress.step * (steps - progress.step) if progress.step else float("nan")
    state = f"Step {progress.step} of {steps}, {progress.seconds:.1f} s"
    state += f", {pace:.0f} ms a step for both models" if progress.step else ""
    state += "; done." if done else f", about {left:.0f} s left." if progress.step else "."
    styles = ("ink", "blue")
    at = [float(step) for step in progress.runs[0].steps]
    panels = []
    for title, field in (
        ("Mean error of the answers", "answer_mae"),
        ("Share of right answers", "exact"),
        ("Cross-entropy of the true answers", "cross_entropy"),
    ):
        first = 1 if field == "answer_mae" and len(at) > 1 else 0  # the untrained model's answers are far off the scale
        series = [
            Series(run.name, style, [getattr(score, field) for score in run.scores][first:])
            for run, style in zip(progress.runs, styles, strict=True)
        ]
        chart = line_chart(title, at[first:], series, "step", x_high=float(steps))
        panels.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    scores = [
        [run.name, f"{s.answer_mae:.2f}", f"{100 * s.exact:.1f}%", f"{s.cross_entropy:.3f}"]
        for run in progress.runs
        for s in run.scores[-1:]
    ]
    answers = [
        [f"{question} = {truth}", *(run.answers[index] for run in progress.runs)]
        for index, (question, truth) in enumerate(zip(progress.questions[:8], progress.truths[:8], strict=True))
    ]
    asked = len(progress.questions)
    return (
        f'<p id="training-state" role="status">{state}</p>'
        f'<progress max="{steps}" value="{progress.step}" aria-label="steps done"></progress>'
        + table(["loss", "mean error", "right", "CE"], scores, f"{asked} sums that are not trained on")
        + legend([(style, run.name) for run, style in zip(progress.runs, styles, strict=True)])
        + f'<div class="panels">{"".join(panels)}</div>'
        + table(["question", *(run.name for run in progress.runs)], answers, "Some answers")
    )
