"""What the kernels' parameters are grouped into. A field is a pointer, an integer, a float or None.

Triton compiles a kernel anew when an integer in a group becomes 1, or divisible by 16, or neither. So only integers
that a model fixes are in groups; those that change from batch to batch are parameters of their own, unspecialised, and
have the same names in all kernels.
"""

from typing import Any, NamedTuple

VARYING = (
    "logits_stride",  # from one batch entry to the next, as is
    "gradient_stride",
    "length",  # T
    "vocab_size",  # V
    "row_count",  # N
    "rank_count",  # R
    "num_tokens",  # as are the next two: see Shares
    "num_numbers",
    "ntl_weight",
    "upstream",  # [N], or 0-d with a stride of 0
    "upstream_stride",
)
"""The parameters that no kernel is specialised for."""


class Matrix(NamedTuple):
    """[B, T, V] in memory: rows of contiguous columns, each ``row_stride`` after the one before it."""

    pointer: Any
    row_stride: Any


class Labels(NamedTuple):
    """Of N rows."""

    ids: Any
    """int32 or int64 [N]"""
    weights: Any
    """float32 [N], or None for 1"""
    ignore_index: Any


class Numbers(NamedTuple):
    """The number tokens."""

    ids: Any
    """int32 [K]"""
    value: Any  # not "values", which Triton's tuples have already
    """float32 [K], ascending"""
    lookup: Any
    """int32 [V]: index into ``ids`` or -1"""
    size: Any
    """K"""


class Fields(NamedTuple):
    """[9, N] in memory: what the rows leave behind, in the order of ``fields``."""

    pointer: Any
    """float32"""
    stride: Any
    """From one field to the next: N."""


class Shares(NamedTuple):
    """What the two terms of the loss weigh. Each is a float, or a pointer to one number of any dtype that is read on
    the device."""

    num_tokens: Any
    """Divides cross-entropy; for ``finish_kernel`` None means the sum of the weights."""
    num_numbers: Any
    """Divides NTL, likewise."""
    ntl_weight: Any
    """lambda"""


class Transform(NamedTuple):
    """x = outer * u, where u = tanh(inner * z) with softcap and u = z without."""

    inner: Any
    """logit_scale / softcap"""
    outer: Any
    """softcap, or logit_scale without one"""
    scale: Any
    """logit_scale"""
    factor: Any
    """outer * log2(e): what u is multiplied by to give x in units of log2(e)"""
    coarse_factor: Any
    """The largest power of two up to ``factor``."""


class Scalars(NamedTuple):
    """The floats of a LossSpec."""

    ce_weight: Any
    label_smoothing: Any
    z_loss: Any
    cost_offset: Any
    cost_slope: Any
    label_sigma: Any
    huber_delta: Any
    worst_loss: Any


class Options(NamedTuple):
    """What a kernel is compiled for: the loss. No value of a float, so that a new one does not recompile."""

    kind: str
    """One of config.KINDS, or "cumulative": wasserstein with label_sigma."""
    reweigh: bool
    smoothing: bool
    softcap: int
    """Which tanh; see :mod:`.softcap`."""


class Tile(NamedTuple):
    """What a kernel is compiled for: how it walks a row."""

    threads: int
    vector: int
    """Columns in 16 bytes."""
    unroll: int
    """Vectors per thread between two updates of its running maximum."""
    keep: int
    """Vectors per thread that stay in registers from the first walk over a row to the second."""
    whole: bool
    """They are the whole row."""
    aligned: bool
    """Every row starts at a multiple of 16 bytes and is one long."""
