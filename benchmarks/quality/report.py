"""Tables, plots and advice from the records of runs, and the README's section made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .. import published
from ..arguments import Parser
from ..environment import ROOT
from ..errors import InputError, in_one_line, writable
from ..published import README, Draw, Pages, digest
from . import headlines, plots, records
from .advice import ADVICE, CHOICE, Evidence
from .names import METRICS, anchor, in_order, words
from .records import Groups, Record, by_dataset, splits_of
from .statistics import Difference, compare
from .tables import (
    CURVES,
    HIGHER,
    LEGEND,
    LOWER,
    brief,
    budget_table,
    budgets,
    decoding_table,
    difference_table,
    markdown,
    provenance,
    settings,
    test_table,
    told,
    yardstick_table,
)
from .targets import targets

FOLDER = Path(__file__).parents[1] / "results" / "quality"
"""The committed results."""
SECTION = "quality"
TIMING = "timing.json"
ADVICE_TEXT, TEXT, COMMANDS = "advice.md", "report.md", "commands.md"
DIFFERENCES, TRAINING = "differences.png", "training.png"


def report(runs: Sequence[Record], timing: Record, yardsticks: Record, advised: bool) -> str:
    """All tables, as Markdown; ``advised``: with the advice, which is about the committed records."""
    datasets = by_dataset(runs)
    parts = ["# Does the Number Token Loss help?"]
    if advised:
        parts += [f"When to use it, and with which options: [advice]({ADVICE_TEXT})."]
    parts += [f"How each run was made: [commands]({COMMANDS}).", LEGEND]
    if rows := targets(runs, timing):
        parts.append(markdown(["target", "measured", ""], rows))
    if table := decoding_table(datasets):
        parts += ["## What decoding does", DECODING, table]
    if table := yardstick_table(datasets, yardsticks):
        parts += ["## What tables allow", YARDSTICKS, table]
    for dataset in in_order(datasets):
        parts += tables_of(dataset, datasets[dataset])
    return "\n\n".join(parts) + "\n"


DECODING = (
    "NTL-WAS draws answers to the median, and so does the median of answers drawn at random from a model that was "
    "trained with cross-entropy alone. Here is the one beside the other, of the same trained models."
)


YARDSTICKS = (
    "The same rows and columns given to a method that is made for tables (scikit-learn's gradient boosting at its "
    "defaults, for the absolute error), and the constant that errs least. Small models that read numbers digit by "
    "digit for some minutes stay behind the former, with and without NTL, and the regression head is a weak rival here."
)


def tables_of(dataset: str, groups: Groups) -> list[str]:
    """Picture and tables of a data set."""
    parts = [f"## {words(dataset)}", settings(groups), f"![{words(dataset)}]({dataset}.png)"]
    for split in splits_of(groups):
        parts.append(f"{split}, at the end:\n\n{test_table(groups, split)}")
        if table := difference_table(groups, split):
            parts.append(f"{split}, at the end, beside CE by pairs:\n\n{table}")
    if budgets(groups):
        parts += [f"Validation, by steps:\n\n{budget_table(groups, metric)}" for metric in CURVES]
    return parts


def commands(runs: Sequence[Record], yardsticks: Record) -> str:
    """The command of every run, as Markdown."""
    datasets = by_dataset(runs)
    parts = ["# How the runs were made", AT_THEIR_COMMIT]
    for dataset in in_order(datasets):
        made = [run for group in datasets[dataset].values() for run in group]
        made += [yardsticks[dataset]] if dataset in yardsticks else []
        parts += [f"## {words(dataset)}", provenance(made)]
    return "\n\n".join(parts) + "\n"


AT_THEIR_COMMIT = (
    "A command is one of its commit. Until commit 7804ee7 runs were reweighed by default, so those without "
    "`loss.reweigh` were; tables call runs by their configuration. `DATA` is a folder outside the project."
)


def advice(runs: Sequence[Record]) -> str:
    """When to use NTL and with which options, each sentence with the table behind it, as a page of its own."""
    parts = ["# When the Number Token Loss helps", headlines.tables(runs), IN_SHORT]
    parts += [f"![What CE + NTL changes beside CE]({DIFFERENCES})", SHRINKS, f"![By training steps]({TRAINING})"]
    parts += [folded("How to read the tables", LEGEND), folded("How the settings came about", CHOICE)]
    for sentence, evidence in ADVICE:
        table = evidence_table(runs, evidence)
        parts += [f"**{filled(sentence, evidence, runs)}**", folded(f"{len(evidence)} differences behind it", table)]
    return "\n\n".join([*parts, f"All tables: [report]({TEXT}). All commands: [commands]({COMMANDS})."]) + "\n"


IN_SHORT = (
    "Beside cross-entropy alone at the same seeds: errors as a change in per cent, right numbers in percentage points, "
    f"with the 95 % interval and the seeds that agree; {LOWER} and {HIGHER}: the interval excludes 0 (in the picture: "
    "full dots)."
)
SHRINKS = (
    "The difference of MAE to CE, by pairs, as training goes on. Left, test answers at the end of three budgets, each "
    "with a learning rate that falls to 0; right, validation answers on the way. Full dots: the interval excludes 0."
)


def folded(title: str, text: str) -> str:
    """Text that a click unfolds, on GitHub and on the site."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def filled(sentence: str, evidence: Sequence[Evidence], runs: Sequence[Record]) -> str:
    """A sentence with the differences that it names by their place in its evidence."""
    return sentence.format(*(brief(evidence_of(by_dataset(runs), each), each.metric) for each in evidence))


def evidence_table(runs: Sequence[Record], evidence: Sequence[Evidence]) -> str:
    """What the records say of a sentence's claims."""
    rows = []
    for each in evidence:
        task = f"[{words(each.dataset)}]({TEXT}#{anchor(words(each.dataset))}), {each.split}"
        beside = each.beside + (f", {each.beside_split}" if each.beside_split else "")
        found = told(evidence_of(by_dataset(runs), each), each.metric)
        rows.append([task, f"{each.loss} beside {beside}", METRICS[each.metric], found])
    return markdown(["task", "loss", "metric", "difference by pairs"], rows)


def evidence_of(datasets: dict[str, Groups], evidence: Evidence) -> Difference:
    """What the records say of a claim."""
    groups = datasets.get(evidence.dataset, {})
    runs, others = (groups.get((evidence.model, loss), []) for loss in (evidence.loss, evidence.beside))
    found = compare(runs, others, evidence.split, evidence.metric, evidence.beside_split)
    if found is None:
        raise InputError(f"no pairs of {evidence.dataset}, {evidence.model}, {evidence.loss} behind the advice")
    return found


def wrong_advice(runs: Sequence[Record]) -> list[str]:
    """Claims that the records do not bear out."""
    datasets = by_dataset(runs)
    claims = [(sentence, each, evidence_of(datasets, each)) for sentence, evidence in ADVICE for each in evidence]
    return [
        f"advice {sentence!r}: {each.dataset}, {each.loss}: {each.metric} is {found.verdict}"
        for sentence, each, found in claims
        if found.verdict != each.verdict
    ]


def section(folder: Path) -> str:
    """The README's text on quality: one table, one plot, the advice."""
    runs = records.read([folder], folder)
    where = folder.resolve().relative_to(ROOT)
    parts = [
        headlines.tables(runs),
        f"{IN_SHORT} What each sentence rests on: [advice]({where}/{ADVICE_TEXT}); all tables: "
        f"[report]({where}/{TEXT}).",
        f"![What CE + NTL changes beside CE]({where}/{DIFFERENCES})",
        "\n".join(f"- {filled(sentence, evidence, runs)}" for sentence, evidence in ADVICE),
    ]
    return "\n\n".join(parts) + "\n"


def pages(folder: Path) -> Pages:
    """What follows from a folder's records; advice and the README's section from the committed ones alone."""
    runs = records.read([folder], folder)
    files = folder / TIMING, folder / records.YARDSTICKS
    timing, yardsticks = (json.loads(path.read_text()) if path.exists() else {} for path in files)
    drawn: dict[Path, tuple[str, Draw]] = {}
    for dataset, groups in by_dataset(runs).items():
        source = digest([each for _, each in sorted(groups.items())])
        drawn[folder / f"{dataset}.png"] = source, partial(plots.draw, groups, words(dataset))
    is_published = is_committed(folder)
    told = report(runs, timing, yardsticks, advised=is_published)
    texts = {folder / TEXT: told, folder / COMMANDS: commands(runs, yardsticks)}
    if not is_published:
        return Pages(SECTION, folder, texts, drawn, None)
    drawn[folder / DIFFERENCES] = digest(headlines.tables(runs)), partial(headlines.draw_differences, runs)
    followed = digest([headlines.budgets(runs), headlines.training(runs)])
    drawn[folder / TRAINING] = followed, partial(headlines.draw_training, runs)
    texts[folder / ADVICE_TEXT] = advice(runs)
    return Pages(SECTION, folder, texts, drawn, section(folder))


def check(folder: Path) -> list[str]:
    """Where README, tables, plots and advice differ from the records."""
    problems = pages(folder).problems(README)
    return problems + (wrong_advice(records.read([folder], folder)) if is_committed(folder) else [])


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


@in_one_line
def main(arguments: list[str]) -> int:
    """``report [RUN_FOLDER...] [--out FOLDER] [--check]``"""
    parser = Parser(prog="python -m benchmarks.quality report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="folders with runs; without any, the committed records")
    parser.add_argument("--out", type=Path, help="folder for records, tables and plots (default: runs/quality/report)")
    parser.add_argument("--check", action="store_true", help="only say what does not agree with the committed records")
    chosen = parser.parse_args(arguments)
    if chosen.check and chosen.runs:
        parser.error("--check is about a folder of records (--out), not about runs")
    folder = chosen.out or (Path("runs/quality/report") if chosen.runs else FOLDER)
    if chosen.check:
        return published.verdict(check(folder))
    writable(folder)
    if chosen.runs:
        records.write(records.read(chosen.runs, folder), folder / records.FILE)
    written = pages(folder).write(README)
    print(written[0].read_text())
    print("\n".join(map(str, written)))
    return 0
