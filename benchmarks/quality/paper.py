"""The paper's comparisons at small scale: its models and losses on its data sets, and what becomes of its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from .losses import GAUSSIAN, NTL, PLAIN, title
from .names import METRICS, PAPER_ARITHMETIC, PAPER_MATHEMATICS, PAPER_START
from .records import Groups, Key, Record, by_dataset, splits_of, values_of
from .statistics import Difference, baseline, compare
from .tables import difference_table, markdown, mean_table, rounded, settings, told

TITLE = "The paper's comparisons at small scale"
MEASURED = ("number_accuracy", "paper_accuracy", "mae", "median_error", "log_mae", "r2")
BETTER = {"number_accuracy": "higher", "mae": "lower", "r2": "higher"}
"""What the claims are about -> the direction that is better."""
T5, RT, XVAL = ("t5", "CE"), ("rt", "CE"), ("xval", PLAIN["ce_mse"])
MSE, BLURRED = ("t5", title("ntl_mse", {"weight": 0.3})), ("t5", title(GAUSSIAN, {"sigma": 1.0}))
OF_CATEGORIES = (("number_accuracy", MSE[1]), ("number_accuracy", NTL), ("log_mae", NTL))
"""What is shown of every category of questions: (metric, loss)."""


def section(runs: Sequence[Record]) -> list[str]:
    """The section of the report; empty without such runs."""
    datasets = by_dataset(runs)
    arithmetic, mathematics = (datasets.get(name, {}) for name in (PAPER_ARITHMETIC, PAPER_MATHEMATICS))
    if not arithmetic:
        return []
    parts = [f"## {TITLE}", READ, CHOSEN, claims_table(arithmetic, mathematics)]
    if start := datasets.get(PAPER_START):
        parts.append(f"The start. {settings(start)}\n\n{mean_table(start, 'interpolate', MEASURED)}")
    for groups in filter(None, (arithmetic, mathematics)):
        parts.append(settings(groups))
        for split in splits_of(groups):
            parts.append(f"{split}, after training:\n\n{mean_table(groups, split, MEASURED)}")
            parts.append(f"{split}, paired differences to CE:\n\n{difference_table(groups, split, MEASURED)}")
    return [*parts, categories_table(mathematics)] if mathematics else parts


READ = (
    "What the paper compares, on its data sets, at a size that two cores can train. All models are tiny T5s, and their "
    "numbers are digits (`t5`), tokens of a digit and its power of ten (`rt`, Regression Transformer), or one token "
    "with a value (`xval`). Unlike the paper's, they are not pretrained on text: they have 1.4 instead of 60 to 220 "
    "million parameters and train for thousands instead of about a million steps, with a vocabulary of their own. "
    "Answers are decoded greedily instead of with four beams. `correct answers` are equal to the true number, "
    "`correct as the paper counts` are close to it (`np.isclose`). The paper's own commands: `docs/pages/paper.md`."
)
CHOSEN = (
    "Size and steps were chosen with CE alone, so that some answers are right and some are wrong. From random weights, "
    "T5 learned nothing but the distribution of answers within 2,000 steps on arithmetic. So each way to write numbers "
    "has one start, trained with CE (xVal: its own loss) on expressions, which are shorter, and then on arithmetic. "
    "From it, every loss trains on. There, the seed sets the order of the data and not the weights: intervals say "
    "nothing about other weights. On mathematics_dataset, the seed sets both, and weights start at random. The "
    "position biases of a new T5 have a standard deviation of 2: from T5's own initial values, near 0, learning starts "
    "later."
)


def claims_table(arithmetic: Groups, mathematics: Groups) -> str:
    """A row per claim of the paper: how many of the differences found here are in its favour; and what that means."""
    found = {claim: list(each) for claim, each in claims(arithmetic, mathematics).items()}
    header = ["claim", "differences", "as claimed", "the opposite", "not reliable"]
    rows = [[claim, *map(str, counted(each))] for claim, each in found.items()]
    total, better, worse, _ = counted([each for claim in found if claim.endswith(OVER_CE) for each in found[claim]])
    verdict = "This was also seen here" if 2 * better > total else "This was not seen here"
    outcome = (
        f"{verdict}: of {total} differences between T5 with CE + NTL and T5 with CE, {better} are "
        f"reliably better and {worse} reliably worse."
    )
    return f"{COUNTED}\n\n{markdown(header, rows)}\n\n{outcome} {UNTESTED}"


OVER_CE = "is better than CE"
COUNTED = (
    "The abstract of the paper says that NTL consistently improves performance in math-related tasks; its experiments "
    "also rank losses and models. How many of the differences in correct answers, MAE and R2 on both test splits have "
    "an interval on the claimed side of 0, on the other, or around it (a few wild answers can dominate MAE and R2, "
    "above all on mathematics_dataset):"
)
UNTESTED = (
    "The abstract has three more claims. That NTL matches a regression head: see the targets above and the ratings "
    "below. That it has no overhead: see the step times among the targets. That it helps models of 3 billion "
    "parameters: not tested here."
)


def claims(arithmetic: Groups, mathematics: Groups) -> dict[str, Iterator[tuple[str, Difference]]]:
    """Claim -> (metric, difference) of all that speaks for or against it."""
    losses = [key for key in sorted(arithmetic) if key[0] == "t5" and "NTL" in key[1]]
    found = {f"arithmetic: {loss} {OVER_CE}": beside(arithmetic, (model, loss), T5) for model, loss in losses}
    more = {
        "RT with NTL is better than RT": (("rt", NTL), RT),
        "T5 with NTL is better than RT with NTL": (("t5", NTL), ("rt", NTL)),
        "T5 with NTL is better than xVal": (("t5", NTL), XVAL),
        "CE + 0.3 NTL-WAS is better than CE + 0.3 NTL-MSE": (("t5", NTL), MSE),
        "CE + 0.3 NTL-WAS is better than CE with a Gaussian target": (("t5", NTL), BLURRED),
    }
    found |= {f"arithmetic: {claim}": beside(arithmetic, *pair) for claim, pair in more.items()}
    for key in sorted(set(mathematics) - {T5}):
        found[f"mathematics_dataset: {key[1]} {OVER_CE}"] = beside(mathematics, key, T5)
    return found


def beside(groups: Groups, key: Key, other: Key) -> Iterator[tuple[str, Difference]]:
    """(metric, difference) of two kinds of runs on every split."""
    for split in splits_of(groups):
        for metric in BETTER:
            same = key[0] == other[0]
            if each := compare(groups.get(key, []), groups.get(other, []), split, metric, models=same):
                yield metric, each


def counted(found: Sequence[tuple[str, Difference]]) -> list[int]:
    """How many differences there are, and how many are better, worse and undecided."""
    verdicts = Counter(
        "undecided" if each.verdict == "undecided" else each.verdict == BETTER[metric] for metric, each in found
    )
    return [len(found), *(verdicts[verdict] for verdict in (True, False, "undecided"))]


def categories_table(groups: Groups) -> str:
    """A row per category of questions: its correct answers and log MAE with CE, and how they change."""
    plain = baseline(groups, "t5")
    rows = []
    for split in sorted({split for run in plain for split in run["metrics"] if "/" in split}):
        means = [rounded(fmean(values_of(plain, split, metric)), 3) for metric in ("number_accuracy", "log_mae")]
        cells = [told(compare(groups.get(("t5", loss), []), plain, split, m), m) for m, loss in OF_CATEGORIES]
        rows.append([split, *means, *cells])
    header = [f"{METRICS[metric]}: {loss}" for metric, loss in OF_CATEGORIES]
    first = ["category", f"{METRICS['number_accuracy']}: CE", f"{METRICS['log_mae']}: CE"]
    asked = plain[0]["config"]["dataset"].get("limits", {}).get("test")
    read = f"Every category of mathematics_dataset, {asked or 'all'} questions each; differences are to CE:"
    return f"{read}\n\n{markdown([*first, *header], rows)}"
