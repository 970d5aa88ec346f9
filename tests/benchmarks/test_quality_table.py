"""Any CSV file as questions and answers: what is asked, how it is split, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import InputError
from benchmarks.quality.data import load

HEADER = "carat,cut,price"
ROWS = [f"0.{n},{'Ideal' if n % 2 else 'Fair, so'},{300 + n}" for n in range(100, 160)]


def csv_file(folder: Path, text: str, name: str = "stones.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def table(*rows: str, header: str = HEADER) -> str:
    return "".join(f"{line}\n" for line in (header, *rows))


def quoted(row: str) -> str:
    carat, *cut, price = row.split(",")
    return f'{carat},"{",".join(cut)}",{price}'


def load_table(
    file: Path | None, target: str | None = "price", columns: Any = None, seed: int = 0, **limits: int
) -> Any:
    every = {"train": None, "validation": None, "test": None, **limits}
    path = None if file is None else str(file)
    return load(name="stones", format="table", file=path, target=target, columns=columns, limits=every, seed=seed)


@pytest.mark.parametrize("name", ["stones.csv", "stones.csv.gz"])
def test_rows_become_questions(name: str, tmp_path: Path) -> None:
    splits = load_table(csv_file(tmp_path, table(*map(quoted, ROWS)), name))
    pairs = {
        pair.question: pair.answer for part in (splits.train, splits.validation, splits.tests["test"]) for pair in part
    }
    assert len(pairs) == 60 and (len(splits.validation), len(splits.tests["test"])) == (6, 6)
    assert pairs["carat 0.101, cut Ideal, price?"] == "401"
    assert pairs["carat 0.102, cut Fair, so, price?"] == "402"


def test_columns_are_told_in_the_order_asked_for_and_empty_cells_are_not(tmp_path: Path) -> None:
    rows = [f"{n},,{n}" if n == 7 else f"{n},red {n},{n}" for n in range(60)]
    splits = load_table(csv_file(tmp_path, table(*rows)), columns=["cut", "carat"])
    questions = {pair.question for part in (splits.train, splits.validation, splits.tests["test"]) for pair in part}
    assert "cut red 3, carat 3, price?" in questions and "carat 7, price?" in questions


def test_splits_are_reproducible_and_share_no_question(tmp_path: Path) -> None:
    path = csv_file(tmp_path, table(*[f"{n % 80},x,{n}" for n in range(240)]))
    first = load_table(path)
    assert first == load_table(path) != load_table(path, seed=1)
    asked = [{pair.question for pair in part} for part in (first.train, first.validation, first.tests["test"])]
    assert sum(map(len, asked)) == len(set.union(*asked)) == 80
    assert sum(map(len, (first.train, first.validation, first.tests["test"]))) == 240, "no row is lost"


def test_limits_say_how_much_is_held_out(tmp_path: Path) -> None:
    path = csv_file(tmp_path, table(*[f"{n},x,{n}" for n in range(100)]))
    splits = load_table(path, train=20, validation=15, test=30)
    assert (len(splits.train), len(splits.validation), len(splits.tests["test"])) == (20, 15, 30)
    for limits in ({"test": 100}, {"test": 60, "validation": 40}):
        with pytest.raises(InputError, match="leaves nothing"):
            load_table(path, **limits)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            table(*ROWS[1::2]),
            {"target": "weight"},
            "dataset.target: .* has no column 'weight'; it has carat, cut, price",
        ),
        (table(*ROWS[1::2]), {"columns": ["carat", "colour"]}, "dataset.columns: .* no column 'colour'"),
        (table(*ROWS[1::2]), {"columns": ["price"]}, "dataset.columns contains the target 'price'"),
        (table(*ROWS[1::2]), {"columns": []}, "no column besides the target"),
        (table(*ROWS[1::2]), {"target": "cut"}, "line 2: cut must be a plain number such as 12 or -3.5; got 'Ideal'"),
        (table("1,x,2", "1,x,1e5"), {}, "line 3: price must be a plain number .* got '1e5'"),
        (table("1,x,"), {}, "line 2: price must be a plain number .* got ''"),
        (table("1,x"), {}, "line 2: 2 cells, but the header has 3"),
        (table(*ROWS[1:20:2]), {}, "10 distinct rows; at least 50 are needed"),
        (table("1,2,3", header="a,a,price"), {}, "two columns are called 'a'"),
        (table("1", header="price"), {}, "no column besides the target"),
        (table('1,"x,3'), {}, "line 2: not CSV"),
        ("", {}, "the file is empty"),
        (table("1,\0,2"), {}, "line 2: contains a null character"),
    ],
)
def test_tables_that_cannot_work_are_refused_in_one_line(
    text: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_table(csv_file(tmp_path, text), **options)
    assert "\n" not in str(caught.value)


def test_a_table_needs_file_and_target(tmp_path: Path) -> None:
    for file, target in ((None, "price"), (tmp_path / "a.csv", None)):
        with pytest.raises(InputError, match="needs dataset.file=FILE.csv and dataset.target=COLUMN"):
            load_table(file, target)
    with pytest.raises(InputError, match="a.csv: no such file"):
        load_table(tmp_path / "a.csv")
