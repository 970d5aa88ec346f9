"""The demo in a real browser: its numbers are the library's, nothing leaves the machine, every screen can use it.

Needs Chromium and its driver (Debian: ``apt-get install chromium chromium-driver``), selenium and the extra ``demo``.
Where one is missing the tests are skipped, but fail if the environment has CI set.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.demo.charts import shown

ROOT = Path(__file__).parent.parent.parent
DEFAULT = NTLConfig()
PATIENCE = 60.0
"""Seconds until the page counts as broken; nothing here takes more than a few on an idle machine."""
LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SERVER = f"""
import runpy, sys
log = open(sys.argv.pop(1), "a", buffering=1)
def watch(event, arguments):
    address = arguments[1] if event == "socket.connect" else arguments if event == "socket.getaddrinfo" else None
    if isinstance(address, tuple) and address[0] not in {LOCAL!r}:
        print(event, address[:2], file=log)
sys.addaudithook(watch)
runpy.run_module("ntl_kernels.demo", run_name="__main__", alter_sys=True)
"""
"""Runs the demo and writes down every connection that leaves the machine."""


def require(is_there: bool, what: str) -> None:
    if is_there:
        return
    if os.environ.get("CI"):
        pytest.fail(f"the demo's tests need {what}")
    pytest.skip(f"needs {what}")


@dataclass
class Server:
    url: str
    output: Path
    connections: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require(importlib.util.find_spec("gradio") is not None, 'the extra "demo": pip install -e ".[demo]"')
    folder = tmp_path_factory.mktemp("demo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Server(f"http://127.0.0.1:{port}/", folder / "output.txt", folder / "connections.txt")
    found.connections.touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["GRADIO_TEMP_DIR"] = str(folder / "uploads")
    command = [sys.executable, "-c", SERVER, str(found.connections), "--port", str(port)]
    with found.output.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: process.poll() is not None or answers(found.url), "the server to answer")
        assert process.poll() is None, found.output.read_text()
        yield found
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def driver(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require(importlib.util.find_spec("selenium") is not None, "selenium")
    browser, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    require(bool(browser and chromedriver), "Chromium and its driver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        driver.set_page_load_timeout(PATIENCE)
        yield driver
    finally:
        driver.quit()


class Page:
    """The demo as a person sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url
        self.errors: list[dict[str, Any]] = []
        """What the pages wrote to the console as errors, up to their being left."""

    def leave(self) -> None:
        """Keep the page's errors, but not what it says of the connections that leaving it cuts."""
        self.errors += [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def open(self, width: int = 1280, scheme: str = "light") -> None:
        """A fresh page of that width, for a reader who prefers ``scheme``."""
        self.leave()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
        self.driver.get(self.url)
        until(lambda: len(self.losses()) == 13, "the losses to show")

    def find(self, selector: str) -> Any:
        """The first element of a CSS selector, once there is one."""
        return until(lambda: self.all(selector), selector)[0]

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, name: str, role: str = "button") -> None:
        """Click the visible button, or tab, of that name."""
        selector = "button[role=tab]" if role == "tab" else "button"

        def named() -> list[Any]:
            return [e for e in self.all(selector) if e.is_displayed() and e.text.split("\n")[0] == name]

        until(named, f"the {role} {name!r}")[0].click()

    def enter(self, name: str, text: str) -> None:
        """Replace what stands in the number field of a slider, at once: the server refuses the "0" of "0.4"."""
        from selenium.webdriver.common.keys import Keys

        field = self.find(f'input[aria-label="number input for {name}"]')
        field.send_keys(Keys.CONTROL, "a", Keys.NULL)
        self.driver.execute_cdp_cmd("Input.insertText", {"text": text})
        field.send_keys(Keys.TAB)

    def losses(self) -> dict[str, str]:
        """What the bars say."""
        return self.run(
            "return Object.fromEntries([...document.querySelectorAll('[data-loss]')]"
            ".map(bar => [bar.dataset.loss, bar.textContent]))"
        )

    def fact(self, name: str) -> str:
        return self.find(f'[data-fact="{name}"]').text

    def gradients(self) -> list[list[str]]:
        """The rows of the gradient's table."""
        return self.run(
            "return [...document.querySelectorAll('#gradient tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )

    def text(self, selector: str) -> str:
        return self.find(selector).text


@pytest.fixture(scope="module")
def page(driver: Any, server: Server) -> Page:
    return Page(driver, server.url)


def until(condition: Callable[[], Any], what: str) -> Any:
    """The condition's first true value; stale elements only mean that the page is being redrawn."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found = condition()
        except Exception as error:
            if type(error).__name__ != "StaleElementReferenceException":
                raise
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.05)


def until_shown(read: Callable[[], list[str]], expected: list[float]) -> None:
    """Wait until the page shows these numbers, each to its last digit, and show the difference if it never does.

    A number half-way between two roundings may go either way.
    """
    end = time.monotonic() + PATIENCE
    while not all_shown(read(), expected) and time.monotonic() < end:
        time.sleep(0.05)
    texts = read()
    assert all_shown(texts, expected), list(zip(texts, map(shown, expected), strict=False))


def all_shown(texts: list[str], numbers: list[float]) -> bool:
    return len(texts) == len(numbers) and all(
        text in (shown(number * (1 - 1e-9)), shown(number * (1 + 1e-9)))
        for text, number in zip(texts, numbers, strict=True)
    )


def prediction(count: int, peaks: dict[int, float], even: float = 0.01, on_text: float = 0.0) -> Tensor:
    """Log-probabilities over ``count`` numbers and four text tokens, from peaks of a single number each."""
    numbers = torch.full((count,), even / count, dtype=torch.float64)
    for place, share in peaks.items():
        numbers[place] += (1 - even) * share
    text = torch.full((4,), on_text / 4, dtype=torch.float64)
    return torch.cat([(1 - on_text) * numbers, text]).log()


def library(logits: Tensor, truth: int, config: NTLConfig) -> NTLOutput:
    """The library's answer for one prediction over numbers from 0 on, in float64."""
    numbers = NumberTokens.from_mapping({token: float(token) for token in range(len(logits) - 4)}, len(logits))
    output = cross_entropy_ntl(
        logits[None], torch.tensor([truth]), numbers, config=config, return_parts=True, backend="reference"
    )
    assert isinstance(output, NTLOutput)
    return output


def expected_losses(logits: Tensor, truth: int, squash: float, sigma: float, delta: float) -> dict[str, float]:
    configs: dict[str, dict[str, Any]] = {
        "NTL-WAS": {},
        "NTL-WAS, squash_factor": {"squash_factor": squash},
        "NTL-WAS, label_sigma": {"label_sigma": sigma},
        "NTL-MSE": {"kind": "mse"},
        "NTL-MAE": {"kind": "mae"},
        "NTL-Huber": {"kind": "huber", "huber_delta": delta},
    }
    expected = {"CE": library(logits, truth, NTLConfig()).cross_entropy.item()}
    for name, options in configs.items():
        for reweigh in (True, False):
            output = library(logits, truth, NTLConfig(reweigh=reweigh, **options))
            expected[f"{name}, reweigh={reweigh}"] = output.ntl.item()
    return expected


def expected_gradients(logits: Tensor, truth: int, config: NTLConfig) -> list[float]:
    """CE, weight * NTL and both, token after token."""
    both, ce = (
        torch.autograd.grad(library(x, truth, c).loss, x)[0]
        for c in (config, NTLConfig(weight=0.0))
        for x in [logits.clone().requires_grad_()]
    )
    return torch.stack([ce, both - ce, both], -1).flatten().tolist()


def expect(
    page: Page,
    logits: Tensor,
    truth: int,
    gradient_of: NTLConfig = DEFAULT,
    options: tuple[float, float, float] = (2.0, 1.0, 1.0),
) -> None:
    """Wait until every number on the first page is the library's."""
    expected = expected_losses(logits, truth, *options)
    until_shown(lambda: [page.losses().get(name, "") for name in expected], list(expected.values()))
    gradients = expected_gradients(logits, truth, gradient_of)
    until_shown(lambda: [cell for row in page.gradients() for cell in row[2:]], gradients)
    parts = library(logits, truth, NTLConfig())
    facts = [logits.exp()[truth].item(), parts.number_mass.item(), parts.number_mae.item()]
    until_shown(lambda: [page.fact(name) for name in ("p-label", "mass", "error")], facts)


def test_numbers_are_the_librarys_for_every_preset(page: Page) -> None:
    page.open()
    expect(page, prediction(10, {5: 1.0}), 4)
    presets = {
        "certain and right": prediction(10, {4: 1.0}),
        "certain and far": prediction(10, {9: 1.0}),
        "uniform": prediction(10, {}, even=1.0),
        "two peaks": prediction(10, {0: 0.5, 8: 0.5}),
        "mass on text": prediction(10, {4: 1.0}, on_text=0.9),
        "certain and near": prediction(10, {5: 1.0}),
    }
    for name, logits in presets.items():
        page.press(name)
        expect(page, logits, 4)


def test_many_digit_tokens_and_the_weight(page: Page) -> None:
    page.open()
    page.find("#kind input[value='many-digit tokens']").click()
    until(lambda: len(page.gradients()) == 104, "the larger vocabulary")
    page.enter("True number", "42")
    page.press("two peaks")
    expect(page, prediction(100, {0: 0.5, 84: 0.5}), 42)
    page.enter("weight (lambda)", "1.3")
    expect(page, prediction(100, {0: 0.5, 84: 0.5}), 42, NTLConfig(weight=1.3))
    page.find("#kind input[value='digits']").click()
    until(lambda: len(page.gradients()) == 14, "the smaller vocabulary")
    expect(page, prediction(10, {0: 0.5, 9: 0.5}), 9, NTLConfig(weight=1.3))


def test_options_reach_the_losses_and_the_gradient(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.press("Options of the losses")
    until(lambda: page.find('input[aria-label="number input for squash_factor"]').is_displayed(), "the options")
    for name, value in (("squash_factor", "3"), ("label_sigma", "1.7"), ("huber_delta", "0.4")):
        page.enter(name, value)
    page.press("mass on text")
    options = (3.0, 1.7, 0.4)
    logits = prediction(10, {4: 1.0}, on_text=0.9)
    expect(page, logits, 4, options=options)
    page.find("#reweigh input").click()
    expect(page, logits, 4, NTLConfig(reweigh=True), options)
    page.find("#shown-loss input").send_keys(Keys.CONTROL, "a", Keys.NULL, "NTL-Huber", Keys.ENTER)
    page.press("certain and far")
    expect(page, prediction(10, {9: 1.0}), 4, NTLConfig("huber", reweigh=True, huber_delta=0.4), options)


def test_curves_pass_through_the_prediction(page: Page) -> None:
    page.open()
    assert page.run("return document.querySelectorAll('#curves figure').length") == 7
    for figure in page.all("#curves figure"):
        points = figure.find_elements("css selector", "polyline")
        for line, dot in zip(points, reversed(figure.find_elements("css selector", "circle")), strict=True):
            at = [tuple(map(float, point.split(","))) for point in line.get_attribute("points").split()]
            assert len(at) == 10
            assert at[5] == (float(dot.get_attribute("cx")), float(dot.get_attribute("cy")))


def test_everything_works_from_the_keyboard(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    slider = page.find('input[aria-label="range slider for True number"]')
    slider.send_keys(Keys.ARROW_RIGHT)
    expect(page, prediction(10, {5: 1.0}), 5)
    reached = []
    for _ in range(40):
        active = page.driver.switch_to.active_element
        reached.append(active.text or active.get_attribute("aria-label"))
        if active.text == "mass on text":
            break
        active.send_keys(Keys.TAB)
    assert reached[-1] == "mass on text", reached
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    expect(page, prediction(10, {5: 1.0}, on_text=0.9), 5)
    tab = next(e for e in page.all("button[role=tab]") if e.is_displayed() and e.text == "Your tokenizer")
    tab.send_keys(Keys.ENTER)
    until(lambda: page.find("#tokenizer-file").is_displayed(), "the second page")


def test_an_uploaded_tokenizer_and_wrong_files(page: Page, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocab = {"the": 0, "<b>": 1, **{str(number): 2 + number for number in range(30)}, "Ġ7": 32}
    right, wrong, binary = (tmp_path / name for name in ("tokenizer.json", "broken.json", "weights.bin"))
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="the"))
    tokenizer.save(str(right))
    wrong.write_text('{"model": ')
    binary.write_bytes(bytes(range(256)))

    page.open()
    page.press("Your tokenizer", "tab")
    upload(page, right)
    for options, switch in (
        ((True, False), None),
        ((False, False), "#digits-only input"),
        ((False, True), "#space-prefixed input"),
    ):
        if switch:
            page.find(switch).click()
        numbers = NumberTokens.from_tokenizer(tokenizer, None, *options)
        until(lambda n=numbers: page.text("#describe") == n.describe(), f"{numbers!r}")
        rows = page.run("return [...document.querySelectorAll('#found tbody tr')].map(r => +r.cells[2].textContent)")
        assert rows == numbers.values.tolist()
    page.find("#vocab-size textarea, #vocab-size input").send_keys("20")
    until(lambda: "beyond vocab_size=20" in page.text("#found"), "the library's sentence")
    for path, sentence in ((wrong, "broken.json is not JSON"), (binary, "weights.bin is not a text file")):
        page.find(
            '#tokenizer-file button[aria-label="Clear"], #tokenizer-file button[aria-label="Remove this file"]'
        ).click()
        upload(page, path)
        until(lambda s=sentence: s in page.text("#found"), sentence)
    page.find("#vocab-size textarea, #vocab-size input").clear()
    page.press("some digits missing")
    until(lambda: "digits without a token: 3, 4, 6, 7, 8, 9" in page.text("#found"), "the warning")


def upload(page: Page, path: Path) -> None:
    page.find("#tokenizer-file input[type=file]").send_keys(str(path))


def test_live_training_shows_progress_and_can_be_stopped(page: Page) -> None:
    page.open()
    page.press("Live training", "tab")
    page.enter("Steps", "10")
    page.press("Train")
    seen = set()

    def is_done() -> bool:
        found = page.all("#training-state")
        seen.update(element.text for element in found)
        return bool(found) and "done" in found[0].text

    until(is_done, "ten steps")
    assert len(seen) > 1, seen
    assert page.text("#training-state").startswith("Step 10 of 10")
    first = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("#training tbody tr")][
        :2
    ]
    assert all(0 < float(error) < 999 and 1 < float(ce) < 3 for error, _, ce in first), first
    page.enter("Steps", "2000")
    page.press("Train")
    until(lambda: re.match(r"Step \d+ of 2000", page.text("#training-state")), "a long run")
    until(lambda: len({page.text("#training-state") for _ in range(20)}) > 1, "the long run to go on")
    page.press("Stop")
    time.sleep(1)
    stopped = page.text("#training-state")
    time.sleep(2)
    assert page.text("#training-state") == stopped and "done" not in stopped


@pytest.mark.parametrize("width", [320, 768])
def test_narrow_screens_need_no_sideways_scrolling(page: Page, width: int) -> None:
    page.open(width)
    for name in ("Losses", "Your tokenizer", "Live training"):
        page.press(name, "tab")
        if name == "Your tokenizer":
            page.press("merged digits")
            page.find("#found table")
        assert page.run("return document.documentElement.scrollWidth") <= width, name
    page.press("Losses", "tab")
    for selector in ("#truth", "#prediction", "#bars", "#curves", "#gradient"):
        box = page.run("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        assert box["left"] >= 0 and box["right"] <= width and box["width"] > 0.7 * min(width, 320), (selector, box)


def test_light_and_dark_can_both_be_read(page: Page) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        page.open(scheme=scheme)
        back = luminance(page, "body", "backgroundColor")
        backgrounds[scheme] = back
        for selector, attribute, least in (
            (".facts", "color", 7),
            ("#bars tbody th", "color", 7),
            ("#curves .line.blue", "stroke", 3),
            ("#curves .line.orange", "stroke", 3),
            ("#curves .line.ink", "stroke", 3),
            ("#prediction .blue", "fill", 3),
            ("#curves text.truth", "fill", 4.5),
        ):
            front = luminance(page, selector, attribute)
            contrast = (max(front, back) + 0.05) / (min(front, back) + 0.05)
            assert contrast >= least, (scheme, selector, contrast)
    assert backgrounds["light"] > 0.8 and backgrounds["dark"] < 0.1


def luminance(page: Page, selector: str, attribute: str) -> float:
    """Relative luminance of a colour, as the Web Content Accessibility Guidelines define it."""
    colour = page.run(
        "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, attribute
    )
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else math.pow((c + 0.055) / 1.055, 2.4) for c in channels]
    return sum(factor * c for factor, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_nothing_left_the_machine_and_nothing_broke(page: Page, server: Server) -> None:
    """Last, over all that the tests above did, and at least over a visit of every page."""
    page.open()
    for name in ("Your tokenizer", "Live training", "Losses"):
        page.press(name, "tab")
    page.leave()
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    hosts = {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https", "ws", "wss", "ftp")}
    assert hosts == {urlsplit(server.url).netloc}
    assert len(urls) > 100 and page.errors == []
    assert server.connections.read_text() == ""
    assert "Traceback" not in server.output.read_text()
