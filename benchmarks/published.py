"""What keeps published tables and plots equal to their results: README sections, and plots that name their source."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .environment import ROOT

README = ROOT / "README.md"


def markers(name: str) -> tuple[str, str]:
    """The README's lines around a generated section."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def with_section(readme: str, name: str, text: str) -> str:
    """The README with this text between a section's markers.

    Raises:
        ValueError: the markers are missing or in disorder.
    """
    begin, end = markers(name)
    before, found_begin, rest = readme.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the README needs the lines {begin} and {end}, in this order")
    return f"{before}{begin}\n{text}{end}{after}"


def digest(results: Any) -> str:
    """Names the results that a plot was drawn from."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def outdated(texts: dict[Path, str], plots: dict[Path, str]) -> list[str]:
    """What does not agree with the results: files that should hold a text, PNGs that should carry a digest."""
    problems = [
        f"{path} differs from the results beside it"
        for path, text in texts.items()
        if not path.exists() or path.read_text() != text
    ]
    problems += [
        f"{path} was not drawn from the results beside it"
        for path, source in plots.items()
        if not path.exists() or source_of(path) != source
    ]
    return problems


def commit_of(environment: dict[str, Any]) -> str:
    """The commit that a result was made at, and whether anything was changed beside it."""
    dirty = " with uncommitted changes" if environment["changed_files"] else ""
    return f"commit `{environment['commit'][:10]}`{dirty}"


def source_of(path: Path) -> str | None:
    """The digest of the results that a PNG was drawn from, by its metadata."""
    from PIL import Image

    with Image.open(path) as image:
        return image.info.get("Source")
