"""Headless Chromium, for tests of pages.

Needs Chromium and its driver (Debian: ``apt-get install chromium chromium-driver``) and the packages of the extra
``test``. Where one is missing, tests are skipped; with CI set in the environment they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--disable-features=BackForwardCache",  # an abandoned page would keep running, and grow
)
PATIENCE = 60.0
"""Seconds until a page counts as broken; on an idle machine, a few are enough."""


def require(is_there: bool, what: str) -> None:
    """Skip the test that needs ``what``, or fail in CI."""
    if is_there:
        return
    if os.environ.get("CI"):
        pytest.fail(f"tests of pages need {what}")
    pytest.skip(f"needs {what}")


def require_packages(*names: str) -> None:
    """Skip the test, or fail in CI, unless these modules can be imported."""
    for name in names:
        require(importlib.util.find_spec(name) is not None, name.replace("_", "-"))


@contextmanager
def driving(folder: Path, *flags: str, logs: tuple[str, ...] = ()) -> Iterator[Any]:
    """The driver of a browser with its profile in ``folder``; ``logs`` are the driver's, "browser" or "performance"."""
    require_packages("selenium")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    require(bool(chromium and chromedriver), "Chromium and its driver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, *flags, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    if logs:
        options.set_capability("goog:loggingPrefs", dict.fromkeys(logs, "ALL"))
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        driver.set_page_load_timeout(PATIENCE)
        driver.set_script_timeout(PATIENCE)
        yield driver
    finally:
        driver.quit()
