"""CE + NTL for supervised fine-tuning with Axolotl 0.19: `NTLPlugin`.

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

from ..config import DEFAULT_CONFIG, KINDS, MEANS, NTLConfig
from ..extras import needs

with needs(__name__, "Axolotl", "axolotl>=0.19"):
    from axolotl.integrations.base import BasePlugin

from ..tokens import NumberTokens
from .transformers import apply_ntl_to_model
from .transformers.targets import NUMBER_WEIGHTS

LOG = logging.getLogger(f"axolotl.{__name__}")  # Axolotl only prints its own loggers
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
"""Options of Axolotl that select another loss."""
COUNTED_ROWS = 10_000
"""How many rows of the training data are used to count tokens per number."""


class NTLArgs(BaseModel):
    """The keys that the plugin adds to Axolotl's configuration. Axolotl validates them with its own keys.

    Args:
        ntl_weight: lambda, the factor of the NTL term.
        ntl_kind, ntl_reweigh, ntl_squash_factor, ntl_label_sigma, ntl_label_temperature, ntl_label_share: as in
            :class:`NTLConfig`.
        ntl_mean_over: what ``ntl_weight`` multiplies: the mean of NTL over the ``numbers`` or over all ``tokens``. The
            loss is that of ``NTLConfig(mean_over="tokens")`` in both cases, because Axolotl's Trainer averages over the
            tokens of each batch; ``numbers`` converts the weight with the tokens per number of the training labels.
        ntl_digits_only, ntl_space_prefixed, ntl_group_by: as in :meth:`NumberTokens.from_tokenizer`.
    """

    ntl_weight: float = Field(default=float(DEFAULT_CONFIG.weight), ge=0)
    ntl_kind: Literal[KINDS] = DEFAULT_CONFIG.kind  # type: ignore[valid-type]
    ntl_reweigh: bool = DEFAULT_CONFIG.reweigh
    ntl_squash_factor: float | None = None
    ntl_label_sigma: float = DEFAULT_CONFIG.label_sigma
    ntl_label_temperature: float | None = DEFAULT_CONFIG.label_temperature
    ntl_label_share: float = DEFAULT_CONFIG.label_share
    ntl_mean_over: Literal[MEANS] = DEFAULT_CONFIG.mean_over  # type: ignore[valid-type]
    ntl_digits_only: bool = True
    ntl_space_prefixed: bool = False
    ntl_group_by: Literal["length"] | None = "length"

    @model_validator(mode="before")
    @classmethod
    def check_ntl_names(cls, data: Any) -> Any:
        """Raise for an unknown ``ntl_`` key: Axolotl silently drops unknown keys."""
        unknown = [name for name in data if str(name).startswith("ntl_") and name not in NTLArgs.model_fields]
        if unknown:
            raise ValueError(f"unknown {', '.join(unknown)}: NTLPlugin's keys are {', '.join(NTLArgs.model_fields)}")
        return data

    @model_validator(mode="after")
    def check_ntl(self) -> NTLArgs:
        """Raise for options that contradict each other or select another loss."""
        ntl_config(self)
        others = [name for name in OTHER_LOSSES if getattr(self, name, None)]
        if others:
            raise ValueError(
                f"NTLPlugin supports supervised fine-tuning only and cannot be combined with {', '.join(others)}"
            )
        if (getattr(self, "context_parallel_size", None) or 1) > 1:
            raise ValueError("NTLPlugin does not support context_parallel_size, because Axolotl then gathers logits")
        return self


class NTLPlugin(BasePlugin):
    """An Axolotl plugin that makes the trained model compute CE + NTL from its hidden states.

    It patches the model of Axolotl's own Trainer with :func:`apply_ntl_to_model`. Configuration keys: :class:`NTLArgs`.
    In evaluation, the loss is plain cross-entropy, as it is without the plugin.

    Raises:
        ValueError: with ``ntl_mean_over: numbers``, the training data has no labels or no numbers, or is streamed. Also
            the errors of :class:`NTLArgs`, :meth:`NumberTokens.from_tokenizer` and :func:`apply_ntl_to_model`.
    """

    def get_input_args(self) -> str:
        return f"{NTLArgs.__module__}.{NTLArgs.__qualname__}"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Patch the Trainer's model with the number tokens of its tokenizer."""
        numbers = NumberTokens.from_tokenizer(
            trainer.processing_class,
            model=trainer.model,
            digits_only=cfg.ntl_digits_only,
            space_prefixed=cfg.ntl_space_prefixed,
            group_by=cfg.ntl_group_by,
        )
        ratio = 1.0 if cfg.ntl_mean_over == "tokens" else tokens_per_number(numbers, trainer.train_dataset)
        config = ntl_config(cfg, ratio)
        LOG.info("NTL is added with weight %.4g per token; %r", config.weight, numbers)
        apply_ntl_to_model(trainer.model, numbers, config)


def ntl_config(keys: Any, ratio: float = 1.0) -> NTLConfig:
    """The loss for Axolotl's configuration; ``ratio``, the tokens per number, multiplies its weight."""
    return NTLConfig(
        kind=keys.ntl_kind,
        weight=keys.ntl_weight * ratio,
        reweigh=keys.ntl_reweigh,
        squash_factor=keys.ntl_squash_factor,
        label_sigma=keys.ntl_label_sigma,
        label_temperature=keys.ntl_label_temperature,
        label_share=keys.ntl_label_share,
        mean_over="tokens",
    )


def tokens_per_number(numbers: NumberTokens, rows: Any) -> float:
    """The number of labels per label that is a number (or per weight of 1), from evenly spaced rows of the data."""
    if not hasattr(rows, "__len__"):
        raise ValueError(
            f"the number tokens of a {type(rows).__name__} cannot be counted before training: set "
            "ntl_mean_over: tokens, and set ntl_weight to the weight of a mean over all tokens"
        )
    step = max(1, math.ceil(len(rows) / COUNTED_ROWS))
    chosen = (rows[index] for index in range(0, len(rows), step))
    names = ("labels", NUMBER_WEIGHTS)
    return numbers.tokens_per_number(
        {name: torch.as_tensor(row[name])[1:] for name in names if name in row} for row in chosen
    )
