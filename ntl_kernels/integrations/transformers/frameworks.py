"""How other libraries change a model and its training: wrappers, adapters, hooks, other forwards, other divisors."""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState
from torch import nn

from .models import is_encoder_decoder

WRAPPED = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
"""Where FSDP, torch.compile and torch's checkpoint wrapper store the module that they wrap."""
KEPT_FORWARD = "_original_forward"
"""Where accelerate stores a model's own forward that it has wrapped."""
LIGER_FORWARD = "Liger's fused_linear_cross_entropy"
REPLACED_FORWARD = (
    f"TRL's Trainers and {LIGER_FORWARD} replace the forward: use NTLSFTTrainer for supervised fine-tuning (DPO, GRPO "
    "and others have no cross-entropy of labels to add NTL to: call remove_ntl_from_model(model) for them), and "
    "liger_kernel_config={'fused_linear_cross_entropy': False}"
)
"""Advice where something has replaced our forward."""


def is_adapted(model: Any) -> bool:
    """Whether a model is a PEFT wrapper."""
    return hasattr(type(model), "get_base_model")


def model_inside(model: Any) -> Any:
    """The model inside the outermost wrapper; a bare model itself."""
    if is_adapted(model):
        return model.get_base_model()
    is_replica = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
    modules = getattr(model, "_modules", {})
    inside = [modules[name] for name in (("module",) if is_replica else WRAPPED) if name in modules]
    return inside[0] if inside else model  # torch 2.8 cannot trace next() with a default


def unwrap_model(model: Any) -> Any:
    """The bare model inside all wrappers."""
    inner = model_inside(model)
    return model if inner is model else unwrap_model(inner)


def find_head(model: Any) -> Any:
    """The module of a bare model that computes the logits."""
    return unwrap_model(model.get_output_embeddings())


def virtual_tokens(model: Any) -> int:
    """How many positions without labels PEFT's prompt learning prepends to a row; raise if it puts them elsewhere."""
    while not is_adapted(model):
        inner = model_inside(model)
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


def check_hooks(module: Any, name: str, otherwise: str) -> None:
    """Raise if accelerate has put hooks around the forward of a module; ``name`` is its name in the message."""
    if "_hf_hook" in module.__dict__:
        raise ValueError(
            f"{name} has accelerate's hooks around its forward (from a device_map over several devices, or from "
            "offloading): if the model fits on one device, remove them with "
            f"accelerate.hooks.remove_hook_from_module(model, recurse=True); otherwise {otherwise}"
        )


def advice_on_head(kind: str, model: Any) -> str:
    """Advice on a model's head of this class, phrased to precede another way to train; empty if there is none."""
    if "peft" not in kind:
        return ""
    embeddings = type(model.get_input_embeddings()).__module__
    if getattr(model.config, "tie_word_embeddings", False) and "peft" in embeddings:
        return "PEFT ties it to the embeddings that it trains, so "
    return "remove the head from PEFT's target_modules, modules_to_save and trainable_token_indices, or "


def uses_ulysses() -> bool:
    """Whether accelerate uses DeepSpeed's sequence parallelism, where the Trainer weights losses by token counts."""
    config = AcceleratorState._shared_state.get("parallelism_config")
    return config is not None and config.sp_backend == "deepspeed" and bool(config.sp_enabled)


def check_arguments(name: str, args: Any) -> None:
    """Raise if a Trainer of this name does not support these arguments."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{name} does not support DataParallel; got {args.n_gpu} GPUs in one process. Launch with torchrun instead"
        )
    if uses_ulysses():
        raise ValueError(
            f"{name} does not support DeepSpeed's sequence parallelism (Ulysses), which weights the losses of the "
            "processes by their token counts, not by their numbers: use context parallelism "
            "(ParallelismConfig(cp_size=...))"
        )
    liger = getattr(args, "liger_kernel_config", None) or {}
    if getattr(args, "use_liger_kernel", False) and liger.get("fused_linear_cross_entropy") is not False:
        raise ValueError(
            f"{name} needs liger_kernel_config={{'fused_linear_cross_entropy': False, ...}} with use_liger_kernel, "
            f"because Liger's fused loss replaces the model's loss; got {liger}"
        )
