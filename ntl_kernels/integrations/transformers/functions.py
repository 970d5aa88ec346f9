"""Unwraps functions, finds where their code is, and makes partials that can replace a model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any


def unbound(function: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def keywords_of(function: Any) -> dict[str, Any]:
    """The keywords of a partial; empty for other functions."""
    return dict(function.keywords) if isinstance(function, partial) else {}


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


def names_in(function: Callable[..., Any]) -> set[str]:
    """The attributes and globals named in a function's code, including nested functions."""
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
