"""`NTLConfig` checks itself."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch

from ntl_kernels import NTLConfig


def test_defaults_are_the_papers() -> None:
    config = NTLConfig()
    assert (config.kind, config.weight, config.squash_factor, config.label_sigma) == ("wasserstein", 0.3, None, 0.0)
    assert (config.reweigh, config.mean_over) == (False, "numbers")


def test_is_frozen_and_comparable() -> None:
    config = NTLConfig(kind="huber", huber_delta=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.weight = 1.0  # type: ignore[misc]
    assert config == NTLConfig(kind="huber", huber_delta=2.0) and hash(config) == hash(dataclasses.replace(config))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "l2"}, ValueError, "wasserstein, mse, mae, huber.*l2"),
        ({"kind": 0.5}, ValueError, r"kind must be one of .*; got 0\.5 \(weight=0\.5\?\)$"),
        ({"kind": torch.tensor(0.5)}, ValueError, r"kind must be .* \(weight=tensor\(0\.5000\)\?\)$"),
        ({"kind": np.array(["mse", "mae"])}, ValueError, r"kind must be one of .*; got array.*'mae'.*\)$"),
        ({"kind": None}, ValueError, "kind must be one of .*; got None$"),
        ({"weight": -0.1}, ValueError, "weight.*at least 0.*-0.1"),
        ({"weight": float("inf")}, ValueError, "weight.*inf"),
        ({"weight": "1"}, TypeError, "weight.*'1'"),
        ({"reweigh": 1}, TypeError, "reweigh.*1"),
        ({"mean_over": "rows"}, ValueError, "mean_over must be one of numbers, tokens; got 'rows'"),
        ({"squash_factor": 1.0}, ValueError, "squash_factor.*above 1"),
        ({"squash_factor": 2.0, "kind": "mse"}, ValueError, "squash_factor.*'mse'"),
        ({"label_sigma": -1.0}, ValueError, "label_sigma.*-1"),
        ({"label_sigma": 1.0, "kind": "mae"}, ValueError, "label_sigma.*'mae'"),
        ({"label_sigma": 1.0, "squash_factor": 2.0}, ValueError, "cannot be combined"),
        ({"kind": "soft_labels"}, ValueError, "either label_sigma or label_temperature.*label_sigma=0.0"),
        ({"kind": "soft_labels", "label_sigma": 1.0, "label_temperature": 2.0}, ValueError, "temperature=2.0$"),
        ({"kind": "soft_labels", "label_sigma": 1.0, "reweigh": True}, ValueError, "neither reweigh"),
        ({"kind": "soft_labels", "label_sigma": 1.0, "squash_factor": 2.0}, ValueError, "nor squash_factor"),
        ({"kind": "soft_labels", "label_temperature": -1.0}, ValueError, "label_temperature.*at least 0.*-1"),
        ({"kind": "soft_labels", "label_sigma": 1.0, "label_share": 1.5}, ValueError, "label_share.*at most 1.*1.5"),
        ({"label_temperature": 1.0}, ValueError, "need kind='soft_labels'; got kind='wasserstein'"),
        ({"kind": "mse", "label_share": 0.0}, ValueError, "need kind='soft_labels'; got kind='mse'"),
        ({"huber_delta": 0.0}, ValueError, "huber_delta.*above 0"),
        ({"huber_delta": 1e39}, ValueError, r"huber_delta must be at most 3\.40282e\+38.*float32.*1e\+39"),
        ({"huber_delta": 1e-40}, ValueError, r"huber_delta must be at least 1\.17549e-38.*float32.*1e-40"),
        ({"squash_factor": 10**39}, ValueError, "squash_factor must be at most.*got an int of 130 bits"),
        ({"weight": 1e39}, ValueError, "weight must be at most.*float32"),
        ({"weight": 10**400}, ValueError, "weight must be at most.*got an int of 1329 bits"),
        ({"weight": Fraction(10**400)}, ValueError, "weight must be at most"),
        ({"weight": np.float64(1e39)}, ValueError, "weight must be at most"),
        ({"weight": 1j}, TypeError, "weight.*1j"),
        ({"weight": torch.tensor(1 + 1j)}, ValueError, "weight.*complex64"),
        ({"weight": torch.tensor(True)}, ValueError, "weight.*bool"),
    ],
)
def test_bad_options_are_named(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        NTLConfig(**options)


def test_the_largest_and_smallest_numbers_of_float32_are_options() -> None:
    largest, smallest = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    NTLConfig(kind="huber", huber_delta=largest, weight=largest)
    NTLConfig(kind="huber", huber_delta=smallest, weight=1e-300)
    NTLConfig(label_sigma=largest)
    NTLConfig(squash_factor=largest)
