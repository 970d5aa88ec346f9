"""Charts show the numbers they are given, as well-formed SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ntl_kernels.demo.charts import Mark, Series, bar_chart, heights_axis, line_chart, round_step, table, x_ticks

heights = st.floats(-1e6, 1e6)


def parts(markup: str, tag: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(f"<p>{markup}</p>").iter() if element.tag == tag]


@given(st.floats(1e-6, 1e6), st.integers(1, 20))
def test_steps_are_round_and_neither_too_many_nor_too_few(size: float, most: int) -> None:
    step = round_step(size, most)
    assert f"{step:e}"[0] in "125" and float(f"{step:.0e}") == pytest.approx(step)
    assert most / 2.5 * (1 - 1e-6) <= size / step <= most * (1 + 1e-6)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_in_the_interval(low: float, size: float) -> None:
    at = x_ticks(low, low + size)
    slack = 1e-8 * (abs(low) + size)
    assert at and all(low - slack <= tick <= low + size + slack for tick in at)


@given(st.lists(heights, min_size=1))
def test_axis_holds_zero_and_every_height(numbers: list[float]) -> None:
    y, at = heights_axis(numbers, 100.0, 0.0)
    slack = 1e-9 * max(1, *map(abs, numbers))
    assert all(y.low - slack <= number <= y.high + slack for number in [0.0, *numbers])
    assert (at[0], at[-1]) == (y.low, y.high)


@given(st.lists(heights, min_size=1, max_size=30), st.integers(1, 3))
@example([1e-9], 1)  # the smallest that is drawn
@example([9e-10], 1)
def test_bars_are_as_high_as_their_numbers(numbers: list[float], count: int) -> None:
    names = [str(index) for index in range(len(numbers))]
    series = [Series(f"{index}", "blue", numbers) for index in range(count)]
    bars = parts(bar_chart("bars", names, series, "place"), "rect")
    assert len(bars) == len(numbers) * count
    largest = max(map(abs, numbers))
    tallest = max(float(bar.get("height")) for bar in bars)
    for bar, number in zip(bars[::count], numbers, strict=True):
        share = abs(number) / largest if largest >= 1e-9 else 0.0
        assert float(bar.get("height")) == pytest.approx(share * tallest, abs=0.02)


def test_lines_go_through_their_points_and_leave_out_what_is_no_number() -> None:
    series = [Series("error", "ink", [float("nan"), 4.0, 2.0, 0.0])]
    chart = line_chart("errors", [0, 1, 2, 3], series, "step", [Mark("ink", 2, 2.0)], truth=1)
    (line,), (dot,) = parts(chart, "polyline"), parts(chart, "circle")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert len(points) == 3
    assert points[1] == (float(dot.get("cx")), float(dot.get("cy")))
    assert points[0][1] < points[1][1] < points[2][1]
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.02)


def test_names_are_text_not_markup() -> None:
    name = "</svg><script>alert(1)</script>"
    for markup in (
        bar_chart(name, [name], [Series(name, "blue", [1.0])], name),
        line_chart(name, [0, 1], [Series(name, "blue", [0, 1])], name),
        table([name], [[name, name]], name),
    ):
        assert "<script" not in markup
        assert name in "".join(ElementTree.fromstring(f"<p>{markup}</p>").itertext())
