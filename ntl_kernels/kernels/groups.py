"""What a row needs to know about the group of number tokens that its label is in (docs, Mathematics, Groups)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..spec import WORST_FACTOR
from ..tokens import Group
from .numbers import SOFT_LABELS, value_loss
from .rows import divide, load_named, names_in

GROUP = tl.constexpr(Group._fields)
WORST = tl.constexpr(WORST_FACTOR)


class OwnNumbers(NamedTuple):
    """The number tokens of a label's group. No field may be None, which Triton 3.4 cannot return."""

    ids: Any
    value: Any
    size: Any
    index: Any  # the label's, -1 outside number rows
    unit: Any  # of the values, for ``absolute_error``
    cost_offset: Any
    cost_slope: Any
    worst_loss: Any


@triton.jit
def own_group(numbers, label, scalars, KIND: tl.constexpr, inside=True):
    """The OwnNumbers of a label, as in ``LossSpec.in_group``. Outside number rows, those of a group have size 0."""
    if numbers.groups is None:
        start, size, unit = 0, numbers.size, 1.0
        offset, slope, worst_loss = numbers.cost_offset, numbers.cost_slope, numbers.worst_loss
    else:
        group = read_group(numbers, label, inside)
        start, size, unit = group.start, group.size, group.unit
        offset, slope, worst_loss = costs_in(group, scalars, KIND)
    return OwnNumbers(
        ids=numbers.ids + start,
        value=numbers.value + start,
        size=size,
        index=label.index - start,
        unit=unit,
        cost_offset=offset,
        cost_slope=slope,
        worst_loss=worst_loss,
    )


@triton.jit
def read_group(numbers, label, inside):
    """The Group of a label, or of a block of labels that are ``inside``."""
    at, is_number = label.index * names_in(GROUP), inside & (label.index >= 0)
    return Group(
        start=load_named("start", GROUP, numbers.groups, 1, at, is_number).to(tl.int32),
        size=load_named("size", GROUP, numbers.groups, 1, at, is_number).to(tl.int32),
        unit=load_named("unit", GROUP, numbers.groups, 1, at, is_number),
        nearest=load_named("nearest", GROUP, numbers.groups, 1, at, is_number),
        furthest=load_named("furthest", GROUP, numbers.groups, 1, at, is_number),
    )


@triton.jit
def costs_in(group, scalars, KIND: tl.constexpr):
    """(offset and slope of the cost line, the worst loss) in a group."""
    is_squashed = scalars.rise > 0.0
    slope = tl.where(is_squashed, divide(scalars.rise, group.furthest - group.nearest), 1.0)
    offset = tl.where(is_squashed, 1.0 - slope * group.nearest, 0.0)
    if (KIND == "wasserstein") | (KIND == "cumulative"):
        largest = tl.where(group.furthest > 0.0, offset + slope * group.furthest, 0.0)
    elif KIND == SOFT_LABELS:
        largest = 1.0
    else:
        largest, _ = value_loss(group.furthest, scalars, KIND)
    return offset, slope, WORST * largest
