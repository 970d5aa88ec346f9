"""The counts and sums behind a Trainer's loss and metrics, without a Trainer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accelerate.data_loader import IterableDatasetShard
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, cross_entropy_ntl
from ntl_kernels.integrations.transformers.counting import (
    MarkedStream,
    Repetition,
    Sums,
    Totals,
    Window,
    collate_marked,
    count_window,
    sums_of,
    without_repetitions,
)
from ntl_kernels.integrations.transformers.losses import NTLOptions

from .models import NUMBERS, VOCAB

TARGETS = (torch.tensor([[10, 11, -100], [50, -100, 12]]), torch.tensor([[-100, 60, 61], [19, 19, 62]]))


def test_a_window_is_counted_over_processes_once() -> None:
    assert count_window(TARGETS, NUMBERS, "cpu").tolist() == [9, 5]
    three = lambda counts: torch.cat([counts, 2 * counts, counts])  # noqa: E731
    assert count_window(TARGETS, NUMBERS, "cpu", copies=2, gather=three).tolist() == [18, 10]


@pytest.mark.parametrize("mean_over", ["numbers", "tokens"])
def test_means_are_those_of_all_rows(mean_over: str) -> None:
    config = NTLConfig(weight=0.7, mean_over=mean_over)
    logits = torch.randn(2, 2, 3, VOCAB, dtype=torch.float64)

    def output(logits: Tensor, targets: Tensor) -> Any:
        return cross_entropy_ntl(logits, targets, NUMBERS, config=config, return_parts=True)

    totals, together = Totals(), output(logits, torch.stack(TARGETS))
    for part, targets in zip(logits, TARGETS, strict=True):
        tokens, numbers = (targets != -100).sum(), NUMBERS.count(targets)
        totals.add(sums_of(output(part, targets), tokens, numbers, Window(NTLOptions(NUMBERS, config))))
    sums = totals.take("cpu", lambda total: total)
    assert sums.loss() == pytest.approx(together.loss.item(), rel=1e-6)
    expected = {"ce": together.cross_entropy, "ntl": together.ntl, "token_accuracy": together.token_accuracy}
    expected |= {"number_mae": together.number_mae, "number_share": torch.tensor(5 / 9)}
    assert sums.means() == pytest.approx({name: value.item() for name, value in expected.items()})
    assert totals.take("cpu", lambda total: total) == Sums()


def test_a_batch_of_a_window_has_its_share_of_the_loss() -> None:
    parts = NTLOutput(*(torch.tensor(float(value)) for value in range(1, len(NTLOutput._fields) + 1)))
    window = Window(NTLOptions(NUMBERS), num_items=9, num_numbers=None, processes=3, accumulated=4)
    sums = sums_of(parts, torch.tensor(5), torch.tensor(2), window)
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
