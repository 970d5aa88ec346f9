"""CE against CE + NTL, small: the main job and a user's table; reference errors on a table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.commands import InputError
from benchmarks.quality import compare
from benchmarks.quality.__main__ import main
from benchmarks.quality.records import YARDSTICKS
from benchmarks.quality.yardsticks import BOOSTED, CONSTANT, encoded

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
    assert "weight" not in plain.loss
    assert {key: plain[key] for key in plain if key != "loss"} == {key: ours[key] for key in ours if key != "loss"}
    (_, short), (_, other) = compare.configurations(["loss=ntl_mse", "trainer=debug"], seeds=1)
    assert (other.loss.name, other.loss.weight, other.loss.reweigh) == ("ntl_mse", 0.3, False), "all of it is chosen"
    assert short.trainer.name == "debug"
    assert len({name for name, _ in compare.configurations([], seeds=2)}) == 4


def test_the_main_job_says_the_difference_and_how_sure_it_is(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(compare, "certainty", lambda seeds, is_main_job, real=compare.certainty: real(seeds, True))
    assert main(["compare", *SMALL, *FEW, "--seeds", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    lines = [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| ")]
    assert lines == ["| test", "| ---", "| CE", "| CE + 0.3 NTL-WAS", "| difference"]
    assert "95% interval over the pairs" in printed and "over more seeds: MAE −" in printed and "/10 seeds" in printed
    records = json.loads((tmp_path / "comparison.json").read_text())
    assert [(record["loss"], record["seed"]) for record in records[:2]] == [("CE", 1), ("CE + 0.3 NTL-WAS", 1)]
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_ones_own(tmp_path: Path, capsys: Any) -> None:
    rows = "".join(f"{n}.5,{'red' if n % 2 else 'green'},{n * 3}\n" for n in range(60))
    (tmp_path / "stones.csv").write_text(f"size,colour,price\n{rows}")
    table = ["dataset=table", f"dataset.file={tmp_path / 'stones.csv'}", "dataset.target=price"]
    assert main(["compare", *table, *SMALL, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("\nstones: 48 training pairs, 2 steps of 4") and "1 seed: too few" in printed
    assert "recorded" not in printed, "the recorded seeds are another task's"
    assert str(tmp_path) not in (tmp_path / "out" / "comparison.json").read_text()


def test_cells_may_look_like_questions(tmp_path: Path) -> None:
    """With commas and names of columns in texts, and one column's name at the start of another's."""
    errors = []
    for text in ("see; area 7", "see, area 7"):
        rows = "".join(f'{n % 2},{n},{n % 3},"{text}",{10 * n}\n' for n in range(100, 400))
        (tmp_path / "flats.csv").write_text(f"floor,floor area,area,note,price\n{rows}")
        options = [f"dataset.file={tmp_path}/flats.csv", "dataset.target=price", "--out", str(tmp_path)]
        assert main(["yardsticks", *options]) == 0
        errors.append(json.loads((tmp_path / YARDSTICKS).read_text())["flats"]["metrics"][BOOSTED]["mae"])
    assert errors[0] == errors[1] < 100


def test_the_duration_without_evaluations_is_estimated() -> None:
    options = "dataset=debug trainer=debug model.size=test trainer.arguments.eval_strategy=no"
    (_, config), _ = compare.configurations([*options.split(), "~trainer.arguments.eval_steps"], seeds=1)
    assert compare.expected_seconds(config) > 0


def test_numbers_are_read_and_words_get_places() -> None:
    known, asked = encoded(["1", "", "-2.5"], ["4", ""])
    np.testing.assert_equal(known, [1, np.nan, -2.5])
    np.testing.assert_equal(asked, [4, np.nan])
    known, asked = encoded(["b", "a", "7"], ["a", "never seen"])
    np.testing.assert_equal(known, [2, 1, 0])
    np.testing.assert_equal(asked, [1, np.nan])
    known, asked = encoded(["", ""], ["", "5"])
    np.testing.assert_equal(known, [0, 0])  # an empty column is a constant
    with pytest.raises(InputError, match=r"numbers must fit float64, up to 1.8e308; got 9{50}\.\.\.$"):
        encoded(["1", "2"], ["9" * 400])


def test_a_table_that_trees_can_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(0)
    rows = [(chance.randint(0, 99), chance.choice(["low", "high"]), i) for i in range(1000)]
    lines = [f"{size},{place},{10 * size + (500 if place == 'high' else 0)},{i}" for size, place, i in rows]
    (tmp_path / "made.csv").write_text("\n".join(["size,place,price,row", *lines]) + "\n")
    options = ["--out", str(tmp_path), f"dataset.file={tmp_path}/made.csv", "dataset.target=price"]
    assert main(["yardsticks", *options, "dataset.columns=[size,place]"]) == 0
    found = json.loads((tmp_path / YARDSTICKS).read_text())["made"]
    assert found["columns"] == ["size", "place"]
    assert found["metrics"][BOOSTED]["mae"] < 40 < 200 < found["metrics"][CONSTANT]["mae"]
    assert "made, gradient boosting: MAE" in capsys.readouterr().out
    assert main(["yardsticks", *options, "dataset.without=[row]"]) == 0
    again = json.loads((tmp_path / YARDSTICKS).read_text())["made"]
    assert all(again[part] == found[part] for part in ("columns", "sizes", "metrics"))
