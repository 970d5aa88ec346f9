"""Does the Number Token Loss help?

python -m benchmarks.quality [--data FILE] [--device D] [--steps N] [--seed N]    CE beside CE + NTL, in minutes
python -m benchmarks.quality dataset=D model=M loss=L trainer=T [...] [-m]        one experiment, or a sweep (Hydra)
python -m benchmarks.quality prepare DATASET DOWNLOADED_FOLDER DESTINATION        splits of an original download
python -m benchmarks.quality report RUN_FOLDER... [--out FOLDER]                  tables and plots over seeds
python -m benchmarks.quality time [OVERRIDE...] [--rounds N]                      a training step with and without NTL
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["prepare"]:
        from .datasets import main as prepare

        return prepare(arguments[1:])
    if arguments[:1] == ["report"]:
        from .summary import main as report

        return report(arguments[1:])
    if arguments[:1] == ["time"]:
        from .timing import main as timing

        return timing(arguments[1:])
    if any("=" in argument and not argument.startswith("--") for argument in arguments) or "-m" in arguments:
        from .experiment import main as experiment

        experiment()  # Hydra reads sys.argv
        return 0
    from .compare import main as comparison

    return comparison(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
