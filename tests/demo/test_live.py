"""The demo's live run trains what it says it trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ntl_kernels import NTLConfig, cross_entropy_ntl
from ntl_kernels.demo import live, views
from ntl_kernels.demo.live import NUMBERS, TOKENS, Settings, losses, sequences, start, train

SMALL = Settings(steps=8, hidden_size=16, layers=1)


def test_a_sum_is_written_in_digits() -> None:
    rows = sequences(torch.tensor([[7, 45], [99, 99], [0, 0]])).tolist()
    assert ["".join(TOKENS[token] for token in row) for row in rows] == ["07+45=052", "99+99=198", "00+00=000"]


def test_only_answers_count_and_each_is_compared_with_the_token_before_it() -> None:
    run = start("CE + NTL", NTLConfig(), SMALL)
    pairs = torch.tensor([[12, 34], [5, 99]])
    ids = sequences(pairs)
    logits = run.model(input_ids=ids).logits[:, -4:-1]
    expected = cross_entropy_ntl(logits, ids[:, -3:], NUMBERS, return_parts=True)
    found = losses(run.model, pairs, NTLConfig())
    assert found.num_tokens == found.num_numbers == 6
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.ntl, expected.ntl)


def test_progress_goes_from_the_untrained_models_to_the_last_step() -> None:
    state = torch.random.get_rng_state()
    seen = [
        (p.step, [list(run.scores) for run in p.runs], [list(run.answers) for run in p.runs], p.questions, p.truths)
        for p in train(SMALL)
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    steps, scores, answers, questions, truths = zip(*seen, strict=True)
    assert (steps[0], steps[-1]) == (0, 8) and sorted(set(steps)) == list(steps)
    assert scores[0][0] == scores[0][1], "both models start from the same weights"
    assert scores[-1][0] != scores[-1][1], "and learn from different losses"
    assert [run[-1].cross_entropy < run[0].cross_entropy for run in scores[-1]] == [True, True]
    assert len(questions[0]) == live.TEST_SIZE
    assert truths[0] == [sum(map(int, question.split("+"))) for question in questions[0]]
    for run, answer in zip(scores[-1], answers[-1], strict=True):
        right = [int(a) == t for a, t in zip(answer, truths[0], strict=True) if a.isdigit()]
        errors = [abs(int(a) - t) for a, t in zip(answer, truths[0], strict=True) if a.isdigit()]
        assert run[-1].exact == sum(right) / live.TEST_SIZE
        assert run[-1].answer_mae == pytest.approx(sum(errors) / len(errors))


def test_without_weight_both_models_are_one() -> None:
    *_, last = train(replace(SMALL, config=NTLConfig(weight=0.0)))
    assert last.runs[0].scores == last.runs[1].scores


def test_test_sums_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[int]] = []
    monkeypatch.setattr(live, "update", lambda run, pairs: trained.extend(pairs.tolist()))
    *_, last = train(SMALL)
    assert len(trained) == 2 * SMALL.steps * live.BATCH_SIZE
    assert not {f"{a}+{b}" for a, b in trained} & set(last.questions)


def test_the_page_shows_the_scores() -> None:
    *_, last = train(SMALL)
    page = views.training(last, SMALL)
    assert "Step 8 of 8" in page and "done" in page
    assert "kind=&#x27;wasserstein&#x27;, weight=0.3, 8 steps, seed 1" in page
    for run in last.runs:
        assert f"<td>{run.scores[-1].answer_mae:.2f}</td>" in page


@pytest.mark.parametrize(
    ("answer", "truth", "style", "words"),
    [
        ("052", 52, "right", "✓"),
        ("053", 52, "near", "1 off"),
        ("043", 52, "near", "9 off"),
        ("042", 52, "far", "10 off"),
        ("198", 0, "far", "198 off"),
        ("1+2", 52, "far", "no number"),
    ],
)
def test_an_answer_says_how_far_off_it_is(answer: str, truth: int, style: str, words: str) -> None:
    assert views.answer_cell(answer, truth) == f'<td class="answer {style}"><b>{answer}</b> {words}</td>'


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": live.MOST_STEPS + 1}, {"seed": -1}, {"seed": 2**64}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
