"""The site: its code runs, it builds without a warning, its links lead somewhere, and it needs no network."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ntl_kernels
from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from ..integrations.deepspeed_on_cpu import started_by_its_launcher
from ..stand_ins import standing_in
from .browser import Browser, browsing
from .docstrings import pieces_of, shown, squeezed
from .pages import Block, blocks_of, run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "pages").rglob("*.md"))
MODULES_WITHOUT_ALL = {
    "ntl_kernels.integrations.trl": ["NTLSFTTrainer"],
}
"""What is public in modules that do not say so."""
PAGES_WITH_CODE = [page for page in PAGES if blocks_of(page)]


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of its own, no hub, and torch's seed and dtype as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("CI", "1")  # TRL reports its use over the network otherwise
    state = torch.random.get_rng_state()
    with standing_in():
        yield
    torch.random.set_rng_state(state)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(DOCS / "pages")))
def test_code_of_a_page_runs(page: Path, untouched: None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        with started_by_its_launcher() if "deepspeed.initialize" in block.code else nullcontext():
            printed = run(block, namespace)
        assert block.reason is None or block.reason.strip(), f"line {block.line}: say why the block is not run"
        if block.output is not None:
            assert printed == block.output, f"{page.name}, line {block.line}, prints something else"


def test_blocks_are_found_and_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="a title"\nprint(1)\n```\n\n```text\n1\n```\n\n'
        "- a list\n\n    ```python\n    x = 2\n    ```\n\n"
        "<!-- not run: needs a GPU -->\n```python\nraise RuntimeError\n```\n"
    )
    first, second, third = blocks_of(page)
    assert (first.line, first.output, run(first, {})) == (2, "1\n", "1\n")
    assert (second.line, second.code, second.reason) == (12, "x = 2\n", None)
    assert (third.reason, run(third, {})) == ("needs a GPU", "")
    with pytest.raises(SyntaxError):
        run(Block(page, 1, "this is no Python", "not run, but compiled", None), {})
    page.write_text("``` { .python }\nx = 1\n```\n")
    with pytest.raises(ValueError, match="does not begin"):
        blocks_of(page)


class Page(HTMLParser):
    """What a built page has, links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        """All of them, in order."""
        self.texts: list[str] = []
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
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What stands in it, scripts left out."""
        return "".join(self.texts)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly in a process of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml"), "-d", str(folder)]
    built = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_built(site: Path, built: dict[Path, Page]) -> None:
    names = {page.relative_to(DOCS / "pages").with_suffix(".html") for page in PAGES}
    assert {path.relative_to(site) for path in built} == names


def test_links_lead_somewhere(site: Path, built: dict[Path, Page]) -> None:
    broken = []
    for path, page in built.items():
        for link in [*page.links, *page.loads]:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            file = (path.parent / target.partition("?")[0]).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in built and anchor not in built[file].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path, built: dict[Path, Page]) -> None:
    remote = [f"{path.name}: {load}" for path, page in built.items() for load in page.loads if "//" in load]
    styles = {
        path.name: re.findall(r"url\([\"']?(?:https?:)?//|@import", path.read_text()) for path in site.rglob("*.css")
    }
    assert remote == []
    assert {name: found for name, found in styles.items() if found} == {}


def test_search_works_from_files(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    for words in ("expected distance", "linear_cross_entropy_ntl", "padded beyond the tokenizer"):
        assert words in index


def test_search_finds_in_a_browser_without_a_network(site: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None and not os.environ.get("CI"):
        pytest.skip("needs chromium")
    assert browser is not None, "install chromium: in CI the site is searched in a real browser"
    page = f"{(site / 'index.html').as_uri()}?q=median"
    offline = ["--disable-background-networking", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND"]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}", *offline]
    shown = subprocess.run(
        [browser, *flags, "--virtual-time-budget=20000", "--dump-dom", page],
        capture_output=True,
        text=True,
        timeout=120,
    )
    results = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown.stdout)
    assert any("mathematics.html" in result and "median" in result for result in results), results


def test_formulas_are_mathml_without_leftovers(site: Path) -> None:
    page = (site / "mathematics.html").read_text()
    source = (DOCS / "pages" / "mathematics.md").read_text()
    numbers = re.findall(r"\\tag\{(\d+)\}", source)
    assert numbers == [str(i + 1) for i in range(len(numbers))]
    assert re.findall(r'id="eq-(\d+)"', page) == numbers
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert "arithmatex" not in text, path.name
        assert not re.search(r"\\[a-zA-Z]{2,}|\$\$", text), path.name


def test_a_page_begins_with_its_title(built: dict[Path, Page]) -> None:
    """Front matter that is not read as such is printed above it."""
    first = {path.name: page.tags[page.tags.index("article") + 1] for path, page in built.items()}
    assert {name: tag for name, tag in first.items() if tag != "h1"} == {}


def test_files_of_the_repository_are_pages(site: Path, built: dict[Path, Page]) -> None:
    assert "unreleased" in built[site / "changelog.html"].text
    contributing = built[site / "contributing.html"]
    assert {"changelog.html", "architecture.html"} <= set(contributing.links)
    assert "emulated GPU (tests/emulator/README.md)" in contributing.text


def test_notes_of_a_table_of_marks_are_linked(site: Path) -> None:
    page = (site / "transforms.html").read_text()
    cells = re.findall(r'<td class="(yes|no|untried)">(.)(?: <a href="#(note-\d+)">\(\d+\)</a>)?</td>', page)
    source = (DOCS / "pages" / "transforms.md").read_text()
    assert len(cells) == len(re.findall(r"\| (?=[✓✗–])", source))
    assert {(kind, mark) for kind, mark, _ in cells} == {("yes", "✓"), ("no", "✗"), ("untried", "–")}
    assert all(bool(note) == (kind != "yes") for kind, _, note in cells)
    assert {note for *_, note in cells if note} == set(re.findall(r'<li id="(note-\d+)">', page))


WIDTHS = (1280, 390)
LABELS = """return [...document.querySelectorAll(".diagram text")].map((label) => {
    const scale = label.getBoundingClientRect().height / label.getBBox().height;
    return [label.textContent, scale * parseFloat(getComputedStyle(label).fontSize)];
})"""
"""Every label of the diagrams, and its size in pixels."""
SCHEMES = ("default", "slate")
NEVER = (
    "page is wider than the screen",
    "sticks out",
    "head is broken within a word",
    "code of a table is broken within a word",
    "equation is clipped",
    "button lies on code",
    "code has no button",
    "labels of a diagram overlap",
    "label leaves its diagram",
)
NOT_ON_A_WIDE_SCREEN = ("code scrolls", "equation scrolls")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def layouts(site: Path, built: dict[Path, Page], browser: Browser) -> dict[tuple[str, int], dict[str, Any]]:
    """How every page is laid out at every width."""
    found = {}
    for path in sorted(built):
        browser.open(path)
        for width in WIDTHS:
            browser.resize(width)
            found[str(path.relative_to(site)), width] = browser.layout()
    return found


def test_layouts_are_of_all_there_is(layouts: dict[tuple[str, int], dict[str, Any]]) -> None:
    sources = "\n".join(page.read_text() for page in PAGES)
    figures = set(re.findall(r"\]\((?:\.\./)*figures/(\w+)\.svg\)", sources))
    for width in WIDTHS:
        seen = [layout["seen"] for (_, at), layout in layouts.items() if at == width]
        total = {kind: sum(counts[kind] for counts in seen) for kind in seen[0]}
        assert total["equations"] >= sources.count("\\tag{") > 0
        assert total["diagrams"] == len(figures) > 0
        assert total["code"] == total["buttons"] >= sum(len(blocks_of(page)) for page in PAGES)
        assert total["heads"] > 100 and total["names"] > 100


@pytest.mark.parametrize("fault", [*NEVER, *NOT_ON_A_WIDE_SCREEN])
def test_pages_fit_their_screens(fault: str, layouts: dict[tuple[str, int], dict[str, Any]]) -> None:
    widths = WIDTHS if fault in NEVER else WIDTHS[:1]
    found = {where: layout["faults"][fault] for where, layout in layouts.items() if where[1] in widths}
    assert {where: what for where, what in found.items() if what} == {}


@pytest.mark.parametrize(("width", "scheme"), list(zip(WIDTHS, SCHEMES, strict=True)))
@pytest.mark.parametrize("page", ["index", "mathematics", "transforms"])
def test_axe_finds_nothing(page: str, width: int, scheme: str, site: Path, browser: Browser) -> None:
    browser.open(site / f"{page}.html", width)
    browser.choose(scheme)
    assert browser.violations() == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_labels_of_diagrams_stand_out(scheme: str, site: Path, browser: Browser) -> None:
    pages = [page for page in PAGES if "](figures/" in page.read_text()]
    for page in pages:
        browser.open(site / f"{page.stem}.html")
        browser.choose(scheme)
        contrasts = browser.contrasts()
        assert contrasts
        assert [(label, contrast) for label, contrast in contrasts if contrast < 4.5] == [], page.name


@pytest.mark.parametrize("width", [1280, 390])
def test_first_figure_can_be_read(width: int, site: Path, browser: Browser) -> None:
    browser.open(site / "index.html", width)
    labels = browser.run(LABELS)
    assert "loss" in dict(labels)
    assert min(size for _, size in labels) >= 11


def test_diagrams_bring_their_own_colours(figures: Any) -> None:
    """Where they are images, no page's style sheet reaches them."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name, pair in figures.COLOURS.items():
        for colour, paper in zip(pair, figures.COLOURS["paper"], strict=True):
            dark, light = sorted([luminance(colour), luminance(paper)])
            assert name in ("line", "paper") or (light + 0.05) / (dark + 0.05) >= 4.5, (name, colour)
    for path in sorted((DOCS / "pages" / "figures").glob("*.svg")):
        svg = path.read_text()
        defined = [set(re.findall(r"(--[\w-]+): #", style)) for style in svg.partition("</style>")[0].split("@media")]
        assert defined[0] == defined[1] >= set(re.findall(r"var\((--[\w-]+)\)", svg)), path.name
        assert "var(--figure-paper)" in svg


def test_first_figure_is_legible_as_an_image() -> None:
    """In the README it is 800 pixels wide, or 360 on a phone."""
    svg = (DOCS / "pages" / "figures" / "comparison.svg").read_text()
    width = float(re.search(r'viewBox="0 0 (\d+)', svg)[1])
    smallest = min(float(size) for size in re.findall(r'font-size="(\d+)"', svg))
    assert smallest * 800 / width >= 12
    assert smallest * 360 / width >= 11


def test_reference_is_in_the_order_of_use(site: Path) -> None:
    page = (site / "api" / "index.html").read_text()
    names = [
        "cross_entropy_ntl",
        "linear_cross_entropy_ntl",
        "CrossEntropyNTLLoss",
        "NTLConfig",
        "NTLOutput",
        "NumberTokens",
    ]
    places = [page.index(f'id="ntl_kernels.{name}"') for name in names]
    assert places == sorted(places)


def test_docstrings_are_shown_whole(site: Path, built: dict[Path, Page]) -> None:
    """Without backticks a page would swallow what stands between "<" and ">" or two asterisks."""
    missing, count = [], 0
    for path, page in built.items():
        if path.parent == site / "api":
            text = squeezed(page.text)
            pieces = [(name, piece) for name in sorted(page.ids) for piece in pieces_of(name)]
            missing += [f"{name}: {piece}" for name, piece in pieces if shown(piece) not in text]
            count += len(pieces)
    assert missing == []
    assert count > 200


def public_names() -> list[str]:
    """Every public name of the package, and of its modules that have an ``__all__``; none is imported for it."""
    names = [f"{module}.{name}" for module, found in MODULES_WITHOUT_ALL.items() for name in found]
    for source in sorted((ROOT / "ntl_kernels").rglob("*.py")):
        parts = source.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for statement in ast.parse(source.read_text()).body:
            if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
                names += [f"{module}.{name}" for name in ast.literal_eval(statement.value)]
    return names


def test_public_names_are_found() -> None:
    assert {f"ntl_kernels.{name}" for name in ntl_kernels.__all__} <= set(public_names())
    assert "ntl_kernels.ntloss.NTLoss" in public_names()


@pytest.mark.parametrize("name", public_names())
def test_public_name_is_in_the_reference(name: str, site: Path, built: dict[Path, Page]) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
    assert name in {i for path, page in built.items() if path.parent == site / "api" for i in page.ids}, (
        f"add {name} to a page in docs/pages/api"
    )


@pytest.mark.parametrize("name", public_names())
def test_fields_are_in_the_reference(name: str, site: Path, built: dict[Path, Page]) -> None:
    """Those of a named tuple one by one, those of a dataclass at least as its arguments."""
    module, _, attribute = name.rpartition(".")
    public = getattr(importlib.import_module(module), attribute)
    path = next(path for path, page in built.items() if path.parent == site / "api" and name in page.ids)
    fields = getattr(public, "_fields", ())
    assert [field for field in fields if f"{name}.{field}" not in built[path].ids] == []
    if is_dataclass(public):
        page = path.read_text()
        assert [field.name for field in dataclass_fields(public) if f">{field.name}<" not in page] == []


def test_diagrams_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, str(DOCS / "figures.py"), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def figures() -> Any:
    """The script that draws the diagrams."""
    return script("figures")


def script(name: str) -> Any:
    """A Python file of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_links_the_repository_once_it_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = script("hooks")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text("title: some\n")
    assert hooks.on_config({"repo_url": None}) == {"repo_url": None}
    (tmp_path / "CITATION.cff").write_text("title: some\nrepository-code: https://example.org/some\n")
    assert hooks.on_config({"repo_url": None}) == {"repo_url": "https://example.org/some"}


def test_a_stale_diagram_is_noticed(
    figures: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["figures.py", "--check"])
    monkeypatch.setitem(figures.FIGURES, "row", lambda: "another drawing")
    assert figures.main() == 1
    assert "row.svg is out of date" in capsys.readouterr().out


def test_the_pages_say_nothing_of_this_machine(site: Path) -> None:
    for path in [*PAGES, *site.rglob("*.html")]:
        assert str(ROOT) not in path.read_text(), path.name


def test_transport_figure_shows_the_expected_distance() -> None:
    """The two cuts of the figure in "Why the CDF distance ... is an expected distance" have the same area."""
    svg = (DOCS / "pages" / "figures" / "transport.svg").read_text()
    rectangles = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="([\d.]+)"', svg)
    areas = [0.0, 0.0]
    for x, width, height in rectangles:
        areas[float(x) > 400] += float(width) * float(height)
    assert areas[0] == pytest.approx(areas[1], rel=1e-4)


def test_files_that_the_prose_names_exist() -> None:
    missing = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        named = re.findall(r"(?<![\w/])((?:ntl_kernels|tests|benchmarks|docs|\.ci)/[\w./-]*\w)", page.read_text())
        missing += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_compared_losses_are_the_librarys(figures: Any) -> None:
    numbers = NumberTokens.from_mapping({digit: digit for digit in range(10)}, vocab_size=11)
    p = torch.full((10, 11), 0.0, dtype=torch.float64)
    p[:, figures.LABEL] += 1 - figures.SHARE
    p[torch.arange(10), torch.arange(10)] += figures.SHARE
    labels = torch.full((10,), figures.LABEL)
    for name, config in {
        "CE": NTLConfig(weight=0.0),
        "CE + 0.3 NTL-WAS": NTLConfig(weight=figures.WEIGHT),
    }.items():
        losses = cross_entropy_ntl(p.log(), labels, numbers, config=config, reduction="none")
        assert figures.compared_losses()[name] == pytest.approx(losses.tolist())


def test_commands_name_modules_that_exist() -> None:
    commands = re.compile(r"^ *python -m ([\w.]+)", re.MULTILINE)
    named = {name for page in [*PAGES, ROOT / "CONTRIBUTING.md"] for name in commands.findall(page.read_text())}
    assert {"benchmarks.inspect", "benchmarks.quality", "benchmarks.speed"} <= named
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []
