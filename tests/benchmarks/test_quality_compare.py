"""CE beside CE + NTL, small: the main job and a table of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality import compare
from benchmarks.quality.__main__ import main

SMALL = ["model.size=test", "trainer.arguments.max_steps=2", "trainer.arguments.eval_steps=2"]
SMALL += ["trainer.arguments.per_device_train_batch_size=4"]
FEW = [f"dataset.limits.{split}=4" for split in ("train", "validation", "test")]


def test_without_arguments_the_main_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(compare, "main", lambda arguments: seen.append(arguments) or 0)
    for arguments in ([], ["compare"], ["--seeds", "2"], ["compare", "--out", "x", "seed=1"]):
        assert main(arguments) == 0
    assert seen == [[], [], ["--seeds", "2"], ["--out", "x", "seed=1"]]


def test_both_losses_share_all_but_the_loss() -> None:
    (_, plain), (_, ours) = compare.configurations(["model.size=test", "loss.weight=2"], seeds=1)
    assert (plain.loss.name, ours.loss.name, ours.loss.weight, ours.loss.reweigh) == ("ce", "ntl_was", 2, False)
    (_, _), (_, other) = compare.configurations(["loss=ntl_mse"], seeds=1)
    assert (other.loss.name, other.loss.weight, other.loss.reweigh) == ("ntl_mse", 0.3, False), "all of it is chosen"
    assert "weight" not in plain.loss
    assert {key: plain[key] for key in plain if key != "loss"} == {key: ours[key] for key in ours if key != "loss"}
    (_, short), _ = compare.configurations(["trainer=debug"], seeds=1)
    assert short.trainer.name == "debug" and short.trainer.arguments.disable_tqdm
    names = [name for name, _ in compare.configurations([], seeds=3)]
    assert len(set(names)) == 6


def test_the_main_job_says_the_difference_and_how_sure_it_is(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(compare, "certainty", lambda seeds, is_main_job, real=compare.certainty: real(seeds, True))
    assert main(["compare", *SMALL, *FEW, "--seeds", "3", "--out", str(tmp_path)]) == 0
    printed, bar = capsys.readouterr()
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines] == [
        "| test",
        "| ---",
        "| CE",
        "| CE + 0.3 NTL-WAS",
        "| difference",
    ]
    assert "run on" in lines[0] and "/3 |" in lines[-1]
    assert "95 % interval over the pairs" in printed and "over more seeds: MAE -" in printed and "/10 seeds" in printed
    assert "12/12" in bar, "one bar over the steps of all six runs"
    assert "answers, test: " in bar
    records = json.loads((tmp_path / "comparison.json").read_text())
    assert [(record["loss"], record["seed"]) for record in records[:2]] == [
        ("CE", 1),
        ("CE + 0.3 NTL-WAS", 1),
    ]
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert f"Plot: {tmp_path / 'comparison.png'}\nJSON: {tmp_path / 'comparison.json'}" in printed


def test_a_table_of_ones_own(tmp_path: Path, capsys: Any) -> None:
    rows = "".join(f"{n}.5,{'red' if n % 2 else 'green'},{n * 3}\n" for n in range(60))
    (tmp_path / "stones.csv").write_text(f"size,colour,price\n{rows}")
    table = ["dataset=table", f"dataset.file={tmp_path / 'stones.csv'}", "dataset.target=price"]
    assert main(["compare", *table, *SMALL, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("\nstones: 48 training pairs, 2 steps of 4") and "1 seed: too few" in printed
    assert "as recorded" not in printed, "the recorded seeds are another task's"
    assert str(tmp_path) not in (tmp_path / "out" / "comparison.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dataset=table"], "dataset=table needs dataset.file=FILE.csv"),
        (["dataset=nowhere"], "nowhere"),
        (["loss.colour=red"], "colour"),
        (["device=nope"], "device must be available on this machine"),
        (["seed=5"], "say how many by --seeds"),
        (["loss.weight=-1"], "weight must be finite and at least 0"),
        (["model.size=huge"], "size must be one of"),
    ],
)
def test_what_cannot_work_is_told_in_one_line(arguments: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", *arguments, "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("error: ") and said in errors[0], "nothing else, no bar"


def test_where_results_go_is_tried_before_the_work(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("trained before the folder was tried"))
    (tmp_path / "file").write_text("")
    assert main(["compare", "--out", str(tmp_path / "file" / "in")]) == 2
    assert "cannot write there" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", "--seeds", "0"])
