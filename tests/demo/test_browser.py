"""The demo in a real browser: what it shows is the library's, and everyone can use it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.demo import picture
from ntl_kernels.demo.server import MOST_BYTES, Server

from ..chromium import PATIENCE, driving, require_packages
from .test_picture import reference
from .test_tokenizer import DIGITS, made_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
SHOWN = """
const section = document.querySelector('#picture'), text = selector => section.querySelector(selector).textContent;
const of = (root, selector, read) => [...root.querySelectorAll(selector)].map(read);
return { busy: section.ariaBusy, loss: text('.loss'), problem: text('.problem'),
  label: of(section, '.token', token => token.matches('.true')).indexOf(true),
  heights: of(section, '.token', token => +token.dataset.share),
  spoken: of(section, '.bar', bar => bar.ariaValueText),
  rows: of(section, 'tbody tr', row => of(row, 'td', cell => cell.textContent)),
  arrows: of(section, '.token', token => of(token, '.push', push => +push.dataset.push)) };
"""
"""What the picture shows."""


class Page:
    """The demo as a person sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url, self.run = driver, url, driver.execute_script

    def open(self, width: int = 1280, scheme: str = "light") -> None:
        """A fresh page of that width, for a reader who prefers ``scheme``."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
        self.driver.get(self.url)
        self.expect()

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def bar(self, token: str) -> Any:
        return self.find(f'[aria-label="Probability of {token}"]')

    def expect(self, changed: Callable[[dict[str, Any]], Any] = bool, **options: Any) -> dict[str, Any]:
        """What the picture shows, once it has ``changed`` and has an answer: the library's for its bars and options."""
        shown = until(lambda: self.shown_if(changed), "the picture to change")
        heights, label = shown["heights"], shown["label"]
        answer = picture.answer({}, json.dumps({"heights": heights, "label": label, **options}).encode())
        assert sum(heights) == pytest.approx(1, abs=1e-4)
        assert all(shown[name] == answer[name] for name in ("loss", "rows", "spoken"))
        for index, config in enumerate((NTLConfig(weight=0.0), NTLConfig(**options))):
            _, expected = reference(heights, label, config)
            assert [pair[index] for pair in shown["arrows"]] == [pytest.approx(e, abs=1e-9) for e in expected]
        return shown

    def shown_if(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any] | None:
        shown = self.run(SHOWN)
        return shown if shown["busy"] == "false" and condition(shown) else None

    def upload(self, path: Path) -> None:
        self.find("#file").send_keys(str(path))


@pytest.fixture(scope="module")
def page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with driving(tmp_path_factory.mktemp("chromium"), logs=("browser", "performance")) as driver:
        yield Page(driver, server.url)


def until(condition: Callable[[], Any], what: str) -> Any:
    """The condition's first true value."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.05)
    return found


def test_bars_are_dragged_by_mouse_and_finger(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.open(390)
    before = page.expect()
    ActionChains(page.driver).drag_and_drop_by_offset(page.bar("9"), 0, -40).perform()
    dragged = page.expect(lambda shown: shown["heights"][9] > before["heights"][9] + 0.1)
    assert dragged["loss"] != before["loss"] and dragged["arrows"] != before["arrows"]
    others = [dragged["heights"][k] / before["heights"][k] for k in range(11) if k != 9]
    assert max(others) == pytest.approx(min(others)), "the others share what is left as before"

    box = page.run("return arguments[0].getBoundingClientRect().toJSON()", page.bar("3"))
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 4}
    for kind, moved in (("touchStart", 0), ("touchMove", -20), ("touchMove", -45), ("touchEnd", None)):
        points = [] if moved is None else [{**at, "y": at["y"] + moved}]
        page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.expect(lambda shown: shown["heights"][3] > dragged["heights"][3] + 0.1)


def test_everything_works_from_the_keyboard(page: Page) -> None:
    from selenium.webdriver import ActionChains, Keys

    page.open()
    first, bar = page.expect(), page.bar("0")
    bar.send_keys(Keys.HOME, Keys.PAGE_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    page.expect(lambda shown: shown["heights"][0] == pytest.approx(0.115))
    page.find('[aria-label="The label is 8"]').send_keys(Keys.SPACE)
    page.expect(lambda shown: shown["label"] == 8)
    bar.send_keys(Keys.END, Keys.PAGE_UP)
    page.expect(lambda shown: shown["heights"][0] == pytest.approx(0.95))
    tops = page.run("return [...document.querySelectorAll('.push, .bars')].map(e => e.getBoundingClientRect().top)")
    assert min(tops) == tops[0], "no arrow leaves the picture"
    reached = []
    while "vocab_size" not in reached:
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        active = page.driver.switch_to.active_element
        reached.append(active.get_attribute("id") or active.get_attribute("aria-label") or active.text)
        assert len(reached) < 40, reached
        if active.text == "Reset":
            active.send_keys(Keys.ENTER)
    controls = ["kind", "weight", "squash_factor", "label_sigma", "reweigh", "Reset", "file", "digits_only"]
    assert [name for name in reached if name in controls] == controls and "Probability of text" in reached
    assert page.expect(lambda shown: shown["label"] == 4) == first


def test_every_control_matters(page: Page) -> None:
    from selenium.webdriver import Keys

    page.open()
    page.bar("text").send_keys(*[Keys.PAGE_UP] * 3)
    shown = page.expect(lambda shown: shown["heights"][10] > 0.3)

    def expect_other(**options: Any) -> None:
        nonlocal shown
        before, shown = shown, page.expect(lambda now: now["loss"] != shown["loss"], **options)
        assert shown["arrows"] != before["arrows"]

    page.find("#weight").send_keys(Keys.END)
    expect_other(weight=2)
    page.find("#reweigh").click()
    expect_other(weight=2, reweigh=True)
    page.find("#kind").send_keys("mae")
    expect_other(weight=2, reweigh=True, kind="mae")
    page.find("#kind").send_keys(Keys.HOME)
    expect_other(weight=2, reweigh=True)
    page.find("#squash_factor").send_keys(Keys.ARROW_RIGHT)
    expect_other(weight=2, reweigh=True, squash_factor=1.5)
    page.find("#label_sigma").send_keys(Keys.ARROW_RIGHT)
    wrong = until(lambda: page.shown_if(lambda shown: shown["problem"]), "the contradiction to be named")
    assert wrong["problem"] == "squash_factor and label_sigma cannot be combined; got both."
    assert {wrong["loss"]}.union(*wrong["rows"]) == {""}, "no number of another setting"
    page.find("#squash_factor").send_keys(Keys.HOME)
    expect_other(weight=2, reweigh=True, label_sigma=0.1)


def test_uploads_good_bad_and_too_large(page: Page, tmp_path: Path) -> None:
    tokenizer = made_of(["the", "<b>", *map(str, range(30)), "Ġ7"])
    good, bad, large = (tmp_path / name for name in ("tokenizer.json", "<i>bad.json", "large.json"))
    tokenizer.save(str(good))
    bad.write_text('{"model": ')
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)

    def expect_numbers(*options: bool) -> None:
        numbers = NumberTokens.from_tokenizer(tokenizer, None, *options).describe(-1)
        until(lambda: page.text(".numbers") == numbers, numbers)
        assert page.text(".source") == "tokenizer.json: 33 tokens" and page.text("#tokenizer .problem") == ""

    def expect_problem(words: str) -> None:
        until(lambda: page.text("#tokenizer .problem").startswith(words), words)
        assert page.text(".numbers") == "" and not page.find(".verdict").is_displayed()

    page.open()
    page.upload(good)
    expect_numbers(True, False)
    assert page.find(".verdict").text.startswith("!\n21 of 31 number tokens would get no NTL: use digits_only=False, ")
    page.find("#digits_only").click()
    expect_numbers(False, False)
    page.find("#space_prefixed").click()
    expect_numbers(False, True)
    assert page.find(".verdict.good").text.startswith("✓\nAll 31 number tokens count.\nNumberTokens.from_tokenizer(")
    page.find("#vocab_size").send_keys("20\n")
    expect_problem("13 number tokens have ids beyond vocab_size=20")
    page.find("#vocab_size").clear()
    page.upload(bad)
    expect_problem("<i>bad.json is not JSON")
    page.run("const ask = fetch; window.fetch = (path, it) => { window.sent = it.body; return ask(path, it); }")
    page.upload(large)
    expect_problem("large.json has 20,000,001 bytes; the limit is 20,000,000 (20 MB).")
    assert page.run("return window.sent") is None, "it stays where it is"
    page.upload(good)
    expect_numbers(False, True)


def test_the_page_says_that_it_reads_and_that_nobody_answers(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text("[]")
    page.open()
    page.run("const ask = fetch; window.fetch = (...it) => new Promise(done => window.let = () => done(ask(...it)))")
    page.upload(file)
    until(lambda: page.text(".source") == "Reading wrong.json …", "the page to say that it reads")
    assert page.find("#tokenizer").get_attribute("aria-busy") == "true" and page.text("#tokenizer .problem") == ""
    page.run("window.let()")
    until(lambda: "it holds a list" in page.text("#tokenizer .problem"), "the answer")
    assert page.find("#tokenizer").get_attribute("aria-busy") == "false" and page.text(".source") == ""
    page.run("window.fetch = () => Promise.reject()")
    page.find("#reweigh").click()
    until(lambda: page.shown_if(lambda shown: "is it still running?" in shown["problem"]), "the silence to be named")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing(page: Page, width: int, scheme: str, tmp_path: Path) -> None:
    require_packages("axe_selenium_python")
    from axe_selenium_python import Axe

    made_of(DIGITS).save(str(path := tmp_path / "digits.json"))
    page.open(width, scheme)
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(11, 15, 25)")
    page.upload(path)
    until(lambda: page.find(".verdict").is_displayed(), "the verdict")
    axe = Axe(page.driver)
    axe.inject()
    found = axe.run()
    assert len(found["passes"]) > 10
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert page.run("return document.documentElement.scrollWidth") <= width
    page.open(320, scheme)
    assert page.run("return document.documentElement.scrollWidth") <= 320


def test_nothing_left_the_machine_and_nothing_broke(page: Page, server: Server) -> None:
    """Last, over all that the tests above did, and at least over one visit."""
    page.open()
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {urlsplit(url).netloc for url in urls if url.startswith(("http", "ws"))} == {urlsplit(server.url).netloc}
    errors = [entry["message"] for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in errors if "status of 413" not in message] == []  # of the upload that is too large
