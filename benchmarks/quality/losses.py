"""The losses of configurations, and their display names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens

from ..commands import InputError, naming

KINDS = {"ntl_was": "wasserstein", "ntl_mse": "mse", "ntl_mae": "mae", "ntl_huber": "huber"}
"""Token-level losses -> the kind of :class:`NTLConfig`."""
TITLES = {"ntl_was": "NTL-WAS", "ntl_mse": "NTL-MSE", "ntl_mae": "NTL-MAE", "ntl_huber": "NTL-Huber"}
TITLES["number_level"] = "number-level"
PLAIN = {"ce": "CE", "mse": "MSE", "ce_mse": "CE + MSE"}
"""Losses without options, and their titles."""
GAUSSIAN = "ce_gaussian"
EXTRAS = {"reweigh": False, "squash_factor": None, "label_sigma": 0.0, "huber_delta": 1.0, "balance": False}
"""Options besides the weight, with their defaults."""


def ntl_config(loss: Mapping[str, Any]) -> NTLConfig:
    """The Number Token Loss of a configuration; weight 0 for plain cross-entropy, which has no options."""
    name, options = loss["name"], options_of(loss)
    if name in PLAIN:
        if options:
            raise InputError(f"loss={name} has no option {next(iter(options))!r}")
        return NTLConfig(weight=0.0)
    if name not in KINDS:
        known = ", ".join(["ce", GAUSSIAN, "number_level", *KINDS])
        raise InputError(f"loss.name must be one of {known}; got {name!r}")
    with naming(f"loss={name}"):
        return NTLConfig(kind=KINDS[name], **options)


def number_level_config(loss: Mapping[str, Any]) -> NTLConfig:
    """Weight and reweigh of the number-level loss that a configuration names."""
    with naming("loss=number_level"):
        return NTLConfig(**options_of(loss))


class GaussianTarget:
    """What cross-entropy gains if number labels become Gaussians over the number tokens (a baseline of the paper).

    The target of token k is proportional to exp(-(v_k - v_y)^2 / (2 sigma^2)). Cross-entropy with it is that with the
    label plus x_y - sum_k t_k x_k, since the targets sum to 1.
    """

    def __init__(self, numbers: NumberTokens, loss: Mapping[str, Any]) -> None:
        self.numbers, self.sigma = numbers, sigma_of(loss)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over labels [B, T] that are not negative, for logits [B, T, V]."""
        table, is_number = self.numbers.table(logits.device), self.numbers.is_number(labels)
        x, y = logits[is_number].float(), labels[is_number]
        distances = table.values - table.values[table.lookup[y]][:, None]
        targets = (-0.5 * (distances / self.sigma) ** 2).softmax(-1)
        gained = x.gather(1, y[:, None]).squeeze(1) - (targets * x[:, table.ids]).sum(1)
        return gained.sum() / (labels >= 0).sum().clamp_min(1)


def sigma_of(loss: Mapping[str, Any]) -> float:
    """The standard deviation of a Gaussian target."""
    sigma = loss.get("sigma")
    if set(loss) != {"name", "sigma"} or isinstance(sigma, (bool, str)) or not sigma or not sigma > 0:
        raise InputError(f"loss={GAUSSIAN} has one option, sigma, a number above 0; got {dict(loss)}")
    return float(sigma)


def check_loss(loss: Mapping[str, Any]) -> None:
    """Raise where a configuration names no loss, or options that it cannot have."""
    if loss["name"] == "number_level":
        number_level_config(loss)
    elif loss["name"] == GAUSSIAN:
        sigma_of(loss)
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
    if trained_by in KINDS and codec not in ("digits", "scores", "rt"):
        same = "" if codec == "own" else ", same length"
        name += same if loss.get("group_by", "length") else ", all number tokens compared"
    changed = {key: loss[key] for key, usual in EXTRAS.items() if loss.get(key, usual) != usual}
    extras = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changed.items()
    )
    return f"{name} ({extras})" if extras else name


def was(weight: float, codec: str = "digits", **options: Any) -> str:
    """The display name of runs with NTL-WAS."""
    return title("ntl_was", {"weight": weight, **options}, codec)


NTL = was(0.3)
"""The recommended setting, which headlines and targets use."""
