"""The models of the paper's comparison, from scratch at a size, or from a local checkpoint."""

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

from .codecs import Codec, RTCodec, XValCodec

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


class NumericEmbedding(nn.Module):
    """Learned embeddings plus fixed ones for numeric tokens: ``(-1)^j log(1 + d 10^p) / (j + 1)`` in dimension j.

    The Regression Transformer adds ``(-1)^j d 10^p / (j + 1)``, which reaches 9e8 here and would dominate the learned
    part; the logarithm preserves the order of places and digits. Source: Born & Manica, *Regression Transformer*,
    Nature Machine Intelligence 2023, equation of NE_Float.
    """

    def __init__(self, learned: nn.Embedding, codec: RTCodec) -> None:
        super().__init__()
        self.learned = learned
        dimension = torch.arange(learned.embedding_dim)
        scale = torch.where(dimension % 2 == 0, 1.0, -1.0) / (dimension + 1)
        values = torch.zeros(learned.num_embeddings)
        for token, (digit, power) in codec.digit_tokens.items():
            values[token] = digit * 10.0**power
        self.register_buffer("fixed", values.log1p()[:, None] * scale, persistent=False)

    @property
    def weight(self) -> Tensor:
        return self.learned.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.learned(ids) + self.fixed[ids]


class ValueModel(nn.Module):
    """xVal: ``[NUM]`` embeddings scaled by their value, and a head that predicts the value of a ``[NUM]``.

    Values are transformed to ``sign(v) log10(1 + |v|)``, so that a wide range fits. The loss is cross-entropy on the
    tokens plus the mean squared error of the values. Source: Golkar et al., *xVal*, 2023, arXiv 2310.02989.
    """

    _keys_to_ignore_on_save = None  # the Trainer asks any model for it when names of shared tensors are missing

    def __init__(self, base: Any, codec: XValCodec) -> None:
        super().__init__()
        self.base = base
        self.num = codec.num
        self.value_head = nn.Linear(base.config.d_model, 1)
        self.config = base.config

    def embed(self, ids: Tensor, values: Tensor) -> Tensor:
        scale = torch.where(ids == self.num, squeeze(values), 1.0)
        return self.base.get_input_embeddings()(ids) * scale[..., None]

    def decode(
        self, input_ids: Tensor, attention_mask: Tensor, input_values: Tensor, ids: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(logits [B, T, V], squeezed values [B, T]) for decoder inputs [B, T]."""
        outputs = self.base(
            inputs_embeds=self.embed(input_ids, input_values),
            attention_mask=attention_mask,
            decoder_inputs_embeds=self.embed(ids, values),
            output_hidden_states=True,
            use_cache=False,
        )
        return outputs.logits, self.value_head(outputs.decoder_hidden_states[-1]).squeeze(-1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, input_values: Tensor, labels: Tensor, label_values: Tensor
    ) -> dict[str, Tensor]:
        ids, values = shift_right(labels.clamp_min(0), 0), shift_right(label_values, 1.0)
        logits, predicted = self.decode(input_ids, attention_mask, input_values, ids, values)
        ce = nn.functional.cross_entropy(logits.transpose(1, 2), labels)
        is_number = (labels == self.num).to(predicted.dtype)
        errors = (predicted - squeeze(label_values)) ** 2 * is_number
        loss = ce + errors.sum() / is_number.sum().clamp_min(1)
        return {"loss": loss, "logits": logits}

    def answer(
        self, input_ids: Tensor, attention_mask: Tensor, input_values: Tensor, longest: int
    ) -> tuple[Tensor, Tensor]:
        """Greedy (ids, values), each [B, longest]."""
        ids = input_ids.new_zeros(input_ids.shape[0], 1)
        values = torch.ones_like(ids, dtype=torch.float32)
        for _ in range(longest):
            logits, predicted = self.decode(input_ids, attention_mask, input_values, ids, values)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
            values = torch.cat([values, unsqueeze(predicted[:, -1:].float())], 1)
        return ids[:, 1:], values[:, 1:]


class RegressionModel(nn.Module):
    """An encoder whose mean hidden state predicts the answer's value, standardised by the training answers."""

    _keys_to_ignore_on_save = None  # the Trainer asks any model for it when names of shared tensors are missing

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


def shift_right(labels: Tensor, first: float) -> Tensor:
    """Decoder inputs: the labels shifted right by one."""
    return nn.functional.pad(labels[:, :-1], (1, 0), value=first)


def squeeze(values: Tensor) -> Tensor:
    """sign(v) log10(1 + |v|)"""
    return values.sign() * torch.log10(1 + values.abs())


def unsqueeze(values: Tensor) -> Tensor:
    """The inverse of :func:`squeeze`, up to 1e12."""
    return values.sign() * (10 ** values.abs().clamp_max(12) - 1)
