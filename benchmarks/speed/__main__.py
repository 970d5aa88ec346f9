"""``python -m benchmarks.speed run | first | host | counts | report | tune``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..commands import InputError, Parser, count, in_one_line, seconds
from ..environment import ROOT
from ..published import verdict
from . import memory, neighbours, report, results, workloads
from .run import Settings

SCRATCH = ROOT / "runs" / "speed"
"""The folder for results that are not committed."""


@in_one_line
def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    return options.command(options)


def parser() -> Parser:
    top = Parser(prog="python -m benchmarks.speed", description=__doc__)
    commands = top.add_subparsers(required=True, dest="name", metavar="run|first|host|counts|report|tune")

    def measuring(name: str, words: str, names: str = "*", **defaults: Any) -> Parser:
        """A command that measures: the options that choose workloads and the folder of results."""
        command = commands.add_parser(name, help=words)
        command.set_defaults(command=measure, **defaults)
        chosen = f"by name, such as 'vocab-*-bf16' ({names})"
        command.add_argument("--workloads", dest="names", default=names, metavar="PATTERN", help=chosen)
        command.add_argument("--dry", action="store_true", help="every workload once at a tiny size; measures nothing")
        committed, scratch = (path.relative_to(ROOT) for path in (results.FOLDER, SCRATCH))
        usual = scratch if defaults.get("quick") else committed
        command.add_argument("--out", type=Path, help=f"default: {usual}; quick and dry: {scratch}")
        return command

    on_cpu = {"quick": False, "device": torch.device("cpu"), "threads": 1}
    of_logits = {"quick": True, "families": ("logits",), "memory": memory.KEPT}
    run = measuring("run", "measure and write results")
    first = measuring("first", "a GPU's first times, in a minute: few providers, and kernel by kernel", **of_logits)
    host = measuring("host", "time the host's work without running kernels, and small problems", **on_cpu)
    counts = measuring("counts", "count what ours and others execute on an emulated GPU, untimed", busy=True, **on_cpu)
    tune = measuring("tune", "time our kernels under other launch settings", "vocab-*", **of_logits)
    report = commands.add_parser("report", help="tables and plots of the results, and the README's section")

    run.add_argument("--quick", action="store_true", help="every family once, small: a few minutes on two cores")
    run.add_argument("--suite", choices=("full", "gpu"), default="full", help="gpu: its suite (on a CPU: --dry only)")
    run.add_argument("--families", nargs="+", choices=workloads.FAMILIES, default=workloads.FAMILIES)
    for command in (run, host, counts):
        command.add_argument("--providers", default="*", metavar="PATTERN", help="by name, such as 'ours*'")
    for command, default in ((run, None), (first, 40.0), (host, 10.0), (tune, 20.0)):
        shown = default or "8; quick: 2"
        words = f"time for the samples of a main workload ({shown}); others get a fifth"
        command.add_argument("--seconds", type=seconds, default=default, help=words)
        command.add_argument("--busy", action="store_true", help="measure even if other processes keep the CPU busy")
    for command in (run, host):
        words = "on a CPU: map memory anew at every step, as by default, or keep freed memory (default: both)"
        command.add_argument("--memory", choices=(*memory.WAYS, memory.BOTH), default=memory.BOTH, help=words)
    for command in (run, first, tune):
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        command.add_argument("--device", type=device_here, default=torch.device(usual), help=f"default: {usual}")
        command.add_argument("--threads", type=count, default=2, help="CPU threads (default: 2)")
    for command in (first, tune):
        words = "compile what would be timed, into Triton's cache on disk, and end"
        command.add_argument("--compile-only", action="store_true", help=words)
    report.set_defaults(command=report_command)
    report.add_argument("--results", type=Path, default=results.FOLDER, help="a folder of results")
    report.add_argument("--check", action="store_true", help="write nothing; fail if anything differs from the results")
    return top


def device_here(name: str) -> torch.device:
    """For ``type=``: the CPU, or a GPU that torch sees."""
    gpus = torch.cuda.device_count()
    here = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{index}" for index in range(gpus))]
    if name not in here:
        without = "" if gpus else "; torch sees no GPU"
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(here)}{without}; got {name!r}")
    return torch.device(name)


def measure(options: argparse.Namespace) -> int:
    """`run`, `first`, `host`, `counts` and `tune`: measure, write the results and print their folder."""
    chosen = f"--suite {options.suite}" if options.name == "run" else options.name
    if chosen in ("--suite gpu", "first") and options.device.type != "cuda" and not options.dry:
        raise InputError(f"{chosen} needs a GPU, or --dry; got --device {options.device}")
    if options.name == "run":
        options.seconds = options.seconds or (2.0 if options.quick else 8.0)
        options.suite = "quick" if options.quick else options.suite
    settings = Settings(
        **{field.name: vars(options)[field.name] for field in fields(Settings) if field.name in options}
    )
    if options.device.type == "cpu" and not options.dry:
        memory.refuse_settings()
        if not options.busy:
            neighbours.refuse_if_busy()
    folder = options.out or (SCRATCH if options.quick or options.dry else results.FOLDER)
    command = getattr(import_module(f".{options.name}", __package__), options.name)
    print(f"results: {command(settings, folder)}")
    return 0


def report_command(options: argparse.Namespace) -> int:
    if options.check:
        return verdict(report.check(options.results))
    print(*report.write(options.results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
