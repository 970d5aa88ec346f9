"""Text in columns: Markdown for pages, aligned for consoles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NUMBER = re.compile(r"[≤≥−\- ]*\d|-?$")
"""How a cell of numbers starts; it may be empty or a dash."""


class Table:
    """Headings, and rows with a cell for each."""

    def __init__(self, header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        self.header, self.rows = list(header), [list(row) for row in rows]

    @classmethod
    def of(cls, columns: Mapping[str, Callable[..., str]], *items: Iterable[Any]) -> Table:
        """A row per item, or, like `map`, per items at the same place. Heading -> function that returns the cell."""
        return cls(columns, ([cell(*each) for cell in columns.values()] for each in zip(*items, strict=True)))

    def filled(self, *blank: str) -> Table:
        """Without columns in which every cell is empty or ``blank``."""
        kept = [i for i, cells in enumerate(zip(*self.rows, strict=True)) if {*cells} - {"", *blank}]
        return Table((self.header[i] for i in kept), ([row[i] for i in kept] for row in self.rows))

    def markdown(self, words: int | None = None) -> str:
        """As Markdown; empty without rows.

        The first ``words`` columns are aligned left; if None, all with anything but numbers.
        """
        columns = list(zip(*self.rows, strict=True))
        is_left = [not all(map(NUMBER.match, cells)) if words is None else i < words for i, cells in enumerate(columns)]
        lines = [self.header, ["---" if left else "---:" for left in is_left], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) if self.rows else ""

    def aligned(self) -> str:
        """Columns padded to their widest cell."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)) for line in lines)
