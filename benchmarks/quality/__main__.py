"""Does the Number Token Loss help?

python -m benchmarks.quality [compare] [OPTION=VALUE...] [--seeds N] [--out FOLDER]   CE against CE + NTL: two minutes
python -m benchmarks.quality dataset=D model=M loss=L trainer=T [OPTION=VALUE...]      one experiment
python -m benchmarks.quality loss=ce,ntl_was seed=1,2 [OPTION=VALUE...] -m             every combination (Hydra)
python -m benchmarks.quality prepare DATASET DOWNLOADED_FOLDER DESTINATION             splits from a download
python -m benchmarks.quality report [RUN_FOLDER...] [--out FOLDER] [--replace] [--check]  tables and plots over seeds
python -m benchmarks.quality yardsticks OPTION=VALUE... [--out FOLDER]                 reference errors on a table
python -m benchmarks.quality pretrained smollm2 [FOLDER]                               a checkpoint to fine-tune
python -m benchmarks.quality boxes [loss=L...] [--pictures N] [--seed N]               boxes in generated pictures
python -m benchmarks.quality time [OPTION=VALUE...] [--rounds N] [--out FILE]          a step with and without NTL
"""

from __future__ import annotations

import sys
from importlib import import_module

from ..commands import InputError, in_one_line, meant

COMMANDS = {
    "prepare": "data.downloads",
    "report": "report",
    "time": "timing",
    "compare": "compare",
    "yardsticks": "yardsticks",
    "pretrained": "pretrained",
    "boxes": "boxes",
}
"""Command -> its module, imported when it runs, since some imports take seconds."""
OPTIONS = """
Options of an experiment, each a file in benchmarks/quality/conf:

{listing}

dataset=table needs dataset.file=FILE.csv dataset.target=COLUMN; a data set of the paper needs
dataset.folder=FOLDER (see prepare). Options of a choice: loss.weight=1 model.size=mini trainer.arguments.max_steps=40
dataset.limits.test=100. Add other TrainingArguments of transformers with a plus: +trainer.arguments.max_grad_norm=0.5.
trainer=debug ends within a minute on any data set.
"""


@in_one_line
def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("compare", [])
    if command in ("-h", "--help"):
        known = import_module(".configuration", __package__)
        listing = "\n".join(f"  {group + '=':9} {', '.join(known.choices(group))}" for group in known.GROUPS)
        print(__doc__ + OPTIONS.format(listing=listing), end="")
        return 0
    if command.startswith("--"):
        command, rest = "compare", arguments
    if command in COMMANDS:
        return import_module(f".{COMMANDS[command]}", __package__).main(rest)
    if command[:1] not in ("-", "~") and "=" not in command:
        raise InputError(f"there is no command {command!r}{meant(command, [*COMMANDS, 'OPTION=VALUE'])}")
    import_module(".experiment", __package__).main(arguments)
    from torch import distributed  # the experiment has loaded it

    if distributed.is_initialized():  # under torchrun: threads of the group would abort the process at its end
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
