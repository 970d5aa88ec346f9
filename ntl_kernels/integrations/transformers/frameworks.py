"""How other libraries change a model and its training: one entry of `FRAMEWORKS` per library."""

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
    """What is known about a library; fields that do not apply are empty."""

    name: str
    package: str = ""
    """Part of the module names of the classes and functions that it puts into a model."""

    submodule: str = ""
    """The attribute in which its module wrapper stores the wrapped module."""
    model_inside: Callable[[Any], Any] = no_model
    """Returns the model inside its wrapper of a whole model; None for anything else."""
    virtual_tokens: Callable[[Any], int] = no_virtual_tokens
    """Returns how many positions without labels it prepends to every row of a wrapped model."""

    kept_forward: str = ""
    """The attribute in which it stores a model's own forward that it has wrapped."""
    kept_hook: str = ""
    """The attribute in which it stores the hooks that it puts around a module's forward."""
    hook_advice: str = ""
    """How to remove these hooks."""
    kept_head_forward: str = ""
    """The variable in which its wrapper of the head's forward stores that forward."""
    first_forward: str = ""
    """Its component that replaces a model's forward before ours can be installed."""
    later_forward: str = ""
    """Its component that replaces our forward when training starts."""
    instead: str = ""
    """What to use instead of ``later_forward``."""
    class_advice: str = ""
    """What to do if it has replaced the forward of a model class."""
    head_advice: str = ""
    """What to do if the head is an instance of one of its classes."""

    loss_problem: Callable[[str], str] = no_problem
    """Returns why the loss installed by a function of this name is wrong in the current training, or ""."""
    trainer_problem: Callable[[Any], str] = no_problem
    """Returns why our Trainers cannot train with these arguments, phrased to follow the Trainer's name, or ""."""


def base_model(model: Any) -> Any:
    """The model inside PEFT's wrapper."""
    return model.get_base_model() if is_adapted(model) else None


def is_adapted(model: Any) -> bool:
    """Whether a model is a PEFT wrapper."""
    return hasattr(type(model), "get_base_model")


def prompt_tokens(model: Any) -> int:
    """How many positions PEFT's prompt learning prepends to every row; 0 without it.

    Raises:
        ValueError: the kind of prompt learning changes labels or their order.
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
            f"{kind} of {type(model).__name__} puts virtual tokens among the labels, which CE + NTL does not support: "
            "use PREFIX_TUNING, LoRA or another adapter"
        )
    return int(config.num_virtual_tokens)


def replica(model: Any) -> Any:
    """The model inside torch's wrappers for data parallelism."""
    return model.module if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else None


def threads_problem(args: Any) -> str:
    if args.n_gpu <= 1:
        return ""
    return f"does not support DataParallel; got {args.n_gpu} GPUs in one process. Launch with torchrun instead"


def uses_ulysses() -> bool:
    """Whether accelerate uses DeepSpeed's sequence parallelism, where the Trainer weights losses by token counts."""
    state = sys.modules.get("accelerate.state")
    config = state.AcceleratorState._shared_state.get("parallelism_config") if state else None
    return config is not None and config.sp_backend == "deepspeed" and bool(config.sp_enabled)


def ulysses_loss_problem(installer: str) -> str:
    if not uses_ulysses():
        return ""
    return (
        "under DeepSpeed's sequence parallelism (Ulysses) the Trainer weights the losses of the processes by their "
        f"token counts, which makes the NTL of {installer} wrong: use NTLTrainer with context parallelism"
    )


def ulysses_trainer_problem(args: Any) -> str:
    if not uses_ulysses():
        return ""
    return (
        "does not support DeepSpeed's sequence parallelism (Ulysses), which weights the losses of the processes by "
        "their token counts, not by their numbers: use context parallelism (ParallelismConfig(cp_size=...))"
    )


def liger_problem(args: Any) -> str:
    liger = getattr(args, "liger_kernel_config", None) or {}
    if not getattr(args, "use_liger_kernel", False) or liger.get("fused_linear_cross_entropy") is False:
        return ""
    return (
        "needs liger_kernel_config={'fused_linear_cross_entropy': False, ...} with use_liger_kernel, because Liger's "
        f"fused loss replaces the model's loss; got {liger}"
    )


FRAMEWORKS = (
    Framework(
        "PEFT",
        package="peft",
        model_inside=base_model,
        virtual_tokens=prompt_tokens,
        head_advice="remove the head from PEFT's target_modules, modules_to_save and trainable_token_indices",
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
        instead="NTLSFTTrainer for supervised fine-tuning (DPO, GRPO and others have no cross-entropy of labels to add "
        "NTL to: call remove_ntl_from_model(model) for them)",
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
        hook_advice="if the model fits on one device, remove them with accelerate.hooks.remove_hook_from_module(model, "
        "recurse=True); otherwise",
    ),
)


def column(name: str) -> tuple[str, ...]:
    """The non-empty values of this field over all frameworks."""
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
    """The module inside all wrappers of a module."""
    inner = module_inside(module)
    return module if inner is None else unwrap_module(inner)


def module_inside(module: Any) -> Any:
    """The module inside the outermost wrapper of a module; None for a bare one."""
    for name in WRAPPED:
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None:
            return inner
    return None


def check_model_class(model: Any, module: str) -> None:
    """Raise if a framework has replaced the forward of the model's class, judged by the forward's module."""
    for framework in FRAMEWORKS:
        if framework.class_advice and framework.package in module:
            raise ValueError(f"{framework.name} has patched {type(model).__name__}.forward: {framework.class_advice}")


def check_hooks(module: Any, name: str, otherwise: str) -> None:
    """Raise if a framework has put hooks around the forward of a module; ``name`` is its name in the message."""
    for framework in FRAMEWORKS:
        if framework.kept_hook and framework.kept_hook in module.__dict__:
            raise ValueError(
                f"{name} has {framework.name}'s hooks around its forward (from a device_map over several devices, or "
                f"from offloading): {framework.hook_advice} {otherwise}"
            )


def advice_on_head(kind: str, model: Any) -> str:
    """Advice on a model's head of this class, phrased to precede another way to train; empty if there is none."""
    for framework in FRAMEWORKS:
        if framework.head_advice and framework.package in kind:
            embeddings = type(model.get_input_embeddings()).__module__
            if getattr(model.config, "tie_word_embeddings", False) and framework.package in embeddings:
                return f"{framework.name} ties it to the embeddings that it trains, so "
            return f"{framework.head_advice}, or "
    return ""


def check_loss(installer: str) -> None:
    """Raise if the loss installed by a function of this name is wrong in the current training."""
    for framework in FRAMEWORKS:
        problem = framework.loss_problem(installer)
        if problem:
            raise RuntimeError(problem)


def check_arguments(name: str, args: Any) -> None:
    """Raise if a Trainer of this name does not support these arguments."""
    for framework in FRAMEWORKS:
        problem = framework.trainer_problem(args)
        if problem:
            raise ValueError(f"{name} {problem}")
