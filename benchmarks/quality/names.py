"""Display names of the data sets, splits and metrics in the records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LONGEST_NAME = 120
"""Characters in the name of a file or folder, without a digest."""
SHORT, RENTS, LONG = "rents_quick", "rents_linear_decay", "rents_long"
BUDGETS = (SHORT, RENTS, LONG)
"""The training budgets of rents; each has its own learning-rate schedule."""
DATASETS = {
    "finetuned_diamonds": "fine-tuning: prices of diamonds",
    "finetuned_housing": "fine-tuning: house values",
    "finetuned_taxis": "fine-tuning: taxi fares",
    "finetuned_rjokes": "fine-tuning: ratings of jokes",
    "settings_400_steps": "fine-tuning: prices of diamonds, 400 steps",
    "diamonds_60_steps": "fine-tuning: prices of diamonds, 60 steps",
    "diamonds_480_steps": "fine-tuning: prices of diamonds, 480 steps",
    "diamonds_960_steps": "fine-tuning: prices of diamonds, 960 steps",
    SHORT: "rents, 300 steps",
    RENTS: "rents, 800 steps",
    LONG: "rents, 2,000 steps",
    "housing": "house values",
    "taxis": "taxi fares",
    "diamonds": "prices of diamonds",
    "readings": "readings",
    "expressions": "expressions",
    "arithmetic": "sums",
    "rjokes": "ratings of jokes",
    "select_diamonds": "bins: choice of options on prices of diamonds, seed 6",
    "bins_diamonds": "bins: prices of diamonds, 2,000 rows",
    "bins_housing": "bins: house values, 2,000 rows",
    "bins_taxis": "bins: taxi fares, 2,000 rows",
    "bins_diamonds_500": "bins: prices of diamonds, 500 rows",
    "bins_diamonds_8000": "bins: prices of diamonds, 8,000 rows",
    "boxes_1000": "boxes, 1,000 pictures",
    "boxes_4000": "boxes, 4,000 pictures",
    "paper_expressions": "the paper's comparisons: expressions",
    "paper_start": "the paper's comparisons: arithmetic, start",
    "paper_arithmetic": "the paper's comparisons: arithmetic",
    "paper_mathematics": "the paper's comparisons: mathematics_dataset",
}
"""Data set -> display name, in the order of reports; other data sets come last under their own names."""
PAPER_START, PAPER_ARITHMETIC, PAPER_MATHEMATICS = "paper_start", "paper_arithmetic", "paper_mathematics"
OF_PAPER = ("paper_expressions", PAPER_START, PAPER_ARITHMETIC, PAPER_MATHEMATICS)
"""Data sets of the paper's comparisons, which have a section of their own."""
FINETUNED = tuple(name for name in DATASETS if name.startswith("finetuned_"))
"""Data sets on which a pretrained model is fine-tuned."""
UNITS = dict.fromkeys(("housing", "taxis", "diamonds", *FINETUNED[:3]), "dollars")
"""The units of answers; those of generated data have none."""
EXACT = ("expressions", "arithmetic")
"""Data sets with exact answers, which are right or wrong; answers of all others can only be estimated."""
BOOSTED = "gradient boosting"
"""The method for tables that models are compared with."""
TOKENIZERS = {"llama_plain": "GPT-2-like", "llama_triples": "Llama-3-like", "llama": "digits"}
"""Model -> how its tokenizer writes numbers, in the order of reports."""
PRETRAINED, UNTRAINED = "smollm2", "smollm2_untrained"
"""The pretrained model, and the same before it is fine-tuned."""
WITH_BINS = "smollm2_bins"
"""The pretrained model with a new token for each of 256 bins."""
A_TOKEN_EACH = "llama_scores"
"""The model with a token for each score."""
ANSWERS = {
    A_TOKEN_EACH: "a token per score",
    WITH_BINS: "in 256 bins",
    "llama_bins_64": "in 64 bins",
    "llama_bins_1024": "in 1,024 bins",
}
"""How some models write answers on data sets that others write as well."""
SEVERAL = ("llama_plain", "llama_triples")
"""Models whose tokens have several digits; they have a section of their own."""
CONTESTANTS = {
    "stock": "stock Trainer, CE",
    "logits": "NTLTrainer on the stock model, CE + NTL-WAS",
    "ce": "NTLTrainer, CE",
    "ntl": "NTLTrainer, CE + NTL-WAS",
}
"""What is timed -> display name; only the last two have a patched model (``apply_ntl_to_model``)."""
METRICS = {
    "exact_match": "exact match",
    "number_accuracy": "correct answers",
    "paper_accuracy": "correct as the paper counts",
    "mae": "MAE",
    "median_error": "median error",
    "log_mae": "log MAE",
    "coverage": "90% intervals",
    "r2": "R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "log_r2": "log R2",
    "qwk": "QWK",
    "within_one": "within one",
    "no_number": "no number",
    "run_on": "run on",
    "too_short": "too short",
    "token_accuracy": "token accuracy",
    "ce": "cross-entropy",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "iou": "mean IoU",
    "iou_50": "IoU ≥ 0.5",
    "iou_75": "IoU ≥ 0.75",
}


DECODERS = {"median": "median of the distribution", "expected": "mean of the distribution"}
"""Answers that follow from the probabilities of ratings or bins -> display name."""


def median_of(samples: int) -> str:
    """The decoder that takes the median of this many sampled answers."""
    return f"median_of_{samples}"


def split_of(split: str, decoder: str) -> str:
    """The name under which the metrics of a decoder's answers to a split's questions are stored."""
    return f"{split}_{decoder}"


def words(dataset: str) -> str:
    """The display name of a data set."""
    return DATASETS.get(dataset, dataset)


def subject(dataset: str) -> str:
    """What a data set is about, without the way of training."""
    return words(dataset).removeprefix("fine-tuning: ")


def models_of(dataset: str) -> tuple[str, str]:
    """The model with a token head, and the one with a regression head, in the reports of a data set."""
    finetuned = DATASETS.get(dataset, "").startswith("fine-tuning: ")
    return (PRETRAINED, PRETRAINED) if finetuned else ("llama", "regression_head")


def in_order(datasets: Iterable[str]) -> list[str]:
    """Data sets in the order of reports."""
    order = {dataset: place for place, dataset in enumerate(DATASETS)}
    return sorted(datasets, key=lambda dataset: (order.get(dataset, len(order)), dataset))


def file_name(name: str) -> str:
    """A name as that of a file in the folder where it is written: of few characters, and never two the same."""
    clean = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip(".")
    return name if clean == name and len(name) <= LONGEST_NAME else digested(clean, name)


def digested(clean: str, name: str) -> str:
    """The beginning of a cleaned name, and a digest that tells the name from others."""
    return f"{clean.encode()[:LONGEST_NAME].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def anchor(heading: str) -> str:
    """The anchor of a heading, on GitHub and on the documentation site."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
