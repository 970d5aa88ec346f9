"""What the integration has to know about a model: what wraps it, where its head is, how it reads labels."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn

WRAPPED = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
"""Where FSDP, torch.compile and checkpoint wrappers keep the module they wrap."""

UNSHIFTED = frozenset(
    {
        "BartForCausalLM",
        "BigBirdPegasusForCausalLM",
        "BlenderbotForCausalLM",
        "BlenderbotSmallForCausalLM",
        "CpmAntForCausalLM",
        "FlaubertWithLMHeadModel",
        "MBartForCausalLM",
        "MarianForCausalLM",
        "MvpForCausalLM",
        "PLBartForCausalLM",
        "PegasusForCausalLM",
        "ProphetNetForCausalLM",
        "TrOCRForCausalLM",
        "WhisperForCausalLM",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    }
)
"""Decoder-only classes whose own loss compares position t with label t: whoever calls them has shifted the labels."""


def unwrap_model(model: Any) -> Any:
    """The bare model inside PEFT, data parallelism, FSDP or torch.compile."""
    while True:
        if hasattr(type(model), "get_base_model"):
            model = model.get_base_model()
        elif isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif any(name in model.__dict__.get("_modules", {}) for name in WRAPPED):
            model = unwrap_module(model)
        else:
            return model


def unwrap_module(module: Any) -> Any:
    """The module inside FSDP, torch.compile or checkpoint wrappers."""
    for name in WRAPPED:
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None:
            return unwrap_module(inner)
    return module


def find_head(model: Any) -> Any:
    """The module that makes logits."""
    return unwrap_module(model.get_output_embeddings())


def is_encoder_decoder(model: Any) -> bool:
    """Whether the model feeds its decoder the labels, shifted to the right."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def shifts_labels(model: Any) -> bool:
    """Whether position t of the model predicts label t + 1, as its own loss has it."""
    base = unwrap_model(model)
    names = {cls.__name__ for cls in type(base).__mro__}
    return not (is_encoder_decoder(base) or "MaskedLM" in type(base).__name__ or names & UNSHIFTED)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """The ids that an encoder-decoder model feeds its decoder for labels [..., T]: [..., T].

    By the model's method for it, or else by its module's function, as the model's own forward makes them.

    Raises:
        ValueError: the model has neither.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return prepare(labels)
    for cls in type(model).__mro__:
        shift_right = getattr(sys.modules.get(cls.__module__), "shift_tokens_right", None)
        if shift_right is not None:
            return shift_right(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    raise ValueError(
        f"{type(model).__name__} does not say how its decoder's inputs come from labels: let the collator put "
        "decoder_input_ids into every batch"
    )


def auxiliary_loss(base: Any, outputs: Any) -> Tensor | None:
    """What a mixture of experts adds to its loss, its factor included."""
    auxiliary = outputs.get("aux_loss") if isinstance(outputs, dict) else None
    if auxiliary is None:
        return None
    coefficient = getattr(base, "router_aux_loss_coef", None)
    if coefficient is None:
        raise ValueError(f"{type(base).__name__} returned an auxiliary loss, but has no router_aux_loss_coef")
    return coefficient * auxiliary


def virtual_tokens(model: Any) -> int:
    """How many positions without a label PEFT puts before every row: those of prompt learning, else 0.

    Raises:
        ValueError: a way of prompt learning that changes labels or their order.
    """
    while not hasattr(type(model), "get_base_model"):
        inner = getattr(model, "module", None) or unwrap_module(model)
        if inner is model:
            return 0
        model = inner
    config = model.active_peft_config
    if not config.is_prompt_learning:
        return 0
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind in ("PREFIX_TUNING", "CARTRIDGE"):  # these extend the keys and values, not the rows
        return 0
    if kind == "CPT" or is_encoder_decoder(unwrap_model(model)):
        raise ValueError(
            f"{kind} of {type(model).__name__} puts virtual tokens among the labels, which CE + NTL does not follow: "
            "use PREFIX_TUNING, LoRA or another adapter"
        )
    return int(config.num_virtual_tokens)


def uses_ulysses() -> bool:
    """Whether accelerate runs DeepSpeed's sequence parallelism, in which the Trainer weighs losses by token counts."""
    state = sys.modules.get("accelerate.state")
    config = state.AcceleratorState._shared_state.get("parallelism_config") if state else None
    return config is not None and config.sp_backend == "deepspeed" and bool(config.sp_enabled)


def unbound(function: Any) -> Any:
    """The function of partials and bound methods."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def innermost(function: Any) -> Any:
    """The function beneath partials, bound methods and ``functools.wraps``."""
    while True:
        function = unbound(function)
        if not hasattr(function, "__wrapped__"):
            return function
        function = function.__wrapped__


def describe(function: Any) -> str:
    """Where a function's code is; what it wraps may be elsewhere and have lent it its name."""
    function = unbound(function)
    if not hasattr(function, "__code__"):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{function.__globals__.get('__name__', '?')}.{function.__code__.co_name}"


def calls_loss_function(model: Any) -> bool:
    """Whether the model's forward, or one that it derives from, calls ``model.loss_function``."""
    forwards = [cls.__dict__["forward"] for cls in type(model).__mro__ if "forward" in cls.__dict__]
    return hasattr(type(model), "loss_function") and any("loss_function" in names_in(forward) for forward in forwards)


def names_in(function: Callable[..., Any]) -> set[str]:
    """The attributes and globals that a function's code names, those of functions inside it included."""
    names, codes = set(), [getattr(innermost(function), "__code__", None)]
    while codes:
        code = codes.pop()
        if code is not None:
            names |= set(code.co_names)
            codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names
