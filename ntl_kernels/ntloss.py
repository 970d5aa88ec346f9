"""Drop-in classes with the names, signatures and attributes of the ``ntloss`` package (0.3.2), on these kernels.

``from ntl_kernels.ntloss import NTLoss`` in place of ``from ntloss import NTLoss`` gives the same values and gradients.
What differs:

- The tokenizer is never changed. Digits that it lacks are reported in the log, as there, but not added.
- Numbers are written in ASCII: "1_0" and the digits of other scripts are none. Those beyond 8e37, whose differences
  float32 might not hold, are left out and logged. Fewer than two number values, or a number that is no token of the
  logits, raise a ValueError.
- A batch without numbers gives a zero that ``backward`` accepts.
- Losses are float32 for half-precision logits, and softmax and sums are computed in it.
- A word's row may have -inf for every number; there, such a row makes the whole gradient NaN.
- Labels out of range raise an IndexError on a CPU and give NaN on a GPU and under transforms such as
  ``torch.compile``, where nobody can look; label -1 is not the last token.
- Nothing waits for a GPU, where negative weights are not looked for either; tables are copied to a device once.
- ``loss_weights`` are constants: no gradient flows to them. A mean over weights that sum to almost 0 is not damped.
- The logits' last dimension is checked at every call, and labels may be int32, too.
- A loss function of your own sees every position, [B * T], those without a number as a pair of ones. It must judge each
  position by itself.
- Squashed costs between only two values are 1 (there: 0 divided by 0).
- The number-level loss takes numbers of any length, with any leading zeros: it is free of scale, so digits are weighed
  relative to the first that is not 0. An ignored "." joins no digits, nor does an unknown token where "." is none.
- ``reweigh_fn`` and ``convert_digits_to_numbers`` leave their arguments alone. They are there for callers: ``forward``
  does without them, so that overriding them changes nothing.
- ``max_dist`` and ``dist_lookup`` of a loss that runs in the kernels are for reading; of the others ``max_dist`` counts
  as it is when it is assigned.
- A compiled number-level loss sums at most 4096 digits of one number.
- The looped form ``NumberLevelLossLooped``, deprecated there, is left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import resolve_backend
from .backends.layout import loss_dtype
from .checks import check_label_values, check_tensor
from .config import NTLConfig
from .digit_runs import digits_after, digits_around_leading, number_runs, power_of_tenth, run_sums
from .dispatch import in_shape, loss_of_logits
from .problem import Problem, is_kept
from .reference import divide
from .spec import WORST_FACTOR, LossSpec, check_ignore_index, cost_line
from .statistics import number_statistics
from .tokens import LARGEST_SPAN, NumberTokens
from .tracing import has_values

__all__ = ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"]

LOGGER = logging.getLogger(__name__)
FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""What counts as a number with ``digit_level=False``, less spaces around it: a finite decimal in ASCII."""
ASCII_SPACES = " \t\n\r\f\v"
FUSED_KINDS: tuple[tuple[Callable[..., Tensor], str], ...] = (
    (F.mse_loss, "mse"),
    (F.l1_loss, "mae"),
    (F.huber_loss, "huber"),
    (F.smooth_l1_loss, "huber"),  # the same at their default delta and beta
)
REDUCTIONS = ("mean", "sum", "none")


class Batch(NamedTuple):
    """The arguments of a call, checked."""

    logits: Tensor
    """[B, T, V]."""
    labels: Tensor
    """[B, T]."""
    loss_weights: Tensor | None
    """[B, T], detached."""
    reduction: str
    ignore_index: int


class AbstractNTLoss:
    """What the three losses share: the number tokens of a tokenizer, and the checks.

    Args:
        tokenizer: a Hugging Face tokenizer; only read.
        vocab_size: V, the logits' last dimension; default: ``len(tokenizer)``.
        digit_level: only the digits 0 to 9 are numbers; else every token that is a finite decimal, spaces aside.
        reweigh: interpolate to 1.01 times the largest loss as probability leaves the number tokens. True by default, as
            in the package; that of :class:`NTLConfig` is False, as in the paper.

    Attributes:
        number_values: float32 [V], NaN for tokens that are no numbers.
        is_number_token: bool [V].
        number_values_dense: float32 [K], in the order of the ids.
        number_token_ids: int64 [K], ascending.
        nan_id: the first token that is no number.
        max_dist: the largest loss, 0-d.

    Raises:
        ValueError: fewer than two number values, only number tokens, or ids beyond ``vocab_size``.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int | None = None, digit_level: bool = True, reweigh: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size if vocab_size is not None else len(tokenizer)
        self.digit_level = digit_level
        self.reweigh = reweigh
        self.max_dist = torch.tensor(0.0, device="cpu")
        self.setup_number_tokens()

    def setup_number_tokens(self) -> None:
        """Read the number tokens off the tokenizer's vocabulary."""
        found = {token: float(text) for text, token in self.tokenizer.get_vocab().items() if self.is_number(text)}
        held = {token: value for token, value in found.items() if abs(value) <= LARGEST_SPAN / 2}
        if len(held) < len(found):
            LOGGER.warning("%s tokens are numbers that float32 losses do not hold; left out", len(found) - len(held))
        self.numbers = NumberTokens.from_mapping(held, self.vocab_size)
        if len(self.numbers) == self.vocab_size:
            raise ValueError("at least one token must be no number; all are")
        if self.digit_level and len(self.numbers) != 10:
            LOGGER.error("digit_level, but %s tokens are digits: %s", len(self.numbers), self.numbers.values.tolist())
        self.number_values = torch.full((self.vocab_size,), torch.nan, device="cpu")
        self.number_values[self.numbers.ids] = self.numbers.values
        self.is_number_token = ~self.number_values.isnan()
        self.nan_id = int((~self.is_number_token).nonzero()[0])
        self.number_values_dense = self.number_values[self.is_number_token]
        self.number_token_ids = self.is_number_token.nonzero().squeeze(1)

    def is_number(self, text: str) -> bool:
        """Whether a token's text counts as a number."""
        if self.digit_level:
            return len(text) == 1 and text in "0123456789"
        return FLOAT.fullmatch(text.strip(ASCII_SPACES)) is not None

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """The loss of logits [B, T, V] and labels [B, T].

        Args:
            logits: floating point, at least one element.
            labels: int64 or int32.
            loss_weights: [B, T], not negative.
            reduction: "mean" (weighted), "sum" or "none".
            ignore_index: label of positions that do not count, any int64.

        Returns:
            0-d for "mean" and "sum", [B, T] for "none"; float32 (float64 for float64 logits).

        Raises:
            ValueError, TypeError, IndexError: shapes, dtypes, sizes or labels that do not fit.
        """
        self._validate_inputs(logits, labels, loss_weights)
        check_reduction(reduction)
        check_ignore_index(ignore_index)
        constants = None if loss_weights is None else loss_weights.detach()
        return self.batch_loss(Batch(logits, labels, constants, reduction, ignore_index))

    def batch_loss(self, batch: Batch) -> Tensor:
        """What :meth:`forward` gives for a batch."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Alias of :meth:`forward`."""
        return self.forward(*args, **kwargs)

    @property
    def max_dist(self) -> Tensor:
        return self._max_dist

    @max_dist.setter
    def max_dist(self, largest: Tensor) -> None:
        # Its value is read once: later, it might be needed on a GPU or among fake tensors.
        self._max_dist, self._largest = largest, float(largest)

    def reweigh_fn(self, logits: Tensor, loss: Tensor, number_token_positions: Tensor) -> Tensor:
        """What ``reweigh`` makes of losses [N] at the N positions (bool [B, T]) of logits [B, T, V].

        For callers. Finding the positions waits for a GPU.
        """
        return self.reweighed(loss, number_statistics(logits[number_token_positions], self.numbers).mass)

    def reweighed(self, loss: Tensor, mass: Tensor) -> Tensor:
        """Between the loss and 1.01 times the largest one, by the mass off the number tokens; shapes alike."""
        return loss * mass + (1 - mass) * WORST_FACTOR * self._largest

    def _validate_inputs(self, logits: Tensor, labels: Tensor | None, loss_weights: Tensor | None) -> None:
        """Raise unless shapes, dtypes and devices fit each other and the vocabulary."""
        check_tensor("logits", logits)
        if logits.ndim != 3 or logits.numel() == 0:
            raise ValueError(f"logits must be [B, T, V] and not empty; got shape {tuple(logits.shape)}")
        if logits.shape[-1] != self.vocab_size:
            raise ValueError(f"logits must have vocab_size={self.vocab_size} columns; got {logits.shape[-1]}")
        if labels is None:
            return
        if labels.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"labels must be int64 or int32; got {labels.dtype}")
        for name, tensor in (("labels", labels), ("loss_weights", loss_weights)):
            if tensor is not None and tensor.shape != logits.shape[:-1]:
                raise ValueError(f"{name} must have shape {tuple(logits.shape[:-1])}; got {tuple(tensor.shape)}")
            if tensor is not None and tensor.device != logits.device:
                raise ValueError(f"{name} must be on the logits' device {logits.device}; got {tensor.device}")
        # the operators check again, under the name that they know; a graph or a transform leaves it to them
        if loss_weights is not None and loss_weights.device.type == "cpu" and has_values(loss_weights):
            fits = (loss_weights >= 0) & (loss_weights != torch.inf)
            if not fits.all():
                given = loss_weights[~fits][0].item()
                raise ValueError(f"loss_weights must not be negative, infinite or NaN; got {given}")

    def fused_loss(self, config: NTLConfig, batch: Batch) -> Tensor:
        """The Number Token Loss alone, by the kernels."""
        logits, labels, loss_weights, reduction, ignore_index = batch
        spec = LossSpec.resolve(config, self.numbers, ignore_index=ignore_index, ce_weight=0.0)
        problem = Problem(
            labels,
            loss_weights,
            None,
            None,
            config.weight,
            self.numbers.table(logits.device),
            spec,
            reduction,
            resolve_backend("auto", logits),
        )
        return in_shape(loss_of_logits(logits, problem).loss, problem)

    def reduce(self, loss: Tensor, mass: Tensor, weights: Tensor, reduction: str) -> Tensor:
        """Weighted mean or sum of losses [B, T], or each of them; weights [B, T] are 0 off the numbers.

        With ``reweigh``, the losses are reweighed by the mass [B, T] first.
        """
        loss = self.reweighed(loss, mass) if self.reweigh else loss
        losses = torch.where(weights != 0, loss * weights, 0.0)
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else divide(losses.sum(), weights.sum())


class NTLoss(AbstractNTLoss):
    """NTL-WAS: Wasserstein-1 distance to the label, the default of the paper.

    Args:
        tokenizer, vocab_size, digit_level, reweigh: see :class:`AbstractNTLoss`.
        squash_factor: the furthest number costs this many times the nearest wrong one (> 1).

    Attributes:
        dist_lookup: float32 [K, K], the cost of one number token for another, in the order of the ids.
        vocab_to_dist_idx: int64 [V], the row of a token in ``dist_lookup``, -1 for tokens that are no numbers.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        squash_factor: float | None = None,
    ) -> None:
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        self.squash_factor = squash_factor
        self.setup_distance_lookup(squash_factor)

    def setup_distance_lookup(self, squash_factor: float | None = None) -> None:
        """Set the costs, for reading them; the kernels compute them from the values."""
        self.config = NTLConfig(weight=1.0, reweigh=self.reweigh, squash_factor=squash_factor)
        offset, slope = cost_line(self.numbers.distances, squash_factor)
        distances = (self.number_values_dense[:, None] - self.number_values_dense).abs()
        self.dist_lookup = torch.where(distances > 0, offset + slope * distances, 0.0)
        self.vocab_to_dist_idx = torch.where(self.is_number_token, self.is_number_token.cumsum(0) - 1, -1)
        self.max_dist = self.dist_lookup.max()

    def batch_loss(self, batch: Batch) -> Tensor:
        return self.fused_loss(replace(self.config, reweigh=self.reweigh), batch)


class NTLossDotProduct(AbstractNTLoss):
    """NTL-L_p: a loss between the expected value and the label's value.

    Args:
        tokenizer, vocab_size, digit_level, reweigh: see :class:`AbstractNTLoss`.
        loss_function: called as ``loss_function(expected_values, values, reduction="none")`` on [B * T] tensors, and
            for ``max_dist`` as ``loss_function(smallest, largest)`` on 0-d ones. torch's own ``mse_loss``, ``l1_loss``,
            ``huber_loss`` and ``smooth_l1_loss`` run in the kernels, any other callable on the expected values that
            these give.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        loss_function: Callable[..., Tensor] = F.mse_loss,
    ) -> None:
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        self.loss_function = loss_function
        self.setup_max_dist()

    def setup_max_dist(self) -> None:
        """The largest loss between two values, either of which may be the label's."""
        low, high = self.number_values_dense.min(), self.number_values_dense.max()
        self.max_dist = torch.maximum(self.loss_function(low, high).abs(), self.loss_function(high, low).abs())

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(expected value, probability on number tokens), each [B, T], of every position of logits [B, T, V]."""
        self._validate_inputs(logits, None, None)
        return tuple(number_statistics(logits, self.numbers))  # type: ignore[return-value]

    def batch_loss(self, batch: Batch) -> Tensor:
        for function, kind in FUSED_KINDS:
            if self.loss_function is function:
                return self.fused_loss(NTLConfig(kind=kind, weight=1.0, reweigh=self.reweigh), batch)
        targets, counts = self.targets(batch)
        weights = weighted(counts, batch)
        expected_values, mass = number_statistics(batch.logits, self.numbers)
        # Positions that do not count get a harmless pair: whatever the function makes of it is not looked at.
        pair = (torch.where(weights != 0, values, 1.0).flatten() for values in (expected_values, targets))
        loss = self.loss_function(*pair, reduction="none").view(weights.shape)
        return self.reduce(loss, mass, weights, batch.reduction)

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(values, counts) [B, T] of the labels: 1 for number tokens, 0 for others, NaN for labels out of range."""
        logits, labels, ignore_index = batch.logits, batch.labels, batch.ignore_index
        if has_values(labels):
            check_label_values(labels, self.vocab_size, ignore_index)
        table, dtype = self.numbers.table(logits.device), loss_dtype(logits.dtype)
        is_counted = is_kept(labels, ignore_index)
        is_valid = (labels >= 0) & (labels < self.vocab_size)
        index = table.lookup[torch.where(is_counted & is_valid, labels, self.nan_id).long()].long()
        counts = torch.where(is_counted & ~is_valid, torch.nan, (index >= 0).to(dtype))
        return torch.where(index >= 0, table.values.to(dtype)[index], 0.0), counts


class NumberLevelLoss(NTLossDotProduct):
    """The symmetric relative error of whole numbers, each a run of digit tokens: ``|yhat - y| / (|yhat| + |y|)``.

    Args:
        tokenizer, vocab_size, reweigh: see :class:`AbstractNTLoss`.
        float_level: a single "." between digits joins them to one run, to which it contributes nothing (12.34 counts
            as 1234); else 12.34 is two numbers.
        max_number_length: how many ``powers_of_10`` there are for whoever reads them. It limits nothing: the loss
            takes numbers of any length.

    A number's loss, in [0, 1] without ``reweigh``, stands at its first digit, which also gives its weight and its mass.

    Attributes:
        dot: id of the token ".", -1 where there is none.
        powers_of_10: float32 [max_number_length].
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int = 20,
    ) -> None:
        super().__init__(tokenizer, vocab_size, digit_level=True, reweigh=reweigh, loss_function=F.l1_loss)
        self.float_level = float_level
        self.dot: int = tokenizer.get_vocab().get(".", -1)
        self.max_number_length = max_number_length
        self.powers_of_10 = 10.0 ** torch.arange(max_number_length, dtype=torch.float32, device="cpu")

    def setup_max_dist(self) -> None:
        """The symmetric relative error is at most 1."""
        self.max_dist = torch.tensor(1.0, device="cpu")

    def convert_digits_to_numbers(
        self, y: Tensor, yhat: Tensor, number_token_positions: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Digits to the numbers that they write, for callers.

        Args:
            y, yhat: [B, T], digits of the labels and expected ones.
            number_token_positions: bool [B, T], where the labels are digits.
            labels: [B, T].

        Returns:
            (y, yhat, first): the numbers at their first digits, NaN at the rest of them, elsewhere as given; and bool
            [B, T], where first digits are. Numbers beyond the range of the dtype are not finite.
        """
        runs = number_runs(number_token_positions, self.joints(labels))
        rest = (number_token_positions | runs.joins) & ~runs.first
        exponents = digits_after(number_token_positions, runs.first)
        numbers = []
        for digits in (y, yhat):
            scale = torch.pow(10.0, exponents.to(loss_dtype(digits.dtype)))
            sums = run_sums(torch.where(number_token_positions, digits * scale, 0.0), runs.number).to(digits.dtype)
            numbers.append(torch.where(runs.first, sums, digits.masked_fill(rest, torch.nan)))
        return numbers[0], numbers[1], runs.first

    def joints(self, labels: Tensor, ignore_index: int | None = None) -> Tensor:
        """bool [B, T]: where a "." may join the digits on both sides of it."""
        is_dot = (labels == self.dot) & (self.float_level and self.dot >= 0)
        return is_dot if ignore_index is None else is_dot & is_kept(labels, ignore_index)

    def batch_loss(self, batch: Batch) -> Tensor:
        targets, counts = self.targets(batch)
        is_digit = counts > 0  # not so NaN, of labels out of range
        runs = number_runs(is_digit, self.joints(batch.labels, batch.ignore_index))
        expected_values, mass = number_statistics(batch.logits, self.numbers)
        digits = torch.where(is_digit, torch.stack([targets, expected_values]), 0.0)
        before, after = digits_around_leading(is_digit, runs.first, (digits.detach() != 0).any(0))
        y, yhat = run_sums(digits * power_of_tenth(before, digits.dtype), runs.number)
        # The package's epsilon, on the scale of the digits.
        epsilon = torch.finfo(torch.float32).eps * power_of_tenth(after, y.dtype)
        loss = (yhat - y).abs() / (yhat.abs() + y.abs() + epsilon.clamp_min(torch.finfo(y.dtype).tiny))
        weights = weighted(torch.where(runs.first | counts.isnan(), counts, 0.0), batch)
        return self.reduce(loss, mass, weights, batch.reduction)


def weighted(counts: Tensor, batch: Batch) -> Tensor:
    """Counts [B, T] times the weights of the batch, if it has any."""
    return counts if batch.loss_weights is None else counts * batch.loss_weights.to(counts.dtype)


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}")
