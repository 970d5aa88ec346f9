"""Every data set x model x loss of the experiments, small: two steps, an evaluation, metrics; and the command line."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import EvalPrediction, LlamaConfig, LlamaForCausalLM, TrainerState
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from benchmarks.errors import InputError
from benchmarks.quality import experiment, tasks, timing, training
from benchmarks.quality.__main__ import main
from benchmarks.quality.codecs import RTCodec, make_codec, train_tokenizer
from benchmarks.quality.configuration import CONFIGURATIONS, run_name
from benchmarks.quality.configuration import configure as configured
from benchmarks.quality.data import Pair, Splits
from benchmarks.quality.experiment import load_splits, run
from benchmarks.quality.losses import CodecNumberLevelLoss
from benchmarks.quality.models import NumericEmbedding, RegressionModel, transformer
from benchmarks.quality.training import token_metrics, token_scores, training_arguments

ROOT = Path(__file__).parents[2]
DATASETS = ("arithmetic", "mathematics_dataset", "gsm8k", "rjokes", "multirc", "debug")
"""Those of the paper; ``readings`` and ``rents`` are generated like ``debug``, and tested apart."""
MODELS = ("t5", "t5_ntl", "rt", "rt_ntl", "xval", "regression_head", "llama")
LOSSES = ("ce", "ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "number_level")
SAVE = ["trainer.arguments.save_strategy=steps", "+trainer.arguments.save_steps=2"]
LIMITS = [f"dataset.limits.{split}={size}" for split, size in (("train", 4), ("validation", 2), ("test", 2))]
SMALL = ["trainer=debug", "model.size=test", "+trainer.arguments.disable_tqdm=true"]
ALTERNATING = "".join(f"{a}*{b}?\n{a * b / 10}\n" for a, b in ((3, 4), (-5, 6), (7, 8), (2, 2)))
GSM8K = "".join(
    json.dumps({"question": f"{n} hens, {n} eggs each?", "answer": f"<<{n}*{n}={n * n}>>{n * n}\n#### {n * n}"}) + "\n"
    for n in (2, 3, 4, 5)
)
RJOKES = "3\tWhy 7? It ate 9.\n12\tA horse walks in.\n0\tNone.\n1\tOne.\n"
MULTIRC = "".join(
    json.dumps(
        {
            "passage": {
                "text": f"Ann has {n} cats.",
                "questions": [
                    {
                        "question": "How many?",
                        "answers": [
                            {"text": str(n), "label": 1},
                            {"text": "some", "label": n % 2},
                            {"text": "9", "label": 0},
                        ],
                    }
                ],
            }
        }
    )
    + "\n"
    for n in (2, 3, 4, 5)
)
CONTENT = {
    "arithmetic": ALTERNATING,
    "mathematics_dataset": ALTERNATING,
    "gsm8k": GSM8K,
    "rjokes": RJOKES,
    "multirc": MULTIRC,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each data set, with the files that its configuration names."""
    found = {}
    for name, content in CONTENT.items():
        found[name] = tmp_path_factory.mktemp(name)
        files = configure(f"dataset={name}").dataset.files
        for file in (files.train, files.validation, *files.tests.values()):
            (found[name] / file).write_text(content)
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def configure(*overrides: str) -> Any:
    return configured(overrides)


def small_run(folder: Path, *overrides: str) -> dict[str, Any]:
    return run(configure(*SMALL, *LIMITS, *overrides), folder)


@pytest.mark.parametrize(("dataset", "model"), itertools.product(DATASETS, MODELS))
def test_every_pair_trains_evaluates_and_writes_metrics(
    dataset: str, model: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    source = [f"dataset.folder={folders[dataset]}"] if dataset in folders else []
    config = configure(*SMALL, *LIMITS, f"dataset={dataset}", f"model={model}", *source)
    for loss in LOSSES:
        folder = tmp_path / loss
        config.loss = OmegaConf.load(CONFIGURATIONS / "loss" / f"{loss}.yaml")  # Hydra takes as long as a run
        run(config, folder)
        result = json.loads((folder / "metrics.json").read_text())
        steps = [entry for entry in result["log"] if "loss" in entry]
        assert [entry["step"] for entry in steps] == [1, 2]
        assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0 for entry in steps)
        assert list(result["metrics"]) == list(config.dataset.get("files", {}).get("tests") or GENERATED)
        for split, metrics in result["metrics"].items():
            assert {"exact_match", "bleu", "rougeL", "loss"} <= metrics.keys()
            assert dataset == "multirc" or {"mae", "r2", "no_number"} <= metrics.keys()
            assert len((folder / f"predictions-{split}.jsonl").read_text().splitlines()) == 2
            if model != "regression_head":
                assert metrics["perplexity"] == pytest.approx(math.exp(metrics["ce"]))
                assert 0 <= metrics["token_accuracy"] <= 1


GENERATED = ("interpolate", "extrapolate")


def test_losses_differ_where_there_are_number_tokens(tmp_path: Path) -> None:
    for model in ("t5_ntl", "rt_ntl", "llama"):
        first = {
            loss: small_run(tmp_path / f"{model}-{loss}", f"model={model}", f"loss={loss}")["log"][0]["loss"]
            for loss in LOSSES
        }
        assert len({round(value, 6) for value in first.values()}) == len(LOSSES)
        assert all(value > first["ce"] for loss, value in first.items() if loss != "ce")


def test_a_text_answer_may_be_learned_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["trainer.arguments.max_steps=120", "trainer.arguments.learning_rate=0.01", "dataset.limits.train=1"]
    config = configure(
        *SMALL, *LIMITS, "model=llama", "model.size=tiny", *options, "trainer.arguments.eval_strategy=no"
    )
    pair = load_splits(config).train[0]
    monkeypatch.setattr(experiment, "load_splits", lambda _: Splits([pair] * 4, [pair], {"test": [pair]}))
    metrics = run(config, tmp_path)["metrics"]["test"]
    assert metrics["exact_match"] == 1 and metrics["mae"] == 0 and metrics["no_number"] == 0


@pytest.mark.parametrize("dataset", ["expressions", "multiplication", "readings", "rents"])
def test_generated_data_are_learned_from(dataset: str, tmp_path: Path) -> None:
    for model in ("llama", "regression_head"):
        result = small_run(tmp_path / model, f"dataset={dataset}", f"model={model}")
        assert all({"mae", "no_number"} <= metrics.keys() for metrics in result["metrics"].values())
    assert result["loss"] == "mse", "whatever loss is configured"


def test_a_regression_head_leaves_out_answers_that_are_no_numbers() -> None:
    codec = make_codec("digits", ["12"], 300)
    pairs = [Pair("1 + 2", "3"), Pair("who?", "Ann")]
    batch = tasks.regression_batch(codec, pairs)
    assert batch["labels"][0] == 3 and batch["labels"][1].isnan()
    model = RegressionModel(transformer("t5", "test", None, codec, 1), mean=1.0, deviation=2.0)
    both, alone = model(**batch), model(**tasks.regression_batch(codec, pairs[:1]))
    assert both["loss"].item() == pytest.approx(alone["loss"].item(), rel=1e-5)
    assert alone["loss"].item() == pytest.approx(((alone["logits"][0].item() - 3) / 2) ** 2, rel=1e-5)
    none = model(**tasks.regression_batch(codec, pairs[1:]))["loss"]
    none.backward()
    assert none == 0 and not model.head.weight.grad.any()


def test_token_metrics_are_means_over_labels() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 4, -100], [-100, 2, 0]])
    scores = token_scores(logits, (labels, labels))
    metrics = token_metrics(EvalPrediction(scores.numpy(), (labels.numpy(), labels.numpy())))
    flat, wanted = logits.flatten(0, 1), labels.flatten()
    counted = wanted != -100
    assert metrics["ce"] == pytest.approx(torch.nn.functional.cross_entropy(flat, wanted).item(), rel=1e-5)
    assert metrics["token_accuracy"] == pytest.approx((flat.argmax(-1) == wanted)[counted].float().mean().item())


def test_the_data_does_not_change_with_the_seed() -> None:
    one, other = (load_splits(configure("dataset=debug", f"seed={seed}")) for seed in (1, 2))
    assert one == other != load_splits(configure("dataset=debug", "data_seed=1"))


def test_answers_are_measured_while_training(tmp_path: Path) -> None:
    options = ["trainer=curve", "trainer.arguments.max_steps=4", "trainer.arguments.eval_steps=2", "model.size=test"]
    result = run(configure(*options, *LIMITS, "+trainer.arguments.disable_tqdm=true"), tmp_path)
    points = [entry for entry in result["log"] if "eval_loss" in entry]
    assert [point["step"] for point in points] == [2, 4]
    assert all({"eval_mae", "eval_r2", "eval_exact_match", "eval_no_number"} <= point.keys() for point in points)
    assert result["environment"]["commit"] and result["environment"]["versions"]["torch"]


def losses_of(result: dict[str, Any]) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in result["log"] if "loss" in entry}


@pytest.mark.parametrize("model", ["llama", "t5_ntl", "rt_ntl", "xval", "regression_head"])
def test_resume_continues_the_same_curve(model: str, tmp_path: Path) -> None:
    options = [f"model={model}", "trainer.arguments.max_steps=4", *SAVE, "dataset.limits.train=40"]
    config = [*SMALL, *LIMITS, *options]
    whole = run(configure(*config), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    resumed = run(configure(*config, "trainer.resume=true"), tmp_path / "resumed")
    assert losses_of(resumed) == pytest.approx(losses_of(whole), rel=1e-5)
    for split, metrics in whole["metrics"].items():
        assert resumed["metrics"][split]["loss"] == pytest.approx(metrics["loss"], rel=1e-5)


HALF_AN_EPOCH = ["model=xval", "~trainer.arguments.max_steps", "+trainer.arguments.num_train_epochs=0.5"]
STOPPED_EARLY = ["trainer.early_stopping=1", "trainer.arguments.max_steps=8", "trainer.arguments.learning_rate=0.0"]


@pytest.mark.parametrize(("options", "last"), [(["samples=1"], 2), (HALF_AN_EPOCH, 4), (STOPPED_EARLY, 4)])
def test_a_finished_run_is_not_trained_on(options: list[str], last: int, tmp_path: Path) -> None:
    config = [*SMALL, *LIMITS, *SAVE, "trainer.arguments.lr_scheduler_type=constant", "dataset.limits.train=32"]
    whole = run(configure(*config, *options), tmp_path)
    written = (tmp_path / "metrics.json").read_bytes()
    assert run(configure(*config, *options, "trainer.resume=true", "device=cpu"), tmp_path) == json.loads(written)
    assert (tmp_path / "metrics.json").read_bytes() == written
    (tmp_path / "metrics.json").unlink()
    with_model = run(configure(*config, *options, "trainer.resume=true", "trainer.save_model=true"), tmp_path)
    assert losses_of(with_model) == losses_of(whole) and max(losses_of(whole)) == last
    for split, metrics in whole["metrics"].items():
        assert with_model["metrics"][split] == pytest.approx(metrics, nan_ok=True), split
    assert (tmp_path / "model").is_dir() and json.loads((tmp_path / "metrics.json").read_text())
    longer = [f"trainer.resume={tmp_path}/checkpoint-{last}", "++trainer.arguments.max_steps=1"]
    with pytest.raises(InputError, match=rf"checkpoint was trained for {last} steps, more than the 1 of this run"):
        run(configure(*config, *options, *longer), tmp_path / "shorter")


def test_early_stopping_counts_on_in_a_resumed_run(tmp_path: Path) -> None:
    config = [*SMALL, *LIMITS, *SAVE, *STOPPED_EARLY, "trainer.early_stopping=2"]
    assert max(losses_of(run(configure(*config), tmp_path / "whole"))) == 6
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "resumed" / "checkpoint-4")
    assert max(losses_of(run(configure(*config, "trainer.resume=true"), tmp_path / "resumed"))) == 6


def test_a_resumed_runs_seconds_count_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that gains a second whenever it is read."""
    clock = itertools.count()
    monkeypatch.setattr(training.time, "perf_counter", lambda: float(next(clock)))
    config = [*SMALL, *LIMITS, *SAVE, "trainer.arguments.max_steps=4", "dataset.limits.train=16"]
    run(configure(*config), tmp_path / "whole")
    state = json.loads((tmp_path / "whole" / "checkpoint-2" / "trainer_state.json").read_text())
    (before,) = [entry[training.SECONDS] for entry in state["log_history"] if training.SECONDS in entry]
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    stopwatch = training.Stopwatch()
    stopwatch.on_train_begin(
        None, TrainerState.load_from_json(tmp_path / "whole/checkpoint-2/trainer_state.json"), None
    )
    assert before > 0 and stopwatch.seconds() == before + 1
    resumed = run(configure(*config, "trainer.resume=true"), tmp_path / "resumed")
    assert resumed["seconds"] > before


def test_plain_cross_entropy_has_no_weight_to_override(tmp_path: Path) -> None:
    """``loss=ce,ntl_was loss.weight=3`` once trained "CE" with NTL, and reported it as CE."""
    with pytest.raises(InputError, match="loss=ce has no option 'weight'"):
        small_run(tmp_path, "loss=ce", "loss.weight=3")
    with pytest.raises(InputError, match="loss=ce has no option 'weight'"):
        small_run(tmp_path / "added", "loss=ce", "+loss.weight=3")
    with pytest.raises(InputError, match="loss=ce has no option"):
        small_run(tmp_path / "renamed", "loss=ntl_was", "loss.name=ce")


@pytest.mark.parametrize(
    "other",
    [
        "loss.weight=3",
        "loss.reweigh=true",
        "loss.squash_factor=2",
        "loss.label_sigma=0.5",
        "model.size=mini",
        "model.checkpoint=some/where",
        "data_seed=5",
        "trainer=curve",
        "trainer.arguments.max_steps=3",
        "+trainer.arguments.max_grad_norm=0.5",
        "dataset.limits.train=7",
        "dataset.folder=else/where",
    ],
)
def test_runs_that_differ_have_folders_that_differ(other: str, tmp_path: Path) -> None:
    usual = run_name("debug", "llama", "ntl_was", 1, ["dataset=debug", "loss=ntl_was", "seed=1"])
    assert usual == "debug-llama-ntl_was-seed1"
    name = run_name("debug", "llama", "ntl_was", 1, ["dataset=debug", other, "seed=1"])
    assert name != usual and "/" not in name and name.endswith("-seed1")


def test_names_of_folders_leave_out_what_changes_nothing_and_are_never_too_long() -> None:
    nothing = ["trainer.resume=true", "+trainer.arguments.disable_tqdm=true", "device=cuda", "trainer.save_model=true"]
    assert run_name("debug", "llama", "ce", 2, nothing) == "debug-llama-ce-seed2"
    many = [f"trainer.arguments.option_{n}={n}" for n in range(60)]
    names = {run_name("debug", "llama", "ce", 2, [*many, f"data_seed={seed}"]) for seed in range(9)}
    assert len(names) == 9 and max(map(len, names)) < 200


def test_a_folder_keeps_its_configuration(tmp_path: Path) -> None:
    """Nothing is overwritten, and nothing goes on from another configuration's checkpoint."""
    small_run(tmp_path, *SAVE)
    before = (tmp_path / "metrics.json").read_text()
    for other in (["loss.weight=3"], ["loss.weight=3", "trainer.resume=true"], ["data_seed=1"], ["loss=ce"]):
        with pytest.raises(InputError, match="holds a run with another (loss|data_seed)"):
            small_run(tmp_path, *SAVE, *other)
    assert (tmp_path / "metrics.json").read_text() == before
    small_run(tmp_path, *SAVE)
    small_run(tmp_path, *SAVE, "trainer.resume=true")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("device=cuda", r"device must be available on this machine \(cpu\); got 'cuda'"),
        ("device=nope", r"device must be available on this machine \(cpu.*; got 'nope'"),
        ("seed=abc", "seed must be a whole number from 0 to .*; got 'abc'"),
        ("data_seed=-1", "data_seed must be a whole number"),
        ("loss.weight=-1", "loss=ntl_was: weight must be finite and at least 0; got -1"),
        ("loss.weight=many", "loss=ntl_was: weight must be a number; got 'many'"),
        ("loss.squash_factor=0.5", "loss=ntl_was: squash_factor must be finite and above 1"),
        ("loss.name=focal", "loss.name must be one of ce, number_level, ntl_was"),
        ("model.size=huge", "model: size must be one of test, tiny, .*; got 'huge'"),
        ("model.codec=words", "model: codec must be plain"),
        ("model.checkpoint=not/there", "model.checkpoint=not/there: no such folder"),
        ("trainer.resume=not/there", "trainer.resume=not/there: no checkpoint"),
        ("trainer.early_stopping=0", "trainer.early_stopping must be null or"),
        ("trainer.arguments.max_steps=abc", "trainer.arguments.max_steps must be a number; got 'abc'"),
        (
            "+trainer.arguments.steps=1",
            "trainer.arguments has no option 'steps'; did you mean trainer.arguments.max_steps",
        ),
        ("trainer.steps=40", "trainer has no option 'steps'; did you mean trainer.arguments.max_steps"),
        ("+trainer.steps=40", "trainer has no option 'steps'; did you mean trainer.arguments.max_steps"),
        ("trainer.arguments.save_steps=3", r"no default here: set it by \+trainer.arguments.save_steps=3"),
        ("trainer.arguments.max_steps=0", "trainer.arguments.max_steps must be at least 1; got 0"),
        ("trainer.arguments.per_device_train_batch_size=0", "per_device_train_batch_size must be at least 1; got 0"),
        ("trainer.arguments=5", "trainer.arguments holds max_steps, .*; got trainer.arguments=5"),
        ("trainer.max_questions=0", "trainer.max_questions must be null or a number of questions; got 0"),
        ("trainer.train=maybe", "trainer.train must be true or false; got 'maybe'"),
        ("trainer=fast", "there is no trainer=fast; trainer is one of curve, debug"),
        ("loss=bert", "there is no loss=bert; loss is one of ce, ntl_huber"),
        ("dataset=gsm8", "there is no dataset=gsm8; dataset is one of .*gsm8k"),
        ("model=bert", "there is no model=bert; model is one of llama"),
        ("model.sise=mini", "model has no option 'sise'; did you mean model.size"),
        ("+model.colour=red", "model has no option 'colour'; there are name, architecture"),
        ("model.head=two", "model.head must be one of token, value, regression; got 'two'"),
        ("model.architecture=gpt", "model.architecture must be one of t5, llama; got 'gpt'"),
        ("model.head=value", "model.head=value and model.codec=xval need each other"),
        ("model.numeric_embeddings=true", "numeric_embeddings=true needs model.codec=rt; got 'digits'"),
        ("model.vocabulary=abc", "model.vocabulary must be a number of tokens; got 'abc'"),
        ("dataset.limit.test=3", "dataset=debug has no option 'limit'; did you mean dataset.limits"),
        ("dataset.folder=x", "dataset=debug has no option 'folder'; it has dataset.format"),
        ("loss.huber_delta=2", "loss=ntl_was has no option 'huber_delta'; it has loss.weight"),
        ("datset=gsm8k", "there is no option 'datset'; did you mean dataset"),
        ("lr=0.1", "there is no option 'lr'; did you mean trainer.arguments.learning_rate"),
        ("+foo=1", "there is no option 'foo'; there are dataset, model"),
        ("~loss", "~loss: only arguments of the Trainer can be left out"),
        ("loss=ce,ntl_was", "loss=ce,ntl_was gives several values; only an experiment with -m"),
        ("seed", "expected OPTION=VALUE; got 'seed'"),
        ("trainer.arguments.lr_scheduler_type=zigzag", "trainer.arguments: zigzag is not a valid"),
        ("dataset.limits.test=0", "dataset.limits.test must be null or a whole number of at least 1; got 0"),
        ("+dataset.colour=red", "dataset has no option 'colour'"),
        ("dataset.format=words", "dataset.format must be one of"),
    ],
)
def test_overrides_that_cannot_work_are_told_in_one_line(override: str, said: str, tmp_path: Path) -> None:
    if override == "device=cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=said) as caught:
        small_run(tmp_path, override)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "ignore::FutureWarning")
def test_reporters_that_are_missing_are_told_in_one_line() -> None:
    missing = sorted({*INTEGRATION_TO_CALLBACK} - {*get_available_reporting_integrations()})
    config = configure(*SMALL)
    for names in ("pigeon", ["pigeon"], *missing, ["none", "pigeon"]):
        config.trainer.arguments.report_to = names
        with pytest.raises(InputError, match="^trainer.arguments.report_to: [^\n]+$"):
            training_arguments(config, Path())
    config.trainer.arguments.report_to = ["tensorboard"]
    assert training_arguments(config, Path()).report_to == ["tensorboard"]


def test_a_checkpoint_can_be_evaluated_alone(tmp_path: Path) -> None:
    trained = small_run(
        tmp_path / "trained", "trainer.arguments.save_strategy=steps", "+trainer.arguments.save_steps=2"
    )
    options = ["trainer=eval", "model.size=test", f"trainer.resume={tmp_path}/trained/checkpoint-2", *LIMITS]
    evaluated = run(configure(*options), tmp_path / "evaluated")
    for split, metrics in trained["metrics"].items():
        assert evaluated["metrics"][split]["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert losses_of(evaluated) == {}
    with pytest.raises(InputError, match="no checkpoint"):
        run(configure("trainer=eval", "model.size=test", "trainer.resume=true", *LIMITS), tmp_path / "none")


def test_early_stopping_ends_a_run_that_gets_no_better(tmp_path: Path) -> None:
    options = ["trainer.early_stopping=1", "trainer.arguments.max_steps=20", "trainer.arguments.learning_rate=0.0"]
    options += [
        "trainer.arguments.eval_steps=2",
        "trainer.arguments.save_strategy=steps",
        "+trainer.arguments.save_steps=2",
    ]
    assert max(losses_of(small_run(tmp_path, *options))) == 4


def test_bf16_and_accumulation_change_little(tmp_path: Path) -> None:
    config = [*SMALL, *LIMITS, "model=llama", "dataset.limits.train=16"]
    plain = losses_of(run(configure(*config), tmp_path / "plain"))
    halves = ["trainer.arguments.per_device_train_batch_size=2", "trainer.arguments.gradient_accumulation_steps=2"]
    accumulated = losses_of(run(configure(*config, *halves), tmp_path / "halves"))
    assert accumulated == pytest.approx(plain, rel=1e-5)
    low = losses_of(run(configure(*config, "trainer.arguments.bf16=true"), tmp_path / "bf16"))
    assert low == pytest.approx(plain, rel=0.02) and low != plain


def test_reports_go_where_configured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small_run(tmp_path, "trainer.arguments.report_to=tensorboard")
    assert list(tmp_path.rglob("events.out.tfevents*"))


def save_checkpoint(folder: Path) -> int:
    """A tiny Llama with a tokenizer that merges digits and knows neither padding nor end by our names."""
    tokenizer = train_tokenizer(["1234 1234 12 hello"] * 9, 400, digits=False)
    tokenizer.save_pretrained(folder)
    size = len(tokenizer)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=size, **sizes)).save_pretrained(folder)
    return size


def test_a_checkpoint_brings_its_own_tokenizer(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint")
    merged = make_codec("plain", [], 0, str(tmp_path / "checkpoint"))
    digits = make_codec("digits", ["ignored"], 300, str(tmp_path / "checkpoint"))
    assert len(merged.encode("1234").ids) < 4
    names = digits.tokenizer.convert_ids_to_tokens(digits.encode("hello -12.5").ids)
    assert names[-5:] == ["-", "1", "2", ".", "5"]
    assert digits.encode("hello").ids == merged.encode("hello").ids
    assert digits.decode(digits.encode("hello -12.5 <eos>").ids) == "hello -12.5 <eos>"
    result = small_run(tmp_path / "run", f"model.checkpoint={tmp_path}/checkpoint")
    assert math.isfinite(result["metrics"]["interpolate"]["ce"])
    rt = small_run(tmp_path / "rt", f"model.checkpoint={tmp_path}/checkpoint", "model.codec=rt")
    assert rt["parameters"] > result["parameters"]


@pytest.mark.parametrize("model", ["llama", "t5_ntl"])
def test_a_saved_model_is_a_checkpoint(model: str, tmp_path: Path) -> None:
    """What one run saves another one starts from, on other data, with the same tokens."""
    first = small_run(tmp_path / "first", f"model={model}", "trainer.save_model=true")
    options = [f"model.checkpoint={tmp_path}/first/model", f"model={model}", "trainer.arguments.learning_rate=0.0"]
    second = small_run(tmp_path / "second", *options, "model.vocabulary=7")
    assert second["parameters"] == first["parameters"]
    for split, metrics in first["metrics"].items():
        assert second["metrics"][split]["ce"] == pytest.approx(metrics["ce"], rel=1e-5)
        assert second["metrics"][split]["exact_match"] == metrics["exact_match"]


def test_rt_numbers_count_for_the_number_level_loss() -> None:
    codec = make_codec("rt", ["12"], 300)
    loss = CodecNumberLevelLoss(codec, reweigh=False)
    labels = torch.tensor([codec.encode("48 a 7").ids])

    def of(text: str) -> float:
        ids = torch.tensor([codec.encode(text).ids])
        return float(loss(100.0 * torch.nn.functional.one_hot(ids, codec.vocab_size).float(), labels))

    assert of("48 a 7") == pytest.approx(0, abs=1e-6)
    assert of("58 a 7") == pytest.approx(10 / 106 / 2, rel=1e-4)


def test_fixed_embeddings_grow_with_digit_and_place_and_stay_small() -> None:
    codec = make_codec("rt", ["12"], 300)
    assert isinstance(codec, RTCodec)
    learned = torch.nn.Embedding(codec.vocab_size, 8)
    fixed = NumericEmbedding(learned, codec).fixed
    tokens = sorted((digit * 10.0**power, token) for token, (digit, power) in codec.digit_tokens.items() if digit)
    column = fixed[[token for _, token in tokens], 0]
    assert (column.diff() >= 0).all() and 0 < column.max() < 25
    assert not fixed[codec.encode("word").ids].any()


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "benchmarks.quality", *arguments]
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_the_command_line_sweeps_and_reports(tmp_path: Path) -> None:
    done = command("loss.weight=0.3,3", "seed=1,2", *SMALL, *LIMITS, "-m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = sorted(path.parent.name for path in tmp_path.rglob("metrics.json"))
    options = "limits.test_2-limits.train_4-limits.validation_2-size_test-trainer_debug"
    wanted = [f"debug-llama-ntl_was-{options}-weight_{weight}-seed{seed}" for weight in ("0.3", "3") for seed in (1, 2)]
    assert names == wanted, "each run has a folder of its own"
    assert main(["report", str(tmp_path / "runs" / "quality"), "--out", str(tmp_path / "report")]) == 0
    rows = (tmp_path / "report" / "report.md").read_text().splitlines()
    assert [row.split(" | ")[2] for row in rows if row.startswith("| llama | CE + 3 NTL-WAS | ")].count("2") == 2
    assert (tmp_path / "report" / "debug.png").read_bytes().startswith(b"\x89PNG")


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    """The losses of one process on the same batches, the same answers in the same order, files written once.

    The learning rate is 0, since what an untrained model answers hangs on the last bit of its weights.
    """
    options = ["dataset=debug", "model=llama", *SMALL, *LIMITS, "dataset.limits.test=8", "dataset.limits.train=8"]
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
    for split in GENERATED:
        answers = [(tmp_path / name / f"predictions-{split}.jsonl").read_text().splitlines() for name in results]
        assert answers[0] == answers[1] and len(answers[0]) == 8
        one, two = (result["metrics"][split] for result in results.values())
        for metric in ("ce", "ntl", "token_accuracy"):
            assert two[metric] == pytest.approx(one[metric], rel=1e-5)


def test_a_step_is_timed_with_and_without_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "timing.json"
    sizes = ["model.size=test", *LIMITS]
    assert timing.main([*sizes, "--rounds", "3", "--steps", "2", "--out", str(path)]) == 0
    result = json.loads(path.read_text())
    assert {name: len(values) for name, values in result["seconds"].items()} == {"stock": 3, "ce": 3, "ntl": 3}
    ratios = sorted(a / b for a, b in zip(result["seconds"]["ntl"], result["seconds"]["stock"], strict=True))
    assert result["ratios"]["stock"]["median"] == ratios[1]
    assert "CE + NTL / stock Trainer, CE" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        timing.main(["--rounds", "1"])


def test_where_timings_go_is_tried_before_the_work(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(timing, "measure", lambda *_: pytest.fail("timed before the folder was tried"))
    (tmp_path / "file").write_text("")
    assert timing.main(["--out", str(tmp_path / "file" / "timing.json")]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_the_stock_contestant_has_the_models_own_loss(tmp_path: Path) -> None:
    config = configure("trainer=curve", "trainer.arguments.eval_strategy=no", "model.size=test", "loss=ce", *LIMITS)
    stock, ours = (timing.make_trainer(name, config, tmp_path) for name in ("stock", "ce"))
    batch = stock.data_collator(stock.train_dataset)
    losses = [float(trainer.compute_loss(trainer.model.train(), dict(batch))) for trainer in (stock, ours)]
    assert type(stock).__name__ == "Trainer"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def hydra_reads(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["benchmarks.quality", *arguments])
    return list(arguments)


def test_the_command_line_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    logging = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    with pytest.raises(SystemExit) as ended:
        main(hydra_reads(monkeypatch, "dataset=gsm8k", "dataset.folder=here", *logging))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: ") and "grade-school-math" in said and "prepare gsm8k" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loss=ce,ntl_was", "loss.weight=3", "-m"], "loss=ce has no option 'weight'"),
        (["loss=ntl_was,focal", "-m"], "there is no loss=focal; loss is one of ce"),
        (["loss=ce,ntl_was"], "gives several values; only an experiment with -m"),
        (["reprt"], "there is no command 'reprt'; did you mean report?"),
        (["gsm8k"], "there is no command 'gsm8k'; there are prepare, report"),
    ],
)
def test_wrong_names_are_told_before_hydra_reads_them(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(hydra_reads(monkeypatch, *arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_help_lists_every_choice(capsys: Any) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for group in CONFIGURATIONS.iterdir():
        if group.is_dir():
            (line,) = [line for line in said.splitlines() if line.startswith(f"  {group.name}=")]
            names = {path.stem for path in group.glob("*.yaml")} - {"base"}
            assert set(line.replace(" (default)", "").partition("=")[2].replace(",", "").split()) == names


@pytest.mark.parametrize("dataset", [*DATASETS, "expressions", "multiplication", "readings", "rents"])
def test_debug_answers_eight_questions_of_a_split(dataset: str, folders: dict[str, Path]) -> None:
    """Whatever a data set's own limits; the files have more questions than that here."""
    source = {"folder": str(folders[dataset])} if dataset in folders else {}
    config = configure(f"dataset={dataset}", "trainer=debug", *(f"dataset.folder={path}" for path in source.values()))
    splits = load_splits(config)
    many = splits._replace(validation=splits.validation * 3, tests={name: t * 3 for name, t in splits.tests.items()})
    short = experiment.shortened(many, config.trainer.max_questions)
    assert len(short.validation) == 8 and {len(pairs) for pairs in short.tests.values()} == {8}
    assert short.train == splits.train and experiment.shortened(many, None) == many


def test_answering_has_a_progress_bar_of_its_own(tmp_path: Path, capsys: Any) -> None:
    shown = ["trainer=debug", "model.size=test", "dataset.limits.test=20", "dataset.limits.train=20"]
    run(configure(*shown, "+trainer.arguments.disable_tqdm=false"), tmp_path / "shown")  # whatever transformers logs
    bars = capsys.readouterr().err
    for split in ("eval", *GENERATED):
        assert f"answers, {split}: " in bars
    assert " 0/8 [" in bars and "/20 [" not in bars
    for split in GENERATED:
        assert len((tmp_path / "shown" / f"predictions-{split}.jsonl").read_text().splitlines()) == 8
    run(configure(*shown, "+trainer.arguments.disable_tqdm=true"), tmp_path / "silent")
    assert "answers" not in capsys.readouterr().err
