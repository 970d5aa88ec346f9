"""``python -m benchmarks.speed run | host | report | tune``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..environment import ROOT
from ..errors import InputError
from . import results, workloads

SCRATCH = ROOT / "runs" / "speed"
"""Where results go that are not to be committed."""


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except InputError as refusal:
        print(refusal, file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    commands = top.add_subparsers(required=True)

    run = commands.add_parser("run", help="measure and write results")
    run.set_defaults(command=run_command)
    run.add_argument("--quick", action="store_true", help="every family once, small: under two minutes on two cores")
    run.add_argument("--suite", choices=("full", "gpu"), default="full", help="gpu: its workloads also without one")
    run.add_argument("--families", nargs="+", choices=workloads.FAMILIES, default=workloads.FAMILIES)
    add_choice(run, "*", f"{relative(results.FOLDER)}; quick and dry: {relative(SCRATCH)}")
    run.add_argument("--providers", default="*", metavar="PATTERN", help="names of providers, such as 'ours*'")
    run.add_argument("--seconds", type=float, help="time for the samples of a main workload (8; quick: 4)")
    add_device(run)

    host = commands.add_parser(
        "host", help="time what the host does where nothing runs on a device, and small problems"
    )
    host.set_defaults(command=host_command, device=torch.device("cpu"), threads=1)
    add_choice(host, "*", f"{relative(results.FOLDER)}; dry: {relative(SCRATCH)}")
    host.add_argument("--providers", default="*", metavar="PATTERN")
    host.add_argument("--seconds", type=float, default=10.0, help="as of run: each workload takes a fifth")

    report = commands.add_parser("report", help="tables and plots of the results, and the README's section")
    report.set_defaults(command=report_command)
    report.add_argument("--results", type=Path, default=results.FOLDER, help="a folder of results")
    report.add_argument(
        "--check", action="store_true", help="write nothing; fail where anything differs from the results"
    )

    tune = commands.add_parser("tune", help="time our kernels under other launch settings")
    tune.set_defaults(command=tune_command, families=("logits",))
    add_choice(tune, "vocab-*", relative(SCRATCH))
    tune.add_argument("--seconds", type=float, default=20.0, help="as of run: each workload takes a fifth")
    add_device(tune)
    return top


def add_choice(command: argparse.ArgumentParser, names: str, folder: str) -> None:
    """What is measured, and where results go."""
    command.add_argument(
        "--workloads", dest="names", default=names, metavar="PATTERN", help=f"by name, such as 'vocab-*-bf16' ({names})"
    )
    command.add_argument("--dry", action="store_true", help="every workload tiny and once: measures nothing")
    command.add_argument("--out", type=Path, help=f"default: {folder}")


def add_device(command: argparse.ArgumentParser) -> None:
    default = "cuda" if torch.cuda.is_available() else "cpu"
    command.add_argument("--device", type=torch.device, default=torch.device(default))
    command.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def settings_of(options: argparse.Namespace) -> Any:
    """The settings that a command has options for."""
    from .run import Settings  # here, since it imports torch's compiler, which takes seconds

    names = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in vars(options).items() if name in names})


def run_command(options: argparse.Namespace) -> int:
    from .run import run

    if options.suite == "gpu" and options.device.type != "cuda" and not options.dry:
        raise InputError(f"--suite gpu needs a GPU, or --dry; got --device {options.device}")
    options.seconds = options.seconds or (4.0 if options.quick else 8.0)
    options.suite = "quick" if options.quick else options.suite
    folder = options.out or (SCRATCH if options.quick or options.dry else results.FOLDER)
    print(f"results: {run(settings_of(options), folder)}")
    return 0


def host_command(options: argparse.Namespace) -> int:
    from .host import host

    folder = options.out or (SCRATCH if options.dry else results.FOLDER)
    print(f"results: {host(settings_of(options), folder)}")
    return 0


def report_command(options: argparse.Namespace) -> int:
    from . import report

    if options.check:
        problems = report.check(options.results)
        print("\n".join(problems) or "README, tables and plots agree with the results")
        return 1 if problems else 0
    for path in report.write(options.results):
        print(path)
    return 0


def tune_command(options: argparse.Namespace) -> int:
    from .tune import tune

    print(tune(settings_of(options), options.out or SCRATCH))
    return 0


if __name__ == "__main__":
    sys.exit(main())
