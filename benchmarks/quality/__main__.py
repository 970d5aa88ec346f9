"""Does the Number Token Loss help?

python -m benchmarks.quality [compare] [OVERRIDE...] [--seeds N] [--out FOLDER]   CE beside CE + NTL, in two minutes
python -m benchmarks.quality dataset=D model=M loss=L trainer=T [...] [-m]        one experiment, or a sweep (Hydra)
python -m benchmarks.quality prepare DATASET DOWNLOADED_FOLDER DESTINATION        splits of an original download
python -m benchmarks.quality report [RUN_FOLDER...] [--out FOLDER] [--check]      tables and plots over seeds
python -m benchmarks.quality yardsticks OVERRIDE... [--out FOLDER]                 what is possible on a table's rows
python -m benchmarks.quality time [OVERRIDE...] [--rounds N] [--out FILE]         a training step with and without NTL
"""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "prepare": "data.downloads",
    "report": "report",
    "time": "timing",
    "compare": "compare",
    "yardsticks": "yardsticks",
}
"""Command -> the module whose ``main`` it is; imported only then, since some take seconds."""


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("compare", [])
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if command.startswith("--"):
        command, rest = "compare", arguments
    if command in COMMANDS:
        return import_module(f".{COMMANDS[command]}", __package__).main(rest)
    import_module(".experiment", __package__).main()  # Hydra reads sys.argv, and refuses what is no override
    leave_group()
    return 0


def leave_group() -> None:
    """Under torchrun: threads of the group that are at work when the interpreter ends would abort the process."""
    from torch import distributed  # the experiment has loaded it

    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
