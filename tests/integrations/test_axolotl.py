"""`NTLPlugin`: with Axolotl itself where it is installed (it pins other versions of what we test with, so that a job of
its own in CI has it), else with a stand-in of its plugin's base class and a Trainer that averages as Axolotl's does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor
from transformers import Trainer, TrainingArguments

from ntl_kernels import NTLConfig, NumberTokens, config, cross_entropy_ntl, integrations

from ..stand_ins import is_installed, standing_in
from .loops import error
from .training import make_llama, make_tokenizer, settings, step_of

HAS_AXOLOTL = is_installed("axolotl")
PLUGIN = "ntl_kernels.integrations.axolotl.NTLPlugin"
VOCAB = 40
NUMBERS = NumberTokens.from_mapping({10 + digit: float(digit) for digit in range(10)}, vocab_size=VOCAB)
REQUIRED = {"base_model": "x", "datasets": [{"path": "x", "type": "alpaca"}], "learning_rate": 1e-3}
REQUIRED |= {"micro_batch_size": 1, "gradient_accumulation_steps": 2}


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our module, imported alongside Axolotl or its stand-in."""
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")
    with standing_in():
        from ntl_kernels.integrations import axolotl

        yield axolotl


def keys(plugin: Any, **given: Any) -> Any:
    """The configuration as Axolotl checks it: its own class combined with the plugin's."""
    if not HAS_AXOLOTL:

        class Stock(BaseModel):
            rl: str | None = None
            chunked_cross_entropy: bool | None = None
            context_parallel_size: int | None = None

        return type("Merged", (Stock, plugin.NTLArgs), {})(**given)
    from axolotl.integrations.base import PluginManager
    from axolotl.integrations.config import merge_input_args

    PluginManager.get_instance().register(PLUGIN)
    return merge_input_args()[1](**REQUIRED, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ntl_weight": -1.0}, "ntl_weight"),
        ({"ntl_wieght": 0.1}, "unknown ntl_wieght: NTLPlugin's keys are ntl_weight"),
        ({"ntl_kind": "l2"}, "ntl_kind\n.*'wasserstein', 'mse', 'mae', 'huber' or 'soft_labels'.*input_value='l2'"),
        ({"ntl_kind": "mse", "ntl_squash_factor": 2.0}, "squash_factor"),
        ({"ntl_squash_factor": 0.5}, "squash_factor"),
        ({"ntl_group_by": "value"}, "ntl_group_by\n.*'length'.*input_value='value'"),
        ({"ntl_mean_over": "rows"}, "ntl_mean_over\n.*'numbers' or 'tokens'.*input_value='rows'"),
        ({"chunked_cross_entropy": True}, "cannot be combined with chunked_cross_entropy"),
        ({"rl": "dpo"}, "cannot be combined with rl"),
        ({"context_parallel_size": 2}, "context_parallel_size"),
    ],
)
def test_wrong_keys_are_errors(given: dict[str, Any], words: str, plugin: Any) -> None:
    with pytest.raises(ValidationError, match=words):
        keys(plugin, **given)


def test_keys_have_defaults_of_the_library(plugin: Any) -> None:
    config = plugin.ntl_config(keys(plugin))
    assert config == NTLConfig(mean_over="tokens") and config.reweigh is False
    assert plugin.ntl_config(keys(plugin, ntl_reweigh=True)) == NTLConfig(mean_over="tokens", reweigh=True)
    assert plugin.NTLPlugin().get_input_args() == "ntl_kernels.integrations.axolotl.NTLArgs"


def test_keys_accept_whatever_the_library_does(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind or mean that the library gains is listed in one place."""
    monkeypatch.setattr(config, "KINDS", (*config.KINDS, "cubic"))
    monkeypatch.setattr(config, "MEANS", (*config.MEANS, "rows"))
    monkeypatch.setattr(integrations, "axolotl", plugin)  # restores it after the import below
    sys.modules.pop(plugin.__name__, None)
    given = importlib.import_module(plugin.__name__).NTLArgs(ntl_kind="cubic", ntl_mean_over="rows")
    assert (given.ntl_kind, given.ntl_mean_over) == ("cubic", "rows")


def rows() -> list[dict[str, Any]]:
    """Eight rows of unequal lengths; the first three have no numbers, none in their first label."""
    generator, found = torch.Generator().manual_seed(0), []
    for row in range(8):
        ids = torch.randint(5, 30, (4 + row,), generator=generator)
        ids[(ids >= 10) & (ids < 20) & (torch.tensor(row < 3) | (torch.arange(len(ids)) == 0))] = 30
        found.append({"input_ids": ids.tolist(), "labels": ids.tolist()})
    return found


class AveragingTrainer(Trainer):
    """Like AxolotlTrainer 0.19, which does not pass the window's token count to the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False


def make_trainer(folder: Path, data: Any) -> Any:
    """With an accumulation step for each of eight rows."""
    trainer_class, arguments = AveragingTrainer, TrainingArguments
    if HAS_AXOLOTL:
        from axolotl.core.trainers.base import AxolotlTrainer as trainer_class
        from axolotl.core.training_args import AxolotlTrainingArguments as arguments
    from datasets import Dataset

    args, tokenizer = arguments(**settings(folder, 1, 8)), make_tokenizer(VOCAB)
    data = Dataset.from_list(data)
    return trainer_class(model=make_llama(VOCAB), args=args, train_dataset=data, processing_class=tokenizer)


def expected(model: Any, weight: float, data: Any) -> dict[str, Tensor]:
    """Gradients of the mean over batches of one row of CE + weight * NTL over their tokens, in float64."""
    model.double().zero_grad()
    for row in data:
        ids, weights = torch.tensor(row["input_ids"]), row.get("number_weights")
        logits = model(ids[None]).logits[0, :-1]
        options: dict[str, Any] = {"config": NTLConfig(weight=weight), "reduction": "none", "backend": "reference"}
        options["number_weights"] = None if weights is None else torch.tensor(weights[1:])
        (cross_entropy_ntl(logits, ids[1:], NUMBERS, **options).mean() / 8).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("mean_over", "is_weighted"), [("numbers", False), ("tokens", False), ("numbers", True)])
def test_gradients_are_those_of_the_mean_over_tokens(
    mean_over: str, is_weighted: bool, plugin: Any, tmp_path: Path
) -> None:
    """A weight over numbers is converted with the data: over all of it, NTL then has the same weight. Rows of number
    weights need no padding, since Axolotl's collators pad no other column than those they know."""
    data, generator = rows(), torch.Generator().manual_seed(1)
    for row in data if is_weighted else ():
        row["number_weights"] = torch.rand(len(row["labels"]), generator=generator).tolist()
    trainer = make_trainer(tmp_path, data)
    plugin.NTLPlugin().post_trainer_create(keys(plugin, ntl_weight=0.3, ntl_mean_over=mean_over), trainer)
    assert not trainer.model_accepts_loss_kwargs
    pairs = [zip(row["labels"][1:], row.get("number_weights", [1.0] * 12)[1:], strict=False) for row in data]
    targets = [target for row in pairs for target in row]
    ratio = len(targets) / sum(weight for label, weight in targets if 10 <= label < 20)
    assert ratio > 1.5
    truth = expected(make_llama(VOCAB), 0.3 * (ratio if mean_over == "numbers" else 1.0), data)
    assert error(step_of(trainer), truth) < 2e-6


@pytest.mark.parametrize("group_by", ["length", None])
def test_keys_choose_the_number_tokens(group_by: str | None, plugin: Any, tmp_path: Path) -> None:
    trainer, options = (
        make_trainer(tmp_path, rows()),
        {"digits_only": False, "space_prefixed": True, "group_by": group_by},
    )
    trainer.processing_class = make_tokenizer(VOCAB - 2)
    trainer.processing_class.add_tokens(["42", "Ġ43"])
    given = {f"ntl_{name}": value for name, value in options.items()}
    plugin.NTLPlugin().post_trainer_create(keys(plugin, ntl_mean_over="tokens", **given), trainer)
    numbers = NumberTokens.from_tokenizer(trainer.processing_class, VOCAB, **options)
    assert trainer.model._ntl_installed.options.numbers == numbers and len(numbers) == 12


def test_evenly_spaced_rows_of_much_data_are_counted(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "COUNTED_ROWS", 3)
    labels = [[5, 10, 5], [5, 10, 10], [5, -100, 5], [5, 10, 10], [5, 5, 5]]  # of which the first, third and last
    assert plugin.tokens_per_number(NUMBERS, [{"labels": row} for row in labels]) == 5.0


def test_data_that_cannot_be_counted_is_an_error(plugin: Any, tmp_path: Path) -> None:
    streaming = SimpleNamespace()
    with pytest.raises(ValueError, match="set ntl_mean_over: tokens"):
        plugin.tokens_per_number(NUMBERS, streaming)
    trainer = make_trainer(tmp_path, data=[{"input_ids": [5, 6], "labels": [5, 6]}])
    with pytest.raises(ValueError, match="none of 1 labels is a number"):
        plugin.NTLPlugin().post_trainer_create(keys(plugin), trainer)


@pytest.mark.skipif(not HAS_AXOLOTL, reason="needs axolotl, which pins other versions: a job of its own in CI has it")
def test_axolotls_manager_calls_the_plugin(plugin: Any, tmp_path: Path) -> None:
    from axolotl.integrations.base import PluginManager

    trainer, checked = make_trainer(tmp_path, rows()), keys(plugin)
    PluginManager.get_instance().post_trainer_create(checked, trainer)
    assert trainer.model._ntl_installed.options.config.mean_over == "tokens"
