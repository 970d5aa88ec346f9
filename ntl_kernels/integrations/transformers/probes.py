"""How a model transforms the output of its head, read off a few probe values that its own code has transformed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...tracing import has_values
from .models import train_on_logits

NUM_PROBES = 16
FLOAT32, HALF_PRECISION = 1e-5, 1e-2
"""The relative error of probes that were computed in float32, and of those that were rounded to a half precision."""


class LogitTransform(NamedTuple):
    """Logits ``= softcap * tanh(logit_scale * head(h) / softcap)``, or ``logit_scale * head(h)`` without softcap."""

    logit_scale: float = 1.0
    """What the output of the head is multiplied by."""
    softcap: float | None = None
    """The bound that ``tanh`` keeps the logits within; None: no bound."""

    def __call__(self, outputs: Tensor) -> Tensor:
        """Outputs of the head, transformed."""
        scaled = self.logit_scale * outputs
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


@dataclass(eq=False)
class Reading:
    """What is known about a model's transform."""

    transform: LogitTransform
    """That which the caller declared or the probes showed; before the first call a guess."""
    is_final: bool
    """Whether the transform is no guess, so that another one is an error."""
    tolerance: float | None = None
    """The relative error of the probes; None until they have confirmed the transform."""

    def confirmed(self, loss: Tensor, used: LogitTransform, returned: Tensor, logits: Tensor, model: Any) -> Any:
        """The loss, if a model turned the probes that its head returned into these logits by the transform ``used``.

        Otherwise None in a first call, after which ``transform`` is right, and later an error, or NaN on a device, for
        which nothing waits.
        """
        probes, name, can_be_read = make_probes(returned, returned.shape[-1]), type(model).__name__, has_values(logits)
        expected = used(probes)
        tolerance, is_shaped = self.tolerance or HALF_PRECISION, logits.shape == expected.shape
        if is_shaped and (not can_be_read or (self.tolerance and not is_on_host(logits))):
            return torch.where(are_close(logits, expected, tolerance), loss, torch.nan)
        tolerance = self.tolerance or tolerance_of(logits)
        if is_shaped and are_close(logits, expected, tolerance):
            if self.tolerance is None and torch.is_grad_enabled():
                if depends_on_parameters(logits, returned):
                    raise ValueError(f"{name} scales its logits by a trained parameter: {train_on_logits(model)}")
                self.is_final, self.tolerance = True, tolerance
            return loss
        if self.transform != used:  # another thread has read it meanwhile
            return None
        found = read_transform(probes, logits, model) if is_shaped and not self.is_final else None
        if found is None:
            changed = "after a change of scale, call apply_ntl_to_model again"
            raise ValueError(
                f"{name} does not turn its head's output into logits by {used}: it turned {shown(probes)} into "
                f"{shown(logits)}; expected {shown(expected)}: {changed if self.tolerance else train_on_logits(model)}"
            )
        self.transform, self.is_final = found, True
        return None


def make_probes(hidden: Tensor, columns: int = NUM_PROBES) -> Tensor:
    """float32 [1, ..., 1, columns] on the device of hidden [B..., H]: values up to far beyond any softcap, then zeros.

    As many columns as logits have show whether a model masks, drops or shifts some of them.
    """
    probes = torch.linspace(-9.0, 9.0, NUM_PROBES, device=hidden.device, dtype=torch.float32).sinh()
    return F.pad(probes, (0, columns - NUM_PROBES)).view((1,) * (hidden.ndim - 1) + (columns,))


def are_close(logits: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """Whether a model's probes are the expected ones: bool, 0-d, on their device."""
    return ((logits.detach().float() - expected).abs() <= tolerance * expected.abs()).all()


def is_on_host(tensor: Tensor) -> bool:
    """Whether reading a tensor does not wait for a device."""
    return tensor.device.type == "cpu"


def tolerance_of(logits: Tensor) -> float:
    """The relative error of a model's probes: not that of their dtype, because the model may have rounded before."""
    values = logits.detach().float()
    is_rounded = any(torch.equal(values, values.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
    return HALF_PRECISION if is_rounded else FLOAT32


def numbers_of(model: Any) -> dict[str, float]:
    """The numbers other than 0 in the configuration of a model's decoder."""
    config = model.config
    fields = vars(config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config)
    return {name: float(value) for name, value in fields.items() if isinstance(value, (int, float)) and value}


def guessed_transform(model: Any) -> LogitTransform:
    """The transform that a model's configuration suggests, for compilers, which cannot read the probes."""
    numbers = numbers_of(model)
    scale = numbers.get("logit_scale") or numbers.get("lm_head_multiplier") or 1 / numbers.get("logits_scaling", 1.0)
    return LogitTransform(scale, numbers.get("final_logit_softcapping") or numbers.get("logits_soft_cap"))


def read_transform(probes: Tensor, logits: Tensor, model: Any) -> LogitTransform | None:
    """The transform that turned the probes into these logits; None if none did, or if it is not known exactly."""
    tolerance, (x, y) = tolerance_of(logits), (each.detach().double().flatten().tolist() for each in (probes, logits))
    smallest, largest = NUM_PROBES // 2, NUM_PROBES - 1  # of the positive probes
    scale, softcap = y[smallest] / x[smallest], None
    if scale <= 0 or not all(map(math.isfinite, y)):
        return None
    if not math.isclose(y[largest], scale * x[largest], rel_tol=4 * tolerance):
        softcap = exact(abs(y[largest]), model, tolerance / 2)
        if softcap is None or abs(y[smallest]) >= softcap:
            return None
        scale = softcap * math.atanh(y[smallest] / softcap) / x[smallest]
    logit_scale = exact(scale, model, tolerance / 2)
    found = None if logit_scale is None else LogitTransform(logit_scale, softcap)
    return found if found and are_close(logits, found(probes), tolerance) else None


def exact(value: float, model: Any, tolerance: float) -> float | None:
    """The number that was read as this positive value; None if half precision leaves several or none.

    It is a number of the model's configuration, the reciprocal of one, or an integer, if exactly one of them is within
    the tolerance; otherwise the value itself if it was read in float32, because the loss needs all its digits.
    """
    numbers = numbers_of(model).values()
    candidates = {*numbers, *(1 / number for number in numbers), float(round(value))}
    near = {candidate for candidate in candidates if math.isclose(candidate, value, rel_tol=tolerance)}
    if len(near) == 1:
        return near.pop()
    return value if tolerance < FLOAT32 else None


def depends_on_parameters(logits: Tensor, probes: Tensor) -> bool:
    """Whether a model has transformed the probes by something that is trained, whose gradient CE + NTL would drop."""
    seen, nodes = {probes.grad_fn}, [logits.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if hasattr(node, "variable"):
            return True
        seen.add(node)
        nodes += [parent for parent, _ in node.next_functions]
    return False


def shown(probes: Tensor) -> str:
    """The values of probes for a message."""
    values = [float(f"{value:.4g}") for value in probes.detach().flatten()[: NUM_PROBES + 1].tolist()]
    return f"{values} of shape {tuple(probes.shape)}"
