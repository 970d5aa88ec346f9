"""Tables, plots and advice generated from the records of runs, and the README section made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .. import files, published
from ..commands import InputError, Parser, in_one_line, writable
from ..environment import ROOT
from ..published import README, Draw, Pages, digest
from . import headlines, ordered, paper, plots, records, several_digits
from .advice import ADVICE, CHOICE, HELP, SOFT, Evidence
from .losses import NTL
from .names import ANSWERS, FINETUNED, METRICS, OF_PAPER, SEVERAL, WITH_BINS, anchor, file_name, in_order, words
from .records import Groups, Key, Record, by_dataset, is_rated, splits_of
from .statistics import Difference, compare
from .tables import (
    CURVES,
    HIGHER,
    LEGEND,
    LOWER,
    brief,
    budget_table,
    budgets,
    cost_table,
    decoding_table,
    difference_table,
    in_words,
    markdown,
    mean_table,
    provenance,
    rating_differences,
    rating_table,
    settings,
    told,
    yardstick_table,
)

FOLDER = Path(__file__).parents[1] / "results" / "quality"
"""The committed results."""
SECTION = "quality"
TIMING = "timing.json"
ADVICE_TEXT, TEXT, COMMANDS = "advice.md", "report.md", "commands.md"
DIFFERENCES, TRAINING = "differences.png", "training.png"


def report(
    runs: Sequence[Record], timing: Record, yardsticks: Record, advised: bool, costs: Sequence[Record] = ()
) -> str:
    """All tables as Markdown; ``advised``: link to the advice, which is based on the committed records."""
    datasets = by_dataset(without_sections(runs))
    parts = ["# Does the Number Token Loss help?"]
    if advised:
        parts += [f"When to use it and with which options: [advice]({ADVICE_TEXT})."]
    parts += [f"The command of each run: [commands]({COMMANDS}).", LEGEND]
    if rows := headlines.targets(runs, timing):
        parts.append(markdown(["target", "measured", ""], rows))
    if table := cost_table(costs):
        parts += ["## What a step of fine-tuning costs", COSTS, table]
    if table := decoding_table({name: groups for name, groups in datasets.items() if not is_rated(groups)}):
        parts += ["## What decoding does", DECODING, table]
    if table := yardstick_table(datasets, yardsticks):
        parts += ["## What tables allow", YARDSTICKS, table]
    parts += ordered.section(runs, yardsticks) + several_digits.section(runs) + paper.section(runs)
    for dataset in in_order(datasets):
        parts += tables_of(dataset, datasets[dataset])
    return "\n\n".join(parts) + "\n"


def without_sections(runs: Sequence[Record]) -> list[Record]:
    """The runs that no section of their own shows."""
    others = (run for run in runs if not ordered.is_ordered(run))
    return [run for run in others if run["model"] not in SEVERAL and run["dataset"] not in OF_PAPER]


COSTS = (
    "Medians of interleaved rounds, with the ratio of each round to the stock Trainer's; in brackets, 20th and 80th "
    "percentile. The peak of memory is that of forward and backward on one thread, beyond weights and optimizer. The "
    "commands are in the files `timing-*.json` here."
)
DECODING = (
    "NTL-WAS pulls answers towards the median. Sampling answers from a model trained with cross-entropy alone, and "
    "taking their median, does the same. This table compares the two for the same trained models."
)


YARDSTICKS = (
    "Two reference methods on the same rows and columns: a method for tables (scikit-learn's gradient boosting for the "
    "absolute error, with default settings) and the constant with the smallest error. Language models that read "
    "numbers digit by digit and train for some minutes have larger errors than gradient boosting, with and without "
    "NTL. The regression head of the small models is a weak baseline: in these runs, the position biases of its T5 "
    "started near 0, from where learning starts later than from the values that are used now."
)


def tables_of(dataset: str, groups: Groups) -> list[str]:
    """The figure and tables of a data set."""
    parts = [f"## {words(dataset)}", settings(groups), f"![{words(dataset)}]({picture_of(dataset)})"]
    if is_rated(groups):
        parts.append(RATINGS)
    for split in splits_of(groups):
        if is_rated(groups):
            parts += rating_tables(groups, split)
            continue
        parts.append(f"{split}, after training:\n\n{mean_table(groups, split)}")
        if table := difference_table(groups, split):
            parts.append(f"{split}, after training, paired differences to CE:\n\n{table}")
    if budgets(groups):
        parts += [f"Validation, over training steps:\n\n{budget_table(groups, metric)}" for metric in CURVES]
    return parts


def picture_of(dataset: str) -> str:
    """The file with the figure of a data set."""
    return f"{file_name(dataset)}.png"


RATINGS = (
    "The answers are scores from 0 to 11. `llama_scores` has a token for each score; the other models write 10 and 11 "
    "with two digits. `expected` is the expected score, and `median of 16` the median of 16 drawn scores, both from "
    "the probabilities of the scores. QWK is the quadratic weighted kappa; it and `within one` round to whole scores. "
    "A constant answer has a QWK of 0. `balance=True`: every number token has the same total weight in NTL "
    "(`number_weights`)."
)


def rating_tables(groups: Groups, split: str) -> list[str]:
    """The tables of a split whose answers are ratings."""
    parts = [f"{split}, after training:\n\n{rating_table(groups, split)}"]
    besides: dict[str, Callable[[str, Key], tuple[str, Key]]] = {
        "to CE with the same model and the same way to answer": lambda where, key: (where, (key[0], "CE")),
        "to the greedy answers of the same runs": lambda where, key: (split, key),
        "to the regression head (the pairs share the data and its order, but not the weights)": lambda where, key: (
            split,
            ("regression_head", "MSE"),
        ),
    }
    for name, beside in besides.items():
        if table := rating_differences(groups, split, beside):
            parts.append(f"{split}, paired differences {name}:\n\n{table}")
    return parts


def commands(runs: Sequence[Record], yardsticks: Record) -> str:
    """The commands of all runs as Markdown."""
    datasets = by_dataset(runs)
    parts = ["# How the runs were made", AT_THEIR_COMMIT]
    for dataset in in_order(datasets):
        made = [run for group in datasets[dataset].values() for run in group]
        made += [yardsticks[dataset]] if dataset in yardsticks else []
        parts += [f"## {words(dataset)}", provenance(made)]
    return "\n\n".join(parts) + "\n"


AT_THEIR_COMMIT = (
    "Run each command at its commit. Before commit 7804ee7, `reweigh` was on by default, so runs without "
    "`loss.reweigh` used it; tables name runs by their configuration. `DATA` is a folder outside the project."
)


def headline_parts(runs: Sequence[Record], yardsticks: Record) -> list[str]:
    """What was trained from scratch, the table and its caption."""
    caption = " ".join([CHOSEN, *filter(None, [headlines.harm(runs)])])
    return [*filter(None, [headlines.scope(runs, yardsticks)]), headlines.table(runs), caption]


def finetuned_parts(runs: Sequence[Record], yardsticks: Record) -> list[str]:
    """What was fine-tuned, the table and its caption; nothing without such runs."""
    told = headlines.finetuning(runs, yardsticks)
    return [told, headlines.table(runs, FINETUNED), finetuned_caption(runs)] if told else []


def finetuned_caption(runs: Sequence[Record]) -> str:
    return f"{CAPTION} {IN_BINS}" if any(run["model"] == WITH_BINS for run in runs) else CAPTION


def advice(runs: Sequence[Record], yardsticks: Record) -> str:
    """The advice page: when to use NTL and with which options, with a table of evidence for each sentence."""
    parts = ["# When the Number Token Loss helps", *finetuned_parts(runs, yardsticks)]
    parts += ["## Small models, from scratch", *headline_parts(runs, yardsticks)]
    parts += [f"![{ALT}]({DIFFERENCES})", f"![Change in MAE over training steps]({TRAINING})", SHRINKS]
    parts += [folded("How to read the tables", LEGEND), folded("How the settings were chosen", CHOICE)]
    for sentence, evidence, details in ADVICE:
        table = evidence_table(runs, evidence)
        parts += [f"**{filled(sentence, evidence, runs)}**", *filter(None, [details])]
        parts += [folded(f"Evidence: {len(evidence)} differences", table)]
    if datasets := several_digits.with_several(runs):
        parts += [several_digits.advice(datasets), several_digits.DETAILS]
        parts += [folded("Evidence: how many differences", several_digits.outcome_table(datasets))]
    return "\n\n".join([*parts, f"All tables: [report]({TEXT}). All commands: [commands]({COMMANDS})."]) + "\n"


ALT = "Change in error with CE + NTL, relative to CE"
CAPTION = (
    f"Errors of the test answers, mean over seeds, with cross-entropy alone and with {NTL}. The error is the MAE where "
    f"the median error is the same in every run. Change: paired by seed; {LOWER} or {HIGHER}: the interval excludes 0."
)
IN_BINS = (
    f"In 256 bins: each answer is one new token, and the loss is {SOFT}. The answers are greedy. On house values, "
    "medians of the distribution gained less, and on taxi fares, greedy answers did not differ reliably. With prices "
    "of diamonds, the soft label alone and four times as many steps, the difference was far smaller."
)
CHOSEN = f"{headlines.CHOSEN}: 0.3 was chosen on the test answers of this task, after 800 steps."
SHRINKS = (
    "Paired difference in MAE to CE over training. Left: test answers at the end of three budgets, each with a "
    "learning rate that falls to 0. Right: validation answers during training. Filled dots: the interval excludes 0."
)


def folded(title: str, text: str) -> str:
    """Collapsible text, for GitHub and the documentation site."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def filled(
    sentence: str, evidence: Sequence[Evidence], runs: Sequence[Record], write: Callable[..., str] = in_words
) -> str:
    """A sentence with ``{0}``, ``{1}``, ... replaced by the changes of its evidence."""
    datasets = by_dataset(runs)
    return sentence.format(*(write(evidence_of(datasets, each), each.metric) for each in evidence))


def evidence_table(runs: Sequence[Record], evidence: Sequence[Evidence]) -> str:
    """The recorded differences behind a sentence."""
    rows = []
    for each in evidence:
        task = f"[{words(each.dataset)}]({TEXT}#{anchor(words(each.dataset))}), {each.split}"
        task += f", {ANSWERS[each.model]}" if each.model in ANSWERS else ""
        beside = ", ".join(filter(None, (each.beside, each.beside_split, each.beside_model)))
        found = told(evidence_of(by_dataset(runs), each), each.metric)
        rows.append([task, f"{each.loss} vs {beside}", METRICS[each.metric], found])
    return markdown(["task", "loss", "metric", "paired difference"], rows)


def evidence_of(datasets: dict[str, Groups], evidence: Evidence) -> Difference:
    """The recorded difference that a claim is about."""
    groups = datasets.get(evidence.dataset, {})
    model = evidence.beside_model or evidence.model
    runs, others = groups.get((evidence.model, evidence.loss), []), groups.get((model, evidence.beside), [])
    found = compare(runs, others, evidence.split, evidence.metric, evidence.beside_split, model == evidence.model)
    if found is None:
        raise InputError(f"no pairs of {evidence.dataset}, {evidence.model}, {evidence.loss} for the advice")
    return found


def wrong_advice(runs: Sequence[Record]) -> list[str]:
    """Claims that the records do not support."""
    datasets = by_dataset(runs)
    claims = [(one.sentence, each, evidence_of(datasets, each)) for one in HELP + ADVICE for each in one.evidence]
    return [
        f"advice {sentence!r}: {each.dataset}, {each.loss}: {each.metric} is {found.verdict}"
        for sentence, each, found in claims
        if found.verdict != each.verdict
    ]


def section(runs: Sequence[Record], folder: Path) -> str:
    """The README's text on quality: where NTL helps and where it does not, one table, and links to the rest."""
    where = folder.resolve().relative_to(ROOT)
    lines = "\n".join(f"- {filled(sentence, evidence, runs, brief)}" for sentence, evidence, _ in HELP)
    found = (
        f"Conclusions from all {len(runs)} runs, each with its evidence: [advice]({where}/{ADVICE_TEXT}). "
        f"All tables: [report]({where}/{TEXT})."
    )
    under = f"{headlines.made(runs)} {finetuned_caption(runs)} {found}"
    return f"{lines}\n\n{headlines.table(runs, FINETUNED)}\n\n{under}\n"


def pages(folder: Path, runs: Sequence[Record]) -> Pages:
    """The pages of a folder, from its records; advice and README section only for the committed ones."""
    timing, yardsticks = (files.read_json(folder / name, {}) for name in (TIMING, records.YARDSTICKS))
    drawn: dict[Path, tuple[str, Draw]] = {}
    for dataset, groups in by_dataset(without_sections(runs)).items():
        source = digest([each for _, each in sorted(groups.items())])
        drawn[folder / picture_of(dataset)] = source, partial(plots.draw, groups, words(dataset))
    is_published = is_committed(folder)
    costs = [files.read_json(path) for path in sorted(folder.glob("timing-*.json"))]
    told = report(runs, timing, yardsticks, is_published, costs)
    texts = {folder / TEXT: told, folder / COMMANDS: commands(runs, yardsticks)}
    if not is_published:
        return Pages(SECTION, folder, texts, drawn, None)
    drawn[folder / DIFFERENCES] = digest(headlines.errors(runs)), partial(headlines.draw_differences, runs)
    followed = digest([headlines.budgets(runs), headlines.training(runs)])
    drawn[folder / TRAINING] = followed, partial(headlines.draw_training, runs)
    texts[folder / ADVICE_TEXT] = advice(runs, yardsticks)
    return Pages(SECTION, folder, texts, drawn, section(runs, folder))


def check(folder: Path) -> list[str]:
    """The differences between the records and README, tables, plots and advice."""
    runs = records.read([folder])
    problems = pages(folder, runs).problems(README)
    return problems + (wrong_advice(runs) if is_committed(folder) else [])


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


@in_one_line
def main(arguments: list[str]) -> int:
    """``report [RUN_FOLDER...] [--out FOLDER] [--replace] [--check]``"""
    parser = Parser(prog="python -m benchmarks.quality report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="folders with runs; without any, the committed records")
    parser.add_argument("--out", type=Path, help="folder for records, tables and plots (default: runs/quality/report)")
    parser.add_argument("--replace", action="store_true", help="drop records in --out of which there is a newer run")
    parser.add_argument("--check", action="store_true", help="only say what does not agree with the committed records")
    chosen = parser.parse_args(arguments)
    if chosen.check and chosen.runs:
        parser.error("--check is about a folder of records (--out), not about runs")
    if chosen.replace and not chosen.runs:
        parser.error("--replace is about new runs, and there are none")
    folder = chosen.out or (Path("runs/quality/report") if chosen.runs else FOLDER)
    if chosen.check:
        return published.verdict(check(folder))
    writable(folder)
    with files.locked(folder):
        runs = records.read(chosen.runs or [folder], folder, chosen.replace)
        made = pages(folder, runs)  # before anything is written
        if chosen.runs:
            records.write(runs, folder / records.FILE)
        written = made.write(README)
    print(written[0].read_text(encoding="utf-8"))
    print("\n".join(map(str, written)))
    return 0
