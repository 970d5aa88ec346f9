"""Checks that a model is trained with the loss that was installed on it.

Some tools replace a model's forward (the fused heads of TRL and Liger), or withhold the labels and compute a loss of
their own (the Trainer's label smoothing). Both silently train with plain cross-entropy. A hook on the calls of a
watched model raises an error if our loss was not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .frameworks import check_loss, column
from .functions import describe


def may_train(model: Any) -> bool:
    """Whether a call of the model may train it.

    Its mode alone does not tell: ``from_pretrained`` returns a model in evaluation mode, and Lightning and hand-written
    loops train it in that mode.
    """
    return bool(model.training) or torch.is_grad_enabled()


class Watch:
    """Records whether the current forward pass has computed the loss that ``installer`` put on the model."""

    def __init__(self, installer: str, parameters: list[str], in_evaluation: bool) -> None:
        self.installer = installer
        self.parameters = parameters
        """The names of the model's positional arguments."""
        self.in_evaluation = in_evaluation
        """Whether calls that cannot train must compute the loss, too."""
        self.has_run = False


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
            f"replaced or does not call its loss function. {' and '.join(column('later_forward'))} replace the "
            f"forward: use {', and '.join(column('instead'))}"
        )
    if given.get("num_items_in_batch") is not None:
        raise RuntimeError(
            f"a Trainer withheld the labels from {name} to compute its own loss instead of that of {watch.installer}: "
            f"pass label_smoothing to {watch.installer} instead of label_smoothing_factor to the Trainer, and do not "
            "use compute_loss_func; or use NTLTrainer"
        )
