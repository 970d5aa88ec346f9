"""The counts and sums behind a Trainer's loss and metrics, without a Trainer."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import IterableDatasetShard
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, cross_entropy_ntl
from ntl_kernels.integrations.transformers.counting import (
    MarkedStream,
    RememberedBatches,
    Repetition,
    Sums,
    Totals,
    Window,
    collate_marked,
    count_window,
    sums_of,
    without_repeated_samples,
    without_repetitions,
)
from ntl_kernels.integrations.transformers.targets import NTLOptions, Targets

from .models import NUMBERS, VOCAB

LABELS = torch.tensor([[[10, 11, -100], [50, -100, 12]], [[-100, 60, 61], [19, 19, 62]]])
WEIGHTS = torch.tensor([[[0.25, 0.0, 2.0], [3.0, 1.0, 0.125]], [[1.0, 0.5, 0.0], [0.0, 0.25, 7.0]]])
PLAIN = [Targets(labels) for labels in LABELS]
WEIGHTED = [Targets(*pair) for pair in zip(LABELS, WEIGHTS, strict=True)]


def test_a_window_is_counted_over_processes_once() -> None:
    assert count_window(PLAIN, NUMBERS, "cpu").tolist() == [9, 5]
    three = lambda counts: torch.cat([counts, 2 * counts, counts])  # noqa: E731
    assert count_window(PLAIN, NUMBERS, "cpu", copies=2, gather=three).tolist() == [18, 10]
    assert count_window(WEIGHTED, NUMBERS, "cpu", copies=2, gather=three).tolist() == [18, 2 * 0.625]


@pytest.mark.parametrize("mean_over", ["numbers", "tokens"])
@pytest.mark.parametrize(("windows", "numbers"), [(PLAIN, 5), (WEIGHTED, 3)], ids=["plain", "weighted"])
def test_means_are_those_of_all_rows(windows: list[Targets], numbers: int, mean_over: str) -> None:
    """Weights that sum to less than 1 included; a number whose weight is 0 is none."""
    config = NTLConfig(weight=0.7, mean_over=mean_over)
    logits = torch.randn(2, 2, 3, VOCAB, dtype=torch.float64)

    def output(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Any:
        return cross_entropy_ntl(
            logits, labels, NUMBERS, config=config, number_weights=weights, return_parts=True, backend="reference"
        )

    totals, together = Totals(), output(logits, LABELS, WEIGHTS if windows is WEIGHTED else None)
    for part, targets in zip(logits, windows, strict=True):
        totals.add(sums_of(output(part, *targets), targets, Window(NTLOptions(NUMBERS, config))))
    sums = totals.take("cpu", lambda total: total)
    assert sums.loss() == pytest.approx(together.loss.item(), rel=1e-6)
    expected = {"ce": together.cross_entropy, "ntl": together.ntl, "token_accuracy": together.token_accuracy}
    expected |= {"number_mae": together.number_mae, "number_share": torch.tensor(numbers / 9)}
    assert sums.means() == pytest.approx({name: value.item() for name, value in expected.items()})
    assert totals.take("cpu", lambda total: total) == Sums()


def test_a_batch_of_a_window_has_its_share_of_the_loss() -> None:
    parts = NTLOutput(*(torch.tensor(float(value)) for value in range(1, len(NTLOutput._fields) + 1)))
    window = Window(NTLOptions(NUMBERS), num_items=9, num_numbers=None, processes=3, accumulated=4)
    sums = sums_of(parts, PLAIN[0], window)
    assert (sums.losses, sums.windows) == (3 * parts.loss, 1 / 4)
    assert window.counts() == {"num_items_in_batch": 9}


def test_without_numbers_the_error_of_numbers_is_unknown() -> None:
    means = Sums(tokens=4.0, cross_entropy=2.0).means()
    assert means["ce"] == 0.5 and means["ntl"] == means["number_share"] == 0 and math.isnan(means["number_mae"])


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("count", [0, 1, 4, 6, 7, 13])
def test_a_stream_is_filled_up_as_accelerate_does_it(count: int, split: bool) -> None:
    for process in range(2):
        options = {"batch_size": 6 if split else 3, "num_processes": 2, "process_index": process}
        marked = list(MarkedStream(range(count), split_batches=split, **options))
        plain = [sample.sample if isinstance(sample, Repetition) else sample for sample in marked]
        assert plain == list(IterableDatasetShard(range(count), split_batches=split, **options))
        own = [sample for sample in marked if not isinstance(sample, Repetition)]
        assert own == [sample for sample in range(count) if sample % 6 // 3 == process]


def test_repetitions_have_no_labels() -> None:
    stack = lambda rows: {"labels": torch.stack(rows)}  # noqa: E731
    rows = [torch.tensor([1, 2]), torch.tensor([3, 4]), Repetition(torch.tensor([5, 6]))]
    assert collate_marked(stack, rows)["labels"].tolist() == [[1, 2], [3, 4], [-100, -100]]
    flat = lambda rows: {"labels": torch.cat(rows)[None]}  # noqa: E731
    assert collate_marked(flat, rows)["labels"].tolist() == [[1, 2, 3, 4]]
    assert collate_marked(flat, rows[2:])["labels"].tolist() == [[-100, -100]]
    unlabelled = {"input_ids": torch.ones(2, 3)}
    assert without_repetitions(unlabelled, 2, 1, lambda kept: None) is unlabelled


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_last_batch_of_processes_that_share_rows(copies: int) -> None:
    """Four rows are left for batches of three, of which the first processes have one, and the others the next."""
    state, batch = SimpleNamespace(end_of_dataloader=True, remainder=4), {"labels": torch.ones(3, 2)}
    loader = SimpleNamespace(batch_sampler=RememberedBatches.__new__(RememberedBatches), total_batch_size=6)
    for process, source in product(range(2 * copies), (loader, None)):
        accelerator = SimpleNamespace(gradient_state=state, process_index=process, num_processes=2 * copies)
        labels = without_repeated_samples(batch, source, accelerator, copies)["labels"]
        assert (labels[:, 0] == 1).tolist() == ([True] * 3 if process < copies else [True, False, False])
