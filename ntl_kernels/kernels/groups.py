"""What a row needs to know about the group of number tokens that its label is in (docs, Mathematics, Groups)."""

import triton
import triton.language as tl

from ..spec import WORST_FACTOR
from ..tokens import Group
from .arguments import Numbers, Scalars
from .numbers import value_loss
from .rows import Label, divide, load_named, names_in

GROUP = tl.constexpr(Group._fields)
WORST = tl.constexpr(WORST_FACTOR)


@triton.jit
def own_group(numbers, label, scalars, KIND: tl.constexpr, inside=True):
    """(numbers, label, scalars) of the label's group alone, as in ``LossSpec.in_group``; empty outside number rows."""
    at, is_number = label.index * names_in(GROUP), inside & (label.index >= 0)
    group = Group(
        start=load_named("start", GROUP, numbers.groups, 1, at, is_number).to(tl.int32),
        size=load_named("size", GROUP, numbers.groups, 1, at, is_number).to(tl.int32),
        unit=load_named("unit", GROUP, numbers.groups, 1, at, is_number),
        nearest=load_named("nearest", GROUP, numbers.groups, 1, at, is_number),
        furthest=load_named("furthest", GROUP, numbers.groups, 1, at, is_number),
    )
    ids, value = numbers.ids + group.start, numbers.value + group.start
    own = Numbers(ids=ids, value=value, lookup=numbers.lookup, groups=group, size=group.size)
    own_label = Label(
        token=label.token,
        counts=label.counts,
        row_weight=label.row_weight,
        number_weight=label.number_weight,
        index=label.index - group.start,
    )
    is_squashed = scalars.rise > 0.0
    slope = tl.where(is_squashed, divide(scalars.rise, group.furthest - group.nearest), 1.0)
    offset = tl.where(is_squashed, 1.0 - slope * group.nearest, 0.0)
    if (KIND == "wasserstein") | (KIND == "cumulative"):
        largest = tl.where(group.furthest > 0.0, offset + slope * group.furthest, 0.0)
    else:
        largest, _ = value_loss(group.furthest, scalars, KIND)
    own_scalars = Scalars(
        inner=scalars.inner,
        outer=scalars.outer,
        logit_scale=scalars.logit_scale,
        factor=scalars.factor,
        coarse_factor=scalars.coarse_factor,
        has_cross_entropy=scalars.has_cross_entropy,
        label_smoothing=scalars.label_smoothing,
        z_loss=scalars.z_loss,
        cost_offset=offset,
        cost_slope=slope,
        rise=scalars.rise,
        label_sigma=scalars.label_sigma,
        huber_delta=scalars.huber_delta,
        worst_loss=WORST * largest,
    )
    return own, own_label, own_scalars
