"""What readers call the data sets, splits and metrics that runs are filed under."""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORT, RENTS, LONG = "rents_quick", "rents_linear_decay", "rents_long"
"""The budgets of rents: each ends a learning-rate schedule of its own."""
DATASETS = {
    SHORT: "rents, 300 steps",
    RENTS: "rents, 800 steps",
    LONG: "rents, 2,000 steps",
    "housing": "house values",
    "taxis": "taxi fares",
    "diamonds": "prices of diamonds",
    "readings": "readings",
    "expressions": "expressions",
    "arithmetic": "sums",
}
"""In the order of reports; others come last, under their own name."""
EXACT = ("expressions", "arithmetic")
"""Where an answer can be computed, so that it is right or wrong; all others can only be estimated."""
METRICS = {
    "exact_match": "exact match",
    "number_accuracy": "right numbers",
    "mae": "MAE",
    "median_error": "median error",
    "log_mae": "log MAE",
    "r2": "R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "log_r2": "log R2",
    "no_number": "no number",
    "run_on": "run on",
    "token_accuracy": "token accuracy",
    "ce": "cross-entropy",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "rougeL": "ROUGE-L",
}


def words(dataset: str) -> str:
    """What a data set is called."""
    return DATASETS.get(dataset, dataset)


def in_order(datasets: Iterable[str]) -> list[str]:
    """Data sets as reports have them."""
    order = {dataset: place for place, dataset in enumerate(DATASETS)}
    return sorted(datasets, key=lambda dataset: (order.get(dataset, len(order)), dataset))


def anchor(heading: str) -> str:
    """What links to a heading end in, on GitHub and on the site."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
