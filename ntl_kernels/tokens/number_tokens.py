"""`NumberTokens`, and its tables that the backends read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from numbers import Integral
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .texts import (
    DIGITS,
    NO_OPTION_HELPS,
    count_numbers,
    examples,
    id_count,
    most_left_out,
    never_counted,
    numbers_in,
    possible_labels,
    vocab_of,
    wider_options,
    without_mark,
)
from .values import LARGEST_SPAN, check_ignore_index, check_row_weights, checked_mapping, checked_size, is_integral

CPU = torch.device("cpu")


class Distances(NamedTuple):
    """The smallest and the largest distance between two distinct number values, on which options of a loss depend."""

    smallest: float
    largest: float


class NumberTable(NamedTuple):
    """The tensors of a :class:`NumberTokens` on one device, in the form the backends read."""

    ids: Tensor
    """int32 [K], sorted by value, then id."""
    values: Tensor
    """float32 [K]."""
    lookup: Tensor
    """int32 [V]: the index of each token in ``ids``, -1 for tokens that are not numbers."""


class NumberTokens:
    """The number tokens of a vocabulary and their values. Immutable; copied to each device once.

    Build one with :meth:`from_tokenizer` or :meth:`from_mapping`. Values are rounded to float32, the dtype of the
    losses: two values that round to the same float32 become one value with two tokens. Two objects are equal if they
    contain the same numbers for the same vocabulary size. Pickles do not contain the tables on devices.

    Args:
        mapping, vocab_size: see :meth:`from_mapping`.
        names, notes: the tokens' strings and further lines for :meth:`describe`.
    """

    __slots__ = ("__weakref__", "_distances", "_names", "_notes", "_pairs", "_tables", "_vocab_size")

    def __init__(
        self,
        mapping: Mapping[int, float],
        vocab_size: int,
        names: Mapping[int, str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._vocab_size = checked_size(vocab_size)
        pairs = sorted((value, token) for token, value in checked_mapping(mapping, self._vocab_size).items())
        distances = [right - left for (left, _), (right, _) in pairwise(pairs) if right > left]
        if not distances:
            raise ValueError(f"number tokens need at least two distinct float32 values; all are {pairs[0][0]:g}")
        if pairs[-1][0] - pairs[0][0] > LARGEST_SPAN:
            raise ValueError(
                f"number values must be within {LARGEST_SPAN:g} of each other, because the losses are float32; "
                f"got {pairs[0][0]:g} and {pairs[-1][0]:g}"
            )
        self._pairs = tuple((token, value) for value, token in pairs)
        self._names = {token: names[token] for token, _ in self._pairs} if names else {}
        self._notes = tuple(notes)
        self._distances = Distances(min(distances), pairs[-1][0] - pairs[0][0])
        self._tables: dict[torch.device, NumberTable] = {}
        self.to(CPU)

    @classmethod
    def from_mapping(cls, mapping: Mapping[int, float], vocab_size: int) -> NumberTokens:
        """Number tokens of any vocabulary, such as Regression Transformer tokens or bins.

        Args:
            mapping: token id -> finite value.
            vocab_size: V, the size of the logits' last dimension.

        Raises:
            TypeError: ``mapping`` is not a mapping, a token id is not an integer, or a value is not a real number.
            ValueError: an id is outside [0, V), a value does not fit float32, there are fewer than two distinct
                values, or they are more than 1.6e38 apart, too far for a float32 loss.
        """
        return cls(mapping, vocab_size)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, vocab_size: int | None = None, digits_only: bool = True, space_prefixed: bool = False
    ) -> NumberTokens:
        """The tokens whose whole text is a number: ASCII digits with at most one decimal point between them.

        Warns if some labels get no number loss: these options count less than half of the vocabulary's number tokens
        (Llama 3 has 10 single digits and 1,100 numbers of two or three), ``digits_only`` finds some of the ten digits
        but not all, or tokens are numbers that no option counts (``"##34"``, ``"<num_7>"``, values above 1.6e38).
        Tokens that cannot be labels do not matter: a tokenizer that can ``encode`` shows which forms it uses of some
        numbers. :meth:`describe` repeats the warnings and lists how many tokens other options would count.

        Args:
            tokenizer: any object with ``get_vocab()`` whose tokens are str or bytes, such as a ``transformers``
                tokenizer or ``tokenizers.Tokenizer``. It is not changed. Tokens with the same text stay separate.
            vocab_size: V, the size of the logits' last dimension, which models often pad beyond the tokenizer's size.
                Default: the number of ids of the tokenizer.
            digits_only: count only the digits 0 to 9, as in the paper's experiments; False also counts tokens such as
                ``"42"``, ``"007"`` and ``"3.14"``. ``NTLConfig(squash_factor=9)`` keeps the loss of such large
                distances on the scale of digits.
            space_prefixed: also count numbers with one mark of a leading space (``"Ġ7"``, ``"▁7"``). GPT-2 and T5 use
                such tokens for the start of a number after a space.

        Raises:
            TypeError: the tokenizer has no ``get_vocab``, its tokens are neither str nor bytes, or an id is not an int.
            ValueError: no token is a number, there are fewer than two distinct values, or an id is beyond
                ``vocab_size``.
        """
        if not callable(getattr(tokenizer, "get_vocab", None)):
            raise TypeError(f"tokenizer must have a get_vocab method; got {type(tokenizer).__name__}")
        options, vocab = (digits_only, space_prefixed), vocab_of(tokenizer)
        found, labels = numbers_in(vocab, *options), possible_labels(tokenizer, vocab)
        wider, uncounted = wider_options(labels, *options), never_counted(labels, *options)
        more = ", ".join(f"{option} counts {count}" for option, count in wider)
        ways = "; ".join([more or NO_OPTION_HELPS, *uncounted])
        if not found:
            kind = "digit" if digits_only else "number"
            raise ValueError(f"no {kind} token among the tokenizer's {len(vocab)} tokens; {ways}")
        size = checked_size(id_count(tokenizer, vocab) if vocab_size is None else vocab_size)
        beyond = [(text, token) for text, token in found if token >= size]
        if beyond:
            raise ValueError(
                f"{len(beyond)} number tokens have ids beyond vocab_size={size}: {examples(beyond)}; "
                "vocab_size must be the size of the logits' last dimension"
            )
        values = {token: float(without_mark(text)) for text, token in found}
        if len(set(values.values())) < 2:
            raise ValueError(f"number tokens need at least two distinct values; found {examples(found)}; {ways}")
        absent = ", ".join(f"{digit:g}" for digit in DIGITS if digit not in values.values())
        gaps = [f"digits without a token: {absent}"] if absent else []
        if gaps and digits_only:
            warnings.warn(f"{gaps[0]}; labels with them get no number loss{more and f' ({more})'}", stacklevel=2)
        for warning in [*most_left_out(count_numbers(labels, *options), wider), *uncounted]:
            warnings.warn(warning, stacklevel=2)
        notes = [*gaps, *uncounted, *([f"other options: {more}"] if more else [])]
        return cls(values, size, {token: text for text, token in found}, notes)

    @property
    def ids(self) -> Tensor:
        """int64 [K], sorted by value, then id; a copy on the CPU."""
        return torch.tensor([token for token, _ in self._pairs], dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """float32 [K], ascending; a copy on the CPU."""
        return torch.tensor([value for _, value in self._pairs], dtype=torch.float32, device="cpu")

    @property
    def lookup(self) -> Tensor:
        """int32 [V]: token id -> index in ``ids``, -1 for tokens that are not numbers; a copy on the CPU."""
        nowhere = torch.full((self._vocab_size,), -1, dtype=torch.int32, device="cpu")
        return nowhere.scatter(0, self.ids, torch.arange(len(self), dtype=torch.int32, device="cpu"))

    @property
    def vocab_size(self) -> int:
        """V, the size of the logits' last dimension."""
        return self._vocab_size

    @property
    def distances(self) -> Distances:
        """The smallest and the largest distance between two distinct values."""
        return self._distances

    @property
    def smallest_distance(self) -> float:
        """The smallest distance between two distinct values."""
        return self._distances.smallest

    @property
    def largest_distance(self) -> float:
        """The distance between the smallest and the largest value."""
        return self._distances.largest

    def is_number(self, labels: Tensor) -> Tensor:
        """Which labels are number tokens.

        Args:
            labels: [...] integers; values outside [0, V), such as -100, are not numbers.

        Returns:
            bool [...], on the labels' device.

        Raises:
            TypeError: the labels are not a tensor of integers.
        """
        if not isinstance(labels, Tensor) or not is_integral(labels):
            got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
            raise TypeError(f"labels must be a tensor of integers; got {got}")
        ids = labels.long()  # V may not fit narrower integers
        is_token = (ids >= 0) & (ids < self._vocab_size)
        return is_token & (self.table(labels.device).lookup[torch.where(is_token, ids, 0)] >= 0)

    def count(self, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Count the labels that are number tokens, for example to get ``num_numbers`` of a larger batch.

        Args:
            labels: [...] as for :meth:`is_number`.
            weights: [...] the weight of each label (the ``token_weights`` of the loss); default: 1.

        Returns:
            0-d, on the labels' device: int64, or with weights their sum in float32 (float64 for float64 weights).

        Raises:
            TypeError: the labels are not a tensor of integers, or the weights not a tensor of real numbers.
            ValueError: the weights have another shape or device.
        """
        is_number = self.is_number(labels)
        if weights is None:
            return is_number.sum()
        check_row_weights("weights", weights, labels)
        dtype = torch.float64 if weights.dtype == torch.float64 else torch.float32
        return torch.where(is_number, weights, 0).sum(dtype=dtype)

    def tokens_per_number(self, batches: Iterable[Tensor | Mapping[str, Any]], ignore_index: int = -100) -> float:
        """The number of labels that are not ignored per label that is a number token.

        Over the whole data set, ``NTLConfig(weight=0.3 * numbers.tokens_per_number(loader), mean_over="tokens")`` gives
        NTL the same weight as ``NTLConfig(weight=0.3)``, whose mean is over numbers.

        Args:
            batches: labels [...], or mappings with "labels", such as the batches of a data loader. A model that shifts
                its labels does not use the first label of each row: ``batch["labels"][..., 1:]`` are exact.
            ignore_index: the value of ignored labels.

        Raises:
            TypeError: labels are not a tensor of integers, or ``ignore_index`` is not an int.
            ValueError: a batch has no labels, no label is a number, or ``ignore_index`` does not fit int64.
        """
        check_ignore_index(ignore_index)
        tokens = numbers = 0
        for batch in batches:
            labels: Any = batch.get("labels") if hasattr(batch, "get") else batch
            if labels is None:
                raise ValueError(f"a batch has no labels; got the keys {', '.join(map(str, batch))}")
            is_number = self.is_number(labels)
            is_kept = labels.long() != ignore_index
            tokens += int(is_kept.sum())
            numbers += int((is_number & is_kept).sum())
        if numbers == 0:
            raise ValueError(f"none of {tokens} labels is a number token of {self!r}")
        return tokens / numbers

    def table(self, device: torch.device | str) -> NumberTable:
        """The tables on ``device``. The first call for a device copies them, later calls reuse the copy.

        All callers share these tensors: do not write to them. Under ``FakeTensorMode`` they are fake and not cached.

        Raises:
            RuntimeError: a caller wrote to the tables.
        """
        device = torch.device(device)
        table = self._tables.get(device)
        if torch.compiler.is_compiling():  # tensors of a trace are not valid after it, so do not cache them
            return copied(table or self._tables.get(CPU) or self._built(), device)
        if table is None or is_faking():
            with torch.inference_mode(False):  # so that a table first used in evaluation also works in training
                table = copied(self._built(), device)
            # Keyed by the tensors' device: "cuda" means another device after torch.cuda.set_device.
            return self._tables.setdefault(table.ids.device, table) if is_lasting(table.ids) else table
        if table.ids._version or table.values._version or table.lookup._version:
            raise RuntimeError(
                f"the tables of {self!r} on {device} are shared by all callers, but one of them wrote to the tables"
            )
        return table

    def to(self, device: torch.device | str) -> NumberTokens:
        """Copy the tables to ``device`` and return self (the object itself is not tied to a device).

        Call it before ``torch.compile`` or the capture of a CUDA graph, which otherwise copy them at every call.
        """
        self.table(device)
        return self

    def _built(self) -> NumberTable:
        return NumberTable(self.ids.int(), self.values, self.lookup)

    def describe(self, most: int = 12) -> str:
        """A summary to check before training: how many numbers there are, their range, and the first values.

        Args:
            most: how many values to list, each with its tokens; -1 lists all.

        Raises:
            ValueError: ``most`` is not an int, or less than -1.
        """
        if isinstance(most, bool) or not isinstance(most, Integral) or most < -1:
            raise ValueError(f"most must be an int of at least 0, or -1 for all; got {most!r}")
        groups = [(value, [token for token, _ in pairs]) for value, pairs in groupby(self._pairs, itemgetter(1))]
        most = len(groups) if most == -1 else most
        lines = [repr(self), *(f"  {value:g}  {self._listed(tokens)}" for value, tokens in groups[:most])]
        if len(groups) > most:
            lines.append(f"  ... and {len(groups) - most} more values")
        shared = sum(len(tokens) > 1 for _, tokens in groups)
        if shared:
            lines.append(f"  values with several tokens: {shared}")
        return "\n".join([*lines, *(f"  {note}" for note in self._notes)])

    def _listed(self, tokens: list[int], most: int = 4) -> str:
        named = [f"id {token} {self._names[token]!r}" if self._names else f"id {token}" for token in tokens[:most]]
        return ", ".join(named) + (f" and {len(tokens) - most} more" if len(tokens) > most else "")

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        (_, low), (_, high) = self._pairs[0], self._pairs[-1]
        return f"NumberTokens({len(self)} tokens worth {low:g} to {high:g}, vocab_size={self._vocab_size})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumberTokens):
            return NotImplemented
        return (self._pairs, self._vocab_size) == (other._pairs, other._vocab_size)

    def __hash__(self) -> int:
        return hash((self._pairs, self._vocab_size))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self._pairs), self._vocab_size, self._names, self._notes)

    def __copy__(self) -> NumberTokens:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NumberTokens:
        return self


def copied(table: NumberTable, device: torch.device) -> NumberTable:
    """``table`` on ``device``."""
    return NumberTable(*(part.to(device) for part in table))


def is_faking() -> bool:
    """Whether a ``FakeTensorMode`` is active, in which real tensors are refused."""
    return torch._C._len_torch_dispatch_stack() > 0 and torch._guards.active_fake_mode() is not None


def is_lasting(tensor: Tensor) -> bool:
    """Whether a tensor can be cached: it is neither fake nor wrapped by a transform such as ``torch.func.grad``."""
    return type(tensor) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
