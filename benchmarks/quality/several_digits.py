"""Tokenizers that write several digits in a token: losses compared with CE, and digits as tokens beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from .losses import NTL
from .names import METRICS, SEVERAL, TOKENIZERS, anchor, in_order, words
from .records import Groups, Record, by_dataset
from .statistics import Difference, baseline, compare
from .tables import MARKS, difference_table, markdown, mean_table, settings, to_baseline, told

OF_DIGITS = ("llama", "CE"), ("llama", NTL)
"""The runs with digits as tokens that are shown beside the others."""
TITLE = "Tokens of several digits"
SPLIT = "test"
ERRORS = ("mae", "median_error", "log_mae")
WORSE = {"too_short": "with too few digits", "no_number": "without a number"}
"""Shares that a smaller error may hide -> the words for such answers."""
MEASURED = (*ERRORS, "run_on", "too_short", "no_number")
READ = (
    "The same models with tokenizers that write several digits in a token. `GPT-2-like`: any number of digits, merged "
    "like letters. `Llama-3-like`: up to three; runs of digits are split after every third. `digits`: every digit is a "
    "token, as in all other tables. `same length`: NTL compares a label only with number tokens of as many digits, in "
    'units of the first digit (`group_by="length"`). `all number tokens compared`: by their values '
    "(`group_by=None`). `-`: not recorded."
)
COUNTED = "How many differences to CE, one per task, have an interval below or above 0:"
DETAILS = f"Errors are MAE, median error and log MAE. Each difference: [report](report.md#{anchor(TITLE)})."
ALONE = "CE with digits as tokens compared with CE; the pairs share the data and its order, but not the weights:"


def section(runs: Sequence[Record]) -> list[str]:
    """The section of the report; empty without such runs."""
    datasets = with_several(runs)
    if not datasets:
        return []
    parts = [f"## {TITLE}", READ, outcome_table(datasets), f"{ALONE}\n\n{digits_table(datasets)}"]
    for name in in_order(datasets):
        after = f"{words(name)}, {SPLIT}, after training"
        shown = {key: found for key, found in datasets[name].items() if key[0] in SEVERAL or key in OF_DIGITS}
        groups = {(TOKENIZERS[model], loss): found for (model, loss), found in shown.items()}
        parts.append(f"{after}. {settings(shown)}\n\n{mean_table(groups, SPLIT, MEASURED, 'tokenizer')}")
        if table := difference_table(groups, SPLIT, MEASURED, "tokenizer"):
            parts.append(f"{after}, paired differences to CE with the same tokenizer:\n\n{table}")
    return parts


def with_several(runs: Iterable[Record]) -> dict[str, Groups]:
    """The data sets with runs of such tokenizers."""
    return {name: groups for name, groups in by_dataset(runs).items() if any(model in SEVERAL for model, _ in groups)}


def outcomes(datasets: dict[str, Groups]) -> dict[tuple[str, str], dict[str, list[Difference]]]:
    """(tokenizer, loss) -> metric -> the differences to CE, one per data set."""
    found: dict[tuple[str, str], dict[str, list[Difference]]] = defaultdict(lambda: defaultdict(list))
    for groups in datasets.values():
        for key, metric in product((key for key in groups if key[0] in SEVERAL), MEASURED):
            if each := to_baseline(groups, key, SPLIT, metric):
                found[TOKENIZERS[key[0]], key[1]][metric].append(each)
    return {key: found[key] for key in sorted(found)}


def outcome_table(datasets: dict[str, Groups]) -> str:
    """A row per tokenizer and loss: how many of the differences in each metric are certain."""
    rows = []
    for (tokenizer, loss), differences in outcomes(datasets).items():
        counts = [Counter(each.verdict for each in differences[metric]) for metric in MEASURED]
        cells = [" ".join(f"{n[key]}{mark.strip()}" for key, mark in MARKS.items() if mark and n[key]) for n in counts]
        rows.append([tokenizer, loss, str(counts[0].total()), *(cell or "0" for cell in cells)])
    header = ["tokenizer", "loss", "tasks", *(METRICS[metric] for metric in MEASURED)]
    return f"{COUNTED}\n\n{markdown(header, rows)}"


def digits_table(datasets: dict[str, Groups]) -> str:
    """A row per data set and tokenizer that digits as tokens are compared with."""
    rows = []
    for name, model in product(in_order(datasets), SEVERAL):
        cells = [told(digits_beside(datasets[name], model, metric), metric) for metric in MEASURED]
        if set(cells) != {"-"}:
            rows.append([words(name), TOKENIZERS[model], *cells])
    return markdown(["task", "compared with", *(METRICS[metric] for metric in MEASURED)], rows)


def digits_beside(groups: Groups, model: str, metric: str) -> Difference | None:
    """CE with digits as tokens, compared with CE with another tokenizer."""
    return compare(baseline(groups, "llama"), baseline(groups, model), SPLIT, metric, models=False)


def advice(datasets: dict[str, Groups]) -> str:
    """What the records say about these tokenizers: as everywhere, an interval that excludes 0 decides."""
    said: dict[str, list[str]] = {"lower": [], "higher": []}
    for (tokenizer, loss), differences in outcomes(datasets).items():
        found = Counter(each.verdict for metric in ERRORS for each in differences[metric])
        verdict = "higher" if found["higher"] else "lower"
        more = [
            f"{answers} in {count} of {len(differences[metric])}"
            for metric, answers in WORSE.items()
            if (count := sum(each.verdict == "higher" for each in differences[metric]))
        ]
        aside = f" (more answers {', '.join(more)})" if more else ""
        if found[verdict]:
            said[verdict].append(f"- {tokenizer}, {loss}: {found[verdict]} of {found.total()} errors{aside}")
    helped, harmed = map("\n".join, said.values())
    beside = [digits_beside(*each) for each in product(datasets.values(), SEVERAL, ERRORS)]
    alone = Counter(each.verdict for each in beside if each)
    counts = f"{alone['lower']} of {alone.total()} errors of CE are smaller than with tokens of several digits"
    parts = [f"**With digits as tokens, {counts}, and {alone['higher']} are larger.**"]
    good = "With tokens of several digits, NTL reduced these errors and increased none:"
    parts += [f"**{good}**\n\n{helped}"] if helped else []
    parts += [f"**It increased these:**\n\n{harmed}"] if harmed else []
    return "\n\n".join(parts)
