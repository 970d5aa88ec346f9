"""Keeps published tables and plots consistent with the results: README sections, and plots that name their source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import files
from .environment import ROOT

README = ROOT / "README.md"
SPACE, MINUS = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}"
Draw = Callable[[Path, str], Any]
"""Draws a plot into a file whose metadata contains a source."""


def markers(name: str) -> tuple[str, str]:
    """The marker lines around a generated section of the README."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def with_section(readme: str, name: str, text: str) -> str:
    """The README with a new text between a section's markers."""
    begin, end = markers(name)
    before, found_begin, rest = readme.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the README needs the lines {begin} and {end}, in this order")
    return f"{before}{begin}\n{text}{end}{after}"


def digest(results: Any) -> str:
    """A hash of the results that a plot is drawn from."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


class Pages(NamedTuple):
    """The files generated from a folder of results: texts, plots with their sources, and a README section."""

    name: str
    """The name of the section and of the program ``benchmarks.NAME``."""
    folder: Path
    texts: dict[Path, str]
    plots: dict[Path, tuple[str, Draw]]
    section: str | None
    """The README section; None unless the results are the committed ones."""

    def write(self, readme: Path) -> list[Path]:
        """Write all files; return their paths."""
        for path, text in self.texts.items():
            files.write(path, text)
        for path, (source, draw) in self.plots.items():
            draw(path, source)
        written = [*self.texts, *self.plots]
        if self.section is not None:
            files.write(readme, with_section(readme.read_text(encoding="utf-8"), self.name, self.section))
            written.append(readme)
        return written

    def problems(self, readme: Path) -> list[str]:
        """Descriptions of files that do not agree with the results."""
        found = [
            f"{path} differs from the results next to it"
            for path, text in self.texts.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        found += [
            f"{path} was not drawn from the results next to it"
            for path, (source, _) in self.plots.items()
            if not path.exists() or source_of(path) != source
        ]
        text = readme.read_text(encoding="utf-8")
        if self.section is not None and with_section(text, self.name, self.section) != text:
            found.append(f"{readme}: the section on {self.name} differs from the results in {self.folder}")
        return [f"{problem}; run `python -m benchmarks.{self.name} report` to update it" for problem in found]


def verdict(problems: Sequence[str]) -> int:
    """Print the problems; return the exit code."""
    print("\n".join(problems) or "README, tables and plots agree with the results")
    return 1 if problems else 0


def commit_of(environment: dict[str, Any]) -> str:
    """The commit of a result, and whether there were uncommitted changes."""
    dirty = " with uncommitted changes" if environment["changed_files"] else ""
    return f"commit `{environment['commit'][:10]}`{dirty}"


def pyplot() -> Any:
    """Matplotlib's pyplot without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, source: str, **options: Any) -> None:
    """Write a figure as a PNG whose metadata contains its source, and close it."""
    with files.replacing(path) as unfinished:
        figure.savefig(unfinished, metadata={"Source": source}, **options)
    pyplot().close(figure)


def source_of(path: Path) -> str | None:
    """The digest, from a PNG's metadata, of the results that it was drawn from."""
    from PIL import Image

    with Image.open(path) as image:
        return image.info.get("Source")
