"""Experiments, small: two steps, an evaluation, metrics; how they resume, what they refuse, and the command line."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import files
from benchmarks.commands import InputError
from benchmarks.quality import experiment, records, tasks, timing, training
from benchmarks.quality.__main__ import main
from benchmarks.quality.codec import make_codec, train_tokenizer
from benchmarks.quality.configuration import CONFIGURATIONS, run_name
from benchmarks.quality.configuration import configure as configured
from benchmarks.quality.data import Pair, Splits
from benchmarks.quality.experiment import load_splits, run
from benchmarks.quality.losses import was
from benchmarks.quality.metrics import in_digits
from benchmarks.quality.models import make_model, newest_checkpoint, state_of
from benchmarks.quality.names import median_of, split_of
from benchmarks.quality.tasks import make_task, next_logits
from benchmarks.quality.training import training_arguments

ROOT = Path(__file__).parents[2]
LOSSES = ("ce", "ce_gaussian", "ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "number_level", "soft_labels")
OF_MODEL = {"t5": "ce", "rt": "ce", "xval": "ce_mse", "regression_head": "mse"} | dict.fromkeys(
    ("t5_ntl", "rt_ntl", "llama"), "ntl_was"
)
"""Model -> what it trains with unless a loss is named."""
TRIED = [
    ("arithmetic", "rt", "ntl_mse"),
    ("mathematics_dataset", "t5", "ce"),
    ("gsm8k", "xval", None),
    ("multirc", "rt_ntl", "ntl_was"),
    ("multiplication", "t5_ntl", "ce_gaussian"),
    ("rjokes", "t5_ntl", "number_level"),
    ("debug", "llama", "ntl_huber"),
    ("expressions", "regression_head", None),
    ("readings", "llama", "ntl_mae"),
    ("rents", "rt model.architecture=llama", "ntl_mse"),
    ("rents", "bins model.bins=5", "soft_labels"),
]
"""Every data set, model and loss."""
DATASETS = sorted(path.stem for path in (CONFIGURATIONS / "dataset").glob("*.yaml"))
OTHERS = [(d, m, None) for d in DATASETS for m in OF_MODEL if (d, m) not in [tried[:2] for tried in TRIED]]
SAVED = ("", "model", "checkpoint-2")
"""What ``model.checkpoint`` may name, below a run's folder."""
EVALUATE = ["trainer=eval", "trainer.max_questions=8", "trainer.arguments.per_device_eval_batch_size=4"]
SAVE = ["trainer.arguments.save_strategy=steps", "+trainer.arguments.save_steps=2"]
KEEP_WORST = ["+trainer.arguments.load_best_model_at_end=true", "+trainer.arguments.metric_for_best_model=loss"]
KEEP_WORST += ["+trainer.arguments.greater_is_better=true"]
LIMITS = [f"dataset.limits.{split}={size}" for split, size in (("train", 4), ("validation", 2), ("test", 2))]
SMALL = ["trainer=debug", "model.size=test", "+trainer.arguments.disable_tqdm=true", *LIMITS]
ALTERNATING = "".join(f"{a}*{b}?\n{a * b / 10}\n" for a, b in ((3, 4), (-5, 6), (7, 8), (2, 2)))
GSM8K = "".join(
    json.dumps({"question": f"{n} hens, {n} eggs each?", "answer": f"<<{n}*{n}={n * n}>>{n * n}\n#### {n * n}"}) + "\n"
    for n in (2, 3, 4, 5)
)
ASKED = [{"question": "Eggs?", "answers": [{"text": text, "label": 1}]} for text in ("two of them", "2")]
MULTIRC = json.dumps({"passage": {"text": "A hen.", "questions": ASKED}}) + "\n"
CONTENT = {
    "arithmetic": ALTERNATING,
    "mathematics_dataset": ALTERNATING,
    "gsm8k": GSM8K,
    "multirc": MULTIRC,
    "rjokes": "3\tA hen.\n11\tTwo\thens.\n" * 2,
}
TEST_SPLITS = ("interpolate", "extrapolate")


def configure(*overrides: str) -> Any:
    return configured(overrides)


def small_run(folder: Path, *overrides: str) -> dict[str, Any]:
    return run(configure(*SMALL, *overrides), folder)


def files_in(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else [file for inner in names.values() for file in files_in(inner)]


def losses_of(result: dict[str, Any]) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in result["log"] if "loss" in entry}


def answers_in(path: Path) -> tuple[list[str], list[float]]:
    """The answers of a file without their decimals, and their decimals, whose last digits hang on the memory."""
    answers = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    decimal = re.compile(r"-?\d+\.\d+")
    return [decimal.sub("", each) for each in answers], [float(n) for each in answers for n in decimal.findall(each)]


def options_of(dataset: str, folder: Path) -> list[str]:
    """The options of a data set, whose files are written."""
    options = [f"dataset={dataset}"]
    if dataset == "table":
        (folder / "table.csv").write_text("id,price\n" + "".join(f"{n},{2 * n}\n" for n in range(60)))
        return [*options, f"dataset.file={folder}/table.csv", "dataset.target=price"]
    if dataset in CONTENT:
        options += [f"dataset.folder={folder}"]
        for file in files_in(configure(*options).dataset.files):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(CONTENT[dataset])
    return options


@pytest.mark.parametrize(
    ("dataset", "model", "loss", "saved"),
    [
        *((*tried, SAVED) for tried in TRIED),
        *(pytest.param(*other, SAVED[n % 3 :][:1], marks=pytest.mark.slow) for n, other in enumerate(OTHERS)),
    ],
)
def test_experiments_train_evaluate_and_evaluate_again(
    dataset: str, model: str, loss: str, saved: tuple[str, ...], tmp_path: Path
) -> None:
    """From whatever folder the run left, its losses and answers are found again."""
    options = [*options_of(dataset, tmp_path), *f"model={model}".split(), *([f"loss={loss}"] if loss else [])]
    folder, model = tmp_path / "run", model.split()[0]
    if (dataset, model) == ("multirc", "regression_head"):
        with pytest.raises(InputError, match="model.head=regression needs answers that are numbers"):
            small_run(folder, *options)
        return
    small_run(folder, *options, *SAVE, "trainer.save_model=true")
    result = json.loads((folder / "metrics.json").read_text())
    assert records.record_of(result, folder)["metrics"].keys() == result["metrics"].keys()
    steps = [entry for entry in result["log"] if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0 for entry in steps)
    assert result["loss"] == (loss or OF_MODEL[model])
    assert result["seconds"] > 0 and result["environment"]["commit"]
    (point,) = [entry for entry in result["log"] if "eval_loss" in entry]
    expected = {"exact_match", "bleu", "rougeL"} if dataset == "multirc" else {"exact_match", "mae", "r2", "no_number"}
    assert {f"eval_{name}" for name in expected} <= point.keys()
    for split, metrics in result["metrics"].items():
        assert expected <= metrics.keys() and ("coverage" in metrics) == split.endswith("_median")
        if "/" not in split and model != "regression_head" and not split.endswith(("_expected", "_median")):
            assert metrics["perplexity"] == pytest.approx(math.exp(metrics["ce"]))
            assert model == "xval" or 0 <= metrics["token_accuracy"] <= 1
        if "/" not in split:
            answers = (folder / f"predictions-{split}.jsonl").read_text().splitlines()
            assert len(answers) == (8 if dataset == "mathematics_dataset" else 2)
    for name in saved:
        again = run(configure(*SMALL[1:], *EVALUATE, *options, f"model.checkpoint={folder / name}"), tmp_path / "again")
        for split, metrics in result["metrics"].items():
            assert again["metrics"][split] == pytest.approx(metrics, rel=1e-5, nan_ok=True)
        for path in folder.glob("predictions-*"):
            (words, decimals), (others, found) = map(answers_in, (path, tmp_path / "again" / path.name))
            assert others == words and found == pytest.approx(decimals, rel=1e-5, abs=1e-5)
        shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("*.safetensors", "no weights in .* a run saves them"),
        ("tokenizer*", "no tokenizer in"),
        ("", "codec=rt; got digits"),
        ("config.json", "no configuration in"),
    ],
)
def test_checkpoints_that_cannot_be_evaluated_are_told_in_one_line(missing: str, said: str, tmp_path: Path) -> None:
    small_run(tmp_path / "run", "model=rt", "trainer.save_model=true")
    for path in (tmp_path / "run" / "model").glob(missing or "nothing"):
        path.unlink()
    model = "rt" if missing else "t5_ntl"
    with pytest.raises(InputError, match=said) as caught:
        small_run(tmp_path / "again", f"model={model}", "trainer.train=false", f"model.checkpoint={tmp_path}/run/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["llama", "t5_ntl"])
def test_the_next_token_of_an_answer_sees_question_and_beginning(model: str) -> None:
    """Whatever pads the question in a batch, against the logits of the whole sequence."""
    config = configure(*SMALL, f"model={model}", "model.size=tiny")
    task = make_task(config, load_splits(config))
    codec, begun = task.codec, task.codec.encode("12")
    pairs = [Pair("1 + 2", "3"), Pair("What is 1 + 20, and what is it not?", "3")]
    found = next_logits(task.model, codec, pairs, begun)
    for pair, logits in zip(pairs, found, strict=True):
        question, answer = codec.encode(pair.question), [*codec.mark, *begun]
        inputs = {"input_ids": question, "decoder_input_ids": [codec.pad, *begun]}
        inputs = inputs if model == "t5_ntl" else {"input_ids": question + answer}
        whole = task.model(**{name: torch.tensor([ids]) for name, ids in inputs.items()}).logits[0, -1]
        torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


def test_ratings_are_also_expected_and_drawn(tmp_path: Path) -> None:
    for file in ("train", "validation", "test"):
        (tmp_path / f"{file}.tsv").write_text("".join(f"{score}\tA hen {score}.\n" for score in (11, 1, 0, 0)))
    options = ["dataset=rjokes", f"dataset.folder={tmp_path}", "model.codec=scores", "loss.balance=true"]
    config = configure(*SMALL, *options, "samples=3")
    result = run(config, tmp_path / "run")
    assert set(result["metrics"]) == {"test", "test_expected", "test_median_of_3"}
    found = records.record_of(result, tmp_path / "run")
    assert found["loss"] == was(0.3, balance=True) == "CE + 0.3 NTL-WAS (balance=True)"
    assert all({"qwk", "within_one", "spearman", "mae"} <= metrics.keys() for metrics in found["metrics"].values())
    task = make_task(config, splits := load_splits(config))
    assert task.sample is not None and task.decode is not None
    (drawn,), (decoded,) = task.sample(splits.tests["test"][:1], 9999), task.decode(splits.tests["test"][:1])
    assert set(drawn) == {"0", "1", "11"}
    assert statistics.fmean(map(float, drawn)) == pytest.approx(float(decoded.answers["expected"]), abs=0.3)
    batch = task.collate(splits.train)
    weights = batch["number_weights"][task.codec.numbers().is_number(batch["labels"])]
    assert sorted(weights.tolist()) == pytest.approx([2 / 3, 2 / 3, 4 / 3, 4 / 3]), "as much for 0 as for 1 and for 11"


def test_intervals_of_bins_cover_what_their_quantiles_enclose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins 1 to 3 of 5 have all the probability: of answers that are spread over all bins, three fifths."""
    config = configure(*SMALL, "dataset=rents", "model=bins", "model.bins=5")
    task = make_task(config, splits := load_splits(config))
    bins, logits = task.codec.bins, torch.zeros(5, task.codec.vocab_size)
    assert bins is not None and task.decode is not None
    logits[:, [task.codec.bin_ids[0], task.codec.bin_ids[4]]] = -20
    monkeypatch.setattr(tasks, "next_logits", lambda *args: logits)
    pairs = [Pair(splits.train[0].question, in_digits(centre)) for centre in bins.centres]
    assert [row.is_covered for row in task.decode(pairs)] == [False, True, True, True, False]


def test_every_choice_is_tried() -> None:
    for place, group in enumerate(("dataset", "model", "loss")):
        choices = {path.stem for path in (CONFIGURATIONS / group).glob("*.yaml")} - {"base", "table", "smollm2"}
        assert choices == {str(tried[place]).split()[0] for tried in TRIED} - {"None"}


def test_losses_differ_where_there_are_number_tokens(tmp_path: Path) -> None:
    losses, balanced = {}, "ntl_was loss.balance=true"
    for loss in (*LOSSES, balanced):
        config = configure(*SMALL, *f"loss={loss}".split(), "trainer.arguments.eval_strategy=no")
        splits = load_splits(config)
        task = make_task(config, splits)
        trainer = task.trainer(task.model, training_arguments(config, tmp_path), task.collate, **task.trainer_arguments)
        losses[loss] = trainer.compute_loss(trainer.model.train(), task.collate(splits.train)).item()
    assert len({round(value, 6) for value in losses.values()}) == len(losses)
    assert losses.pop("ce_gaussian") > 0 and min(losses, key=losses.__getitem__) == "ce"


def test_a_text_answer_may_be_learned_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["trainer.arguments.max_steps=40", "trainer.arguments.learning_rate=0.02", "model.size=tiny"]
    config = configure(*SMALL, *options, "trainer.arguments.eval_strategy=no")
    pair = load_splits(config).train[0]
    monkeypatch.setattr(experiment, "load_splits", lambda _: Splits([pair] * 4, [pair], {"test": [pair]}))
    metrics = run(config, tmp_path)["metrics"]["test"]
    assert metrics["exact_match"] == 1 and metrics["mae"] == 0 and metrics["no_number"] == 0


def test_a_regression_head_leaves_out_answers_that_are_no_numbers() -> None:
    codec = make_codec("digits", ["12"], 300)
    pairs = [Pair("1 + 2", "3"), Pair("who?", "Ann")]
    batch = tasks.regression_batch(codec, 1.0, 2.0, pairs)
    assert batch["labels"][0] == 1 and batch["labels"][1].isnan()
    model = make_model(configure(*SMALL, "model=regression_head").model, codec, 1)
    both, alone = model(**batch), model(**tasks.regression_batch(codec, 1.0, 2.0, pairs[:1]))
    assert both["loss"].item() == pytest.approx(alone["loss"].item(), rel=1e-5)
    assert alone["loss"].item() == pytest.approx((alone["logits"][0].item() - 1) ** 2, rel=1e-5)
    none = model(**tasks.regression_batch(codec, 1.0, 2.0, pairs[1:]))["loss"]
    none.backward()
    assert none == 0 and not model.head.weight.grad.any()


def test_the_data_does_not_change_with_the_seed() -> None:
    one, other = (load_splits(configure("dataset=debug", f"seed={seed}")) for seed in (1, 2))
    assert one == other != load_splits(configure("dataset=debug", "data_seed=1"))


@pytest.mark.parametrize("model", ["llama", "regression_head"])
def test_a_run_resumes_and_is_not_trained_on(model: str, tmp_path: Path) -> None:
    """The curve of a resumed run is that of a whole one; a finished one is not touched, and evaluates to the same."""
    options = [f"model={model}", "trainer.arguments.max_steps=4", *SAVE, "dataset.limits.train=40", *KEEP_WORST]
    whole = small_run(tmp_path / "whole", *options)
    written = (tmp_path / "whole" / "metrics.json").read_bytes()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    resumed = small_run(tmp_path / "resumed", *options, "trainer.resume=true")
    assert small_run(tmp_path / "whole", *options, "trainer.resume=true") == json.loads(written)
    assert (tmp_path / "whole" / "metrics.json").read_bytes() == written
    (tmp_path / "whole" / "metrics.json").unlink()  # as if it had been cut off after its training
    again = small_run(tmp_path / "whole", *options, "trainer.resume=true", "trainer.save_model=true")
    shutil.rmtree(tmp_path / "whole" / "model")
    small_run(tmp_path / "whole", *options, "trainer.resume=true", "trainer.save_model=true")
    assert (tmp_path / "whole" / "model").is_dir() and again["seconds"] > 0
    kept = state_of(tmp_path / "whole" / "checkpoint-4").best_model_checkpoint
    assert kept == f"{tmp_path}/whole/checkpoint-2", "or nothing tells whose weights are evaluated"
    last = ["trainer.train=false", f"trainer.resume={tmp_path}/whole/checkpoint-2"]
    evaluated = small_run(tmp_path / "evaluated", *options, *last)
    for other, steps in ((resumed, 4), (again, 4), (evaluated, 2)):
        learned = {step: loss for step, loss in losses_of(whole).items() if step <= steps}
        assert losses_of(other) == pytest.approx(learned, rel=1e-5)
        for split, metrics in whole["metrics"].items():
            assert other["metrics"][split]["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    longer = [*options, last[1], "trainer.arguments.max_steps=5"]
    assert max(losses_of(small_run(tmp_path / "longer", *longer))) == 5
    with pytest.raises(InputError, match="no checkpoint"):
        small_run(tmp_path / "none", *options, "trainer.resume=true")


def test_attempts_in_one_folder_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run that was cut off, there is what it wrote itself, or what was there before as it was."""
    options = [*SAVE, "trainer.arguments.max_steps=4"]
    small_run(tmp_path, *options)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json*")}
    write = files.write

    def stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    def cut_off(where: Any, name: str, stop: Any, *overrides: str) -> Path | None:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, stop)
            with pytest.raises(KeyboardInterrupt):
                small_run(tmp_path, *options, *overrides)
        return newest_checkpoint(tmp_path)

    second, last = tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"
    assert cut_off(training.Answering, "ask", stop, f"trainer.resume={last}") == last
    assert cut_off(training.Trainer, "train", stop, f"trainer.resume={second}") == second
    assert cut_off(training.Trainer, "train", stop) is None
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json*")} == before
    assert cut_off(files, "write", lambda path, text: stop() if path.stem == "metrics" else write(path, text)) == last
    assert not (tmp_path / "metrics.json").exists(), "with other answers"


def test_a_resumed_runs_seconds_count_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that gains a second whenever it is read: at the start, at a checkpoint and at the end."""
    clock = iter(range(1000))
    monkeypatch.setattr(training.time, "perf_counter", lambda: float(next(clock)))
    options = [*SAVE, "trainer.arguments.max_steps=4"]
    assert small_run(tmp_path / "whole", *options)["seconds"] == 3
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    assert small_run(tmp_path / "resumed", *options, "trainer.resume=true")["seconds"] == 1 + 2


def test_medians_are_splits_of_their_own(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    config = configure(*SMALL, "dataset=readings", "samples=3", "model=t5_ntl")
    result, again = run(config, tmp_path / "a"), run(config, tmp_path / "b")
    name = split_of("test", median_of(3))
    assert list(result["metrics"]) == ["test", name]
    answers = [(tmp_path / folder / f"predictions-{name}.jsonl").read_text() for folder in "ab"]
    assert answers[0] == answers[1] and answers[0].count("\n") == 2
    assert again["metrics"][name] == pytest.approx(result["metrics"][name], nan_ok=True)
    assert not torch.equal(torch.random.get_rng_state(), state), "the run seeds; only the samples keep what was"
    with pytest.raises(InputError, match="samples=4 needs a model whose answers are tokens"):
        small_run(tmp_path / "c", "model=regression_head", "samples=4")


def test_every_question_gets_so_many_different_answers() -> None:
    config = configure(*SMALL, "dataset=debug")
    splits = load_splits(config)
    task = make_task(config, splits)
    assert task.sample is not None
    torch.manual_seed(0)
    sampled = task.sample(splits.validation, 7)
    assert {len(answers) for answers in sampled} == {7}
    assert all(len(set(answers)) > 1 for answers in sampled)  # of an untrained model


@pytest.mark.parametrize(
    "other",
    [
        "loss.weight=3",
        "model.checkpoint=some/where",
        "data_seed=5",
        "trainer=curve",
        "trainer.arguments.max_steps=3",
        "+trainer.arguments.max_grad_norm=0.5",
        "dataset.limits.train=7",
    ],
)
def test_runs_that_differ_have_folders_that_differ(other: str) -> None:
    usual = run_name("debug", "llama", "ntl_was", 1, ["dataset=debug", "loss=ntl_was", "seed=1"])
    assert usual == "debug-llama-ntl_was-seed1"
    name = run_name("debug", "llama", "ntl_was", 1, ["dataset=debug", other, "seed=1"])
    assert name != usual and "/" not in name and name.endswith("-seed1")


def test_names_of_folders_leave_out_what_changes_nothing_and_are_never_too_long() -> None:
    nothing = ["trainer.resume=true", "+trainer.arguments.disable_tqdm=true", "device=cuda", "trainer.save_model=true"]
    assert run_name("debug", "llama", "ce", 2, nothing) == "debug-llama-ce-seed2"
    many = [f"trainer.arguments.option_{n}={n}" for n in range(60)]
    names = {run_name("debug", "llama", "ce", 2, [*many, f"data_seed={seed}"]) for seed in range(9)}
    names |= {run_name("\N{CJK UNIFIED IDEOGRAPH-6570}" * 80, "llama", "ce", 2, [])}
    assert len(names) == 10 and max(len(name.encode()) for name in names) < 200


def test_a_folder_keeps_its_configuration(tmp_path: Path) -> None:
    """Nothing is overwritten, and nothing goes on from another configuration's checkpoint."""
    (tmp_path / "config.json").write_text(json.dumps(experiment.plain(configure(*SMALL))))
    for other in (["loss.weight=3"], ["data_seed=1", "trainer.resume=true"], ["loss=ce"]):
        with pytest.raises(InputError, match="holds a run with another (loss|data_seed)"):
            small_run(tmp_path, *other)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["metrics.json", "model", "checkpoint-500"])
def test_a_folder_that_no_run_has_made_keeps_what_a_run_would_replace(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name} is there, but no config.json of a run; choose another hydra.run.dir"):
        small_run(tmp_path, *SAVE, "trainer.save_model=true")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("loss", ["ntl_was", "number_level"])
def test_a_weight_may_be_an_int_beyond_int64(loss: str, tmp_path: Path) -> None:
    assert losses_of(small_run(tmp_path, f"loss={loss}", f"loss.weight={10**30}"))


def test_a_full_disk_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("File too large (os error 27)")

    monkeypatch.setattr(training.Trainer, "save_model", full)
    with pytest.raises(InputError, match=r"cannot save the model: File too large"):
        small_run(tmp_path, "trainer.save_model=true")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("device=nope", r"device must be available on this machine \(cpu.*; got 'nope'"),
        ("seed=abc", "seed must be a whole number from 0 to .*; got 'abc'"),
        ("data_seed=-1", "data_seed must be a whole number"),
        ("samples=many", "samples must be a number of answers"),
        ("loss.weight=-1", "loss=ntl_was: weight must be finite and at least 0; got -1"),
        ("loss.squash_factor=0.5", "loss=ntl_was: squash_factor must be finite and above 1"),
        ("loss.balance=abc", "loss.balance must be true or false; got 'abc'"),
        ("loss.group_by=abc", "loss.group_by must be length or null; got 'abc'"),
        ("loss=ce_gaussian loss.sigma=inf", "loss=ce_gaussian has one option, sigma, a number above 0"),
        ("dataset.name=[]", r"dataset.name must be a name; got \[\]"),
        ("model.name=''", "model.name must be a name; got ''"),
        ("loss.name=1", "loss.name must be a name; got 1"),
        ("loss.name=focal", "loss.name must be one of ce, ce_gaussian, number_level, ntl_was"),
        ("loss.name=ce", "loss=ce has no option"),
        ("model.size=huge", "model: size must be one of test, tiny, .*; got 'huge'"),
        ("model.codec=words", "model.codec must be one of plain, digits, triples, scores, rt, xval, own; got 'words'"),
        ("model.codec=xval", "model.head=value and model.codec=xval go together; got token and xval"),
        ("loss=ce_gaussian model.codec=rt", "loss=ce_gaussian needs one token for each digit"),
        ("loss=ce_gaussian loss.sigma=0", "loss=ce_gaussian has one option, sigma, a number above 0"),
        ("model=xval beams=4", "model.head=value needs beams=1; got 4"),
        ("model=xval loss=ntl_was", r"model.head=value needs loss=ce \(it has a loss of its own\); got 'ntl_was'"),
        ("trainer.train=false", "trainer=eval needs what it evaluates: model.checkpoint=FOLDER"),
        ("trainer.arguments.report_to=wandb", r"report_to=wandb: no such package is installed \(pip install wandb\)"),
        ("model.checkpoint=not/there", "model.checkpoint=not/there: no such folder"),
        ("model.head=regression loss=ce", "model.head=regression needs model.architecture=t5; got 'llama'"),
        ("model.vocabulary=abc", "model.vocabulary must be a number of tokens, at most 10,000,000; got 'abc'"),
        ("+model.colour=red", "model has the options adapter, .*; got .*colour"),
        ("~model.head", "model has the options .*head.*; got adapter, .*codec, longest_question, lora, name"),
        ("+foo=1", "an experiment has the options beams, .*; got .*foo"),
        ("trainer.resume=not/there", "trainer.resume=not/there: no checkpoint"),
        ("trainer.resume=5", "trainer.resume must be true, false or the path of a checkpoint; got 5"),
        ("model=null", "^model must be one of .*; got null$"),
        ("trainer.arguments=5", "trainer.arguments must be a mapping; got 5"),
        ("trainer.arguments.save_strategy=best", "trainer.arguments: `args.metric_for_best_model` must be provided"),
        ("+trainer.arguments.label_smoothing_factor=0.1", "trainer.arguments: the Trainer was given label_smoothing=0"),
        (f"samples={10**30}", "samples must be a number of answers"),
        ("trainer.arguments.report_to=5", "trainer.arguments.report_to must be .*; got 5"),
        ("trainer.arguments.max_steps=x", "trainer.arguments.max_steps must be a whole number of at least -1; got 'x'"),
        ("trainer.arguments.max_steps=1.5", "max_steps must be a whole number of at least -1; got 1.5"),
        ("trainer.arguments.per_device_train_batch_size=0", "batch_size must be a whole .* least 1; got 0"),
        ("trainer.arguments.learning_rate=-1", "learning_rate must be a number of at least 0; got -1"),
        ("+trainer.arguments.adam_beta1=1", "adam_beta1 must be a number of at least 0 and below 1; got 1"),
        ("+trainer.arguments.lr_scheduler_kwargs=abc", "lr_scheduler_kwargs must be a mapping; got 'abc'"),
        ("trainer.arguments.warmup_steps=inf", "warmup_steps must be a number of at least 0; got inf"),
        ("trainer.arguments.bf16=abc", "trainer.arguments.bf16 must be true or false; got 'abc'"),
        ("model.vocabulary=1000000000", "vocabulary must be a number of tokens, at most 10,000,000; got"),
        ("trainer.arguments.max_steps=0", "trainer.arguments.max_steps must be at least 1; got 0"),
        ("+trainer.arguments.metric_for_best_model=abc", "metric_for_best_model=abc: there is no such metric; exp"),
        (
            "+trainer.arguments.resume_from_checkpoint=x",
            "resume_from_checkpoint has no effect here; use trainer.resume",
        ),
        ("+trainer.arguments.eval_accumulation_steps=0", "must be a whole number of at least 1; got 0"),
        ("+trainer.arguments.steps=1", "trainer.arguments: .*unexpected keyword argument 'steps'"),
        ("trainer.arguments.lr_scheduler_type=zigzag", "trainer.arguments: zigzag is not a valid"),
        ("trainer.steps=40", "trainer.steps is not an option; expected one of train, resume, max_questions"),
        ("trainer.train.steps=40", r"Could not override .* To append to your config use \+trainer.train.steps=40"),
        ("hydra.run.dri=here", "Could not override 'hydra.run.dri'"),
        ("trainer.max_questions=0", "trainer.max_questions must be null or a number of questions; got 0"),
        ("trainer.train=maybe", "trainer.train must be true or false; got 'maybe'"),
        ("dataset=words", "^dataset=words; expected one of arithmetic, .*, table$"),
        ("+dataset.colour=red", "dataset has no option 'colour': did you mean columns"),
        ("dataset.format=words", "dataset.format must be one of"),
        ("loss=ce,ntl_was", "Ambiguous value for argument 'loss=ce,ntl_was'"),
        ("seed", "missing EQUAL"),
    ],
)
def test_overrides_that_cannot_work_are_told_in_one_line(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        small_run(tmp_path, *override.split())
    assert "\n" not in str(caught.value)


def test_the_papers_settings() -> None:
    """Those of its ``training_args/train.yaml`` and ``config.yaml``."""
    found = training_arguments(configure("trainer=paper"), Path("unused"))
    assert (found.learning_rate, found.weight_decay, found.max_steps, found.warmup_steps) == (1e-4, 0.01, 2_500_000, 0)
    assert found.lr_scheduler_type == "reduce_lr_on_plateau"
    assert found.lr_scheduler_kwargs == {"factor": 0.5, "patience": 5}
    assert (found.per_device_train_batch_size, found.per_device_eval_batch_size) == (32, 64)
    assert (found.eval_steps, found.save_steps, found.logging_steps, found.save_total_limit) == (25000, 25000, 2000, 2)
    assert found.load_best_model_at_end and found.metric_for_best_model == "loss" and not found.greater_is_better


def test_bf16_and_accumulation_change_little(tmp_path: Path) -> None:
    few = ["dataset.limits.train=16", "trainer.arguments.eval_strategy=no", "dataset.limits.test=1"]
    plain = losses_of(small_run(tmp_path / "plain", *few))
    halves = ["trainer.arguments.per_device_train_batch_size=2", "trainer.arguments.gradient_accumulation_steps=2"]
    assert losses_of(small_run(tmp_path / "halves", *few, *halves)) == pytest.approx(plain, rel=1e-5)
    low = losses_of(small_run(tmp_path / "bf16", *few, "trainer.arguments.bf16=true"))
    assert low == pytest.approx(plain, rel=0.02) and low != plain


def test_checkpoints_bring_their_tokenizer(tmp_path: Path) -> None:
    """One from elsewhere, which merges digits and knows no padding; and what a run has saved."""
    checkpoint = tmp_path / "checkpoint"
    tokenizer = train_tokenizer(["1234 1234 12 hello"] * 9, 400, "plain")
    tokenizer.save_pretrained(checkpoint)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(checkpoint)
    merged, digits = (make_codec(kind, ["ignored"], 300, str(checkpoint)) for kind in ("plain", "digits"))
    assert len(merged.encode("1234")) < 4 and digits.encode("hello") == merged.encode("hello")
    assert digits.tokenizer.convert_ids_to_tokens(digits.encode("hello -12.5"))[-5:] == ["-", "1", "2", ".", "5"]
    assert digits.decode(digits.encode("hello -12.5 <eos>")) == "hello -12.5 <eos>"
    first = small_run(tmp_path / "first", f"model.checkpoint={checkpoint}", "trainer.save_model=true")
    options = [f"model.checkpoint={tmp_path}/first/model", "trainer.arguments.learning_rate=0.0"]
    second = small_run(tmp_path / "second", *options, "model.vocabulary=7")
    assert second["parameters"] == first["parameters"]
    for split, metrics in first["metrics"].items():
        assert second["metrics"][split]["ce"] == pytest.approx(metrics["ce"], rel=1e-5)
    (checkpoint / "code.py").write_text("raise SystemExit('code of strangers')\n")
    (checkpoint / "config.json").write_text('{"model_type": "unknown", "auto_map": {"AutoConfig": "code.Config"}}')
    with pytest.raises(InputError, match="contains custom code"):
        small_run(tmp_path / "third", f"model.checkpoint={checkpoint}")


def test_answers_are_searched_with_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(*SMALL, "beams=3")
    splits = load_splits(config)
    task, asked = make_task(config, splits), []
    generate = task.model.generate
    monkeypatch.setattr(task.model, "generate", lambda **given: asked.append(given) or generate(**given))
    answers = task.trainer_arguments["answer"](splits.validation)
    assert len(answers) == 2 and asked[0]["num_beams"] == 3 and asked[0]["do_sample"] is False


def test_debug_answers_eight_questions_of_a_split() -> None:
    config = configure("dataset=debug", "trainer=debug")
    splits = load_splits(config)
    short = experiment.shortened(splits, config.trainer.max_questions, seed=0)
    assert len(short.validation) == 8 and {len(pairs) for pairs in short.tests.values()} == {8}
    assert short.train == splits.train and experiment.shortened(splits, None, seed=0) == splits


def test_answering_has_a_progress_bar_of_its_own(tmp_path: Path, capsys: Any) -> None:
    small_run(tmp_path, "trainer.arguments.eval_strategy=no", "++trainer.arguments.disable_tqdm=false")
    bars = capsys.readouterr().err
    assert all(f"answers, {split}: " in bars for split in TEST_SPLITS)


def hydra_reads(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["benchmarks.quality", *arguments])
    return list(arguments)


def test_the_command_line_sweeps_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    logging = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    assert main(hydra_reads(monkeypatch, "loss.weight=0.3,3", *SMALL, *logging, "-m")) == 0
    names = sorted(path.parent.name for path in tmp_path.rglob("metrics.json"))
    options = "limits.test_2-limits.train_4-limits.validation_2-size_test-trainer_debug"
    wanted = [f"debug-llama-ntl_was-{options}-weight_{weight}-seed1" for weight in ("0.3", "3")]
    assert names == wanted, "each run has a folder of its own"
    assert main(["report", str(tmp_path / "runs" / "quality"), "--out", str(tmp_path / "report")]) == 0
    rows = (tmp_path / "report" / "report.md").read_text().splitlines()
    assert [row.split(" | ")[2] for row in rows if row.startswith("| llama | CE + 3 NTL-WAS | ")].count("1") == 2
    assert (tmp_path / "report" / "debug.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(hydra_reads(monkeypatch, "dataset=gsm8k", "dataset.folder=here", *logging))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: ") and "prepare gsm8k" in said


def test_unknown_commands_are_named_and_help_lists_every_choice(capsys: Any) -> None:
    assert main(["gsm8k"]) == 2
    assert "there is no command 'gsm8k'; expected one of prepare, report" in capsys.readouterr().err
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for group in filter(Path.is_dir, CONFIGURATIONS.iterdir()):
        (line,) = [line for line in said.splitlines() if line.startswith(f"  {group.name}=")]
        names = {path.stem for path in group.glob("*.yaml")} - {"base"}
        assert set(line.partition("=")[2].replace(",", "").split()) == names


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path: Path) -> None:
    """The losses of one process on the same batches, the same answers in the same order, files written once.

    The learning rate is 0, since what an untrained model answers hangs on the last bit of its weights.
    """
    options = [*SMALL, "dataset=debug", "model=llama", "dataset.limits.test=8", "dataset.limits.train=8"]
    options += ["trainer.arguments.learning_rate=0.0", "trainer.arguments.weight_decay=0.0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    line += ["-m", "benchmarks.quality", *options, "trainer.arguments.per_device_train_batch_size=2"]
    line += [f"hydra.run.dir={tmp_path / 'two'}"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    run(configure(*options, "trainer.arguments.per_device_train_batch_size=4"), tmp_path / "one")
    results = {name: json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two")}
    assert losses_of(results["two"]) == pytest.approx(losses_of(results["one"]), rel=1e-5)
    for split in TEST_SPLITS:
        answers = [(tmp_path / name / f"predictions-{split}.jsonl").read_text().splitlines() for name in results]
        assert answers[0] == answers[1] and len(answers[0]) == 8
        one, two = (result["metrics"][split] for result in results.values())
        for metric in ("ce", "ntl", "token_accuracy"):
            assert two[metric] == pytest.approx(one[metric], rel=1e-5)


def test_a_step_is_timed_with_and_without_the_loss(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    path = tmp_path / "timing.json"
    sizes = ["model.size=test", *LIMITS]
    assert timing.main([*sizes, "--rounds", "3", "--steps", "1", "--out", str(path)]) == 0
    result = json.loads(path.read_text())
    assert {name: len(values) for name, values in result["seconds"].items()} == dict.fromkeys(timing.LOSSES, 3)
    assert result["peak_bytes"]["stock"] > 1000 and result["peak_bytes"].keys() == result["seconds"].keys()
    ratios = sorted(a / b for a, b in zip(result["seconds"]["ntl"], result["seconds"]["stock"], strict=True))
    assert result["ratios"]["stock"]["median"] == ratios[1]
    assert "CE + NTL / stock Trainer, CE" in capsys.readouterr().out
    monkeypatch.setattr(timing, "measure", lambda *_: pytest.fail("timed before the folder was tried"))
    assert timing.main(["--out", str(path / "timing.json")]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_the_stock_contestant_has_the_models_own_loss(tmp_path: Path) -> None:
    options = ["trainer=curve", "trainer.arguments.eval_strategy=no", "model.size=test", *LIMITS]
    for all_tokens in (False, True):
        losses, labels = {}, set()
        for name, loss in timing.LOSSES.items():
            config = configure(*options, f"loss={loss}")
            trainer = timing.make_trainer(name, config, load_splits(config), tmp_path, all_tokens)
            batch = trainer.data_collator(trainer.train_dataset)
            losses[name] = trainer.compute_loss(trainer.model.train(), dict(batch)).item()
            labels.add(int((batch["labels"] != -100).sum()))
            assert (type(trainer).__name__ == "Trainer") == (name == "stock")
        assert losses["ntl"] > losses["stock"] == pytest.approx(losses["ce"], rel=1e-5)
        assert losses["ntl"] == pytest.approx(losses["logits"], rel=1e-5)
        assert labels == {int((batch["attention_mask"] if all_tokens else batch["labels"] != -100).sum())}
