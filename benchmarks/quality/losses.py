"""The losses of configurations, and their display names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ntl_kernels import NTLConfig

from ..commands import InputError, naming

SOFT = "soft_labels"
KINDS = {"ntl_was": "wasserstein", "ntl_mse": "mse", "ntl_mae": "mae", "ntl_huber": "huber", SOFT: SOFT}
"""Token-level losses -> the kind of :class:`NTLConfig`."""
TITLES = {"ntl_was": "NTL-WAS", "ntl_mse": "NTL-MSE", "ntl_mae": "NTL-MAE", "ntl_huber": "NTL-Huber"}
TITLES |= {"number_level": "number-level", SOFT: "soft labels"}
PLAIN = {"ce": "CE", "mse": "MSE", "ce_mse": "CE + MSE"}
"""Losses without options, and their titles."""
GAUSSIAN = "ce_gaussian"
"""A baseline of the paper: in number rows, the target of cross-entropy is a Gaussian instead of the label."""
EXTRAS = {"reweigh": False, "squash_factor": None, "label_sigma": 0.0, "huber_delta": 1.0, "balance": False}
EXTRAS |= {"label_temperature": 0.0, "label_share": 1.0}
"""Options besides the weight, with their defaults."""


def ntl_config(loss: Mapping[str, Any]) -> NTLConfig:
    """The Number Token Loss of a configuration; weight 0 for plain cross-entropy, which has no options."""
    name, options = loss["name"], options_of(loss)
    if name in PLAIN:
        if options:
            raise InputError(f"loss={name} has no option {next(iter(options))!r}")
        return NTLConfig(weight=0.0)
    if name == GAUSSIAN:
        return NTLConfig(SOFT, 1.0, mean_over="tokens", label_sigma=sigma_of(loss), label_share=0.0)
    if name not in KINDS:
        known = ", ".join(["ce", GAUSSIAN, "number_level", *KINDS])
        raise InputError(f"loss.name must be one of {known}; got {name!r}")
    with naming(f"loss={name}"):
        return NTLConfig(kind=KINDS[name], **options)


def number_level_config(loss: Mapping[str, Any]) -> NTLConfig:
    """Weight and reweigh of the number-level loss that a configuration names."""
    with naming("loss=number_level"):
        return NTLConfig(**options_of(loss))


def sigma_of(loss: Mapping[str, Any]) -> float:
    """The standard deviation of a Gaussian target."""
    sigma = loss.get("sigma")
    is_number = isinstance(sigma, (int, float)) and not isinstance(sigma, bool)
    if set(loss) != {"name", "sigma"} or not is_number or not 0 < sigma < math.inf:
        raise InputError(f"loss={GAUSSIAN} has one option, sigma, a number above 0; got {dict(loss)}")
    return float(sigma)


def check_loss(loss: Mapping[str, Any]) -> None:
    """Raise where a configuration names no loss, or options that it cannot have."""
    if not isinstance(loss.get("balance", False), bool):
        raise InputError(f"loss.balance must be true or false; got {loss['balance']!r}")
    if loss.get("group_by") not in ("length", None):
        raise InputError(f"loss.group_by must be length or null; got {loss['group_by']!r}")
    if loss["name"] == "number_level":
        number_level_config(loss)
    else:
        ntl_config(loss)


def options_of(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a loss that belong to its NTLConfig."""
    return {str(key): value for key, value in loss.items() if key not in ("name", "group_by", "balance")}


def title(trained_by: str, loss: Mapping[str, Any], codec: str = "digits") -> str:
    """The display name of a run's loss: what is compared if tokens have several digits, and options with other values
    than NTL's defaults."""
    if trained_by in PLAIN:
        return PLAIN[trained_by]
    if trained_by == GAUSSIAN:
        return f"CE, Gaussian target ({loss['sigma']:g})"
    name = f"CE + {loss['weight']:g} {TITLES[trained_by]}"
    is_alone = loss.get("label_share", 1) == 0
    if is_alone:
        name = f"{loss['weight']:g} {TITLES[trained_by]} alone"
    if trained_by in KINDS and codec not in ("digits", "scores", "rt"):
        same = "" if codec == "own" else ", same length"
        name += same if loss.get("group_by", "length") else ", all number tokens compared"
    changed = {key: loss[key] for key, usual in EXTRAS.items() if loss.get(key, usual) != usual}
    if is_alone:  # the name says so
        del changed["label_share"]
    extras = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changed.items()
    )
    return f"{name} ({extras})" if extras else name


def was(weight: float, codec: str = "digits", **options: Any) -> str:
    """The display name of runs with NTL-WAS."""
    return title("ntl_was", {"weight": weight, **options}, codec)


def soft(weight: float, **options: Any) -> str:
    """The display name of runs with soft labels beside the label."""
    return title(SOFT, {"weight": weight, **options})


NTL = was(0.3)
"""The recommended setting, which headlines and targets use."""
