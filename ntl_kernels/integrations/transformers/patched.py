"""The code that runs in a model patched by `apply_ntl_to_model`.

The body of the model runs unchanged. Its head computes the fused-linear loss instead of logits (inside its own
``__call__``, so that the hooks of sharding and adapters run) and returns a few probes in place of logits. The model's
own scaling and softcap act on the probes, which verifies the transform that the loss assumed. Its ``loss_function``
then returns the loss, to which the model may add an auxiliary one. Encoder-decoder models, which compute their
cross-entropy inside their forward, are called without labels, and the loss is attached to their output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from ...functional import linear_cross_entropy_ntl
from ...tracing import PLAIN_TYPES, has_dtensor, has_values
from .forwards import INSTALLED, Installed, describe, may_train, unbound
from .frameworks import advice_on_head, check_hooks, find_head
from .losses import NUMBER_WEIGHTS, Count, Targets, choose_targets, denominators, label_names
from .models import LogitTransform, added_loss, is_encoder_decoder, put_decoder_inputs, train_on_logits, transform_of

NUM_PROBES = 8


class PatchError(RuntimeError):
    """An error of this module that the model's own forward passes on."""


@dataclass(eq=False)
class Call:
    """One forward pass that computes the loss."""

    name: str
    transform: LogitTransform
    targets: Targets
    num_items: Count | None
    num_numbers: Count | None
    hidden: Tensor | None = None
    loss: Tensor | None = None
    is_taken: bool = False


@dataclass(eq=False, kw_only=True)
class Patch(Installed):
    """The state that a patched model and its head share."""

    fused: dict[str, Any]
    """Keywords that only the fused loss has."""
    declared: LogitTransform | None
    """The transform that the caller declared; None: that of the model's current configuration."""
    beneath: dict[str, Any] = field(default_factory=dict)
    """accelerate's wrapper of the model's own forward, called instead of that forward."""
    planned_head: Callable[..., Tensor] | None = None
    """The forward that a tensor-parallel plan of transformers has installed on the head; None without one."""
    stock_loss: Callable[..., Tensor] | None = None
    """The loss function that the model uses in evaluation; None for an encoder-decoder model."""
    own_loss: Callable[..., Tensor] | None = None
    """The loss function that had been assigned to the model before."""
    added_factor: float = 1.0
    """The factor of the model's own additions to the loss (router losses)."""
    proven: LogitTransform | None = None
    """The last transform that the probes confirmed; cached, because reading the probes waits for the device."""
    call: Call | None = None
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
    names = ("skip_logits", "num_numbers_in_batch", NUMBER_WEIGHTS)
    skip_logits, num_numbers, number_weights = [kwargs.pop(name, None) for name in names]
    given = patch.arguments(args, kwargs)
    trains = label_names(given) and (num_numbers is not None or may_train(model))
    if skip_logits is False and trains:
        raise ValueError(
            "a model patched by apply_ntl_to_model has no logits in training; got skip_logits=False: call it in "
            "evaluation mode under torch.no_grad(), or without labels"
        )
    if skip_logits and not label_names(given):
        raise ValueError("skip_logits=True needs labels, but got none")
    if not (skip_logits or trains):
        if not patch.takes_any:
            kwargs.pop("num_items_in_batch", None)
        return patch.stock_forward(model)(*args, **kwargs)
    if len(args) + len(kwargs) > len(given):
        raise TypeError(f"{type(model).__name__} got an argument both by position and by name")
    return train_forward(model, patch, given, num_numbers, number_weights)


def train_forward(
    model: Any, patch: Patch, given: dict[str, Any], num_numbers: Count | None, number_weights: Tensor | None
) -> Any:
    """The output of a forward pass whose loss comes from hidden states."""
    check_head_now(model, patch)
    labels, shift_labels = given.pop("labels", None), given.pop("shift_labels", None)
    num_items, return_dict = given.pop("num_items_in_batch", None), given.pop("return_dict", None)
    if is_encoder_decoder(model):
        targets = choose_targets(labels, None, patch.options.shift, number_weights)
        put_decoder_inputs(model, given, labels)
    else:
        targets = choose_targets(labels, shift_labels, patch.options.shift, number_weights)
        given["labels"] = targets.labels  # the model only checks whether there are labels
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace how T5 creates its cache
        given.setdefault("use_cache", False)
    transform = transform_of(model) if patch.declared is None else patch.declared
    patch.parts, patch.call = None, Call(type(model).__name__, transform, targets, num_items, num_numbers)
    try:
        output = body_forward(model, patch, given)
        loss = output.loss
        if is_encoder_decoder(model):  # it was called without labels
            loss, added = take_loss(patch, output.logits), added_loss(model, output, given)
            loss = loss if added is None else loss + added
        if not patch.call.is_taken:
            raise RuntimeError(
                f"{type(model).__name__} did not get its loss from its head via loss_function: its forward or its "
                "loss_function was replaced after apply_ntl_to_model"
            )
    finally:
        patch.call = None
    patch.has_run = True
    fields = {name: value for name, value in output.items() if name not in ("loss", "logits")}
    output = type(output)(loss=loss * patch.added_factor, **fields)
    return output if return_dict or (return_dict is None and model.config.return_dict) else output.to_tuple()


def body_forward(model: Any, patch: Patch, given: dict[str, Any]) -> Any:
    """The output of the model's own forward, in which the head stores the loss in the call and returns probes."""
    call = patch.call
    assert call is not None
    try:
        return patch.stock_forward(model)(**given, return_dict=True)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if call.loss is None or call.is_taken or isinstance(error, (PatchError, torch.OutOfMemoryError)):
            raise
        raise RuntimeError(
            f"{call.name} computes something from its logits besides its loss, but a model patched by "
            f"apply_ntl_to_model has no logits in training: {train_on_logits(model)}. It raised: {error}"
        ) from error


def head_forward(head: Any, hidden: Tensor) -> Tensor:
    """The forward of a patched head: stores the loss of hidden [B..., H] in the call and returns probes [1, ..., 8]."""
    patch: Patch | None = getattr(head, INSTALLED, None)
    call = None if patch is None else patch.call
    is_split_here = has_dtensor(head.weight) and not has_dtensor(hidden)  # the plan's forward does it otherwise
    if patch is None or call is None:
        if patch is not None and patch.planned_head is not None and is_split_here:
            return patch.planned_head(hidden)
        return type(head).forward(head, hidden)
    if call.loss is not None:
        raise PatchError("the model ran its head twice in one forward pass; apply_ntl_to_model supports only one run")
    check_weight(head.weight)
    on_all = on_ranks_of(head.weight, hidden, is_split=False) if is_split_here else hidden
    loss = head_loss(patch, call, on_all, head.weight, head.bias)
    call.hidden = local(hidden)
    probes = make_probes(call.hidden) + anchor(loss)
    is_split = has_dtensor(head.weight) and not is_split_here
    return on_ranks_of(head.weight, probes, is_split=True) if is_split else probes


def head_loss(patch: Patch, call: Call, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the loss (0-d) of hidden [B..., H]; store it in the call and its parts in the patch."""
    targets = call.targets.to(hidden.device)
    keywords = {
        **patch.options.keywords(),
        **patch.fused,
        "logit_scale": call.transform.logit_scale,
        "softcap": call.transform.softcap,
        **denominators(targets, patch.options, call.num_items, call.num_numbers),
    }
    keywords |= {"bias": bias, "return_parts": True, NUMBER_WEIGHTS: targets.number_weights}
    output = linear_cross_entropy_ntl(hidden, weight, targets.labels, patch.options.numbers, **keywords)
    loss, *parts = [local(part) for part in output]
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
    logits = local(logits)[..., :NUM_PROBES]  # a plan may have gathered those of all ranks
    loss, expected = call.loss + anchor(logits), transformed(make_probes(call.hidden), call.transform)
    if not has_values(logits):
        return torch.where(are_close(logits, expected), loss, torch.nan)
    if patch.proven != call.transform:
        if logits.shape != expected.shape or not are_close(logits, expected):
            raise ValueError(
                f"{call.name} does not turn its head's output into logits by {call.transform}: it turned "
                f"{shown(make_probes(call.hidden))} into {shown(logits)} of shape {tuple(logits.shape)}; expected "
                f"{shown(expected)} of shape {tuple(expected.shape)}"
            )
        patch.proven = call.transform
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


def make_probes(hidden: Tensor) -> Tensor:
    """float32 [1, ..., 1, 8] on the device of hidden [B..., H]: small and large values in place of logits."""
    probes = torch.linspace(-6, 6, NUM_PROBES, device=hidden.device, dtype=torch.float32).sinh()
    return probes.view((1,) * (hidden.ndim - 1) + (NUM_PROBES,))


def transformed(probes: Tensor, transform: LogitTransform) -> Tensor:
    """The probes as a model with this transform returns them."""
    scaled = transform.logit_scale * probes
    return scaled if transform.softcap is None else transform.softcap * torch.tanh(scaled / transform.softcap)


def are_close(logits: Tensor, expected: Tensor) -> Tensor:
    """Whether a model's probes are the expected ones: bool, 0-d, on their device."""
    return torch.isclose(logits.detach().float(), expected, rtol=1e-2, atol=1e-3).all()


def shown(probes: Tensor) -> list[float]:
    """The values of probes for a message."""
    return [float(f"{value:.4g}") for value in probes.detach().flatten()[:NUM_PROBES].tolist()]
