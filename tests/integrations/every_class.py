"""Small random models of every class of transformers that predicts text, and batches for them.

``python -m tests.integrations.every_class`` compares each with itself patched, and prints the outcomes in Markdown.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.integrations.transformers import LogitTransform, apply_ntl_to_model, patch
from ntl_kernels.integrations.transformers.forwards import INSTALLED

from .models import VOCAB, assert_same_gradients, gradients, make_batch

MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM")
DIGITS = {10 + digit: float(digit) for digit in range(10)}
MOST_PARAMETERS = 25_000_000


def each(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **each("hidden_size d_model n_embd embed_dim emb_dim projection_dim out_hidden_size text_hidden_size", 16),
    **each(
        "decoder_hidden_size audio_hidden_size patch_embed_hidden_size projector_hidden_size hidden_size_global", 16
    ),
    **each("intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim dim_ff moe_intermediate_size", 24),
    **each("ffn_hidden_size expert_ffn_hidden_size", 24),
    **each("num_hidden_layers n_layer n_layers num_layers depth num_decoder_layers encoder_layers decoder_layers", 2),
    **each("num_attention_heads n_head num_heads attention_heads encoder_attention_heads decoder_attention_heads", 2),
    **each("num_key_value_heads linear_num_key_heads linear_num_heads num_experts_per_tok moe_topk moe_k", 2),
    **each("head_dim d_kv linear_key_head_dim linear_value_head_dim q_lora_rank kv_lora_rank image_size", 8),
    **each(
        "num_experts num_local_experts n_routed_experts qk_rope_head_dim mamba_n_heads mamba_num_heads patch_size", 4
    ),
    **each("n_group topk_group n_shared_experts n_groups latent_query_num num_query_tokens", 1),
    **each("vocab_size vocab_size_per_layer_input", VOCAB),
    **each("num_kv_shared_layers pad_token_id", 0),
    **each("final_logit_softcapping logits_soft_cap output_logit_soft_cap", 2.0),
}
"""The value of every field of this name, in any configuration."""
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "decoder_start_token_id": 2, "mamba_d_ssm": 32}
SIZES |= {"num_channels": 3, "is_decoder": True, "use_cache": False, "router_jitter_noise": 0.0, "sliding_window": 8}
SIZES |= {"output_router_logits": True, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1, "index_n_heads": 2}
SIZES |= {"lm_head_multiplier": 0.7, "logit_scale": 3.0, "logits_scaling": 0.25, "max_position_embeddings": 64}

IMAGE = 90
"""The token of an image; no other token of the batch is this one."""
ROPE = {"rope_type": "default", "rope_theta": 1e4}
MROPE = {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}}
BERT = {"model_type": "bert", "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DECODER = BERT | {"is_decoder": True, "add_cross_attention": True}
VIT = BERT | {"model_type": "vit", "image_size": 8, "patch_size": 4}
CLIP = {"model_type": "clip_vision_model", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
EXTRA: dict[str, dict[str, Any]] = {
    **each("Qwen2VLText Qwen2_5_VLText Qwen2_5OmniText PaddleOCRText Glm4vText Glm4vMoeText GlmOcrText", MROPE),
    **each("Cosmos3EdgeText HunYuanVLText", MROPE),
    **each("ChameleonVQVAE Emu3VQVAE JanusVQVAE", {"base_channels": 32, "channel_multiplier": [1]}),
    **each("Inkling InklingText Inkling2 Inkling2Text", {"vocab_size": 120, "unpadded_vocab_size": VOCAB}),
    **each("Gemma4Text Gemma4UnifiedText", {"global_head_dim": 8}),
    **each("Chameleon Emu3", {"vocabulary_map": {"<image>": IMAGE, "IMGIMGAZ": 91}}),
    **each("Blip2 InstructBlip InstructBlipVideo", {"image_token_index": IMAGE, "video_token_index": IMAGE}),
    **each("Qwen2_5OmniThinker Qwen3OmniMoeThinker", {"vision_start_token_id": 91}),
    **each("GraniteSpeechEncoder GraniteSpeechPlusEncoder", {"hidden_dim": 16}),
    **each("NllbMoe SwitchTransformers", {"encoder_sparse_step": 2, "decoder_sparse_step": 2}),
    "CohereCompassText": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "Dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}, "ffn_config": {"hidden_size": 16, "moe_top_k": 2}},
    "Dots3NoteVision": {"adapter_in_dim": 16, "adapter_out_dim": 16, "mlp_layer_types": ["dense", "sparse"]},
    "Ernie4_5_VLMoeText": {"rope_parameters": ROPE | {"mrope_section": [1, 1, 2]}, "moe_intermediate_size": [24, 24]},
    "Florence2Vision": {"embed_dim": [8], "patch_size": [3], "num_heads": [1], "num_groups": [1]},
    "Glm5NextText": {"qk_rope_head_dim": 0, "mlp_layer_types": ["dense", "sparse"]},
    "Granite4Vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2", "vision_config": CLIP},
    "MuseSparkAudio": {"num_hidden_layers": 1, "patch_sizes": [4], "hidden_sizes": [16], "depths": [1]},
    "Zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
}
"""Further fields of single configurations, by the names of their classes without Config."""
EXTRA |= {"EncoderDecoder": {"encoder": BERT, "decoder": DECODER}, "CodeGen": {"n_head": 4, "rotary_dim": 4}}
EXTRA |= {"VisionEncoderDecoder": {"encoder": VIT, "decoder": DECODER}, "Mamba2": {"num_heads": 4}}
EXTRA |= {"Lfm2Moe": {"layer_types": ["conv", "full_attention"]}, "Molmo2Adapter": {"vision_feature_layer": [0, 1]}}
EXTRA |= {"Dots3NoteAudio": {"adapter_input_size": 16, "adapter_out_dim": 16}, "GPTJ": {"rotary_dim": 4}}
EXTRA |= {"GPTNeo": {"attention_types": [[["global", "local"], 1]]}, "Reformer": {"axial_pos_embds": False}}
EXTRA |= {"Zamba2": {"layers_block_type": ["linear_attention", "hybrid"]}, "LongcatFlash": {"head_dim": 4}}
EXTRA |= {"DeepseekV4": {"mlp_layer_types": ["hash_moe", "moe"]}, "Molmo2Vision": {"image_size": [8, 8]}}
EXTRA |= {"DeepseekOcr2Text": {"mlp_layer_types": ["dense", "sparse"]}, "Xmod": {"default_language": "en_XX"}}
EXTRA |= {"Flint": {"mlp_only_layers": [0]}, "Doge": {"is_moe": True}, "Radio": {"video_temporal_patch_size": 2}}
EXTRA |= {"Blt": {"encoder_hash_byte_group_vocab": 50}, "Nemotron3_5TranscribeWordTimestamp": {"blank_token_id": 1}}
EXTRA |= {"MiMoV2Flash": {"num_key_value_heads": 1}, "Zaya": {"num_experts_per_tok": 1}}
EXTRA |= {"Luke": {"entity_vocab_size": 7, "entity_emb_size": 8}}
EXTRA |= {"VibeVoiceAcousticTokenizerEncoder": {"downsampling_ratios": [2]}}


def ramp(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).view(shape)


PIXELS, ONE_FRAME = {"pixel_values": ramp(3, 3, 8, 8)}, {"pixel_values": ramp(3, 1, 3, 8, 8)}
NO_TEXT = each("input_ids attention_mask", None)
FIRST = torch.arange(9).expand(3, 9) == 0
WITH_IMAGE = PIXELS | {"input_ids": make_batch()["input_ids"].masked_fill(FIRST, IMAGE)}
WITH_QUESTION = WITH_IMAGE | {"qformer_input_ids": torch.ones(3, 2, dtype=torch.long)}
PATCHES = torch.cat([torch.arange(1.0, 6.0).view(1, 5, 1).expand(3, 5, 2), ramp(3, 5, 16)], dim=-1)
INPUTS: dict[str, dict[str, Any]] = {
    **each("BlipForConditionalGeneration GitForCausalLM PPFormulaNetForConditionalGeneration", PIXELS),
    "Blip2ForConditionalGeneration": WITH_IMAGE,
    "IdeficsForVisionText2Text": ONE_FRAME | {"image_attention_mask": torch.ones(3, 9, 1)},
    "InstructBlipForConditionalGeneration": WITH_QUESTION,
    "InstructBlipVideoForConditionalGeneration": WITH_QUESTION | ONE_FRAME,
    "Kosmos2ForConditionalGeneration": PIXELS | {"image_embeds_position_mask": FIRST.long()},
    "Molmo2ForConditionalGeneration": {"mm_token_type_ids": torch.zeros(3, 9, dtype=torch.long)},
    "Pix2StructForConditionalGeneration": NO_TEXT | {"flattened_patches": PATCHES},
    "SwitchTransformersForConditionalGeneration": {"output_router_logits": True},
    "UdopForConditionalGeneration": {"bbox": ramp(3, 9, 4).abs()},
    "VisionEncoderDecoderModel": NO_TEXT | PIXELS,
    "VoxtralRealtimeForConditionalGeneration": {"encoder_inputs_embeds": ramp(3, 36, 16)},
}
"""What a batch has besides tokens, mask and labels; None: what it has not."""
UNBUILT = {
    **each("FastVlmForConditionalGeneration Gemma3nForConditionalGeneration", "needs timm"),
    **each("PerceptionLMForConditionalGeneration", "needs timm"),
    **each("DiffusionGemmaForBlockDiffusion Gemma4AssistantForCausalLM", "has no loss"),
    **each("Gemma4UnifiedAssistantForCausalLM", "has no loss"),
    **each("MusicgenForCausalLM MusicgenMelodyForCausalLM PI0ForConditionalGeneration", "predicts no text"),
}
"""Classes that are not tried, and why."""


def class_names() -> list[str]:
    """Every class of the mappings."""
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES") for name in MAPPINGS]
    values = [value for mapping in mappings for value in mapping.values()]
    return sorted({name for value in values for name in ([value] if isinstance(value, str) else value)})


def small_config(cls: Any) -> Any:
    """A configuration of this class and its parts with the values of SIZES and EXTRA, without dropout."""
    extra = EXTRA.get(cls.__name__.removesuffix("Config"), {})
    default = cls(**{side: extra[side] for side in ("encoder", "decoder") if side in extra})
    given = {name: 0.0 for name, value in vars(default).items() if "drop" in name and isinstance(value, float)}
    given |= {
        name: value
        for name, value in SIZES.items()
        if name in {*getattr(cls, "__dataclass_fields__", ()), *vars(default)}
    }
    for name in cls.sub_configs:
        if hasattr(getattr(default, name), "model_type"):  # not an absent part
            given[name] = small_config(type(getattr(default, name)))
    if "qk_rope_head_dim" in given:  # such a head has two parts
        given.pop("head_dim", None)
    config = cls(**given | extra)
    if config.is_encoder_decoder:
        config.pad_token_id, config.decoder_start_token_id = 0, 2
    return config


def make(name: str) -> tuple[Any, dict[str, Tensor]]:
    """A model of this class in training mode, whose logits are large enough to show their transform, and a batch."""
    cls = getattr(transformers, name)
    config = small_config(cls.config_class)
    with torch.device("meta"):
        if cls(config).num_parameters() > MOST_PARAMETERS:
            raise ValueError(f"{name} is too large")
    torch.manual_seed(0)
    model = cls(config).train()
    head, bias = model.get_output_embeddings(), getattr(model, "final_logits_bias", None)
    with torch.no_grad():
        for tensor in [*(head.parameters() if head else ()), *([] if bias is None else [bias])]:
            tensor.normal_(std=0.5)
    batch = batch_for(name)
    trained(copy.deepcopy(model), batch)  # raises if the stock model cannot be trained
    return model, batch


def batch_for(name: str, seed: int = 0) -> dict[str, Tensor]:
    """Tokens, mask and labels, and what a model of this class needs besides."""
    batch: dict[str, Any] = make_batch(seed=seed) | INPUTS.get(name, {})
    return {key: value for key, value in batch.items() if value is not None}


def trained(model: Any, batch: Any, loss_of: Callable[[Any], Tensor] = lambda output: output.loss) -> tuple[Any, Any]:
    """The loss of a model and its gradients."""
    torch.manual_seed(1)
    loss = loss_of(model(**batch))
    loss.backward()
    return loss.detach(), gradients(model)


def assert_same(actual: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=0.0)
    assert_same_gradients(actual[1], expected[1])


def check(model: Any, batch: dict[str, Tensor]) -> str:
    """Compare the loss and gradients of a model once it is patched with the stock ones; returns what they involve."""
    stock, head = copy.deepcopy(model), model.get_output_embeddings()
    numbers = NumberTokens.from_mapping(DIGITS, head.weight.shape[0] if head else VOCAB)
    with mock.patch.object(patch, "guessed_transform", return_value=LogitTransform()):  # so that it has to be read
        apply_ntl_to_model(model, numbers, NTLConfig(weight=0.0))
        assert_same(trained(model, batch), trained(stock, batch))
    installed, involved = getattr(model, INSTALLED), []
    transform, shifts = installed.reading.transform, installed.options.shift  # which the equal losses have confirmed

    def with_ntl(output: Any) -> Tensor:
        targets = F.pad(batch["labels"][:, 1:], (0, 1), value=-100) if shifts else batch["labels"]
        configs = [NTLConfig(weight=weight) for weight in (0.0, 0.3)]
        plain, ntl = (
            cross_entropy_ntl(output.logits, targets, numbers, config=c, backend="reference") for c in configs
        )
        involved.extend(["router loss"] if abs(output.loss - plain) > 1e-3 else [])
        return output.loss + ntl - plain

    apply_ntl_to_model(model, numbers, NTLConfig(weight=0.3))
    assert_same(trained(model, batch), trained(stock, batch, with_ntl))
    involved += ["scale"] if transform.logit_scale != 1 else []
    return ", ".join(involved + (["softcap"] if transform.softcap else [])) or "plain logits"


def outcome(name: str) -> tuple[str, str]:
    """What becomes of a class: right, wrong, refused, not built or not tried; and what it involves, or why."""
    if name in UNBUILT:
        return "not tried", UNBUILT[name]
    result = "not built"
    try:
        model, batch = make(name)
        result = "refused"
        return "right", check(model, batch)
    except AssertionError as error:
        return "wrong", f"{error}"
    except Exception as error:
        return result, f"{type(error).__name__}: {error}".replace(name, "it")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    found = defaultdict(list)
    for name in class_names():
        result, why = outcome(name)
        found[result, why.split("\n")[0]].append(name)
    print(f"Classes of transformers {transformers.__version__}:\n\n| Outcome | Count | Classes |\n|---|---|---|")
    for (result, why), names in sorted(found.items()):
        print(f"| {result}: {why} | {len(names)} | {', '.join(names)} |")
