"""`NumberTokens`, and its tables that the backends read."""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, pairwise
from numbers import Integral
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .texts import (
    Options,
    examples,
    length_of,
    mapping_of_texts,
    numbers_in,
    size_for,
    splits,
    verdict,
    vocab_of,
    without_mark,
)
from .values import (
    LARGEST_SPAN,
    check_ignore_index,
    check_integers,
    check_row_weights,
    checked_mapping,
    checked_size,
)

CPU = torch.device("cpu")


class Group(NamedTuple):
    """What is known about a number token's group: the columns of ``NumberTable.groups``."""

    start: Any  # the index of the group's first token in ``ids``
    size: Any  # how many tokens it has
    unit: Any  # what its values are multiplied by for ``number_mae``
    nearest: Any  # the smallest and
    furthest: Any  # the largest distance between two of its distinct values; 0 if all are equal


class NumberTable(NamedTuple):
    """The tensors of a :class:`NumberTokens` on one device, in the form the backends read."""

    ids: Tensor  # int32 [K], sorted by group, value and id
    values: Tensor  # float32 [K]
    lookup: Tensor  # int32 [V]: the index of each token in ``ids``, -1 for tokens that are not numbers
    groups: Tensor | None  # float32 [K, 5]: the :class:`Group` of each token in ``ids``; None for one of unit 1
    width: int  # the size of the largest group
    key: int = 0  # a hash of the number tokens, equal in all processes
    first_id: int = -1  # the first of ``ids`` if they are consecutive and ascending, as bins usually are; else -1

    @property
    def columns(self) -> slice | Tensor:
        """The columns of the number tokens: a slice costs less than their ids."""
        return self.ids if self.first_id < 0 else slice(self.first_id, self.first_id + self.ids.shape[0])

    def groups_of(self, index: Tensor, dtype: torch.dtype) -> Group | None:
        """The groups of the number tokens ``index`` [n], with fields [n, 1]; None if there is one group."""
        return None if self.groups is None else Group(*self.groups.to(dtype)[index, :, None].unbind(1))

    def to(self, device: torch.device) -> NumberTable:
        """The tables on a device."""
        return NumberTable(*(part.to(device) if isinstance(part, Tensor) else part for part in self))  # type: ignore[arg-type]


class NumberTokens:
    """The number tokens of a vocabulary and their values. Immutable; copied to each device once.

    Build one with :meth:`from_tokenizer`, :meth:`from_texts`, :meth:`from_mapping` or :meth:`from_groups`. Two objects
    are equal if their numbers and vocabulary sizes are. Pickles do not contain the tables on devices.

    Args:
        groups, vocab_size: see :meth:`from_groups`; a mapping is one group.
        names, notes: the tokens' strings and further lines for :meth:`describe`.
        units: what the values of each group are multiplied by for ``number_mae``; default: 1.

    Values are rounded to float32, the dtype of the losses; two that become equal are one value with two tokens.
    """

    __slots__ = ("__weakref__", "_groups", "_hash", "_key", "_names", "_notes", "_pairs", "_tables", "_vocab_size")

    def __init__(
        self,
        groups: Mapping[int, float] | Sequence[Mapping[int, float]],
        vocab_size: int,
        names: Mapping[int, str] | None = None,
        notes: Sequence[str] = (),
        units: Sequence[float] | None = None,
    ) -> None:
        self._vocab_size = checked_size(vocab_size)
        given = [groups] if isinstance(groups, Mapping) else list(groups)
        checked = [checked_mapping(mapping, self._vocab_size) for mapping in given]
        shared = [token for token, count in Counter(chain.from_iterable(checked)).items() if count > 1]
        if shared:
            raise ValueError(f"a token must be in one group; these are in several: {sorted(shared)[:5]}")
        found: list[Group] = []
        pairs: list[tuple[int, float]] = []
        for mapping, unit in zip(checked, [1.0] * len(checked) if units is None else units, strict=True):
            if not 0 < unit <= LARGEST_SPAN:
                raise ValueError(f"units must be above 0 and at most {LARGEST_SPAN:g}; got {unit!r}")
            values = sorted(set(mapping.values()))
            low, high = values[0], values[-1]
            if high - low > LARGEST_SPAN:
                raise ValueError(
                    f"number values must be within {LARGEST_SPAN:g} of each other, because the losses are float32; "
                    f"got {low:g} and {high:g}"
                )
            nearest = min((right - left for left, right in pairwise(values)), default=0.0)
            found.append(Group(len(pairs), len(mapping), unit, nearest, high - low))
            pairs += sorted(mapping.items(), key=itemgetter(1, 0))
        if not any(group.furthest for group in found):
            several = "each group has only one" if found else "there is no group"
            reason = f"all are {pairs[0][1]:g}" if len(found) == 1 else several
            raise ValueError(f"number tokens need at least two distinct float32 values; {reason}")
        self._groups, self._pairs = tuple(found), tuple(pairs)
        self._names = {token: names[token] for token, _ in pairs} if names else {}
        self._notes = tuple(notes)
        self._key = self._pairs, self._groups, self._vocab_size
        self._hash = zlib.crc32(repr(self._key).encode())
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

        Examples:
            >>> bins = {500 + bin: 0.5 * bin for bin in range(20)}
            >>> NumberTokens.from_mapping(bins, vocab_size=520)
            NumberTokens(20 tokens worth 0 to 9.5, vocab_size=520)
        """
        return cls([mapping], vocab_size)

    @classmethod
    def from_groups(cls, groups: Sequence[Mapping[int, float]], vocab_size: int) -> NumberTokens:
        """Number tokens of several kinds, such as coordinates and digits, or velocity and duration in music.

        A label is compared only with its own group: softmax, expected value, probability, all distances and the
        options that depend on them are those of the group. A label alone in its group has a loss of 0.

        Args:
            groups: for each group, token id -> finite value. No token may be in two groups.
            vocab_size: V, the size of the logits' last dimension.

        Raises:
            TypeError, ValueError: as for :meth:`from_mapping`; a token is in two groups; no group has two values.

        Examples:
            >>> digits, seconds = {10 + digit: digit for digit in range(10)}, {20 + step: step / 4 for step in range(8)}
            >>> NumberTokens.from_groups([digits, seconds], vocab_size=32)
            NumberTokens(18 tokens in 2 groups, vocab_size=32)
        """
        if isinstance(groups, Mapping) or not isinstance(groups, Sequence):
            raise TypeError(f"groups must be a sequence of mappings; got {type(groups).__name__}")
        return cls(groups, vocab_size)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        vocab_size: int | None = None,
        digits_only: bool = True,
        space_prefixed: bool = False,
        group_by: str | None = "length",
        *,
        model: Any = None,
    ) -> NumberTokens:
        """The tokens whose whole text is a number: ASCII digits with at most one decimal point between them.

        Warns if some labels get no number loss: these options count less than half of the vocabulary's number tokens
        (Llama 3 has 10 single digits and 1,100 numbers of two or three), ``digits_only`` finds some of the ten digits
        but not all, or tokens are numbers that no option counts (``"##34"``, ``"<num_7>"``, values above 1.6e38).
        Number tokens that can never be labels are disregarded: a tokenizer with ``encode`` is tested on sample numbers
        to find the forms it uses. :meth:`describe` says how many tokens do not count, and which options count them.

        Args:
            tokenizer: any object with ``get_vocab()`` whose tokens are str or bytes, such as a ``transformers``
                tokenizer or ``tokenizers.Tokenizer``. It is not changed. Tokens with the same text stay separate.
            vocab_size: V, the size of the logits' last dimension, which models often pad beyond the tokenizer's size.
                Default: that of ``model``, or the number of ids of the tokenizer.
            digits_only: count only the digits 0 to 9, as in the paper's experiments; False also counts tokens such as
                ``"42"``, ``"007"`` and ``"3.14"``.
            space_prefixed: also count numbers with one mark of a leading space (``"Ġ7"``, ``"▁7"``). GPT-2 and T5 use
                such tokens for the start of a number after a space.
            group_by: "length" compares a label only with tokens of the same number of digits (before and after a
                point), in units of their first digit: "812" is 8.12, "42" is 4.2, so one step of the first digit costs
                as much as one step of a single digit. None compares all number tokens by value.
            model: instead of ``vocab_size``, a model with ``get_output_embeddings()``, such as one of ``transformers``
                with its head, also wrapped by PEFT. V is the number of rows of the head now: build the numbers after
                ``resize_token_embeddings``.

        Raises:
            TypeError: the tokenizer has no ``get_vocab``, its tokens are neither str nor bytes, an id is not an int, a
                flag not a bool, or the model has no ``get_output_embeddings``.
            ValueError: no token is a number, there are fewer than two distinct values, an id is beyond ``vocab_size``
                or has two values, the model has no head, or both ``vocab_size`` and ``model`` are given.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> tokenizer = Tokenizer(models.WordLevel({str(digit): digit for digit in range(10)} | {"km": 10}))
            >>> NumberTokens.from_tokenizer(tokenizer, vocab_size=16)  # padded to 16
            NumberTokens(10 tokens worth 0 to 9, vocab_size=16)
            >>> NumberTokens.from_tokenizer(tokenizer, model=model)  # whose head has 97 rows
            NumberTokens(10 tokens worth 0 to 9, vocab_size=97)
        """
        if group_by not in (None, "length"):
            raise ValueError(f'group_by must be "length" or None; got {group_by!r}')
        options, vocab = Options(digits_only, space_prefixed), vocab_of(tokenizer)
        for name, flag in options._asdict().items():
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be a bool; got {flag!r}")
        found, judged = numbers_in(vocab, options), verdict(tokenizer, vocab, options)
        notes = [judged.words, *judged.uncounted]
        told = " ".join(notes)
        if not found:
            kind = "digit" if digits_only else "number"
            raise ValueError(f"no {kind} token among the tokenizer's {len(vocab)} tokens. {told}")
        size = size_for(vocab_size, model, tokenizer, vocab)
        beyond = [(text, token) for text, token in found if token >= size]
        if beyond:
            raise ValueError(
                f"{len(beyond)} number tokens have ids beyond vocab_size={size}: {examples(beyond)}; "
                "vocab_size must be the size of the logits' last dimension"
            )
        values = {token: float(without_mark(text)) for text, token in found}
        if len(values) < len(found):
            raise ValueError(f"number tokens must have ids of their own; got {examples(found)}")
        if len(set(values.values())) < 2:
            raise ValueError(f"number tokens need at least two distinct values; found {examples(found)}. {told}")
        lacks_digits = digits_only and not {*range(10)} <= set(values.values())
        for warning in notes if lacks_digits or judged.most > 2 * judged.counted else judged.uncounted:
            warnings.warn(warning, stacklevel=2)
        names = {token: text for text, token in found}
        lengths = sorted({length_of(text) for text, _ in found})
        group_of = {token: lengths.index(length_of(text)) + 1 if group_by else 1 for text, token in found}
        notes[1:1] = splits(tokenizer, vocab, group_of)
        if group_by is None or len(lengths) == 1:
            return cls(values, size, names, notes)
        units = [10.0 ** min(before - 1, 38) for before, _ in lengths]  # float32 holds no larger power of ten
        groups = [
            {token: values[token] / unit for text, token in found if length_of(text) == length}
            for length, unit in zip(lengths, units, strict=True)
        ]
        return cls(groups, size, names, notes, units)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str] | Mapping[str, float],
        tokenizer: Any,
        vocab_size: int | None = None,
        *,
        model: Any = None,
    ) -> NumberTokens:
        """The tokens of a few written forms, such as the scores of a judge. They are compared by value, as one group.

        Args:
            texts: the numbers as they are written, or text -> finite value: ``{"poor": 1, "good": 2}``. Each text must
                be one token. ``" 7"`` is the token of 7 after a space: ``"Ġ7"``, or ``"7"`` where the space is a token
                of its own. Some tokenizers, such as T5's, put a space before every text: there, ``"7"`` and ``" 7"``
                are both ``"▁7"``.
            tokenizer: as for :meth:`from_tokenizer`, also with ``encode()``. It is not changed.
            vocab_size, model: as for :meth:`from_tokenizer`.

        Raises:
            TypeError: as for :meth:`from_tokenizer`, or a text is not a str.
            ValueError: a text is not one token (the error shows how it is split), is cut off by the tokenizer's
                truncation, is the token of another text, or is no number and has no value; the model has no head, or
                ``vocab_size`` is also given; or as for :meth:`from_mapping`.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> tokenizer = Tokenizer(models.WordLevel({"Score:": 0} | {str(score): score for score in range(1, 11)}))
            >>> NumberTokens.from_texts([str(score) for score in range(1, 11)], tokenizer)
            NumberTokens(10 tokens worth 1 to 10, vocab_size=11)
        """
        vocab = vocab_of(tokenizer)
        names = {token: text for text, token in vocab}
        return cls(mapping_of_texts(texts, tokenizer, names), size_for(vocab_size, model, tokenizer, vocab), names)

    @property
    def ids(self) -> Tensor:
        """int64 [K], sorted by group, value and id; a copy on the CPU."""
        return torch.tensor([token for token, _ in self._pairs], dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """float32 [K], ascending within each group; a copy on the CPU."""
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
    def groups(self) -> tuple[Group, ...]:
        """The groups in the order of ``ids``, with their sizes and distances."""
        return self._groups

    def is_number(self, labels: Tensor) -> Tensor:
        """Which labels are number tokens.

        Args:
            labels: [B...] integers; values outside [0, V), such as -100, are not numbers.

        Returns:
            bool [B...], on the labels' device.

        Raises:
            TypeError: the labels are not a tensor of integers.

        Examples:
            >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
            >>> numbers.is_number(torch.tensor([2, 7, -100]))
            tensor([ True, False, False])
        """
        check_integers("labels", labels)
        ids = labels.long()  # V may not fit narrower integers
        is_token = (ids >= 0) & (ids < self._vocab_size)
        return is_token & (self.table(labels.device).lookup[torch.where(is_token, ids, 0)] >= 0)

    def count(self, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Count the labels that are number tokens, for example to get ``num_numbers`` of a larger batch.

        Args:
            labels: [B...] as for :meth:`is_number`.
            weights: [B...] the weight of each label (``token_weights * number_weights`` of the loss); default: 1.

        Returns:
            0-d, on the labels' device: int64, or with weights their sum in float32 (float64 for float64 weights).

        Raises:
            TypeError: the labels are not a tensor of integers, or the weights not a tensor of real numbers.
            ValueError: the weights have another shape or device.

        Examples:
            >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
            >>> numbers.count(torch.tensor([2, 7, 1, -100]))
            tensor(2)
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
            batches: labels [B...], or mappings with "labels", such as the batches of a data loader, and perhaps
                "number_weights" [B...], by which numbers are counted. A model that shifts its labels does not use the
                first label of each row: ``batch["labels"][..., 1:]`` are exact.
            ignore_index: the value of ignored labels.

        Raises:
            TypeError: labels are not a tensor of integers, or ``ignore_index`` is not an int.
            ValueError: a batch has no labels, no label is a number, or ``ignore_index`` does not fit int64.

        Examples:
            >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
            >>> numbers.tokens_per_number([torch.tensor([2, 7, 7, -100]), torch.tensor([7, 1, 7])])
            3.0
        """
        check_ignore_index(ignore_index)
        tokens, numbers = 0, 0.0
        for batch in batches:
            labels = labels_of(batch)
            is_number = self.is_number(labels)
            is_kept = labels.long() != ignore_index
            tokens += int(is_kept.sum())
            weights = batch.get("number_weights") if hasattr(batch, "get") else None
            numbers += self.count(labels.long().where(is_number & is_kept, -1), weights).item()
        if not numbers > 0:
            raise ValueError(f"none of {tokens} labels is a number token of {self!r}")
        return tokens / numbers

    def table(self, device: torch.device | str) -> NumberTable:
        """The tables on ``device``. The first call for a device copies them, later calls reuse the copy.

        All callers share these tensors, so do not write to them. Under ``FakeTensorMode`` they are fake and not cached.

        Raises:
            RuntimeError: a caller wrote to the tables.
        """
        device = torch.device(device)
        table = self._tables.get(device)
        if torch.compiler.is_compiling():  # tensors of a trace are not valid after it, so do not cache them
            return (table or self._tables.get(CPU) or self._built()).to(device)
        # A FakeTensorMode refuses real tensors.
        is_faking = torch._C._len_torch_dispatch_stack() > 0 and torch._guards.active_fake_mode() is not None
        if table is None or is_faking:
            with torch.inference_mode(False):  # so that a table first used in evaluation also works in training
                table = self._built().to(device)
            if type(table.ids) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(table.ids):
                return table  # of tensors that are fake, or wrapped by a transform such as torch.func.grad
            # Keyed by the tensors' device: "cuda" means another device after torch.cuda.set_device.
            return self._tables.setdefault(table.ids.device, table)
        if any(part._version for part in table if isinstance(part, Tensor)):
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
        width, groups = max(group.size for group in self._groups), None
        if len(self._groups) > 1 or self._groups[0].unit != 1:
            rows = [group for group in self._groups for _ in range(group.size)]
            groups = torch.tensor(rows, dtype=torch.float32, device="cpu")
        ids = [token for token, _ in self._pairs]
        first = ids[0] if ids == list(range(ids[0], ids[0] + len(ids))) else -1
        return NumberTable(self.ids.int(), self.values, self.lookup, groups, width, self._hash, first)

    def describe(self, most: int = 12) -> str:
        """A summary to check before training: how many number tokens there are and their range; after
        :meth:`from_tokenizer`, whether they are all that can be labels and how numbers are split; the first values.

        Args:
            most: how many values to list, each with its tokens; -1 lists all.

        Raises:
            ValueError: ``most`` is not an int, or less than -1.
        """
        if isinstance(most, bool) or not isinstance(most, Integral) or most < -1:
            raise ValueError(f"most must be an int of at least 0, or -1 for all; got {most!r}")
        lines = [repr(self), *(f"  {note}" for note in self._notes)]
        for number, group in enumerate(self._groups, 1):
            pairs = self._pairs[group.start :][: group.size]
            unit = "" if group.unit == 1 else f", in units of {group.unit:g}"
            if len(self._groups) > 1 or unit:
                lines.append(f"  group {number}: {group.size} tokens worth {span_of(pairs)}{unit}")
            values = [(value, [token for token, _ in same]) for value, same in groupby(pairs, itemgetter(1))]
            shown = len(values) if most == -1 else most
            for value, tokens in values[:shown]:
                named = [f"id {token} {self._names[token]!r}" if self._names else f"id {token}" for token in tokens[:4]]
                rest = f" and {len(tokens) - 4} more" if len(tokens) > 4 else ""
                lines.append(f"  {value:g}  {', '.join(named)}{rest}")
            if len(values) > shown:
                lines.append(f"  ... and {len(values) - shown} more values")
            if shared := sum(len(tokens) > 1 for _, tokens in values):
                lines.append(f"  values with several tokens: {shared}")
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        kinds = f"in {len(self._groups)} groups" if len(self._groups) > 1 else f"worth {span_of(self._pairs)}"
        return f"NumberTokens({len(self)} tokens {kinds}, vocab_size={self._vocab_size})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumberTokens):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        groups = [dict(self._pairs[group.start :][: group.size]) for group in self._groups]
        units = [group.unit for group in self._groups]
        return type(self), (groups, self._vocab_size, self._names, self._notes, units)

    def __copy__(self) -> NumberTokens:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NumberTokens:
        return self


def labels_of(batch: Tensor | Mapping[str, Any]) -> Any:
    """The labels of a batch, or the batch if it consists of labels alone."""
    labels: Any = batch.get("labels") if hasattr(batch, "get") else batch
    if labels is None:
        raise ValueError(f"a batch has no labels; got the keys {', '.join(map(str, batch))}")
    return labels


def span_of(pairs: Sequence[tuple[int, float]]) -> str:
    """The range of the values of sorted (token, value) pairs, in words."""
    (_, low), (_, high) = pairs[0], pairs[-1]
    return f"{low:g} to {high:g}" if low < high else f"{low:g}"
