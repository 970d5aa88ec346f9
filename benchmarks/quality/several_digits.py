"""Tokenizers that write several digits in a token: losses compared with CE, and digits as tokens beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from .losses import NTL
from .names import METRICS, SEVERAL, TOKENIZERS, in_order, words
from .records import Groups, Record, by_dataset
from .statistics import Difference, baseline, compare
from .tables import HIGHER, LOWER, difference_table, markdown, mean_table, settings, to_baseline, told

TITLE = "Tokens of several digits"
SPLIT = "test"
ERRORS = ("mae", "median_error", "log_mae")
MEASURED = (*ERRORS, "run_on", "too_short", "no_number")
READ = (
    "The same models with tokenizers that write several digits in a token. `GPT-2-like`: any number of digits, merged "
    "like letters. `Llama-3-like`: up to three; runs of digits are split after every third. `digits`: every digit is a "
    "token, as in all other tables. `same length`: NTL compares a label only with number tokens of as many digits, in "
    'units of the first digit (`group_by="length"`). `all number tokens compared`: by their values '
    "(`group_by=None`). `-`: not recorded."
)
COUNTED = (
    f"Differences to CE with the same tokenizer, one per data set and tokenizer: how many have an interval below 0 "
    f"({LOWER}) or above 0 ({HIGHER})."
)
CERTAIN = {"lower": LOWER, "higher": HIGHER}
NONE = "no loss reduced errors without increasing others"
ALONE = (
    "CE with digits as tokens, compared with CE with the other tokenizers. The pairs share the data and its order, but "
    "not the initial weights."
)


def section(runs: Sequence[Record]) -> list[str]:
    """The section of the report; empty without such runs."""
    datasets = with_several(runs)
    if not datasets:
        return []
    parts = [f"## {TITLE}", READ, outcome_table(datasets), f"{ALONE}\n\n{digits_table(datasets)}"]
    for name in in_order(datasets):
        after = f"{words(name)}, {SPLIT}, after training"
        shown = {key: found for key, found in datasets[name].items() if is_shown(*key)}
        groups = {(TOKENIZERS[model], loss): found for (model, loss), found in shown.items()}
        parts.append(f"{after}. {settings(shown)}\n\n{mean_table(groups, SPLIT, MEASURED, 'tokenizer')}")
        if table := difference_table(groups, SPLIT, MEASURED, "tokenizer"):
            parts.append(f"{after}, paired differences to CE with the same tokenizer:\n\n{table}")
    return parts


def with_several(runs: Iterable[Record]) -> dict[str, Groups]:
    """The data sets with runs of such tokenizers."""
    return {name: groups for name, groups in by_dataset(runs).items() if any(model in SEVERAL for model, _ in groups)}


def is_shown(model: str, loss: str) -> bool:
    """Whether the section shows these runs; with digits as tokens, only those with CE and the recommended loss."""
    return model in SEVERAL or (model in TOKENIZERS and loss in ("CE", NTL))


def outcomes(datasets: dict[str, Groups]) -> dict[str, dict[str, list[Difference]]]:
    """Loss -> metric -> its differences to CE, one per data set and tokenizer."""
    found: dict[str, dict[str, list[Difference]]] = defaultdict(lambda: defaultdict(list))
    for groups in datasets.values():
        for key, metric in product((key for key in groups if key[0] in SEVERAL), MEASURED):
            if each := to_baseline(groups, key, SPLIT, metric):
                found[key[1]][metric].append(each)
    return {loss: found[loss] for loss in sorted(found)}


def outcome_table(datasets: dict[str, Groups]) -> str:
    """A row per loss: how many of the differences in each metric are certain."""
    rows = []
    for loss, differences in outcomes(datasets).items():
        counts = [verdicts(differences[metric]) for metric in MEASURED]
        cells = [" ".join(f"{n[key]}{mark}" for key, mark in CERTAIN.items() if n[key]) or "0" for n in counts]
        rows.append([loss, str(counts[0].total()), *cells])
    return f"{COUNTED}\n\n{markdown(['loss', 'differences', *(METRICS[metric] for metric in MEASURED)], rows)}"


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


def verdicts(differences: Iterable[Difference | None]) -> Counter[str]:
    return Counter(each.verdict for each in differences if each)


def advice(datasets: dict[str, Groups]) -> str:
    """What the records say about these tokenizers."""
    helped, harmed = [], []
    for loss, differences in outcomes(datasets).items():
        found = verdicts(each for metric in ERRORS for each in differences[metric])
        if found["higher"]:
            harmed.append(f"{found['higher']} of {found.total()} with {loss}")
        elif found["lower"]:
            helped.append(f"{found['lower']} of {found.total()} with {loss}")
    alone = verdicts(digits_beside(*each) for each in product(datasets.values(), SEVERAL, ERRORS))
    good = f"these losses reduced some errors and increased none: {'; '.join(helped)}" if helped else NONE
    told = [f"With tokens of several digits, compared with CE, {good}."]
    told += [f"These increased some: {'; '.join(harmed)}."] if harmed else []
    told += [
        f"CE with digits as tokens reduced {alone['lower']} of {alone.total()} errors and increased {alone['higher']}."
    ]
    return " ".join(told)
