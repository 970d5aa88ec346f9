"""Run the notebooks and store their outputs: ``python -m benchmarks.notebooks``."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from .. import files

FOLDER = Path(__file__).parent
SECONDS = 300
"""Seconds after which a cell counts as hung."""


def executed(path: Path) -> NotebookNode:
    """The notebook with new outputs; raises the error of a failing cell."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources={"metadata": {"path": FOLDER}})
    return client.execute()


def without_machine(notebook: NotebookNode) -> NotebookNode:
    """The notebook without machine-specific content: warnings, which contain file names, and the Python version."""
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        files.write(path, nbformat.writes(without_machine(executed(path))) + "\n")
        print(path.name)
