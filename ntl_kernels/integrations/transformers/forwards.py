"""Replacing a model's forward or loss, and checking that the model is trained with the loss installed on it.

Some tools replace a model's forward (the fused heads of TRL and Liger), or withhold the labels and compute a loss of
their own (the Trainer's label smoothing). Both silently train with plain cross-entropy. A hook on the calls of a
watched model raises an error if our loss was not computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from .frameworks import REPLACED_FORWARD, check_loss


def unbound(function: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def innermost(function: Any) -> Any:
    """The function inside partials, bound methods and ``functools.wraps``."""
    while True:
        function = unbound(function)
        if not hasattr(function, "__wrapped__"):
            return function
        function = function.__wrapped__


def describe(function: Any) -> str:
    """The module and name of a function's own code, even if it has taken the name of a function that it wraps."""
    function = unbound(function)
    if not hasattr(function, "__code__"):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{function.__globals__.get('__name__', '?')}.{function.__code__.co_name}"


def is_ours(function: Any, *ours: Callable[..., Any]) -> bool:
    """Whether a function is a partial, or bound method, of one of ours."""
    return unbound(function) in ours


class BoundForward(partial):  # type: ignore[type-arg]
    """``partial(function, model)`` with a ``__func__``, like a bound method.

    accelerate wraps a method's function and binds the result to the model, both when it wraps and when it unwraps.
    Unlike a method, a partial can be pickled.
    """

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.func


def with_signature(forward: partial[Any], stock: Callable[..., Any], bound: bool = False) -> partial[Any]:
    """The partial with the signature of the forward that it replaces; the Trainer reads the arguments from it.

    Does not use ``functools.wraps``, because accelerate unwraps everything that has ``__wrapped__``.
    """
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(stock).parameters.values()]
    forward.__signature__ = inspect.Signature(parameters[bound:])  # type: ignore[attr-defined]
    return forward


def may_train(model: Any) -> bool:
    """Whether a call of the model may train it.

    Its mode alone does not tell: ``from_pretrained`` returns a model in evaluation mode, and Lightning and hand-written
    loops train it in that mode.
    """
    return bool(model.training) or torch.is_grad_enabled()


@dataclass(eq=False)
class Watch:
    """Records whether the current forward pass has computed the loss that ``installer`` put on the model."""

    installer: str
    parameters: list[str]
    """The names of the model's positional arguments."""
    in_evaluation: bool
    """Whether calls that cannot train must compute the loss, too."""
    has_run: bool = False


def start_watch(model: Any, watch: Watch) -> None:
    """Make every call of the model with labels raise an error if it does not compute the loss."""
    model.register_forward_hook(partial(check_loss_has_run, watch), with_kwargs=True)


def stop_watch(model: Any) -> None:
    """Undo :func:`start_watch`; also works on a copy of the model."""
    for key, hook in list(model._forward_hooks.items()):
        if isinstance(hook, partial) and hook.func is check_loss_has_run:
            del model._forward_hooks[key]
            model._forward_hooks_with_kwargs.pop(key, None)


def watched_loss(watch: Watch, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Call a model's loss function and record that it ran."""
    loss = function(*args, **kwargs)
    watch.has_run = True
    return loss


def check_loss_has_run(watch: Watch, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
    """Raise if the call had labels, or a Trainer withheld them, but the loss was not computed."""
    has_run, watch.has_run = watch.has_run, False
    if has_run and not torch.compiler.is_compiling():
        check_loss(watch.installer)
    given = {**dict(zip(watch.parameters, args)), **kwargs}  # noqa: B905 - any `strict` is True to torch 2.8's compiler
    if has_run or not (may_train(model) or watch.in_evaluation or given.get("num_numbers_in_batch") is not None):
        return
    name = type(model).__name__
    if given.get("labels") is not None or given.get("shift_labels") is not None:
        raise RuntimeError(
            f"{name} ran without the loss of {watch.installer}: its forward is {describe(model.forward)}, so it was "
            f"replaced or never calls a loss_function. {REPLACED_FORWARD}. A model that computes its cross-entropy "
            "inside its forward (T5 and most encoder-decoder models) needs apply_ntl_to_model(model, numbers), or "
            "NTLTrainer or NTLSeq2SeqTrainer with numbers=numbers"
        )
    if given.get("num_items_in_batch") is not None:
        raise RuntimeError(
            f"a Trainer withheld the labels from {name} to compute its own loss instead of that of {watch.installer}: "
            f"pass label_smoothing to {watch.installer} instead of label_smoothing_factor to the Trainer, and do not "
            "use compute_loss_func; or use NTLTrainer"
        )
