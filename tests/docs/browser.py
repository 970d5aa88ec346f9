"""The site in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..chromium import PATIENCE, driving, require_packages

MOUSE = "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
LAYOUT = (Path(__file__).parent / "faults.js").read_text()
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
STILL = """
const style = document.createElement("style");
style.textContent = "* { transition: none !important; }";
document.head.append(style);
"""
"""Colours change at once."""
AXE = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]},
    "iframes": False,  # the search runs in one, which has nothing to see
}
SKIPPED = [
    ["[name=__palette]"],  # the theme's switch between light and dark: axe 3 does not see its name
    ["math > *"],  # thousands of letters in the colour of the text around them
]
CHECK = """
const [exclude, options, done] = arguments;
axe.run({ exclude }, options).then(done, (error) => done({ error: `${error}` }));
"""


class Browser:
    """One page at a time, in one window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1280) -> None:
        """A page of that width, once its scripts have run."""
        self.resize(width)
        self.driver.get(page.as_uri())
        end = time.monotonic() + PATIENCE
        while not self.run("return document.readyState === 'complete' && document.fonts.status === 'loaded'"):
            assert time.monotonic() < end, f"{page.name} is not loaded after {PATIENCE:g} s"
            time.sleep(0.05)
        self.run(STILL)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def choose(self, scheme: str) -> None:
        """Light (``default``) or dark (``slate``), as the button at the top of a page does it."""
        self.run("document.body.setAttribute('data-md-color-scheme', arguments[0])", scheme)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def layout(self) -> dict[str, dict[str, Any]]:
        """What is wrong with the page, and how much there was to look at: see faults.js."""
        return self.run(LAYOUT)

    def contrasts(self) -> list[tuple[str, float]]:
        """Every label of the page's diagrams, with its contrast to what lies under it."""
        return [(label, contrast) for label, contrast in self.run(CONTRAST)]

    def violations(self) -> list[str]:
        """What axe finds: the rule, the element and the reason."""
        from axe_selenium_python import Axe

        Axe(self.driver).inject()
        results = self.driver.execute_async_script(CHECK, SKIPPED, AXE)
        assert results.get("passes"), f"axe looked at nothing: {results}"
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in results["violations"]
            for node in rule["nodes"]
        ]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in a folder."""
    require_packages("axe_selenium_python")
    with driving(folder, MOUSE) as driver:
        yield Browser(driver)
