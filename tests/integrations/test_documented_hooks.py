"""The code of the page Frameworks for Megatron-Core, torchtitan, LLaMA-Factory and ms-swift, taken from the page.

All but LLaMA-Factory are in a job of CI (see `tests/stand_ins.py`); the page itself runs with stand-ins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.integrations.transformers import apply_ntl_to_model
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl

from ..docs.pages import blocks_of
from ..parallel.ranks import Ranks
from ..stand_ins import is_installed, standing_in
from .loops import NUMBERS, SPLITS, VOCAB, Model, all_rows, assert_equal_to_one_batch, error, grads_of, split
from .training import arguments, counts_targets, make_llama, make_tokenizer, step_of

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "frameworks.md"
CONFIG = NTLConfig(weight=0.3, mean_over="tokens")


def documented(statement: str, **names: Any) -> Any:
    """The function or class whose definition on the page begins with this, from a block cut where its use begins."""
    (code,) = (block.code for block in blocks_of(PAGE) if statement in block.code)
    namespace: dict[str, Any] = {"__name__": "__main__", "torch": torch, "NTLConfig": NTLConfig, **names}
    lines = code.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(statement))
    uses = [number for number, line in enumerate(lines) if number > first and line and not line.startswith(" ")]
    exec(compile("\n".join(lines[: uses[0] if uses else None]), str(PAGE), "exec", dont_inherit=True), namespace)
    return namespace[statement.split()[1].partition("(")[0]]


def per_token_losses() -> Any:
    names = {"vocab_parallel_cross_entropy_ntl": vocab_parallel_cross_entropy_ntl, "numbers": NUMBERS}
    return documented("def compute_language_model_loss(", over_tokens=CONFIG, **names)


def megatron_step(group: Any) -> tuple[float, Tensor]:
    """The mean over a mask, and the gradient of this rank's columns."""
    model, (ids, labels) = Model(), all_rows()
    logits = model(ids).detach()
    shard = logits.chunk(2, -1)[dist.get_rank()].transpose(0, 1).contiguous().requires_grad_()
    module = SimpleNamespace(pg_collection=SimpleNamespace(tp=group))
    losses, mask = per_token_losses()(module, labels.clamp(min=0), shard), (labels != -100).float()
    loss = (losses * mask).sum() / mask.sum()
    loss.backward()
    assert shard.grad is not None
    return loss.item(), shard.grad


@pytest.mark.slow
def test_megatrons_hook_has_the_mean_over_the_mask_with_two_shards(two_ranks: Ranks) -> None:
    ids, labels = all_rows()
    logits = Model()(ids).detach().requires_grad_()
    loss = cross_entropy_ntl(logits, labels, NUMBERS, config=CONFIG)
    loss.backward()
    results = two_ranks.run(megatron_step, ranks=2)
    assert [value for value, _ in results] == pytest.approx([loss.item()] * 2, rel=1e-6)
    assert logits.grad is not None
    together = torch.cat([grad for _, grad in results], -1).transpose(0, 1)
    assert error({"logits": together}, {"logits": logits.grad.double()}) < 1e-6


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A tiny GPTModel of Megatron-Core on a CPU."""
    if not is_installed("megatron"):
        pytest.skip("needs megatron-core: a job of its own in CI has it")
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import TransformerConfig

    monkeypatch.setattr(CudaRNGStatesTracker, "fork", lambda self, name=None: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    sizes = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    options = {"use_cpu_initialization": True, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    config = TransformerConfig(**sizes, **options, calculate_per_token_loss=True)
    yield GPTModel(config, get_gpt_layer_local_spec(), vocab_size=VOCAB, max_sequence_length=16)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def loss_func(mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Like that of Megatron-LM's pretrain_gpt.py: the sum over the mask, and the count."""
    total = (losses.flatten() * mask.flatten()).sum()
    return total, mask.sum().int(), {"lm loss": total.detach()}


@pytest.mark.parametrize("seed", SPLITS)
def test_megatrons_micro_batches_are_one_batch(megatron: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedule's step for each micro-batch, and finalize_model_grads' division by all tokens."""
    from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss

    def forward(ids: Tensor, **labelled: Tensor) -> Any:
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        later = torch.ones(len(ids), 1, ids.shape[1], ids.shape[1]).triu(1).bool()
        return megatron(ids, positions, later, **labelled)

    ids, labels = all_rows()
    cross_entropy_ntl(forward(ids), labels, NUMBERS, config=CONFIG).backward()
    reference = {name: grad.double() for name, grad in grads_of(megatron).items()}
    megatron.zero_grad()
    monkeypatch.setattr(type(megatron), "compute_language_model_loss", per_token_losses())
    count = torch.tensor(0)
    for ids, labels in split(seed, 1, 4)[0]:
        losses, mask = forward(ids, labels=labels.clamp(min=0)), (labels != -100).float()
        function = partial(loss_func, mask)
        loss, tokens = forward_step_calc_loss(megatron, losses, function, megatron.config, None, False, 4, [], 1, True)
        loss.backward()
        count += tokens
    assert error({name: grad / count for name, grad in grads_of(megatron).items()}, reference) < 2e-6


@pytest.mark.parametrize("seed", SPLITS)
def test_torchtitans_micro_batches_are_one_batch(seed: int) -> None:
    """With torchtitan's BaseLoss where it is installed, else its stand-in."""
    with standing_in():
        names = {"numbers": NUMBERS, "cross_entropy_ntl": cross_entropy_ntl}
        loss_fn = documented("class NTLLoss(", **names).Config(weight=0.3).build()
    model, tokens = Model(), (all_rows()[1] != -100).sum()
    for ids, labels in split(seed, 1, 4)[0]:
        loss, metrics = loss_fn(model(ids), labels, tokens)
        assert metrics == {}
        loss.backward()
    assert_equal_to_one_batch([grads_of(model)], "tokens")


@counts_targets
def test_a_callback_at_the_end_of_init_patches_the_model(tmp_path: Path) -> None:
    """LLaMA-Factory's hook, with the stock Trainer from which its Trainers are derived."""
    from transformers import TrainerCallback

    names = {"NumberTokens": NumberTokens, "apply_ntl_to_model": apply_ntl_to_model, "over_tokens": CONFIG}
    callback = documented("class NTLCallback(", TrainerCallback=TrainerCallback, **names)()
    (ids, labels), args = all_rows(), arguments(tmp_path, 2, 6)
    given = {"processing_class": make_tokenizer(VOCAB), "callbacks": [callback]}
    rows = [{"input_ids": row, "labels": row_labels} for row, row_labels in zip(ids, labels, strict=True)]
    grads = step_of(Trainer(make_llama(VOCAB), args, train_dataset=rows, **given))
    whole = make_llama(VOCAB).double()
    cross_entropy_ntl(whole(ids).logits[:, :-1], labels[:, 1:], NUMBERS, config=CONFIG, backend="reference").backward()
    assert error(grads, grads_of(whole)) < 2e-6


@pytest.mark.parametrize("seed", SPLITS)
def test_ms_swifts_micro_batches_are_one_batch(seed: int) -> None:
    """With ms-swift's BaseLoss where it is installed, else its stand-in. A loss_scale of 0 leaves labels out."""
    with standing_in():
        names = {"NumberTokens": NumberTokens, "cross_entropy_ntl": cross_entropy_ntl}
        loss_class = documented("class SwiftNTLLoss(", **names)
    loss_fn = loss_class(None, SimpleNamespace(template=SimpleNamespace(tokenizer=make_tokenizer(VOCAB))))
    loss_fn.config, model, tokens = CONFIG, Model(), (all_rows()[1] != -100).sum()
    for ids, labels in split(seed, 1, 4)[0]:
        outputs, scale = SimpleNamespace(logits=model(F.pad(ids, (0, 1)))), F.pad((labels != -100).float(), (0, 1))
        unshifted = F.pad(labels.masked_fill(labels == -100, 15), (1, 0), value=-100)
        loss_fn(outputs, unshifted, num_items_in_batch=tokens, loss_scale=scale.flatten()).backward()
    assert_equal_to_one_batch([grads_of(model)], "tokens")


SWIFT = """--model model --model_type llama --template dummy --torch_dtype float32 --check_model false --tuner_type full
--dataset rows.jsonl --external_plugins plugin.py --loss_type ntl --per_device_train_batch_size 2
--gradient_accumulation_steps 4 --max_steps 1 --max_grad_norm 0 --save_strategy no --report_to none --output_dir runs"""


def test_ms_swift_trains_with_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`swift sft` with the page's file: four micro-batches of rows of unequal lengths have one batch's gradient."""
    if not is_installed("swift"):
        pytest.skip("needs ms-swift: a job of its own in CI has it")
    from swift.pipelines import SwiftSft

    monkeypatch.chdir(tmp_path)
    (plugin,) = (block.code for block in blocks_of(PAGE) if "loss_map" in block.code)
    tokenizer, whole, grads = make_tokenizer(VOCAB), make_llama(VOCAB).double(), {}
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.eos_token = "w1"
    for saved in (tokenizer, make_llama(VOCAB)):
        saved.save_pretrained("model")
    talks = [{"query": "w5 " * (1 + row), "response": f"{row} w6 4" + " w7" * (row % 3)} for row in range(8)]
    Path("plugin.py").write_text(plugin)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, talks)))
    swift = SwiftSft(SWIFT.split())
    hook = register_optimizer_step_pre_hook(lambda *_: grads.update(grads_of(swift.model)))
    swift.main()
    hook.remove()
    tokens, total = 0, torch.zeros((), dtype=torch.float64)
    for query, response in map(dict.values, talks):
        asked, said = tokenizer(query).input_ids, tokenizer(f"{response} w1").input_ids
        logits, labels = whole(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1], torch.tensor(said)
        total += cross_entropy_ntl(
            logits, labels, NUMBERS, config=NTLConfig(weight=1.2), reduction="sum", backend="reference"
        )
        tokens += len(said)
    (total / tokens).backward()
    assert error(grads, grads_of(whole)) < 2e-6
