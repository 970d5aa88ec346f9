"""`cross_entropy_ntl` and `linear_cross_entropy_ntl`: check, and hand down.

The arguments become a :class:`Problem`; :mod:`ntl_kernels.dispatch` has its loss, :mod:`ntl_kernels.parallel.tensors`
that of DTensors.
"""

from __future__ import annotations

from torch import Tensor

from .checks import check_linear, check_logits, check_numbers, checked_problem
from .config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from .dispatch import as_result, loss_of_hidden, loss_of_logits
from .tokens import NumberTokens
from .tracing import has_dtensor


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
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    inplace: bool = False,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """Cross-entropy + lambda * Number Token Loss of logits, with the gradient computed in the same pass.

    Args:
        logits: [..., V] float32, bfloat16 or float16 (float64 not on Triton), any strides.
        labels: [...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        config: kind and weight (lambda) of the Number Token Loss.
        ignore_index: rows with this label do not count, wherever it lies; any int64, also for int32 labels.
        reduction: "mean" is ``sum(w CE) / num_tokens + lambda * sum(w NTL) / num_numbers`` (a term whose
            denominator is 0 is 0; with ``NTLConfig(mean_over="tokens")`` both are divided by ``num_tokens``), "sum"
            the same undivided, "none" ``w (CE + lambda NTL)`` in the labels' shape.
        label_smoothing: epsilon in [0, 1]; this share of the target is spread over the whole vocabulary. A column of
            -inf makes the loss infinite, as in :func:`torch.nn.functional.cross_entropy`.
        z_loss: factor of ``lse ** 2``, which keeps the logsumexp near 0.
        softcap: logits become ``softcap * tanh(logits / softcap)``, after the scale. For bfloat16 and float16 logits on
            NVIDIA GPUs and softcaps up to 43, the tanh has a relative error of up to 5e-4.
        logit_scale: factor of the logits, above 0.
        token_weights: [...] finite non-negative weight w of each row; 0 takes the row out like ``ignore_index``.
        num_tokens: denominator of cross-entropy for "mean" (number or 0-d tensor, 0 or at least 1.2e-38); default:
            sum of the weights of the rows that count. Pass the count of a whole accumulation window for exact gradient
            accumulation.
        num_numbers: the same for NTL; default: sum of the weights of the rows whose label is a number. Give both
            denominators or none, but for ``NTLConfig(mean_over="tokens")``, which does not use this one.
        inplace: let the gradient overwrite the memory of ``logits``, in this call or in the backward pass. Do not
            use them afterwards: what autograd can see of that raises an error in the backward pass (on a GPU the
            gradients become NaN), but a metric, or anything else outside the graph, silently reads the gradient.
        return_parts: return an :class:`NTLOutput` instead of the loss alone.
        backend: "auto" (triton on GPUs, else eager), "triton", "eager" or "reference".

    Returns:
        The loss, float32 (float64 for float64 logits): 0-d, or [...] for reduction "none".

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape, device or range. Numbers must fit float32,
            in which the losses are computed, also where logits are float64; ``softcap`` and ``logit_scale`` go up to
            2.3e38, and ``logit_scale / softcap`` must be a normal float32, too. Tensors in place of numbers are looked
            at where labels are. Compiled code checks constants as it is traced, and numbers that change where it runs.
        IndexError: a label outside [0, V) that is not ``ignore_index``. On a GPU, where looking would wait for the
            device, the loss is NaN instead, unless the environment has NTL_KERNELS_VALIDATE=1.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083; z-loss: PaLM, arXiv 2204.02311;
    softcap: Gemma 2, arXiv 2408.00118.
    """
    check_logits(logits, labels, numbers)
    rows, shares = (labels, token_weights), (num_tokens, num_numbers)
    options = ignore_index, label_smoothing, z_loss, softcap, logit_scale
    problem = checked_problem(logits, rows, numbers, config, options, shares, reduction, backend, return_parts)
    if has_dtensor(logits, labels, token_weights):
        from .parallel import tensors  # costs a second, which plain calls need not

        return tensors.cross_entropy(logits, problem, inplace, return_parts)
    return as_result(loss_of_logits(logits, problem, inplace), problem, return_parts)


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
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """:func:`cross_entropy_ntl` of ``hidden @ weight.T + bias``, without ever holding those logits.

    The rows go through in chunks: logits, their gradient in the same memory, and its products with ``weight`` and
    ``hidden``. The weight's gradient is summed in float32. Under autocast the products run in its dtype, as those of
    :func:`torch.nn.functional.linear` do.

    Args:
        hidden: [..., H] float32, bfloat16 or float16 (float64 not on Triton), H at least 1.
        weight: [V, H] of the same dtype.
        labels: [...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        bias: [V] of the same dtype.
        chunk_size: rows whose logits are held at a time; default: from a memory budget and the products' efficiency.
        skip_ignored: compute only the rows that count. Finding them waits for the GPU once; without it nothing does.
        config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale, token_weights, num_tokens,
            num_numbers, return_parts, backend: as for :func:`cross_entropy_ntl`.

    Returns:
        The loss, float32 (float64 for float64 hidden states): 0-d, or [...] for reduction "none".

    Raises:
        TypeError, ValueError, IndexError: as :func:`cross_entropy_ntl`.
    """
    check_linear(hidden, weight, bias, labels, chunk_size)
    check_numbers(numbers, weight.shape[0])
    rows, shares = (labels, token_weights), (num_tokens, num_numbers)
    options = ignore_index, label_smoothing, z_loss, softcap, logit_scale
    problem = checked_problem(hidden, rows, numbers, config, options, shares, reduction, backend)
    if has_dtensor(hidden, weight, bias, labels, token_weights):
        from .parallel import tensors

        return tensors.linear_cross_entropy(hidden, weight, bias, problem, chunk_size, skip_ignored, return_parts)
    return as_result(loss_of_hidden(hidden, weight, bias, problem, chunk_size, skip_ignored), problem, return_parts)
