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
from torch._subclasses import FakeTensor

from ...config import NTLConfig, NTLOutput
from ...functional import DEFAULT_CONFIG, linear_cross_entropy_ntl
from ...tokens import NumberTokens
from ...tracing import PLAIN_TYPES, has_values
from .losses import Count, LossOptions, choose_targets, denominators
from .transforms import LogitTransform, check_probes, declared, find_transform, make_probes, probes_match

PATCH = "_ntl_patch"
"""The attribute of a patched model and of its head."""
WRAPPED = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
"""Where FSDP, torch.compile and checkpoint wrappers keep the module they wrap."""


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
        parameters: list[str],
    ) -> None:
        self.options = options
        self.fused = fused
        """Keywords that only the fused loss has."""
        self.read_transform = read_transform
        """The transform as the model's configuration has it now, or the one that the caller declared."""
        self.parameters = parameters
        """The names of the model's positional arguments."""
        self.stock_loss: Callable[..., Tensor] | None = None
        """What the model computes its loss with in evaluation, None for an encoder-decoder model."""
        self.own_loss: Callable[..., Tensor] | None = None
        """The loss function that somebody had assigned to the model."""
        self.proven: LogitTransform | None = None
        """The last transform that the probes confirmed: looking at them waits for the device."""
        self.call: Call | None = None
        self.parts: NTLOutput | None = None
        """The parts of the last loss, without its graph."""


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
            Sharded (DTensor) heads, transforms other than declared and replaced heads are errors when the model runs.
    """
    base = unwrap_model(model)
    options = LossOptions(numbers, config, label_smoothing, z_loss)
    read_transform = find_transform(base) if transform is None else partial(declared, transform)
    remove_ntl_from_model(base)
    head = find_head(base)
    check_head(head, base)
    check_forward(base)
    if numbers.vocab_size != head.out_features:
        raise ValueError(
            f"numbers are for a vocabulary of {numbers.vocab_size} tokens, the head of {type(base).__name__} has "
            f"{head.out_features} rows: build them with vocab_size={head.out_features}"
        )
    fused = {"chunk_size": chunk_size, "skip_ignored": skip_ignored, "backend": backend}
    parameters = list(inspect.signature(type(base).forward).parameters)[1:]
    patch = Patch(options, fused, read_transform, parameters)
    for module in (base, head):
        setattr(module, PATCH, patch)
    base.forward = with_signature(partial(model_forward, base), type(base).forward)
    head.forward = partial(head_forward, head)
    if not is_encoder_decoder(base):
        patch.stock_loss, patch.own_loss = base.loss_function, base.__dict__.get("_loss_function")
        base.loss_function = partial(model_loss, patch)
    return model


def remove_ntl_from_model(model: Any) -> None:
    """Undo :func:`apply_ntl_to_model`; a model that is not patched stays as it is."""
    base = unwrap_model(model)
    patch = base.__dict__.pop(PATCH, None)
    if patch is None:
        return
    for module in base.modules():
        module.__dict__.pop(PATCH, None)
        if is_ours(module.__dict__.get("forward")):  # else a wrapper holds ours, which then passes through
            del module.__dict__["forward"]
    if is_ours(base.__dict__.get("_loss_function")):
        del base.__dict__["_loss_function"]
        if patch.own_loss is not None:
            base.loss_function = patch.own_loss


def model_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a patched model: its own one, but for calls that train."""
    patch, stock = getattr(model, PATCH, None), type(model).forward
    if patch is None:
        return stock(model, *args, **kwargs)
    skip_logits, num_numbers = kwargs.pop("skip_logits", None), kwargs.pop("num_numbers_in_batch", None)
    given = {**dict(zip(patch.parameters, args, strict=False)), **kwargs}
    has_labels = given.get("labels") is not None or given.get("shift_labels") is not None
    trains = model.training and has_labels
    if skip_logits is False and trains:
        raise ValueError("a model patched by apply_ntl_to_model has no logits when it trains; got skip_logits=False")
    if skip_logits and not has_labels:
        raise ValueError("skip_logits=True needs labels; got none")
    if not (skip_logits or trains):
        return stock(model, *args, **kwargs)
    if len(args) + len(kwargs) > len(given):
        raise TypeError(f"{type(model).__name__} got an argument both by position and by name")
    return train_forward(model, patch, given, num_numbers)


def train_forward(model: Any, patch: Patch, given: dict[str, Any], num_numbers: Count | None) -> Any:
    """The output of a forward pass whose loss comes from hidden states."""
    check_head_now(model, patch)
    labels, shift_labels = given.pop("labels", None), given.pop("shift_labels", None)
    num_items, return_dict = given.pop("num_items_in_batch", None), given.pop("return_dict", None)
    if is_encoder_decoder(model):
        targets = choose_targets(labels, None, shift=False)
        if given.get("decoder_input_ids") is None and given.get("decoder_inputs_embeds") is None:
            given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    else:
        targets = choose_targets(labels, shift_labels, shift=True)
        given["labels"] = targets  # the model only looks whether there are any
    transform = patch.read_transform(model)
    patch.parts, patch.call = None, Call(type(model).__name__, transform, targets, num_items, num_numbers)
    try:
        output = type(model).forward(model, **given, return_dict=True)
        loss = take_loss(patch, output.logits) if is_encoder_decoder(model) else output.loss
        if not patch.call.is_taken:
            raise RuntimeError(
                f"{type(model).__name__} did not take its loss from its head by loss_function: something replaced "
                "its forward or its loss_function after apply_ntl_to_model"
            )
    finally:
        patch.call = None
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
    if type(head.weight) not in (*PLAIN_TYPES, FakeTensor):
        raise TypeError(
            f"the head's weight must be a plain tensor when the model runs; got {type(head.weight).__name__}. Tensor "
            "parallel and quantised heads are not supported by apply_ntl_to_model: use NTLTrainer on the bare model"
        )
    call.hidden = hidden
    return make_probes(hidden) + anchor(head_loss(patch, call, hidden, head.weight, head.bias))


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
    call.loss, patch.parts = output.loss, output._replace(loss=output.loss.detach())
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


def unwrap_model(model: Any) -> Any:
    """The bare model inside PEFT, data parallelism, FSDP or torch.compile."""
    while True:
        if hasattr(type(model), "get_base_model"):
            model = model.get_base_model()
        elif isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif any(name in model.__dict__.get("_modules", {}) for name in WRAPPED):
            model = unwrap_module(model)
        else:
            return model


def unwrap_module(module: Any) -> Any:
    """The module inside FSDP, torch.compile or checkpoint wrappers."""
    for name in WRAPPED:
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None:
            return unwrap_module(inner)
    return module


def find_head(model: Any) -> Any:
    """The module that makes logits."""
    return unwrap_module(model.get_output_embeddings())


def is_encoder_decoder(model: Any) -> bool:
    """Whether the labels of the model are not shifted."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def is_ours(function: Any) -> bool:
    """Whether a function is one that apply_ntl_to_model puts on models."""
    return isinstance(function, partial) and function.func in (model_forward, head_forward, model_loss)


def check_head(head: Any, model: Any) -> None:
    """Raise unless the head is a plain nn.Linear whose weight and bias are all that it computes with."""
    name = type(model).__name__
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        hint = " (take the head out of PEFT's target_modules and modules_to_save)" if "peft" in kind else ""
        raise TypeError(f"the head of {name} must be an nn.Linear without adapter or quantisation; got {kind}{hint}")
    if "forward" in head.__dict__:
        raise ValueError(f"the head of {name} has a forward of its own already: {describe(head.forward)}")


def check_head_now(model: Any, patch: Patch) -> None:
    """Raise unless the head is still the one that was patched."""
    head = find_head(model)
    if head.__dict__.get(PATCH) is not patch:
        check_head(head, model)
        raise RuntimeError(f"the head of {type(model).__name__} was replaced: call apply_ntl_to_model again")


def check_forward(model: Any) -> None:
    """Raise if the model's forward is not its class's, or its class's is not that of transformers any more."""
    name, forward = type(model).__name__, type(model).forward
    if "forward" in model.__dict__:
        raise ValueError(
            f"{name} has a forward of its own already: {describe(model.forward)}. Call apply_ntl_to_model first, and "
            "without Liger's fused_linear_cross_entropy or a device_map over several devices"
        )
    if "liger_kernel" in describe(forward):
        raise ValueError(
            f"Liger has patched {name}.forward: apply Liger's kernels with fused_linear_cross_entropy=False"
        )


def describe(function: Any) -> str:
    """Where a function comes from."""
    function = inspect.unwrap(getattr(function, "func", function))
    function = getattr(function, "__func__", function)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"


def with_signature(forward: partial[Any], stock: Callable[..., Any]) -> partial[Any]:
    """The partial with the signature of the forward it stands for, which the Trainer reads to know the arguments.

    Not ``functools.wraps``: accelerate takes off whatever has ``__wrapped__``.
    """
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(stock).parameters.values()]
    forward.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return forward
