"""The pages of the site: the code blocks of their Markdown, and what a built page has."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "pages").rglob("*.md"))
BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```python(?: [^\n]*)?\n(?P<code>.*?)^(?P=indent)```$"
    r"(?:\n\n^(?P=indent)```text\n(?P<output>.*?)^(?P=indent)```$)?",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^ *(?:```+|~~~+) *\{?[ .]*py", re.MULTILINE)
"""The start of any block that is highlighted as Python, however it is written."""


class Block(NamedTuple):
    """One block of Python."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    code: str
    reason: str | None
    """Why it is not run, if the page excludes it."""
    output: str | None
    """What it prints, if a block of text follows."""


def blocks_of(page: Path) -> list[Block]:
    """Every block of Python in a page, in order.

    Raises:
        ValueError: a block is written in a way that this function does not find.
    """
    text = page.read_text()
    blocks = [
        Block(
            page,
            text.count("\n", 0, match.start("code")) + 1,
            textwrap.dedent(match["code"]),
            match["reason"],
            None if match["output"] is None else textwrap.dedent(match["output"]),
        )
        for match in BLOCK.finditer(text)
    ]
    if len(blocks) != len(FENCE.findall(text)):
        raise ValueError(f"{page.name} has a block of Python that does not begin with ```python")
    return blocks


def run(block: Block, namespace: dict[str, Any]) -> str:
    """Run a block in a namespace, or only compile one that is not to be run. Returns what it printed.

    Errors carry the page's name and line.
    """
    code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
    printed = io.StringIO()
    if block.reason is None:
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    return printed.getvalue()


class BuiltPage(HTMLParser):
    """What a built page has, links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        """All of them, in order."""
        self.text = ""
        """Its text, without scripts."""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.tags.append(tag)
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.text += data
