"""The site: its code runs, it builds without a warning, its links work, and it needs no network."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import ntl_kernels
from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from ..integrations.deepspeed_on_cpu import started_by_its_launcher
from ..stand_ins import standing_in
from ..versions import needs
from .pages import DOCS, PAGES, ROOT, Block, BuiltPage, blocks_of, run

PROSE = [*PAGES, ROOT / "CONTRIBUTING.md"]
SLOW = {"recipes.md", "frameworks.md"}
"""Pages whose code trains models, or starts processes."""
NEEDS = {
    "recipes.md": needs("trl", 0, to="be imported by a recipe"),
    "huggingface.md": needs("trl", 0, to="be imported by the page"),
    "migration.md": pytest.mark.skipif(
        not hasattr(F, "linear_cross_entropy"), reason=f"torch {torch.__version__} has no F.linear_cross_entropy"
    ),
}
"""Pages whose code needs more than the oldest versions."""
MODULES_WITHOUT_ALL = {"ntl_kernels.integrations.trl": ["NTLSFTTrainer"]}
"""Public names of modules without ``__all__``."""


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty folder, no hub, and torch's seed restored afterwards."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CI", "1")  # TRL reports its use over the network otherwise
    state = torch.random.get_rng_state()
    with standing_in():
        yield
    torch.random.set_rng_state(state)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(DOCS / "pages")),
            marks=[*[pytest.mark.slow] * (page.name in SLOW), *filter(None, [NEEDS.get(page.name)])],
        )
        for page in PAGES
        if blocks_of(page)
    ],
)
def test_code_of_a_page_runs(page: Path, untouched: None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        with started_by_its_launcher() if "deepspeed.initialize" in block.code else nullcontext():
            printed = run(block, namespace)
        assert block.output in (None, printed), f"{page.name}, line {block.line}, prints something else"


def test_code_that_is_not_run_says_why_and_compiles() -> None:
    for block in (block for page in PAGES for block in blocks_of(page)):
        assert block.reason is None or block.reason.strip(), f"{block.page.name}, line {block.line}"
        run(block._replace(reason="only compiled"), {})


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
        run(Block(page, 1, "not valid Python", "not run, but compiled", None), {})
    page.write_text("``` { .python }\nx = 1\n```\n")
    with pytest.raises(ValueError, match="does not begin"):
        blocks_of(page)


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, BuiltPage]:
    return {path: BuiltPage(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_built_and_begins_with_its_title(site: Path, built: dict[Path, BuiltPage]) -> None:
    names = {page.relative_to(DOCS / "pages").with_suffix(".html") for page in PAGES}
    assert {path.relative_to(site) for path in built} == names
    first = {path.name: page.tags[page.tags.index("article") + 1] for path, page in built.items()}
    assert {name: tag for name, tag in first.items() if tag != "h1"} == {}  # front matter, printed above it


def test_links_lead_somewhere(site: Path, built: dict[Path, BuiltPage]) -> None:
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


def test_nothing_is_loaded_from_elsewhere(site: Path, built: dict[Path, BuiltPage]) -> None:
    assert [f"{path.name}: {load}" for path, page in built.items() for load in page.loads if "//" in load] == []
    remote = re.compile(r"url\([\"']?(?:https?:)?//|@import")
    assert [path.name for path in site.rglob("*.css") if remote.search(path.read_text())] == []


def test_search_works_from_files(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    for words in ("expected distance", "linear_cross_entropy_ntl", "padded beyond the tokenizer"):
        assert words in index


def test_formulas_are_mathml_without_leftovers(site: Path) -> None:
    numbers = re.findall(r"\\tag\{(\d+)\}", (DOCS / "pages" / "mathematics.md").read_text())
    assert numbers == [str(i + 1) for i in range(len(numbers))]
    assert re.findall(r'id="eq-(\d+)"', (site / "mathematics.html").read_text()) == numbers
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert "arithmatex" not in text and not re.search(r"\\[a-zA-Z]{2,}|\$\$", text), path.name


def test_files_of_the_repository_are_pages(site: Path, built: dict[Path, BuiltPage]) -> None:
    assert "Semantic Versioning" in built[site / "versions.html"].text
    contributing = built[site / "contributing.html"]
    assert {"versions.html", "#architecture"} <= {link.removeprefix("contributing.html") for link in contributing.links}
    assert "emulated GPU (tests/emulator/README.md)" in contributing.text
    assert "results/quality/commands.txt" in built[site / "tables.html"].links  # too long for a page


def test_docstrings_have_markup_in_backticks_alone() -> None:
    """Elsewhere, a page would drop text between "<" and ">" or two asterisks."""
    found, count = [], 0
    for source in sorted((ROOT / "ntl_kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                text = re.sub(r"``.+?``|`[^`]+`", "", node.value.value, flags=re.DOTALL)
                found += [f"{source.name}: {markup}" for markup in re.findall(r".*(?:<[\w/]|\w\*\w).*", text)]
                count += 1
    assert found == [] and count > 200


def public_names() -> list[str]:
    """Every public name of the package, and of its modules that have an ``__all__``."""
    names = [f"{module}.{name}" for module, found in MODULES_WITHOUT_ALL.items() for name in found]
    for source in sorted((ROOT / "ntl_kernels").rglob("*.py")):
        parts = source.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for statement in ast.parse(source.read_text()).body:
            if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
                names += [f"{module}.{name}" for name in ast.literal_eval(statement.value)]
    return names


@needs("trl", 0, to="be looked into")
def test_public_names_and_their_fields_are_in_the_reference(site: Path, built: dict[Path, BuiltPage]) -> None:
    """Fields of a named tuple one by one, those of a dataclass at least as its arguments."""
    reference = {path: page for path, page in built.items() if path.parent == site / "api"}
    names, missing = public_names(), []
    assert {"ntl_kernels.ntloss.NTLoss", *(f"ntl_kernels.{name}" for name in ntl_kernels.__all__)} <= set(names)
    for name in names:
        module, _, attribute = name.rpartition(".")
        public = getattr(importlib.import_module(module), attribute)
        path = next((path for path, page in reference.items() if name in page.ids), None)
        if path is None:
            missing.append(name)
            continue
        missing += [
            f"{name}.{field}"
            for field in getattr(public, "_fields", ())
            if f"{name}.{field}" not in reference[path].ids
        ]
        fields = dataclass_fields(public) if is_dataclass(public) else ()
        missing += [f"{name}({field.name})" for field in fields if f">{field.name}<" not in path.read_text()]
    assert missing == [], "add them to a page in docs/pages/api"


def test_signatures_show_default_options(site: Path) -> None:
    for page in (site / "api" / f"{name}.html" for name in ("index", "integrations")):
        text = re.sub(r"</?(?:a|span)\b[^>]*>", "", page.read_text())
        assert "config: NTLConfig = NTLConfig()," in text and "DEFAULT_CONFIG" not in text, page.name


def script(name: str) -> Any:
    """A Python file of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> Any:
    """The script that draws the diagrams."""
    return script("figures")


def test_diagrams_are_up_to_date(
    figures: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = subprocess.run([sys.executable, str(DOCS / "figures.py"), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    monkeypatch.setattr(sys, "argv", ["figures.py", "--check"])
    monkeypatch.setitem(figures.FIGURES, "row", lambda: "another drawing")
    assert figures.main() == 1 and "row.svg is out of date" in capsys.readouterr().out


def test_the_run_of_a_recipe_is_told_as_it_was_logged(figures: Any) -> None:
    log = json.loads(figures.LOG.read_text())["log"]
    losses, answers = ([entry for entry in log if name in entry] for name in ("eval_ce", "eval_mae"))
    assert [entry["step"] for entry in answers] == [0, 100, 200]
    told = " ".join((DOCS / "pages" / "recipes.md").read_text().split())
    ends = (
        ", ".join(f"{entry[f'eval_{name}']:.2f}" for name in ("ce", "ntl", "number_mae"))
        for entry in (losses[0], losses[-1])
    )
    start, end = (" and ".join(each.rsplit(", ", 1)) for each in ends)
    assert f"from {start} to {end}]" in told
    medians, maes = ([f"{entry[f'eval_{name}']:,.0f}" for entry in answers] for name in ("median_error", "mae"))
    numbers = [100 - 100 * entry["eval_no_number"] for entry in answers]
    before = f"{numbers[0]:.0f} of the answers were numbers, with a median error of {medians[0]} dollars"
    assert f"Before training, {before}" in told
    assert numbers[1:] == [100, 100] and f"all were, with {medians[1]}, and after 200 with {medians[2]}" in told
    assert f"(MAE {maes[1]}, then {maes[2]})" in told


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


@pytest.mark.parametrize("name", ["comparison", "lengths"])
def test_figures_of_losses_are_legible_on_a_phone(name: str) -> None:
    """The first is an image in the README, 800 pixels wide, or 360 on a phone."""
    svg = (DOCS / "pages" / "figures" / f"{name}.svg").read_text()
    width = float(re.search(r'viewBox="0 0 (\d+)', svg)[1])
    smallest = min(float(size) for size in re.findall(r'font-size="(\d+)"', svg))
    assert smallest * 800 / width >= 12 and smallest * 360 / width >= 11


def test_transport_figure_shows_the_expected_distance() -> None:
    """The two cuts of the figure in "Why the CDF distance ... is an expected distance" have the same area."""
    svg = (DOCS / "pages" / "figures" / "transport.svg").read_text()
    areas = [0.0, 0.0]
    for x, width, height in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="([\d.]+)"', svg):
        areas[float(x) > 400] += float(width) * float(height)
    assert areas[0] == pytest.approx(areas[1], rel=1e-4)


def test_compared_losses_are_the_librarys(figures: Any) -> None:
    numbers = NumberTokens.from_mapping({digit: digit for digit in range(10)}, vocab_size=11)
    p = torch.full((10, 11), 0.0, dtype=torch.float64)
    p[:, figures.LABEL] += 1 - figures.SHARE
    p[torch.arange(10), torch.arange(10)] += figures.SHARE
    labels = torch.full((10,), figures.LABEL)
    for name, weight in {"CE": 0.0, "CE + 0.3 NTL-WAS": figures.WEIGHT}.items():
        losses = cross_entropy_ntl(p.log(), labels, numbers, config=NTLConfig(weight=weight), reduction="none")
        assert figures.compared_losses()[name] == pytest.approx(losses.tolist())


def test_alternative_text_has_the_losses_of_the_figure(figures: Any) -> None:
    page = (DOCS / "pages" / "number-tokens.md").read_text()
    said = re.search(r"!\[[^\]]* by value is ([^\]]*)\]\(figures/lengths\.svg\)", page)[1]
    _, *rows = figures.losses_of_guesses().values()
    assert re.findall(r"[\d.]*\d", said) == [f"{loss:.3g}" for losses in rows for loss in losses]


def test_the_site_links_the_repository_once_it_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = script("hooks")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    for citation, url in (("title: some\n", None), ("repository-code: https://example.org/some\n",) * 2):
        (tmp_path / "CITATION.cff").write_text(citation)
        assert hooks.on_config({"repo_url": None}) == {"repo_url": url and url.split()[1]}


def test_the_pages_say_nothing_of_this_machine(site: Path) -> None:
    for path in [*PAGES, *site.rglob("*.html")]:
        assert str(ROOT) not in path.read_text(), path.name


def test_files_and_modules_that_the_prose_names_exist() -> None:
    for page in PROSE:
        text = page.read_text()
        files = re.findall(r"(?<![\w/])((?:ntl_kernels|tests|benchmarks|docs|\.ci)/[\w./-]*\w)", text)
        assert [name for name in files if not (ROOT / name).exists()] == [], page.name
        modules = re.findall(r"^ *python -m ([\w.]+)", text, re.MULTILINE)
        assert [name for name in modules if importlib.util.find_spec(name) is None] == [], page.name
