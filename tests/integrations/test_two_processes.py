"""`NTLTrainer` on two processes: the gradients and metrics of the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ..versions import needs
from .models import assert_same_gradients, gradients, make_model, stock_output
from .test_transformers_trainer import EXACT, assert_metrics
from .training import LOG_ERROR, ROWS, TAKES_SHARDED_MODELS, exact_loss, large_batch, to_rows
from .two_processes import CASES as DISTRIBUTED
from .two_processes import UNEQUAL, UNEQUAL_ROWS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests.integrations.two_processes computed."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.integrations.two_processes", str(folder)]
    outputs = [folder / f"output{rank}" for rank in range(2)]
    processes = []
    for rank, output in enumerate(outputs):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"}
        with output.open("w") as file:
            streams: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, **streams))
    try:
        codes = [process.wait(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "\n".join(output.read_text()[-3000:] for output in outputs)
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
@pytest.mark.parametrize("case", DISTRIBUTED)
def test_two_processes_with_two_steps_equal_one_batch(case: str, patched: bool, two_processes: dict[str, Any]) -> None:
    result = two_processes[f"{case}-{patched}"]
    parts, expected = large_batch(make_model(case))
    assert_same_gradients(result["gradients"], expected, EXACT)
    log = next(log for log in result["logs"] if "loss" in log)
    assert log["loss"] == pytest.approx(parts.loss.item(), rel=EXACT, abs=LOG_ERROR)
    assert_metrics(log, parts)
    assert_metrics(result["eval"], parts, "eval_")


def test_loss_of_theirs_on_two_processes(two_processes: dict[str, Any]) -> None:
    """The Trainer's, in which theirs ends, multiplies by the processes: once."""
    parts, expected = large_batch(make_model())
    assert_same_gradients(two_processes["theirs"]["gradients"], expected, EXACT)
    log = next(log for log in two_processes["theirs"]["logs"] if "loss" in log)
    assert log["loss"] == pytest.approx(parts.loss.item(), rel=EXACT, abs=LOG_ERROR)


def test_averaging_processes_instead_of_tokens(two_processes: dict[str, Any]) -> None:
    """average_tokens_across_devices=False: each process takes the mean of its own rows, of which there are 4 and 4."""
    log = next(log for log in two_processes["per process"]["logs"] if "loss" in log)
    assert log["ce"] == pytest.approx(large_batch(make_model())[0].cross_entropy.item(), rel=1e-5)


@pytest.mark.parametrize("count", UNEQUAL_ROWS)
@pytest.mark.parametrize("kind", UNEQUAL)
def test_evaluation_counts_no_row_twice(kind: str, count: int, two_processes: dict[str, Any]) -> None:
    """In batches of three for each of two processes: of the last, some rows of the second or of the first count."""
    metrics, model = two_processes[f"{kind}, {count} rows"], make_model(num_hidden_layers=0)
    parts = stock_output(model, torch.utils.data.default_collate(to_rows(model)[:count]))
    assert_metrics(metrics, parts, "eval_")
    assert metrics["eval_loss"] == pytest.approx(exact_loss(model, to_rows(model)[:count]), rel=1e-6)
    assert metrics["eval_number_share"] == pytest.approx((parts.num_numbers / parts.num_tokens).item())


@pytest.mark.parametrize("kind", ["True", "False", "per process"])
def test_processes_that_share_rows(kind: str, two_processes: dict[str, Any]) -> None:
    """Context parallelism: tokens and numbers count once, and unequal shards weigh as much as they have of them."""
    result, model = two_processes[f"context-{kind}"], make_model(num_hidden_layers=0)
    parts, expected = large_batch(model)
    assert_same_gradients(result["gradients"], {name: grad for name, grad in expected.items() if grad is not None})
    half = stock_output(model, torch.utils.data.default_collate(to_rows(model)[:4]))
    log = next(log for log in result["logs"] if "loss" in log)
    assert log["loss"] == pytest.approx(parts.loss.item(), rel=1e-5, abs=LOG_ERROR)
    assert result["eval"]["eval_loss"] == pytest.approx(half.loss.item(), rel=1e-5)
    assert_metrics(log, parts)
    assert_metrics(result["eval"], half, "eval_")


@pytest.mark.skipif(
    not TAKES_SHARDED_MODELS, reason=f"the Trainer of transformers {transformers.__version__} wraps it in DDP"
)
def test_sharded_model_in_the_trainer(two_processes: dict[str, Any]) -> None:
    """Its head is a unit of its own."""
    assert_same_gradients(two_processes["fsdp2 trainer"], large_batch(make_model())[1])


@needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs")
def test_head_resharded_before_its_backward_pass(two_processes: dict[str, Any]) -> None:
    results = two_processes["token losses"]
    assert results["is sharded"]
    assert_same_gradients(results["actual"], results["expected"])


@pytest.mark.parametrize(
    "kind", ["fsdp1", pytest.param("fsdp2", marks=needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs"))]
)
def test_sharded_parameters(kind: str, two_processes: dict[str, Any]) -> None:
    model = make_model()
    for start in (0, ROWS // 2):
        batch = torch.utils.data.default_collate(to_rows(model)[start : start + ROWS // 2])
        (stock_output(model, batch).loss / 2).backward()
    assert_same_gradients(two_processes[kind], gradients(model))
