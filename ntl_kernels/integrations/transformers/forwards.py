"""Replacing a model's forward or loss, and checking that the model is trained with the loss installed on it.

Tools that replace a model's forward (the fused heads of TRL and Liger) or withhold the labels (the Trainer's label
smoothing) would silently train without NTL. A hook on the model's calls raises an error if our loss was not computed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from .frameworks import REPLACED_FORWARD, unwrap_model, uses_ulysses
from .targets import NUMBER_WEIGHTS, NTLOptions, label_names, model_loss

INSTALLED = "_ntl_installed"
"""The attribute that holds what is installed on a model, and on its head if that is patched."""


def unbound(function: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def innermost(function: Any) -> Any:
    """The function inside partials, bound methods and ``functools.wraps``."""
    while hasattr(unbound(function), "__wrapped__"):
        function = unbound(function).__wrapped__
    return unbound(function)


def describe(function: Any) -> str:
    """The module and name of a function's own code, even if it has taken the name of a function that it wraps."""
    function = unbound(function)
    if not hasattr(function, "__code__"):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{function.__globals__.get('__name__', '?')}.{function.__code__.co_name}"


class BoundForward(partial):  # type: ignore[type-arg]
    """``partial(function, model)`` with a ``__func__``, like a bound method, but unlike one it can be pickled.

    accelerate wraps a method's function and binds the result to the model, both when it wraps and when it unwraps.
    """

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.func


def bound_forward(function: Callable[..., Any], model: Any) -> BoundForward:
    """``partial(function, model)`` with the signature from which the Trainer reads names of columns: that of the
    model's own forward and ``number_weights``.

    Does not use ``functools.wraps``, because accelerate unwraps everything that has ``__wrapped__``.
    """
    stock = inspect.signature(type(model).forward)
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in stock.parameters.values()]
    place = len(parameters) - (parameters[-1].kind == inspect.Parameter.VAR_KEYWORD)
    parameters.insert(place, inspect.Parameter(NUMBER_WEIGHTS, inspect.Parameter.KEYWORD_ONLY, default=None))
    of_any_model = partial(function)
    of_any_model.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    bound = BoundForward(of_any_model, model)
    bound.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return bound


@torch.compiler.assume_constant_result
def thread() -> int:
    """The running thread; in compiled code the one that compiled it."""
    return threading.get_ident()


def may_train(model: Any) -> bool:
    """Whether a call of the model may train it, perhaps in evaluation mode, in which ``from_pretrained`` returns it."""
    return bool(model.training) or torch.is_grad_enabled()


@dataclass(eq=False, kw_only=True)
class Installed:
    """A loss on a model, and in which threads the current forward pass has computed it."""

    installer: str
    """The name of the function that installed it."""
    options: NTLOptions
    in_evaluation: bool = True
    """Whether calls that cannot train must also compute the loss."""
    names: tuple[str, ...] = ()
    """The names of the arguments of the model's own forward."""
    takes_any: bool = False
    """Whether that forward accepts arbitrary keywords."""
    has_run: dict[int, bool] = field(default_factory=dict)
    """Whether the current forward pass of a thread has computed the loss."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call of the model by name."""
        return {**dict(zip(self.names, args)), **kwargs}  # noqa: B905 - any `strict` is True to torch 2.8's compiler


def installed_on(model: Any) -> Installed | None:
    """What is installed on a model, bare or wrapped."""
    return getattr(unwrap_model(model), INSTALLED, None)


def install(installed: Installed, model: Any, *parts: Any) -> None:
    """Make every call of the model with labels raise an error if it does not compute the loss."""
    _, *parameters = inspect.signature(type(model).forward).parameters.values()
    installed.names = tuple(parameter.name for parameter in parameters)
    installed.takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    for module in (model, *parts):
        setattr(module, INSTALLED, installed)
    model.register_forward_hook(partial(check_loss_has_run, installed), with_kwargs=True)


def uninstall(model: Any) -> Installed | None:
    """Undo :func:`install`, also on a copy of the model, and return what was installed."""
    for key, hook in list(model._forward_hooks.items()):
        if isinstance(hook, partial) and hook.func is check_loss_has_run:
            del model._forward_hooks[key]
            model._forward_hooks_with_kwargs.pop(key, None)
    installed = model.__dict__.get(INSTALLED)
    for module in model.modules():
        module.__dict__.pop(INSTALLED, None)
    return installed


def watched_loss(installed: Installed, *args: Any, **kwargs: Any) -> Tensor:
    """A model's loss function that records that it ran."""
    loss = model_loss(*args, options=installed.options, **kwargs)
    installed.has_run[thread()] = True
    return loss


def check_loss_has_run(installed: Installed, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
    """Raise if the call had labels, or a Trainer withheld them, but the loss was not computed."""
    name, installer, has_run = type(model).__name__, installed.installer, installed.has_run.pop(thread(), False)
    if has_run and not torch.compiler.is_compiling() and uses_ulysses():
        raise RuntimeError(
            "under DeepSpeed's sequence parallelism (Ulysses) the Trainer weights the losses of the processes by their "
            f"token counts, which makes the NTL of {installer} wrong: use NTLTrainer with context parallelism"
        )
    given = installed.arguments(args, kwargs)
    if has_run or not (may_train(model) or installed.in_evaluation or given.get("num_numbers_in_batch") is not None):
        return
    if label_names(given):
        raise RuntimeError(
            f"{name} ran without the loss of {installer}: its forward is {describe(model.forward)}, so it was "
            f"replaced or never calls a loss_function. {REPLACED_FORWARD}. A model that computes its cross-entropy "
            "inside its forward (T5 and most encoder-decoder models) needs apply_ntl_to_model(model, numbers), or "
            "NTLTrainer or NTLSeq2SeqTrainer with numbers=numbers"
        )
    if given.get("num_items_in_batch") is not None:
        raise RuntimeError(
            f"a Trainer withheld the labels from {name} to compute its own loss instead of that of {installer}: "
            f"pass label_smoothing to {installer} instead of label_smoothing_factor to the Trainer, and do not "
            "use compute_loss_func; or use NTLTrainer"
        )
