"""More tiny models of transformers, in the forms that people call them: with labels, masks, images beside text, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Arguments = Callable[[], dict[str, Any]]
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
_TEXT = {**SMALL, "max_position_embeddings": 64, "pad_token_id": 0}
LLAMA = {**_TEXT, "num_key_value_heads": 1}
_HEADS = {**LLAMA, "head_dim": 16}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 100,
    "decoder_start_token_id": 0,
}
_DEEPSEEK = {
    **_TEXT,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
_EXPERTS = {**_HEADS, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
SPEECH = {
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    "vocab_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def ids(length: int = 12, rows: int = 2) -> torch.Tensor:
    """Token ids, shape (rows, length), int64, none of them special."""
    return torch.randint(5, 100, (rows, length), generator=_generator())


def image(size: int = 32, rows: int = 1, channels: int = 3) -> torch.Tensor:
    """An image, shape (rows, channels, size, size), float32."""
    return torch.randn(rows, channels, size, size, generator=_generator())


def padded() -> dict[str, Any]:
    """Rows of two lengths, with their mask."""
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def labelled() -> dict[str, Any]:
    """Rows with a mask and the tokens that are to be found."""
    return {**padded(), "labels": ids()}


def classified() -> dict[str, Any]:
    """Rows with a mask and a class each."""
    return {**padded(), "labels": torch.tensor([0, 1])}


def answered() -> dict[str, Any]:
    """An encoder's and a decoder's tokens."""
    return {**padded(), "labels": ids(8)}


def pictured(size: int = 32) -> Arguments:
    """One image."""
    return lambda: {"pixel_values": image(size)}


def spoken() -> dict[str, Any]:
    """Two waves."""
    return {"input_values": torch.randn(2, 1000, generator=_generator())}


def seen_and_read(count: int, token: int = 3) -> Arguments:
    """Text with a place for each of the `count` patches of an image."""

    def arguments() -> dict[str, Any]:
        text = ids(6, 1)
        places = torch.full((1, count), token)
        return {"input_ids": torch.cat([text[:, :2], places, text[:, 2:]], 1), "pixel_values": image()}

    return arguments


# name -> (class, its config class where that has another stem, settings, arguments)
MODELS: dict[str, tuple[str, str, dict[str, Any], Arguments]] = {
    "qwen2-moe": ("Qwen2MoeForCausalLM", "", {**_EXPERTS, "shared_expert_intermediate_size": 32}, padded),
    "qwen3-moe": ("Qwen3MoeForCausalLM", "", _EXPERTS, padded),
    "deepseek-v3": ("DeepseekV3ForCausalLM", "", {**_DEEPSEEK, "n_group": 2, "topk_group": 1}, padded),
    "deepseek-v2": ("DeepseekV2ForCausalLM", "", {**_DEEPSEEK, "n_group": 1, "topk_group": 1}, padded),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        answered,
    ),
    "olmoe": ("OlmoeForCausalLM", "", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, padded),
    "granite-moe": ("GraniteMoeForCausalLM", "", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}, padded),
    "phimoe": ("PhimoeForCausalLM", "", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}, padded),
    "gpt-oss": ("GptOssForCausalLM", "", {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, padded),
    "mixtral-labels": (
        "MixtralForCausalLM",
        "",
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        labelled,
    ),
    "llama-labels": ("LlamaForCausalLM", "", LLAMA, labelled),
    "llama-classes": ("LlamaForSequenceClassification", "LlamaConfig", LLAMA, classified),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_HEADS, "sliding_window": 8}, padded),
    "olmo2": ("Olmo2ForCausalLM", "", LLAMA, padded),
    "granite": ("GraniteForCausalLM", "", LLAMA, padded),
    "cohere": ("CohereForCausalLM", "", LLAMA, padded),
    "cohere2": ("Cohere2ForCausalLM", "", {**_HEADS, "sliding_window": 8}, padded),
    "nemotron": ("NemotronForCausalLM", "", LLAMA, padded),
    "starcoder2": ("Starcoder2ForCausalLM", "", LLAMA, padded),
    "glm": ("GlmForCausalLM", "", {**_HEADS, "partial_rotary_factor": 0.5}, padded),
    "glm4": ("Glm4ForCausalLM", "", {**_HEADS, "partial_rotary_factor": 0.5}, padded),
    "helium": ("HeliumForCausalLM", "", _HEADS, padded),
    "smollm3": ("SmolLM3ForCausalLM", "", LLAMA, padded),
    "ernie45": ("Ernie4_5ForCausalLM", "", _HEADS, padded),
    "exaone4": ("Exaone4ForCausalLM", "", {**_HEADS, "sliding_window": 8}, padded),
    "persimmon": ("PersimmonForCausalLM", "", _TEXT, padded),
    "codegen": (
        "CodeGenForCausalLM",
        "",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": 100, "n_positions": 64},
        padded,
    ),
    "biogpt": ("BioGptForCausalLM", "", _TEXT, padded),
    "openai-gpt": (
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100},
        padded,
    ),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", "", {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}, padded),
    "mamba2": (
        "Mamba2ForCausalLM",
        "",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": 100,
            "state_size": 8,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 1,
            "chunk_size": 4,
        },
        lambda: {"input_ids": ids(), "use_cache": False},
    ),
    "falcon-mamba": (
        "FalconMambaForCausalLM",
        "",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 4},
        lambda: {"input_ids": ids(), "use_cache": False},
    ),
    "recurrent-gemma": (
        "RecurrentGemmaForCausalLM",
        "",
        {**_HEADS, "lru_width": 32, "attention_window_size": 16},
        lambda: {**padded(), "use_cache": False},
    ),
    "rwkv": (
        "RwkvForCausalLM",
        "",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "attention_hidden_size": 32},
        lambda: {"input_ids": ids(), "use_cache": False},
    ),
    "lfm2": ("Lfm2ForCausalLM", "", {**LLAMA, "layer_types": ["conv", "full_attention"]}, padded),
    "bert-mask": ("BertForMaskedLM", "BertConfig", _TEXT, labelled),
    "bert-answers": (
        "BertForQuestionAnswering",
        "BertConfig",
        _TEXT,
        lambda: {**padded(), "start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])},
    ),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", _TEXT, labelled),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", "", _TEXT, classified),
    "deberta-v2": ("DebertaV2ForSequenceClassification", "", _TEXT, classified),
    "mpnet": ("MPNetForSequenceClassification", "", _TEXT, classified),
    "ernie": ("ErnieModel", "", _TEXT, padded),
    "funnel": (
        "FunnelModel",
        "",
        {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "block_sizes": [1, 1, 1], "vocab_size": 100},
        padded,
    ),
    "fnet": ("FNetModel", "", {**SMALL, "max_position_embeddings": 64}, lambda: {"input_ids": ids()}),
    "squeezebert": (
        "SqueezeBertModel",
        "",
        {
            **_TEXT,
            "embedding_size": 32,
            "q_groups": 2,
            "k_groups": 2,
            "v_groups": 2,
            "post_attention_groups": 1,
            "intermediate_groups": 2,
            "output_groups": 2,
        },
        padded,
    ),
    "convbert": ("ConvBertModel", "", {**_TEXT, "embedding_size": 32, "head_ratio": 1, "conv_kernel_size": 3}, padded),
    "longformer": ("LongformerModel", "", {**_TEXT, "attention_window": 4}, padded),
    "big-bird": ("BigBirdModel", "", {**_TEXT, "attention_type": "original_full"}, padded),
    "nystromformer": (
        "NystromformerModel",
        "",
        {**_TEXT, "num_landmarks": 4, "segment_means_seq_len": 12},
        lambda: {"input_ids": ids()},
    ),
    "roformer": ("RoFormerModel", "", {**_TEXT, "embedding_size": 32}, padded),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**_TEXT, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
        labelled,
    ),
    "splinter": ("SplinterModel", "", _TEXT, padded),
    "luke": ("LukeModel", "", {**_TEXT, "entity_vocab_size": 10, "entity_emb_size": 16}, padded),
    "canine": (
        "CanineModel",
        "",
        {
            **{k: v for k, v in _TEXT.items() if k != "vocab_size"},
            "num_hash_buckets": 64,
            "local_transformer_stride": 4,
            "downsampling_rate": 4,
        },
        lambda: {"input_ids": ids(16)},
    ),
    "t5-labels": ("T5ForConditionalGeneration", "T5Config", T5, answered),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5, answered),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config", T5, answered),
    "longt5": ("LongT5ForConditionalGeneration", "LongT5Config", {**T5, "local_radius": 4}, answered),
    "bart-labels": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, answered),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", SEQ2SEQ, answered),
    "marian": ("MarianMTModel", "MarianConfig", {**SEQ2SEQ, "pad_token_id": 0, "decoder_start_token_id": 0}, answered),
    "m2m": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ, answered),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", SEQ2SEQ, answered),
    "prophetnet": (
        "ProphetNetForConditionalGeneration",
        "ProphetNetConfig",
        {
            "hidden_size": 32,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "num_encoder_attention_heads": 2,
            "num_decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": 100,
            "max_position_embeddings": 64,
        },
        answered,
    ),
    "hubert": ("HubertModel", "", SPEECH, spoken),
    "wavlm": ("WavLMModel", "", SPEECH, spoken),
    "unispeech": ("UniSpeechModel", "", SPEECH, spoken),
    "data2vec-audio": ("Data2VecAudioModel", "", SPEECH, spoken),
    "ast": (
        "ASTModel",
        "ASTConfig",
        {**{k: v for k, v in VISION.items() if k != "image_size"}, "max_length": 32, "num_mel_bins": 16},
        lambda: {"input_values": torch.randn(1, 32, 16, generator=_generator())},
    ),
    "encodec": (
        "EncodecModel",
        "",
        {
            "num_filters": 4,
            "hidden_size": 16,
            "upsampling_ratios": [2, 2],
            "codebook_size": 16,
            "codebook_dim": 16,
            "num_lstm_layers": 1,
            "target_bandwidths": [1.5],
            "sampling_rate": 400,
        },
        lambda: {"input_values": torch.randn(1, 1, 400, generator=_generator())},
    ),
    "vit-classes": (
        "ViTForImageClassification",
        "ViTConfig",
        VISION,
        lambda: {**pictured()(), "labels": torch.tensor([1])},
    ),
    "vit-mae": (
        "ViTMAEModel",
        "",
        {
            **VISION,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
            "mask_ratio": 0.0,
        },
        pictured(),
    ),
    "dinov2-reg": ("Dinov2WithRegistersModel", "", VISION, pictured()),
    "siglip": (
        "SiglipModel",
        "",
        {"text_config": {**_TEXT, "max_position_embeddings": 16}, "vision_config": VISION},
        lambda: {"input_ids": ids(), "pixel_values": image()},
    ),
    "swinv2": (
        "Swinv2Model",
        "",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4},
        pictured(),
    ),
    "pvt": (
        "PvtModel",
        "",
        {
            "image_size": 32,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 2],
        },
        pictured(),
    ),
    "levit": (
        "LevitModel",
        "",
        {
            "image_size": 64,
            "hidden_sizes": [32, 32, 32],
            "depths": [1, 1, 1],
            "num_attention_heads": [2, 2, 2],
            "key_dim": [8, 8, 8],
        },
        pictured(64),
    ),
    "mobilevit": (
        "MobileViTModel",
        "",
        {"image_size": 64, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [4, 4, 8, 8, 8, 8, 16]},
        pictured(64),
    ),
    "mobilenet-v2": ("MobileNetV2Model", "", {"image_size": 32, "depth_multiplier": 0.25}, pictured()),
    "efficientnet": (
        "EfficientNetModel",
        "",
        {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
        pictured(),
    ),
    "convnextv2": (
        "ConvNextV2Model",
        "",
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
        pictured(),
    ),
    "regnet": (
        "RegNetModel",
        "",
        {"hidden_sizes": [8, 8], "depths": [1, 1], "embedding_size": 8, "groups_width": 4},
        pictured(),
    ),
    "poolformer": ("PoolFormerModel", "", {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}, pictured()),
    "focalnet": (
        "FocalNetModel",
        "",
        {
            "image_size": 32,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
        },
        pictured(),
    ),
    "dpt": (
        "DPTForDepthEstimation",
        "DPTConfig",
        {
            **VISION,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8,
            "is_hybrid": False,
            "reassemble_factors": [4, 2, 1, 0.5],
        },
        pictured(),
    ),
    "segformer-labels": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 8,
            "num_labels": 3,
        },
        lambda: {**pictured()(), "labels": torch.zeros(1, 32, 32, dtype=torch.int64)},
    ),
    "vitdet": ("VitDetModel", "", {**{k: v for k, v in VISION.items() if k != "intermediate_size"}}, pictured()),
    "yolos": ("YolosModel", "", {**VISION, "image_size": [32, 32], "num_detection_tokens": 4}, pictured()),
    "superpoint": (
        "SuperPointForKeypointDetection",
        "SuperPointConfig",
        {
            "encoder_hidden_sizes": [8, 8, 8, 8],
            "decoder_hidden_size": 8,
            "keypoint_decoder_dim": 65,
            "descriptor_decoder_dim": 8,
        },
        pictured(),
    ),
    "clip-vision": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**VISION, "projection_dim": 16}, pictured()),
    "blip": (
        "BlipForConditionalGeneration",
        "BlipConfig",
        {
            "text_config": {**_TEXT, "encoder_hidden_size": 32, "bos_token_id": 1, "sep_token_id": 2},
            "vision_config": VISION,
            "projection_dim": 16,
        },
        lambda: {"pixel_values": image(), "input_ids": ids(6, 1)},
    ),
    "vilt": (
        "ViltModel",
        "",
        {**VISION, **_TEXT, "image_size": 32, "max_image_length": 16},
        lambda: {"input_ids": ids(6, 1), "pixel_values": image()},
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": {**LLAMA, "model_type": "llama"},
            "vision_config": {**VISION, "model_type": "clip_vision_model", "projection_dim": 16},
            "image_token_index": 3,
            "vision_feature_select_strategy": "default",
        },
        seen_and_read(16),
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            "text_config": {**_HEADS, "model_type": "gemma"},
            "vision_config": {
                **VISION,
                "model_type": "siglip_vision_model",
                "vision_use_head": False,
                "projection_dim": 32,
            },
            "image_token_index": 3,
            "projection_dim": 32,
            "hidden_size": 32,
        },
        seen_and_read(16),
    ),
    "idefics3": (
        "Idefics3ForConditionalGeneration",
        "Idefics3Config",
        {
            "text_config": {**LLAMA, "model_type": "llama"},
            "vision_config": {**VISION},
            "scale_factor": 2,
            "image_token_id": 3,
        },
        lambda: {**seen_and_read(4)(), "pixel_values": image()[None]},
    ),
    "patchtst": (
        "PatchTSTModel",
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
        },
        lambda: {"past_values": torch.randn(2, 32, 2, generator=_generator())},
    ),
    "patchtsmixer": (
        "PatchTSMixerModel",
        "PatchTSMixerConfig",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_layers": 2,
        },
        lambda: {"past_values": torch.randn(2, 32, 2, generator=_generator())},
    ),
    "decision": (
        "DecisionTransformerModel",
        "",
        {
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 2,
            "state_dim": 4,
            "act_dim": 2,
            "max_ep_len": 16,
            "n_positions": 64,
        },
        lambda: {
            "states": torch.randn(1, 5, 4),
            "actions": torch.randn(1, 5, 2),
            "rewards": torch.randn(1, 5, 1),
            "returns_to_go": torch.randn(1, 5, 1),
            "timesteps": torch.arange(5)[None],
            "attention_mask": torch.ones(1, 5),
        },
    ),
    "perceiver": (
        "PerceiverModel",
        "",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 32,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "vocab_size": 100,
        },
        lambda: {"inputs": torch.randn(2, 8, 32, generator=_generator())},
    ),
    "whisper-labels": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "max_source_positions": 20,
            "max_target_positions": 32,
            "num_mel_bins": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        lambda: {"input_features": torch.randn(2, 16, 40, generator=_generator()), "labels": ids(8)},
    ),
    "speech-to-text": (
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "input_feat_per_channel": 8,
            "input_channels": 1,
            "conv_channels": 16,
            "conv_kernel_sizes": [3, 3],
            "num_conv_layers": 2,
            "max_source_positions": 64,
            "max_target_positions": 32,
            "decoder_start_token_id": 2,
            "pad_token_id": 1,
        },
        lambda: {"input_features": torch.randn(2, 32, 8, generator=_generator()), "labels": ids(8)},
    ),
}


def stem(model: str, config: str) -> str:
    """The name of a model's config class."""
    if config:
        return config
    ends = ("ForSequenceClassification", "ForCausalLM", "Model")
    return next(model.removesuffix(end) + "Config" for end in ends if model.endswith(end))


def build(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A module, and its arguments by name."""
    import transformers

    model, config, settings, arguments = MODELS[name]
    made = getattr(transformers, model)(getattr(transformers, stem(model, config))(**settings))
    return made.eval(), (), arguments()
