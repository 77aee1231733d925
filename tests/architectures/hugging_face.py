"""Models of transformers: their own configurations, with every size made small.

`SIZES` are put wherever a configuration, or one inside of it, has a larger number under that name; `MODELS` says for each
model what else it needs, where names say it differently or sizes depend on each other.
"""

from __future__ import annotations

import inspect
import os
import warnings
from typing import Any

import torch
import torchvision_stub
from models import Case
from torch import Tensor

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "embed_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "d_ff", "d_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "patch_size"), 8),
    **dict.fromkeys(("embedding_size", "projection_dim", "kv_lora_rank", "q_lora_rank", "num_mel_bins"), 16),
    **dict.fromkeys(("image_size", "moe_intermediate_size"), 32),
    "max_source_positions": 30,
    "vocab_size": 100,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
IMAGE, SOUND = "image", "sound"  # inputs beside tokens

MODELS: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in """
        AfmoeModel Aimv2VisionModel AlbertModel ApertusModel BartModel BeitModel BertModel BigBirdModel BioGptModel BitNetModel BlenderbotModel
        BloomModel CLIPTextModel CLIPVisionModel CanineModel CohereModel Cohere2Model ConditionalDetrModel ConvBertModel CTRLModel CvtModel
        Data2VecAudioModel Data2VecVisionModel DebertaModel DebertaV2Model DeformableDetrModel DeiTModel DetrModel DiffLlamaModel Dinov2Model
        DINOv3ViTModel DistilBertModel DogeModel DPTModel ElectraModel Ernie4_5Model EuroBertModel FNetModel FSMTModel FalconModel FalconMambaModel
        FlaubertModel FocalNetModel Gemma2Model Gemma3TextModel GemmaModel Glm4Model GlmModel GPT2Model GPTBigCodeModel GPTNeoModel
        GPTNeoXModel GptOssModel GraniteModel GraniteMoeModel HeliumModel HieraModel HubertModel IBertModel ImageGPTModel JetMoeModel
        LEDModel LayoutLMModel Lfm2Model LlamaModel LongT5Model LongformerModel M2M100Model MBartModel MPNetModel MT5Model MambaModel MarianModel
        MarkupLMModel MegatronBertModel MiniMaxModel MistralModel MixtralModel MobileBertModel MobileNetV1Model MobileNetV2Model MobileViTModel
        ModernBertModel MptModel MvpModel NomicBertModel NystromformerModel OPTModel Olmo2Model OlmoModel OlmoeModel OpenAIGPTModel
        PegasusModel PegasusXModel PersimmonModel Phi3Model PhiModel PixtralVisionModel PoolFormerModel PvtModel PvtV2Model
        Qwen2Model Qwen2MoeModel Qwen3Model Qwen3MoeModel RegNetModel RemBertModel ResNetModel RoCBertModel RoFormerModel RobertaModel SEWModel
        SegformerModel SiglipVisionModel SmolLM3Model SplinterModel StableLmModel Starcoder2Model SwiftFormerModel SwitchTransformersModel T5Model
        TapasModel TextNetModel UMT5Model UniSpeechModel ViTMAEModel ViTMSNModel ViTModel VisualBertModel VitDetModel Wav2Vec2ConformerModel
        Wav2Vec2Model WavLMModel XGLMModel XLMModel XLMRobertaXLModel XLNetModel YolosModel YosoModel
        """.split()  # noqa: SIM905
    },
    "CLIPModel": {"inputs": (IMAGE,)},
    "CodeGenModel": {"rotary_dim": 8},
    "ConvNextModel": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "ConvNextV2Model": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "DeepseekV3Model": {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "EncodecModel": {
        "hidden_size": 32, "num_filters": 4, "codebook_size": 64, "codebook_dim": 32, "upsampling_ratios": [4, 2],
        "given": {"input_values": (2, 1, 800)},
    },
    "GPTJModel": {"rotary_dim": 8},
    "GroupViTModel": {
        "inputs": (IMAGE,),
        "vision_config": {"depths": [2, 1], "num_group_tokens": [4, 0], "num_output_groups": [4, 2]},
    },
    "FunnelModel": {"block_sizes": [1, 1]},
    "LevitModel": {
        "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8],
        "image_size": 64, "patch_size": 16,
    },
    "LiltModel": {"hidden_size": 48},
    "LlavaModel": {},
    "Mamba2Model": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 16, "expand": 2},
    "MobileViTV2Model": {"image_size": 64},
    "PaliGemmaModel": {},
    "PatchTSTModel": {"given": {"past_values": (2, 32, 1)}},
    "Qwen2VLTextModel": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
    "SiglipModel": {"inputs": (IMAGE,), "text_config": {"projection_size": 32}},
    "SqueezeBertModel": {"embedding_size": 32},
    "SwinModel": {"depths": [2, 2], "num_heads": [2, 4], "embed_dim": 16, "patch_size": 4, "image_size": 56},
    "Swinv2Model": {"depths": [2, 2], "num_heads": [2, 4], "embed_dim": 16, "patch_size": 4, "image_size": 64},
    "TimesformerModel": {"num_frames": 2, "given": {"pixel_values": (1, 2, 3, 32, 32)}},
    "VideoMAEModel": {"num_frames": 4, "given": {"pixel_values": (1, 4, 3, 32, 32)}},
    "ViltModel": {"inputs": (IMAGE,)},
    "VivitModel": {"num_frames": 4, "tubelet_size": [2, 8, 8], "given": {"pixel_values": (1, 4, 3, 32, 32)}},
    "Wav2Vec2BertModel": {"feature_projection_input_dim": 16},
    "WhisperModel": {"inputs": (SOUND,)},
}  # fmt: skip
NAMES = tuple(f"transformers.{name}" for name in MODELS)


def build(name: str) -> Case:
    """The model of that name with its main input, without dropout; masked where it takes an attention mask."""
    torchvision_stub.install()
    import transformers

    stem = name.removeprefix("transformers.")
    more = dict(MODELS[stem])
    inputs, given = more.pop("inputs", ()), more.pop("given", {})
    kind: Any = getattr(transformers, stem)
    config = kind.config_class()
    _make_small(config)
    _put(config, more)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(config).eval()
    generator = torch.Generator().manual_seed(0)
    kwargs: dict[str, Any] = {key: torch.randn(shape, generator=generator) for key, shape in given.items()}
    names = inspect.signature(model.forward).parameters
    main = model.main_input_name
    if IMAGE in inputs or (not given and main == "pixel_values"):
        kwargs["pixel_values"] = _image(getattr(config, "vision_config", config), generator)
    if main == "input_ids" and not given:
        kwargs["input_ids"] = tokens = torch.randint(3, 100, (2, 12), generator=generator)
        if getattr(config, "is_encoder_decoder", False):
            kwargs["decoder_input_ids"] = tokens
        if "attention_mask" in names:
            kwargs["attention_mask"] = mask = torch.ones(2, 12, dtype=torch.int64)
            mask[1, 9:] = 0
    if not given and main == "input_values":
        kwargs["input_values"] = torch.randn(2, 1600, generator=generator)
    if not given and main == "input_features":
        kwargs["input_features"] = torch.randn(2, *((16, 60) if SOUND in inputs else (60, 16)), generator=generator)
        if SOUND in inputs:
            kwargs["decoder_input_ids"] = torch.randint(3, 100, (2, 6), generator=generator)
    if "use_cache" in names:
        kwargs["use_cache"] = False
    return Case(model, (), kwargs, None)


def _make_small(config: Any) -> None:
    import transformers

    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            _make_small(value)
        elif isinstance(value, float) and "drop" in name:
            setattr(config, name, 0.0)
    for name, size in SIZES.items():
        value = getattr(config, name, None)
        if type(value) is int and value > size and not _is_computed(config, name):
            setattr(config, name, size)
    for name, number in TOKENS.items():
        if type(getattr(config, name, None)) is int:
            setattr(config, name, number)
    layers = getattr(config, "layer_types", None)
    if isinstance(layers, list) and not _is_computed(config, "layer_types"):
        config.layer_types = layers[:2]


def _is_computed(config: Any, name: str) -> bool:
    found = inspect.getattr_static(type(config), name, None)
    return isinstance(found, property)


def _put(config: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        inner = getattr(config, name, None)
        if isinstance(value, dict) and inner is not None and not isinstance(inner, dict):
            _put(inner, value)
        else:
            setattr(config, name, value)


def _image(config: Any, generator: torch.Generator) -> Tensor:
    size = getattr(config, "image_size", 32)
    size = size if isinstance(size, int) else size[0] if size else 32
    channels = getattr(config, "num_channels", 3) or 3
    return torch.randn(2, channels, min(size, 224), min(size, 224), generator=generator)
