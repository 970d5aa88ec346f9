"""The code that runs in a model patched by `apply_ntl_to_model`.

The body of the model runs unchanged. Its head computes the fused-linear loss instead of logits (inside its own
``__call__``, so that the hooks of sharding and adapters run) and returns a few probes in place of logits. The model's
own scaling and softcap act on the probes, which verifies the transform that the loss assumed. Its ``loss_function``
then returns the loss, to which the model may add an auxiliary one. Encoder-decoder models, which compute their
cross-entropy inside their forward, are called without labels, and the loss is attached to their output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...config import NTLOutput
from ...functional import linear_cross_entropy_ntl
from ...tracing import has_values
from .frameworks import advice_on_head, check_hooks
from .functions import describe, is_ours
from .losses import Count, LossOptions, choose_targets, denominators
from .model_classes import is_encoder_decoder
from .models import added_loss, find_head, put_decoder_inputs, train_on_logits
from .sharded import as_columns, as_plain, inner_forward, is_served, local, own_probes
from .transforms import NUM_PROBES, LogitTransform, check_probes, make_probes, probes_match
from .watch import Watch, may_train

PATCH = "_ntl_patch"
"""The attribute that holds the patch, on a patched model and on its head."""


class PatchError(RuntimeError):
    """An error raised by this module in a forward pass."""


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
    """The state that a patched model and its head share."""

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
        """Returns the transform from the model's current configuration, or the one that the caller declared."""
        parameters = inspect.signature(stock).parameters
        self.parameters = list(parameters)[1:]
        """The names of the model's positional arguments."""
        self.takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
        """Whether the model's own forward accepts arbitrary keywords."""
        self.watch = Watch("apply_ntl_to_model", self.parameters, in_evaluation=False)
        self.beneath: dict[str, Any] = {}
        """accelerate's wrapper of the model's own forward, called instead of that forward."""
        self.stock_loss: Callable[..., Tensor] | None = None
        """The loss function that the model uses in evaluation; None for an encoder-decoder model."""
        self.own_loss: Callable[..., Tensor] | None = None
        """The loss function that had been assigned to the model before."""
        self.added_factor = 1.0
        """The factor of the model's own additions to the loss (router losses)."""
        self.proven: LogitTransform | None = None
        """The last transform that the probes confirmed; cached, because reading the probes waits for the device."""
        self.call: Call | None = None
        self.parts: tuple[Tensor, ...] | None = None
        """The fields of the last NTLOutput, detached. A plain tuple, because compiled graphs of torch 2.11 return no
        named tuples."""


def model_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a patched model: its own forward, except for calls that may train."""
    patch = getattr(model, PATCH, None)
    if patch is None:
        return type(model).forward(model, *args, **kwargs)
    skip_logits, num_numbers = kwargs.pop("skip_logits", None), kwargs.pop("num_numbers_in_batch", None)
    given = {**dict(zip(patch.parameters, args)), **kwargs}  # noqa: B905 - any `strict` is True to torch 2.8's compiler
    has_labels = given.get("labels") is not None or given.get("shift_labels") is not None
    trains = has_labels and (num_numbers is not None or may_train(model))
    if skip_logits is False and trains:
        raise ValueError(
            "a model patched by apply_ntl_to_model has no logits in training; got skip_logits=False: call it in "
            "evaluation mode under torch.no_grad(), or without labels"
        )
    if skip_logits and not has_labels:
        raise ValueError("skip_logits=True needs labels, but got none")
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
        targets = choose_targets(labels, None, patch.options.shift)
        put_decoder_inputs(model, given, labels)
    else:
        targets = choose_targets(labels, shift_labels, patch.options.shift)
        given["labels"] = targets  # the model only checks whether there are labels
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace how T5 creates its cache
        given.setdefault("use_cache", False)
    transform = patch.read_transform(model)
    patch.parts, patch.call = None, Call(type(model).__name__, transform, targets, num_items, num_numbers)
    try:
        output = body_forward(model, patch, given)
        loss = seq2seq_loss(model, patch, output, given) if is_encoder_decoder(model) else output.loss
        if not patch.call.is_taken:
            raise RuntimeError(
                f"{type(model).__name__} did not take its loss from its head via loss_function: its forward or its "
                "loss_function was replaced after apply_ntl_to_model"
            )
    finally:
        patch.call = None
    patch.watch.has_run = True
    fields = {name: value for name, value in output.items() if name not in ("loss", "logits")}
    output = type(output)(loss=loss * patch.added_factor, **fields)
    return output if return_dict or (return_dict is None and model.config.return_dict) else output.to_tuple()


def body_forward(model: Any, patch: Patch, given: dict[str, Any]) -> Any:
    """The output of the model's own forward, in which the head stores the loss in the call and returns probes."""
    call = patch.call
    assert call is not None
    try:
        return stock_forward(model, patch)(**given, return_dict=True)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if call.loss is None or call.is_taken or isinstance(error, (PatchError, torch.OutOfMemoryError)):
            raise
        raise RuntimeError(
            f"{call.name} computes something from its logits besides its loss, but a model patched by "
            f"apply_ntl_to_model has no logits in training: {train_on_logits(model)}. It raised: {error}"
        ) from error


def seq2seq_loss(model: Any, patch: Patch, output: Any, given: dict[str, Any]) -> Tensor:
    """The loss of an encoder-decoder model that was called without labels."""
    loss, added = take_loss(patch, output.logits), added_loss(model, output, given)
    return loss if added is None else loss + added


def head_forward(head: Any, hidden: Tensor) -> Tensor:
    """The forward of a patched head: stores the loss of hidden [..., H] in the call and returns probes [1, ..., 8]."""
    patch: Patch | None = getattr(head, PATCH, None)
    call = None if patch is None else patch.call
    if patch is None or call is None:
        return type(head).forward(head, hidden)
    if call.loss is not None:
        raise PatchError("the model ran its head twice in one forward pass; apply_ntl_to_model supports only one run")
    check_weight(head.weight)
    loss = head_loss(patch, call, hidden, head.weight, head.bias)
    call.hidden = local(hidden)
    return as_columns(make_probes(call.hidden) + anchor(loss), head.weight)


def head_loss(patch: Patch, call: Call, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the loss (0-d) of hidden [..., H]; store it in the call and its parts in the patch."""
    targets = call.targets.to(hidden.device)
    keywords = {
        **patch.options.keywords(),
        **patch.fused,
        "logit_scale": call.transform.logit_scale,
        "softcap": call.transform.softcap,
        **denominators(targets, patch.options, call.num_items, call.num_numbers),
    }
    output = linear_cross_entropy_ntl(
        hidden, weight, targets, patch.options.numbers, bias=bias, return_parts=True, **keywords
    )
    assert isinstance(output, NTLOutput)
    loss, *parts = as_plain(output)  # torch 2.8 cannot trace a slice of a named tuple
    call.loss, patch.parts = loss / patch.added_factor, (loss.detach(), *parts)
    return call.loss


def model_loss(patch: Patch, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The loss function of a patched model; in evaluation the previous one."""
    if patch.call is None:
        assert patch.stock_loss is not None
        return patch.stock_loss(logits, *args, **kwargs)
    return take_loss(patch, logits)


def take_loss(patch: Patch, logits: Tensor) -> Tensor:
    """The loss that the head stored; raise unless the model transformed the probes as the loss assumed."""
    call = patch.call
    assert call is not None
    if call.loss is None or call.hidden is None:
        raise RuntimeError(f"the head of {call.name} did not run: it was replaced after apply_ntl_to_model")
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
    """A 0 that is part of a tensor's graph.

    The loss is not part of the head's output. Connecting the two through such zeros, in both directions, makes the
    backward pass of the loss run after the hooks on that output, in which FSDP gathers the head's weight.
    """
    return tensor.reshape(-1)[:0].sum()


def check_head(head: Any, model: Any) -> None:
    """Raise unless the head is a plain nn.Linear without adapters, quantisation or another forward."""
    name = type(model).__name__
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        raise TypeError(
            f"the head of {name} must be an nn.Linear without adapter or quantisation; got {kind}: "
            f"{advice_on_head(kind, model)}{train_on_logits(model)}"
        )
    own = head.__dict__.get("forward")
    is_free = own is None or is_ours(own, head_forward, nn.Linear.forward)
    if not is_free and inner_forward(head) is None:
        check_hooks(head, f"the head of {name}", train_on_logits(model))
        raise ValueError(f"the forward of the head of {name} has already been replaced by {describe(head.forward)}")


def check_weight(weight: Any) -> None:
    """Raise unless the loss can be computed from the head's weight as it is when the model runs."""
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
