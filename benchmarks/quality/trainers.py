"""The Trainers of the experiments: CE + a number loss, or the loss that a model computes itself; all give answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import EvalPrediction, Trainer

from ntl_kernels.integrations.transformers import NTLTrainer
from ntl_kernels.ntloss import NumberLevelLoss

from .arithmetic import Pair
from .codecs import Codec, RTCodec
from .metrics import answer_metrics

IGNORE = -100


class Answering:
    """A Trainer whose evaluations ask for answers, too, and measure them; ``answers`` keeps the last ones.

    Every process answers its share of the questions. Checkpoints hold tensors that have several names once, since
    safetensors refuses them otherwise.

    Args:
        answer: questions with their true answers (for the longest one's length) to answers.
    """

    def __init__(self, *args: Any, answer: Callable[[Sequence[Pair]], list[str]], **kwargs: Any) -> None:
        self.answer = answer
        self.answers: list[str] = []
        super().__init__(*args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's, with the metrics of the answers and the perplexity among its own."""
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)  # type: ignore[misc]
        pairs = dataloader.dataset
        self.answers = self.ask(pairs)
        metrics = answer_metrics(self.answers, [pair.answer for pair in pairs])
        cross_entropy = output.metrics.get(f"{metric_key_prefix}_ce")
        if cross_entropy is not None:
            metrics["perplexity"] = math.exp(min(cross_entropy, 700))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    def ask(self, pairs: Sequence[Pair]) -> list[str]:
        """The answers to all questions; a process asks for every ``world_size``-th."""
        processes, size = self.args.world_size, self.args.per_device_eval_batch_size  # type: ignore[attr-defined]
        share = pairs[self.args.process_index :: processes]  # type: ignore[attr-defined]
        own = [answer for start in range(0, len(share), size) for answer in self.answer(share[start : start + size])]
        answers = [""] * len(pairs)
        for rank, theirs in enumerate(gather_object([own])):
            answers[rank::processes] = theirs
        return answers

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        state = self.model.state_dict() if state_dict is None else state_dict  # type: ignore[attr-defined]
        first = {(tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(state.items())}
        super()._save(output_dir, {name: state[name] for name in first.values()})  # type: ignore[misc]


class PlainTrainer(Answering, Trainer):
    """The loss that the model computes itself."""


class TokenTrainer(Answering, NTLTrainer):
    """CE + NTL."""


class NumberLevelTrainer(TokenTrainer):
    """CE + the number-level loss, on full logits; NTL itself is only measured."""

    def __init__(self, *args: Any, number_loss: NumberLevelLoss, weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number_loss, self.weight = number_loss, weight

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Tensor, num_items: Any, num_numbers: Any
    ) -> tuple[Tensor, Any, Any]:
        loss, parts, outputs = super().ntl_unfused(model, inputs, targets, num_items, num_numbers)
        share = 1.0 if num_items is None else (targets != IGNORE).sum() / num_items
        return loss + self.weight * share * self.number_loss(outputs.logits, targets), parts, outputs


class CodecNumberLevelLoss(NumberLevelLoss):
    """The number-level loss on a codec's own digit tokens: runs of ``_8_-1_`` make numbers, too.

    A token of several digits, which the plain codec has, is no digit and makes no number.
    """

    def __init__(self, codec: Codec, reweigh: bool) -> None:
        self.codec = codec
        super().__init__(codec.tokenizer, codec.vocab_size, reweigh=reweigh)

    def setup_number_tokens(self) -> None:
        if not isinstance(self.codec, RTCodec):
            super().setup_number_tokens()
            return
        self.numbers = self.codec.numbers()
        self.number_values = torch.full((self.vocab_size,), torch.nan)
        self.number_values[self.numbers.ids] = self.numbers.values
        self.is_number_token = ~self.number_values.isnan()
        self.nan_id = int((~self.is_number_token).nonzero()[0])
        self.number_values_dense = self.number_values[self.is_number_token]
        self.number_token_ids = self.is_number_token.nonzero().squeeze(1)


def token_scores(logits: Tensor, labels: tuple[Tensor, ...]) -> Tensor:
    """[B, T, 2] of logits [B, T, V] and labels [B, T], the first of a tuple: cross-entropy, and whether the largest
    logit is the label's. What :func:`token_metrics` needs of a batch, for models that compute their loss themselves.
    """
    losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels[0], reduction="none")
    return torch.stack([losses, (logits.argmax(-1) == labels[0]).float()], -1)


def token_metrics(evaluated: EvalPrediction) -> dict[str, float]:
    """Means of :func:`token_scores` over the labels."""
    scores = evaluated.predictions[evaluated.label_ids[0] != IGNORE]
    return dict(zip(("ce", "token_accuracy"), scores.mean(0).tolist(), strict=True))
