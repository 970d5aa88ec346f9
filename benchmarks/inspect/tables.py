"""Tables of the model's estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..table import Table
from .model import Estimate

Columns = dict[str, Callable[[Estimate], str]]


def passes_in(pipe: str) -> Callable[[Estimate], str]:
    return lambda one: f"{one.passes[pipe]:,}"


def share_of(limit: str) -> Callable[[Estimate], str]:
    return lambda one: f"{one.shares[limit]:.2f}"


LIMITS = {"memory": "L2 missed", "L2": "L2†", "issue": "issue", "fma": "FMA", "alu": "ALU", "xu": "XU", "lsu": "LSU"}
"""Keys of ``Estimate.shares`` and their names in the tables."""
LOGITS: Columns = {"GPU": lambda one: one.gpu, "logits": lambda one: one.dtype, "V": lambda one: f"{one.vocab_size:,}"}
"""The first columns of every table."""
BYTES: Columns = {
    "16-byte loads": lambda one: f"{one.vector_loads:,}",
    "16-byte stores": lambda one: f"{one.vector_stores:,}",
    "L2, kB": lambda one: f"{one.l2_bytes / 1e3:,.0f}",
    "memory, kB": lambda one: f"{one.memory_bytes / 1e3:,.0f}",
    "rows in flight": lambda one: f"{one.rows_in_flight:,}",
    "needed on the way, kB": lambda one: "{:.1f} to {:.1f}".format(*(size / 1e3 for size in one.bytes_on_the_way)),
    "read again, MB": lambda one: f"{one.bytes_in_flight / 1e6:,.0f}",
    "of the L2": lambda one: f"{one.bytes_in_flight / one.l2_capacity:.2f}",
}
INSTRUCTIONS: Columns = {
    "issued": lambda one: f"{one.instructions:,}",
    **{LIMITS[pipe]: passes_in(pipe) for pipe in ("fma", "alu", "xu", "lsu")},
}
SHARES: Columns = {
    "floor, ns": lambda one: f"{one.floor_seconds * 1e9:.1f}",
    **{name: share_of(limit) for limit, name in LIMITS.items()},
    "next limit": lambda one: LIMITS[one.next_limit],
    "published": lambda one: LIMITS[one.next_published_limit],
}
TABLES = {
    "Bytes per row, and rows in flight": BYTES,
    "Warp instructions per row: issued, and passes through each pipe": INSTRUCTIONS,
    "Time that each limit alone would take, relative to one read and one write of the row (the floor)": SHARES,
}


def text_of(estimates: Sequence[Estimate], write: Callable[[Table], str] = Table.aligned) -> str:
    """All tables, with a note before and the next limits after them."""
    found = [f"{title}:\n\n{write(Table.of(LOGITS | columns, estimates))}" for title, columns in TABLES.items()]
    return "\n\n".join([headline(estimates), *found, *verdicts(estimates)])


def headline(estimates: Sequence[Estimate]) -> str:
    """A note on the version of Triton and on the limits of the model."""
    versions = ", ".join(sorted({one.triton for one in estimates}))
    return (
        f"A model based on the machine code of Triton {versions}; nothing here was measured. †The L2 bandwidth is a "
        'guess; "published" is the next limit without it. "L2 missed": if every load came from memory. "Needed on the '
        "way\": of each row in flight, to keep the memory busy, by Little's law."
    )


def verdicts(estimates: Sequence[Estimate]) -> list[str]:
    """The next limits of each GPU: their largest share, and in how many lines of its tables."""
    found = []
    for gpu in dict.fromkeys(one.gpu for one in estimates):
        of_gpu = [one for one in estimates if one.gpu == gpu]
        any_figure = limits_of([(one.next_limit, one) for one in of_gpu])
        published = limits_of([(one.next_published_limit, one) for one in of_gpu])
        found.append(f"Next limit on {gpu} (lines of the table): {any_figure}. By published figures only: {published}.")
    return found


def limits_of(found: list[tuple[str, Estimate]]) -> str:
    """Limits with their largest share, such as "XU at up to 0.94 (3 of 6)", the most frequent first."""
    counts = Counter(limit for limit, _ in found)
    most = {limit: max(one.shares[limit] for its, one in found if its == limit) for limit in counts}
    parts = [f"{LIMITS[limit]} at up to {most[limit]:.2f} ({n} of {len(found)})" for limit, n in counts.most_common()]
    return ", ".join(parts)
