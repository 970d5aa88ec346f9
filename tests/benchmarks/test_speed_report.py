"""The report: the committed one agrees with its results, and its tables follow from results."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import published
from benchmarks.commands import InputError
from benchmarks.speed import count_tables, headlines, report, results, tables, targets, workloads
from benchmarks.speed.providers import providers_of

ENVIRONMENT = {
    "device": "Some Processor",
    "kind": "cpu",
    "threads": 2,
    "python": "3.12",
    "versions": {"torch": "2.13.0", "triton": None} | dict.fromkeys(count_tables.PEERS),
    "commit": "0123456789abcdef",
    "changed_files": [],
    "command": "python -m benchmarks.speed run",
    "date": "2026-01-01 00:00 UTC",
}


def entry(milliseconds: float, peak_bytes: int = 4_400) -> dict[str, Any]:
    samples = [milliseconds * factor * 1e-3 for factor in (0.9, 1.0, 1.0, 1.0, 1.2)]
    timed = {"status": "timed", "repeats": 1, "samples_s": samples, "peak_bytes": peak_bytes, "operators": 7}
    return {**timed, "faults": 12, "loss_error": 1e-8, "gradient_error": 2e-7}


def record(name: str, entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    plain = {"family": "logits", "group": "main", "rows": 10, "vocab": 100, "dtype": "float32", "numbers": 10}
    plain |= {"clock": "device", "threads": None, "also": [], "memory": None, "others_share": 0.01}
    sizes = {"hidden": 0, "number_share": 0.2, "ignored_share": 0.0, "logits_bytes": 4000, "gradient_bytes": 4000}
    return {"name": name, **plain, **sizes, "providers": entries, "environment": ENVIRONMENT} | changes


@pytest.fixture
def records() -> dict[str, Any]:
    missing = {"status": "missing", "reason": "needs a GPU"}
    entries = {"copy": entry(1.0), "ours": entry(2.0), "torch_ce": entry(4.0, 8_800), "liger_ce": missing}
    sweep = {"group": "vocabulary-fp32"}
    return {
        "logits-fp32": record("logits-fp32", entries),
        "vocab-32000-fp32": record("vocab-32000-fp32", copy.deepcopy(entries), **sweep),
        "vocab-50304-fp32": record("vocab-50304-fp32", copy.deepcopy(entries), vocab=120, **sweep),
    }


@pytest.fixture
def folder(records: dict[str, Any], tmp_path: Path) -> Path:
    for found in records.values():
        results.add(tmp_path / "some-processor", "logits", found, replace=False)
    return tmp_path


def test_readme_and_reports_agree_with_the_committed_results() -> None:
    assert report.check(results.FOLDER) == []


def test_results_come_back_as_they_were(records: dict[str, Any], folder: Path) -> None:
    assert results.load(folder / "some-processor") == records


Target = partial(targets.Target, memory=None)


def test_ratios_of_targets(records: dict[str, Any]) -> None:
    time = Target("cpu", "t", "logits-fp32", 0.6, ("torch_ce",))
    assert time.value(records) == pytest.approx(0.5)
    assert time.is_met(0.5) and not time.is_met(0.61)
    best = Target("cpu", "t", "logits-fp32", 0.6, ("torch_ce", "copy", "liger_ce"))
    assert best.value(records) == pytest.approx(2.0)
    share = Target("cpu", "t", "logits-fp32", 0.9, ("copy",), measure="copy share")
    assert share.value(records) == pytest.approx(0.5)
    assert share.is_met(0.95) and not share.is_met(0.5)
    memory = Target("cpu", "t", "logits-fp32", 1.1, measure="memory")
    assert memory.value(records) == pytest.approx(1.1)
    relative = Target("cpu", "t", "logits-fp32", 1.1, ("torch_ce",), measure="memory")
    assert relative.value(records) == pytest.approx(0.5)
    beyond = Target("cpu", "t", "logits-fp32", 1.0, measure="memory", size="logits_bytes", beyond_gradients=True)
    assert beyond.value(records) == pytest.approx(0.1)
    other = Target("cpu", "t", "logits-fp32", 1.1, other_workload="vocab-50304-fp32")
    assert other.value(records) == pytest.approx(1.0)
    for workload, measure in (("logits-fp32", "time"), ("logits-fp32", "memory"), ("nowhere", "time")):
        assert Target("cpu", "t", workload, 0.6, ("liger_ce",), measure=measure).value(records) is None


def test_target_table_shows_met_missed_and_why(records: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    met = Target("cpu", "fast", "logits-fp32", 0.6, ("torch_ce",))
    missed = Target("cpu", "faster", "logits-fp32", 0.4, ("torch_ce",))
    unknown = Target("cpu", "fastest", "logits-fp32", 0.4, ("liger_ce",))
    monkeypatch.setattr(tables, "targets_of", lambda kind: [met, missed, unknown])
    lines = tables.target_table(records, "cpu", {missed.key: "page faults"}).splitlines()
    assert "| 0.5 | met |" in lines[2] and "| 0.5 | **missed** | page faults |" in lines[3]
    assert "not measured" in lines[4] and tables.missed(records, "cpu") == {missed.key}


def test_provider_table(records: dict[str, Any]) -> None:
    table = tables.provider_table(records["logits-fp32"])
    assert "| CE + NTL | 2 | 1.96 to 2.08 | 1.00 | 0.0 | 50% | 12 |" in table
    assert "| F.cross_entropy | CE | 4 | 3.92 to 4.16 | 0.50 |" in table
    assert "Liger" not in table and "- Liger (missing: needs a GPU): logits-fp32" in tables.not_timed(records)
    first = {"logits-fp32": records["logits-fp32"] | {"group": "rows"}}
    assert tables.group_table(first, "rows").endswith("| 1 (2.00) | 2 | 4 (0.50) |")


def test_both_ways_of_memory_are_shown_and_what_was_disturbed_is_marked(records: dict[str, Any]) -> None:
    """With fresh memory, F.cross_entropy takes twice as long."""
    found = {}
    for way, milliseconds in (("fresh", 8.0), ("kept", 4.0)):
        for record in copy.deepcopy(records).values():
            record["memory"] = way
            record["providers"]["torch_ce"] = entry(milliseconds)
            found[results.key(record["name"], way)] = record
    text = report.device_report(found, Path("some-processor"))
    _, kept, fresh = text.partition("\n## Machine")[0].partition("\n## logits-fp32: ")[2].split(" memory**\n\n")[:3]
    assert "| F.cross_entropy | CE | 4 |" in kept and "| F.cross_entropy | CE | 8 |" in fresh
    assert "| 2 ms | 4 ms (0.50) | 0.25 | " in headline_lines(("Some Processor", "cpu", found))[2]
    assert tables.disturbed(found) == "" and "†" not in text
    found["logits-fp32 (kept memory)"]["others_share"] = 0.12
    assert tables.disturbed(found).endswith("- logits-fp32 (kept memory): 12%")
    assert "| † | computes" in report.device_report(found, Path("some-processor"))
    assert "number labels † |" in headline_lines(("Some Processor", "cpu", found))[2]


def test_steps_that_wait_for_the_host_are_named(records: dict[str, Any]) -> None:
    assert tables.host_bound(records) == ""
    timed = [found["providers"] for found in records.values()]
    for providers, host_ms in zip(timed, (1.7, 1.5, 2.5), strict=True):  # of 2 ms measured
        providers["ours"] |= {"host_s": host_ms * 1e-3, "launches": 3, "copies": 1}
    assert tables.host_bound(records) == "- ours: logits-fp32, vocab-50304-fp32"
    for found in records.values():
        found["clock"] = "host"  # the host's time is what is measured
    assert tables.host_bound(records) == ""


def test_report_is_written_from_the_results_and_checked(records: dict[str, Any], folder: Path) -> None:
    assert report.check(folder) != []
    assert {path.name for path in report.write(folder)} == {"logits.png", "vocabulary.png", "report.md"}
    assert report.check(folder) == []
    text = (folder / "some-processor" / "report.md").read_text()
    for expected in ("Some Processor, 2 threads", "`0123456789`", "Liger (missing: needs a GPU)"):
        assert expected in text
    faster = records["logits-fp32"]
    faster["providers"]["ours"] = entry(1.0)
    results.add(folder / "some-processor", "logits", faster, replace=False)
    problems = report.check(folder)
    for changed in ("report.md", "logits.png"):
        assert any(changed in problem for problem in problems)


def headline_lines(*devices: Any) -> list[str]:
    """The lines of the README's table, with plain spaces."""
    return headlines.headline_table(devices).replace(published.SPACE, " ").splitlines()


BEGIN, END = published.markers(report.SECTION)


def test_readme_section_names_its_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = folder / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for name, value in {"README": readme, "ROOT": folder, "FOLDER": folder}.items():
        monkeypatch.setattr(report, name, value)
    report.write(folder)
    text = readme.read_text()
    assert text.startswith("# Title\n\n") and text.endswith("\n\nafter\n") and "old" not in text
    assert "Some Processor, 2 threads" in text and "[JSON](some-processor)" in text
    assert report.check(folder) == []
    readme.write_text(text.replace("(0.50)", "(0.60)"))
    assert any("differs" in problem for problem in report.check(folder))


def test_every_group_has_a_heading() -> None:
    for suite in (workloads.cpu_workloads(), workloads.quick_workloads(), workloads.gpu_workloads(2**37)):
        assert {workload.group for workload in suite} <= {"main", *tables.GROUPS}


def test_headlines_name_existing_workloads_and_providers() -> None:
    cpu = [*workloads.cpu_workloads(), *workloads.host_workloads(), *workloads.eager_workloads()]
    for kind, suite in {"cpu": cpu, "gpu": workloads.gpu_workloads(2**37)}.items():
        known = {w.name: {p.name for p in providers_of(w.family)} for w in suite}
        for headline in headlines.HEADLINES[kind]:
            names = {headline.ours, *headline.baselines, headline.package, *headline.peers} - {""}
            assert names <= known[headline.workload]


def test_headline_table(records: dict[str, Any]) -> None:
    _, _, row = headline_lines(("Some Processor", "cpu", records))
    assert row == "| logits: N = 10, V = 100, float32, K = 10, 20% number labels | 2 ms | 4 ms (0.50) | 0.50 |"
    entries = {"ours": entry(2.0), "torch_ce": entry(3.2), "torch_ce_compiled": entry(1.6), "liger_ce": entry(1.0)}
    peers = {"launch": record("launch", entries, group="launch"), "logits-fp32": records["logits-fp32"]}
    _, _, *rows = headline_lines(("Some GPU", "gpu", peers))
    assert "| 2 ms | 4 ms (0.50) | not timed | not timed | 0.50 |" in rows[0]
    assert "| 2 ms | 3.2 ms (0.62) | 1.6 ms (1.25) | 1 ms (2.00) Liger | 1.00 | 1.00 |" in rows[1]


def counts_of(**kernels: dict[str, Any]) -> dict[str, Any]:
    """An entry of `counts`, from each kernel's loads, stores and programs."""
    plain = {"launches": 1, "threads": 256, "registers": 64, "spills": 2, "instructions": 500, "special": 600}
    made = [{"kernel": name, **plain, "barriers": 3.0, **found} for name, found in kernels.items()]
    return {"status": "counted", "operators": 15, "host_waits": 4, "kernels": made}


def test_what_kernels_execute_is_told(folder: Path) -> None:
    """Of 10 rows of 100 logits in bfloat16: 1,000 elements, 2,000 bytes."""
    rows = {"loads": {"16": 120, "2": 40}, "stores": {"16": 120, "2": 40}, "programs": 10}
    finish = {"loads": {"4": 9}, "stores": {"4": 9}, "programs": 1}
    forward = {"loads": {"2": 1000}, "stores": {"4": 10}, "programs": 20}
    backward = {"loads": {"2": 1000}, "stores": {"2": 1000}, "programs": 20}
    missing = {"status": "missing", "reason": "package fla is not installed"}
    entries = {"ours_given": counts_of(row_kernel=rows, finish_kernel=finish), "fla_ce": missing}
    entries["liger_ce"] = counts_of(forward=forward, backward=backward)
    changes = {"family": "counts", "dtype": "bfloat16", "logits_bytes": 2000, "others_share": None}
    counted, device = record("counts-50257-bf16", entries, **changes), folder / "some-processor"
    results.add(device, "counts", counted, replace=False)
    text = report.device_report(results.load(device), device)
    # 200 (1.00): 12 x 16 + 4 x 2 bytes of a row of 200
    assert "| ours, both denominators given | 200 (1.00) | 200 (1.00) | 12 / 0 / 0 / 4 | 12 / 0 / 0 / 4 |" in text
    assert "| Liger | 400 (2.00) | 204 (1.02) | 0 / 0 / 0 / 200 | 0 / 0 / 1 / 100 |" in text
    assert "- flash-linear-attention (missing: package fla is not installed): counts-50257-bf16" in text
    line = count_tables.headline({"counts-50257-bf16": counted})
    assert "ours, with NTL, reads 200 bytes and writes 200 in 32 accesses; Liger, without, reads 400" in line
    entries["liger_ce"] = missing
    assert count_tables.headline({"counts-50257-bf16": counted}) == count_tables.headline({}) == ""


@pytest.mark.parametrize("device", results.devices(results.FOLDER), ids=lambda device: device.name)
def test_every_missed_target_has_a_cause_and_no_cause_is_stale(device: Path) -> None:
    found = results.load(device)
    path = device / report.CAUSES
    causes = json.loads(path.read_text()) if path.exists() else {}
    assert set(causes) == tables.missed(found, report.kind_of(found))


@pytest.mark.parametrize("content", ["{", '{"schema": 0, "workloads": {}}'])
def test_results_of_another_form_are_named(content: str, folder: Path) -> None:
    path = folder / "some-processor" / "logits.json"
    path.write_text(content)
    with pytest.raises(InputError, match=re.escape(str(path))):
        report.check(folder)


@pytest.mark.parametrize("text", ["no markers", f"{END} {BEGIN}"])
def test_a_readme_without_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="needs the lines <!-- speed:begin -->"):
        published.with_section(text, "speed", "")
