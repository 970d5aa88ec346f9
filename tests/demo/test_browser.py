"""The demo in a real browser: what it shows is the library's, and everyone can use it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
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
const section = document.querySelector('#picture'), find = selector => section.querySelector(selector);
const text = selector => find(selector).textContent, svg = find('.curves'), box = e => e.getBoundingClientRect();
const of = (root, selector, read) => [...root.querySelectorAll(selector)].map(read);
return { busy: section.ariaBusy, loss: text('.loss'), problem: text('.problem'),
  label: of(section, '.token', token => token.matches('.true')).indexOf(true),
  heights: of(section, '.token', token => +token.dataset.share),
  spoken: of(section, '.bar', bar => bar.ariaValueText),
  ...Object.fromEntries(Object.entries({ rows: 'table', kinds: '.kinds', digits: '.digits' }).map(([name, table]) =>
    [name, of(find(`${table} tbody`), 'tr', row => of(row, 'td', cell => cell.textContent))])),
  chosen: of(section, '.chosen td:first-child', cell => cell.textContent),
  off: text('.off'), read: text('.read'), wrong: text('.wrong'), play: text('.play'),
  numbers: [find('#number').value.trim(), find('#guess').value.trim()],
  drawing: svg.style.visibility === 'visible' ? svg.ariaLabel : '',
  curves: of(svg, 'polyline', line => [...line.points].map(point => [point.x, point.y])),
  dots: of(svg, 'circle', dot => [dot.cx.baseVal.value, dot.cy.baseVal.value]),
  axis: svg.querySelector('line')?.y1.baseVal.value, labels: of(svg, 'text', label => label.textContent),
  mean: svg.querySelector('path') && box(svg.querySelector('path')).x + 5 - box(svg).x,
  middles: of(section, '.plot', plot => box(plot).x + box(plot).width / 2 - box(svg).x),
  arrows: of(section, '.token', token => of(token, '.push', push => +push.dataset.push)) };
"""
"""What the picture shows."""
CLOCK = """
const timers = new Map(), start = setTimeout;
let last = 0;
window.setTimeout = (what, wait) => timers.set(++last, what) && (window.wait = wait, last);
window.clearTimeout = timer => timers.delete(timer);
window.resume = () => { window.setTimeout = start; };
window.tick = () => { const due = [...timers.values()]; timers.clear(); due.forEach(what => what()); };
"""
"""Time passes only when a test says so."""
NOISE = """
window.noise = 0;
const observer = new MutationObserver(changes => { window.noise += changes.length; });
for (const spoken of document.querySelectorAll('#picture :is(output, [role=alert], [role=status])')) {
  observer.observe(spoken, { childList: true, characterData: true, subtree: true });
}
"""
"""Counts what a screen reader would read unasked, besides the loss."""
OUTLINE = """
const active = document.activeElement, seen = active.type === 'radio' ? active.nextSibling : active;
return getComputedStyle(seen).outlineStyle + ' ' + getComputedStyle(seen).outlineWidth;
"""
TICK = "tick"
BUTTONS = """
const press = text => [...document.querySelectorAll('button')].find(button => button.textContent === text).click();
for (const text of arguments) text === 'tick' ? tick() : press(text);
"""
OLD = ".loss, .read, .off, .wrong, .sum, .curves, .push, #picture td"
"""All that an answer brings."""
UNEQUAL = "Write two numbers of equal length: at most 6 digits, nothing else."
CONTRAST = (Path(__file__).parents[1] / "docs" / "contrast.js").read_text()


class Page:
    """The demo as a person sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url, self.run = driver, url, driver.execute_script

    def open(self, width: int = 1280, scheme: str = "light", motion: str = "no-preference") -> None:
        """A fresh page of that width, for a reader who prefers ``scheme`` and ``motion``."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferences = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(self.url)
        self.expect()

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def press(self, *texts: str) -> None:
        """Buttons, and :data:`TICK`, faster than an answer comes."""
        self.run(BUTTONS, *texts)

    def button(self, text: str) -> Any:
        return self.driver.find_element("xpath", f"//button[text()='{text}']")

    def bar(self, token: str) -> Any:
        return self.find(f'[aria-label="Probability of {token}"]')

    def expect(self, changed: Callable[[dict[str, Any]], Any] = bool, **options: Any) -> dict[str, Any]:
        """What the picture shows, once it has ``changed`` and has an answer: the library's for its bars and options."""
        shown = until(lambda: self.shown_if(changed), "the picture to change")
        heights, label = shown["heights"], shown["label"]
        answer = answer_to(shown, **options)
        assert sum(heights) == pytest.approx(1, abs=1e-4)
        for name in ("loss", "rows", "spoken", "kinds", "digits", "off", "read", "wrong"):
            assert shown[name] == answer[name]
        assert shown["chosen"] == [options.get("kind", "wasserstein")]
        assert shown["drawing"] == f"{answer['drawing']}; {answer['mean']}"
        expect_curves(shown, answer)
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


def answer_to(shown: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The library's answer for what is shown."""
    setting = {name: shown[name] for name in ("heights", "label", "numbers")}
    return picture.answer({}, json.dumps(setting | options).encode())


def expect_curves(shown: dict[str, Any], answer: dict[str, Any]) -> None:
    """Points below the bars of their digits, as far above the axis as the losses are; the labels of one of them."""
    losses, points = (list(chain(*each["curves"])) for each in (answer, shown))
    unit = (shown["axis"] - min(y for _, y in points)) / max(losses)
    assert (
        unit > 0 and len(shown["curves"]) == 2 and shown["dots"] == [pytest.approx(point, abs=1e-3) for point in points]
    )
    for (x, y), loss, middle in zip(points, losses, shown["middles"][:10] * 2, strict=True):
        assert (x, shown["axis"] - y) == (pytest.approx(middle, abs=1), pytest.approx(unit * loss, abs=0.1))
    at, expected, zero = answer["at"], answer["expected"], shown["middles"][0]
    assert shown["mean"] == pytest.approx(zero + expected * (shown["middles"][1] - zero), abs=1)
    labels = [f"{curve[at]:.2f}" for curve in answer["curves"]] if at < 10 else []
    assert shown["labels"] == [*labels, answer["mean"]]


def has_bars(heights: list[float], shown: dict[str, Any]) -> bool:
    return shown["heights"] == pytest.approx(heights)


def run_from(shown: dict[str, Any]) -> list[list[float]]:
    """The bars of every step of a run."""
    answer, steps = answer_to(shown), []
    while max(abs(both) for _, both in answer["arrows"]) > 0.014:
        steps.append(answer["step"])
        answer = answer_to(shown | {"heights": answer["step"]})
    return steps


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
    """Every control is reached in order, is seen to have the focus, and does what it says."""
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

    presses: dict[str, list[tuple[str, Callable[[dict[str, Any]], Any]]]] = {
        name: [(Keys.SPACE, partial(has_bars, heights))] for name, heights in picture.PRESETS.items()
    }
    stepped = answer_to(first | {"heights": picture.PRESETS["a word"]})["step"]
    presses |= {
        "One gradient step": [(Keys.ENTER, partial(has_bars, stepped))],
        "Play": [
            (Keys.ENTER, lambda shown: shown["play"] == "Pause"),
            (Keys.SPACE, lambda shown: shown["play"] == "Play"),
        ],
        "Reset": [(Keys.ENTER, lambda shown: shown == first)],
        "number": [("87", lambda shown: shown["off"] == UNEQUAL)],
        "guess": [(f" 92 {Keys.ENTER}", lambda shown: shown["off"].startswith("92 is 5 off 87; "))],
    }
    page.run(f"{CLOCK} document.body.tabIndex = -1; document.body.focus()")
    reached: list[str] = []
    while "vocab_size" not in reached:
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        active = page.driver.switch_to.active_element
        name = active.get_attribute("id") or active.get_attribute("aria-label") or active.text
        reached.append(name)
        assert len(reached) < 50 and page.run(OUTLINE) == "solid 3px", reached
        for keys, changed in presses.get(name, []):
            ActionChains(page.driver).send_keys(keys).perform()
            page.run("arguments[0] && tick()", name == "Reset")
            assert page.expect(changed)["label"] == 4
    bars = [f"Probability of {token}" for token in picture.TOKENS]
    controls = ["several digits", "your tokenizer", *picture.PRESETS, *bars[:5], "The label is 4", *bars[5:]]
    controls += ["One gradient step", "Play"]
    controls += ["kind", "weight", "squash_factor", "label_sigma", "reweigh", "Reset", "number", "guess"]
    assert reached == [*controls, "file", "digits_only", "space_prefixed", "vocab_size"]


def test_buttons_and_numbers_by_mouse(page: Page) -> None:
    from selenium.webdriver import Keys

    page.open()
    page.find('[aria-label="The label is 8"]').click()
    page.expect(lambda shown: shown["label"] == 8)
    for name, heights in picture.PRESETS.items():
        page.button(name).click()
        shown = page.expect(partial(has_bars, heights))
        assert shown["label"] == 4
    page.button("One gradient step").click()
    page.expect(partial(has_bars, answer_to(shown)["step"]))
    for number, guess, said in (("1234567", "389", UNEQUAL), ("", "", ""), ("007", "017", "017 is 10 off 007; ")):
        for name, text in (("number", number), ("guess", guess)):
            page.find(f"#{name}").click()
            page.find(f"#{name}").send_keys(Keys.CONTROL, "a", Keys.DELETE, Keys.NULL, text)
        shown = page.expect()
        assert shown["numbers"] == [number, guess]
        assert shown["off"].startswith(said) and bool(shown["digits"]) == (said not in ("", UNEQUAL))


def test_a_run_ends_where_the_arrows_vanish(page: Page) -> None:
    """Silently, whatever the reader's screen reader does."""
    page.open()
    page.run(CLOCK + NOISE)
    steps = run_from(page.expect())
    page.button("Play").click()
    page.expect(lambda shown: shown["play"] == "Pause")
    assert page.run("return [document.querySelector('.loss').ariaLive, window.wait]") == ["off", 150]
    for heights in steps:
        page.run("tick()")
        shown = page.expect(partial(has_bars, heights))
    assert shown["play"] == "Play" and len(steps) > 20
    assert page.run("tick(); return [document.querySelector('.loss').ariaLive, window.noise]") == ["polite", 0]
    assert page.expect() == shown
    page.open(motion="reduce")
    page.run(CLOCK)
    page.button("Play").click()
    page.expect(lambda shown: shown["play"] == "Pause")
    assert page.run("return window.wait") == 1000


def test_a_run_gives_way_to_whoever_does_something_else(page: Page) -> None:
    from selenium.webdriver import ActionChains

    near, far, first = (picture.PRESETS[name] for name in ("near", "far", "two peaks"))
    page.open()
    page.run(CLOCK)
    page.press("Play")
    page.expect(lambda shown: shown["play"] == "Pause")
    page.press("near", TICK)
    shown = page.expect(partial(has_bars, near))
    page.run("tick()")
    shown = page.expect(partial(has_bars, answer_to(shown)["step"]))
    ActionChains(page.driver).drag_and_drop_by_offset(page.bar("9"), 0, -60).perform()
    dragged = page.expect(lambda shown: shown["heights"][9] > 0.15)
    page.run("tick()")
    shown = page.expect(partial(has_bars, answer_to(dragged)["step"]))
    page.run("document.querySelector('[aria-label=\"The label is 0\"]').click(); tick()")
    assert page.expect(partial(has_bars, shown["heights"]))["label"] == 0
    page.run("tick()")
    shown = page.expect(partial(has_bars, answer_to(shown | {"label": 0})["step"]))
    assert shown["play"] == "Pause"
    page.press("Reset", TICK)
    assert page.expect(partial(has_bars, first))["play"] == "Play"

    page.press("near", "One gradient step", "One gradient step")
    once = shown | {"label": 4, "heights": near}
    page.expect(partial(has_bars, answer_to(once | {"heights": answer_to(once)["step"]})["step"]))
    page.press("One gradient step", "far")
    page.expect(partial(has_bars, far))

    page.press("Play")
    page.expect(lambda shown: shown["play"] == "Pause")
    page.run("window.ask = fetch; window.fetch = () => Promise.reject(); tick()")
    silent = until(lambda: page.shown_if(lambda shown: shown["problem"]), "the silence to be named")
    assert "is it still running?" in silent["problem"] and silent["play"] == "Play"
    assert not any(silent[name] for name in ("loss", "kinds", "digits", "off", "read", "drawing", "curves", "labels"))
    page.run("window.fetch = window.ask")
    page.press("One gradient step")
    page.expect(partial(has_bars, answer_to(silent)["step"]))


@pytest.mark.parametrize(
    ("text", "heading", "following"),
    [("several digits", "digits", "number"), ("your tokenizer", "tokenizer-title", "file")],
)
def test_links_lead_to_what_they_name(text: str, heading: str, following: str, page: Page) -> None:
    """By mouse and by Enter; the next control is the one below."""
    from selenium.webdriver import ActionChains, Keys

    def is_seen() -> bool:
        box = page.run("return document.getElementById(arguments[0]).getBoundingClientRect().toJSON()", heading)
        return box["top"] >= 0 and box["bottom"] <= 900

    for enter in (False, True):
        page.open(390)
        link = page.driver.find_element("link text", text)
        link.send_keys(Keys.ENTER) if enter else link.click()
        until(is_seen, "the heading to be seen")
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        assert page.driver.switch_to.active_element.get_attribute("id") == following


def test_numbers_of_a_slow_answer_look_pending(page: Page) -> None:
    page.open()
    page.run("const ask = fetch; window.fetch = (...it) => new Promise(done => window.let = () => done(ask(...it)))")
    page.press("far")

    def opacities() -> set[float]:
        return set(
            page.run("return [...document.querySelectorAll(arguments[0])].map(e => +getComputedStyle(e).opacity)", OLD)
        )

    until(lambda: opacities() == {0.4}, "what is outdated to fade")
    page.run("window.let()")
    page.expect(partial(has_bars, picture.PRESETS["far"]))
    assert opacities() == {1}


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
    Axe(page.driver).inject()

    def expect_nothing() -> None:
        found = Axe(page.driver).run()
        assert len(found["passes"]) > 10
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == []
        assert page.run("return document.documentElement.scrollWidth") <= width

    expect_nothing()
    page.run(CLOCK)
    page.find("#guess").send_keys("0")
    page.press("far", "Play")
    page.expect(lambda shown: shown["play"] == "Pause" and shown["off"] == UNEQUAL)
    page.run("resume()")  # for axe; the run has stopped for good
    expect_nothing()
    page.run("document.querySelector('.curves').classList.add('diagram')")
    contrasts = page.run(CONTRAST)
    assert len(contrasts) == 3 and min(contrast for _, contrast in contrasts) >= 4.5
    page.find("#kind").send_keys("soft")
    until(lambda: page.shown_if(lambda shown: "label_sigma" in shown["problem"]), "the missing option to be named")
    expect_nothing()
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
