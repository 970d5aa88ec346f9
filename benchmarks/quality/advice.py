"""When the Number Token Loss helps and with which options, each sentence with the runs that it rests on."""

from __future__ import annotations

from typing import NamedTuple


class Evidence(NamedTuple):
    """A difference by pairs that a sentence claims; the report holds it against the records."""

    dataset: str
    loss: str
    metric: str
    verdict: str
    """``lower`` or ``higher``, where the interval has to exclude 0, or ``undecided``."""
    split: str = "test"
    model: str = "llama"
    beside: str = "CE"


ADVICE: tuple[tuple[str, tuple[Evidence, ...]], ...] = ()
