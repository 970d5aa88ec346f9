"""The README's examples run, and its commands are those of CI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^### (.*?)$|^## (.*?)$|^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """(heading, code) of every Python block."""
    found, heading = [], ""
    for subsection, section, code in EXAMPLES:
        heading = subsection or section or heading
        if code:
            found.append((heading, code))
    return found


@pytest.mark.parametrize(("heading", "code"), examples(), ids=[heading for heading, _ in examples()])
def test_example_runs(heading: str, code: str, tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment()
    )
    assert completed.returncode == 0, completed.stderr


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def commands() -> list[str]:
    """The lines of the README's shell blocks, without their comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_commands_are_those_that_there_are() -> None:
    """The two commands of a fresh machine, and extras that can be installed."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    made = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert {"main", "test"} <= set(made) <= set(targets)
    extras = {
        extra for command in commands() for group in re.findall(r"\[([a-z,]+)\]", command) for extra in group.split(",")
    }
    assert extras <= set(re.findall(r'^        "([a-z]+)": ', (ROOT / "setup.py").read_text(), flags=re.MULTILINE))
