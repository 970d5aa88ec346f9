"""The drop-in classes against the `ntloss` package, and its bugs that they do not share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ntl_kernels import ntloss as ours

from .copies import refused_copies

WORDS = ["a", "b", ".", *"0123456789", "12", "3.5", "-7", "c", "1e2", "+4", ".5"]


@pytest.fixture(scope="module")
def package() -> Any:
    """The package that ours are compared with. Imported here, so that the other tests run without it."""
    import ntloss
    from loguru import logger

    logger.remove()
    return ntloss


def tokenizer_of(words: list[str]) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def twice_mse(yhat: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return 2 * F.mse_loss(yhat, y, reduction=reduction)


def asymmetric(yhat: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    error = yhat - y
    loss = torch.where(error > 0, 3 * error, -error)
    return loss if reduction == "none" else loss.mean()


@dataclasses.dataclass
class ScaledError:
    """A callable that is not hashable and whose gradient is infinite at the truth."""

    factor: float = 2.0

    def __call__(self, yhat: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        loss = self.factor * (yhat - y).abs().sqrt()
        return loss if reduction == "none" else loss.mean()


LOSS_FUNCTIONS = [F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, twice_mse, asymmetric]
LOSS_FUNCTIONS += [ScaledError(), functools.partial(F.huber_loss, delta=0.5)]


def in_one_dtype(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, for the package: it passes float32 values with float64 logits, for which torch's own loss
    functions have no gradient."""
    return lambda yhat, y, reduction="mean": function(yhat, y.to(yhat.dtype), reduction=reduction)


def random_options(rng: random.Random, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {"vocab_size": len(WORDS) + rng.choice([0, 3]), "reweigh": rng.random() < 0.5}
    if name == "NumberLevelLoss":
        return {**options, "float_level": rng.random() < 0.5}
    options["digit_level"] = rng.random() < 0.5
    if name == "NTLoss":
        return {**options, "squash_factor": rng.choice([None, 2.0, 9.0])}
    return {**options, "loss_function": rng.choice(LOSS_FUNCTIONS)}


def random_batch(rng: random.Random, vocab_size: int) -> tuple[Any, ...]:
    """(logits, labels, weights, reduction, ignore_index)"""
    shape = rng.choice([(2, 7), (3, 12), (1, 30)])
    labels = torch.where(torch.rand(shape) < 0.6, torch.randint(2, 13, shape), torch.randint(0, vocab_size, shape))
    ignore_index = rng.choice([-100, 5])
    labels = torch.where(torch.rand(shape) < 0.1, ignore_index, labels)
    weights = rng.choice([None, torch.rand(shape) * (torch.rand(shape) < 0.8)])
    return torch.randn(*shape, vocab_size) * 3, labels, weights, rng.choice(["mean", "sum", "none"]), ignore_index


NAMES = ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"]


def made(name: str, words: list[str] = WORDS, **options: Any) -> Any:
    """One of our losses; "custom" has a loss function that the kernels do not compute."""
    if name == "custom":
        name, options["loss_function"] = "NTLossDotProduct", twice_mse
    return getattr(ours, name)(tokenizer_of(words), **options)


every_loss = pytest.mark.parametrize("name", [*NAMES, "custom"])
every_reduction = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_packages(name: str, dtype: torch.dtype, package: Any) -> None:
    tokenizer = tokenizer_of(WORDS)
    # float64 logits meet the package's own tables in float32
    rtol, gradient_rtol, atol = (1e-4, 1e-3, 1e-5) if dtype == torch.float32 else (1e-6, 1e-6, 1e-7)
    for seed in range(150):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        options = random_options(rng, name)
        theirs, mine = getattr(package, name)(tokenizer, **options), getattr(ours, name)(tokenizer, **options)
        if name == "NTLossDotProduct" and dtype == torch.float64:
            theirs.loss_function = in_one_dtype(theirs.loss_function)
        logits, *rest = random_batch(rng, options["vocab_size"])
        logits = logits.to(dtype)
        inputs = [logits.clone().requires_grad_() for _ in range(2)]
        want, got = theirs(inputs[0], *rest), mine(inputs[1], *rest)
        scale = max(1.0, want.abs().max().item())
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol * scale)
        upstream = torch.rand_like(want)
        (got_gradient,) = torch.autograd.grad(got, inputs[1], upstream)
        want_gradient = torch.zeros_like(logits)
        if want.requires_grad:
            (want_gradient,) = torch.autograd.grad(want, inputs[0], upstream)
        scale = max(1.0, want_gradient.abs().max().item())
        torch.testing.assert_close(got_gradient, want_gradient, rtol=gradient_rtol, atol=atol * scale)


@pytest.mark.parametrize("digit_level", [True, False])
def test_attributes_are_the_packages(digit_level: bool, package: Any) -> None:
    tokenizer = tokenizer_of(WORDS)
    names = ["vocab_size", "digit_level", "reweigh", "nan_id", "max_dist", "number_values", "is_number_token"]
    names += ["number_values_dense", "number_token_ids", "tokenizer"]
    more = {
        "NTLoss": ["squash_factor", "dist_lookup", "vocab_to_dist_idx"],
        "NTLossDotProduct": ["loss_function"],
        "NumberLevelLoss": ["powers_of_10", "dot", "max_number_length", "float_level"],
    }
    for name, own in more.items():
        options = {} if name == "NumberLevelLoss" else {"digit_level": digit_level}
        theirs, mine = (getattr(module, name)(tokenizer, 25, **options) for module in (package, ours))
        for attribute in [*names, *own]:
            want, got = getattr(theirs, attribute), getattr(mine, attribute)
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want, equal_nan=True)
            else:
                assert got == want, attribute


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_of_the_package_is_there(name: str, package: Any) -> None:
    tokenizer = tokenizer_of(WORDS)
    theirs, mine = (getattr(module, name)(tokenizer) for module in (package, ours))
    public = [attribute for attribute in dir(theirs) if not attribute.startswith("_")]
    assert set(public) <= set(dir(mine))
    for attribute in public:
        if inspect.ismethod(getattr(theirs, attribute)):
            want, got = (list(inspect.signature(getattr(x, attribute)).parameters) for x in (theirs, mine))
            assert got == want, attribute
    want, got = (list(inspect.signature(type(x)).parameters.values()) for x in (theirs, mine))
    assert [(p.name, p.default) for p in got] == [(p.name, p.default) for p in want]


@pytest.mark.parametrize("name", NAMES)
def test_helpers_are_the_packages(name: str, package: Any) -> None:
    tokenizer, logits = tokenizer_of(WORDS), torch.randn(2, 5, len(WORDS))
    positions, losses = torch.rand(2, 5) < 0.5, torch.rand(10)
    theirs, mine = getattr(package, name)(tokenizer), made(name)
    arguments = logits, losses[: positions.sum()], positions
    torch.testing.assert_close(mine.reweigh_fn(*arguments), theirs.reweigh_fn(logits, arguments[1].clone(), positions))
    if name != "NTLoss":
        torch.testing.assert_close(mine.predict_numbers(logits), tuple(theirs.predict_numbers(logits)))


@pytest.mark.parametrize("float_level", [False, True])
def test_converted_digits_are_the_packages(float_level: bool, package: Any) -> None:
    tokenizer = tokenizer_of(WORDS)
    losses = [module.NumberLevelLoss(tokenizer, float_level=float_level) for module in (package, ours)]
    labels = torch.where(torch.rand(40, 12) < 0.6, torch.randint(2, 13, (40, 12)), 0)
    y, yhat = losses[1].number_values[labels], torch.rand(40, 12) * 9
    want, got = (loss.convert_digits_to_numbers(y.clone(), yhat.clone(), ~y.isnan(), labels) for loss in losses)
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_reweighing_is_the_default_and_can_be_switched(name: str, package: Any) -> None:
    """As in the package, but unlike in `NTLConfig`."""
    tokenizer, logits, labels = tokenizer_of(WORDS), torch.randn(1, 4, len(WORDS)), torch.tensor([[4, 5, 0, 9]])
    loss = made(name)
    default = loss(logits, labels)
    loss.reweigh = False
    plain = loss(logits, labels)
    torch.testing.assert_close(plain, getattr(package, name)(tokenizer, reweigh=False)(logits, labels))
    assert default == made(name, reweigh=True)(logits, labels) > plain


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_is_not_changed(name: str) -> None:
    """The package adds missing digits."""
    tokenizer = tokenizer_of(["a", "b", "0", "1", "2", "."])
    before = tokenizer.backend_tokenizer.to_str()
    assert getattr(ours, name)(tokenizer).number_values_dense.tolist() == [0.0, 1.0, 2.0]
    assert tokenizer.backend_tokenizer.to_str() == before and len(tokenizer) == 6


def test_only_ascii_decimals_are_numbers() -> None:
    """The package counts everything that Python's float() accepts: "1_0" as 10, "٣" as 3."""
    words = ["a", "1_0", "٣", "²", "inf", "nan", "1e999", "1e39", "4", "4.5", "-2", " 6", "7\n", "٣ ", "4 5"]
    want = [4.0, 4.5, -2.0, 6.0, 7.0]
    assert ours.NTLoss(tokenizer_of(words), digit_level=False).number_values_dense.tolist() == want


@every_loss
@pytest.mark.parametrize("label", [-1, 20, 999])
def test_labels_out_of_range_raise(name: str, label: int) -> None:
    """In the package, -1 is the last token."""
    with pytest.raises(IndexError, match=str(label)):
        made(name)(torch.randn(1, 2, len(WORDS)), torch.tensor([[label, 3]]))


@pytest.mark.parametrize("name", ["custom", "NumberLevelLoss"])
@pytest.mark.parametrize("label", [-1, 999])
def test_labels_out_of_range_are_nan_where_nothing_checks(
    name: str, label: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where checking would wait for it."""
    monkeypatch.setattr(ours, "check_label_values", lambda *_: None)
    loss, logits = made(name), torch.randn(1, 3, len(WORDS))
    losses = loss(logits, torch.tensor([[4, label, 5]]), reduction="none")
    assert losses.isnan().tolist() == [[False, True, False]]
    torch.testing.assert_close(losses[:, ::2], loss(logits, torch.tensor([[4, 0, 5]]), reduction="none")[:, ::2])
    assert loss(logits, torch.tensor([[4, label, 5]])).isnan()


@every_loss
@every_reduction
@pytest.mark.parametrize("labels", [[[0, 1]], [[-100, -100]]])
def test_batches_without_numbers_have_a_graph(name: str, reduction: str, labels: list[list[int]]) -> None:
    """The package returns a constant, whose backward raises."""
    logits = torch.randn(1, 2, len(WORDS), requires_grad=True)
    result = made(name)(logits, torch.tensor(labels), reduction=reduction)
    result.sum().backward()
    assert (result == 0).all() and logits.grad is not None and (logits.grad == 0).all()


@every_loss
def test_bfloat16_is_summed_in_float32(name: str) -> None:
    """A mean over 1003 equal losses: in bfloat16 the package divides by 1004."""
    logits = torch.zeros(1, 1003 * 2, len(WORDS), dtype=torch.bfloat16)
    labels = torch.tensor([[3, 0] * 1003])  # the digit 0, then a word that ends the number
    result, one = made(name)(logits, labels), made(name)(logits[:, :1].float(), labels[:, :1])
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, one, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("zeros", "dtype"), [(0, torch.float32), (31, torch.float32), (100, torch.float32), (400, torch.float64)]
)
def test_leading_zeros_hide_nothing(zeros: int, dtype: torch.dtype) -> None:
    """0...021 for 0...012, with no probability, however small, on any other digit."""
    hot = F.one_hot(torch.tensor([[0] * zeros + [2, 1]]) + 3, len(WORDS)).to(dtype)
    result = made("NumberLevelLoss", reweigh=False)(hot * 2e4 - 1e4, torch.tensor([[3] * zeros + [4, 5]]))
    assert result.item() == pytest.approx(9 / 33, rel=1e-6 if dtype == torch.float32 else 1e-8)


def number_level_losses(words: str, expected_digits: list[float]) -> dict[int, float]:
    """{place of a number's first digit: its loss}, in exact arithmetic, of one character per position."""
    losses = {}
    for match in re.finditer(r"[0-9]+(\.[0-9]+)*", words):
        places = [place for place in range(*match.span()) if words[place] != "."]
        y, yhat = Fraction(0), Fraction(0)
        for place in places:
            y, yhat = 10 * y + int(words[place]), 10 * yhat + Fraction(expected_digits[place])
        losses[places[0]] = float(abs(yhat - y) / (yhat + y + Fraction(torch.finfo(torch.float32).eps)))
    return losses


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_number_level_loss_is_that_of_exact_arithmetic(dtype: torch.dtype) -> None:
    """The package gives NaN in float16 at six digits, and clamps the exponents of more than 20."""
    rng, loss = random.Random(0), made("NumberLevelLoss", float_level=True, reweigh=False)
    for _ in range(60):
        numbers = ["a", ".", "..", "0" * rng.randint(1, 100), str(rng.getrandbits(90)), str(rng.getrandbits(300))]
        text = "".join(rng.choice(numbers) for _ in "abcd")
        labels = torch.tensor([[WORDS.index(character) for character in text]])
        logits = (torch.randn(1, len(text), len(WORDS)) * 10).to(dtype)
        predicted = torch.rand(1, len(text)) < 0.8  # mostly correct, and confident
        logits = torch.where(predicted[..., None], F.one_hot(labels, len(WORDS)) * 2e4 - 1e4, logits).to(dtype)
        logits.requires_grad_()
        losses = loss(logits, labels, reduction="none")
        losses.sum().backward()
        assert logits.grad is not None and logits.grad.isfinite().all() and losses.max() <= 1
        want = torch.zeros(len(text), dtype=torch.float64)
        expected_digits = loss.predict_numbers(logits.detach())[0][0].tolist()
        for place, value in number_level_losses(text, expected_digits).items():
            want[place] = value
        rtol, atol = (1e-12, 1e-12) if dtype == torch.float64 else (1e-5, 1e-7)
        torch.testing.assert_close(losses[0].detach().double(), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_number_level_gradcheck(reduction: str) -> None:
    loss = made("NumberLevelLoss", float_level=True)
    labels = torch.tensor([[4, 2, 5, 0, 3, 3, 7, 2], [2, 9, 9, 2, 2, 9, -100, 8]])
    logits, weights = torch.randn(2, 8, len(WORDS), dtype=torch.float64, requires_grad=True), torch.rand(2, 8)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, weights, reduction), logits)


def test_only_a_point_joins_digits() -> None:
    """Without a "." among its tokens, the package mistakes the unknown token for it, and an ignored "." still joins."""
    tokenizer = tokenizer_of(["a", *"0123456789"])
    tokenizer.unk_token = "a"
    without = ours.NumberLevelLoss(tokenizer, float_level=True)
    assert without.dot == -1
    for loss, labels, ignored in (
        (without, [2, 0, 5], -1),
        (without, [2, -1, 5], -1),
        (made("NumberLevelLoss", float_level=True), [4, 2, 5], 2),
    ):
        logits = torch.zeros(1, 3, loss.vocab_size)
        losses = loss(logits, torch.tensor([labels]), reduction="none", ignore_index=ignored)
        assert losses[0, 0] > 0 and losses[0, 2] > 0


@pytest.mark.parametrize("reweigh", [True, False])
@every_loss
def test_rows_without_number_logits_have_no_loss(name: str, reweigh: bool) -> None:
    """A word and a number. The package's gradient is NaN where a row has -inf for every number."""
    loss = made(name, reweigh=reweigh)
    logits = torch.randn(1, 4, len(WORDS))
    logits[0, 2:, loss.numbers.ids] = -torch.inf
    logits.requires_grad_()
    losses = loss(logits, torch.tensor([[4, 5, 0, 6]]), reduction="none")
    losses.sum().backward()
    assert losses.isfinite().all() and losses[0, 0] > 0 and not losses[0, 2:].any()
    assert logits.grad is not None and logits.grad[0, 0].any() and not logits.grad[0, 2:].any()


@every_loss
def test_rows_with_hardly_any_probability_on_numbers_have_the_largest_loss(name: str) -> None:
    """So little that float32 rounds it to 0, which differs from none."""
    loss, logits = made(name), torch.zeros(1, 1, len(WORDS))
    logits[0, 0, 0] = 500.0
    torch.testing.assert_close(loss(logits, torch.tensor([[4]])), 1.01 * loss.max_dist)


@every_reduction
@every_loss
def test_nothing_is_read_from_a_device_or_copied_there(name: str, reduction: str) -> None:
    """The device "meta" has no values: reading one raises. The package reads several."""
    loss = made(name)
    loss.numbers.to("meta")
    logits = torch.empty(2, 9, len(WORDS), device="meta", dtype=torch.bfloat16, requires_grad=True)
    labels, weights = torch.empty(2, 9, device="meta", dtype=torch.long), torch.empty(2, 9, device="meta")
    with refused_copies():
        loss(logits, labels, weights, reduction).sum().backward()
    assert logits.grad is not None and logits.grad.device.type == "meta"


@pytest.mark.gpu
@every_loss
def test_nothing_waits_for_this_gpu(name: str) -> None:
    loss = made(name)
    x, labels = torch.randn(2, 9, len(WORDS)), torch.randint(0, len(WORDS), (2, 9))
    on_gpu, there = x.cuda().requires_grad_(), labels.cuda()
    loss(on_gpu, there).backward()  # compiles the kernels and copies the tables
    on_gpu.grad = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = loss(on_gpu, there)
        got.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x.requires_grad_()
    want = loss(x, labels)
    want.backward()
    torch.testing.assert_close((got.cpu(), on_gpu.grad.cpu()), (want, x.grad), rtol=1e-4, atol=1e-5)


def test_an_infinite_cross_entropy_does_not_matter(package: Any) -> None:
    """A label whose own logit is -inf costs infinitely much cross-entropy, and a finite Number Token Loss."""
    logits = torch.zeros(1, 1, len(WORDS))
    logits[0, 0, 3] = -torch.inf
    got = ours.NTLoss(tokenizer_of(WORDS))(logits, torch.tensor([[3]]))
    torch.testing.assert_close(got, package.NTLoss(tokenizer_of(WORDS))(logits, torch.tensor([[3]])))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.randn(2, 20), torch.ones(2).long()), ValueError, r"\[B, T, V\].*\(2, 20\)"),
        ((torch.randn(1, 0, 20), torch.ones(1, 0).long()), ValueError, "not empty"),
        ((torch.ones(1, 2, 20).long(), torch.ones(1, 2).long()), TypeError, "logits must be.*int64"),
        ((torch.randn(1, 2, 21), torch.ones(1, 2).long()), ValueError, "vocab_size=20.*21"),
        ((torch.randn(1, 2, 20), torch.ones(1, 2)), TypeError, "labels.*float32"),
        ((torch.randn(1, 2, 20), torch.ones(1, 3).long()), ValueError, r"labels.*\(1, 2\).*\(1, 3\)"),
        ((torch.randn(1, 2, 20), torch.ones(1, 2).long(), torch.ones(1, 3)), ValueError, "loss_weights"),
        *[
            (
                (torch.randn(1, 2, 20), torch.ones(1, 2).long(), torch.tensor([[1.0, w]])),
                ValueError,
                f"loss_weights must not be negative, infinite or NaN.*; got {w}",
            )
            for w in (-1.0, torch.inf, torch.nan)
        ],
        ((torch.randn(1, 2, 20), torch.ones(1, 2).long(), None, "avg"), ValueError, "reduction.*avg"),
    ],
)
@every_loss
def test_bad_input_is_named(name: str, arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(name)(*arguments)


@every_loss
@every_reduction
def test_an_ignore_index_is_no_other_label(name: str, reduction: str) -> None:
    """One that int32 does not hold would wrap around to a label there."""
    loss, logits, labels = made(name), torch.randn(1, 6, len(WORDS)), torch.tensor([[4, 3, 0, 7, 2, 4]])
    for ignore_index in (4, 2**31, 2**32, 2**32 + 4, -(2**32) + 7, 2**53 + 1, 2**63 - 1, -(2**63)):
        given = labels.masked_fill(labels == ignore_index, -100)
        expected = loss(logits, given, reduction=reduction)
        for dtype in (torch.int32, torch.int64):
            got = loss(logits, labels.to(dtype), reduction=reduction, ignore_index=ignore_index)
            torch.testing.assert_close(got, expected)
    for ignore_index, error in ((2**70, ValueError), (-(2**63) - 1, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="ignore_index must"):
            loss(logits, labels, ignore_index=ignore_index)


@pytest.mark.parametrize("name", ["NTLoss", "NTLossDotProduct"])
def test_numbers_that_no_loss_holds_are_left_out_and_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also those whose differences alone are beyond float32."""
    words = ["a", "1" * 40, "3", "-9e37", "9e37", "1" + "0" * 38, "4.5", "-8e37", "1e999"]
    with caplog.at_level("WARNING"):
        loss = made(name, words, digit_level=False, **({} if name == "NTLoss" else {"loss_function": F.l1_loss}))
    assert loss.number_values_dense.tolist() == [3.0, 4.5, pytest.approx(-8e37)]
    assert "skipped 5 number tokens whose values are too large for float32" in caplog.text
    assert loss(torch.randn(1, 2, len(words)), torch.tensor([[2, 7]])).isfinite()


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["a", "b"], {}, "no number token"),
        (["0", "1", "2"], {}, "must not be a number"),
        (WORDS, {"vocab_size": 8}, r"\[0, 8\)"),
        (WORDS, {"squash_factor": 1.0}, "squash_factor"),
    ],
)
def test_bad_vocabularies_are_named(words: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made("NTLoss", words, **options)
