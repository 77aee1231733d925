"""Models as people call them: training with labels, one more token with a cache, images beside text. name -> (module, args, kwargs).

A module that trains is called with gradients; its loss, or the sum of its first result, goes backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from zoo_transformers import (
    LLAMA,
    MODELS,
    SMALL,
    T5,
    VISION,
    ids,
    image,
    labelled,
    padded,
    seen_and_read,
    stem,
)

Built = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
USUAL: dict[str, Callable[[], Built]] = {}


def _made(model: str, config: str, settings: dict[str, Any]) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, stem(model, config))(**settings)).eval()  # type: ignore[no-any-return]


# ---- training ----


def _trained(name: str, arguments: Callable[[], dict[str, Any]] | None) -> Built:
    model, config, settings, usual = MODELS[name]
    return _made(model, config, settings).train(), (), (arguments or usual)()


def _picture_labels(name: str) -> dict[str, Any]:
    given = MODELS[name][3]()
    return {**given, "attention_mask": torch.ones_like(given["input_ids"]), "labels": given["input_ids"].clone()}


for _name in (
    "llama-labels",
    "llama-classes",
    "mixtral-labels",
    "bert-mask",
    "bert-answers",
    "camembert",
    "modernbert",
):
    USUAL[f"{_name}-training"] = partial(_trained, _name, None)
for _name in ("xlm-roberta", "deberta-v2", "mpnet", "t5-labels", "bart-labels", "mbart", "marian", "switch"):
    USUAL[f"{_name}-training"] = partial(_trained, _name, None)
for _name in ("vit-classes", "segformer-labels", "whisper-labels", "prophetnet"):
    USUAL[f"{_name}-training"] = partial(_trained, _name, None)
for _name in (
    "qwen2-moe",
    "qwen3-moe",
    "deepseek-v3",
    "olmoe",
    "granite-moe",
    "phimoe",
    "gpt-oss",
    "gemma3",
    "cohere2",
):
    USUAL[f"{_name}-training"] = partial(_trained, _name, labelled)
for _name in ("llava", "paligemma", "idefics3"):
    USUAL[f"{_name}-training"] = partial(_trained, _name, partial(_picture_labels, _name))


# ---- one more token ----


def _decoder(name: str, cache: str, length: int = 1) -> Built:
    """A step of generation behind eight tokens."""
    import transformers

    model, config, settings, _ = MODELS[name] if name in MODELS else (*_DECODERS[name], None)
    module = _made(model, config, settings)
    given = {"past_key_values": transformers.StaticCache(module.config, max_cache_len=16)} if cache == "static" else {}
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, :3] = 0
    with torch.no_grad():
        filled = module(ids(8), attention_mask=mask, use_cache=True, **given).past_key_values
    mask = torch.cat([mask, torch.ones(2, length, dtype=torch.int64)], 1)
    return module, (), {"input_ids": ids(length), "attention_mask": mask, "past_key_values": filled, "use_cache": True}


def _sequence_decoder(name: str) -> Built:
    """The same of a decoder that reads an encoder's result."""
    model, config, settings, _ = MODELS[name]
    module = _made(model, config, settings)
    with torch.no_grad():
        first = module(**padded(), decoder_input_ids=ids(4), use_cache=True)
    given = {"attention_mask": padded()["attention_mask"], "past_key_values": first.past_key_values, "use_cache": True}
    return module, (), {**given, "encoder_outputs": (first.encoder_last_hidden_state,), "decoder_input_ids": ids(1)}


_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}
_DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "llama": ("LlamaForCausalLM", "", LLAMA),
    "mistral": ("MistralForCausalLM", "", {**LLAMA, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", "", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", "", {**LLAMA, "head_dim": 16, "sliding_window": 8}),
    "gpt-neox": ("GPTNeoXForCausalLM", "", {**SMALL, "max_position_embeddings": 64}),
}
for _name in ("gpt2", "llama", "mistral", "qwen2", "gemma2", "gpt-neox", "mixtral-labels", "qwen3-moe", "deepseek-v3"):
    USUAL[f"{_name}-cache"] = partial(_decoder, _name, "dynamic")
for _name in ("llama", "mistral", "gemma2", "mixtral-labels", "qwen3-moe", "gemma3"):
    USUAL[f"{_name}-static-cache"] = partial(_decoder, _name, "static")
USUAL["llama-drafts"] = partial(_decoder, "llama", "dynamic", 4)
for _name in ("t5-labels", "bart-labels", "mbart", "marian"):
    USUAL[f"{_name}-cache"] = partial(_sequence_decoder, _name)


# ---- images beside text ----

_ROPE = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_QWEN_VL = {
    "text_config": {**LLAMA, "num_key_value_heads": 1, "rope_scaling": _ROPE, "rope_parameters": _ROPE},
    "image_token_id": 3,
    "video_token_id": 4,
    "vision_start_token_id": 1,
    "vision_end_token_id": 2,
}


def _patches(width: int) -> Callable[[], dict[str, Any]]:
    """Text and an image of 4 x 4 patches, each 2 x 2 of which are one place in the text."""

    def arguments() -> dict[str, Any]:
        text = seen_and_read(4)()["input_ids"]
        text[0, 1] = 1
        patches = torch.randn(16, width, generator=torch.Generator().manual_seed(0))
        given = {"input_ids": text, "attention_mask": torch.ones_like(text), "pixel_values": patches}
        return {**given, "image_grid_thw": torch.tensor([[1, 4, 4]]), "mm_token_type_ids": (text == 3).int()}

    return arguments


def _seen(count: int, token: int = 3) -> Callable[[], dict[str, Any]]:
    def arguments() -> dict[str, Any]:
        given = seen_and_read(count, token)()
        return {**given, "attention_mask": torch.ones_like(given["input_ids"])}

    return arguments


_VISION = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
_PICTURES: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "llava-mask": (*MODELS["llava"][:3], _seen(16)),
    "paligemma-mask": (*MODELS["paligemma"][:3], _seen(16)),
    "qwen2-vl": (
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {**_QWEN_VL, "vision_config": {**_VISION, "embed_dim": 32, "hidden_size": 32}},
        _patches(3 * 2 * 8 * 8),
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            **_QWEN_VL,
            "vision_config": {
                **_VISION,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "window_size": 32,
                "fullatt_block_indexes": [1],
            },
        },
        _patches(3 * 2 * 8 * 8),
    ),
    "blip-2": (
        "Blip2ForConditionalGeneration",
        "Blip2Config",
        {
            "vision_config": VISION,
            "qformer_config": {**SMALL, "encoder_hidden_size": 32, "cross_attention_frequency": 1},
            "text_config": {
                "model_type": "opt",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "ffn_dim": 64,
                "vocab_size": 100,
                "max_position_embeddings": 64,
                "word_embed_proj_dim": 32,
            },
            "num_query_tokens": 4,
            "image_token_index": 3,
            "image_token_id": 3,
        },
        _seen(4),
    ),
    "instructblip": (
        "InstructBlipForConditionalGeneration",
        "InstructBlipConfig",
        {
            "vision_config": VISION,
            "qformer_config": {**SMALL, "encoder_hidden_size": 32, "cross_attention_frequency": 1},
            "text_config": {**T5, "model_type": "t5"},
            "num_query_tokens": 4,
            "image_token_index": 3,
        },
        lambda: {**_seen(4)(), "qformer_input_ids": ids(6, 1), "decoder_input_ids": ids(4, 1)},
    ),
    "gemma3-pictures": (
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "text_config": {**LLAMA, "head_dim": 16, "sliding_window": 8},
            "vision_config": {**VISION, "vision_use_head": False},
            "mm_tokens_per_image": 4,
            "image_token_index": 3,
            "image_token_id": 3,
        },
        lambda: {**_seen(4)(), "token_type_ids": (_seen(4)()["input_ids"] == 3).long()},
    ),
    "internvl": (
        "InternVLForConditionalGeneration",
        "InternVLConfig",
        {
            "text_config": {**LLAMA, "model_type": "llama"},
            "vision_config": {**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
            "image_token_id": 3,
            "downsample_ratio": 0.5,
        },
        _seen(4),
    ),
    "git": (
        "GitForCausalLM",
        "GitConfig",
        {**SMALL, "max_position_embeddings": 64, "vision_config": VISION},
        lambda: {**padded(), "pixel_values": image(rows=2)},
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        "SmolVLMConfig",
        MODELS["idefics3"][2],
        MODELS["idefics3"][3],
    ),
    "vilt-answers": (
        "ViltForQuestionAnswering",
        "ViltConfig",
        MODELS["vilt"][2],
        lambda: {**MODELS["vilt"][3](), "pixel_mask": torch.ones(1, 32, 32, dtype=torch.int64)},
    ),
    "vision-text": (
        "CLIPSegForImageSegmentation",
        "CLIPSegConfig",
        {
            "text_config": {**SMALL, "max_position_embeddings": 32, "eos_token_id": 99, "bos_token_id": 1},
            "vision_config": VISION,
            "projection_dim": 16,
            "extract_layers": [0, 1],
            "reduce_dim": 16,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
        lambda: {"input_ids": ids(6, 1), "pixel_values": image(), "labels": torch.zeros(1, 32, 32)},
    ),
}


def _picture(name: str) -> Built:
    model, config, settings, arguments = _PICTURES[name]
    return _made(model, config, settings), (), arguments()


USUAL |= {name: partial(_picture, name) for name in _PICTURES}
