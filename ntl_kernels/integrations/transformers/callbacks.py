"""`NTLWeightCallback`: logs the effective weight of NTL, which the stock ``Trainer`` does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback

from .functions import keywords_of
from .losses import LossOptions
from .patch import options_on


class NTLWeightCallback(TrainerCallback):
    """Logs ``ntl_weight_in_effect`` with the stock ``Trainer``: ``Trainer(..., callbacks=[NTLWeightCallback()])``.

    The effective weight is lambda times the share of the tokens since the last log that were in batches with numbers,
    over all processes. It applies when NTL is a mean over numbers, but only the tokens of a window are counted. The
    value is added to ``trainer.state.log_history`` and passed to the callbacks after this one. For a model compiled by
    ``torch.compile`` nothing is logged.

    Args:
        loss_function: the function returned by :func:`ntl_compute_loss_func` or :func:`ntl_loss_function`; default: the
            loss that :func:`apply_ntl_to_model` or :func:`set_ntl_loss_function` installed on the Trainer's model.

    Raises:
        TypeError: the loss function comes from somewhere else.
    """

    def __init__(self, loss_function: Callable[..., Tensor] | None = None) -> None:
        self.options = None if loss_function is None else keywords_of(loss_function).get("options")
        if loss_function is not None and not isinstance(self.options, LossOptions):
            raise TypeError(
                "loss_function must come from ntl_compute_loss_func or ntl_loss_function; got "
                f"{type(loss_function).__name__}"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        installed = None if model is None else options_on(model)
        options = self.options if installed is None else installed[1]
        if options is None or logs is None or "loss" not in logs:
            return
        totals = options.estimate.take(args.device)
        if dist.is_initialized():
            dist.all_reduce(totals)
        tokens, tokens_with_numbers = totals.tolist()
        if tokens > 0:
            entry = {"ntl_weight_in_effect": float(options.config.weight) * tokens_with_numbers / tokens}
            logs.update(entry)
            if state.log_history:
                state.log_history[-1].update(entry)
