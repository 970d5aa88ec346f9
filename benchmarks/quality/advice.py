"""When the Number Token Loss helps and with which options, each sentence with the runs that it rests on."""

from __future__ import annotations

from typing import NamedTuple

from .decoding import split_name
from .losses import NTL, was
from .names import LONG, RENTS, SHORT


class Evidence(NamedTuple):
    """A difference by pairs that a sentence claims; the report holds it against the records."""

    dataset: str
    loss: str
    metric: str
    verdict: str
    """``lower`` or ``higher``, where the interval has to exclude 0, or ``undecided``."""
    split: str = "test"
    model: str = "llama"
    beside: str = "CE"
    beside_split: str | None = None
    """Of the other runs, where it is another one: that of the medians of drawn answers, or the greedy ones."""


def about(
    dataset: str,
    loss: str,
    beside: str = "CE",
    split: str = "test",
    model: str = "llama",
    beside_split: str | None = None,
    **verdicts: str,
) -> list[Evidence]:
    """What is claimed of some metrics of one loss beside another."""
    return [
        Evidence(dataset, loss, metric, verdict, split, model, beside, beside_split)
        for metric, verdict in verdicts.items()
    ]


REWEIGHED = was(0.3, reweigh=True)
STRONG, STRONG_REWEIGHED, STRONGEST = was(1), was(1, reweigh=True), was(3)
BLURRED = was(0.3, reweigh=True, label_sigma=1)
SAMPLES = 16
MEDIANS = split_name("test", SAMPLES)
SUMS = {"split": "interpolate", "model": "llama_pretrained"}

CHOICE = (
    "CE + 1 NTL-WAS was chosen for rents after 300 steps when six of its ten runs of "
    "cross-entropy alone were known; 0.3 without reweighing was the best of ten settings after 800 steps, and was then "
    "run after 300 and 2,000; the two settings tried on diamonds are the best two of those ten. House values, taxi "
    "fares and three of the eight seeds of diamonds were run later, once, with 0.3 alone; the columns of the first two "
    "were cut to what two cores could train on in the time, before any run of cross-entropy or NTL on them was seen."
)
"""What a reader must know of how the headlines came about."""

# {0} in a sentence is the difference that its first piece of evidence finds.
ADVICE: tuple[tuple[str, tuple[Evidence, ...]], ...] = (
    (
        "Use NTL-WAS where a number can only be estimated, and expect less of it the longer you train: beside CE, the "
        "MAE of rents changes by {0} after 300 steps, {1} after 800 and {2} after 2,000; on real tables, after 800 or "
        "1,000 steps, that of house values by {3}, of taxi fares by {4} and of diamonds by {5}. So expect something "
        "where training is short, as most fine-tuning is, and little in long pretraining: neither was measured.",
        (
            *(claim for budget in (SHORT, RENTS) for claim in about(budget, NTL, mae="lower")),
            *about(LONG, NTL, mae="undecided"),
            *about("housing", NTL, mae="undecided"),
            *about("taxis", NTL, mae="lower"),
            *about("diamonds", NTL, mae="undecided"),
            *(claim for budget in (SHORT, RENTS) for claim in about(budget, NTL, median_error="lower")),
            *about("housing", NTL, median_error="undecided"),
            *about("taxis", NTL, median_error="undecided", log_mae="lower"),
            *about("diamonds", NTL, median_error="lower", run_on="lower"),
        ),
    ),
    (
        f"Try the median of {SAMPLES} drawn answers first, if you can afford to draw them: with cross-entropy alone it "
        "changed the MAE of house values by {0} and of taxi fares by {1}, no less than NTL did, and NTL brought "
        "nothing sure on top of it.",
        (
            *about("housing", "CE", "CE", MEDIANS, beside_split="test", mae="lower"),
            *about("taxis", "CE", "CE", MEDIANS, beside_split="test", mae="lower"),
            *about("housing", "CE", NTL, MEDIANS, beside_split="test", mae="undecided"),
            *about("taxis", "CE", NTL, MEDIANS, beside_split="test", mae="lower"),
            *about("housing", NTL, "CE", MEDIANS, mae="undecided"),
            *about("taxis", NTL, "CE", MEDIANS, mae="undecided"),
        ),
    ),
    (
        "Leave it out where the answer is exact, or where cross-entropy alone comes close to what can be known.",
        (
            *about("arithmetic", NTL, **SUMS, ce="higher", number_accuracy="undecided"),
            *about("arithmetic", REWEIGHED, **SUMS, ce="higher", number_accuracy="undecided", run_on="higher"),
            *about("expressions", REWEIGHED, split="extrapolate", ce="higher"),
            *about("expressions", REWEIGHED, split="interpolate", number_accuracy="undecided"),
            *about("readings", NTL, mae="undecided", median_error="undecided", log_mae="higher"),
            *about("readings", REWEIGHED, mae="undecided", median_error="undecided"),
        ),
    ),
    (
        "Take lambda = 0.3: more never brought answers surely nearer, and costs likelihood.",
        (
            *about(SHORT, STRONG, NTL, mae="undecided", ce="higher"),
            *about(SHORT, NTL, ce="undecided"),
            *about(RENTS, STRONG, NTL, mae="undecided", ce="higher"),
            *about(RENTS, STRONG_REWEIGHED, REWEIGHED, mae="higher"),
            *about(RENTS, STRONGEST, mae="undecided", ce="higher"),
        ),
    ),
    (
        "Leave reweigh at its default, False: reweighed, numbers run on, and at lambda = 0.3 estimates come no nearer "
        "to the truth than without reweighing.",
        (
            *about("arithmetic", REWEIGHED, NTL, **SUMS, run_on="higher", log_mae="lower"),
            *about(SHORT, REWEIGHED, NTL, run_on="higher", mae="undecided"),
            *about(RENTS, REWEIGHED, NTL, run_on="undecided", mae="undecided"),
            *about(RENTS, STRONG_REWEIGHED, STRONG, mae="higher"),
            *about("readings", REWEIGHED, NTL, run_on="undecided", mae="undecided"),
            *about("diamonds", REWEIGHED, NTL, run_on="undecided", median_error="undecided"),
        ),
    ),
    (
        "NTL-MSE, NTL-Huber and the number-level loss brought answers not surely nearer; label_sigma changed nothing.",
        (
            *about(RENTS, "CE + 0.3 NTL-MSE (reweigh=True)", mae="undecided"),
            *about(RENTS, "CE + 0.3 NTL-Huber (reweigh=True)", mae="undecided"),
            *about(RENTS, "CE + 0.3 number-level (reweigh=True)", mae="undecided"),
            *about(RENTS, BLURRED, mae="lower"),
            *about(RENTS, BLURRED, REWEIGHED, mae="undecided"),
        ),
    ),
)
