"""What a Trainer counts: the labels of accumulation windows and the sums behind its metrics, no sample twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from torch import Tensor

from ...config import NTLOutput
from ...problem import as_number
from ...tokens import NumberTokens
from .targets import IGNORE_INDEX, Targets, Window, count_labels, label_names


def count_window(
    targets: Iterable[Targets],
    numbers: NumberTokens,
    device: Any,
    copies: int = 1,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """[2]: the denominators of a window's cross-entropy and NTL, from the targets of each of its batches.

    ``copies`` processes have the same batches, which are counted once. ``gather`` concatenates a tensor [1, 2] of every
    process; without it, this process alone is counted.
    """
    counts = torch.stack([count_labels(each, numbers) for each in targets]).sum(0).to(device)
    return (counts if gather is None else gather(counts[None]).sum(0)) / copies


class Sums(NamedTuple):
    """Sums over batches: tensors for one batch, numbers for all processes."""

    tokens: Any = 0.0
    numbers: Any = 0.0
    """Number tokens with a weight other than 0."""
    cross_entropy: Any = 0.0
    of_labels: Any = 0.0
    """Cross-entropy as it is in the loss: in number rows times ``label_share``."""
    ntl: Any = 0.0
    weighted_ntl: Any = 0.0
    """NTL times the weight of its time."""
    ntl_count: Any = 0.0
    """The tokens or (weighted) numbers that NTL is a mean over."""
    correct: Any = 0.0
    number_error: Any = 0.0
    losses: Any = 0.0
    """In training, CE + NTL as the Trainer logs it: divided by the counts of each window."""
    windows: Any = 0.0
    additions: Any = 0.0
    """In evaluation, what the model and other Trainers add to CE + NTL, times the tokens."""

    def loss(self) -> float:
        """The mean CE + NTL over at least one token."""
        return float(self.of_labels / self.tokens + self.weighted_ntl / (self.ntl_count or 1))

    def means(self) -> dict[str, float]:
        """The metrics over at least one token."""
        return {
            "ce": self.cross_entropy / self.tokens,
            "ntl": self.ntl / (self.ntl_count or 1),
            "token_accuracy": self.correct / self.tokens,
            "number_mae": self.number_error / self.numbers if self.numbers else math.nan,
            "number_share": self.numbers / self.tokens,
        }


def sums_of(parts: NTLOutput, targets: Targets, window: Window) -> Sums:
    """The sums of one batch, from its targets and the parts of its loss."""
    config, number_tokens, device = window.options.config, window.options.numbers, parts.ntl.device
    tokens, weight = count_labels(targets, number_tokens).to(device)
    numbers = weight
    if targets.number_weights is not None:
        numbers = number_tokens.count(targets.labels, targets.number_weights != 0).to(device)
    over_tokens, factor = config.mean_over == "tokens", as_number(config.weight)
    ntl = parts.ntl * (parts.num_tokens if over_tokens else parts.num_numbers)
    of_labels = parts.cross_entropy if config.label_share == 1 else parts.loss.detach() - factor * parts.ntl
    return Sums(
        tokens=tokens,
        numbers=numbers,
        cross_entropy=parts.cross_entropy * parts.num_tokens,
        of_labels=of_labels * parts.num_tokens,
        ntl=ntl,
        weighted_ntl=factor * ntl,
        ntl_count=tokens if over_tokens else weight,
        correct=parts.token_accuracy * tokens,
        number_error=parts.number_mae * numbers,
        losses=parts.loss.detach() * window.processes,
        windows=1 / window.accumulated,
    )


class Totals:
    """Sums over the batches since the last log. Adding to them does not wait for the device."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, sums: Sums) -> None:
        device = next(value.device for value in sums if isinstance(value, Tensor))
        values = [value if isinstance(value, Tensor) else torch.full((), value, device=device) for value in sums]
        batch = torch.stack([value.detach().to(device).float() for value in values])
        self.total = batch if self.total is None else self.total + batch

    def clear(self) -> None:
        self.total = None

    def take(self, device: Any, gather: Callable[[Tensor], Tensor]) -> Sums:
        """The sums over all processes, each of which must call this, even without batches; then clears them."""
        total = torch.zeros(len(Sums._fields), device=device) if self.total is None else self.total
        self.clear()
        return Sums(*gather(total[None]).sum(0).tolist())


def without_repetitions(batch: Any, samples: int, kept: int, collate: Callable[[int], Any]) -> Any:
    """A batch of this many samples in which only the first ``kept`` have labels.

    If a row is not a sample, as with padding-free collators, ``collate(kept)`` makes a batch of these samples alone.
    """
    names = label_names(batch)
    if kept == samples or not names:
        return batch
    if kept > 0 and len(batch[names[0]]) != samples:
        return collate(kept)
    masked = {
        name: torch.cat([batch[name][:kept], torch.full_like(batch[name][kept:], IGNORE_INDEX)]) for name in names
    }
    return {**batch, **masked}


class Repetition(NamedTuple):
    """A sample that stands in for one beyond the end of the data."""

    sample: Any


class MarkedStream(IterableDatasetShard):
    """A process's part of a stream. Samples that fill the last batch of all processes are marked as repetitions."""

    def __iter__(self) -> Iterator[Any]:
        size = self.batch_size if self.split_batches else self.batch_size * self.num_processes
        per_process = size // self.num_processes
        samples = enumerate(filled_up(self.dataset, size))
        return (sample for place, sample in samples if place % size // per_process == self.process_index)


def filled_up(samples: Iterable[Any], size: int) -> Iterator[Any]:
    """The samples, and repetitions of the first ones up to a multiple of ``size``."""
    count, first = 0, []
    for count, sample in enumerate(samples, 1):
        if count <= size:
            first.append(sample)
        yield sample
    yield from map(Repetition, islice(cycle(first), -count % size))


def collate_marked(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Samples of a marked stream as a batch in which repetitions have no labels."""
    first = [sample for sample in samples if not isinstance(sample, Repetition)]
    repeated = [sample.sample for sample in samples[len(first) :]]
    return without_repetitions(collate(first + repeated), len(samples), len(first), lambda kept: collate(first))


class RememberedBatches(BatchSamplerShard):
    """A process's part of the batches of indices, which keeps the last."""

    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            self.last = batch
            yield batch


def watch_repetitions(loader: Any) -> None:
    """Watch which samples accelerate repeats to give several processes the same number of batches."""
    batches: Any = getattr(loader, "batch_sampler", None)
    stream: Any = getattr(loader, "dataset", None)
    if type(batches) is BatchSamplerShard:
        batches.__class__ = RememberedBatches
    if type(stream) is IterableDatasetShard and not stream.drop_last:
        stream.__class__ = MarkedStream
        loader.base_dataloader.collate_fn = partial(collate_marked, loader.collate_fn)


def without_repeated_samples(batch: dict[str, Any], loader: Any, accelerator: Any, copies: int) -> dict[str, Any]:
    """A watched loader's current batch, in which the samples that accelerate has repeated have no labels.

    They are at the end of the last batch over all processes, ``copies`` of which have the same batches.
    """
    state = accelerator.gradient_state
    if not (state.end_of_dataloader and state.remainder > 0):
        return batch
    batches: Any = getattr(loader, "batch_sampler", None)
    samples = len(batch[label_names(batch)[0]])
    if isinstance(batches, RememberedBatches):
        samples = loader.total_batch_size * copies // accelerator.num_processes
    kept = min(max(state.remainder - accelerator.process_index // copies * samples, 0), samples)
    samples_of = lambda indices: [loader.dataset[index] for index in indices]  # noqa: E731
    return without_repetitions(batch, samples, kept, lambda kept: loader.collate_fn(samples_of(batches.last[:kept])))
