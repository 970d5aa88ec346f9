"""The command line; ``python -m benchmarks.inspect --help`` lists its options."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..commands import InputError, Parser, in_one_line
from . import __doc__ as description
from .cases import LAUNCHES, LOSSES, TARGETS, all_cases
from .in_flight import assumptions_and_table, flights
from .model import KERNEL, cases_of, model
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
    parser.add_argument("--in-flight", action="store_true", help=f"simulate the rows in flight in {KERNEL} (minutes)")
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="with a model: only this GPU (repeatable)")
    parser.add_argument("--loss", choices=list(LOSSES), default="default", help="with a model: the options of the loss")
    parser.add_argument("--markdown", action="store_true", help="with --model: print the tables as Markdown")
    arguments = parser.parse_args(given)
    found: list[Any]
    if arguments.model and arguments.in_flight:
        parser.error("--model and --in-flight cannot be combined")
    if arguments.markdown and not arguments.model:
        parser.error("--markdown needs --model")
    if arguments.model or arguments.in_flight:
        if arguments.kernel not in (None, [KERNEL]):
            parser.error(f"--model and --in-flight support only {KERNEL}")
        if arguments.json and arguments.markdown:
            parser.error("--json and --markdown cannot be combined")
        names = arguments.gpu or (["H200"] if arguments.in_flight else list(GPUS))
        cases = cases_of(targets_of(names, arguments.target or TARGETS), arguments.loss)
    if arguments.in_flight:
        found = flights(cases, names)
        text = assumptions_and_table(found)
    elif arguments.model:
        found = [one for one in model(cases) if one.gpu in names]
        text = markdown(found) if arguments.markdown else tables(found)
    elif arguments.gpu or arguments.loss != "default":
        parser.error("--gpu and --loss need --model or --in-flight")
    else:
        kernels, targets = arguments.kernel or LAUNCHES, arguments.target or TARGETS
        found = inspect(case for case in all_cases() if case.kernel in kernels and case.target in targets)
        text = table(found)
    print("\n".join(json.dumps(asdict(each)) for each in found) if arguments.json else text)
    return 0


def targets_of(names: Sequence[str], targets: Sequence[str]) -> list[str]:
    """The targets of some GPUs that are among those chosen."""
    found = [gpu.target for gpu in GPUS.values() if gpu.name in names and gpu.target in targets]
    if not found:
        raise InputError(f"none of the targets belongs to {' or '.join(names)}")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
