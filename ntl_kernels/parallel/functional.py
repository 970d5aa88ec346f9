"""The losses of a vocabulary split over the ranks of a group: check the arguments and call :mod:`.shards`."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ProcessGroup

from ..checks import check_linear, check_tensor, checked_problem, explains_options
from ..config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from ..dispatch import as_result
from ..problem import RowInputs
from ..spec import spec_of
from ..tokens import NumberTokens
from .collectives import checked_group
from .split import Split, loss_of_head_shard, loss_of_shard


@explains_options
def vocab_parallel_cross_entropy_ntl(
    logits_shard: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    group: ProcessGroup,
    vocab_start: int,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    number_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    inplace: bool = False,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """:func:`ntl_kernels.cross_entropy_ntl` of logits whose columns are split over the ranks of a group.

    All ranks must call it together with the same labels, weights and options. All get the same loss, bit for bit. Each
    rank sends 8 float32 numbers per row in the forward pass, independent of V and K (with ``label_sigma`` K more), and
    nothing in the backward pass. A short header detects ranks that were called with different arguments. It cannot
    detect ranks that send different amounts of data, because only some of them use ``label_smoothing`` or
    ``label_sigma`` or because they have different numbers of rows: then gloo aborts, or the ranks wait for each other
    until the group's timeout.

    Args:
        logits_shard: [B..., W] this rank's columns of the logits; W may differ between ranks and may be 0.
        labels: [B...] token ids of the whole vocabulary, the same on all ranks.
        numbers: the number tokens of the whole vocabulary.
        group: the ranks that hold the columns of the same rows.
        vocab_start: the index of this rank's first column. Together the ranks' columns must cover [0, V), in any order
            of the ranks.
        config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale, token_weights,
            number_weights, num_tokens, num_numbers, inplace, return_parts, backend: as for
            :func:`ntl_kernels.cross_entropy_ntl`.

    Returns:
        The loss, float32 (float64 for float64 logits): 0-d, or [B...] for reduction "none".

    Raises:
        TypeError, ValueError, IndexError: as for :func:`ntl_kernels.cross_entropy_ntl`. A ValueError is also raised, on
            all ranks, if the ranks' columns do not cover the vocabulary exactly once or their arguments differ. On a
            GPU, where this check would wait for the device, the loss and its gradient are NaN instead, unless
            NTL_KERNELS_VALIDATE=1 is set.
        RuntimeError: under a transform of ``torch.func`` or forward-mode derivatives, or if another rank failed.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8 * group.size())
        >>> logits_shard, labels = torch.zeros(4, 8), torch.tensor([2, 7, 1, 5])
        >>> loss = vocab_parallel_cross_entropy_ntl(
        ...     logits_shard, labels, numbers, group=group, vocab_start=8 * group.rank()
        ... )
    """
    check_tensor("logits_shard", logits_shard)
    split = checked_split(numbers, vocab_start, group)
    spec = spec_of(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction)
    rows = RowInputs(labels, token_weights, number_weights)
    problem = checked_problem(logits_shard, rows, numbers, config, spec, num_tokens, num_numbers, backend)
    return as_result(loss_of_shard(logits_shard, problem, split, inplace), problem, return_parts)


@explains_options
def vocab_parallel_linear_cross_entropy_ntl(
    hidden: Tensor,
    weight_shard: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    group: ProcessGroup,
    vocab_start: int,
    bias_shard: Tensor | None = None,
    reduce_hidden_grad: bool = True,
    chunk_size: int | None = None,
    skip_ignored: bool = True,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    number_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """:func:`ntl_kernels.linear_cross_entropy_ntl` with a head whose rows are split over the ranks of a group.

    Each rank stores only the logits of its own columns, for one chunk of rows at a time. The statistics of a chunk are
    sent while the logits of the next one are computed, so two chunks of half the size exist at a time. All ranks must
    use the same chunk size and have the same number of rows that are not ignored; otherwise they send different
    amounts of data (see :func:`vocab_parallel_cross_entropy_ntl`).

    Args:
        hidden: [B..., H] the same on all ranks.
        weight_shard: [W, H] this rank's rows of the head; W may differ between ranks and may be 0.
        labels, numbers, group, vocab_start: as for :func:`vocab_parallel_cross_entropy_ntl`.
        bias_shard: [W] this rank's part of the bias.
        reduce_hidden_grad: sum the gradient of the hidden states over the ranks, once, in float32. With False the
            gradient is this rank's share, for callers that sum it themselves (such as a column-parallel input with an
            all-reduce in its backward pass).
        chunk_size: rows whose logits are stored at a time, the same on all ranks.
        skip_ignored: leave ignored rows out of the matrix products. Finding them waits for the GPU once. It has no
            effect in a trace or during the capture of a CUDA graph.
        config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale, token_weights,
            number_weights, num_tokens, num_numbers, return_parts, backend: as for
            :func:`ntl_kernels.cross_entropy_ntl`.

    Returns:
        The loss, float32 (float64 for float64 hidden states): 0-d, or [B...] for reduction "none".

    Raises:
        TypeError, ValueError, IndexError, RuntimeError: as for :func:`vocab_parallel_cross_entropy_ntl`.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8 * group.size())
        >>> hidden, weight_shard, labels = torch.zeros(4, 16), torch.zeros(8, 16), torch.tensor([2, 7, 1, 5])
        >>> loss = vocab_parallel_linear_cross_entropy_ntl(
        ...     hidden, weight_shard, labels, numbers, group=group, vocab_start=8 * group.rank()
        ... )
    """
    check_linear(hidden, weight_shard, bias_shard, chunk_size)
    split = checked_split(numbers, vocab_start, group, reduce_hidden_grad)
    spec = spec_of(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction)
    rows = RowInputs(labels, token_weights, number_weights)
    problem = checked_problem(hidden, rows, numbers, config, spec, num_tokens, num_numbers, backend)
    result = loss_of_head_shard(hidden, weight_shard, bias_shard, problem, split, chunk_size, skip_ignored)
    return as_result(result, problem, return_parts)


def checked_split(numbers: object, vocab_start: object, group: object, sums_hidden: bool = True) -> Split:
    """The position of the rank's columns; raise for arguments of the wrong type."""
    if not isinstance(numbers, NumberTokens):
        raise TypeError(f"numbers must be NumberTokens; got {type(numbers).__name__}")
    if isinstance(vocab_start, bool) or not isinstance(vocab_start, int):
        raise TypeError(f"vocab_start must be an int, the index of this rank's first column; got {vocab_start!r}")
    return Split(vocab_start, checked_group(group), sums_hidden)
