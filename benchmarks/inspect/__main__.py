"""The command line; ``python -m benchmarks.inspect --help`` lists its options."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ..commands import InputError, Parser, in_one_line
from . import __doc__ as description
from .cases import LAUNCHES, LOSSES, TARGETS, all_cases
from .model import KERNEL, Estimate, cases_of, model
from .report import inspect, table
from .roofline import GPUS
from .tables import markdown, tables


@in_one_line
def main(given: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks.inspect", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line of the table")
    parser.add_argument("--kernel", action="append", choices=list(LAUNCHES), help="only this kernel (repeatable)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this target (repeatable)")
    parser.add_argument("--model", action="store_true", help=f"estimate what limits {KERNEL} from its machine code")
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="with --model: only this GPU (repeatable)")
    parser.add_argument("--loss", choices=list(LOSSES), default="default", help="with --model: the options of the loss")
    parser.add_argument("--markdown", action="store_true", help="with --model: print the tables as Markdown")
    arguments = parser.parse_args(given)
    found: list[Any]
    if arguments.model:
        if arguments.kernel not in (None, [KERNEL]):
            parser.error(f"--model supports only {KERNEL}")
        if arguments.json and arguments.markdown:
            parser.error("--json and --markdown cannot be combined")
        found = estimates(arguments)
        text = markdown(found) if arguments.markdown else tables(found)
    elif arguments.gpu or arguments.markdown or arguments.loss != "default":
        parser.error("--gpu, --loss and --markdown need --model")
    else:
        kernels, targets = arguments.kernel or LAUNCHES, arguments.target or TARGETS
        found = inspect(case for case in all_cases() if case.kernel in kernels and case.target in targets)
        text = table(found)
    print("\n".join(json.dumps(asdict(each)) for each in found) if arguments.json else text)
    return 0


def estimates(arguments: argparse.Namespace) -> list[Estimate]:
    """The model's estimates for the chosen GPUs."""
    chosen = [gpu for gpu in GPUS.values() if gpu.name in (arguments.gpu or GPUS)]
    targets = dict.fromkeys(gpu.target for gpu in chosen if gpu.target in (arguments.target or TARGETS))
    names = [gpu.name for gpu in chosen]
    if not targets:
        raise InputError(f"none of the targets belongs to {' or '.join(names)}")
    return [one for one in model(cases_of(targets, arguments.loss)) if one.gpu in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
