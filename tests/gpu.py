"""The rules for tests marked gpu: they are skipped without a GPU, unless one is required, and time out."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator, Iterator

import pytest

REQUIRED = "--require-gpu"
LIMIT = "--gpu-limit"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(REQUIRED, action="store_true", help="fail if a gpu test is skipped, also for lack of a GPU")
    parser.addoption(
        LIMIT,
        type=float,
        default=240.0,
        metavar="SECONDS",
        help="end the process of a gpu test that takes longer, with a traceback (default: 240; 0: never)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not marked or config.getoption(REQUIRED) or has_gpu():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def has_gpu() -> bool:
    """Whether torch finds one. The tests name it "cuda", as torch also calls AMD's."""
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_due = item.config.getoption(REQUIRED) and item.get_closest_marker("gpu") is not None
    if is_due and report.skipped:
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
        report.outcome, report.longrepr = "failed", f"a gpu test must not be skipped here: {reason}"
    return report


@pytest.fixture(autouse=True)
def _time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing else can end a wait for a device: no Python code runs until it is over."""
    seconds = request.config.getoption(LIMIT)
    if request.node.get_closest_marker("gpu") is None or not seconds:
        yield
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        stderr = os.dup(2)  # the real one, since what is captured goes with the process
    faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(stderr)
