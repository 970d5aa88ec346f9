"""The code that runs in a model patched by `apply_ntl_to_model`.

The model's own forward runs unchanged, without labels. Its head computes the fused-linear loss instead of logits
(inside its own ``__call__``, so that the hooks of sharding and adapters run) and returns a few probes in place of
logits. The model's own scaling and softcap act on the probes, which shows how it transforms logits: the first call
verifies the transform that the loss assumed, or runs once more with the right one. What the model's forward adds to its
cross-entropy is then added to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.utils.checkpoint import get_device_states, set_device_states

from ...functional import linear_cross_entropy_ntl
from ...tracing import PLAIN_TYPES, has_dtensor
from .forwards import INSTALLED, Installed, describe, may_train, thread, unbound
from .frameworks import advice_on_head, check_hooks, find_head
from .models import added_loss, is_encoder_decoder, put_decoder_inputs, train_on_logits
from .probes import NUM_PROBES, LogitTransform, Reading, make_probes
from .targets import (
    NUM_NUMBERS,
    OUR_KEYWORDS,
    Targets,
    Window,
    choose_targets,
    label_names,
    loss_keywords,
    measured_shift,
)

LOSS_FUNCTION = "_loss_function"
"""The attribute in which transformers stores a loss function that was assigned to a model."""


class PatchError(RuntimeError):
    """An error of this module that the model's own forward passes on."""


@dataclass(eq=False)
class Call:
    """One forward pass that computes the loss."""

    transform: LogitTransform
    targets: Targets
    window: Window
    bias: Tensor | None
    """[1, V] that BART and its family add to the output of their head; a buffer."""
    probes: Tensor | None = None
    """[1, ..., V]: what the head returned. The model may have changed it in place."""
    loss: Tensor | None = None


@dataclass(eq=False, kw_only=True)
class Patch(Installed):
    """The state that a patched model and its head share."""

    fused: dict[str, Any]
    """Keywords that only the fused loss has."""
    reading: Reading
    """How the model transforms its head's output."""
    loss_function: Any = None
    """The loss function that had been assigned to the model before; evaluation uses it."""
    beneath: dict[str, Any] = field(default_factory=dict)
    """accelerate's wrapper of the model's own forward, called instead of that forward."""
    planned_head: Callable[..., Tensor] | None = None
    """The forward that a tensor-parallel plan of transformers has installed on the head; None without one."""
    added_factor: float = 1.0
    """The factor of the model's own additions to the loss (router losses)."""
    calls: dict[int, Call] = field(default_factory=dict)
    """The forward pass of each thread."""
    parts: tuple[Tensor, ...] | None = None
    """The fields of the last NTLOutput, detached; in a plain tuple, as compiled graphs of torch 2.11 return it."""

    def stock_forward(self, model: Any) -> Callable[..., Any]:
        """The model's own forward, bound."""
        return self.beneath.get("forward") or partial(type(model).forward, model)


def model_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a patched model: its own forward, except for calls that may train."""
    patch = getattr(model, INSTALLED, None)
    if not isinstance(patch, Patch):  # a wrapper that holds this function is still there
        return type(model).forward(model, *args, **kwargs)
    given = patch.arguments(args, kwargs)
    trains = label_names(given) and (given.get(NUM_NUMBERS) is not None or may_train(model))
    skip_logits = given.get("skip_logits")
    if skip_logits is False and trains:
        raise ValueError(
            "a model patched by apply_ntl_to_model has no logits in training; got skip_logits=False: call it in "
            "evaluation mode under torch.no_grad(), or without labels"
        )
    if skip_logits and not label_names(given):
        raise ValueError("skip_logits=True needs labels, but got none")
    if not (skip_logits or trains):
        ours = OUR_KEYWORDS if patch.takes_any else (*OUR_KEYWORDS, "num_items_in_batch")
        theirs = {name: value for name, value in kwargs.items() if name not in ours}
        return patch.stock_forward(model)(*args, **theirs)
    if len(args) + len(kwargs) > len(given):
        raise TypeError(f"{type(model).__name__} got an argument both by position and by name")
    return train_forward(model, patch, given)


def train_forward(model: Any, patch: Patch, given: dict[str, Any]) -> Any:
    """The output of a forward pass with these arguments, whose loss comes from hidden states."""
    check_head_now(model, patch)
    if model.__dict__.get(LOSS_FUNCTION) is not patch.loss_function:
        raise RuntimeError(
            f"a loss_function was assigned to {type(model).__name__} after apply_ntl_to_model, which would ignore it: "
            "call remove_ntl_from_model(model) to train with it"
        )
    names = ("labels", "shift_labels", "num_items_in_batch", "return_dict", *OUR_KEYWORDS)
    labels, shift_labels, num_items, return_dict, num_numbers, weights, _ = [given.pop(name, None) for name in names]
    if patch.options.shift is None and shift_labels is None:
        shift = measured_shift(model, given | {"labels": labels, "return_dict": True}, patch.stock_forward(model))
        patch.options = replace(patch.options, shift=shift)
    targets = choose_targets(labels, shift_labels, patch.options.shift, weights)
    if is_encoder_decoder(model):
        put_decoder_inputs(model, given, targets.labels if labels is None else labels)
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace how T5 creates its cache
        given.setdefault("use_cache", False)
    is_guess = not (patch.reading.is_final or torch.compiler.is_compiling())
    random_states = (torch.get_rng_state(), *get_device_states(*model.parameters())) if is_guess else None
    window = Window(patch.options, num_items, num_numbers)
    output, loss = run(model, patch, targets, window, given)
    if loss is None and random_states is not None:  # once more, by the transform that the model turned out to have
        del output  # and with it what the first run has kept for its gradient
        torch.set_rng_state(random_states[0])
        set_device_states(*random_states[1:])
        output, loss = run(model, patch, targets, window, given)
    loss = loss + added_loss(model, output, given) * patch.added_factor
    patch.has_run[thread()] = True
    fields = {name: value for name, value in output.items() if name not in ("loss", "logits")}
    output = type(output)(loss=loss, **fields)
    return output if return_dict or (return_dict is None and model.config.return_dict) else output.to_tuple()


def run(model: Any, patch: Patch, targets: Targets, window: Window, given: dict[str, Any]) -> tuple[Any, Any]:
    """The output of the model's own forward without labels, in which the head computes the loss, and the loss; None
    instead of it if the head assumed another transform than the model has."""
    name = type(model).__name__
    call = Call(patch.reading.transform, targets, window, getattr(model, "final_logits_bias", None))
    patch.calls[thread()] = call
    try:
        output = patch.stock_forward(model)(**given, return_dict=True)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if call.loss is None or isinstance(error, (PatchError, torch.OutOfMemoryError)):
            raise
        raise RuntimeError(
            f"{name} computes something from its logits besides its loss, but a model patched by apply_ntl_to_model "
            f"has no logits in training: {train_on_logits(model)}. It raised: {error}"
        ) from error
    finally:
        del patch.calls[thread()]
    if call.loss is None or call.probes is None:
        raise RuntimeError(f"the head of {name} did not run: it was replaced after apply_ntl_to_model")
    logits, columns = local(output["logits"]), call.probes.shape[-1]
    loss = call.loss + anchor(logits)
    if columns == NUM_PROBES:  # of this rank; a plan may have gathered those of all
        logits = logits[..., :columns]
    if call.bias is not None:
        logits = logits - call.bias[..., :columns]
    return output, patch.reading.confirmed(loss, call.transform, call.probes, logits, model)


def head_forward(head: Any, hidden: Tensor) -> Tensor:
    """The forward of a patched head: stores the loss of hidden [B..., H] in the call; returns probes [1, ..., V]."""
    patch: Patch | None = getattr(head, INSTALLED, None)
    call = None if patch is None else patch.calls.get(thread())
    is_split_here = has_dtensor(head.weight) and not has_dtensor(hidden)  # the plan's forward does it otherwise
    if patch is None or call is None:
        if patch is not None and patch.planned_head is not None and is_split_here:
            return patch.planned_head(hidden)
        return type(head).forward(head, hidden)
    if call.loss is not None:
        raise PatchError("the model ran its head twice in one forward pass; apply_ntl_to_model supports only one run")
    check_weight(head.weight)
    on_all = on_ranks_of(head.weight, hidden, is_split=False) if is_split_here else hidden
    bias = head.bias if call.bias is None else call.bias[0] if head.bias is None else head.bias + call.bias[0]
    call.loss = head_loss(patch, call, on_all, head.weight, bias)
    is_split = has_dtensor(head.weight)
    columns = NUM_PROBES if is_split else max(NUM_PROBES, head.out_features)
    call.probes = make_probes(local(hidden), columns) + anchor(call.loss)
    return on_ranks_of(head.weight, call.probes, is_split=True) if is_split and not is_split_here else call.probes


def head_loss(patch: Patch, call: Call, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The loss (0-d) of hidden [B..., H]; its parts are stored in the patch."""
    targets = call.targets.to(hidden.device)
    keywords = {**loss_keywords(targets, call.window), **patch.fused, **call.transform._asdict(), "bias": bias}
    output = linear_cross_entropy_ntl(hidden, weight, targets.labels, patch.options.numbers, **keywords)
    loss, *parts = [local(part) for part in output]
    patch.parts = (loss.detach(), *parts)
    return loss


def anchor(tensor: Tensor) -> Tensor:
    """A 0 that is part of a tensor's graph.

    Through such zeros the loss depends on the head's output, and that on the loss, so that the loss's backward pass
    runs after the hooks on that output, in which FSDP gathers the head's weight.
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
    forward = head.__dict__.get("forward")
    if not (forward is None or is_planned(forward) or unbound(forward) in (head_forward, nn.Linear.forward)):
        check_hooks(head, f"the head of {name}", train_on_logits(model))
        raise ValueError(f"the forward of the head of {name} has already been replaced by {describe(head.forward)}")


def is_planned(forward: Any) -> bool:
    """Whether a head's forward comes from a tensor-parallel plan of transformers."""
    return getattr(forward, "__module__", None) == "transformers.distributed.tensor_parallel"


def check_weight(weight: Any) -> None:
    """Raise unless the loss can be computed from the head's weight as it is when the model runs."""
    if not (type(weight) in (*PLAIN_TYPES, FakeTensor) or has_dtensor(weight)):
        raise TypeError(
            f"the head's weight must be a plain tensor or a DTensor when the model runs; got {type(weight).__name__}. "
            "Quantised heads are not supported by apply_ntl_to_model: use NTLTrainer on the bare model"
        )


def check_head_now(model: Any, patch: Patch) -> None:
    """Raise unless the head is still the one that was patched."""
    head = find_head(model)
    if head.__dict__.get(INSTALLED) is not patch:
        check_head(head, model)
        raise RuntimeError(f"the head of {type(model).__name__} was replaced: call apply_ntl_to_model again")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the whole tensor if it is not split."""
    return tensor.to_local() if has_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def on_ranks_of(weight: Any, tensor: Tensor, is_split: bool) -> Tensor:
    """A DTensor on the weight's ranks, which have the tensor in whole or, of the last dimension, a part each."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = weight.device_mesh
    return DTensor.from_local(tensor, mesh, [Shard(-1)] if is_split else [Replicate()] * mesh.ndim, run_check=False)
