"""The Triton backend under Triton's interpreter, on a CPU. Run by `test_triton.py` in a separate process.

Few cases: the emulated GPU proves more. These prove what it cannot: that the backend works in the interpreter, where
softcaps use the exact tanh that other GPUs than NVIDIA's use, and the two functions that stand in for instructions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from ntl_kernels.backends.triton import HIGHEST_FAST_SOFTCAP
from ntl_kernels.kernels.normaliser import polynomial_powers
from ntl_kernels.kernels.softcap import EXACT, softcap, softcap_grad

from ..parallel.shard_cases import ShardCases
from ..versions import has
from .triton_cases import DTYPES, TritonCases

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("this file needs TRITON_INTERPRET=1 in the environment from the start; see test_triton.py")


@pytest.fixture(autouse=True, scope="module")
def _interpreter_at_its_best() -> Iterator[None]:
    """It patches its language again at every call of a device function and checks integers for overflow only to drop
    what it finds, which takes two thirds of the time."""
    patch_lang, patch_tensor = interpreter._patch_lang, interpreter._patch_lang_tensor
    restores = hasattr(interpreter, "_LangPatchScope")  # since Triton 3.6
    seen: set[Any] = set()

    def patch(function: Any) -> Any:
        if function not in seen:
            seen.add(function)
            patch_lang(function)
        return interpreter._LangPatchScope() if restores else None  # nothing to restore

    def patch_index(tensor: Any, *scope: Any) -> None:
        """Up to Triton 3.6, a run-time loop bound is converted to an int in a way that NumPy 2.4 rejects."""
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    builder = interpreter.interpreter_builder
    assert not builder.options.debug  # with it, an overflow would raise
    options = replace(builder.options, sanitize_overflow=False)
    with (
        mock.patch.multiple(interpreter, _patch_lang=patch, _patch_lang_tensor=patch_index),
        mock.patch.object(builder, "options", options),
    ):
        yield


class Interpreted(TritonCases):
    device = "cpu"
    is_compiled = False
    every = 3  # minutes otherwise


class InterpretedShards(ShardCases):
    device = "cpu"
    is_compiled = False
    every = 6


@pytest.mark.parametrize("first_seed", range(0, 500, 50))
def test_random_problems_equal_the_reference(first_seed: int) -> None:
    Interpreted().test_every_row_equals_the_reference(first_seed)


@pytest.mark.parametrize("vocab_size", [2, 5, 2500, 4099, 17011])
def test_rows_of_any_length(vocab_size: int) -> None:
    for dtype in DTYPES:
        Interpreted().test_rows_of_any_length(vocab_size, dtype)


@pytest.mark.parametrize("first_seed", range(0, 100, 25))
def test_shards_equal_the_reference(first_seed: int) -> None:
    InterpretedShards().test_shards_equal_the_reference(first_seed)


@triton.jit
def softcap_kernel(z, inner, u, slope, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    value = softcap(tl.load(z + lanes), inner, EXACT)
    tl.store(u + lanes, value)
    tl.store(slope + lanes, softcap_grad(value))


def test_softcap_is_tanh() -> None:
    """Small relative error also near 0, finite at infinity, and NaN stays NaN."""
    z = torch.cat([torch.linspace(-12, 12, 8001), torch.logspace(-20, 0, 8001), torch.logspace(0, 38, 766)])
    z[-1], z[-2] = torch.inf, -torch.inf
    z = torch.nn.functional.pad(z, (0, 2**15 - len(z)), value=0.25)
    u, slope = torch.empty_like(z), torch.empty_like(z)
    softcap_kernel[(1,)](z, 0.5, u, slope, SIZE=len(z))
    expected = torch.tanh(z.double() / 2)
    torch.testing.assert_close(u.double(), expected, rtol=4e-7, atol=0)
    torch.testing.assert_close(slope.double(), 1 - expected**2, rtol=0, atol=8e-7)
    assert u.abs().max() <= 1
    softcap_kernel[(1,)](torch.full((4,), torch.nan), 0.5, u, slope, SIZE=4)
    assert u[:4].isnan().all()


@triton.jit
def polynomial_kernel(u, factor, shift, found, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(found + lanes, polynomial_powers(tl.load(u + lanes), factor, shift))


@pytest.mark.skipif(not has("triton", 3, 9), reason="up to Triton 3.8, the interpreter rounds a multiply-add twice")
def test_polynomial_powers_are_powers() -> None:
    """For all outputs of the highest softcap that uses them; NaN stays NaN."""
    u, found = torch.linspace(-1, 1, 2**16), torch.empty(2**16)
    for factor, shift in ((HIGHEST_FAST_SOFTCAP / math.log(2), 62.0), (43.28, 43.0), (0.1, 0.0)):
        polynomial_kernel[(1,)](u, factor, shift, found, SIZE=len(u))
        exact = torch.exp2(u.double() * float(torch.tensor(factor)) - shift)
        torch.testing.assert_close(found.double(), exact, rtol=3e-6, atol=0)
    polynomial_kernel[(1,)](torch.full((4,), torch.nan), 1.0, 0.0, found, SIZE=4)
    assert found[:4].isnan().all()
