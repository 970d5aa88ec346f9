"""Tokenizers that write several digits in a token: losses compared with CE, and digits as tokens beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from .losses import NTL
from .names import METRICS, SEVERAL, TOKENIZERS, in_order, words
from .records import Groups, Record, by_dataset, values_of
from .statistics import Difference, baseline, compare
from .tables import HIGHER, LOWER, markdown, settings, spread, to_baseline, told

TITLE = "Tokens of several digits"
SPLIT = "test"
ERRORS = ("mae", "median_error", "log_mae")
MEASURED = (*ERRORS, "run_on", "too_short", "no_number")
READ = (
    "The same models with tokenizers that write several digits in a token. `same length`: NTL compares a label only "
    'with number tokens of as many digits, in units of the first digit (`group_by="length"`). `all number tokens '
    "compared`: by their values (`group_by=None`). Below each mean is the paired difference to CE with the same "
    "tokenizer. The last rows compare CE with digits as tokens with CE with the other tokenizers; these pairs share "
    "the data and its order, but not the initial weights. `-`: not recorded."
)
COUNTED = (
    f"The number of differences to CE, one per data set and tokenizer, whose interval is below 0 ({LOWER}) or above 0 "
    f"({HIGHER}):"
)


def with_several(runs: Iterable[Record]) -> dict[str, Groups]:
    """The data sets with runs of such tokenizers."""
    return {name: groups for name, groups in by_dataset(runs).items() if any(model in SEVERAL for model, _ in groups)}


def section(runs: Sequence[Record]) -> list[str]:
    """The section of the report; empty without such runs."""
    datasets = with_several(runs)
    if not datasets:
        return []
    parts = [f"## {TITLE}", READ, outcome_table(runs)]
    for dataset in in_order(datasets):
        groups = {(model, loss): datasets[dataset][model, loss] for model, loss in rows_of(datasets[dataset])}
        parts.append(f"{words(dataset)}, {SPLIT}, after training. {settings(groups)}\n\n{table(groups)}")
    return parts


def rows_of(groups: Groups) -> list[tuple[str, str]]:
    """The models and losses to show, in order: with digits as tokens, only CE and the recommended loss."""
    shown = [key for key in groups if key[0] in SEVERAL or key in (("llama", "CE"), ("llama", NTL))]
    return sorted(shown, key=lambda key: (list(TOKENIZERS).index(key[0]), by_form(key[1])))


def table(groups: Groups) -> str:
    """A row per tokenizer and loss: the mean and the difference to CE of each metric."""
    metrics = [name for name in MEASURED if any(any(values_of(runs, SPLIT, name)) for runs in groups.values())]
    rows = [
        [TOKENIZERS[key[0]], key[1], str(len(runs)), *(cell(groups, key, metric) for metric in metrics)]
        for key, runs in groups.items()
    ]
    for model in SEVERAL:
        cells = [told(digits_beside(groups, model, metric), metric) for metric in metrics]
        if set(cells) != {"-"}:
            rows.append([TOKENIZERS["llama"], f"CE vs CE, {TOKENIZERS[model].partition(':')[0]}", "", *cells])
    return markdown(["tokenizer", "loss", "seeds", *(METRICS[metric] for metric in metrics)], rows)


def by_form(loss: str) -> tuple[str, str]:
    """Sorts titles by what NTL compares, then by its weight."""
    return loss.partition(", ")[2], loss


def cell(groups: Groups, key: tuple[str, str], metric: str) -> str:
    found = to_baseline(groups, key, SPLIT, metric)
    return spread(values_of(groups[key], SPLIT, metric)) + (f"<br>{told(found, metric)}" if found else "")


def digits_beside(groups: Groups, model: str, metric: str) -> Difference | None:
    """CE with digits as tokens, compared with CE with another tokenizer."""
    return compare(baseline(groups, "llama"), baseline(groups, model), SPLIT, metric, models=False)


def outcomes(datasets: dict[str, Groups]) -> dict[str, dict[str, list[Difference]]]:
    """Loss -> metric -> its differences to CE, one per data set and tokenizer."""
    found: dict[str, dict[str, list[Difference]]] = defaultdict(lambda: defaultdict(list))
    for groups in datasets.values():
        for key, metric in product((key for key in groups if key[0] in SEVERAL), MEASURED):
            if each := to_baseline(groups, key, SPLIT, metric):
                found[key[1]][metric].append(each)
    return {loss: found[loss] for loss in sorted(found, key=by_form)}


def outcome_table(runs: Sequence[Record]) -> str:
    """A row per loss: how many of the differences in each metric are certain."""
    rows = []
    for loss, differences in outcomes(with_several(runs)).items():
        counts = [verdicts(differences[metric]) for metric in MEASURED]
        rows.append([loss, *(f"{LOWER} {n['lower']}, {HIGHER} {n['higher']} of {n.total()}" for n in counts)])
    return f"{COUNTED}\n\n{markdown(['loss', *(METRICS[metric] for metric in MEASURED)], rows)}"


def verdicts(differences: Iterable[Difference | None]) -> Counter[str]:
    return Counter(each.verdict for each in differences if each)


def advice(runs: Sequence[Record]) -> str:
    """What the records say about these tokenizers; empty without such runs."""
    datasets = with_several(runs)
    if not datasets:
        return ""
    forms = {
        loss: verdicts(each for metric in ERRORS for each in differences[metric])
        for loss, differences in outcomes(datasets).items()
    }
    helped = [f"{loss} ({n['lower']} of {n.total()})" for loss, n in forms.items() if n["lower"] and not n["higher"]]
    harmed = [f"{loss} ({n['higher']} of {n.total()})" for loss, n in forms.items() if n["higher"]]
    alone = verdicts(
        digits_beside(groups, model, metric) for groups in datasets.values() for model in SEVERAL for metric in ERRORS
    )
    found = "these losses reduced some errors and increased none" if helped else "no loss reduced errors only"
    return (
        f"With tokens of several digits, compared with CE, {found}{': ' * bool(helped)}{', '.join(helped)}."
        f"{' These increased some: ' * bool(harmed)}{', '.join(harmed)}{'.' * bool(harmed)} CE with digits as tokens "
        f"reduced {alone['lower']} of {alone.total()} errors and increased {alone['higher']}."
    )
