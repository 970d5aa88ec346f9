"""`cross_entropy_ntl` and `linear_cross_entropy_ntl`: check the arguments and pass them on.

The arguments become a :class:`Problem`. :mod:`ntl_kernels.dispatch` computes its loss;
:mod:`ntl_kernels.parallel.tensors` does so for DTensors.
"""

from __future__ import annotations

from torch import Tensor

from .checks import check_linear, check_numbers, check_tensor, checked_problem, explains_options
from .config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from .dispatch import as_result, loss_of_hidden, loss_of_logits
from .problem import RowInputs
from .spec import spec_of
from .tokens import NumberTokens
from .tracing import has_dtensor


@explains_options
def cross_entropy_ntl(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    number_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    inplace: bool = False,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """Cross-entropy + lambda * Number Token Loss of logits, computed together with their gradient.

    Args:
        logits: [B..., V] with any leading dimensions B..., float32, bfloat16 or float16 (float64 not on Triton), any
            strides.
        labels: [B...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        config: kind and weight (lambda) of the Number Token Loss.
        ignore_index: the label of ignored rows: any int64, even with int32 labels, inside or outside [0, V).
        reduction: "mean" is ``sum(w CE) / num_tokens + lambda * sum(w u NTL) / num_numbers`` (a term whose
            denominator is 0 is 0; with ``NTLConfig(mean_over="tokens")`` both terms are divided by ``num_tokens``),
            "sum" is ``sum(w CE) + lambda * sum(w u NTL)``, "none" is ``w (CE + lambda u NTL)`` in the labels' shape.
        label_smoothing: epsilon in [0, 1], the share of the target that is spread evenly over the vocabulary. A column
            of -inf then makes the loss infinite, as in :func:`torch.nn.functional.cross_entropy`.
        z_loss: factor of ``lse ** 2``, a penalty that keeps the logsumexp near 0.
        softcap: replace the scaled logits by ``softcap * tanh(logits / softcap)``.
        logit_scale: positive factor of the logits.
        token_weights: [B...] finite, non-negative weight w of each row; rows with weight 0 are ignored.
        number_weights: [B...] finite, non-negative weight u of each row's NTL, besides w. A number token with weight 0
            is a category: it has cross-entropy alone, and is left out of ``number_mae`` and ``number_mass``.
        num_tokens: denominator of cross-entropy for "mean" (number or 0-d tensor); default: the sum of the weights of
            the rows that are not ignored. For exact gradient accumulation, pass the count of the whole accumulation
            window.
        num_numbers: the same for NTL; default: the sum of w u over the rows whose label is a number token. Pass both
            denominators or neither, except with ``NTLConfig(mean_over="tokens")``, which uses only the first.
        inplace: let the gradient overwrite the memory of ``logits``, in this call or in the backward pass. Do not
            use ``logits`` afterwards: if a later use is part of the autograd graph, the backward pass raises an error
            (on a GPU the gradients become NaN); a metric or other code outside the graph silently reads the gradient.
        return_parts: return an :class:`NTLOutput` instead of the loss alone.
        backend: "auto" (triton on GPUs, otherwise eager), "triton", "eager" or "reference".

    Returns:
        The loss, float32 (float64 for float64 logits): 0-d, or [B...] for reduction "none".

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape, device or range. The values of tensors
            passed as numbers are checked under the same conditions as labels. Compiled code checks constants when it is
            traced and other numbers when it runs.
        IndexError: a label is outside [0, V) and is not ``ignore_index``. On a GPU, where this check would wait for
            the device, the loss is NaN instead; set NTL_KERNELS_VALIDATE=1 in the environment to get the error.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> cross_entropy_ntl(torch.zeros(4, 8), torch.tensor([2, 7, 1, 5]), numbers)
        tensor(2.3294)

    Limits: numbers must fit float32, the dtype of the losses, even for float64 logits; weights, and the products w u,
    must fit the dtype of the loss. Denominators, given or sums of weights, are 0 or from 1.2e-38 to 3.4e38. ``softcap``
    and ``logit_scale`` may be at most 2.3e38, and ``logit_scale / softcap`` must be a normal float32. For bfloat16 and
    float16 logits on NVIDIA GPUs and softcaps up to 43, the tanh has a relative error of up to 5e-4. With label
    smoothing, if the label's logit is 4 times the softcap, the error of the row's gradient is then up to 3/4 of its
    largest entry; with float32 logits, up to 6e-4.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083; z-loss: PaLM, arXiv 2204.02311;
    softcap: Gemma 2, arXiv 2408.00118.
    """
    check_tensor("logits", logits)
    check_numbers(numbers, logits.shape)
    spec = spec_of(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction)
    rows = RowInputs(labels, token_weights, number_weights)
    given = num_tokens, num_numbers, backend, return_parts
    problem = checked_problem(logits, rows, numbers, config, spec, *given)
    if has_dtensor(logits, *rows):
        from .parallel import tensors  # the import takes a second, which plain calls avoid

        return tensors.cross_entropy(logits, problem, inplace, return_parts)
    return as_result(loss_of_logits(logits, problem, inplace), problem, return_parts)


@explains_options
def linear_cross_entropy_ntl(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    bias: Tensor | None = None,
    chunk_size: int | None = None,
    skip_ignored: bool = True,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    number_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """:func:`cross_entropy_ntl` of ``hidden @ weight.T + bias``, without storing all logits at once.

    The rows are processed in chunks. Each chunk computes its logits, overwrites them with their gradient, and
    multiplies that by ``weight`` and ``hidden``. The gradient of ``weight`` is accumulated in float32. Under autocast
    the matrix products use its dtype, as in :func:`torch.nn.functional.linear`.

    Args:
        hidden: [B..., H] float32, bfloat16 or float16 (float64 not on Triton), H at least 1.
        weight: [V, H] of the same dtype.
        labels: [B...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        bias: [V] of the same dtype.
        chunk_size: rows whose logits are stored at a time; default: chosen from a memory budget and the efficiency of
            the matrix products.
        skip_ignored: leave ignored rows out of the matrix products. Finding them waits for the GPU once; False avoids
            this.
        config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale, token_weights,
            number_weights, num_tokens, num_numbers, return_parts, backend: as for :func:`cross_entropy_ntl`.

    Returns:
        The loss, float32 (float64 for float64 hidden states): 0-d, or [B...] for reduction "none".

    Raises:
        TypeError, ValueError, IndexError: as for :func:`cross_entropy_ntl`.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> hidden, head = torch.zeros(4, 16), torch.nn.Linear(16, 8, bias=False)
        >>> linear_cross_entropy_ntl(hidden, head.weight, torch.tensor([2, 7, 1, 5]), numbers).item()
        2.3294...
    """
    check_linear(hidden, weight, bias, chunk_size)
    check_numbers(numbers, weight.shape[:1])
    spec = spec_of(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction)
    rows = RowInputs(labels, token_weights, number_weights)
    problem = checked_problem(hidden, rows, numbers, config, spec, num_tokens, num_numbers, backend)
    if has_dtensor(hidden, weight, bias, *rows):
        from .parallel import tensors

        return tensors.linear_cross_entropy(hidden, weight, bias, problem, chunk_size, skip_ignored, return_parts)
    return as_result(loss_of_hidden(hidden, weight, bias, problem, chunk_size, skip_ignored), problem, return_parts)
