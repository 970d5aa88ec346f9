"""The paper's models: fixed embeddings of RT, the loss and the answers of xVal; the Gaussian target."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.commands import InputError
from benchmarks.quality.codec import make_codec
from benchmarks.quality.configuration import configure
from benchmarks.quality.data import Pair
from benchmarks.quality.losses import check_loss, ntl_config
from benchmarks.quality.models import add_number_embeddings, make_model, scaled, unscaled
from benchmarks.quality.tasks import value_batch
from ntl_kernels import NumberTokens, cross_entropy_ntl

TEXTS = ["What is 12 + 34.5?", "-7"] * 5
PAIRS = [Pair("3 of 40.5?", "x = -12"), Pair("none", "1, 2 and 30"), Pair("7", "no")]


def model_of(name: str, *options: str) -> tuple[Any, Any]:
    config = configure([f"model={name}", "model.size=test", *options]).model
    codec = make_codec(config.codec, TEXTS, 300, config.checkpoint)
    return make_model(config, codec, 1), codec


def log_scaled(value: float) -> float:
    """As the paper's code scales a value."""
    return math.copysign(math.log10(abs(value) + 1) / (math.log10(3_000_000_000) / 10), value)


@pytest.mark.parametrize("options", [[], ["model.architecture=llama"]])
def test_fixed_embeddings_are_added_to_learned_ones(options: list[str]) -> None:
    model, codec = model_of("rt", *options)
    names = list(model.state_dict())
    ids = torch.tensor([codec.encode("of 40.5, 987")])
    read = [module for name, module in model.named_modules() if name.endswith("embed_tokens")]
    learned = [module(ids) for module in read]
    add_number_embeddings(model, codec)
    assert list(model.state_dict()) == names and len(read) == (1 if options else 2)
    fixed = torch.zeros_like(learned[0])
    for column, token in enumerate(ids[0].tolist()):
        digit, power = codec.places.get(token, ("0", 0))
        for i in range(0, fixed.shape[-1], 2):
            fixed[0, column, i] = log_scaled(int(digit) * 10.0**power / (i + 1))
            fixed[0, column, i + 1] = -fixed[0, column, i]
    assert fixed.max() > 2
    for module, alone in zip(read, learned, strict=True):
        torch.testing.assert_close(module(ids), alone + fixed, rtol=0, atol=2e-6)


@pytest.fixture
def xval() -> tuple[Any, Any]:
    model, codec = model_of("xval")
    model.config.num_token_id = codec.num
    return model.eval(), codec


def test_values_are_scaled_and_back() -> None:
    values = torch.tensor([0.0, 1.0, -12.5, 3e9])
    torch.testing.assert_close(scaled(values), torch.tensor([log_scaled(value) for value in values.tolist()]))
    torch.testing.assert_close(unscaled(scaled(values.double())), values.double())


def test_xvals_loss_is_that_of_a_loop(xval: Any) -> None:
    """Row by row and token by token, from the decoder's outputs for the beginning of each answer."""
    model, codec = xval
    batch = value_batch(codec, PAIRS)
    outputs = model(**batch)
    losses, errors = [], []
    for pair in PAIRS:
        question, answer = codec.encode(pair.question), [*codec.encode(pair.answer), codec.eos]
        values = [*codec.values(pair.answer), 1.0]
        mask, inputs = torch.ones(1, len(question)), torch.tensor([codec.values(pair.question)])
        encoded = model.encode(torch.tensor([question]), mask, inputs)
        for place, token in enumerate(answer):
            begun, known = [codec.pad, *answer[:place]], [1.0, *values[:place]]
            logits, predicted = model.decode(encoded, mask, torch.tensor([begun]), torch.tensor([known]))
            losses.append(cross_entropy(logits[0, -1], torch.tensor(token)).item())
            if token == codec.num:
                errors.append((predicted[0, -1].item() - log_scaled(values[place])) ** 2)
    assert len(errors) == 4
    expected = (sum(losses) / len(losses) + sum(errors) / len(errors)) / 2
    assert outputs["loss"].item() == pytest.approx(expected, rel=1e-4)
    assert (outputs["cross_entropy"].sum() / outputs["tokens"].sum()).item() == pytest.approx(
        sum(losses) / len(losses), rel=1e-4
    )
    none = model(**value_batch(codec, PAIRS[2:]))["loss"]
    none.backward()
    assert none.isfinite() and not model.head[0].weight.grad.any()


def test_xval_reads_the_values_that_it_predicts(xval: Any) -> None:
    """Greedy answers, each token and value from the whole beginning; a batch does not change them."""
    model, codec = xval
    inputs = {name: tensor for name, tensor in value_batch(codec, PAIRS).items() if not name.startswith("label")}
    ids, values = model.answer(6, **inputs)
    first = {name: tensor[:1, : len(codec.encode(PAIRS[0].question))] for name, tensor in inputs.items()}
    alone, own = model.answer(6, **first)
    assert alone[0].tolist() == ids[0].tolist()
    torch.testing.assert_close(own[0], values[0], rtol=1e-4, atol=1e-4)
    encoded = model.encode(**inputs)
    begun = torch.cat([torch.full((3, 1), codec.pad), ids[:, :-1]], 1), torch.cat([torch.ones(3, 1), values[:, :-1]], 1)
    logits, predicted = model.decode(encoded, inputs["attention_mask"], *begun)
    assert torch.equal(logits.argmax(-1), ids)
    torch.testing.assert_close(unscaled(predicted), values, rtol=1e-4, atol=1e-4)


def test_a_gaussian_target_is_cross_entropy_with_those_probabilities() -> None:
    torch.manual_seed(0)
    numbers = NumberTokens.from_mapping({3: 0, 5: 1, 4: 2.5, 9: 2.5}, 12)
    logits = torch.randn(2, 4, 12, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[3, 4, 0, -100], [5, 9, 11, -100]])
    config = ntl_config({"name": "ce_gaussian", "sigma": 0.8})
    found = cross_entropy_ntl(logits, labels, numbers, config=config)
    with pytest.raises(InputError, match="sigma, a number above 0"):  # a comparison asks before its first run
        check_loss({"name": "ce_gaussian", "sigma": -1})
    targets = torch.zeros(2, 4, 12, dtype=torch.float64)
    values = {3: 0.0, 5: 1.0, 4: 2.5, 9: 2.5}
    for place in [(row, column) for row in range(2) for column in range(4) if labels[row, column] >= 0]:
        label = labels[place].item()
        weights = {label: 1.0}
        if label in values:
            weights = {k: math.exp(-((v - values[label]) ** 2) / (2 * 0.8**2)) for k, v in values.items()}
        for k, weight in weights.items():
            targets[(*place, k)] = weight / sum(weights.values())
    valid = labels >= 0
    expected = cross_entropy(logits[valid], targets[valid])
    entropy = -torch.xlogy(targets, targets).sum() / valid.sum()
    torch.testing.assert_close(found, expected - entropy, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["xval", "regression_head"])
def test_a_checkpoint_from_elsewhere_gets_a_new_head(name: str, tmp_path: Path) -> None:
    """Everything else is loaded; a checkpoint that lacks more than the head is refused."""
    base, codec = model_of("t5")
    for folder in ("t5", "encoder"):
        codec.tokenizer.save_pretrained(tmp_path / folder)
    del base.config.codec
    base.save_pretrained(tmp_path / "t5")
    model, _ = model_of(name, f"model.checkpoint={tmp_path}/t5")
    loaded = model.state_dict()
    shared = {key: weight for key, weight in base.state_dict().items() if key in loaded}
    assert len(shared) > 9 and all(torch.equal(loaded[key][: len(weight)], weight) for key, weight in shared.items())
    head = [weight for key, weight in loaded.items() if key.startswith("head.")]
    assert head and all(0 < weight.abs().max() <= 0.5 for weight in head)
    model_of("regression_head")[0].save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="has no weights decoder.*which a T5ForConditionalGeneration needs"):
        model_of("t5_ntl", f"model.checkpoint={tmp_path}/encoder")
