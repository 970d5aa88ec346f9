"""Mistakes that a refactoring may make in the library, which the quick tests must detect.

`python -m tests.refactoring_mistakes LIST.json [ID...]` makes each in a copy of the working tree and runs the tests
named beside it, or all. It prints which test caught it, SURVIVED, or STALE if the code has changed, and exits with 1
unless all were caught. (`tests/emulator/mutants.py` is about compiled kernels.)
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mistake(NamedTuple):
    id: str
    file: str
    old: str  # exactly once in the file
    new: str
    what: str = ""
    tests: tuple[str, ...] = ()  # arguments of pytest; all quick tests without any

    @property
    def is_stale(self) -> bool:
        return not (ROOT / self.file).is_file() or (ROOT / self.file).read_text().count(self.old) != 1


def read(path: Path) -> list[Mistake]:
    return [Mistake(**given) for given in json.loads(path.read_text())]


def first_failure(tests: list[str], mistake: Mistake | None = None) -> str:
    """The first quick test that fails, or "": in a copy of its own, where no bytecode of another mistake can run."""
    listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, text=True)
    with tempfile.TemporaryDirectory() as copy:
        for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
            (Path(copy) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, Path(copy) / name)
        if mistake is not None:
            path = Path(copy) / mistake.file
            path.write_text(path.read_text().replace(mistake.old, mistake.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    failed = re.search(r"^(?:FAILED|ERROR) (tests.+?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (0, 1, 2) or (done.returncode == 0) != (failed is None):
        sys.exit(f"pytest could not run {' '.join(tests)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return failed[1] if failed else ""


def main(path: str, *ids: str) -> None:
    chosen = [mistake for mistake in read(Path(path)) if not ids or mistake.id in ids]
    named = {test for mistake in chosen for test in mistake.tests} if all(one.tests for one in chosen) else ()
    if not chosen or (failed := first_failure(sorted(named))):
        sys.exit(f"{failed} fails without any mistake" if chosen else f"{path} has no mistake {', '.join(ids)}")
    are_caught = True
    for mistake in chosen:
        start = time.monotonic()
        test = "" if mistake.is_stale else first_failure(list(mistake.tests), mistake)
        outcome = f"caught by {test}" if test else "STALE" if mistake.is_stale else "SURVIVED"
        print(f"{mistake.id}: {outcome} ({time.monotonic() - start:.0f} s): {mistake.what}", flush=True)
        are_caught &= bool(test)
    sys.exit(not are_caught)


if __name__ == "__main__":
    main(*sys.argv[1:])
