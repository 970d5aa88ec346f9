"""Tiny random models, one of each kind, and batches for them; `every_class.py` has the rest."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from ntl_kernels import NTLOutput, NumberTokens, cross_entropy_ntl

VOCAB = 97
NUMBERS = NumberTokens.from_mapping({10 + digit: float(digit) for digit in range(10)}, vocab_size=VOCAB)

DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "output_router_logits": True,
    "router_aux_loss_coef": 0.1,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "num_local_experts": 4,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "resid_pdrop": 0.0}
GPT2 |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
TIED = {"tie_word_embeddings": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DECODER),
    "llama-tied": ("LlamaForCausalLM", DECODER | TIED),
    "gemma2": ("Gemma2ForCausalLM", DECODER | TIED | {"final_logit_softcapping": 2.0}),
    "granite": ("GraniteForCausalLM", DECODER | {"logits_scaling": 0.25}),
    "cohere": ("CohereForCausalLM", DECODER | TIED | {"logit_scale": 3.0}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "phi": ("PhiForCausalLM", DECODER),  # its head has a bias
    "mixtral": ("MixtralForCausalLM", DECODER | EXPERTS),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-untied": ("T5ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
}


class OfOthers(transformers.LlamaForCausalLM):
    """A model whose code is not of transformers, with a scale that is not in its configuration."""

    def transform(self, outputs: Tensor) -> Tensor:
        """The logits for the output of the head."""
        return 2 * torch.tanh(0.37 * outputs / 2)

    def forward(self, input_ids: Tensor, attention_mask: Any = None, labels: Any = None, **_: Any) -> Any:
        logits = self.transform(self.lm_head(self.model(input_ids, attention_mask).last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels, VOCAB)
        return CausalLMOutput(loss=loss, logits=logits)


def make_model(case: str = "llama", cls: Any = None, **overrides: Any) -> Any:
    """A model in training mode whose logits are large enough to show how they are transformed."""
    name, config = CASES[case]
    cls = cls or getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**(config | overrides)))
    with torch.no_grad():
        for parameter in model.get_output_embeddings().parameters():
            parameter.normal_(std=0.5)
    return model.train()


def make_batch(rows: int = 3, length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    """Tokens, half of them numbers, with unequal padding on the right and ignored labels at the start of a row."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCAB, (rows, length), generator=generator)
    digits = torch.randint(10, 20, (rows, length), generator=generator)
    tokens = torch.where(torch.rand((rows, length), generator=generator) < 0.5, digits, tokens)
    mask = torch.arange(length) < torch.randint(4, length + 1, (rows, 1), generator=generator)
    labels = tokens.masked_fill(~mask, -100)
    labels[0, :2] = -100
    return {"input_ids": tokens.masked_fill(~mask, 0), "attention_mask": mask.long(), "labels": labels}


def make_targets(model: Any, labels: Tensor) -> Tensor:
    """The target of each position, written independently."""
    if model.config.is_encoder_decoder:
        return labels
    targets = torch.full_like(labels, -100)
    targets[:, :-1] = labels[:, 1:]
    return targets


def stock_output(model: Any, batch: dict[str, Tensor], **options: Any) -> NTLOutput:
    """Truth: the stock forward, and the loss of its full logits by the reference; auxiliary losses included."""
    batch = {**batch}
    weights = batch.pop("number_weights", None)
    output = model(**batch)
    targets = make_targets(model, batch["labels"])
    if weights is not None:
        options["number_weights"] = (
            weights if targets is batch["labels"] else torch.nn.functional.pad(weights, (0, 1))[:, 1:]
        )
    options = {"return_parts": True, "backend": "reference"} | options
    parts = cross_entropy_ntl(output.logits, targets, NUMBERS, **options)
    auxiliary = output.get("aux_loss")
    return parts if auxiliary is None else parts._replace(loss=parts.loss + model.router_aux_loss_coef * auxiliary)


def gradients(model: Any) -> dict[str, Tensor | None]:
    """Every parameter's gradient, cleared from the model."""
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return grads


def assert_same_gradients(actual: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Relative to each gradient's largest entry, plus roundings of the largest of all."""
    assert actual.keys() == expected.keys()
    scale = max(grad.abs().max() for grad in expected.values() if grad is not None)
    assert scale > 0
    for name, grad in expected.items():
        assert (grad is None) == (actual[name] is None), name
        if grad is not None:
            error = (actual[name] - grad).abs().max()
            assert error <= tolerance * grad.abs().max() + 1e-7 * scale, f"{name}: {error} of {grad.abs().max()}"
