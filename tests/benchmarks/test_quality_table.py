"""Any CSV file as questions and answers: what is asked, how it is split, what is refused."""

from __future__ import annotations

import gzip
import warnings
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


def load_table(file: Path | None, target: str | None = "price", seed: int = 0, limits: Any = (), **options: Any) -> Any:
    every = {"train": None, "validation": None, "test": None, **dict(limits)}
    path = None if file is None else str(file)
    return load(name="stones", format="table", file=path, target=target, limits=every, seed=seed, **options)


def questions_of(splits: Any) -> set[str]:
    return {pair.question for part in (splits.train, splits.validation, splits.tests["test"]) for pair in part}


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
    rows = [f"{n}.5,,{n}" if n == 7 else f"{n}.5,red {n},{n}" for n in range(60)]
    path = csv_file(tmp_path, table(*rows))
    questions = questions_of(load_table(path, columns=["cut", "carat"]))
    assert "cut red 3, carat 3.5, price?" in questions and "carat 7.5, price?" in questions
    assert "carat 3.5, price?" in questions_of(load_table(path, without=["cut"]))


def test_rows_with_an_empty_target_are_refused_or_left_out(tmp_path: Path) -> None:
    path = csv_file(tmp_path, table(*(f"{n}.5,x,{'' if n % 9 == 4 else n}" for n in range(90))))
    with pytest.raises(InputError, match=r"line 6: price must be .* got '' \(dataset.empty_target=skip leaves"):
        load_table(path)
    questions = questions_of(load_table(path, empty_target="skip"))
    assert len(questions) == 80 and "carat 4.5, cut x, price?" not in questions
    wrong = csv_file(tmp_path, table(*ROWS[1::2], "1,x,none"), "wrong.csv")
    with pytest.raises(InputError, match="line 32: price must be a plain number .* got 'none'$"):
        load_table(wrong, empty_target="skip")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        *(
            (name, [f"{n % 7}" for n in range(60)])
            for name in ("id", "ID", "row id", "customer_id", "PassengerId", "userID")
        ),
        *(("carat", [f"{n}" for n in numbers]) for numbers in (range(60), range(160, 100, -1))),
    ],
)
def test_a_column_like_an_identifier_gives_a_warning(name: str, cells: list[str], tmp_path: Path) -> None:
    rows = [f"{cell},{n}.5,{'' if n == 3 else n}" for n, cell in enumerate(cells)]
    path = csv_file(tmp_path, table(*rows, header=f"{name},cut,price"))
    with pytest.warns(UserWarning, match=rf"column '{name}' looks like an identifier.*dataset.without"):
        load_table(path, empty_target="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_table(path, empty_target="skip", without=[name])


@pytest.mark.parametrize("name", ["paid", "Grid", "width", "identity"])
def test_other_columns_give_no_warning(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for column in ([2 * n for n in range(60)], [n % 60 for n in range(61)], [f"{n}.0" for n in range(60)]):
            rows = [f"{cell},{n}.5,{n}" for n, cell in enumerate(column)]
            load_table(csv_file(tmp_path, table(*rows, header=f"{name},cut,price")))


def test_splits_are_reproducible_and_share_no_question(tmp_path: Path) -> None:
    path = csv_file(tmp_path, table(*[f"{n % 80},x,{n}" for n in range(240)]))
    first = load_table(path)
    assert first == load_table(path) != load_table(path, seed=1)
    asked = [{pair.question for pair in part} for part in (first.train, first.validation, first.tests["test"])]
    assert sum(map(len, asked)) == len(set.union(*asked)) == 80
    assert sum(map(len, (first.train, first.validation, first.tests["test"]))) == 240, "no row is lost"


def test_limits_say_how_much_is_held_out(tmp_path: Path) -> None:
    path = csv_file(tmp_path, table(*[f"{n}.5,x,{n}" for n in range(100)]))
    splits = load_table(path, limits={"train": 20, "validation": 15, "test": 30})
    assert (len(splits.train), len(splits.validation), len(splits.tests["test"])) == (20, 15, 30)
    for limits in ({"test": 100}, {"test": 60, "validation": 40}):
        with pytest.raises(InputError, match="leaves nothing"):
            load_table(path, limits=limits)


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
        (table(*ROWS[1::2]), {"columns": "cut"}, r"dataset.columns must be a list of columns, \[cut\]; got cut"),
        (table(*ROWS[1::2]), {"without": ["colour"]}, "dataset.without: .* no column 'colour'"),
        (table(*ROWS[1::2]), {"without": ["price"]}, "dataset.without contains the target 'price'"),
        (table(*ROWS[1::2]), {"without": ["carat", "cut"]}, "no column besides the target"),
        (table(*ROWS[1::2]), {"without": ["cut"], "columns": ["carat"]}, "give one of the two"),
        (table(*ROWS[1::2]), {"empty_target": "drop"}, "dataset.empty_target must be null or skip; got 'drop'"),
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
