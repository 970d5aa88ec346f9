"""Charts as SVG text: numbers in, markup out. Colours are CSS classes, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 8.0, 34.0
"""What the labels around a plot take."""
FONT = 11.0


class Series(NamedTuple):
    """Numbers of one name and one colour: ``style`` is a class of :data:`ntl_kernels.demo.style.CSS`."""

    name: str
    style: str
    heights: Sequence[float]


class Mark(NamedTuple):
    """A dot with its value beside it."""

    style: str
    x: float
    height: float


class Scale:
    """From an interval of numbers to one of pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high, self.first = low, high, first
        self.factor = (last - first) / (high - low)

    def __call__(self, number: float) -> float:
        return self.first + (number - self.low) * self.factor


def shown(number: float) -> str:
    """A number as the page prints it, everywhere: four decimals when small, none when large."""
    size = abs(number)
    text = f"{number:.4f}" if size < 10 else f"{number:.2f}" if size < 1000 else f"{number:.0f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def round_step(size: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, ... and their tenths that goes at most ``most`` times into ``size`` > 0."""
    step = 10.0 ** math.floor(math.log10(size / most))
    return step * next(factor for factor in (1, 2, 5, 10) if size / (factor * step) <= most * (1 + 1e-9))


def multiples(step: float, first: int, last: int) -> list[float]:
    return [round(index * step, 12) for index in range(first, last + 1)]


def heights_axis(heights: Sequence[float], first: float, last: float) -> tuple[Scale, list[float]]:
    """A scale with 0 and every height in it, from one round number to another, and those between."""
    low, high = min(0.0, *heights), max(0.0, *heights)
    if high - low < 1e-9:
        low, high = 0.0, 1.0
    step = round_step(high - low, 4)
    at = multiples(step, math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9))
    return Scale(at[0], at[-1], first, last), at


def named_every(names: Sequence[str], slot: float) -> int:
    """Every how many places a name can stand without touching the next."""
    fits = (every for every in (1, 2, 5, 10, 20, 50) if max(map(len, names[::every])) * FONT * 0.65 <= every * slot)
    return next(fits, len(names))


def bar_chart(
    title: str,
    names: Sequence[str],
    series: Sequence[Series],
    x_label: str,
    special: Sequence[str] = (),
    marked: int | None = None,
    width: int = 720,
) -> str:
    """Bars over named places, each series beside the other.

    Args:
        title: what a screen reader says.
        names: one for each place.
        series: their heights, which may be negative.
        x_label: below the names.
        special: a further class for each place's bars, or none.
        marked: the place whose name is always written, and stands out.
        width: in pixels, at full size.
    """
    height = 190
    y, y_ticks = heights_axis([h for one in series for h in one.heights], height - BOTTOM, TOP)
    slot = (width - LEFT - RIGHT) / len(names)
    group = min(slot * 0.84, 60.0 * len(series))
    thick = group / len(series)
    every = named_every([name.strip() for name in names], slot)
    body = [y_axis(y, y_ticks, width)]
    for place, name in enumerate(names):
        left = LEFT + (place + 0.5) * slot - group / 2
        for index, one in enumerate(series):
            top, bottom = sorted((y(one.heights[place]), y(0.0)))
            style = f"{one.style} {special[place]}".strip() if special else one.style
            body.append(
                f'<rect class="fill {style}" x="{left + index * thick:.2f}" y="{top:.2f}" width="{thick:.2f}" '
                f'height="{bottom - top:.2f}"><title>{escape(name)}, {escape(one.name)}: {shown(one.heights[place])}'
                "</title></rect>"
            )
        is_marked = place == marked
        crowded = marked is not None and abs(place - marked) * slot < FONT * 2
        if is_marked or (place % every == 0 and (every == 1 or not crowded)):
            body.append(text(left + group / 2, height - BOTTOM + 14, name, "middle", "truth" * is_marked))
    body.append(text((LEFT + width) / 2, height - 3, x_label, "middle"))
    return region("wide", title, svg(title, width, height, body))


def line_chart(
    title: str,
    xs: Sequence[float],
    series: Sequence[Series],
    x_label: str,
    marks: Sequence[Mark] = (),
    truth: float | None = None,
    width: int = 340,
    x_high: float | None = None,
) -> str:
    """Lines over numbers, from 0 up; ``truth`` is a vertical line, ``x_high`` the end of the axis."""
    height = 190
    heights = [height for one in series for height in one.heights] + [mark.height for mark in marks]
    y, y_ticks = heights_axis([height for height in heights if math.isfinite(height)], height - BOTTOM, TOP + FONT)
    right = xs[-1] if x_high is None else x_high
    x = Scale(xs[0], right if right > xs[0] else xs[0] + 1, LEFT, width - RIGHT)
    body = [y_axis(y, y_ticks, width)]
    body += [text(x(tick), height - BOTTOM + 14, f"{tick:g}", "middle") for tick in x_ticks(x.low, x.high)]
    if truth is not None:
        body.append(f'<path class="truth" d="M{x(truth):.2f} {y(y.low):.2f}V{TOP + FONT:.2f}"/>')
        body.append(text(x(truth), TOP + 6, "truth", "middle", "truth"))
    for one in series:
        points = " ".join(f"{x(at):.2f},{y(value):.2f}" for at, value in finite(xs, one.heights))
        body.append(
            f'<polyline class="line {one.style}" points="{points}"><title>{escape(one.name)}</title></polyline>'
        )
    for mark in marks:
        body.append(
            f'<circle class="fill {mark.style}" cx="{x(mark.x):.2f}" cy="{y(mark.height):.2f}" r="4">'
            f"<title>{shown(mark.height)}</title></circle>"
        )
    body.append(text((LEFT + width) / 2, height - 3, x_label, "middle"))
    return svg(title, width, height, body)


def x_ticks(low: float, high: float) -> list[float]:
    """Round numbers of the interval."""
    step = round_step(high - low, 6)
    return multiples(step, math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9))


def finite(xs: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """The points that can be drawn."""
    return [(x, height) for x, height in zip(xs, heights, strict=True) if math.isfinite(height)]


def y_axis(y: Scale, at: Sequence[float], width: float) -> str:
    """Lines across the plot, with their heights."""
    lines = [
        f'<path class="{"zero" if tick == 0 else "grid"}" d="M{LEFT} {y(tick):.2f}H{width - RIGHT}"/>'
        + text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end")
        for tick in at
    ]
    return "".join(lines)


def text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    name = f' class="{style}"' if style else ""
    return f'<text{name} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(words)}</text>'


def svg(title: str, width: float, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {width:g} {height:g}" '
        f'font-size="{FONT:g}">{"".join(body)}</svg>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(style, name) of everything a chart draws."""
    items = "".join(f'<span><i class="key {style}"></i>{escape(name)}</span>' for style, name in entries)
    return f'<p class="legend">{items}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Plain text cells, the first of each row as its head."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    rows_of_cells = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return region("scroll", caption, f"<table><caption>{escape(caption)}</caption>{rows_of_cells}</table>")


def region(style: str, title: str, content: str) -> str:
    """What may be wider or longer than its place, and can be scrolled by keyboard."""
    return f'<div class="{style}" tabindex="0" role="region" aria-label="{escape(title)}">{content}</div>'
