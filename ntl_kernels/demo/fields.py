"""Numbers that people type: what a field may hold, and a sentence for everything else."""

from __future__ import annotations

import math
import re
from typing import NamedTuple


class Field(NamedTuple):
    """A number with a slider. A person who types it passes through numbers out of range, and through nothing."""

    name: str
    low: float
    high: float
    whole: bool = False

    def expected(self) -> str:
        return f"{self.name} must be a {'whole ' * self.whole}number from {self.low:g} to {self.high:g}"

    def nearest(self, given: object) -> float | None:
        """The number that counts for what is in the field; None if there is no number in it."""
        if not isinstance(given, int | float) or isinstance(given, bool) or not math.isfinite(given):
            return None
        value = min(max(given, self.low), self.high)
        return round(value) if self.whole else value

    def remark(self, given: object) -> str:
        """What to say about the field. Nothing about the 0 of a "0.4": there, more is to be typed."""
        value = self.nearest(given)
        if value is None:
            return f"{self.expected()}; the field is empty."
        assert isinstance(given, int | float)
        if value == given or (self.low > 0 and 0 <= given < self.low):
            return ""
        return f"{self.expected()}; got {given:g}, shown for {value:g}."

    def check(self, given: object) -> float:
        """The number in the field.

        Raises:
            ValueError: there is none, or it is not as expected.
        """
        value = self.nearest(given)
        if value is None or value != given:
            raise ValueError(f"{self.expected()}; got {'nothing' if given is None else repr(given)}")
        return value


def whole_number(name: str, text: str, low: int, high: int) -> int:
    """The whole number in a field of text.

    Raises:
        ValueError: there is none, or it is out of range.
    """
    digits = text.strip()
    if not re.fullmatch("[0-9]{1,15}", digits) or not low <= int(digits) <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}; got {text[:40]!r}")
    return int(digits)
