"""`NTLWeightCallback`: what the stock ``Trainer`` cannot say in its log by itself."""

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
    """Logs ``ntl_weight_in_effect`` for the stock ``Trainer``: ``Trainer(..., callbacks=[NTLWeightCallback()])``.

    It is lambda times the share of the tokens since the last log that were in batches with numbers, over all processes:
    what a mean NTL over numbers really weighs where only tokens are counted. It goes into the log's entry
    (``trainer.state.log_history``) and to the callbacks that come after this one. Of a model that ``torch.compile`` has
    compiled nothing is logged.

    Args:
        loss_function: what :func:`ntl_compute_loss_func` or :func:`ntl_loss_function` returned; default: the loss that
            :func:`apply_ntl_to_model` or :func:`set_ntl_loss_function` put on the Trainer's model.

    Raises:
        TypeError: a loss function of another origin.
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
