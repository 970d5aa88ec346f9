"""Running error analysis: float64 numbers, each with a bound on the error of float32 arithmetic up to it.

Every operation adds half a unit in the last place of its result to the errors of its operands, to first order
(Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.3). So a tolerance is derived from the arithmetic,
operation by operation, and bounds the error of a correct kernel for each element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

UNIT = 2.0**-24
"""The relative error of a float32 operation."""
APPROXIMATE = 2.0**-22
"""That of ex2, lg2, rsqrt and division on the GPU, as PTX guarantees it."""
SMALLEST = 2.0**-126
"""Smaller results are flushed to 0."""


@dataclass(frozen=True)
class Rounded:
    """float64 of any shape: a value and the largest error of float32."""

    value: Tensor
    error: Tensor

    def __add__(self, other: Rounded) -> Rounded:
        value = self.value + other.value
        return Rounded(value, self.error + other.error + UNIT * value.abs())

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error)

    def __sub__(self, other: Rounded) -> Rounded:
        return self + -other

    def __mul__(self, other: Rounded) -> Rounded:
        value = self.value * other.value
        return Rounded(value, carried(self, other) + UNIT * value.abs())

    def __truediv__(self, other: Rounded) -> Rounded:
        inverse = 1 / other.value
        value = self.value * inverse
        passed_on = self.error * inverse.abs() + product(value, other.error) * inverse.abs()
        return Rounded(value, passed_on + APPROXIMATE * value.abs())

    def __getitem__(self, index: object) -> Rounded:
        return Rounded(self.value[index], self.error[index])

    def with_error(self, more: Tensor | float) -> Rounded:
        return Rounded(self.value, self.error + more)

    def exp2(self) -> Rounded:
        value = torch.exp2(self.value)
        return Rounded(value, value * (math.log(2) * self.error.nan_to_num(posinf=0.0) + APPROXIMATE) + SMALLEST)

    def log2(self) -> Rounded:
        value = torch.log2(self.value)
        return Rounded(value, self.error / self.value / math.log(2) + APPROXIMATE * value.abs().clamp_min(1.0))

    def sum(self, additions: float) -> Rounded:
        """The sum over the last axis, where each summand passes through at most so many additions."""
        passed_on = self.error.sum(-1, keepdim=True)
        return Rounded(
            self.value.sum(-1, keepdim=True), passed_on + additions * UNIT * self.value.abs().sum(-1, keepdim=True)
        )

    def running_sum(self, additions: float) -> Rounded:
        error = self.error.cumsum(-1) + additions * UNIT * self.value.abs().cumsum(-1)
        return Rounded(self.value.cumsum(-1), error)

    def running_sum_from_the_end(self, additions: float) -> Rounded:
        return self.flip().running_sum(additions).flip()

    def flip(self) -> Rounded:
        return Rounded(self.value.flip(-1), self.error.flip(-1))

    def transposed(self) -> Rounded:
        return Rounded(self.value.T, self.error.T)

    def abs(self) -> Rounded:
        return Rounded(self.value.abs(), self.error)

    def sign(self) -> Rounded:
        """Both where the error leaves it open."""
        return Rounded(self.value.sign(), torch.where(self.value.abs() <= self.error, 2.0, 0.0))

    def clamp(self, least: float, most: float) -> Rounded:
        return Rounded(self.value.clamp(least, most), self.error)

    def where(self, condition: Tensor, other: Rounded) -> Rounded:
        return Rounded(torch.where(condition, self.value, other.value), torch.where(condition, self.error, other.error))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a * b, and 0 where either is 0."""
    return torch.where((a == 0) | (b == 0), 0.0, a * b)


def carried(a: Rounded, b: Rounded) -> Tensor:
    """The error that a product inherits from its factors."""
    return product(a.value.abs(), b.error) + product(b.value.abs(), a.error) + product(a.error, b.error)


def exact(value: Tensor | float) -> Rounded:
    value = torch.as_tensor(value, dtype=torch.float64)
    return Rounded(value, torch.zeros_like(value))


def rounded(value: Tensor | float) -> Rounded:
    """A number that float32 must round."""
    return exact(value).with_error(UNIT * torch.as_tensor(value, dtype=torch.float64).abs())
