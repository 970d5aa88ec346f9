"""Hooks of MkDocs: formulas become MathML, files of the repository and public names become parts of pages, linked
sources are copied, and intervals stay on one line.

MathML is part of HTML, so formulas need no script and no network.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = Path(__file__).parent / "pages"
COMMANDS = "commands.md"

SOURCE = re.compile(r"\]\(\.\./\.\./(\w[\w/]*\.py)\)")
REPOSITORY = re.compile(r"^repository-code: (\S+)$", re.MULTILINE)
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
TAG = re.compile(r"\\tag\{(\d+)\}")
SPACE = r"(?:\s|&nbsp;)"
NUMBER = rf"[-+−]?\d(?:[\d.,]*\d)?(?:e[-+]?\d+)?(?:{SPACE}?%)?"
MARKED = rf"(?:{SPACE}[▼▲](?!{SPACE}\d))?"
UNBROKEN = re.compile(
    rf"[\[(]{NUMBER}(?:,|{SPACE}to){SPACE}{NUMBER}[\])]{MARKED}|{NUMBER}{SPACE}(?:→|to|±){SPACE}{NUMBER}{MARKED}"
    rf"|[▼▲≤]{SPACE}{NUMBER}|\b[A-Z]{SPACE}={SPACE}{NUMBER}|{NUMBER}"
)
"""Intervals, percentages, ranges, bounds and changes from one number to another, with the mark that follows them."""
HYPHENATED = re.compile(r"\w+(?:-\w+)+")
OUTSIDE = re.compile(
    r"(<math.*?</math>|<svg.*?</svg>|<pre.*?</pre>|<code.*?</code>|<a [^>]*>.*?</a>|<[^>]+>)", re.DOTALL
)
CITATION = re.compile(r"\((\d+)\)")
FIGURE = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*(figures/[^"]+\.svg)" ?/?>')
INCLUDE = re.compile(r"^<!-- include: (\S+)(?: but (\w+))?(?: between (\w+):begin and end)? -->$", re.MULTILINE)
NAMES = re.compile(r"^<!-- public names of ([\w.]+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
TITLE = re.compile(r"^# ", re.MULTILINE)
STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)
CELL = re.compile(r"<t[hd]\b.*?</t[hd]>", re.DOTALL)
CODE = re.compile(r"<code>([^<]+)</code>")


def on_config(config: Any) -> Any:
    """Link the repository, once CITATION.cff has its address."""
    if found := REPOSITORY.search((ROOT / "CITATION.cff").read_text(encoding="utf-8")):
        config["repo_url"] = found[1]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert files of the repository and public names where a page has a comment for them."""
    is_part = TITLE.search(markdown) is not None
    markdown = INCLUDE.sub(
        lambda match: "\n\n".join(included(path, match[3], is_part) for path in matching(match[1], match[2])), markdown
    )
    markdown = SOURCE.sub(r"](\1.txt)", markdown)
    return NAMES.sub(lambda match: references(match[1]), markdown)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the reports' figures and lists of commands, and the sources that pages link, as text."""
    for file in sorted([*RESULTS.rglob("*.png"), *RESULTS.rglob(COMMANDS)]):
        files.append(File.generated(config, copied(file), abs_src_path=str(file)))
    linked = SOURCE.findall("".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")))
    for source in sorted(set(linked)):
        files.append(File.generated(config, f"{source}.txt", abs_src_path=str(ROOT / source)))
    return files


def copied(file: Path) -> str:
    """The place in the site of a copied file of the results: Markdown becomes text, which browsers can show."""
    return f"results/{file.relative_to(RESULTS)}".replace(".md", ".txt")


def on_page_content(content: str, **_: Any) -> str:
    """Insert diagrams and MathML, link equations by their numbers, keep intervals on one line."""
    content = FIGURE.sub(lambda match: diagram(match[1], match[2]), content)
    content = INLINE.sub(lambda match: mathml(match[1], "inline"), content)
    numbers = set(TAG.findall(content))
    content = DISPLAY.sub(lambda match: equation(match[1]), content)
    content = outside(lambda text: CITATION.sub(lambda m: citation(m, numbers), text), content)
    content = outside(lambda text: UNBROKEN.sub(lambda m: re.sub(SPACE, "\xa0", m[0]), text), content)
    content = CELL.sub(lambda cell: outside(lambda text: HYPHENATED.sub(lambda m: word(m[0]), text), cell[0]), content)
    return CELL.sub(lambda cell: CODE.sub(lambda code: unbroken(code[1]), cell[0]), content)


def diagram(title: str, path: str) -> str:
    """A diagram as part of the page, coloured by the page's style sheet instead of its own."""
    svg = STYLE.sub("", (PAGES / path).read_text(encoding="utf-8"))
    svg = re.sub(r'(id="|url\(#)tip', rf"\1tip-{Path(path).stem}", svg)  # an id is unique on its page
    return svg.replace('role="img"', f'role="img" aria-label="{title}" class="diagram"', 1)


def mathml(latex: str, display: str) -> str:
    """MathML of a formula from HTML."""
    return convert(html.unescape(latex).strip(), display=display)


def equation(latex: str) -> str:
    """A displayed formula, with its number as a link to itself."""
    tag = TAG.search(latex)
    formula = mathml(TAG.sub("", latex), "block")
    box = f"<div>{formula}</div>"  # scrolls
    if tag is None:
        return f'<div class="equation" data-search-exclude>{box}</div>'
    number = f'<a class="number" href="#eq-{tag[1]}">({tag[1]})</a>'
    return f'<div class="equation" id="eq-{tag[1]}" data-search-exclude>{box}{number}</div>'


def outside(change: Callable[[str], str], content: str) -> str:
    """Apply a change to the text of a page, outside tags, code, formulas, diagrams and links."""
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(OUTSIDE.split(content)))


def citation(match: re.Match[str], numbers: set[str]) -> str:
    """A link from "(5)" in the text of a page to its equation (5)."""
    return f'<a href="#eq-{match[1]}">({match[1]})</a>' if match[1] in numbers else match[0]


def references(module: str) -> str:
    """The Markdown from which mkdocstrings generates the reference of a module's public names."""
    return "\n\n".join(f"::: {module}.{name}" for name in public_names(module))


def public_names(module: str) -> list[str]:
    """``__all__`` of a module, read without importing it."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    raise ValueError(f"{module} has no __all__")


def matching(pattern: str, left_out: str | None) -> list[Path]:
    """The files of the repository that match a pattern, except those in folders named ``left_out``.

    Raises:
        ValueError: no file matches.
    """
    found = [path for path in sorted(ROOT.glob(pattern)) if path.parent.name != left_out]
    if not found:
        raise ValueError(f"no file matches {pattern}")
    return found


def included(path: Path, section: str | None, is_part: bool) -> str:
    """A file, or the part of it between two markers, for a page at the top of the site.

    If it is only a part of that page, its headings move down one level.

    Raises:
        ValueError: the markers are missing.
    """
    text = path.read_text(encoding="utf-8")
    if section is not None:
        found = re.search(rf"<!-- {section}:begin -->\n(.*?)<!-- {section}:end -->", text, re.DOTALL)
        if found is None:
            raise ValueError(f"{path} has no part between <!-- {section}:begin --> and <!-- {section}:end -->")
        text = found[1]
    pieces = FENCED.split(text)
    return "".join(piece if i % 2 else embedded(piece, path.parent, is_part) for i, piece in enumerate(pieces))


def embedded(prose: str, folder: Path, is_part: bool) -> str:
    """Prose of a file as prose of a page, with rewritten links."""
    return LINK.sub(lambda match: relinked(match, folder), HEADING.sub(r"\1# ", prose) if is_part else prose)


def relinked(match: re.Match[str], folder: Path) -> str:
    """A link of a file, rewritten for a page of the site.

    Figures and lists of commands are copied, reports are pages or parts of them, and other files are only named.
    """
    file, _, heading = match[3].partition("#")
    target = (folder / file).resolve()
    if target.is_relative_to(RESULTS) and (match[1] or target.name == COMMANDS):
        return f"{match[1]}[{match[2]}]({copied(target)})"
    if page := page_with(target):
        return f"[{match[2]}]({page}{'#' if heading else ''}{heading})"
    return named(match[2], target) if target.is_relative_to(ROOT) else match[0]


def named(words: str, target: Path) -> str:
    """The text of a link to a file that is not in the site, followed by the file's name."""
    name = f"`{target.relative_to(ROOT)}`"
    return name if words.strip("`") == name.strip("`") else f"{words} ({name})"


def page_with(file: Path) -> str | None:
    """The page made from a file, or the page at the top of the site that includes all of it."""
    if file.is_relative_to(PAGES) and file.suffix == ".md":
        return str(file.relative_to(PAGES))
    for page in sorted(PAGES.glob("*.md")):
        for path, left_out, section in INCLUDE.findall(page.read_text(encoding="utf-8")):
            if not section and file in matching(path, left_out):
                return page.name
    return None


def unbroken(code: str) -> str:
    """Code in a table, wrapped only between words; browsers would also wrap it at hyphens."""
    return f"<code>{' '.join(map(word, code.split()))}</code>"


def word(text: str) -> str:
    """Text that stays on one line."""
    return f'<span class="word">{text}</span>'
