"""The command line; ``python -m benchmarks.inspect --help`` lists its options."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from ..commands import Parser, in_one_line
from ..table import Table
from . import __doc__ as description
from .cases import LAUNCHES, LOSSES, TARGETS, all_cases
from .model import KERNEL, cases_of, model
from .report import inspect, table
from .roofline import GPUS
from .tables import text_of


@in_one_line
def main(given: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks.inspect", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line of the table")
    parser.add_argument("--kernel", action="append", choices=list(LAUNCHES), help="only this kernel (repeatable)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this target (repeatable)")
    parser.add_argument("--model", action="store_true", help=f"estimate what limits {KERNEL} from its machine code")
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="with --model: only this GPU (repeatable)")
    parser.add_argument("--loss", choices=list(LOSSES), help="with --model: the options of the loss (default)")
    parser.add_argument("--markdown", action="store_true", help="with --model: print the tables as Markdown")
    arguments = parser.parse_args(given)
    kernels, targets = arguments.kernel or LAUNCHES, arguments.target or TARGETS
    found: list[Any]
    if not arguments.model and (arguments.gpu or arguments.loss or arguments.markdown):
        parser.error("--gpu, --loss and --markdown need --model")
    if arguments.json and arguments.markdown:
        parser.error("--json and --markdown cannot be combined")
    if arguments.model:
        if arguments.kernel not in (None, [KERNEL]):
            parser.error(f"--model supports only {KERNEL}")
        names = arguments.gpu or list(GPUS)
        targets = list(dict.fromkeys(GPUS[name].target for name in names if GPUS[name].target in targets))
        if not targets:
            parser.error(f"none of the targets belongs to {' or '.join(names)}")
        found = [one for one in model(cases_of(targets, arguments.loss or "default")) if one.gpu in names]
        text = text_of(found, Table.markdown if arguments.markdown else Table.aligned)
    else:
        found = inspect(case for case in all_cases() if case.kernel in kernels and case.target in targets)
        text = table(found)
    print("\n".join(json.dumps(asdict(each)) for each in found) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
