"""What other libraries do to a model and to its training: one row of `FRAMEWORKS` for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .model_classes import is_encoder_decoder


def no_model(model: Any) -> None:
    return None


def no_virtual_tokens(model: Any) -> int:
    return 0


def no_problem(given: Any) -> str:
    return ""


class Framework(NamedTuple):
    """What is said of a library; empty where it does no such thing."""

    name: str
    package: str = ""
    """Part of the names of the modules from which it puts classes and functions into a model."""

    submodule: str = ""
    """Under which name its wrapper of any module keeps that module."""
    model_inside: Callable[[Any], Any] = no_model
    """The model inside its wrapper of a whole model; None for what is no such wrapper."""
    virtual_tokens: Callable[[Any], int] = no_virtual_tokens
    """How many positions without a label it puts before every row of a wrapped model."""

    kept_forward: str = ""
    """The attribute in which a model keeps the own forward that it has wrapped."""
    kept_hook: str = ""
    """The attribute in which a module keeps hooks that it has put around its forward."""
    hook_advice: str = ""
    """What to do about them."""
    kept_head_forward: str = ""
    """The variable in which its function around the head's forward keeps that forward."""
    first_forward: str = ""
    """What of it gives a model a forward before ours can be put there."""
    later_forward: str = ""
    """What of it puts a forward in the place of ours when the training begins."""
    instead: str = ""
    """What to use in place of ``later_forward``."""
    class_advice: str = ""
    """What to do about a model class whose forward it has replaced."""
    head_advice: str = ""
    """What to do about a head of one of its classes."""

    loss_problem: Callable[[str], str] = no_problem
    """What is wrong with the loss that a function of this name put on a model, as the training is now; else ""."""
    trainer_problem: Callable[[Any], str] = no_problem
    """Why our Trainers cannot train with such arguments of theirs, after their name; else ""."""


def base_model(model: Any) -> Any:
    """The model inside PEFT's wrapper."""
    return model.get_base_model() if is_adapted(model) else None


def is_adapted(model: Any) -> bool:
    """Whether it is PEFT's wrapper of a model."""
    return hasattr(type(model), "get_base_model")


def prompt_tokens(model: Any) -> int:
    """How many positions PEFT's prompt learning puts before every row, else 0.

    Raises:
        ValueError: a way of prompt learning that changes labels or their order.
    """
    while not is_adapted(model):
        inner = getattr(model, "module", None) or unwrap_module(model)
        if inner is model:
            return 0
        model = inner
    config = getattr(model, "active_peft_config", None)
    if config is None or not config.is_prompt_learning:
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


def replica(model: Any) -> Any:
    """The model inside torch's wrappers for data parallelism."""
    return model.module if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else None


def threads_problem(args: Any) -> str:
    if args.n_gpu <= 1:
        return ""
    return f"does not support DataParallel; got {args.n_gpu} GPUs in one process: use torchrun"


def uses_ulysses() -> bool:
    """Whether accelerate runs DeepSpeed's sequence parallelism, in which the Trainer weighs losses by token counts."""
    state = sys.modules.get("accelerate.state")
    config = state.AcceleratorState._shared_state.get("parallelism_config") if state else None
    return config is not None and config.sp_backend == "deepspeed" and bool(config.sp_enabled)


def ulysses_loss_problem(installer: str) -> str:
    if not uses_ulysses():
        return ""
    return (
        "under DeepSpeed's sequence parallelism (Ulysses) the Trainer weighs the losses of the processes by their "
        f"tokens, and with them the NTL of {installer}: use NTLTrainer with context parallelism"
    )


def ulysses_trainer_problem(args: Any) -> str:
    if not uses_ulysses():
        return ""
    return (
        "does not support DeepSpeed's sequence parallelism (Ulysses), which weighs the losses of the "
        "processes by their tokens, not by their numbers: use context parallelism (ParallelismConfig(cp_size=...))"
    )


def liger_problem(args: Any) -> str:
    liger = getattr(args, "liger_kernel_config", None) or {}
    if not getattr(args, "use_liger_kernel", False) or liger.get("fused_linear_cross_entropy") is False:
        return ""
    return (
        "needs liger_kernel_config={'fused_linear_cross_entropy': False, ...} beside use_liger_kernel: "
        f"Liger's replaces the model's loss; got {liger}"
    )


FRAMEWORKS = (
    Framework(
        "PEFT",
        package="peft",
        model_inside=base_model,
        virtual_tokens=prompt_tokens,
        head_advice="take the head out of PEFT's target_modules and modules_to_save",
    ),
    Framework("torch's data parallelism", model_inside=replica, trainer_problem=threads_problem),
    Framework("FSDP", submodule="_fsdp_wrapped_module"),
    Framework("torch.compile", submodule="_orig_mod"),
    Framework("torch's checkpoint wrapper", submodule="_checkpoint_wrapped_module"),
    Framework(
        "transformers' tensor parallelism",
        package="transformers.distributed.tensor_parallel",
        kept_head_forward="original_forward",
    ),
    Framework("DeepSpeed", loss_problem=ulysses_loss_problem, trainer_problem=ulysses_trainer_problem),
    Framework(
        "TRL",
        later_forward="TRL's Trainers",
        instead="NTLSFTTrainer for supervised fine-tuning (DPO, GRPO and others have no cross-entropy of labels that "
        "NTL could join: remove_ntl_from_model(model) for them)",
    ),
    Framework(
        "Liger",
        package="liger_kernel",
        first_forward="Liger's fused_linear_cross_entropy",
        later_forward="Liger's fused_linear_cross_entropy",
        instead="liger_kernel_config={'fused_linear_cross_entropy': False}",
        class_advice="apply Liger's kernels with fused_linear_cross_entropy=False",
        trainer_problem=liger_problem,
    ),
    Framework(
        "accelerate",
        kept_forward="_original_forward",
        kept_hook="_hf_hook",
        hook_advice="if one device holds the model, take them off by accelerate.hooks.remove_hook_from_module(model, "
        "recurse=True); else",
    ),
)


def column(name: str) -> tuple[str, ...]:
    """What the frameworks that say anything under this name say."""
    return tuple(getattr(framework, name) for framework in FRAMEWORKS if getattr(framework, name))


WRAPPED = column("submodule")
KEPT_FORWARDS = column("kept_forward")


def unwrap_model(model: Any) -> Any:
    """The bare model inside all wrappers."""
    while True:
        inner = model_inside(model)
        if inner is None:
            return model
        model = inner


def model_inside(model: Any) -> Any:
    """The model inside the outermost wrapper; None for a bare one."""
    for framework in FRAMEWORKS:
        inner = framework.model_inside(model)
        if inner is not None:
            return inner
    return module_inside(model)


def unwrap_module(module: Any) -> Any:
    """The module inside wrappers of any module."""
    inner = module_inside(module)
    return module if inner is None else unwrap_module(inner)


def module_inside(module: Any) -> Any:
    """The module inside the outermost wrapper of any module; None for a bare one."""
    for name in WRAPPED:
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None:
            return inner
    return None


def check_model_class(model: Any, module: str) -> None:
    """Raise if the forward of the model's class is one that a framework has put there, by the forward's module."""
    for framework in FRAMEWORKS:
        if framework.class_advice and framework.package in module:
            raise ValueError(f"{framework.name} has patched {type(model).__name__}.forward: {framework.class_advice}")


def check_hooks(module: Any, name: str, otherwise: str) -> None:
    """Raise if a framework has put hooks around the forward of a module of this name."""
    for framework in FRAMEWORKS:
        if framework.kept_hook and framework.kept_hook in module.__dict__:
            raise ValueError(
                f"{name} has {framework.name}'s hooks around its forward (of a device_map over several devices, or of "
                f"offloading): {framework.hook_advice} {otherwise}"
            )


def advice_on_head(kind: str) -> str:
    """What to do about a head of this class, in brackets; empty if no framework has any advice."""
    return "".join(
        f" ({framework.head_advice})" for framework in FRAMEWORKS if framework.head_advice and framework.package in kind
    )


def check_loss(installer: str) -> None:
    """Raise if a loss that a function of this name put on a model means something else as the training is now."""
    for framework in FRAMEWORKS:
        problem = framework.loss_problem(installer)
        if problem:
            raise RuntimeError(problem)


def check_arguments(name: str, args: Any) -> None:
    """Raise if a Trainer of this name cannot train rightly with such arguments."""
    for framework in FRAMEWORKS:
        problem = framework.trainer_problem(args)
        if problem:
            raise ValueError(f"{name} {problem}")
