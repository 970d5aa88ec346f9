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
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import ntl_kernels
from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from .pages import Block, blocks_of, run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "pages").rglob("*.md"))
MODULES_WITHOUT_ALL = {
    "ntl_kernels.integrations.trl": ["NTLSFTTrainer"],
    "ntl_kernels.inspect": ["Report", "Estimate", "executed", "Counts"],
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
    yield
    torch.random.set_rng_state(state)


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(DOCS / "pages")))
def test_code_of_a_page_runs(page: Path, untouched: None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
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
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


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


def test_diagrams_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, str(DOCS / "figures.py"), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def figures() -> Any:
    """The script that draws the diagrams."""
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        "CE + 0.3 NTL-MSE": NTLConfig(kind="mse", weight=figures.WEIGHT),
    }.items():
        losses = cross_entropy_ntl(p.log(), labels, numbers, config=config, reduction="none")
        assert figures.loss_curves()[name] == pytest.approx(losses.tolist())


def test_commands_name_modules_that_exist() -> None:
    commands = re.compile(r"^ *python -m ([\w.]+)", re.MULTILINE)
    named = {name for page in [*PAGES, ROOT / "CONTRIBUTING.md"] for name in commands.findall(page.read_text())}
    assert {"ntl_kernels.inspect", "benchmarks.quality", "benchmarks.speed"} <= named
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []
