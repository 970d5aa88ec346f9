"""What a row needs to know about the group of number tokens that its label is in (docs, Mathematics, Groups)."""

import triton
import triton.language as tl

from ..spec import WORST_FACTOR
from ..tokens import Group
from .arguments import Numbers
from .numbers import value_loss
from .rows import Label, divide, load_named, names_in

GROUP = tl.constexpr(Group._fields)
WORST = tl.constexpr(WORST_FACTOR)


@triton.jit
def own_group(numbers, label, scalars, KIND: tl.constexpr, inside=True):
    """(numbers, label) of the label's group alone, as in ``LossSpec.in_group``; empty outside number rows."""
    if numbers.groups is None:
        own, own_label = numbers, label
    else:
        group = read_group(numbers, label, inside)
        offset, slope, worst_loss = costs_in(group, scalars, KIND)
        own = Numbers(
            ids=numbers.ids + group.start,
            value=numbers.value + group.start,
            lookup=numbers.lookup,
            groups=group,
            size=group.size,
            cost_offset=offset,
            cost_slope=slope,
            worst_loss=worst_loss,
        )
        own_label = Label(
            token=label.token,
            counts=label.counts,
            row_weight=label.row_weight,
            number_weight=label.number_weight,
            index=label.index - group.start,
        )
    return own, own_label


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
    else:
        largest, _ = value_loss(group.furthest, scalars, KIND)
    return offset, slope, WORST * largest
