"""The tables of :mod:`ntl_kernels.backends.tiles` as Python, with the threads that were fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .candidates import Candidate, candidates, streamed_now


class Span(NamedTuple):
    """The 20th percentile, the median and the 80th of a setting's times."""

    low: float
    median: float
    high: float

    @property
    def spread(self) -> float:
        """From the 20th percentile to the 80th, relative to the median."""
        return (self.high - self.low) / self.median


class Row(NamedTuple):
    """The times of one length of row."""

    row_bytes: int
    times: dict[Candidate | None, Span]
    """None: as it is."""
    by_threads: frozenset[Candidate]
    """The candidates for which a line needs only another number of threads."""


class Gain(NamedTuple):
    """What a candidate gains over what is in use, as a share of its time."""

    candidate: Candidate
    gain: float
    spread: float

    @property
    def is_certain(self) -> bool:
        return self.gain > self.spread

    def __str__(self) -> str:
        return f"{self.candidate}: gain {self.gain:.1%}, spread {self.spread:.1%}"


Present = Callable[[Row], Candidate | None]
"""Finds what is in use for a row."""


def tables_of(rows: Sequence[Row]) -> list[str]:
    """KEPT and STREAMED, each line with the gain and the spread of its best candidate."""
    from ntl_kernels.backends import tiles

    kept = [candidate for candidate in candidates() if candidate.keep]
    streamed = [candidate for candidate in candidates() if not candidate.keep]
    return [
        table("KEPT", tiles.KEPT, rows, kept, lambda row: None),
        table("STREAMED", tiles.STREAMED, rows, streamed, lambda row: streamed_now(row.row_bytes)),
    ]


def table(
    name: str, present: Sequence[tuple[float, int]], rows: Sequence[Row], tried: Sequence[Candidate], now: Present
) -> str:
    """A table of (row bytes up to, threads), chosen by all rows of a line together."""
    text, least = [f"{name} = ("], 0.0
    for most, threads in present:
        chosen, remark = choice(threads, [row for row in rows if least < row.row_bytes <= most], tried, now)
        bound = "math.inf" if most == math.inf else f"2**{math.log2(most):.0f}"
        text.append(f"    ({bound}, {chosen}),  # {remark}")
        least = most
    return "\n".join([*text, ")"])


def choice(threads: int, rows: Sequence[Row], tried: Sequence[Candidate], now: Present) -> tuple[int, str]:
    """(threads, a remark): those of the best candidate, or those in use unless it gains more than the spread.

    A candidate that needs other constants than threads is only mentioned, if it is better still.
    """
    found = [Gain(candidate, *gain) for candidate in tried if (gain := gain_of(candidate, rows, now)) is not None]
    possible = [gain for gain in found if all(gain.candidate in row.by_threads for row in rows)]
    if not possible:
        return threads, "not measured"
    best, best_of_all = (max(gains, key=lambda gain: gain.gain) for gains in (possible, found))
    remarks = [str(best)] if best.is_certain else ["as it is", f"the best was {best}"]
    if best_of_all.gain - max(best.gain, 0) > best_of_all.spread:
        remarks.append(f"with other constants {best_of_all}")
    return best.candidate.threads if best.is_certain else threads, "; ".join(remarks)


def gain_of(candidate: Candidate, rows: Sequence[Row], now: Present) -> tuple[float, float] | None:
    """(gain, spread) of a candidate compared with what is in use; None unless it was timed for all rows.

    The gain is that of the geometric mean of the times; the spread is the largest of all compared times.
    """
    pairs = [(row.times[candidate], row.times[now(row)]) for row in rows if {candidate, now(row)} <= row.times.keys()]
    if not pairs or len(pairs) < len(rows):
        return None
    logarithms = [math.log(found.median / present.median) for found, present in pairs]
    return 1 - math.exp(math.fsum(logarithms) / len(pairs)), max(span.spread for pair in pairs for span in pair)
