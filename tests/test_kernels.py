"""The kernels' package: what it imports and what causes recompilation. Their values: `backends/interpreted.py`."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import driver

from benchmarks.inspect.cases import Case, Launch, Recorder, compile_launch, record
from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.backends import triton as backend
from ntl_kernels.problem import NUM_FIELDS, Problem, RowInputs
from ntl_kernels.spec import spec_of

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
KERNELS = Path(backend.__file__).parents[1] / "kernels"


def test_kernels_import_triton_each_other_names_and_constants() -> None:
    files = sorted(KERNELS.glob("*.py"))
    assert len(files) > 5
    allowed = (2, "problem"), (2, "spec"), (2, "tokens"), (2, "config"), (2, "formulas"), (0, "typing")
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {name.name for name in node.names} <= {"triton", "triton.language"}, file
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level, node.module) in allowed, f"{file}: {ast.unparse(node)}"


def test_no_function_of_a_kernel_is_long() -> None:
    for file in KERNELS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None and node.end_lineno - node.lineno < 60, f"{file}: {node.name}"


@pytest.mark.parametrize("kernel", ["losses_and_gradients", "gradients", "merge_shards", "shard_gradients"])
def test_a_kind_without_a_formula_does_not_compile(kernel: str) -> None:
    launch = record(Case(kernel, "sm_90", "fp32", "aligned", 10, "huber"))
    compile_launch(launch, "sm_90")
    launch.keywords["OPTIONS"] = launch.keywords["OPTIONS"]._replace(kind="new")
    with pytest.raises(CompilationError) as refused:
        compile_launch(launch, "sm_90")
    reason: BaseException | None = refused.value
    while reason is not None and "this kind has no" not in str(reason):
        reason = reason.__cause__
    assert reason is not None, refused.value


class NoDevice:
    """The parts of a driver that compilation needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def replace_driver(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    """Temporarily replace Triton's driver, under the name that its version uses."""
    monkeypatch.setattr(driver, "__dict__", dict(vars(driver)))
    driver.set_active(other)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Records the backend's launches instead of launching, with a driver that needs no device."""
    caught: list[Launch] = []
    for name in [name for name in vars(backend) if name.endswith("_kernel")]:
        monkeypatch.setattr(backend, name, Recorder(getattr(backend, name), caught))
    replace_driver(monkeypatch, NoDevice())
    return caught


def launch_everything(shape: tuple[int, int, int], **options: Any) -> None:
    """Every function of the contract, on rows as a causal shift leaves them."""
    config = NTLConfig(weight=options.pop("weight", 0.3))
    b, t, v = shape
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, v)
    logits, gradient = (torch.empty(b, t + 1, v, dtype=torch.bfloat16)[:, :-1] for _ in range(2))
    table = numbers.table("cpu")
    labels, fields, one = torch.zeros(b, t, dtype=torch.int64), torch.empty(NUM_FIELDS, b * t), torch.ones(())
    given = options.get("z_loss", 2.0)
    for reduction in ("mean", "none"):
        spec = spec_of(config, numbers, reduction=reduction, **options)
        problem = Problem(RowInputs(labels.view(-1)), given, given, config.weight, table, spec, "triton")
        written = gradient if reduction == "mean" else None
        backend.row_losses(logits, problem, fields, written)
        backend.row_gradients(logits, problem, None, fields, None, one, gradient)
        backend.finish(fields, problem)
        backend.sums_of_programs(fields, backend.TOTAL_PROGRAMS)
    backend.count(problem, v, torch.float32)
    backend.scale_(gradient, one)


def compiled_kernels(launches: list[Launch]) -> set[tuple[str, str]]:
    """(kernel, hash) of everything that the launches compile to; clears the launches."""
    found = set()
    while launches:
        launch = launches.pop()
        compiled = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.keywords)
        found.add((launch.kernel.__name__, compiled.hash))
    return found


def test_new_values_do_not_compile_anew(launches: list[Launch]) -> None:
    """Vocabulary and batch sizes, strides and every float are run-time arguments. Only whether the L2 cache holds the
    gradient is not."""
    launch_everything((2, 3, 50257), softcap=30.0, label_smoothing=0.1, z_loss=1e-4, logit_scale=0.5)
    first = compiled_kernels(launches)
    assert len(first) == 8  # six kernels, two of which in the variants of two reductions
    launch_everything((1, 1, 50001), softcap=1.0, label_smoothing=1.0, z_loss=1.0, weight=1.0)
    launch_everything((4, 32, 49999), softcap=16.0, label_smoothing=0.5, logit_scale=16.0)
    assert compiled_kernels(launches) == first
    launch_everything((16, 32, 49999), softcap=16.0, label_smoothing=0.5, logit_scale=16.0)
    anew = sorted(name for name, _ in compiled_kernels(launches) - first)
    assert anew == ["row_gradients_kernel", "row_losses_kernel"]


@pytest.mark.parametrize(("shape", "fits"), [((4, 32, 49999), True), ((16, 32, 49999), False)])
def test_a_gradient_that_fits_the_l2_cache_stays_there(
    shape: tuple[int, int, int], fits: bool, launches: list[Launch]
) -> None:
    launch_everything(shape)
    (launch,) = [one for one in launches if one.kernel.__name__ == "row_losses_kernel" and one.arguments[3] is not None]
    compiled = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.keywords)
    stores = [line for line in compiled.asm["ptx"].splitlines() if "st.global" in line]
    assert stores and any("evict_first" in line for line in stores) == (not fits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tiles_suit_their_rows(dtype: torch.dtype) -> None:
    for vocab_size in (2, 11, 1000, 5000, 50257, 262144):
        logits: Tensor = torch.empty(1, 1, vocab_size, dtype=dtype, device="meta")
        for platform, lanes in (("cuda", 32), ("hip", 64)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backend, "PLATFORM", platform)
                tile, launch = backend.tile_of(logits, None)
            assert tile.threads == launch["num_warps"] * lanes <= 1024
            assert tile.vector * dtype.itemsize == 16
            assert tile.threads * tile.vector <= max(lanes * tile.vector, vocab_size)
