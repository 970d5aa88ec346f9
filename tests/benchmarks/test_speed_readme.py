"""Each figure of the README's section on speed is the one of the records, and stands in the report, too.

Nothing here calls what makes the tables: figures are read from the pages, and computed anew from the samples.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.environment import ROOT
from benchmarks.published import README, markers
from benchmarks.speed.workloads import Workload

(DEVICE,) = [path.parent for path in ROOT.glob("benchmarks/results/*/logits.json")]
REPORT = (DEVICE / "report.md").read_text()
RECORDS: list[dict[str, Any]] = [
    record
    for family in ("logits", "hidden", "ntl", "step", "host")
    for record in json.loads((DEVICE / f"{family}.json").read_text())["workloads"].values()
]
begin, end = markers("speed")
SECTION = README.read_text().partition(begin)[2].partition(end)[0]
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("|")]
HEADER, ROWS = LINES[0], LINES[2:]
SHOWN = "kept" if any(record["memory"] == "kept" for record in RECORDS) else "fresh"
COLUMNS = {
    "ours: CE + NTL": {"ours"},
    "CE alone": {"torch_ce", "torch_linear", "stock"},
    "CE + `ntloss`": {"torch_ce_ntloss", "torch_linear_ntloss", "stock_ntloss"},
}
"""Column -> its providers, one in each record."""
FIGURE = re.compile(r"\d+(?:\.\d+)?")


def size_of(record: dict[str, Any]) -> str:
    hidden = f"H = {record['hidden']}, " if record["hidden"] else ""
    return f"N = {record['rows']}, {hidden}V = {record['vocab']}, {record['dtype']}"


def the_record(row: list[str], memory: str) -> dict[str, Any]:
    """The one record that a row can mean: its problem with ten digits, a fifth of the labels numbers."""
    words, _, size = row[0].removesuffix(" †").partition(": ")
    families = {"logits": "logits", "hidden states": "hidden", "training step of a small Llama": "step"}
    (found,) = [
        record
        for record in RECORDS
        if size_of(record) == size
        and (record["numbers"], record["number_share"], record["ignored_share"]) == (10, 0.2, 0.0)
        and record["memory"] == memory
        and record["family"] == families.get(words.removesuffix(", one thread"), "none")
        and (record["threads"] == 1) == words.endswith("one thread")
        and not record["beside_load"]
    ]
    return found


def entry(record: dict[str, Any], column: str) -> dict[str, Any] | None:
    """The provider in a column, if it was timed."""
    found = [record["providers"][name] for name in COLUMNS[column] if name in record["providers"]]
    return found[0] if found and found[0]["status"] == "timed" else None


def seconds(entry: dict[str, Any] | None) -> float:
    assert entry is not None
    return median(entry["samples_s"])


def digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_figures_of_the_table_are_those_of_the_records_and_the_report(row: list[str]) -> None:
    record, cells = the_record(row, SHOWN), dict(zip(HEADER, row, strict=True))
    mine = seconds(entry(record, "ours: CE + NTL"))
    for column in COLUMNS:
        if not cells.pop(column, ""):
            assert entry(record, column) is None
            continue
        taken = seconds(entry(record, column))
        number, unit, *multiple = row[HEADER.index(column)].split(maxsplit=2)
        assert number == digits(taken * {"ms": 1e3, "us": 1e6}[unit])
        assert multiple == ([] if column.startswith("ours") else [f"({taken / mine:.2f} x)"])
        rows = [line for line in REPORT.splitlines() if line.startswith("|") and f" {number} " in line]
        assert rows, f"{number} is nowhere in the report"
    fresh = cells.pop("CE alone, fresh memory", "")
    if fresh:
        other = the_record(row, "fresh")
        assert fresh == f"{seconds(entry(other, 'CE alone')) / seconds(entry(other, 'ours: CE + NTL')):.2f} x"
    peaks = [found["peak_bytes"] for name in list(COLUMNS)[:2] for found in [entry(record, name)] if found]
    assert cells.pop("peak memory / CE alone") == f"{peaks[0] / peaks[1]:.2f}"
    assert list(cells) == [HEADER[0]]  # nothing else has figures


def test_ranges_below_the_table_are_those_of_the_records() -> None:
    (line,) = [line for line in SECTION.splitlines() if line.startswith("Times are with")]
    vocabularies, *ways = line.rstrip(".").partition("Ours / CE alone ")[2].replace(" tokens: ", "; ").split("; ")
    checked = FIGURE.findall(vocabularies)
    assert f"Times are with {SHOWN} memory" in line
    all_vocabularies = set()
    for way in ways:
        memory = way.split()[1]
        spans, _, loaded = way.partition(" (")
        for dtype, short in (("float32", "fp32"), ("bfloat16", "bf16")):
            mine = [record for record in RECORDS if record["memory"] == memory and record["dtype"] == dtype]
            sweep = [record for record in mine if f"vocabulary-{short}" in (record["group"], *record["also"])]
            ratios = [ratio(record) for record in sweep]
            assert f"{min(ratios):.2f} to {max(ratios):.2f} in {short}" in spans
            all_vocabularies |= {record["vocab"] for record in sweep}
            for record in mine:
                if record["beside_load"]:
                    assert f"{ratio(record):.2f} in {short}" in loaded
        assert len(FIGURE.findall(spans.replace("fp32", "").replace("bf16", ""))) == 4
    assert checked == [str(min(all_vocabularies)), str(max(all_vocabularies))]
    assert len(ways) == len({record["memory"] for record in RECORDS} - {None})


def ratio(record: dict[str, Any]) -> float:
    return seconds(record["providers"]["ours"]) / seconds(record["providers"]["torch_ce"])


def test_no_problem_has_two_records() -> None:
    """What may differ between two records of one problem is how memory was treated."""
    names = {field.name for field in fields(Workload)} - {"name", "group", "also", "providers"}
    keys = [(record["memory"], *(record[name] for name in sorted(names))) for record in RECORDS]
    assert len(set(keys)) == len(keys)
    assert set(asdict(Workload("", "", "", 1, 1))) <= set(RECORDS[0])


def test_the_page_on_performance_has_no_figures_but_the_report() -> None:
    page = Path(ROOT / "docs" / "pages" / "performance.md").read_text()
    assert "<!-- include: benchmarks/results/*/report.md but quality -->" in page
    assert not re.search(r"\d (?:ms|us|x)\b|\d %", page)
