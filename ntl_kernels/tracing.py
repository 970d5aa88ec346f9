"""Decides whether a call is plain or traced, and holds what both kinds share.

A *plain* call, which only autograd observes, calls the computing functions directly. Any other call (under a compiler
or exporter, with fake tensors, a ``torch.func`` transform, forward-mode derivatives, a dispatch mode, hooks on saved
tensors or a tensor subclass) is *traced*: it uses the operators of :mod:`ntl_kernels.ops`, which change nothing in
place and declare what they save.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

PLAIN_TYPES = (Tensor, nn.Parameter)


def is_plain(*tensors: Tensor) -> bool:
    """Whether only autograd observes a computation on these tensors."""
    return has_values(*tensors) and not (
        torch._C._len_torch_dispatch_stack() > 0
        or is_forward_mode()
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # checkpointing, offloading
    )


def has_values(*tensors: Tensor) -> bool:
    """Whether Python may read the values of these tensors: no trace or ``torch.func`` transform is active, and they are
    not fake, not on the meta device and not of another type."""
    if is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    for tensor in tensors:  # noqa: SIM110 - a generator takes twice as long, and every call runs this
        if type(tensor) not in PLAIN_TYPES or tensor.is_meta:
            return False
    return True


def is_symbolic(number: object) -> bool:
    """Whether a number is symbolic in a trace, so that reading its value would specialise the trace to it. A constant
    of a trace is not symbolic.

    This function and :func:`ntl_kernels.config.check_number` must not mention a torch module: at a graph break they run
    on their own, and a compiler that finds such a reference would trace them separately with symbolic arguments.
    """
    if isinstance(number, (SymInt, SymFloat)):
        return True
    if not is_compiling() or not isinstance(number, (int, float)):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # compilers have loaded it; plain calls avoid it

    return not has_static_value(number)


def has_dtensor(*tensors: Tensor | None) -> bool:
    """Whether any of the tensors is a DTensor."""
    for tensor in tensors:
        if tensor is None or type(tensor) in PLAIN_TYPES:
            continue
        from torch.distributed.tensor import DTensor  # the import takes a second, which plain calls avoid

        if isinstance(tensor, DTensor):
            return True
    return False


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are being taken."""
    return forward_ad._current_level >= 0


def is_functorch() -> bool:
    """Whether a ``torch.func`` transform is active outside a compiler. It ignores the formulas registered for an
    operator and needs an `autograd.Function`."""
    return not is_compiling() and torch._C._are_functorch_transforms_active()


def is_differentiated() -> bool:
    """Whether the current computation may be differentiated (in a backward pass: create_graph=True, torch.func)."""
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()


def unsupported_transform(*upstreams: Tensor) -> str | None:
    """The name of an active transform that no kernel supports, if any; ``upstreams`` are the gradients given to a
    backward pass."""
    if is_compiling():
        return None
    if is_forward_mode():
        return "forward-mode derivatives (jvp, jacfwd, dual tensors)"
    if torch._C._are_functorch_transforms_active():
        functorch = torch._C._functorch
        active = [interpreter.key() for interpreter in functorch.get_interpreter_stack() or ()]
        if functorch.TransformType.Vmap in active:
            return "vmap (nor jacrev, which uses it)"
    if any(map(torch._C._functorch.is_legacy_batchedtensor, upstreams)):
        return "batched gradients (is_grads_batched=True, jacobian(vectorize=True))"
    return None


def check_transforms(*upstreams: Tensor) -> None:
    """Raise under an :func:`unsupported_transform`."""
    found = unsupported_transform(*upstreams)
    if found:
        raise RuntimeError(f"the losses of ntl_kernels do not support {found}. Use backend='reference', which does")


class NoSecondDerivative(torch.autograd.Function):
    """Passes a gradient through; differentiating it by its sources raises an error."""

    @staticmethod
    def forward(gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "the losses of ntl_kernels have no second derivatives, but their gradient was differentiated "
            "(create_graph=True, or nested torch.func transforms). Use backend='reference', which supports them unless "
            "the vocabulary is sharded"
        )


def refuse_second_derivative(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Make differentiating a gradient by what ``sources`` depend on raise an error. (torch's own
    ``once_differentiable`` does so only if the upstream gradient has a graph; otherwise the second derivative silently
    becomes 0.)"""
    if is_compiling() or not is_differentiated():
        return gradient
    refused: Tensor = NoSecondDerivative.apply(gradient, *sources)
    return refused


def is_autocast(tensor: Tensor) -> bool:
    """Whether autocast may run matrix products of the tensor in another dtype."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)
