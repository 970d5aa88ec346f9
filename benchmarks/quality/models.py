"""The models, trained from scratch at a size, or from a local checkpoint."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    TrainerState,
)
from transformers.trainer import TRAINER_STATE_NAME

from .. import files
from ..commands import InputError, naming
from .codec import Codec, OwnCodec, RTCodec, reading
from .configuration import CONFIGURATION, MODEL, plain

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


POSITION_DEVIATION = 2.0
"""Of the relative position biases of a new T5. Adam moves a bias by about the learning rate in a step, so from T5's own
initial values, near 0, it takes a thousand steps until positions matter."""
LARGEST = 3e9
"""The value that the paper's code scales to 10."""


def scaled(values: Tensor) -> Tensor:
    """sign(v) log10(1 + |v|), times a factor: from -10 to 10 for values up to :data:`LARGEST`."""
    return values.sign() * (values.abs() + 1).log10() * (10 / math.log10(LARGEST))


def unscaled(values: Tensor) -> Tensor:
    """The inverse of :func:`scaled`, up to a trillion."""
    return values.sign() * (10 ** (values.abs() * (math.log10(LARGEST) / 10)).clamp_max(12) - 1)


def add_number_embeddings(model: Any, codec: RTCodec) -> None:
    """Add the Regression Transformer's fixed embeddings of number tokens to those that are learned.

    That of a value v is v / (i + 1), scaled, in every even dimension i, and its negative in the next one. A hook adds
    it, so that weights keep their names.
    """
    values = torch.zeros(codec.vocab_size, dtype=torch.float64)
    for token, (digit, power) in codec.places.items():
        values[token] = int(digit) * 10.0**power
    fixed = scaled(values[:, None] / torch.arange(1, model.get_input_embeddings().embedding_dim + 1, 2))
    fixed = torch.stack([fixed, -fixed], -1).flatten(1).float()
    for module in model.modules():  # encoder and decoder may each have a module for the same weight
        if isinstance(module, nn.Embedding) and module.num_embeddings == codec.vocab_size:
            module.register_buffer("fixed", fixed, persistent=False)
            module.register_forward_hook(lambda module, inputs, output: output + module.fixed[inputs[0]])


class ValueModel(T5ForConditionalGeneration):
    """xVal (Golkar et al. 2023): the embedding of a number is scaled by its value, and a head predicts the next value.

    The loss is (CE + MSE) / 2, as in the paper's code, but of scaled values: there, predictions and labels of a batch
    are standardised together, so that a loss depends on the rest of its batch. Positions are T5's relative ones instead
    of learned ones, and a comma between two numbers is kept.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.head = nn.Sequential(nn.Linear(config.d_model, 1024), nn.GELU(), nn.Linear(1024, 1))

    def embed(self, ids: Tensor, values: Tensor) -> Tensor:
        factors = torch.where(ids == self.config.num_token_id, scaled(values), 1.0)
        return self.get_input_embeddings()(ids) * factors[..., None]

    def encode(self, input_ids: Tensor, attention_mask: Tensor, input_values: Tensor) -> Any:
        return self.encoder(inputs_embeds=self.embed(input_ids, input_values), attention_mask=attention_mask)

    def decode(self, encoded: Any, attention_mask: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """(logits [B, T, V], scaled values [B, T]) after each of the decoder's inputs [B, T]."""
        inputs = {"decoder_inputs_embeds": self.embed(ids, values), "attention_mask": attention_mask}
        outputs = super().forward(encoder_outputs=encoded, **inputs, output_hidden_states=True, use_cache=False)
        return outputs.logits, self.head(outputs.decoder_hidden_states[-1]).squeeze(-1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, input_values: Tensor, labels: Tensor, label_values: Tensor
    ) -> dict[str, Tensor]:
        """The loss, and for every row [B] the sum of its tokens' CE and their number."""
        encoded = self.encode(input_ids, attention_mask, input_values)
        ids = self.prepare_decoder_input_ids_from_labels(labels)
        values = nn.functional.pad(label_values[:, :-1], (1, 0), value=1.0)
        logits, predicted = self.decode(encoded, attention_mask, ids, values)
        cross_entropy = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)
        tokens, is_number = (labels >= 0).sum(1), labels == self.config.num_token_id
        errors = (predicted - scaled(label_values))[is_number] ** 2
        loss = (cross_entropy.sum() / tokens.sum() + errors.sum() / max(len(errors), 1)) / 2
        return {"loss": loss, "cross_entropy": cross_entropy, "tokens": tokens}

    def answer(self, longest: int, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy (ids, values), each [B, T]: a predicted value is read again as the value of its token."""
        encoded = self.encode(attention_mask=attention_mask, **inputs)
        ids = torch.full((len(attention_mask), 1), self.config.decoder_start_token_id, device=attention_mask.device)
        values = torch.ones_like(ids, dtype=torch.float32)
        for _ in range(longest):
            logits, predicted = self.decode(encoded, attention_mask, ids, values)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
            values = torch.cat([values, unscaled(predicted[:, -1:])], 1)
            if (ids == self.config.eos_token_id).any(1).all():
                break
        return ids[:, 1:], values[:, 1:]


class RegressionModel(T5EncoderModel):
    """An encoder whose mean hidden state predicts the answer's standardised value."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.d_model, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        predicted = self.head((states * weights).sum(1) / weights.sum(1).clamp_min(1)).squeeze(-1)
        outputs = {"logits": predicted}
        if labels is None:
            return outputs
        is_number = ~labels.isnan()
        errors = (predicted - labels)[is_number]
        return {"loss": (errors**2).sum() / is_number.sum().clamp_min(1), **outputs}


WITH_HEAD = {"regression": RegressionModel, "value": ValueModel}
"""Head -> the model; all others predict tokens."""


def make_model(options: DictConfig, codec: Codec, seed: int) -> Any:
    """The model with the codec's vocabulary: new, or from a checkpoint."""
    if options.size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}; got {options.size!r}")
    torch.manual_seed(seed)
    model = new_model(options, codec) if options.checkpoint is None else loaded_model(options, codec)
    model.config.codec = codec.kind
    return adapted(model, options, codec.bin_ids) if options.adapter else model


def adapted(model: Any, options: DictConfig, new_tokens: list[int]) -> Any:
    """The model with low-rank matrices, new or the checkpoint's. Only they, the head of a regression and the embeddings
    of new tokens are trained."""
    from peft import LoraConfig, PeftModel, get_peft_model  # a second; nothing else here needs it

    if (folder := saved_model(options.checkpoint)).joinpath(ADAPTER).is_file():
        with reading(folder):
            return PeftModel.from_pretrained(model, folder, is_trainable=True, trust_remote_code=False)
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    rows: dict[str, Any] = {}
    if new_tokens:
        layers = [model.get_input_embeddings()]
        layers += [] if model.config.tie_word_embeddings else [model.get_output_embeddings()]
        names = [name.rpartition(".")[2] for name, module in model.named_modules() if module in layers]
        rows = {"trainable_token_indices": dict.fromkeys(names, new_tokens)}
    with naming("model.lora"):
        lora = LoraConfig(task_type="SEQ_CLS" if options.head == "regression" else task, **rows, **plain(options.lora))
        return get_peft_model(model, lora)


def new_model(options: DictConfig, codec: Codec) -> Any:
    hidden, layers, heads, inner = SIZES[options.size]
    shared = {"vocab_size": codec.vocab_size, "pad_token_id": codec.pad, "eos_token_id": codec.eos}
    shared["tie_word_embeddings"] = False
    if options.architecture == "t5":
        kv = 128 if options.size == "3b" else hidden // heads
        sizes = {"d_model": hidden, "d_kv": kv, "d_ff": inner, "num_layers": layers, "num_heads": heads}
        config = T5Config(**shared, **sizes, decoder_start_token_id=codec.pad, dropout_rate=0.0)
        model = WITH_HEAD.get(options.head, T5ForConditionalGeneration)(config)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.num_embeddings == config.relative_attention_num_buckets:
                nn.init.normal_(module.weight, std=POSITION_DEVIATION)
        return model
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 2048}
    return LlamaForCausalLM(LlamaConfig(**shared, **sizes, **heads_of, bos_token_id=None))


def loaded_model(options: DictConfig, codec: Codec) -> Any:
    """A checkpoint's model; raise if it lacks weights or reads numbers in another way."""
    auto = AutoModelForSeq2SeqLM if options.architecture == "t5" else AutoModelForCausalLM
    folder, chosen, more = saved_model(options.checkpoint), WITH_HEAD.get(options.head, auto), {}
    if options.adapter and (adapter := folder / ADAPTER).is_file():
        folder = saved_model(str(files.read_json(adapter).get("base_model_name_or_path")))
    if options.head == "regression" and isinstance(codec, OwnCodec):
        chosen, more = AutoModelForSequenceClassification, {"num_labels": 1, "pad_token_id": codec.pad}
    read = {"local_files_only": True, "output_loading_info": True, "dtype": torch.float32}
    with reading(folder):
        model, found = chosen.from_pretrained(folder, trust_remote_code=False, **read, **more)
    for name in sorted(found["missing_keys"]):
        if not name.startswith(("head.", "score.")):
            raise ValueError(f"{folder} has no weights {name}, which a {type(model).__name__} needs")
        model.get_submodule(name.rpartition(".")[0]).reset_parameters()  # a checkpoint from elsewhere gets a new head
    if (kind := getattr(model.config, "codec", codec.kind)) != codec.kind:
        raise ValueError(f"{folder} was trained with model.codec={kind}; got {codec.kind}")
    if not isinstance(codec, OwnCodec):
        model.resize_token_embeddings(codec.vocab_size)
    elif codec.bins is not None:  # new tokens may fit into the padding
        model.resize_token_embeddings(max(codec.vocab_size, model.config.vocab_size), mean_resizing=False)
        start_like_digits(model, codec)
    return model


@torch.no_grad()
def start_like_digits(model: Any, codec: Codec) -> None:
    """New tokens start at the mean of the digits' embeddings, with some noise: as probable as a digit is."""
    digits = codec.encode("0123456789")
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        known = layer.weight[digits]
        noise = 0.1 * known.std() * torch.randn(len(codec.bin_ids), known.shape[1])
        layer.weight[codec.bin_ids] = known.mean(0) + noise


def saved_model(checkpoint: str) -> Path:
    """The folder of the weights: a run's model, or else the checkpoint that it ended with, or the given folder."""
    folder = Path(checkpoint)
    if not checkpoint or not folder.is_dir():
        raise InputError(f"model.checkpoint={checkpoint or repr(checkpoint)}: no such folder")
    if (folder / MODEL).is_dir():
        folder = folder / MODEL
    elif newest := newest_checkpoint(folder):
        run = files.read_json(folder / CONFIGURATION)
        folder = kept(newest, run["trainer"]["arguments"].get("load_best_model_at_end"))
    for what, names in NEEDED.items():
        if not any(match for name in names for match in folder.glob(name)):
            raise InputError(
                f"model.checkpoint={checkpoint}: no {what} in {folder} ({' or '.join(names)}); a run saves them with "
                "trainer.save_model=true or trainer.arguments.save_strategy=steps"
            )
    if files.read_json(folder / ADAPTER, {}).get("megatron_config"):  # PEFT would import the module that goes with it
        raise InputError(f"model.checkpoint={checkpoint}: adapters with a megatron_config are not supported")
    return folder


ADAPTER = "adapter_config.json"
NEEDED = {
    "weights": ("model*.safetensors", "pytorch_model*.bin", "adapter_model*.safetensors"),
    "configuration": ("config.json", ADAPTER),
    "tokenizer": ("tokenizer*", "*.model", "vocab*"),
}
"""What a saved model consists of -> names of its files."""


def state_of(checkpoint: str | Path) -> TrainerState:
    return TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))


def kept(checkpoint: Path, takes_best: bool) -> Path:
    """The checkpoint whose weights a run has after this one, its last: the best one, if it loads that at the end."""
    best = state_of(checkpoint).best_model_checkpoint if takes_best else None
    return checkpoint.with_name(Path(best or checkpoint).name)


def is_whole_checkpoint(folder: Path) -> bool:
    """Whether the Trainer has written all of a checkpoint: its state is the last file."""
    try:
        state_of(folder)
    except (OSError, ValueError, TypeError):
        return False
    return True


def checkpoints(folder: Path) -> dict[int, Path]:
    """Step -> checkpoint of the run in a folder, the newest first."""
    steps = {path.name.removeprefix("checkpoint-"): path for path in folder.glob("checkpoint-*")}
    return {int(step): steps[step] for step in sorted(filter(str.isdecimal, steps), key=int, reverse=True)}


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in the folder of a run."""
    for path in checkpoints(folder).values():
        if is_whole_checkpoint(path):
            return path
        print(f"{path}: not a whole checkpoint; left out", file=sys.stderr)
    return None
