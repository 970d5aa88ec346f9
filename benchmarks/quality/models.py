"""The models, trained from scratch at a size, or from a local checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from .codec import Codec

# name -> (hidden size, layers, attention heads, feed-forward size); small to 3b are those of T5
SIZES = {
    "test": (16, 1, 2, 32),
    "tiny": (128, 3, 8, 512),
    "mini": (256, 4, 4, 1024),
    "small": (512, 6, 8, 2048),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
    "3b": (1024, 24, 32, 16384),
}


def transformer(architecture: str, size: str, checkpoint: str | None, codec: Codec, seed: int) -> Any:
    """A T5 or Llama with the codec's vocabulary."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}; got {size!r}")
    torch.manual_seed(seed)
    if checkpoint is not None:
        auto = AutoModelForSeq2SeqLM if architecture == "t5" else AutoModelForCausalLM
        model = auto.from_pretrained(checkpoint, local_files_only=True)
        model.resize_token_embeddings(codec.vocab_size)
        return model
    hidden, layers, heads, inner = SIZES[size]
    shared = {"vocab_size": codec.vocab_size, "pad_token_id": codec.pad, "eos_token_id": codec.eos}
    shared["tie_word_embeddings"] = False
    if architecture == "t5":
        kv = 128 if size == "3b" else hidden // heads
        sizes = {"d_model": hidden, "d_kv": kv, "d_ff": inner, "num_layers": layers, "num_heads": heads}
        return T5ForConditionalGeneration(
            T5Config(**shared, **sizes, decoder_start_token_id=codec.pad, dropout_rate=0.0)
        )
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 2048}
    return LlamaForCausalLM(LlamaConfig(**shared, **sizes, **heads_of, bos_token_id=None))


class RegressionModel(nn.Module):
    """An encoder whose mean hidden state predicts the answer's value, standardised by the training answers."""

    _keys_to_ignore_on_save = None  # the Trainer reads it from any model when names of shared tensors are missing

    def __init__(self, base: Any, mean: float, deviation: float) -> None:
        super().__init__()
        self.encoder = base.get_encoder()
        self.config = base.config
        self.head = nn.Linear(base.config.d_model, 1)
        self.mean, self.deviation = mean, max(deviation, 1e-6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        predicted = self.head((states * weights).sum(1) / weights.sum(1).clamp_min(1)).squeeze(-1)
        outputs = {"logits": predicted * self.deviation + self.mean}
        if labels is None:
            return outputs
        is_number = ~labels.isnan()
        errors = predicted[is_number] - (labels[is_number] - self.mean) / self.deviation
        return {"loss": (errors**2).sum() / is_number.sum().clamp_min(1), **outputs}
