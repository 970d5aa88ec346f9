"""Drop-in replacements for the classes of the ``ntloss`` package (0.3.2): same names, signatures and attributes.

``from ntl_kernels.ntloss import NTLoss`` instead of ``from ntloss import NTLoss`` gives the same values and gradients.
Differences from ``ntloss``:

- The tokenizer is never changed. Missing digits are logged, as in ``ntloss``, but not added.
- Numbers must be ASCII: "1_0" and digits of other scripts are not numbers. Fewer than two number values, or a number
  token with an id beyond the logits, raises a ValueError.
- A batch without numbers returns a zero on which ``backward`` can be called. A row with -inf for all number tokens has
  loss 0 (in ``ntloss`` the whole gradient is NaN).
- For half-precision logits, losses are float32, and softmax and sums are computed in float32. Numbers beyond 8e37,
  whose differences may overflow float32, are skipped and logged.
- Out-of-range labels raise an IndexError on a CPU. On a GPU and under transforms such as ``torch.compile``, where
  labels cannot be checked, the loss is NaN. Label -1 is not the last token. Labels may also be int32.
- Nothing waits for a GPU, so negative weights are not detected there. Tables are copied to each device once.
- ``loss_weights`` are constants and get no gradient. A mean over weights whose sum is almost 0 is not damped.
- A custom loss function is called on all positions, [B * T], with a pair of ones where there is no number. It must
  treat each position independently.
- With only two distinct values, squashed costs are 1 (``ntloss`` divides 0 by 0).
- The number-level loss accepts numbers of any length (compiled: 4096 digits) with any number of leading zeros, since
  the relative error does not depend on scale. Neither an ignored "." nor an unknown token joins digits.
- ``reweigh_fn`` and ``convert_digits_to_numbers`` do not change their arguments; ``forward`` does not use them, so
  overriding them has no effect. ``max_dist`` can be assigned only for losses that do not run in the kernels.
- ``NumberLevelLossLooped``, which ``ntloss`` deprecates, is not provided.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import resolve_backend
from .backends.layout import loss_dtype
from .checks import can_look, check_label_values, check_rows, check_tensor, check_weight_values
from .config import NTLConfig
from .digit_runs import digits_from_leading, number_runs, run_sums
from .dispatch import in_shape, loss_of_logits
from .formulas import cost_line, divide
from .problem import Problem, RowInputs, is_kept
from .spec import WORST_FACTOR, check_reduction, spec_of
from .statistics import number_statistics
from .tokens import LARGEST_SPAN, NumberTokens
from .tokens.values import check_ignore_index, check_row_weights
from .tracing import has_values

__all__ = ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"]

LOGGER = logging.getLogger(__name__)
FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""What counts as a number with ``digit_level=False``, without surrounding spaces: a finite ASCII decimal."""
ASCII_SPACES = " \t\n\r\f\v"
FUSED_KINDS: tuple[tuple[Callable[..., Tensor], str], ...] = (
    (F.mse_loss, "mse"),
    (F.l1_loss, "mae"),
    (F.huber_loss, "huber"),
    (F.smooth_l1_loss, "huber"),  # equal for their default delta and beta
)


class AbstractNTLoss:
    """Base class of the three losses: reads the number tokens of a tokenizer and checks arguments.

    Args:
        tokenizer: a Hugging Face tokenizer; it is not changed.
        vocab_size: V, the size of the logits' last dimension; default: ``len(tokenizer)``.
        digit_level: count only the digits 0 to 9 as numbers; else every finite decimal, ignoring surrounding spaces.
        reweigh: interpolate towards 1.01 times the largest loss as probability leaves the number tokens. True by
            default, as in ``ntloss``; :class:`NTLConfig` has False, as in the paper.

    Attributes:
        number_values, is_number_token: float32 [V], NaN for tokens that are not numbers; bool [V].
        number_values_dense, number_token_ids: float32 and int64 [K], by id.
        nan_id: id of the first token that is not a number.
        max_dist: the largest loss, 0-d.

    Raises:
        ValueError: fewer than two number values, only number tokens, or ids beyond ``vocab_size``.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int | None = None, digit_level: bool = True, reweigh: bool = True
    ) -> None:
        self.tokenizer, self.digit_level, self.reweigh = tokenizer, digit_level, reweigh
        self.vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self.setup_number_tokens()

    def setup_number_tokens(self) -> None:
        """Find the number tokens in the tokenizer's vocabulary."""
        found = {token: float(text) for text, token in self.tokenizer.get_vocab().items() if self.is_number(text)}
        held = {token: value for token, value in found.items() if abs(value) <= LARGEST_SPAN / 2}
        if len(held) < len(found):
            LOGGER.warning("skipped %s number tokens whose values are too large for float32", len(found) - len(held))
        self.numbers = NumberTokens.from_mapping(held, self.vocab_size)
        if len(self.numbers) == self.vocab_size:
            raise ValueError("at least one token must not be a number; all tokens are numbers")
        if self.digit_level and len(self.numbers) != 10:
            values = self.numbers.values.tolist()
            LOGGER.error("digit_level=True expects 10 digit tokens; found %s: %s", len(values), values)
        self.number_values = torch.full((self.vocab_size,), torch.nan, device="cpu")
        self.number_values[self.numbers.ids] = self.numbers.values
        self.is_number_token = ~self.number_values.isnan()
        self.nan_id = int(self.is_number_token.int().argmin())
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
            loss_weights: [B, T], non-negative.
            reduction: "mean" (weighted), "sum" or "none".
            ignore_index: label of ignored positions, any int64.

        Returns:
            0-d, or [B, T] for "none"; float32 (float64 for float64 logits).

        Raises:
            ValueError, TypeError, IndexError: wrong shapes, dtypes, vocabulary size, options or labels.
        """
        self.check_logits(logits)
        check_rows(RowInputs(labels), logits)
        if loss_weights is not None:
            check_row_weights("loss_weights", loss_weights, labels)
            loss_weights = loss_weights.detach()
            # The operators check this again under their own argument name; in a graph or transform only they do.
            if has_values(loss_weights) and can_look(loss_weights):
                check_weight_values("loss_weights", loss_weights, loss_weights.flatten().to(loss_dtype(logits.dtype)))
        check_reduction(reduction)
        check_ignore_index(ignore_index)
        return self.loss_of(logits, RowInputs(labels, loss_weights), reduction, ignore_index)

    def check_logits(self, logits: Tensor) -> None:
        """Raise unless they are [B, T, V] and of a known dtype."""
        check_tensor("logits", logits)
        if logits.ndim != 3 or logits.numel() == 0:
            raise ValueError(f"logits must be [B, T, V] and not empty; got shape {tuple(logits.shape)}")
        if logits.shape[-1] != self.vocab_size:
            raise ValueError(f"logits must have vocab_size={self.vocab_size} columns; got {logits.shape[-1]}")

    def loss_of(self, logits: Tensor, rows: RowInputs, reduction: str, ignore_index: int) -> Tensor:
        """The loss of checked arguments."""
        raise NotImplementedError

    def fused_loss(
        self, config: NTLConfig, logits: Tensor, rows: RowInputs, reduction: str, ignore_index: int
    ) -> Tensor:
        """The loss of checked arguments that the kernels compute."""
        spec = spec_of(config, self.numbers, ignore_index, reduction=reduction, has_cross_entropy=False)
        table, backend = self.numbers.table(logits.device), resolve_backend("auto", logits)
        problem = Problem(rows, None, None, config.weight, table, spec, backend)
        return in_shape(loss_of_logits(logits, problem).loss, problem)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.forward(*args, **kwargs)

    @property
    def max_dist(self) -> Tensor:
        return self._max_dist

    @max_dist.setter
    def max_dist(self, largest: Tensor) -> None:
        # Its value is read once, now: later it may be needed on a GPU or with fake tensors.
        self._max_dist, self._largest = largest, float(largest)

    def reweigh_fn(self, logits: Tensor, loss: Tensor, number_token_positions: Tensor) -> Tensor:
        """Reweigh the losses [N] at N positions (bool [B, T]) of logits [B, T, V], for callers. It waits for a GPU."""
        return self.reweighed(loss, number_statistics(logits[number_token_positions], self.numbers).mass)

    def reweighed(self, loss: Tensor, mass: Tensor) -> Tensor:
        """Interpolate from the loss to 1.01 times the largest loss by the probability on other tokens; equal shapes."""
        return loss * mass + (1 - mass) * WORST_FACTOR * self._largest

    def reduce(self, loss: Tensor, mass: Tensor, weights: Tensor, reduction: str) -> Tensor:
        """The weighted mean or sum of losses [B, T], or the weighted losses; weights [B, T] are 0 where no number is.

        With ``reweigh``, the losses are first reweighed by the mass [B, T]. Where that is 0, so is the loss.
        """
        loss = self.reweighed(loss, mass) if self.reweigh else loss
        losses = torch.where((weights != 0) & (mass != 0), loss * weights, 0.0)
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else divide(losses.sum(), weights.sum())


class NTLoss(AbstractNTLoss):
    """NTL-WAS, the paper's default: the Wasserstein-1 distance between prediction and label.

    Args:
        tokenizer, vocab_size, digit_level, reweigh: see :class:`AbstractNTLoss`.
        squash_factor: the cost of the furthest number relative to the nearest wrong one (> 1).

    Attributes:
        dist_lookup: float32 [K, K], the cost of predicting one number token for another, in the order of the ids.
        vocab_to_dist_idx: int64 [V], the row of a token in ``dist_lookup``, -1 for tokens that are not numbers.

    Examples:
        >>> loss_fn = NTLoss(tokenizer)
        >>> logits, labels = torch.zeros(2, 8, len(tokenizer)), torch.randint(len(tokenizer), (2, 8))
        >>> loss = torch.nn.functional.cross_entropy(logits.mT, labels) + 0.3 * loss_fn(logits, labels)
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
        """Set the cost table, which is for callers to read; the kernels compute the costs from the values."""
        self.config = NTLConfig(weight=1.0, reweigh=self.reweigh, squash_factor=squash_factor)
        offset, slope = cost_line(squash_factor, *self.numbers.groups[0][-2:])
        distances = (self.number_values_dense[:, None] - self.number_values_dense).abs()
        self.dist_lookup = torch.where(distances > 0, offset + slope * distances, 0.0)
        self.vocab_to_dist_idx = torch.where(self.is_number_token, self.is_number_token.cumsum(0) - 1, -1)
        self.max_dist = self.dist_lookup.max()

    def loss_of(self, logits: Tensor, rows: RowInputs, reduction: str, ignore_index: int) -> Tensor:
        return self.fused_loss(replace(self.config, reweigh=self.reweigh), logits, rows, reduction, ignore_index)


class NTLossDotProduct(AbstractNTLoss):
    """NTL-L_p: a loss between the expected value and the label's value.

    Args:
        tokenizer, vocab_size, digit_level, reweigh: see :class:`AbstractNTLoss`.
        loss_function: called as ``loss_function(expected_values, values, reduction="none")`` on [B * T] tensors, and
            for ``max_dist`` as ``loss_function(smallest, largest)`` on 0-d tensors. torch's own ``mse_loss``,
            ``l1_loss``, ``huber_loss`` and ``smooth_l1_loss`` run in the kernels, any other callable outside them.

    Examples:
        >>> loss_fn = NTLossDotProduct(tokenizer, loss_function=torch.nn.functional.huber_loss)
        >>> logits, labels = torch.zeros(2, 8, len(tokenizer)), torch.randint(len(tokenizer), (2, 8))
        >>> loss = loss_fn(logits, labels)
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
        """Set the largest loss between two values, either of which may be the label's."""
        low, high = self.number_values_dense.min(), self.number_values_dense.max()
        self.max_dist = torch.maximum(self.loss_function(low, high).abs(), self.loss_function(high, low).abs())

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(expected value, probability on number tokens), each [B, T], at every position of logits [B, T, V]."""
        self.check_logits(logits)
        return tuple(number_statistics(logits, self.numbers))  # type: ignore[return-value]

    def loss_of(self, logits: Tensor, rows: RowInputs, reduction: str, ignore_index: int) -> Tensor:
        kinds = [kind for function, kind in FUSED_KINDS if self.loss_function is function]
        if kinds:
            config = NTLConfig(kind=kinds[0], weight=1.0, reweigh=self.reweigh)
            return self.fused_loss(config, logits, rows, reduction, ignore_index)
        targets, _, weights = self.targets(logits, rows, ignore_index)
        expected_values, mass = number_statistics(logits, self.numbers)
        # Positions that do not count get a harmless pair of ones; the function's result for them is not used.
        is_used = (weights != 0) & (mass != 0)
        pair = (torch.where(is_used, values, 1.0).flatten() for values in (expected_values, targets))
        loss = self.loss_function(*pair, reduction="none").view(weights.shape)
        return self.reduce(loss, mass, weights, reduction)

    def targets(self, logits: Tensor, rows: RowInputs, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
        """(values, is_number, weights) [B, T] of the labels; weights are 0 for no number, NaN if out of range."""
        labels, dtype = rows.labels, loss_dtype(logits.dtype)
        if has_values(labels):
            check_label_values(labels, self.vocab_size, ignore_index)
        table = self.numbers.table(logits.device)
        is_counted = is_kept(labels, ignore_index)
        is_valid = (labels >= 0) & (labels < self.vocab_size)
        index = table.lookup[torch.where(is_counted & is_valid, labels, self.nan_id).long()].long()
        is_number = index >= 0
        weights = torch.where(is_counted & ~is_valid, torch.nan, is_number.to(dtype))
        if rows.token_weights is not None:
            weights = weights * rows.token_weights.to(dtype)
        return torch.where(is_number, table.values.to(dtype)[index], 0.0), is_number, weights


class NumberLevelLoss(NTLossDotProduct):
    """The symmetric relative error ``|yhat - y| / (|yhat| + |y|)`` of whole numbers, each a run of digit tokens.

    The loss of a number, in [0, 1] without ``reweigh``, is at its first digit, which determines its weight and mass.

    Args:
        tokenizer, vocab_size, reweigh: see :class:`AbstractNTLoss`.
        float_level: join the digits on both sides of a single "." into one number; the "." itself is ignored (12.34
            counts as 1234). Otherwise 12.34 is two numbers.
        max_number_length: length of the attribute ``powers_of_10``. The loss accepts numbers of any length.

    Attributes:
        dot: id of the token ".", -1 if there is none.
        powers_of_10: float32 [max_number_length].

    Examples:
        >>> loss_fn = NumberLevelLoss(tokenizer, float_level=True)
        >>> logits, labels = torch.zeros(2, 8, len(tokenizer)), torch.randint(len(tokenizer), (2, 8))
        >>> loss = loss_fn(logits, labels)
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
        """Set the largest loss: the symmetric relative error is at most 1."""
        self.max_dist = torch.tensor(1.0, device="cpu")

    def convert_digits_to_numbers(
        self, y: Tensor, yhat: Tensor, number_token_positions: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Convert digits to the numbers that they form, for callers; ``forward`` does not use it.

        Args:
            y, yhat, labels: [B, T], the digits of the labels, the expected digits, and the labels.
            number_token_positions: bool [B, T], True where the label is a digit.

        Returns:
            (y, yhat, first): each number at its first digit, NaN at its other digits, and the given value elsewhere;
            ``first`` is bool [B, T], True at first digits. Numbers that overflow the dtype are not finite.
        """
        runs = number_runs(number_token_positions, self.joints(labels))
        rest = (number_token_positions | runs.joins) & ~runs.first
        exponents = run_sums(number_token_positions.float(), runs.number) - 1
        numbers = []
        for digits in (y, yhat):
            scale = torch.pow(10.0, exponents.to(loss_dtype(digits.dtype)))
            sums = run_sums(torch.where(number_token_positions, digits * scale, 0.0), runs.number).to(digits.dtype)
            numbers.append(torch.where(runs.first, sums, digits.masked_fill(rest, torch.nan)))
        return numbers[0], numbers[1], runs.first

    def joints(self, labels: Tensor) -> Tensor:
        """bool [B, T]: positions where a "." may join the digits on both sides."""
        return (labels == self.dot) & (self.float_level and self.dot >= 0)

    def loss_of(self, logits: Tensor, rows: RowInputs, reduction: str, ignore_index: int) -> Tensor:
        targets, is_digit, weights = self.targets(logits, rows, ignore_index)
        runs = number_runs(is_digit, self.joints(rows.labels) & is_kept(rows.labels, ignore_index))
        expected_values, mass = number_statistics(logits, self.numbers)
        expected = torch.where(mass != 0, expected_values, targets)  # a digit without probabilities has no error
        digits = torch.where(is_digit, torch.stack([targets, expected]), 0.0)
        # Relative to the first digit that is not 0, since a power of ten beyond the dtype would be lost.
        place = digits_from_leading(is_digit, runs.first, (digits.detach() != 0).any(0))
        scaled = digits * 10.0 ** (1 - place).to(digits.dtype)
        y, yhat, length = run_sums(torch.stack([*scaled, (place > 0).to(scaled.dtype)]), runs.number)
        # The epsilon of ``ntloss``, rescaled like the digits.
        epsilon = torch.finfo(torch.float32).eps * 10.0 ** (1 - length)
        loss = (yhat - y).abs() / (yhat.abs() + y.abs() + epsilon.clamp_min(torch.finfo(y.dtype).tiny))
        weights = torch.where(runs.first | weights.isnan(), weights, 0.0)
        return self.reduce(loss, mass, weights, reduction)
