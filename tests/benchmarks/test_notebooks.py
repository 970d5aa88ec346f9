"""The notebooks run, and their committed outputs are those of the committed code."""

from __future__ import annotations

import ast
import base64
import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from benchmarks.notebooks.__main__ import FOLDER, executed, without_machine

ROOT = Path(__file__).parent.parent.parent
PATH = FOLDER / "integration.ipynb"
LOSS = re.compile(r"^(CE|NTL) +([\d.]+) -> ([\d.]+)$", re.MULTILINE)
MACHINE = re.compile(r"(?<![\w.])/(work|home|root|tmp|usr|opt|var|mnt|Users|private)/|[A-Z]:\\\\")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def check_outputs(notebook: NotebookNode) -> None:
    """Every cell has run once and in order; the model has learned; the plot is a picture."""
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    *losses, metrics = printed(cells[4]).splitlines()
    (ce, first_ce, last_ce), (ntl, first_ntl, last_ntl) = (LOSS.match(line).groups() for line in losses)
    assert (ce, ntl) == ("CE", "NTL")
    assert 2.8 < float(first_ce) < 3.6  # the logarithm of 24 tokens is 3.2
    assert float(last_ce) < 0.75 * float(first_ce) and float(last_ntl) < float(first_ntl)
    errors = ast.literal_eval(metrics)
    assert 10 < errors["mae"] < 80 and errors["r2"] > 0.5  # the noise alone: 16; the median rent for every flat: 120
    pictures = [output.data["image/png"] for output in cells[5].outputs if "data" in output]
    assert [base64.b64decode(picture)[:4] for picture in pictures] == [b"\x89PNG"]
    tuned = printed(cells[6])
    assert "(the rent is " in tuned or tuned == "There is no checkpoint in runs/pretrained/smollm2.\n"


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    return nbformat.read(PATH, as_version=4)


def test_committed_outputs_are_whole_and_name_no_machine(committed: NotebookNode) -> None:
    nbformat.validate(committed)
    check_outputs(committed)
    assert MACHINE.search(PATH.read_text()) is None
    assert "timestamp" not in PATH.read_text() and "iopub" not in PATH.read_text()
    assert without_machine(copy.deepcopy(committed)) == committed


@pytest.mark.slow
def test_notebook_runs_and_prints_what_is_committed(committed: NotebookNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fresh = without_machine(executed(PATH))
    check_outputs(fresh)
    # What does not depend on the last bit of a float: the number map, the shifted labels, the first losses.
    same = list(map(printed, code_cells(fresh)))[:4]
    assert same == list(map(printed, code_cells(committed)))[:4]
    assert all(same[1:])
