"""Groups of kernel parameters. A field is a pointer, an integer, a float or None.

Triton recompiles a kernel when an integer in a group changes between 1, divisible by 16, and neither. Therefore groups
contain only integers that a model fixes. Integers that change from batch to batch are separate, unspecialised
parameters with the same names in all kernels.
"""

from typing import Any, NamedTuple

VARYING = (
    "logits_batch",  # from one batch entry to the next, in elements; the distance between rows is fixed by a model
    "gradient_batch",
    "length",  # T
    "vocab_size",  # V
    "row_count",  # N
    "rank_count",  # R
    "num_tokens",  # the denominator of CE: a float, or a pointer to a number of any dtype that is read on the device
    "num_numbers",  # that of NTL, likewise
    "ntl_weight",  # lambda, likewise
    "upstream",  # [N], or 0-d with a stride of 0
    "upstream_stride",
)
"""The parameters for which no kernel is specialised."""


class Labels(NamedTuple):
    """Labels and weights of N rows."""

    tokens: Any  # int32 or int64 [N]
    row_weights: Any  # w, float32 [N], or None for 1
    number_weights: Any  # u, likewise
    ignore_index: Any


class Numbers(NamedTuple):
    """The number tokens."""

    ids: Any  # int32 [K]
    value: Any  # not "values", which is an attribute of Triton's tuples
    """float32 [K], ascending within each group"""
    lookup: Any  # int32 [V]: index into ``ids`` or -1
    groups: Any  # float32 [K, 5]: the Group of each token; None if there is one
    size: Any  # K
    cost_offset: Any  # this and the next: the cost line, and
    cost_slope: Any
    worst_loss: Any  # if there is one group


class Scalars(NamedTuple):
    """The floats of a LossSpec, under their names there, unless noted otherwise.

    x = outer * u, where u = tanh(inner * z) with softcap and u = z without.
    """

    inner: Any  # logit_scale / softcap
    outer: Any  # softcap, or logit_scale without one
    logit_scale: Any
    factor: Any  # outer * log2(e): what u is multiplied by to give x in units of log2(e)
    coarse_factor: Any  # the largest power of two up to ``factor``
    has_cross_entropy: Any  # 1 or 0
    label_smoothing: Any
    z_loss: Any
    rise: Any  # squash_factor - 1, or 0 without one
    label_sigma: Any
    label_temperature: Any
    label_share: Any
    huber_delta: Any


class Options(NamedTuple):
    """Compile-time options of the loss: fields of a LossSpec, unless noted otherwise. No field is a float, so that a
    new value causes no recompilation."""

    kind: str
    """One of config.KINDS, or "cumulative": wasserstein with label_sigma."""
    reweigh: bool
    label_smoothing: bool  # whether there is any
    softcap: int  # the kind of tanh; see :mod:`.softcap`.


class Tile(NamedTuple):
    """Compile-time options of how a kernel walks a row."""

    threads: int
    vector: int  # columns in 16 bytes
    unroll: int  # vectors per thread between two updates of its running maximum
    keep: int  # vectors per thread that stay in registers from the first walk over a row to the second
    whole: bool  # whether these vectors are the whole row
    aligned: bool  # whether every row starts at a multiple of 16 bytes and has a multiple of 16 bytes
    widens: bool  # whether bfloat16 is converted to float32 by assembly of NVIDIA GPUs, in pairs
    stays: bool  # whether the gradient is left in the L2 cache, which it fits
