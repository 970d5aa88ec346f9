"""`nn.Module` faces of the functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .checks import check_numbers, check_reduction, checked_spec
from .config import NTLConfig, NTLOutput
from .functional import DEFAULT_CONFIG, cross_entropy_ntl, linear_cross_entropy_ntl
from .tokens import NumberTokens


class NTLLoss(nn.Module):
    """The options that both losses share, checked once."""

    def __init__(
        self,
        numbers: NumberTokens,
        config: NTLConfig = DEFAULT_CONFIG,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        return_parts: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_numbers(numbers, getattr(numbers, "vocab_size", 0))
        check_reduction(reduction)
        checked_spec(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale)
        self.numbers = numbers
        self.options: dict[str, Any] = {
            "config": config,
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "softcap": softcap,
            "logit_scale": logit_scale,
            "return_parts": return_parts,
            "backend": backend,
        }

    def extra_repr(self) -> str:
        return ", ".join([repr(self.numbers), *(f"{name}={value!r}" for name, value in self.options.items())])


class CrossEntropyNTLLoss(NTLLoss):
    """:func:`cross_entropy_ntl` with its options fixed.

    Args: those of :func:`cross_entropy_ntl` that do not change from batch to batch.

    Shape: ``loss_fn(logits [..., V], labels [...], token_weights=None, num_tokens=None, num_numbers=None)`` returns
    what the function returns.
    """

    def __init__(
        self, numbers: NumberTokens, config: NTLConfig = DEFAULT_CONFIG, *, inplace: bool = False, **options: Any
    ) -> None:
        super().__init__(numbers, config, **options)
        self.options["inplace"] = inplace

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        token_weights: Tensor | None = None,
        num_tokens: int | float | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
    ) -> Tensor | NTLOutput:
        rows: dict[str, Any] = {"token_weights": token_weights, "num_tokens": num_tokens, "num_numbers": num_numbers}
        return cross_entropy_ntl(logits, labels, self.numbers, **rows, **self.options)


class LinearCrossEntropyNTLLoss(NTLLoss):
    """:func:`linear_cross_entropy_ntl` with its options fixed.

    Args: those of :func:`linear_cross_entropy_ntl` that do not change from batch to batch.

    Shape: ``loss_fn(hidden [..., H], weight [V, H], labels [...], bias=None, token_weights=None, num_tokens=None,
    num_numbers=None)`` returns what the function returns.
    """

    def __init__(
        self,
        numbers: NumberTokens,
        config: NTLConfig = DEFAULT_CONFIG,
        *,
        chunk_size: int | None = None,
        skip_ignored: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(numbers, config, **options)
        self.options.update(chunk_size=chunk_size, skip_ignored=skip_ignored)

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        token_weights: Tensor | None = None,
        num_tokens: int | float | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
    ) -> Tensor | NTLOutput:
        rows: dict[str, Any] = {"token_weights": token_weights, "num_tokens": num_tokens, "num_numbers": num_numbers}
        return linear_cross_entropy_ntl(hidden, weight, labels, self.numbers, bias=bias, **rows, **self.options)
