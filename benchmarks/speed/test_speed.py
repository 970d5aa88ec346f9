"""The table of providers on the table of workloads, under pytest-benchmark:

    pytest benchmarks/speed --benchmark-only [--speed-suite full] [-k 'logits-fp32 or launch']

`python -m benchmarks.speed run` interleaves the providers and is the source of the README's ratios. Here providers run
one after another, with the statistics, comparisons and storage of pytest-benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import workloads
from .providers import Provider, providers_of
from .run import WARM_UP, Settings, compiler_settings, cpu_threads, prepare, quiet, suite_of
from .workloads import Case, Workload

ROUNDS = 10


def settings_of(config: pytest.Config) -> Settings:
    return Settings(**{name: config.getoption(f"--speed-{name}") for name in ("device", "suite", "threads", "dry")})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    pairs = [
        pytest.param(workload, provider, id=f"{workload.name}-{provider.name}")
        for workload in suite_of(settings_of(metafunc.config))
        for provider in providers_of(workload.family, workload.providers)
    ]
    metafunc.parametrize(("workload", "provider"), pairs)


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    return settings_of(request.config)


@pytest.fixture
def case(workload: Workload, settings: Settings) -> Iterator[Case]:
    with quiet(), cpu_threads(workload.threads or settings.threads), compiler_settings():
        yield workloads.make_case(workload, settings.device)


def test_speed(benchmark: Any, workload: Workload, provider: Provider, case: Case, settings: Settings) -> None:
    entries, steps = prepare(case, [provider], 0)
    found = entries[provider.name]
    if found["status"] == "missing":
        pytest.skip(found["reason"])
    assert found["status"] == "passed", found["reason"]
    step = steps[provider.name]

    def once() -> None:
        step(0)
        if settings.device.type == "cuda":
            torch.cuda.synchronize()

    benchmark.group = workload.name
    benchmark.extra_info.update(found)
    benchmark.pedantic(once, rounds=2 if settings.dry else ROUNDS, warmup_rounds=0 if settings.dry else WARM_UP)
