"""The site in a real browser, which opens every page once and reaches no network."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..chromium import PATIENCE, driving, require_packages
from .pages import PAGES, blocks_of

pytestmark = pytest.mark.slow
FLAGS = (
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",  # a mouse
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
WIDTHS = (1280, 390)
LAYOUT, CONTRAST = ((Path(__file__).parent / name).read_text() for name in ("faults.js", "contrast.js"))
ONLY_ON_A_WIDE_SCREEN = ("code scrolls", "equation scrolls")
"""What is a fault there; on a phone it may be."""
STILL = """
const style = document.createElement("style");
style.textContent = "* { transition: none !important; }";
document.head.append(style);
"""
"""Colours change at once."""
AXE = """
const options = { runOnly: { type: "tag", values: ["wcag2a", "wcag2aa"] }, iframes: false };  // the search runs in one
const exclude = [
  ["[name=__palette]"],  // the theme's switch between light and dark: axe 3 does not see its name
  ["math > *"],  // thousands of letters in the colour of the text around them
];
const done = arguments[0];
axe.run({ exclude }, options).then(done, (error) => done({ error: `${error}` }));
"""


class Browser:
    """One page at a time, in one window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """A page, once its scripts have run."""
        self.driver.get(address)
        self.wait_for("return document.readyState === 'complete' && document.fonts.status === 'loaded'")
        self.run(STILL)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def choose(self, scheme: str) -> None:
        """Light (``default``) or dark (``slate``), as the button at the top of a page does it."""
        self.run(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait_for(self, script: str) -> Any:
        """What a script returns, once that is true."""
        end = time.monotonic() + PATIENCE
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"{self.driver.current_url} takes more than {PATIENCE:g} s"
            time.sleep(0.05)
        return found

    def violations(self) -> list[str]:
        """What axe finds: the rule, the element and the reason."""
        from axe_selenium_python import Axe

        Axe(self.driver).inject()
        results = self.driver.execute_async_script(AXE)
        assert results.get("passes"), f"axe looked at nothing: {results}"
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in results["violations"]
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require_packages("axe_selenium_python")
    with driving(tmp_path_factory.mktemp("chromium"), *FLAGS) as driver:
        yield Browser(driver)


def test_pages_fit_their_screens(site: Path, browser: Browser) -> None:
    """faults.js lists what must not happen, and counts what there was to look at."""
    faults, total = [], {}
    for page in sorted(path for path in site.rglob("*.html") if path.name != "404.html"):
        browser.open(page.as_uri())
        for width in WIDTHS:
            browser.resize(width)
            layout = browser.run(LAYOUT)
            total |= {(width, kind): total.get((width, kind), 0) + count for kind, count in layout["seen"].items()}
            allowed = () if width == WIDTHS[0] else ONLY_ON_A_WIDE_SCREEN
            found = {fault: what for fault, what in layout["faults"].items() if what and fault not in allowed}
            faults += [(page.name, width, found)] if found else []
    assert faults == []
    sources = "\n".join(page.read_text() for page in PAGES)
    figures = set(re.findall(r"\]\((?:\.\./)*figures/(\w+)\.svg\)", sources))
    for width in WIDTHS:
        assert total[width, "equations"] >= sources.count("\\tag{") > 0
        assert total[width, "diagrams"] == len(figures) > 0
        assert total[width, "code"] == total[width, "buttons"] >= sum(len(blocks_of(page)) for page in PAGES)
        assert min(total[width, kind] for kind in ("heads", "names", "intervals")) > 100


@pytest.mark.parametrize(("width", "scheme"), [(1280, "default"), (390, "slate")])
@pytest.mark.parametrize("page", sorted({page.stem for page in PAGES if page.parent.name == "pages"} - {"tables"}))
def test_axe_finds_nothing(page: str, width: int, scheme: str, site: Path, browser: Browser) -> None:
    """On all pages but the longest, whose tables are like those of `evidence`."""
    browser.resize(width)
    browser.open((site / f"{page}.html").as_uri())
    browser.choose(scheme)
    assert browser.violations() == []


def test_labels_of_diagrams_stand_out(site: Path, browser: Browser) -> None:
    for page in (page for page in PAGES if "](figures/" in page.read_text()):
        browser.open((site / f"{page.stem}.html").as_uri())
        for scheme in ("default", "slate"):
            browser.choose(scheme)
            contrasts = browser.run(CONTRAST)
            assert contrasts and [label for label, contrast in contrasts if contrast < 4.5] == [], page.name


def test_search_finds_without_a_network(site: Path, browser: Browser) -> None:
    browser.open(f"{(site / 'index.html').as_uri()}?q=median")
    links = "return [...document.querySelectorAll('a.md-search-result__link')].map((link) => link.href)"
    results = browser.wait_for(f"const found = (() => {{ {links} }})(); return found.length ? found : null")
    assert any("mathematics.html" in result and "median" in result for result in results), results
