"""Wrong arguments and their errors, for every loss, backend, dtype and code path; and arguments at the limits."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig

HUGE = 10**400
MOST_OF_WAS = r"weight must be at most 3\.7\d*e\+37.*largest number loss 9\.09.*1e\+38"
Wrong = tuple[dict[str, Any], type[Exception], str]
OPTIONS: list[Wrong] = [
    ({"numbers": {3: 0.0}}, TypeError, "NumberTokens.*dict"),
    ({"config": "mse"}, TypeError, "NTLConfig.*str"),
    ({"ignore_index": 1.0}, TypeError, "ignore_index.*1.0"),
    ({"ignore_index": True}, TypeError, "ignore_index.*True"),
    ({"reduction": "avg"}, ValueError, "reduction.*avg"),
    ({"label_smoothing": 1.5}, ValueError, "label_smoothing.*1.5"),
    ({"z_loss": float("nan")}, ValueError, "z_loss.*nan"),
    ({"softcap": 0.0}, ValueError, "softcap.*0"),
    ({"logit_scale": -1.0}, ValueError, "logit_scale.*-1"),
    ({"backend": "cuda"}, ValueError, "backend.*cuda"),
    ({"softcap": 1e39}, ValueError, r"softcap must be.*at most 2\.35866e\+38.*1e\+39"),
    ({"softcap": 3e38}, ValueError, r"softcap must be.*at most 2\.35866e\+38"),  # times log2(e) beyond float32
    ({"softcap": 1e-40}, ValueError, r"softcap must be at least 1\.17549e-38"),
    ({"softcap": HUGE}, ValueError, "softcap must be.*an int of 1329 bits"),
    ({"softcap": 1e-30, "logit_scale": 1e30}, ValueError, "softcap and logit_scale differ too much"),
    ({"softcap": 1e38}, ValueError, "softcap and logit_scale differ too much"),
    ({"logit_scale": 1e39}, ValueError, "logit_scale must be.*at most"),
    ({"logit_scale": 3e38}, ValueError, "logit_scale must be.*at most"),
    ({"logit_scale": 1e-300}, ValueError, "logit_scale must be at least"),
    ({"z_loss": 1e39}, ValueError, "z_loss must be at most.*float32"),
    ({"label_smoothing": HUGE}, ValueError, "label_smoothing must be.*at most 1.*an int of 1329 bits"),
    ({"ignore_index": 2**63}, ValueError, "ignore_index must fit int64"),
    ({"ignore_index": -(2**63) - 1}, ValueError, "ignore_index must fit int64"),
    ({"ignore_index": HUGE}, ValueError, "ignore_index must fit int64.*an int of 1329 bits"),
    ({"config": NTLConfig(weight=1e38)}, ValueError, MOST_OF_WAS),
    ({"config": NTLConfig(weight=2.2e36, kind="mse")}, ValueError, "weight must be at most.*largest number loss"),
]
"""Also of a module."""
COUNTS: list[Wrong] = [
    ({"num_tokens": 1e39}, ValueError, "num_tokens must be at most.*float32"),
    ({"num_tokens": HUGE}, ValueError, "num_tokens must be at most.*an int of 1329 bits"),
    ({"num_tokens": Fraction(HUGE)}, ValueError, "num_tokens must be at most"),
    ({"num_tokens": 1e-45}, ValueError, r"num_tokens must be 0 or at least 1\.17549e-38.*1e-45"),
    ({"num_numbers": 1e-40}, ValueError, "num_numbers must be 0 or at least"),
    ({"num_tokens": torch.tensor(1e-40)}, ValueError, "num_tokens must be 0 or at least"),
    ({"num_tokens": torch.tensor(1e39, dtype=torch.float64)}, ValueError, "num_tokens must be at most.*float32"),
    ({"num_tokens": torch.tensor(torch.inf)}, ValueError, "num_tokens must be finite.*inf"),
    ({"num_numbers": torch.tensor(torch.nan)}, ValueError, "num_numbers must be finite.*nan"),
    ({"num_numbers": torch.tensor(-torch.inf, dtype=torch.float16)}, ValueError, "num_numbers must be finite.*-inf"),
    ({"num_tokens": torch.tensor(1 + 1j)}, TypeError, "num_tokens must be a real number.*complex64"),
    ({"num_tokens": torch.tensor(True)}, TypeError, "num_tokens must be a real number.*bool"),
    ({"num_tokens": True}, TypeError, "num_tokens must be a number; got True"),
    ({"num_tokens": -1}, ValueError, "num_tokens.*-1"),
    ({"num_tokens": torch.tensor(-1.0)}, ValueError, "num_tokens.*-1"),
    ({"num_numbers": "3"}, TypeError, "num_numbers.*3"),
    ({"num_tokens": torch.ones(2)}, ValueError, "num_tokens.*0-d"),
    ({"num_tokens": 3, "reduction": "sum"}, ValueError, "num_tokens.*sum"),
    ({"config": NTLConfig(weight=torch.tensor(torch.inf))}, ValueError, "config.weight must be finite.*inf"),
    ({"config": NTLConfig(weight=torch.tensor(torch.nan))}, ValueError, "config.weight must be finite.*nan"),
    ({"config": NTLConfig(weight=torch.tensor(-1.0).half())}, ValueError, "config.weight must be .*at least 0; got -1"),
    ({"config": NTLConfig(weight=torch.tensor(1e38))}, ValueError, "config.weight must be at most.*largest number"),
]
"""Those of a call, including lambdas whose values a call checks."""
COUNTS = [({"num_tokens": 1, "num_numbers": 1, **options}, error, message) for options, error, message in COUNTS]


def unfit(name: str, weight: float) -> Wrong:
    """A float64 weight that becomes infinite or 0 with logits of a narrower dtype."""
    limits = re.escape("(0, or 1.4013e-45 to 3.40282e+38)")
    message = rf"{name} must .* fit torch\.float32.*{limits}; got {re.escape(str(weight))}$"
    return {name: torch.tensor([1.0, weight, 0.0, 2.0], dtype=torch.float64)}, ValueError, message


def wrong_weights(name: str) -> list[Wrong]:
    """Weights of the rows that are no weights."""
    bounds = f"{name} must not be negative, infinite or NaN"
    return [
        ({name: torch.ones(3)}, ValueError, rf"{name}.*\(4,\).*\(3,\)"),
        ({name: [1.0] * 4}, TypeError, f"{name}.*list"),
        ({name: torch.ones(4, dtype=torch.complex64)}, TypeError, f"{name}.*complex64"),
        ({name: torch.ones(4, requires_grad=True)}, ValueError, f"{name} require grad"),
        *(
            ({name: torch.tensor([1, weight, 1, 1])}, ValueError, f"{bounds}.*; got {weight}")
            for weight in (-0.5, float("nan"), float("inf"), -float("inf"))
        ),
        *(
            ({name: torch.full((4,), weight)}, ValueError, f"the sum of the weights of the labels.* must be {limit}")
            for weight, limit in ((1e-42, "0 or at least 1.17549e-38"), (3e38, "(finite|at most)"))
        ),
        *(unfit(name, weight) for weight in (1e300, 3.5e38, -1e300, 1e-60, -1e-60, 5e-324)),
    ]


ALONE = "got {} without {}.*Pass {} as well.*NTLConfig\\(mean_over='tokens'\\)"
ROWS: list[Wrong] = [
    ({"labels": torch.tensor([1.0, 2, 3, 4])}, TypeError, "labels.*float32"),
    ({"labels": [1, 2, 3, 4]}, TypeError, "labels.*list"),
    ({"labels": torch.empty(4, dtype=torch.int64, device="meta")}, ValueError, "labels.*cpu.*meta"),
    ({"labels": torch.arange(3)}, ValueError, r"\(4,\).*\(3,\)"),
    *(({"labels": torch.tensor([1, each, 2, 3])}, IndexError, rf"\[0, 50\).*{each}") for each in (-1, 50, 999, -101)),
    *(
        (
            {"labels": torch.tensor([1, 2, 3, wrapped], dtype=torch.int32), "ignore_index": index},
            IndexError,
            rf"ignore_index {index}; got {wrapped}",
        )
        for index, wrapped in ((2**32 - 1, -1), (2**32 + 999, 999))  # its value in int32
    ),
    *(wrong for name in ("token_weights", "number_weights") for wrong in wrong_weights(name)),
    ({"num_tokens": 2.5}, ValueError, ALONE.format("num_tokens", "num_numbers", "num_numbers")),
    ({"num_numbers": torch.tensor(5)}, ValueError, ALONE.format("num_numbers", "num_tokens", "num_tokens")),
]
"""Of four rows, and one denominator without the other."""
every_wrong_argument = pytest.mark.parametrize(("options", "error", "message"), OPTIONS + COUNTS + ROWS)
every_mixed_operand = pytest.mark.parametrize(
    ("wide", "message"),
    [
        (["hidden"], "weight must have .* dtype torch.float64; got torch.float32"),
        (["weight"], "weight must have .* dtype torch.float32; got torch.float64"),
        (["bias"], "bias must have .* dtype torch.float32; got torch.float64"),
        (["hidden", "weight"], "bias must have .* dtype torch.float64; got torch.float32"),
    ],
)
"""Operands of a product of which some are float64, which autocast leaves unchanged."""
LARGEST: list[dict[str, Any]] = [
    {"softcap": 8e37},
    {"softcap": 2.3e38, "logit_scale": 1e3},
    {"softcap": 1.2e-38},
    {"softcap": 1e-10, "logit_scale": 1e27},
    {"z_loss": 1e30},
    {"num_tokens": 3.4e38, "num_numbers": 3.4e38},
    {"num_tokens": torch.tensor(3.4e38), "num_numbers": torch.tensor(2**60)},
    {"config": NTLConfig(weight=3.7e37)},
    {"config": NTLConfig(weight=torch.tensor(3.7e37))},
    {"config": NTLConfig(kind="huber", huber_delta=3.4e38)},
    {"config": NTLConfig(label_sigma=3.4e38)},
    {"ignore_index": 2**63 - 1},
    {"ignore_index": -(2**63)},
]
"""At the limits: one row's loss, where the logits are small, is finite."""
