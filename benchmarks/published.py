"""What keeps published tables and plots equal to their results: README sections, and plots that name their source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .environment import ROOT

README = ROOT / "README.md"
Draw = Callable[[Path, str], Any]
"""Draws a plot into a file whose metadata name a source."""


def markers(name: str) -> tuple[str, str]:
    """The README's lines around a generated section."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def with_section(readme: str, name: str, text: str) -> str:
    """The README with this text between a section's markers."""
    begin, end = markers(name)
    before, found_begin, rest = readme.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the README needs the lines {begin} and {end}, in this order")
    return f"{before}{begin}\n{text}{end}{after}"


def digest(results: Any) -> str:
    """Names the results that a plot was drawn from."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


class Pages(NamedTuple):
    """What follows from a folder of results: texts, plots with the source of each, and a section of the README."""

    name: str
    """Of the section and of the program ``benchmarks.NAME``."""
    folder: Path
    texts: dict[Path, str]
    plots: dict[Path, tuple[str, Draw]]
    section: str | None
    """None where the results are not the committed ones, which alone are in the README."""

    def write(self, readme: Path) -> list[Path]:
        """Write everything."""
        for path, text in self.texts.items():
            path.write_text(text)
        for path, (source, draw) in self.plots.items():
            draw(path, source)
        written = [*self.texts, *self.plots]
        if self.section is not None:
            readme.write_text(with_section(readme.read_text(), self.name, self.section))
            written.append(readme)
        return written

    def problems(self, readme: Path) -> list[str]:
        """What does not agree with the results."""
        found = [
            f"{path} differs from the results beside it"
            for path, text in self.texts.items()
            if not path.exists() or path.read_text() != text
        ]
        found += [
            f"{path} was not drawn from the results beside it"
            for path, (source, _) in self.plots.items()
            if not path.exists() or source_of(path) != source
        ]
        if self.section is not None and with_section(readme.read_text(), self.name, self.section) != readme.read_text():
            found.append(f"{readme}: the section on {self.name} differs from the results in {self.folder}")
        return [f"{problem}; `python -m benchmarks.{self.name} report` writes it anew" for problem in found]


def verdict(problems: Sequence[str]) -> int:
    """Tell what does not agree; the command's end."""
    print("\n".join(problems) or "README, tables and plots agree with the results")
    return 1 if problems else 0


def commit_of(environment: dict[str, Any]) -> str:
    """The commit that a result was made at, and whether anything was changed beside it."""
    dirty = " with uncommitted changes" if environment["changed_files"] else ""
    return f"commit `{environment['commit'][:10]}`{dirty}"


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]], words: int | None = None) -> str:
    """A table. The first ``words`` columns stand to the left, or all that hold anything but numbers."""
    header, rows = list(header), [list(row) for row in rows]
    columns = range(len(header))
    are_words = [
        any(not is_number(row[column]) for row in rows) if words is None else column < words for column in columns
    ]
    lines = [header, ["---" if left else "---:" for left in are_words], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def is_number(cell: str) -> bool:
    return not cell or cell.lstrip("≤≥- ")[:1].isdigit() or cell == "-"


def pyplot() -> Any:
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, source: str, **options: Any) -> None:
    """Write a figure as a PNG that names what it was drawn from, and forget it."""
    figure.savefig(path, metadata={"Source": source}, **options)
    pyplot().close(figure)


def source_of(path: Path) -> str | None:
    """The digest of the results that a PNG was drawn from, by its metadata."""
    from PIL import Image

    with Image.open(path) as image:
        return image.info.get("Source")
