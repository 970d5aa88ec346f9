"""`apply_ntl_to_model` and `set_ntl_loss_function` install a loss on a model; `remove_ntl_from_model` removes it.

Everything that is installed is a `functools.partial` of a function in this package: unlike closures and captured bound
methods, partials survive deepcopy and pickle.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...checks import explains_options
from ...config import DEFAULT_CONFIG, NTLConfig
from ...tokens import NumberTokens
from .forwards import Installed, bound_forward, describe, innermost, install, unbound, uninstall, watched_loss
from .frameworks import KEPT_FORWARD, LIGER_FORWARD, check_hooks, find_head, unwrap_model
from .models import check_own_loss, known_shift, shifts_labels, train_on_logits
from .patched import LOSS_FUNCTION, Patch, check_head, head_forward, is_planned, model_forward
from .probes import LogitTransform, Reading, guessed_transform
from .targets import NTLOptions, shift_or_raise


@explains_options
def apply_ntl_to_model(
    model: Any,
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool | None = None,
    transform: LogitTransform | None = None,
    chunk_size: int | None = None,
    skip_ignored: bool = True,
    backend: str = "auto",
) -> Any:
    """Make a model compute CE + NTL from its hidden states in training, without storing logits.

    It changes ``model(..., labels=...)`` in calls that may train: with gradients enabled in any mode, in training mode,
    or with ``num_numbers_in_batch``. In these calls ``output.loss`` is CE + lambda * NTL (plus the model's own
    auxiliary loss) and ``output.logits`` is None. Evaluation mode under ``torch.no_grad()``, ``generate``, calls
    without labels, parameters and ``state_dict`` do not change. The forward accepts these additional keywords:

    - ``num_items_in_batch``, ``num_numbers_in_batch``: denominators of CE and NTL, for exact gradient accumulation;
      see :func:`ntl_loss_function`.
    - ``shift_labels``: labels that are already shifted.
    - ``number_weights``: the weight of NTL for each label; it belongs to the labels, and is shifted like them.
    - ``skip_logits=True``: also compute the loss this way in evaluation.

    Apply it to the bare model or to a PEFT-wrapped one, before FSDP, DDP or torch.compile.

    Args:
        model: any ``transformers`` causal, image-text or encoder-decoder model whose head is an ``nn.Linear``.
        numbers: the number tokens of the model's vocabulary (``vocab_size`` = rows of the head's weight).
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss, chunk_size, skip_ignored, backend: as for
            :func:`ntl_kernels.linear_cross_entropy_ntl`.
        shift: whether position t predicts label t + 1; default: as in the model's own loss, which is measured in the
            first batch if the class does not tell.
        transform: how the model transforms its head's output; default: as its first call shows. Needed only where that
            call cannot look at values (in a model that is compiled before it, or under torch.func) and the
            configuration does not suggest the transform: the loss is NaN there. A wrong transform raises an error.

    Returns:
        The same model, changed in place.

    Raises:
        TypeError, ValueError: the head has an adapter or is not an ``nn.Linear``, the vocabulary has another size, or
            the forward has already been patched (by Liger, for example). When the model runs: logits that are no scaled
            or soft-capped output of the head, an own loss with other parts than cross-entropy, a head that was
            replaced or split along the hidden dimension.
        RuntimeError: the model is called with labels, but another loss is computed, because something replaced the
            forward (TRL's SFTTrainer, Liger) or a Trainer withheld the labels (``label_smoothing_factor``).

    Examples:
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> model = apply_ntl_to_model(model, numbers, config=NTLConfig(weight=0.3))
        >>> model(input_ids=ids, labels=ids).loss.backward()
    """
    base = unwrap_model(model)
    options = NTLOptions(numbers, config, label_smoothing, z_loss, known_shift(base) if shift is None else shift)
    check_forward(base)
    check_own_loss(base)
    head = find_head(base)
    check_head(head, base)
    if numbers.vocab_size != head.out_features:
        raise ValueError(
            f"numbers are for a vocabulary of {numbers.vocab_size} tokens, but the head of {type(base).__name__} has "
            f"{head.out_features} rows: build them with model=model"
        )
    remove_ntl_from_model(base)
    patch = Patch(
        installer="apply_ntl_to_model",
        options=options,
        in_evaluation=False,
        fused={"chunk_size": chunk_size, "skip_ignored": skip_ignored, "backend": backend},
        reading=Reading(guessed_transform(base) if transform is None else transform, is_final=transform is not None),
        loss_function=base.__dict__.get(LOSS_FUNCTION),
        planned_head=head.forward if is_planned(head.__dict__.get("forward")) else None,
    )
    install(patch, base, head)
    head.forward = partial(head_forward, head)
    put_forward(base, patch)
    base.accepts_loss_kwargs = True  # makes the stock Trainer pass num_items_in_batch
    return model


@explains_options
def set_ntl_loss_function(
    model: Any,
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool | None = None,
) -> Any:
    """Make a model compute CE + NTL of its full logits in training and evaluation; for the stock ``Trainer``.

    Sets :func:`ntl_loss_function` as the ``loss_function`` of the bare model (that of a PEFT wrapper is never called).
    It replaces the effect of earlier calls and of :func:`apply_ntl_to_model`. Afterwards, a call with labels that does
    not compute this loss raises an error.

    Args:
        model: a ``transformers`` model whose forward calls its ``loss_function``, bare or wrapped.
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`.
        shift: whether position t predicts label t + 1; default: as in the model's own loss.

    Returns:
        The same model, changed in place. :func:`remove_ntl_from_model` undoes it.

    Raises:
        TypeError, ValueError: an option is wrong, or it is unknown whether the model shifts labels.
        RuntimeError: the model is called with labels, but never calls a loss function (T5 and most encoder-decoder
            models compute their cross-entropy inside their forward).

    Examples:
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> model = set_ntl_loss_function(model, numbers)
        >>> model(input_ids=ids, labels=ids).loss.backward()
    """
    base = unwrap_model(model)
    shift = shift_or_raise(shifts_labels(base) if shift is None else shift, type(base).__name__)
    options = NTLOptions(numbers, config, label_smoothing, z_loss, shift)
    remove_ntl_from_model(base)
    installed = Installed(installer="set_ntl_loss_function", options=options)
    base.loss_function = partial(watched_loss, installed)
    install(installed, base)
    return model


def remove_ntl_from_model(model: Any) -> None:
    """Undo :func:`apply_ntl_to_model` and :func:`set_ntl_loss_function`; does nothing to a model without them.

    Examples:
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> model = apply_ntl_to_model(model, numbers)
        >>> remove_ntl_from_model(model)
    """
    base = unwrap_model(model)
    patch = uninstall(base)
    if unbound(base.__dict__.get(LOSS_FUNCTION)) is watched_loss:
        del base.__dict__[LOSS_FUNCTION]
    if not isinstance(patch, Patch):
        return
    for module in base.modules():
        if unbound(module.__dict__.get("forward")) in (model_forward, head_forward):  # otherwise a wrapper holds ours
            del module.__dict__["forward"]
            if module is base:
                module.__dict__.update(patch.beneath)
            elif patch.planned_head is not None:
                module.forward = patch.planned_head
    base.__dict__.pop("accepts_loss_kwargs", None)


def put_forward(model: Any, patch: Patch) -> None:
    """Install our forward on the model, unless its forward is a wrapper that already holds ours.

    A wrapper of the model's own forward, as accelerate leaves it, is kept inside ours.
    """
    if innermost(model.__dict__.get("forward")) is model_forward:
        return
    beneath = {name: model.__dict__.pop(name) for name in ("forward", KEPT_FORWARD) if name in model.__dict__}
    patch.beneath = {} if unbound(beneath.get("forward")) is type(model).forward else beneath
    model.forward = bound_forward(model_forward, model)


def check_forward(model: Any) -> None:
    """Raise unless the model's forward is its class's own or ours, perhaps in a wrapper such as accelerate's."""
    name, stock = type(model).__name__, innermost(type(model).forward)
    if innermost(model.forward) not in (model_forward, stock):
        check_hooks(model, name, train_on_logits(model))
        raise ValueError(
            f"the forward of {name} has already been replaced by {describe(model.forward)}. Call apply_ntl_to_model "
            f"first, and without {LIGER_FORWARD}"
        )
    if "liger_kernel" in stock.__module__:
        raise ValueError(
            f"Liger has patched {name}.forward: apply Liger's kernels with fused_linear_cross_entropy=False"
        )
