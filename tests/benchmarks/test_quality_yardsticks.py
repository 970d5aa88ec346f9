"""Gradient boosting and a constant on a table's rows: what they read, and what they find in a table made for them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.data import Pair
from benchmarks.quality.records import YARDSTICKS
from benchmarks.quality.yardsticks import BOOSTED, CONSTANT, cells_of, encoded, main


def test_cells_are_read_back_from_questions() -> None:
    questions = ["size 3.5, place Upper, West, price?", "place Harbour, price?", "size -2, price?"]
    assert cells_of([Pair(text, "1") for text in questions], ["size", "place"]) == [
        {"size": "3.5", "place": "Upper, West"},
        {"place": "Harbour"},
        {"size": "-2"},
    ]


def test_numbers_are_read_and_words_get_places() -> None:
    known, asked = encoded(["1", "", "-2.5"], ["4", ""])
    np.testing.assert_equal(known, [1, np.nan, -2.5])
    np.testing.assert_equal(asked, [4, np.nan])
    known, asked = encoded(["b", "a", "7"], ["a", "never seen"])
    np.testing.assert_equal(known, [2, 1, 0])
    np.testing.assert_equal(asked, [1, np.nan])


def test_a_table_that_trees_can_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(0)
    rows = [(chance.randint(0, 99), chance.choice(["low", "high"])) for _ in range(2000)]
    lines = [
        f"{size},{place},{10 * size + (500 if place == 'high' else 0)},{i}" for i, (size, place) in enumerate(rows)
    ]
    table = tmp_path / "made.csv"
    table.write_text("\n".join(["size,place,price,row", *lines]) + "\n")
    options = [f"dataset.file={table}", "dataset.target=price", "dataset.columns=[size,place]"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / YARDSTICKS).read_text())["made"]
    assert found["columns"] == ["size", "place"]
    assert found["metrics"][BOOSTED]["mae"] < 30 < 200 < found["metrics"][CONSTANT]["mae"]
    assert "made, gradient boosting: MAE" in capsys.readouterr().out


def test_columns_have_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "made.csv"
    table.write_text("a,b\n1,2\n")
    assert main([f"dataset.file={table}", "dataset.target=b", "--out", str(tmp_path)]) == 2
    assert "yardsticks needs dataset.columns" in capsys.readouterr().err
