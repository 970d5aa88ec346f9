"""The numbers of the three pages as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from . import charts
from .charts import Mark, Series, legend, line_chart, shown, table
from .live import Progress, Settings
from .losses import TEXT_TOKENS, Comparison, Curve, Gradients, Vocabulary
from .tokenizer_file import Finding, Verdict, histogram

CE_SCALE = 10.0
"""Nats at which cross-entropy's bar is full: it has no largest value of its own."""
MOST_ROWS = 200
"""Of the table of number tokens."""
MOST_WARNING_LETTERS = 1000
MOST_ANSWERS = 8
FAR = 10
"""From how far off an answer counts as far, in units of value."""


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
        '<table class="bars"><caption>Each row has its own scale. A full bar is the largest value with reweigh=True, '
        f"whichever the true number. Cross-entropy has no largest value: its full bar is {CE_SCALE:g} nats."
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


def found_numbers(source: str, finding: Finding, judged: Verdict) -> str:
    """What the library found in a tokenizer: verdict, summary, warnings, histogram, table."""
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
        f'{about(source)}{verdict(judged)}{warned}<pre id="describe">{escape(numbers.describe())}</pre>'
        f"<h3>How many tokens have which value</h3>{chart}" + table(["id", "token", "value"], rows, caption)
    )


def no_numbers(source: str, error: str, judged: Verdict | None) -> str:
    """Why the library takes no tokenizer with these options, and which options it takes."""
    return about(source) + (verdict(judged) if judged else "") + notice(short(error), "error")


def about(source: str) -> str:
    """Which tokenizer the rest of the page is about."""
    return f'<h2 id="source">{escape(source)}</h2>'


def verdict(judged: Verdict) -> str:
    """Whether the options fit the tokenizer, with the call that does."""
    style, mark = ("good", "✓") if judged.good else ("bad", "!")
    return (
        f'<div id="verdict" class="verdict {style}" role="status"><i aria-hidden="true">{mark}</i><p>'
        f"{escape(judged.words)}</p><pre>{escape(judged.call)}</pre></div>"
    )


def short(words: str) -> str:
    """A sentence of bearable length, since some errors quote whole files."""
    return words if len(words) <= MOST_WARNING_LETTERS else words[:MOST_WARNING_LETTERS] + " …"


def training(progress: Progress, settings: Settings) -> str:
    """The state of a live run: of what, how far, how well, and what the models answer."""
    steps = settings.steps
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
    asked = len(progress.questions)
    return (
        f'<p id="training-state" role="status">{state}</p>'
        f'<progress max="{steps}" value="{progress.step}" aria-label="steps done"></progress>'
        f'<p id="training-settings">{escape(in_words(settings))}</p>'
        + table(["loss", "mean error", "right", "CE"], scores, f"{asked} sums that are not trained on")
        + legend([(style, run.name) for run, style in zip(progress.runs, styles, strict=True)])
        + f'<div class="panels">{"".join(panels)}</div>'
        + answers_table(progress)
    )


def in_words(settings: Settings) -> str:
    """What a live run compares."""
    config = settings.config
    reweighed = ", reweigh=True" if config.reweigh else ""
    return f"kind={config.kind!r}, weight={config.weight:g}{reweighed}, {settings.steps} steps, seed {settings.seed}"


def answers_table(progress: Progress) -> str:
    """Some answers, each with its distance from the truth."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("sum", *(run.name for run in progress.runs)))
    body = "".join(
        f'<tr><th scope="row">{escape(question)} = {truth}</th>'
        + "".join(answer_cell(run.answers[index], truth) for run in progress.runs)
        + "</tr>"
        for index, (question, truth) in enumerate(zip(progress.questions, progress.truths, strict=True))
        if index < MOST_ANSWERS
    )
    caption = "Some answers, and how far they are off"
    content = f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div id="answers">{charts.region("scroll", caption, content)}</div>'


def answer_cell(answer: str, truth: int) -> str:
    """An answer in the colour of its distance, which is also written."""
    if not answer.isdigit():
        style, words = "far", "no number"
    else:
        error = abs(int(answer) - truth)
        style = "right" if error == 0 else "near" if error < FAR else "far"
        words = "✓" if error == 0 else f"{error} off"
    return f'<td class="answer {style}"><b>{escape(answer)}</b> {words}</td>'
