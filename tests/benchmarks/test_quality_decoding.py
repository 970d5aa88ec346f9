"""Answers drawn at random: their median, the state of the generator, and what an experiment makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.errors import InputError
from benchmarks.quality.configuration import configure
from benchmarks.quality.data import Pair
from benchmarks.quality.decoding import in_decimals, median_answer, median_answers, split_name
from benchmarks.quality.experiment import load_splits, run
from benchmarks.quality.tasks import make_task

SMALL = ["trainer=debug", "model.size=test", "+trainer.arguments.disable_tqdm=true"]
LIMITS = [f"dataset.limits.{split}={size}" for split, size in (("train", 40), ("validation", 2), ("test", 5))]


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (["12"], "12"),
        (["3", "1", "2"], "2"),
        (["1", "2", "10", "400"], "6"),
        (["1", "2"], "1.5"),
        (["-7.25", "no", "", "4x"], "-7.25"),
        (["no", ""], ""),
        (["100000000000000000000", "100000000000000000000"], "100000000000000000000"),
        (["0.1", "0.2"], "0.15"),
    ],
)
def test_the_median_of_the_answers_that_are_numbers(drawn: list[str], expected: str) -> None:
    assert median_answer(drawn) == expected


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (-0.5, "-0.5"), (1e9, "1000000000"), (250.0, "250")])
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert in_decimals(value) == text


def test_draws_repeat_and_leave_the_generator_alone() -> None:
    def draw(pairs: list[Pair], count: int) -> list[list[str]]:
        return [[str(int(n)) for n in torch.randint(0, 1000, (count,))] for _ in pairs]

    questions = [Pair(f"{n}?", "0") for n in range(20)]
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first, again, other = (median_answers(draw, 3, seed)(questions) for seed in (1, 1, 2))
    assert torch.equal(torch.randn(3), expected)
    assert first == again != other


@pytest.mark.parametrize("model", ["llama", "t5_ntl"])
def test_every_question_gets_so_many_different_answers(model: str) -> None:
    config = configure([*SMALL, *LIMITS, "dataset=debug", f"model={model}"])
    splits = load_splits(config)
    task = make_task(config, splits)
    assert task.draw is not None
    torch.manual_seed(0)
    drawn = task.draw(splits.validation, 7)
    assert {len(answers) for answers in drawn} == {7}
    assert all(len(set(answers)) > 1 for answers in drawn)  # of an untrained model


def test_medians_are_splits_of_their_own(tmp_path: Path) -> None:
    plain = run(configure([*SMALL, *LIMITS, "dataset=readings"]), tmp_path / "plain")
    config = configure([*SMALL, *LIMITS, "dataset=readings", "samples=4"])
    both = run(config, tmp_path / "both")
    name = split_name("test", 4)
    assert list(both["metrics"]) == ["test", name]
    assert both["metrics"]["test"] == pytest.approx(plain["metrics"]["test"], nan_ok=True)  # greedy as without
    lines = (tmp_path / "both" / f"predictions-{name}.jsonl").read_text().splitlines()
    answers = [json.loads(line)["answer"] for line in lines]
    assert len(answers) == 5
    assert both["metrics"][name]["no_number"] == answers.count("") / 5


@pytest.mark.parametrize("model", ["xval", "regression_head"])
def test_heads_of_values_have_nothing_to_draw(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples=4 needs a model whose answers are tokens"):
        run(configure([*SMALL, *LIMITS, "dataset=debug", f"model={model}", "samples=4"]), tmp_path)


@pytest.mark.parametrize("samples", ["-1", "true", "0.5", "many"])
def test_samples_are_a_number(samples: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples must be a number of answers"):
        run(configure([*SMALL, *LIMITS, "dataset=debug", f"samples={samples}"]), tmp_path)
