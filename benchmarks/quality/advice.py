"""When the Number Token Loss helps and with which options, each sentence with the runs that it rests on."""

from __future__ import annotations

from typing import NamedTuple


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


WEIGHED, UNWEIGHED = "CE + 0.3 NTL-WAS", "CE + 0.3 NTL-WAS (reweigh=False)"
STRONG = "CE + 1 NTL-WAS (reweigh=False)"

ADVICE: tuple[tuple[str, tuple[Evidence, ...]], ...] = (
    (
        "Use NTL where a number can only be estimated and training is short: answers come nearer to the truth.",
        (
            Evidence("rents_quick", STRONG, "mae", "lower"),
            Evidence("rents_quick", STRONG, "median_error", "lower"),
            Evidence("rents", WEIGHED, "median_error", "lower"),
            Evidence("rents", UNWEIGHED, "median_error", "lower"),
        ),
    ),
    (
        "Do not expect anything where cross-entropy alone has already come close to what can be known.",
        (Evidence("readings", WEIGHED, "mae", "undecided"), Evidence("readings", WEIGHED, "median_error", "undecided")),
    ),
    (
        "Leave it out where the answer is exact: the model of the tokens gets worse, and the answers no better.",
        (
            Evidence("arithmetic", WEIGHED, "ce", "higher", "interpolate", "llama_pretrained"),
            Evidence("arithmetic", UNWEIGHED, "mae", "higher", "interpolate", "llama_pretrained"),
            Evidence("expressions", WEIGHED, "ce", "higher", "extrapolate"),
            Evidence("expressions", WEIGHED, "number_accuracy", "undecided", "interpolate"),
        ),
    ),
    (
        "For estimates take lambda = 1 without reweighing, or the usual 0.3 where the likelihood matters, too.",
        (
            Evidence("rents_quick", STRONG, "log_mae", "lower"),
            Evidence("rents_quick", STRONG, "ce", "higher"),
            Evidence("rents_quick", WEIGHED, "ce", "undecided"),
        ),
    ),
    (
        "Whether to reweigh hardly matters: no task shows a certain difference, and no more answers run on with it.",
        (
            Evidence("rents", WEIGHED, "mae", "undecided", beside=UNWEIGHED),
            Evidence(
                "arithmetic", WEIGHED, "token_accuracy", "undecided", "interpolate", "llama_pretrained", UNWEIGHED
            ),
            Evidence("rents_quick", WEIGHED, "run_on", "undecided"),
        ),
    ),
)
