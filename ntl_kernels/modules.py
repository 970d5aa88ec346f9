"""The functions as `nn.Module`s."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .checks import check_numbers, check_weight, explains_options
from .config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from .functional import cross_entropy_ntl, linear_cross_entropy_ntl
from .spec import spec_of
from .tokens import NumberTokens

OF_SPEC = ("config", "ignore_index", "label_smoothing", "z_loss", "softcap", "logit_scale", "reduction")
"""The options of a :class:`LossSpec`."""


class NTLLoss(nn.Module):
    """Stores the options of a function. Those ``of_spec`` are checked once; ``others`` by the function."""

    def __init__(self, numbers: NumberTokens, of_spec: tuple[Any, ...], **others: Any) -> None:
        super().__init__()
        self.numbers = numbers
        self.options: dict[str, Any] = dict(zip(OF_SPEC, of_spec, strict=True)) | others
        check_numbers(numbers, [getattr(numbers, "vocab_size", 0)])
        config, *rest = of_spec
        spec = spec_of(config, numbers, *rest)
        check_weight("weight", config.weight, spec)

    def extra_repr(self) -> str:
        return ", ".join([repr(self.numbers), *(f"{name}={value!r}" for name, value in self.options.items())])


class CrossEntropyNTLLoss(NTLLoss):
    """:func:`cross_entropy_ntl` as a module that stores the options.

    Args: the arguments of :func:`cross_entropy_ntl` that do not change from batch to batch.

    Shape: ``loss_fn(logits [B..., V], labels [B...], token_weights=None, num_tokens=None, num_numbers=None,
    number_weights=None)`` returns the function's result.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> loss_fn = CrossEntropyNTLLoss(numbers, NTLConfig(weight=0.1))
        >>> loss_fn(torch.zeros(4, 8), torch.tensor([2, 7, 1, 5]))
        tensor(2.1628)
    """

    @explains_options
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
        inplace: bool = False,
        return_parts: bool = False,
        backend: str = "auto",
    ) -> None:
        of_spec = config, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction
        super().__init__(numbers, of_spec, backend=backend, return_parts=return_parts, inplace=inplace)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        token_weights: Tensor | None = None,
        num_tokens: int | float | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        number_weights: Tensor | None = None,
    ) -> Tensor | NTLOutput:
        given: dict[str, Any] = {"token_weights": token_weights, "number_weights": number_weights}
        given |= {"num_tokens": num_tokens, "num_numbers": num_numbers}
        return cross_entropy_ntl(logits, labels, self.numbers, **given, **self.options)


class LinearCrossEntropyNTLLoss(NTLLoss):
    """:func:`linear_cross_entropy_ntl` as a module that stores the options.

    Args: the arguments of :func:`linear_cross_entropy_ntl` that do not change from batch to batch.

    Shape: ``loss_fn(hidden [B..., H], weight [V, H], labels [B...], bias=None, token_weights=None, num_tokens=None,
    num_numbers=None, number_weights=None)`` returns the function's result.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> loss_fn = LinearCrossEntropyNTLLoss(numbers, NTLConfig(weight=0.1))
        >>> loss_fn(torch.zeros(4, 16), torch.zeros(8, 16), torch.tensor([2, 7, 1, 5]))
        tensor(2.1628)
    """

    @explains_options
    def __init__(
        self,
        numbers: NumberTokens,
        config: NTLConfig = DEFAULT_CONFIG,
        *,
        chunk_size: int | None = None,
        skip_ignored: bool = True,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        return_parts: bool = False,
        backend: str = "auto",
    ) -> None:
        of_spec = config, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction
        others = {"return_parts": return_parts, "chunk_size": chunk_size, "skip_ignored": skip_ignored}
        super().__init__(numbers, of_spec, backend=backend, **others)

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        token_weights: Tensor | None = None,
        num_tokens: int | float | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        number_weights: Tensor | None = None,
    ) -> Tensor | NTLOutput:
        given: dict[str, Any] = {"token_weights": token_weights, "number_weights": number_weights}
        given |= {"num_tokens": num_tokens, "num_numbers": num_numbers}
        return linear_cross_entropy_ntl(hidden, weight, labels, self.numbers, bias=bias, **given, **self.options)
