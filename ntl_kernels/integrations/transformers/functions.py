"""What a function is beneath its wrappers and where its code is; partials that pass for a model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any


def unbound(function: Any) -> Any:
    """The function of partials and bound methods."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def keywords_of(function: Any) -> dict[str, Any]:
    """The keywords that a partial was given; none for another function."""
    return dict(function.keywords) if isinstance(function, partial) else {}


def innermost(function: Any) -> Any:
    """The function beneath partials, bound methods and ``functools.wraps``."""
    while True:
        function = unbound(function)
        if not hasattr(function, "__wrapped__"):
            return function
        function = function.__wrapped__


def describe(function: Any) -> str:
    """Where a function's code is; what it wraps may be elsewhere and have lent it its name."""
    function = unbound(function)
    if not hasattr(function, "__code__"):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{function.__globals__.get('__name__', '?')}.{function.__code__.co_name}"


def names_in(function: Callable[..., Any]) -> set[str]:
    """The attributes and globals that a function's code names, those of functions inside it included."""
    names, codes = set(), [getattr(innermost(function), "__code__", None)]
    while codes:
        code = codes.pop()
        if code is not None:
            names |= set(code.co_names)
            codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


def is_ours(function: Any, *ours: Callable[..., Any]) -> bool:
    """Whether a function is a partial, or bound method, of one of ours."""
    return unbound(function) in ours


class BoundForward(partial):  # type: ignore[type-arg]
    """``partial(function, model)`` that shows its function, as a bound method does.

    accelerate wraps the function of a method and binds the result to the model, again when it unwraps it. Unlike a
    method, a partial goes through pickle.
    """

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.func


def with_signature(forward: partial[Any], stock: Callable[..., Any], bound: bool = False) -> partial[Any]:
    """The partial with the signature of the forward it stands for, which the Trainer reads to know the arguments.

    Not ``functools.wraps``: accelerate takes off whatever has ``__wrapped__``.
    """
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(stock).parameters.values()]
    forward.__signature__ = inspect.Signature(parameters[bound:])  # type: ignore[attr-defined]
    return forward
