"""`apply_ntl_to_model`: a model's own forward computes the loss from hidden states.

The body of the model runs as it is. Its head, instead of logits, computes the fused-linear loss (inside its own
``__call__``, so that the hooks of sharding and adapters fire) and returns a few probes in the logits' place. The
model's own scaling and softcap act on them, which proves the transform that the loss assumed, and its
``loss_function`` hands out the loss, to which the model may add an auxiliary one. Encoder-decoder models, which
write their cross-entropy into their forward, are called without labels and the loss is attached to their output.

Everything that is put on the model are `functools.partial`s of the functions here: unlike closures and captured bound
methods, they follow the model through deepcopy and pickle.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from ...functional import linear_cross_entropy_ntl
from ...tokens import NumberTokens
from ...tracing import has_values
from .losses import Count, LossOptions, choose_targets, denominators, ntl_loss_function
from .models import (
    calls_loss_function,
    decoder_inputs,
    describe,
    find_head,
    innermost,
    is_encoder_decoder,
    shifts_labels,
    unbound,
    unwrap_model,
)
from .sharded import as_columns, as_plain, inner_forward, is_served, local, own_probes, put_head_forward
from .transforms import NUM_PROBES, LogitTransform, check_probes, declared, find_transform, make_probes, probes_match
from .watch import Watch, start_watch, stop_watch, watched_loss

PATCH = "_ntl_patch"
"""The attribute of a patched model and of its head."""
LOSS_FUNCTION = "_loss_function"
"""Where transformers keeps a loss function that was assigned to a model."""
MIXED_PRECISION = "_original_forward"
"""Where accelerate keeps the forward that it has wrapped in autocast, once it has."""


class Call:
    """One forward pass that computes the loss."""

    def __init__(
        self, name: str, transform: LogitTransform, targets: Tensor, num_items: Count | None, num_numbers: Count | None
    ) -> None:
        self.name = name
        self.transform = transform
        self.targets = targets
        self.num_items = num_items
        self.num_numbers = num_numbers
        self.hidden: Tensor | None = None
        self.loss: Tensor | None = None
        self.is_taken = False


class Patch:
    """What a patched model and its head share."""

    def __init__(
        self,
        options: LossOptions,
        fused: dict[str, Any],
        read_transform: Callable[[Any], LogitTransform],
        stock: Callable[..., Any],
    ) -> None:
        self.options = options
        self.fused = fused
        """Keywords that only the fused loss has."""
        self.read_transform = read_transform
        """The transform as the model's configuration has it now, or the one that the caller declared."""
        parameters = inspect.signature(stock).parameters
        self.parameters = list(parameters)[1:]
        """The names of the model's positional arguments."""
        self.takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
        """Whether the model's own forward takes keywords that it does not name."""
        self.watch = Watch("apply_ntl_to_model", self.parameters, in_evaluation=False)
        self.beneath: dict[str, Any] = {}
        """accelerate's wrapper of the model's own forward, which then runs in its place."""
        self.stock_loss: Callable[..., Tensor] | None = None
        """What the model computes its loss with in evaluation, None for an encoder-decoder model."""
        self.own_loss: Callable[..., Tensor] | None = None
        """The loss function that somebody had assigned to the model."""
        self.proven: LogitTransform | None = None
        """The last transform that the probes confirmed: looking at them waits for the device."""
        self.call: Call | None = None
        self.parts: tuple[Tensor, ...] | None = None
        """The fields of the last NTLOutput, without its graph. A plain tuple: no other comes out of torch 2.11's
        compiled graphs."""


class BoundForward(partial):  # type: ignore[type-arg]
    """``partial(function, model)`` that shows its function, as a bound method does.

    accelerate wraps the function of a method and binds the result to the model, again when it unwraps it. Unlike a
    method, a partial goes through pickle.
    """

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.func


def apply_ntl_to_model(
    model: Any,
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    transform: LogitTransform | None = None,
    chunk_size: int | None = None,
    skip_ignored: bool = True,
    backend: str = "auto",
) -> Any:
    """Let a model compute CE + NTL from its hidden states when it trains; logits are never held.

    Changes ``model(..., labels=...)`` in training mode alone: ``output.loss`` is CE + lambda * NTL (plus the model's
    own auxiliary loss), ``output.logits`` is None. Evaluation, ``generate``, calls without labels, parameters and
    ``state_dict`` stay as they are. The forward takes these keywords beside its own:

    - ``num_items_in_batch``, ``num_numbers_in_batch``: denominators of CE and NTL, for exact gradient accumulation.
      With the first alone, the numbers of the window are estimated from this batch's.
    - ``shift_labels``: labels that are shifted already.
    - ``skip_logits=True``: compute the loss in this way in evaluation mode, too.

    Apply it to the bare model or inside a PEFT wrapper, before FSDP, DDP or torch.compile.

    Args:
        model: a ``transformers`` causal or encoder-decoder model whose head is an ``nn.Linear``.
        numbers: the number tokens of the model's vocabulary (``vocab_size`` = rows of the head's weight).
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss, chunk_size, skip_ignored, backend: as for
            :func:`ntl_kernels.linear_cross_entropy_ntl`.
        transform: what the model does to its head's output; only for classes that are not known here. A wrong one
            is an error at the first step (under torch.compile and torch.func, where nobody can look, the loss is NaN).

    Returns:
        The model that was given, changed in place.

    Raises:
        TypeError, ValueError: an unknown architecture, an adapter on the head, a head that is no ``nn.Linear``, a
            vocabulary of another size, or a forward that something else (Liger, say) has patched already.
            Heads split along the hidden dimension, transforms other than declared and replaced heads are errors when
            the model runs.
        RuntimeError: when the model trains with labels and something computes another loss: a forward that was put in
            place of this one (TRL's SFTTrainer, Liger), or a Trainer that keeps the labels back
            (``label_smoothing_factor``).
    """
    base = unwrap_model(model)
    options = LossOptions(numbers, config, label_smoothing, z_loss)
    read_transform = find_transform(base) if transform is None else partial(declared, transform)
    head = find_head(base)
    check_head(head, base)
    check_forward(base)
    if numbers.vocab_size != head.out_features:
        raise ValueError(
            f"numbers are for a vocabulary of {numbers.vocab_size} tokens, the head of {type(base).__name__} has "
            f"{head.out_features} rows: build them with vocab_size={head.out_features}"
        )
    remove_ntl_from_model(base)
    fused = {"chunk_size": chunk_size, "skip_ignored": skip_ignored, "backend": backend}
    patch = Patch(options, fused, read_transform, type(base).forward)
    for module in (base, head):
        setattr(module, PATCH, patch)
    put_head_forward(head, partial(head_forward, head))
    put_forward(base, patch)
    start_watch(base, patch.watch)
    if is_encoder_decoder(base):
        base.accepts_loss_kwargs = True  # the stock Trainer then passes num_items_in_batch, which the class's ignores
    else:
        patch.stock_loss, patch.own_loss = base.loss_function, base.__dict__.get(LOSS_FUNCTION)
        base.loss_function = partial(model_loss, patch)
    return model


def set_ntl_loss_function(
    model: Any,
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool | None = None,
) -> Any:
    """Let a model compute CE + NTL of its full logits, in training and in evaluation: for the stock ``Trainer``.

    Sets :func:`ntl_loss_function` as the ``loss_function`` of the bare model (that of a PEFT wrapper is never called),
    in place of what an earlier call or :func:`apply_ntl_to_model` put there. From then on a call with labels that does
    not compute it is an error.

    Args:
        model: a ``transformers`` model whose forward calls its ``loss_function``, bare or wrapped.
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`.
        shift: whether position t predicts label t + 1; default: as the model's own loss has it.

    Returns:
        The model that was given, changed in place. :func:`remove_ntl_from_model` undoes it.

    Raises:
        TypeError, ValueError: a model that never calls a loss function (T5 and most encoder-decoder models write their
            cross-entropy into their forward).
    """
    base = unwrap_model(model)
    function = ntl_loss_function(
        numbers,
        config,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        shift=shifts_labels(base) if shift is None else shift,
    )
    if not calls_loss_function(base):
        raise ValueError(
            f"{type(base).__name__} never calls a loss_function, its cross-entropy is written into its forward: use "
            "apply_ntl_to_model(model, numbers), or NTLTrainer or NTLSeq2SeqTrainer with numbers=numbers"
        )
    remove_ntl_from_model(base)
    parameters = list(inspect.signature(type(base).forward).parameters)[1:]
    watch = Watch("set_ntl_loss_function", parameters, in_evaluation=True)
    base.loss_function = partial(watched_loss, watch, function)
    start_watch(base, watch)
    return model


def options_on(model: Any) -> tuple[str, LossOptions] | None:
    """Which of our functions put a loss on the model, and its options; None without."""
    base = unwrap_model(model)
    patch: Patch | None = getattr(base, PATCH, None)
    if patch is not None:
        return patch.watch.installer, patch.options
    function = base.__dict__.get(LOSS_FUNCTION)
    if is_ours(function, watched_loss):
        watch, loss_function = function.args
        return watch.installer, loss_function.keywords["options"]
    return None


def remove_ntl_from_model(model: Any) -> None:
    """Undo :func:`apply_ntl_to_model` and :func:`set_ntl_loss_function`; a model without them stays as it is."""
    base = unwrap_model(model)
    stop_watch(base)
    if is_ours(base.__dict__.get(LOSS_FUNCTION), watched_loss):
        del base.__dict__[LOSS_FUNCTION]
    patch = base.__dict__.pop(PATCH, None)
    if patch is None:
        return
    for module in base.modules():
        module.__dict__.pop(PATCH, None)
        if is_ours(module.__dict__.get("forward"), model_forward, head_forward):  # else a wrapper holds ours
            del module.__dict__["forward"]
            if module is base:
                module.__dict__.update(patch.beneath)
        elif inner_forward(module) is not None and is_ours(inner_forward(module).cell_contents, head_forward):
            put_head_forward(module, partial(type(module).forward, module))
    if is_encoder_decoder(base):
        del base.__dict__["accepts_loss_kwargs"]
    if is_ours(base.__dict__.get(LOSS_FUNCTION), model_loss):
        del base.__dict__[LOSS_FUNCTION]
        if patch.own_loss is not None:
            base.loss_function = patch.own_loss


def put_forward(model: Any, patch: Patch) -> None:
    """Let the model's forward be ours, or stay the wrapper that holds ours already.

    A wrapper of accelerate's around the model's own forward goes beneath ours.
    """
    if innermost(model.__dict__.get("forward")) is model_forward:
        return
    names = ("forward", MIXED_PRECISION)
    patch.beneath = {name: model.__dict__.pop(name) for name in names if name in model.__dict__}
    stock = type(model).forward
    model.forward = with_signature(
        BoundForward(with_signature(partial(model_forward), stock), model), stock, bound=True
    )


def model_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a patched model: its own one, but for calls that train."""
    patch = getattr(model, PATCH, None)
    if patch is None:
        return type(model).forward(model, *args, **kwargs)
    skip_logits, num_numbers = kwargs.pop("skip_logits", None), kwargs.pop("num_numbers_in_batch", None)
    given = {**dict(zip(patch.parameters, args, strict=False)), **kwargs}
    has_labels = given.get("labels") is not None or given.get("shift_labels") is not None
    trains = model.training and has_labels
    if skip_logits is False and trains:
        raise ValueError("a model patched by apply_ntl_to_model has no logits when it trains; got skip_logits=False")
    if skip_logits and not has_labels:
        raise ValueError("skip_logits=True needs labels; got none")
    if not (skip_logits or trains):
        if not patch.takes_any:
            kwargs.pop("num_items_in_batch", None)
        return stock_forward(model, patch)(*args, **kwargs)
    if len(args) + len(kwargs) > len(given):
        raise TypeError(f"{type(model).__name__} got an argument both by position and by name")
    return train_forward(model, patch, given, num_numbers)


def stock_forward(model: Any, patch: Patch) -> Callable[..., Any]:
    """The model's own forward, bound."""
    return patch.beneath.get("forward") or partial(type(model).forward, model)


def train_forward(model: Any, patch: Patch, given: dict[str, Any], num_numbers: Count | None) -> Any:
    """The output of a forward pass whose loss comes from hidden states."""
    check_head_now(model, patch)
    labels, shift_labels = given.pop("labels", None), given.pop("shift_labels", None)
    num_items, return_dict = given.pop("num_items_in_batch", None), given.pop("return_dict", None)
    if is_encoder_decoder(model):
        targets = choose_targets(labels, None, shift=False)
        if given.get("decoder_input_ids") is None and given.get("decoder_inputs_embeds") is None:
            given["decoder_input_ids"] = decoder_inputs(model, labels)
    else:
        targets = choose_targets(labels, shift_labels, shift=True)
        given["labels"] = targets  # the model only looks whether there are any
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace how T5 makes its cache
        given.setdefault("use_cache", False)
    transform = patch.read_transform(model)
    patch.parts, patch.call = None, Call(type(model).__name__, transform, targets, num_items, num_numbers)
    try:
        output = stock_forward(model, patch)(**given, return_dict=True)
        loss = take_loss(patch, output.logits) if is_encoder_decoder(model) else output.loss
        if not patch.call.is_taken:
            raise RuntimeError(
                f"{type(model).__name__} did not take its loss from its head by loss_function: something replaced "
                "its forward or its loss_function after apply_ntl_to_model"
            )
    finally:
        patch.call = None
    patch.watch.has_run = True
    fields = {name: value for name, value in output.items() if name not in ("loss", "logits")}
    output = type(output)(loss=loss, **fields)
    return output if return_dict or (return_dict is None and model.config.return_dict) else output.to_tuple()


def head_forward(head: Any, hidden: Tensor) -> Tensor:
    """The forward of a patched head: the loss of hidden [..., H] is left in the call, probes [1, ..., 8] come back."""
    patch: Patch | None = getattr(head, PATCH, None)
    call = None if patch is None else patch.call
    if patch is None or call is None:
        return type(head).forward(head, hidden)
    if call.loss is not None:
        raise RuntimeError("the model ran its head twice in one forward pass; apply_ntl_to_model supports one run")
    check_weight(head.weight)
    loss = head_loss(patch, call, hidden, head.weight, head.bias)
    call.hidden = local(hidden)
    return as_columns(make_probes(call.hidden) + anchor(loss), head.weight)


def head_loss(patch: Patch, call: Call, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The loss (0-d) of hidden [..., H], left in the call; its parts are left in the patch."""
    targets = call.targets.to(hidden.device)
    keywords = {
        **patch.options.keywords(),
        **patch.fused,
        **call.transform._asdict(),
        **denominators(targets, patch.options.numbers, call.num_items, call.num_numbers),
    }
    output = linear_cross_entropy_ntl(
        hidden, weight, targets, patch.options.numbers, bias=bias, return_parts=True, **keywords
    )
    assert isinstance(output, NTLOutput)
    output = as_plain(output)
    call.loss, patch.parts = output.loss, (output.loss.detach(), *output[1:])
    return output.loss


def model_loss(patch: Patch, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The loss function of a patched model: in evaluation the one it had."""
    if patch.call is None:
        assert patch.stock_loss is not None
        return patch.stock_loss(logits, *args, **kwargs)
    return take_loss(patch, logits)


def take_loss(patch: Patch, logits: Tensor) -> Tensor:
    """The loss that the head left, if the model made of its probes what the loss assumed."""
    call = patch.call
    assert call is not None
    if call.loss is None or call.hidden is None:
        raise RuntimeError(f"the head of {call.name} did not run: something replaced it after apply_ntl_to_model")
    call.is_taken = True
    logits = own_probes(logits, NUM_PROBES)
    loss = call.loss + anchor(logits)
    if not has_values(logits):
        return torch.where(probes_match(logits, call.hidden, call.transform), loss, torch.nan)
    if patch.proven != call.transform:
        check_probes(logits, call.hidden, call.transform, call.name)
        patch.proven = call.transform
    return loss


def anchor(tensor: Tensor) -> Tensor:
    """0, hung into the graph of a tensor.

    The loss leaves the head by a side door. Anchored to the head's output and the other way round, its backward pass
    still runs after the hooks on that output, with which FSDP gathers the head's weight.
    """
    return tensor.reshape(-1)[:0].sum()


def is_ours(function: Any, *ours: Callable[..., Any]) -> bool:
    """Whether a function is a partial, or bound method, of one of ours."""
    return unbound(function) in ours


def check_head(head: Any, model: Any) -> None:
    """Raise unless the head is a plain nn.Linear whose weight and bias are all that it computes with."""
    name = type(model).__name__
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        hint = " (take the head out of PEFT's target_modules and modules_to_save)" if "peft" in kind else ""
        raise TypeError(f"the head of {name} must be an nn.Linear without adapter or quantisation; got {kind}{hint}")
    is_free = "forward" not in head.__dict__ or is_ours(head.__dict__["forward"], head_forward)
    if not is_free and inner_forward(head) is None:
        raise ValueError(f"the head of {name} has a forward of its own already: {describe(head.forward)}")


def check_weight(weight: Any) -> None:
    """Raise unless the head's weight, as it is when the model runs, is one that the loss is computed from."""
    if not is_served(weight):
        raise TypeError(
            f"the head's weight must be a plain tensor or a DTensor when the model runs; got {type(weight).__name__}. "
            "Quantised heads are not supported by apply_ntl_to_model: use NTLTrainer on the bare model"
        )


def check_head_now(model: Any, patch: Patch) -> None:
    """Raise unless the head is still the one that was patched."""
    head = find_head(model)
    if head.__dict__.get(PATCH) is not patch:
        check_head(head, model)
        raise RuntimeError(f"the head of {type(model).__name__} was replaced: call apply_ntl_to_model again")


def check_forward(model: Any) -> None:
    """Raise if the model's forward is not its class's, or its class's is not that of transformers any more."""
    name, forward = type(model).__name__, type(model).forward
    own = model.__dict__.get("forward")
    is_mixed_precision = MIXED_PRECISION in model.__dict__ and innermost(own) is innermost(forward)
    if own is not None and innermost(own) is not model_forward and not is_mixed_precision:
        raise ValueError(
            f"{name} has a forward of its own already: {describe(model.forward)}. Call apply_ntl_to_model first, and "
            "without Liger's fused_linear_cross_entropy or a device_map over several devices"
        )
    if "liger_kernel" in innermost(forward).__module__:
        raise ValueError(
            f"Liger has patched {name}.forward: apply Liger's kernels with fused_linear_cross_entropy=False"
        )


def with_signature(forward: partial[Any], stock: Callable[..., Any], bound: bool = False) -> partial[Any]:
    """The partial with the signature of the forward it stands for, which the Trainer reads to know the arguments.

    Not ``functools.wraps``: accelerate takes off whatever has ``__wrapped__``.
    """
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(stock).parameters.values()]
    forward.__signature__ = inspect.Signature(parameters[bound:])  # type: ignore[attr-defined]
    return forward
