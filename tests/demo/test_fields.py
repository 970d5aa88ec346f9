"""What people type into number fields."""

from __future__ import annotations

import math

import pytest

from ntl_kernels.demo.fields import Field, whole_number

WIDTH = Field("Width", 0.1, 3)
TRUTH = Field("True number", 0, 9, whole=True)


@pytest.mark.parametrize(
    ("field", "given", "nearest", "remark"),
    [
        (WIDTH, 0.4, 0.4, ""),
        (WIDTH, 0, 0.1, ""),  # of "0.4": more is to be typed
        (WIDTH, -1, 0.1, "Width must be a number from 0.1 to 3; got -1, shown for 0.1."),
        (WIDTH, 99, 3, "Width must be a number from 0.1 to 3; got 99, shown for 3."),
        (WIDTH, None, None, "Width must be a number from 0.1 to 3; the field is empty."),
        (WIDTH, "abc", None, "Width must be a number from 0.1 to 3; the field is empty."),
        (WIDTH, True, None, "Width must be a number from 0.1 to 3; the field is empty."),
        (WIDTH, math.nan, None, "Width must be a number from 0.1 to 3; the field is empty."),
        (TRUTH, 4, 4, ""),
        (TRUTH, 2.5, 2, "True number must be a whole number from 0 to 9; got 2.5, shown for 2."),
        (TRUTH, -3, 0, "True number must be a whole number from 0 to 9; got -3, shown for 0."),
        (TRUTH, 99, 9, "True number must be a whole number from 0 to 9; got 99, shown for 9."),
    ],
)
def test_every_content_of_a_field(field: Field, given: object, nearest: float | None, remark: str) -> None:
    assert field.nearest(given) == nearest
    assert field.remark(given) == remark
    if nearest is not None and nearest == given:
        assert field.check(given) == given
    else:
        with pytest.raises(ValueError, match="must be a (whole )?number from .* to .*; got "):
            field.check(given)


@pytest.mark.parametrize(("text", "number"), [("1", 1), (" 20 ", 20), ("007", 7)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number("Seed", text, 0, 99) == number


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5", "100", "1_0", "²", "٣", "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="Seed must be a whole number from 0 to 99; got '"):
        whole_number("Seed", text, 0, 99)
