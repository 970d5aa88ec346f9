"""Every number that readers are told of the experiments is one of the records', worked out here by other means."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import ttest_rel

from benchmarks.environment import ROOT
from benchmarks.published import markers
from benchmarks.quality import records, report
from benchmarks.quality.names import DATASETS, METRICS

RATIOS = {"MAE", "median error", "log MAE", "cross-entropy"}
SHARES = {"right numbers", "run on", "token accuracy"}
KEYS = {name: key for key, name in METRICS.items()}
DATASET_OF = {words: dataset for dataset, words in DATASETS.items()}
NUMBER = r"[+-]?[\d.]+(?:e[+-]\d+)?"
TOLD = re.compile(rf"({NUMBER})( %| points)?(?: \[({NUMBER}), ({NUMBER})\])?( [▼▲])? (\d+)/(\d+)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
HEADLINE_LOSS = "CE + 0.3 NTL-WAS"
EXACT_TASKS = {"arithmetic", "expressions"}
OF_FORMULAS_AND_HARDWARE = {"kernels.md", "mathematics.md"}
"""Pages whose percentages are no results."""


class Claim(NamedTuple):
    """A cell of a table, and what it says it is about."""

    dataset: str
    split: str
    loss: str
    beside: str
    beside_split: str
    metric: str
    cell: str


def readme() -> str:
    begin, end = markers(report.SECTION)
    return (report.README).read_text().partition(begin)[2].partition(end)[0]


def page(name: str) -> str:
    return (report.FOLDER / name).read_text()


TEXTS = {"README.md": readme(), report.ADVICE_TEXT: page(report.ADVICE_TEXT)}
RUNS = records.read_records(report.FOLDER / records.FILE)


def tables(text: str) -> Iterator[list[list[str]]]:
    """Every table: its header, then its rows."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
        yield [lines[0], *lines[2:]]


def claims(text: str) -> Iterator[Claim]:
    for (first, *others), *rows in tables(text):
        for row in rows:
            if others[0] != "measure":
                yield from claim_of_advice(row)
            else:
                yield from claims_of_headline([first, *others], row)


def claim_of_advice(row: list[str]) -> Iterator[Claim]:
    task, losses, metric, cell = row
    found = re.fullmatch(r"\[(.*)\]\(report\.md#.*\), (\w+)", task)
    assert found, task
    loss, _, beside = losses.partition(" vs ")
    split_beside = re.search(r", (test\w*)$", beside)
    other = split_beside[1] if split_beside else found[2]
    yield Claim(DATASET_OF[found[1]], found[2], loss, beside.removesuffix(f", {other}"), other, metric, cell)


def claims_of_headline(header: list[str], row: list[str]) -> Iterator[Claim]:
    assert header == ["task", "measure", "CE → with NTL", "change", "change in MAE (exact tasks: log MAE)"]
    name, _, options = row[0].partition(" (")
    dataset, loss = DATASET_OF[name], HEADLINE_LOSS + (f" ({options}" if options else "")
    is_exact = dataset in EXACT_TASKS
    split = "interpolate" if is_exact else "test"
    metrics = (row[1], row[1], "log MAE" if is_exact else "MAE")
    for metric, cell in zip(metrics, row[2:], strict=True):
        yield Claim(dataset, split, loss, "CE", split, metric, cell)


def of_seeds(dataset: str, loss: str, split: str, key: str) -> dict[int, float]:
    found = [run for run in RUNS if (run["dataset"], run["loss"]) == (dataset, loss)]
    assert len({run["model"] for run in found}) == 1, "one model has these runs"
    return {run["seed"]: run["metrics"][split][key] for run in found if split in run["metrics"]}


def sides(claim: Claim) -> tuple[np.ndarray, np.ndarray]:
    """The values of both, of the seeds that both have."""
    key = KEYS[claim.metric]
    ours = of_seeds(claim.dataset, claim.loss, claim.split, key)
    theirs = of_seeds(claim.dataset, claim.beside, claim.beside_split, key)
    seeds = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])


def is_rounded(told: str, value: float, digits: int) -> bool:
    """Whether a text is a value with so many digits."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1) if abs(value) > 1e-9 else 1e-6
    return abs(float(told) - value) <= 0.5001 * unit + 1e-9


def is_true(claim: Claim) -> bool:
    ours, theirs = sides(claim)
    if " → " in claim.cell:
        scale = 100 if claim.metric in SHARES else 1
        both = claim.cell.removesuffix(" %").split(" → ")
        means = (scale * theirs.mean(), scale * ours.mean())
        return all(is_rounded(told, mean, 3) for told, mean in zip(both, means, strict=True))
    found = TOLD.fullmatch(claim.cell)
    assert found, claim.cell
    if claim.metric in RATIOS:
        ours, theirs = np.log(ours), np.log(theirs)
    interval = ttest_rel(ours, theirs).confidence_interval(0.95)
    values = [(ours - theirs).mean(), interval.low, interval.high]
    if claim.metric in RATIOS:
        values = [100 * math.expm1(value) for value in values]
    elif claim.metric in SHARES:
        values = [100 * value for value in values]
    unit = " %" if claim.metric in RATIOS else " points" if claim.metric in SHARES else None
    mark = " ▼" if values[2] < 0 else " ▲" if values[1] > 0 else None
    agree = int(sum(np.round((ours - theirs) * (ours - theirs).mean(), 12) > 0))
    numbers = zip(found.groups()[0:1] + found.groups()[2:4], values, strict=True)
    return (
        all(is_rounded(told, value, 2 if abs(value) < 10 else 3) for told, value in numbers)
        and (found[2], found[5]) == (unit, mark)
        and (int(found[6]), int(found[7])) == (agree, len(ours))
    )


@pytest.mark.parametrize("name", TEXTS)
def test_every_cell_follows_from_the_records(name: str) -> None:
    found = list(claims(TEXTS[name]))
    assert len(found) >= 20
    assert [claim for claim in found if not is_true(claim)] == []


def test_a_wrong_cell_would_be_found() -> None:
    claim = next(claim for claim in claims(TEXTS["README.md"]) if claim.metric == "MAE")
    number = float(claim.cell.split()[0])
    assert is_true(claim)
    assert not is_true(claim._replace(cell=claim.cell.replace(f"{number:g}", f"{number + 0.3:g}", 1)))
    assert not is_true(claim._replace(cell=claim.cell.replace("10/10", "9/10")))


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_beside_ce_stands_in_the_report(name: str) -> None:
    written = page(report.TEXT)
    beside_ce = [
        claim
        for claim in claims(TEXTS[name])
        if claim.beside == "CE"
        and claim.split == claim.beside_split
        and "_median_of_" not in claim.split  # of which the report has a table of its own
        and " → " not in claim.cell
    ]
    assert beside_ce and [claim for claim in beside_ce if f"| {claim.cell} |" not in written] == []


@pytest.mark.parametrize("name", TEXTS)
def test_sentences_tell_what_tables_tell(name: str) -> None:
    """Every change, share or interval in the prose is part of a cell of the advice."""
    cells = [claim.cell for claim in claims(TEXTS[report.ADVICE_TEXT])]
    prose = re.sub(r"^\|.*$", "", TEXTS[name], flags=re.MULTILINE).replace("95 %", "")
    told = re.findall(rf"{NUMBER} ?%(?: \[{NUMBER}, {NUMBER}\])?|{NUMBER} points|\[{NUMBER}, {NUMBER}\]", prose)
    assert [each for each in told if not any(cell.startswith(each) for cell in cells)] == []
    assert bool(told) == (name == report.ADVICE_TEXT)


def handwritten() -> list[Path]:
    pages = sorted((ROOT / "docs" / "pages").glob("*.md"))
    return [path for path in pages if path.name not in OF_FORMULAS_AND_HARDWARE]


@pytest.mark.parametrize("path", handwritten(), ids=lambda path: path.name)
def test_pages_by_hand_tell_no_results(path: Path) -> None:
    """Results stand in what is made from the records; a page that repeated one would soon contradict it."""
    prose = FENCED.sub("", path.read_text())
    assert re.findall(r"[\d.]+ ?%|[\d.]+ per cent|[\d.]+ percentage points|\b\d+/\d+ seeds", prose) == []


def test_every_claim_of_the_report_is_by_a_run_that_is_there() -> None:
    headings = re.findall(r"^## (.*)$", page(report.TEXT), re.MULTILINE)
    assert {DATASET_OF[heading] for heading in headings if heading in DATASET_OF} == {run["dataset"] for run in RUNS}


def test_parsing_by_hand() -> None:
    task = "[house values](report.md#house-values), test_median_of_16"
    (claim,) = claim_of_advice([task, "CE vs CE + 0.3 NTL-WAS, test", "MAE", "-1 % [-2, +1] 3/5"])
    expected: Any = ("housing", "test_median_of_16", "CE", "CE + 0.3 NTL-WAS", "test", "MAE", "-1 % [-2, +1] 3/5")
    assert claim == expected
    assert is_rounded("-7", -6.97, 2) and not is_rounded("-7", -6.94, 2) and is_rounded("0", 1e-15, 2)
