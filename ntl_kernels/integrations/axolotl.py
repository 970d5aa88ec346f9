"""CE + NTL in Axolotl's supervised fine-tuning: `NTLPlugin`, for Axolotl 0.19.

plugins:
  - ntl_kernels.integrations.axolotl.NTLPlugin
ntl_weight: 0.3
"""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from ..config import DEFAULT_CONFIG, NTLConfig
from ..extras import needs

with needs(__name__, "Axolotl", "axolotl>=0.19"):
    from axolotl.integrations.base import BasePlugin

from ..tokens import NumberTokens
from .transformers import apply_ntl_to_model
from .transformers.frameworks import unwrap_model
from .transformers.models import find_head

LOG = logging.getLogger(f"axolotl.{__name__}")  # Axolotl shows what its own loggers say
PREFIX = "ntl_"
OTHER_LOSSES = (
    "cut_cross_entropy",
    "liger_fused_linear_cross_entropy",
    "chunked_cross_entropy",
    "use_eaft",
    "orpo_alpha",
    "rl",
    "reward_model",
    "process_reward_model",
)
"""Options of Axolotl that choose another loss."""
COUNTED_ROWS = 10_000
"""How many rows of the training data say how many tokens there are for each number."""


class NTLArgs(BaseModel):
    """The keys that the plugin adds to Axolotl's configuration, which Axolotl checks with its own.

    Args:
        ntl_weight: lambda, the factor of NTL beside cross-entropy.
        ntl_kind, ntl_reweigh, ntl_squash_factor: as in :class:`NTLConfig`.
        ntl_mean_over: what ``ntl_weight`` is the factor of. ``numbers``: of the mean of NTL over the number tokens, as
            everywhere in this library. ``tokens``: of the NTL of every token. Axolotl's Trainer averages losses over
            the tokens of each batch, so the loss is that of ``NTLConfig(mean_over="tokens")`` either way; the first
            translates the weight by the labels of the training data.
        ntl_digits_only, ntl_space_prefixed: as in :meth:`NumberTokens.from_tokenizer`.
    """

    ntl_weight: float = Field(default=float(DEFAULT_CONFIG.weight), ge=0)
    ntl_kind: Literal["wasserstein", "mse", "mae", "huber"] = "wasserstein"
    ntl_reweigh: bool = DEFAULT_CONFIG.reweigh
    ntl_squash_factor: float | None = None
    ntl_mean_over: Literal["numbers", "tokens"] = "numbers"
    ntl_digits_only: bool = True
    ntl_space_prefixed: bool = False

    @model_validator(mode="before")
    @classmethod
    def check_ntl_names(cls, data: Any) -> Any:
        """Raise for a misspelt key of ours: Axolotl silently drops keys that it does not know."""
        unknown = [name for name in data if str(name).startswith(PREFIX) and name not in NTLArgs.model_fields]
        if unknown:
            raise ValueError(f"unknown {', '.join(unknown)}: NTLPlugin has {', '.join(NTLArgs.model_fields)}")
        return data

    @model_validator(mode="after")
    def check_ntl(self) -> NTLArgs:
        """Raise for options that contradict each other, or that choose another loss."""
        ntl_config(self)
        others = [name for name in OTHER_LOSSES if getattr(self, name, None)]
        if others:
            raise ValueError(f"NTLPlugin is the loss of supervised fine-tuning; got {', '.join(others)} beside it")
        if (getattr(self, "context_parallel_size", None) or 1) > 1:
            raise ValueError("NTLPlugin does not support context_parallel_size, with which Axolotl gathers logits")
        return self


class NTLPlugin(BasePlugin):
    """Axolotl's plugin: the model that is trained computes CE + NTL from its hidden states.

    :func:`apply_ntl_to_model` patches it once its Trainer is made. The Trainer is Axolotl's own, with all that it does
    for packed rows. Keys of the configuration: :class:`NTLArgs`. In evaluation the loss is cross-entropy alone, as
    without the plugin.

    Raises:
        ValueError: the training data has no labels or no numbers, or streams, with ``ntl_mean_over: numbers``; besides
            what :class:`NTLArgs`, :meth:`NumberTokens.from_tokenizer` and :func:`apply_ntl_to_model` raise.
    """

    def get_input_args(self) -> str:
        return f"{NTLArgs.__module__}.{NTLArgs.__qualname__}"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Patch the Trainer's model, with the number tokens of its tokenizer."""
        head = find_head(unwrap_model(trainer.model))
        numbers = NumberTokens.from_tokenizer(
            trainer.processing_class,
            vocab_size=head.out_features,
            digits_only=cfg.ntl_digits_only,
            space_prefixed=cfg.ntl_space_prefixed,
        )
        ratio = 1.0 if cfg.ntl_mean_over == "tokens" else tokens_per_number(numbers, trainer.train_dataset)
        config = ntl_config(cfg, ratio)
        LOG.info("NTL has the weight %.4g of every token; %r", config.weight, numbers)
        apply_ntl_to_model(trainer.model, numbers, config)


def ntl_config(keys: Any, ratio: float = 1.0) -> NTLConfig:
    """The loss of Axolotl's configuration, its weight times the tokens per number."""
    return NTLConfig(
        kind=keys.ntl_kind,
        weight=keys.ntl_weight * ratio,
        reweigh=keys.ntl_reweigh,
        squash_factor=keys.ntl_squash_factor,
        mean_over="tokens",
    )


def tokens_per_number(numbers: NumberTokens, rows: Any) -> float:
    """How many labels count for each that is a number, in evenly spaced rows of the training data."""
    if not hasattr(rows, "__len__"):
        raise ValueError(
            f"the number tokens of a {type(rows).__name__} cannot be counted before it is read: set "
            "ntl_mean_over: tokens, and ntl_weight to the factor of the NTL of every token"
        )
    step = max(1, math.ceil(len(rows) / COUNTED_ROWS))
    chosen = (rows[index]["labels"] for index in range(0, len(rows), step))
    return numbers.tokens_per_number(torch.as_tensor(labels)[1:] for labels in chosen)
