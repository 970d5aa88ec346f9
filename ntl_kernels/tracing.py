"""Which of two roads a call takes, and what both share.

A *plain* call, which nothing but autograd watches, goes straight to the functions that compute it. Anything else
(a compiler or an exporter, fake tensors, a transform of ``torch.func``, forward-mode derivatives, a dispatch mode,
hooks on saved tensors, a tensor subclass) goes through the operators of :mod:`ntl_kernels.ops`, which change nothing
in place and declare what they keep.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

PLAIN_TYPES = (Tensor, nn.Parameter)


def is_plain(*tensors: Tensor) -> bool:
    """Whether nothing but autograd watches a computation on these tensors."""
    return has_values(*tensors) and not (
        torch._C._len_torch_dispatch_stack() > 0 or is_forward_mode() or has_saved_tensor_hooks()
    )


def has_values(*tensors: Tensor) -> bool:
    """Whether these tensors have values that Python may look at: no trace and no ``torch.func`` transform runs, and
    they are neither fake, nor on the meta device, nor of another type."""
    if is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    for tensor in tensors:  # noqa: SIM110 - a generator costs twice as much, and every call asks
        if type(tensor) not in PLAIN_TYPES or tensor.is_meta:
            return False
    return True


def is_symbolic(number: object) -> bool:
    """Whether a number stands for any that a later call of a trace brings, so that asking for its value would tie the
    trace to it. A constant of a trace does not, and is known.

    Names no module of torch, nor does :func:`ntl_kernels.config.check_number`: where a graph breaks, they run by
    themselves, and a compiler that found one there would trace them alone, with every argument that changes symbolic.
    """
    if isinstance(number, (SymInt, SymFloat)):
        return True
    if not is_compiling() or not isinstance(number, (int, float)):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # a compiler has it loaded; plain calls need not

    return not has_static_value(number)


def has_dtensor(*tensors: Tensor | None) -> bool:
    """Whether any of the tensors is a DTensor."""
    for tensor in tensors:
        if tensor is None or type(tensor) in PLAIN_TYPES:
            continue
        from torch.distributed.tensor import DTensor  # takes a second, which plain calls need not wait for

        if isinstance(tensor, DTensor):
            return True
    return False


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are being taken."""
    return forward_ad._current_level >= 0


def needs_function() -> bool:
    """Whether an `autograd.Function` must stand around the operators: the formulas registered for an operator serve
    neither the transforms of ``torch.func`` nor forward-mode derivatives."""
    return not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or is_forward_mode())


def is_differentiated() -> bool:
    """Whether what is computed now may be differentiated, in reverse mode (in a backward pass: create_graph=True), by a
    transform or in forward mode."""
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or is_forward_mode()


def is_batched(upstream: Tensor) -> bool:
    """Whether an upstream gradient stands for several at once: is_grads_batched=True, jacobian(vectorize=True)."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.is_legacy_batchedtensor(upstream))


def is_transformed(upstream: Tensor) -> bool:
    """Whether the product with an upstream gradient is differentiated or batched."""
    return is_differentiated() or is_batched(upstream)


def has_saved_tensor_hooks() -> bool:
    """Whether what is saved for the backward pass is packed by somebody (checkpoints, offloading)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class NoSecondDerivative(torch.autograd.Function):
    """A gradient, whose derivative by its sources is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "the losses of ntl_kernels have no second derivatives, and their gradient was differentiated "
            "(create_graph=True, or nested torch.func transforms). Their functions have them with backend='reference'"
        )

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "the losses of ntl_kernels have no second derivatives, and their gradient was differentiated in forward "
            "mode (torch.func.hessian, jvp of grad). Their functions have them with backend='reference'"
        )


def refuse_second_derivative(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Let differentiating a gradient by what ``sources`` depend on raise. (torch's own ``once_differentiable`` does so
    only where the upstream gradient has a graph, and otherwise lets the second derivative pass for 0.)"""
    if is_compiling() or not is_differentiated():
        return gradient
    refused: Tensor = NoSecondDerivative.apply(gradient, *sources)
    return refused


def times_upstream(gradient: Tensor, upstream: Tensor, counts: Tensor) -> Tensor:
    """A gradient of N rows times the upstream one (0-d or [N]), in operations that torch can differentiate and batch.

    Rows that do not count (``counts`` [N]) stay 0 even if the upstream gradient is not finite.
    """
    rows = (*gradient.shape[:-1], 1)
    factor = upstream.reshape(rows) if upstream.ndim else upstream
    return (gradient * factor).masked_fill_(~counts.view(rows), 0.0)
