"""The demo in a real browser: its numbers are the library's, nothing leaves the machine, every screen can use it."""

from __future__ import annotations

import json
import math
import os
import re
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
from ntl_kernels.demo.losses import VOCABULARIES, Options, Shape

from ..chromium import PATIENCE, driving, require_packages

ROOT = Path(__file__).parent.parent.parent
DEFAULT = NTLConfig()
LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", None)
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


@dataclass
class Server:
    url: str
    output: Path
    connections: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_packages("gradio")
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
    with driving(tmp_path_factory.mktemp("chromium"), logs=("browser", "performance")) as driver:
        yield driver


class Page:
    """The demo as a person sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url
        self.errors: list[dict[str, Any]] = []
        """What the pages wrote to the console as errors, up to their being left."""
        self.shown: tuple[int, str, bool] | None = None
        """The (width, scheme, more) of the page that is open."""

    def leave(self) -> None:
        """Keep the page's errors, but not what it says of the connections that leaving it cuts."""
        self.errors += [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def open(self, width: int = 1280, scheme: str = "light", more: bool = False) -> None:
        """A fresh page of that width, for a reader who prefers ``scheme``; ``more`` opens what is below the picture."""
        self.leave()
        self.shown = width, scheme, more
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
        self.driver.get(self.url)
        until(lambda: len(self.all("#picture .bar[aria-valuetext]")) == 10, "the picture")
        if more:
            self.press("More")
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
            return self.run(
                "return [...document.querySelectorAll(arguments[0])].filter("
                "button => button.offsetParent && button.innerText.trim().split('\\n')[0] === arguments[1])",
                selector,
                name,
            )

        until(named, f"the {role} {name!r}")[0].click()

    def enter(self, name: str, text: str) -> None:
        """Type over what stands in the number field of a slider, and leave it."""
        from selenium.webdriver.common.keys import Keys

        self.type_over(self.field(name), text)
        self.field(name).send_keys(Keys.TAB)

    def field(self, name: str) -> Any:
        """The visible number field of a slider."""
        selector = f'input[aria-label="number input for {name}"]'
        return until(lambda: [e for e in self.all(selector) if e.is_displayed()], name)[0]

    def type_over(self, field: Any, text: str) -> None:
        """Replace the text of a field, key after key; no text empties it."""
        from selenium.webdriver.common.keys import Keys

        field.send_keys(Keys.CONTROL, "a", Keys.NULL, text or Keys.DELETE)

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
    page.open(more=True)
    expect(page, prediction(10, {3: 0.5, 9: 0.5}, even=0.1), 4)
    presets = {
        "certain and right": prediction(10, {4: 1.0}),
        "certain and far": prediction(10, {9: 1.0}),
        "uniform": prediction(10, {}, even=1.0),
        "two peaks": prediction(10, {0: 0.5, 8: 0.5}),
        "mass on text": prediction(10, {4: 1.0}, on_text=0.9),
        "certain and near": prediction(10, {5: 1.0}),
        "near and far": prediction(10, {3: 0.5, 9: 0.5}, even=0.1),
    }
    for name, logits in presets.items():
        page.press(name)
        expect(page, logits, 4)


def test_many_digit_tokens_and_the_weight(page: Page) -> None:
    page.open(more=True)
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
    page.open(more=True)
    page.press("Options of the losses")
    for name, value in (("squash_factor", "3"), ("label_sigma", "1.7"), ("huber_delta", "0.4")):
        page.enter(name, value)
    page.press("mass on text")
    options = (3.0, 1.7, 0.4)
    logits = prediction(10, {4: 1.0}, on_text=0.9)
    expect(page, logits, 4, options=options)
    page.find("#reweigh input").click()
    expect(page, logits, 4, NTLConfig(reweigh=True), options)
    page.find("#shown-loss input[value='NTL-Huber']").click()
    page.press("certain and far")
    expect(page, prediction(10, {9: 1.0}), 4, NTLConfig("huber", reweigh=True, huber_delta=0.4), options)


def test_curves_pass_through_the_prediction(page: Page) -> None:
    page.open(more=True)
    assert page.run("return document.querySelectorAll('#curves figure').length") == 7
    for figure in page.all("#curves figure"):
        points = figure.find_elements("css selector", "polyline")
        for line, dot in zip(points, reversed(figure.find_elements("css selector", "circle")), strict=True):
            at = [tuple(map(float, point.split(","))) for point in line.get_attribute("points").split()]
            assert len(at) == 10
            assert at[3] == (float(dot.get_attribute("cx")), float(dot.get_attribute("cy")))


def test_everything_works_from_the_keyboard(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open(more=True)
    slider = page.find('input[aria-label="range slider for True number"]')
    slider.send_keys(Keys.ARROW_RIGHT)
    expect(page, prediction(10, {3: 0.5, 9: 0.5}, even=0.1), 5)
    page.find("#picture .bar").send_keys(Keys.TAB)
    reached = []
    for _ in range(40):
        active = page.driver.switch_to.active_element
        reached.append(active.get_attribute("aria-label") or active.text)
        if active.text == "mass on text":
            break
        active.send_keys(Keys.TAB)
    assert reached[-1] == "mass on text", reached
    assert {"Probability of 1", "lambda, the weight of NTL", "Start again", "near and far"} <= set(reached)
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


@pytest.fixture(scope="module", params=[1280, 390])
def width(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def below(page: Page, width: int) -> Page:
    """What is below the picture, as at first; pytest runs the tests of one width together, which share a page.

    True number and options have to be left as they were: setting each again takes seconds.
    """
    if page.shown != (width, "light", True) or not page.all("#more"):
        page.open(width, more=True)
        page.press("Options of the losses")
    page.find("#kind input[value='digits']").click()
    page.press("near and far")
    until(lambda: page.text("#remark").startswith("Two equal wrong peaks"), "the shape of the beginning")
    until(lambda: page.losses()["NTL-WAS, reweigh=False"] == "2.9500", "its losses")
    return page


def shares(page: Page) -> Tensor:
    """The bars of the first picture."""
    return torch.tensor([float(e.get_attribute("data-share")) for e in page.all("#picture .number")]).double()


def arrows(page: Page) -> list[list[float]]:
    """What the first picture draws above every bar: (cross-entropy, both), up is positive."""
    return page.run(
        "return [...document.querySelectorAll('#picture .number')].map("
        "number => [...number.querySelectorAll('.push')].map(arrow => +arrow.dataset.push))"
    )


def expect_picture(page: Page, truth: int = 4, weight: float = 0.3) -> list[list[float]]:
    """Wait for the arrows of the bars that are shown, as the library gives them, and return them."""
    until(lambda: page.find("#picture").get_attribute("aria-busy") != "true", "an answer")
    assert shares(page).sum().item() == pytest.approx(1)
    logits = torch.cat([shares(page).log(), torch.full((4,), -math.inf, dtype=torch.float64)])
    columns = torch.tensor(expected_gradients(logits, truth, NTLConfig(weight=weight))).view(-1, 3)[:10]
    for found, (alone, _, both) in zip(arrows(page), columns.tolist(), strict=True):
        assert found == [pytest.approx(-alone, abs=1e-6), pytest.approx(-both, abs=1e-6)]
    return arrows(page)


def bar(page: Page, number: int) -> Any:
    return page.find(f'#picture [aria-label="Probability of {number}"]')


def test_the_first_picture_shows_what_the_number_loss_is_for(page: Page, width: int) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open(width)
    assert not any(chart.is_displayed() for chart in page.all("#prediction, #bars, #gradient"))
    assert page.run("return document.querySelector('#more').getBoundingClientRect().bottom") <= 900
    assert len(page.text("#title").split()) < 20
    found = expect_picture(page)
    assert found[3][0] == pytest.approx(found[9][0]) and found[3][0] < 0, "cross-entropy pushes both down alike"
    assert found[9][1] < found[9][0] < found[3][1] < 0, "NTL spares 3 and pushes 9"
    for number, (alone, both) in zip(("3", "9"), (("↓ 0.40", "↓ 0.21"), ("↓ 0.40", "↓ 0.69")), strict=True):
        assert (readout(page, number)) == [alone, both]
    page.find("#picture-weight").send_keys(Keys.END)
    until(lambda: "1.00 NTL" in page.text("#picture .readout"), "a larger weight")
    assert expect_picture(page, weight=1.0)[3][1] > 0, "with more weight NTL pulls 3 up"
    page.find("#picture .again").click()
    until(lambda: "0.30 NTL" in page.text("#picture .readout"), "the beginning")
    assert expect_picture(page) == found


def readout(page: Page, number: str) -> list[str]:
    """What the legend says of a number."""
    heads = [cell.text for cell in page.all("#picture .readout thead > tr > *")]
    rows = [row.find_elements("css selector", "th, td") for row in page.all("#picture .readout tbody tr")]
    return [row[heads.index(number)].text for row in rows]


def test_bars_are_dragged_by_mouse_and_finger_and_moved_by_keys(page: Page, width: int) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.open(width)
    before = shares(page)
    ActionChains(page.driver).drag_and_drop_by_offset(bar(page, 9), 0, -40).perform()
    until(lambda: shares(page)[9] > before[9] + 0.1, "the mouse")
    expect_picture(page)
    rest = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    others = shares(page)[rest] / before[rest]
    assert others.max().item() == pytest.approx(others.min().item()), "the others share what is left as before"

    before = shares(page)
    box = page.run("return arguments[0].getBoundingClientRect().toJSON()", bar(page, 3))
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 4}
    for kind, moved in (("touchStart", 0), ("touchMove", -20), ("touchMove", -45), ("touchEnd", None)):
        points = [] if moved is None else [{**at, "y": at["y"] + moved}]
        page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    until(lambda: shares(page)[3] > before[3] + 0.1, "the finger")
    expect_picture(page)

    slider = bar(page, 0)
    slider.send_keys(Keys.HOME, Keys.PAGE_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    until(lambda: slider.get_attribute("aria-valuenow") == "11.5", "keys")
    expect_picture(page)
    assert slider.get_attribute("aria-valuetext").startswith("11.5%; cross-entropy pushes it down by 0.1")
    page.find('#picture [aria-label="The true number is 8"]').send_keys(Keys.SPACE)
    until(lambda: page.all("#picture .number.true input[value='8']"), "another truth")
    expect_picture(page, truth=8)
    slider.send_keys(Keys.END, Keys.PAGE_UP)
    until(lambda: slider.get_attribute("aria-valuenow") == "95.0", "the largest bar")
    tips = page.run(
        "return [...document.querySelectorAll('#picture .push')].map(arrow => arrow.getBoundingClientRect().top)"
    )
    assert min(tips) >= page.run("return document.querySelector('#picture').getBoundingClientRect().top")


FIELDS = {
    "True number": "42.5",
    "First peak at": "99",
    "Width of the peaks": "-1",
    "Second peak at": "-3",
    "Share of the second peak": "2",
    "Spread evenly over all numbers": "7",
    "Probability on text": "1",
    "squash_factor": "1000",
    "label_sigma": "55",
    "huber_delta": "-2",
    "weight (lambda)": "3",
}
"""Every slider below the picture, in the order of the page, and a number that it does not take."""


def expect_agreement(page: Page) -> list[float]:
    """Wait until each slider agrees with its number; what they show."""
    read = "return [...document.querySelectorAll(`#more input[type=${arguments[0]}]`)].map(input => +input.value)"
    until(lambda: page.run(read, "range") == page.run(read, "number"), "sliders and their numbers to agree")
    return page.run(read, "range")


def expect_sliders(page: Page) -> None:
    """Wait until each slider agrees with its number, and the charts with all of them."""
    truth, *numbers = expect_agreement(page)
    assert len(numbers) == len(FIELDS) - 1
    shape, options = Shape(*numbers[:6]), Options(*numbers[6:])
    logits = shape.logits(VOCABULARIES["digits"])
    options_given = (options.squash_factor, options.label_sigma, options.huber_delta)
    expect(page, logits, int(truth), NTLConfig(weight=options.weight), options_given)
    assert f"the truth is {truth:g}" in page.find("#curves svg").get_attribute("aria-label")


def toasts(page: Page) -> list[str]:
    return [toast.text for toast in page.all(".toast-body")]


def test_a_number_may_be_typed_slowly(below: Page) -> None:
    page = below
    page.run(
        "window.seen = []; new MutationObserver(() => window.seen.push(document.querySelectorAll("
        "'#problem .notice, .toast-body').length)).observe("
        "document.body, { childList: true, subtree: true, characterData: true })"
    )
    field = page.field("Width of the peaks")
    page.type_over(field, "0")
    time.sleep(0.4)
    field.send_keys(".")
    time.sleep(0.4)
    field.send_keys("4")
    until(lambda: page.fact("p-label") != "0.0100", "the wider peaks")
    expect_sliders(page)
    assert set(page.run("return window.seen")) == {0}


def test_a_presets_remark_goes_when_its_shape_does(below: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page = below
    first = page.text("#remark")
    assert first.startswith("Two equal wrong peaks")
    for name in ("True number", "Probability on text"):
        page.press("near and far")
        until(lambda: page.text("#remark") == first, "the remark")
        slider = page.find(f'#more input[aria-label="range slider for {name}"]')
        slider.send_keys(Keys.ARROW_RIGHT)
        until(lambda: page.text("#remark") == "", f"no remark after {name} moved")
        slider.send_keys(Keys.ARROW_LEFT)
        until(lambda: page.text("#remark") == first, "the remark of the same shape")
    page.press("uniform")
    until(lambda: page.text("#remark").startswith("Every number equally likely"), "another remark")
    page.enter("Spread evenly over all numbers", "")
    until(lambda: page.text("#remark") == "", "no remark after a field was emptied")
    page.press("near and far")
    until(lambda: page.text("#remark") == first, "the remark")
    page.find("#kind input[value='many-digit tokens']").click()
    until(lambda: page.text("#remark") == "", "no remark for another tokenizer")


def test_full_bars_are_what_their_caption_says(below: Page) -> None:
    page = below
    assert "A full bar is the largest value with reweigh=True" in page.text("#bars caption")
    page.press("mass on text")
    page.enter("Probability on text", "0.99")
    until(lambda: page.fact("mass") == "0.0100", "the text")
    lengths = page.run(
        "return [...document.querySelectorAll('#bars tbody tr')].slice(1).map(row => [...row.querySelectorAll('.fill')]"
        ".map(bar => parseFloat(bar.style.width)))"
    )
    assert len(lengths) == 6
    assert all(98.9 < reweighed < 100 and plain < 15 for reweighed, plain in lengths), lengths
    page.press("certain and far")
    until(lambda: page.losses()["NTL-WAS, reweigh=False"] == "4.9750", "the largest distance from 4")
    fills = "return [...document.querySelectorAll('#bars [data-loss^=\"NTL-WAS, r\"]')].map(b => b.previousSibling"
    widths = page.run(fills + ".firstChild.style.width)")
    assert [float(width.rstrip("%")) for width in widths] == pytest.approx([100 * 4.975 / 9.09] * 2, abs=0.01)


def test_charts_stand_above_what_moves_them(below: Page, width: int) -> None:
    page = below
    tops = page.run(
        "return ['#prediction svg', '#true-number', '#gradient svg', '#weight'].map("
        "selector => document.querySelector(selector).getBoundingClientRect().top)"
    )
    prediction_top, truth, gradient, weight = tops
    assert prediction_top < truth
    assert gradient < weight if width < 640 else gradient < weight + 400


def test_fields_without_a_possible_number_say_so_and_leave_the_page_as_one(below: Page, width: int) -> None:
    from selenium.webdriver.common.keys import Keys

    page = below
    fields = list(FIELDS.items())  # which go one way: some at each width
    for place, (name, wrong) in enumerate(fields[::2] if width == 1280 else fields[1::4]):
        before = page.losses()
        field = page.field(name)
        page.type_over(field, "")
        until(lambda n=name: n in page.text("#problem") and "the field is empty" in page.text("#problem"), "a remark")
        assert page.losses() == before and field.get_attribute("value") == ""
        page.type_over(field, wrong)
        said = f"{name} must be a "
        until(lambda s=said, w=wrong: s in page.text("#problem") and f"got {w}" in page.text("#problem"), "a remark")
        field.send_keys(Keys.TAB)
        until(lambda: page.text("#problem") == "", "a possible number")
        expect_agreement(page)
        if place % 3 == 0:  # all charts follow in one way, whichever slider moved
            expect_sliders(page)
    page.type_over(page.field("True number"), "")
    page.field("True number").send_keys(Keys.TAB)
    until(lambda: page.text("#problem") == "", "a possible number")
    expect_sliders(page)
    page.enter("True number", "2.5")
    expect_sliders(page)
    page.find("#true-number button[aria-label='Reset to default value']").click()
    until(lambda: page.field("True number").get_attribute("value") == "4", "the slider's beginning")
    expect_sliders(page)
    assert toasts(page) == []


def test_the_tokenizer_page_says_what_it_is_about_and_judges_it(page: Page, width: int, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    def judged(source: str, words: str, call: str) -> None:
        until(lambda: page.all("#source") and source in page.text("#source"), source)
        until(lambda: page.all("#verdict") and words in page.text("#verdict"), words)
        assert call in page.text("#verdict")

    page.open(width)
    page.press("Your tokenizer", "tab")
    page.press("digits")
    judged("Example “digits”: 13 tokens", "All 10 number tokens get NTL.", "NumberTokens.from_tokenizer(tokenizer)")
    assert page.all("#verdict.good") and "✓" in page.text("#verdict")
    page.press("merged digits")
    both = "digits_only=False, space_prefixed=True"
    judged("Example “merged digits”: 1,102 tokens", f"1,090 of 1,100 number tokens would get no NTL: use {both}.", both)
    assert page.all("#verdict.bad") and "!" in page.text("#verdict")
    page.find("#digits-only input").click()
    words = "100 of 1,100 number tokens would get no NTL: use space_prefixed=True."
    judged("merged digits", words, f"NumberTokens.from_tokenizer(tokenizer, {both})")
    page.find("#space-prefixed input").click()
    judged("merged digits", "All 1,100 number tokens get NTL.", "NTLConfig(squash_factor=9)")
    assert page.all("#verdict.good")
    path = tmp_path / "spaced.json"
    Tokenizer(models.WordLevel({"the": 0, **{f"Ġ{n}": 1 + n for n in range(10)}}, unk_token="the")).save(str(path))
    upload(page, path)
    judged("Your file spaced.json: 11 tokens", "All 10 number tokens get NTL.", "space_prefixed=True")
    page.find("#space-prefixed input").click()
    judged("spaced.json", "10 of 10 number tokens would get no NTL: use space_prefixed=True.", "from_tokenizer")
    assert "no number token among the tokenizer's 11 tokens" in page.text("#found")
    page.press("some digits missing")
    words = "All 5 number tokens get NTL. No token is worth 3, 4, 6, 7, 8, 9."
    judged("some digits missing", words, "digits_only=False")
    assert page.all("#verdict.bad")
    size = page.find("#vocab-size textarea, #vocab-size input")
    for wrong in ("abc", "0", "99999999999") if width == 1280 else ("1.5", "²"):
        page.type_over(size, wrong)
        said = f"vocab_size must be a whole number from 1 to 10000000; got '{wrong}'"
        until(lambda s=said: s in page.text("#found"), said)
        assert "some digits missing" in page.text("#source") and not page.all("#verdict")
    page.type_over(size, "3")
    until(lambda: "beyond vocab_size=3" in page.text("#found"), "the library's sentence")
    assert not page.all("#verdict") and toasts(page) == []


def test_the_live_page_refuses_what_is_no_setting_and_colours_answers(page: Page, width: int) -> None:
    page.open(width, "light" if width == 1280 else "dark")
    page.press("Live training", "tab")
    seed = page.find("#seed input, #seed textarea")
    for wrong in ("abc", "", "-1", "1.5", "4294967296"):
        page.type_over(seed, wrong)
        page.press("Train")
        said = f"Seed must be a whole number from 0 to 4294967295; got '{wrong}'."
        until(lambda s=said: page.text("#training") == s, said)
    page.type_over(seed, "3")
    for name, text in (("Steps", ""), ("weight (lambda)", ""), ("Steps", "99999"), ("weight (lambda)", "-1")):
        page.enter(name, text)  # leaving the field makes it the nearest possible number
    ends = [page.field(name).get_attribute("value") for name in ("Steps", "weight (lambda)")]
    assert ends == ["2000", "0"]
    page.enter("weight (lambda)", "0.7")
    page.enter("Steps", "10")
    page.press("Train")
    until(lambda: page.all("#training-state") and "done" in page.text("#training-state"), "ten steps")
    assert page.text("#training-settings") == "kind='wasserstein', weight=0.7, 10 steps, seed 3"
    questions, cells = page.all("#answers tbody th"), page.all("#answers td")
    assert len(questions) == 8 and len(cells) == 16
    colours: dict[str, set[str]] = {}
    for number, cell in enumerate(cells):
        truth, (answer, *words) = questions[number // 2].text.split(" = ")[1], cell.text.split()
        off = abs(int(answer) - int(truth)) if answer.isdigit() else None
        style = "far" if off is None or off >= 10 else "near" if off else "right"
        assert words == (["no", "number"] if off is None else [str(off), "off"] if off else ["✓"])
        assert cell.get_attribute("class") == f"answer {style}"
        colours.setdefault(style, set()).add(cell.value_of_css_property("color"))
    assert colours and len(set.union(*colours.values())) == len(colours), colours
    assert serious(page, "live") == []
    assert toasts(page) == []


def serious(page: Page, where: str) -> list[Any]:
    """What axe finds to be a serious or critical fault."""
    require_packages("axe_selenium_python")
    from axe_selenium_python import Axe

    axe = Axe(page.driver)
    axe.inject()
    found = axe.run(options={"resultTypes": ["violations"]})["violations"]
    return [
        (where, rule["id"], [node["html"] for node in rule["nodes"]])
        for rule in found
        # Gradio calls every checkbox "test"; later versions of axe ask for no group around those.
        if rule["impact"] in ("serious", "critical") and rule["id"] != "checkboxgroup"
    ]


def test_axe_finds_nothing_serious(page: Page, width: int) -> None:
    scheme = "light" if width == 1280 else "dark"
    page.open(width, scheme)
    violations = serious(page, "picture")
    page.press("More")
    page.press("Options of the losses")
    until(lambda: page.field("huber_delta").is_displayed(), "the options")
    page.type_over(page.field("huber_delta"), "99")
    until(lambda: page.text("#problem"), "a remark")
    violations += serious(page, "more")
    page.press("Your tokenizer", "tab")
    page.press("merged digits")
    until(lambda: page.all("#verdict"), "the verdict")
    violations += serious(page, "tokenizer")
    assert violations == []


@pytest.mark.parametrize("width", [320, 768])
def test_narrow_screens_need_no_sideways_scrolling(page: Page, width: int) -> None:
    page.open(width, more=True)
    for name in ("Loss", "Your tokenizer", "Live training"):
        page.press(name, "tab")
        if name == "Your tokenizer":
            page.press("merged digits")
            page.find("#found table")
        assert page.run("return document.documentElement.scrollWidth") <= width, name
    page.press("Loss", "tab")
    for selector in ("#picture", "#true-number", "#prediction", "#bars", "#curves", "#gradient"):
        box = page.run("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        assert box["left"] >= 0 and box["right"] <= width and box["width"] > 0.7 * min(width, 320), (selector, box)


def test_light_and_dark_can_both_be_read(page: Page) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        page.open(scheme=scheme, more=True)
        back = luminance(page, "body", "backgroundColor")
        backgrounds[scheme] = back
        for selector, attribute, least in (
            ("#picture .both path", "fill", 3),
            ("#picture .alone path", "stroke", 3),
            ("#picture .true .bar", "backgroundColor", 3),
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
    for name in ("Your tokenizer", "Live training", "Loss"):
        page.press(name, "tab")
    icon = page.find("link[rel=icon]").get_attribute("href")
    assert icon.startswith("data:image/svg+xml,")
    page.run("window.icon = new Image(); window.icon.src = arguments[0]", icon)
    until(lambda: page.run("return window.icon.complete && window.icon.naturalWidth > 0"), "the page's icon")
    page.leave()
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    hosts = {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https", "ws", "wss", "ftp")}
    assert hosts == {urlsplit(server.url).netloc}
    assert len(urls) > 100 and page.errors == []
    answered = [m["params"]["response"] for m in messages if m["method"] == "Network.responseReceived"]
    assert len(answered) > 100 and [r["url"] for r in answered if r["status"] >= 400] == []
    assert server.connections.read_text() == ""
    assert "Traceback" not in server.output.read_text()
