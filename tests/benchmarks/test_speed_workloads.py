"""The tables contain everything that the targets need, and the random problems have the properties they claim."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from benchmarks.speed import workloads
from benchmarks.speed.first import first_workloads
from benchmarks.speed.headlines import HEADLINES
from benchmarks.speed.providers import PROVIDERS, providers_of
from benchmarks.speed.tables import GROUPS
from benchmarks.speed.targets import targets_of
from benchmarks.speed.workloads import VOCAB_SIZES, Workload

from .speed_cases import CPU, case

SUITES = {"cpu": workloads.cpu_workloads(), "quick": workloads.quick_workloads()}
SUITES["gpu"] = workloads.gpu_workloads(141 * 2**30)


@pytest.mark.parametrize("suite", SUITES)
def test_names_are_unique_and_providers_exist(suite: str) -> None:
    assert len({workload.name for workload in SUITES[suite]}) == len(SUITES[suite])
    assert len({(provider.family, provider.name) for provider in PROVIDERS}) == len(PROVIDERS)
    assert all(providers_of(workload.family, workload.providers) for workload in SUITES[suite])
    assert {workload.family for workload in SUITES[suite]} == set(workloads.FAMILIES)
    assert {workload.group for workload in SUITES[suite]} <= {"main", *GROUPS}  # which have a heading


@pytest.mark.parametrize("suite", ["cpu", "gpu"])
def test_suites_cover_vocabularies_and_labels(suite: str) -> None:
    logits = [workload for workload in SUITES[suite] if workload.family == "logits"]
    for dtype in ("float32", "bfloat16"):
        in_sweep = [w for w in logits if any(group.startswith("vocabulary") for group in (w.group, *w.also))]
        assert sorted(w.vocab for w in in_sweep if w.dtype == dtype) == sorted(VOCAB_SIZES)
    assert {workload.numbers for workload in logits} == {10, 256, 1024, 1110, 4096}
    assert {workload.number_share for workload in logits} >= {0.0, 0.2, 1.0}
    assert {workload.ignored_share for workload in logits} >= {0.0, 0.5, 0.9}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_target_and_headline_is_measured_by_its_suite(kind: str) -> None:
    """Of a headline, all providers exist, but only ours has to be measured."""
    others = workloads.host_workloads(), workloads.eager_workloads(), first_workloads(2**37)
    suite = [*SUITES[kind], *chain(*others)]
    measured = {w.name: {provider.name for provider in providers_of(w.family, w.providers)} for w in suite}
    for target in targets_of(kind):
        for name, others in ((target.workload, ()), (target.other_workload or target.workload, target.others)):
            assert {target.ours, *others} <= measured[name], target
    keys = [target.key for target in targets_of(kind)]
    assert len(set(keys)) == len(keys)
    families = {workload.name: {provider.name for provider in providers_of(workload.family)} for workload in suite}
    for headline in HEADLINES[kind]:
        assert headline.ours in measured[headline.workload]
        others = {headline.ours_alone, *headline.baselines, headline.package, *headline.peers} - {""}
        assert others <= families[headline.workload]


def test_rows_fit_the_memory() -> None:
    small, large = workloads.gpu_workloads(16 * 2**30), SUITES["gpu"]
    assert max(w.logits_bytes for w in small) < max(w.logits_bytes for w in large)
    assert any(w.rows * w.vocab > 2**31 for w in large)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("ignored", [0.0, 0.5, 1.0])
def test_labels_have_the_given_shares(share: float, ignored: float) -> None:
    problem = case(rows=40, number_share=share, ignored_share=ignored)
    assert problem.num_tokens == round(40 * (1 - ignored))
    assert problem.num_numbers == round(problem.num_tokens * share)
    labels = problem.sets[0].labels
    assert ((labels == workloads.IGNORED) | ((labels >= 0) & (labels < 96))).all()


def test_tensors_follow_from_the_name() -> None:
    first, second, other = case(), case(), case(name="other")
    assert torch.equal(first.sets[0].leaves[0], second.sets[0].leaves[0])
    assert not torch.equal(first.sets[0].leaves[0], other.sets[0].leaves[0])


def test_sets_share_no_memory() -> None:
    sets = workloads.make_case(Workload("w", "logits", "main", 4, 64), CPU, sets=3).sets
    assert len({tensors.leaves[0].data_ptr() for tensors in sets}) == 3
    assert all(torch.equal(sets[0].leaves[0], tensors.leaves[0]) for tensors in sets)
    assert all(tensors.leaves[0].requires_grad and tensors.leaves[0].is_leaf for tensors in sets)


def test_number_tokens_are_distinct_numbers() -> None:
    table = workloads.number_tokens(Workload("w", "logits", "main", 4, 2048, numbers=1110))
    assert len(table) == 1110
    assert table.values.tolist() == [float(value) for value in range(1110)]


def test_hidden_states_give_logits_of_the_same_spread() -> None:
    tensors = case(family="hidden", rows=64, vocab=512, hidden=32).sets[0]
    spread = tensors.logits.std().item()
    assert spread == pytest.approx(workloads.LOGIT_DEVIATION, rel=0.2)
