"""The classes of the `ntloss` package, and the family "step": a complete training step of a small Llama, with its loss
computed in different ways."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NumberTokens, cross_entropy_ntl

from .workloads import DOT, IGNORED, NTL_WEIGHT, Case, Outcome, Step

ModelLoss = Callable[[Any, Tensor, Tensor], Tensor]
"""The loss of a model, input ids [B, T] and unshifted labels [B, T]."""
LAYERS, HEADS = 2, 4
SEQUENCE = 256
RATE = 1e-4


def package_tokenizer(numbers: NumberTokens) -> Any:
    """A word-level tokenizer with exactly these number tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    values = {int(token): f"{value:.0f}" for token, value in zip(numbers.ids, numbers.values, strict=True)}
    words = {values.get(token, "." if token == DOT else f"w{token}"): token for token in range(numbers.vocab_size)}
    unknown = next(word for word, token in words.items() if token not in values)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token=unknown)), unk_token=unknown)


def class_loss(module: str, name: str, case: Case, reweigh: bool) -> Callable[..., Tensor]:
    """A loss class of the package, or of a module with the same class names, for the case's number tokens.

    ``reweigh`` must be False when added to cross-entropy: our own losses do not reweigh, the classes do by default.
    """
    options = {} if name == "NumberLevelLoss" else {"digit_level": len(case.numbers) == 10}
    loss = getattr(import_module(module), name)
    return loss(package_tokenizer(case.numbers), vocab_size=case.workload.vocab, reweigh=reweigh, **options)


def make_model(case: Case) -> Any:
    """A Llama with random weights that depend only on the workload."""
    from transformers import LlamaConfig, LlamaForCausalLM

    workload = case.workload
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=workload.vocab,
        hidden_size=workload.hidden,
        intermediate_size=2 * workload.hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=SEQUENCE,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(case.device, getattr(torch, workload.dtype)).train()


def batch_of(case: Case) -> tuple[Tensor, Tensor]:
    """Input ids and labels [B, T]: a row of the workload per position."""
    labels = case.sets[0].labels
    labels = labels.view(-1, min(SEQUENCE, labels.numel()))
    return labels.clamp_min(0), labels


def shifted(labels: Tensor) -> Tensor:
    """Labels shifted by one: each position predicts the next token; the last has no label."""
    return F.pad(labels, (0, 1), value=IGNORED)[:, 1:]


def stock_loss(case: Case) -> ModelLoss:
    return lambda model, ids, labels: model(input_ids=ids, labels=labels).loss


def ntloss_loss(case: Case) -> ModelLoss:
    """The model's own loss plus that of the package, added as in the `compute_loss` of its README."""
    ntl = class_loss("ntloss", "NTLoss", case, reweigh=False)

    def loss_of(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
        outputs = model(input_ids=ids, labels=labels)
        return outputs.loss + NTL_WEIGHT * ntl(outputs.logits[:, :-1], labels[:, 1:])

    return loss_of


def ours_logits_loss(case: Case) -> ModelLoss:
    return lambda model, ids, labels: cross_entropy_ntl(
        model(input_ids=ids).logits, shifted(labels), case.numbers, inplace=True
    )


def patch(case: Case, model: Any) -> None:
    """Install our loss in the model's head."""
    from ntl_kernels.integrations.transformers import apply_ntl_to_model

    apply_ntl_to_model(model, case.numbers)


def training(
    make: Callable[[Case], ModelLoss], prepare: Callable[[Case, Any], None] | None = None
) -> Callable[[Case], Step]:
    """Forward, backward and an AdamW update of a separate model per provider.

    The outcome contains the gradients of the step; the gate checks index 0, before any update.
    """

    def build(case: Case) -> Step:
        model, loss_of = make_model(case), make(case)
        if prepare is not None:
            prepare(case, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=case.device.type == "cuda")
        ids, labels = batch_of(case)

        def step(index: int) -> Outcome:
            loss = loss_of(model, ids, labels)
            loss.backward()
            gradients = tuple(parameter.grad for parameter in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            return Outcome(loss.detach(), gradients)

        return step

    return build
