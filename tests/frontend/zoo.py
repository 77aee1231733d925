"""Tiny models of many architectures, built from their configs with random weights: name -> (module, args, kwargs)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import zoo_transformers
import zoo_usual
from zoo_diffusers import DIFFUSERS
from zoo_transformers import LLAMA, SEQ2SEQ, SMALL, SPEECH, T5, VISION, image

Built = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
ZOO: dict[str, Callable[[], Built]] = {}

_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}


def tokens(rows: int = 2) -> torch.Tensor:
    """Token ids, shape (rows, 12), int64."""
    return torch.randint(0, 100, (rows, 12), generator=torch.Generator().manual_seed(0))


def _hugging_face(
    name: str, model: str, config: dict[str, Any], args: Any = None, kwargs: Any = None, config_class: str | None = None
) -> None:
    def build() -> Built:
        import transformers

        stem = config_class or next(
            model.removesuffix(end) + "Config"
            for end in (
                "ForSequenceClassification",
                "ForConditionalGeneration",
                "LMHeadModel",
                "ForCausalLM",
                "EncoderModel",
                "Model",
            )
            if model.endswith(end)
        )
        module = getattr(transformers, model)(getattr(transformers, stem)(**config)).eval()
        return module, (tokens(),) if args is None else args(), {} if kwargs is None else kwargs()

    ZOO[name] = build


def _none() -> tuple[Any, ...]:
    return ()


def _one_image() -> tuple[Any, ...]:
    return (image(),)


_hugging_face("bert", "BertModel", SMALL, kwargs=lambda: {"attention_mask": torch.ones_like(tokens())})
_hugging_face("bert-labels", "BertForSequenceClassification", SMALL, kwargs=lambda: {"labels": torch.tensor([0, 1])})
_hugging_face("bert-tuple", "BertModel", SMALL, kwargs=lambda: {"return_dict": False})
_hugging_face("gpt2", "GPT2LMHeadModel", _GPT)
_hugging_face("gpt2-no-cache", "GPT2LMHeadModel", _GPT, kwargs=lambda: {"use_cache": False})
_hugging_face(
    "distilbert", "DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100}
)
_hugging_face("roberta", "RobertaModel", SMALL)
_hugging_face("albert", "AlbertModel", {**SMALL, "embedding_size": 16})
_hugging_face("electra", "ElectraModel", {**SMALL, "embedding_size": 16})
_hugging_face("deberta", "DebertaModel", SMALL)
_hugging_face("layoutlm", "LayoutLMModel", SMALL)
_hugging_face("mobilebert", "MobileBertModel", {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 32})
_hugging_face("xlnet", "XLNetModel", {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "vocab_size": 100})
_hugging_face("t5-encoder", "T5EncoderModel", T5)
_hugging_face(
    "t5", "T5ForConditionalGeneration", T5, _none, lambda: {"input_ids": tokens(), "decoder_input_ids": tokens()}
)
_hugging_face("bart", "BartModel", SEQ2SEQ)
_hugging_face("pegasus", "PegasusModel", SEQ2SEQ, _none, lambda: {"input_ids": tokens(), "decoder_input_ids": tokens()})
_hugging_face(
    "opt",
    "OPTForCausalLM",
    {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
    },
)
for _name, _model in {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "phi3": "Phi3",
    "olmo": "Olmo",
    "stablelm": "StableLm",
}.items():
    _hugging_face(_name, f"{_model}ForCausalLM", LLAMA)
_hugging_face("llama-no-cache", "LlamaForCausalLM", LLAMA, kwargs=lambda: {"use_cache": False})
for _name, _model in {"qwen3": "Qwen3", "gemma": "Gemma", "gemma2": "Gemma2"}.items():
    _hugging_face(_name, f"{_model}ForCausalLM", {**LLAMA, "head_dim": 16})
_hugging_face("mixtral", "MixtralForCausalLM", {**LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1})
_hugging_face("phi", "PhiForCausalLM", {**SMALL, "max_position_embeddings": 64})
_hugging_face("gpt-neox", "GPTNeoXForCausalLM", {**SMALL, "max_position_embeddings": 64})
_hugging_face(
    "mpt", "MptForCausalLM", {"d_model": 32, "n_heads": 2, "n_layers": 2, "vocab_size": 100, "max_seq_len": 64}
)
_hugging_face("bloom", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100})
_hugging_face("gptj", "GPTJForCausalLM", {**_GPT, "rotary_dim": 8})
_hugging_face(
    "gpt-neo",
    "GPTNeoForCausalLM",
    {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "intermediate_size": 64,
    },
)
_hugging_face(
    "falcon",
    "FalconForCausalLM",
    {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100},
)
_hugging_face(
    "xglm",
    "XGLMForCausalLM",
    {
        "d_model": 32,
        "num_layers": 2,
        "attention_heads": 2,
        "ffn_dim": 64,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    },
)
_hugging_face(
    "mamba",
    "MambaForCausalLM",
    {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 4},
    kwargs=lambda: {"use_cache": False},
)
for _name, _model in {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "beit": "Beit"}.items():
    _hugging_face(_name, f"{_model}Model", VISION, _one_image)
_hugging_face(
    "swin",
    "SwinModel",
    {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4},
    _one_image,
)
_hugging_face(
    "convnext", "ConvNextModel", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32}, _one_image
)
_hugging_face("resnet", "ResNetModel", {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}, _one_image)
_hugging_face(
    "segformer",
    "SegformerModel",
    {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "num_attention_heads": [1, 2],
        "sr_ratios": [2, 1],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "mlp_ratios": [2, 2],
    },
    _one_image,
)
_hugging_face(
    "clip",
    "CLIPModel",
    {
        "text_config": {**SMALL, "max_position_embeddings": 32, "eos_token_id": 99, "bos_token_id": 1},
        "vision_config": VISION,
        "projection_dim": 16,
    },
    _none,
    lambda: {"input_ids": tokens(), "pixel_values": image()},
)
_hugging_face(
    "whisper",
    "WhisperModel",
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
    _none,
    lambda: {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": tokens()},
)
_hugging_face(
    "wav2vec2",
    "Wav2Vec2Model",
    SPEECH,
    lambda: (torch.randn(2, 1000),),
)

TIMM = (
    "resnet18 mobilenetv3_small_100 efficientnet_b0 convnext_atto vit_tiny_patch16_224 mixer_s32_224 regnetx_002 "
    "swin_tiny_patch4_window7_224 ghostnet_100 levit_128s poolformer_s12 mobilevit_xxs edgenext_xx_small "
    "cait_xxs24_224 coat_tiny twins_svt_small gmlp_ti16_224 repvgg_a0 nfnet_l0 hrnet_w18_small inception_v3 "
    "xcit_nano_12_p16_224 maxvit_pico_rw_256 densenet121"
).split()
TORCHVISION = (
    "resnet18 resnet50 mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 squeezenet1_0 vgg11 googlenet "
    "densenet121 mnasnet0_5 regnet_y_400mf efficientnet_b0 convnext_tiny swin_t vit_b_32 alexnet maxvit_t"
).split()


def _image_model(package: str, name: str) -> Callable[[], Built]:
    def build() -> Built:
        if package == "timm":
            import timm

            size = 299 if name == "inception_v3" else 256 if "256" in name or "mobilevit" in name else 224
            return timm.create_model(name).eval(), (image(size),), {}
        import torchvision

        options = {"init_weights": False} if name == "googlenet" else {}
        size = 224 if "vit" in name or "swin" in name else 96
        return getattr(torchvision.models, name)(**options).eval(), (image(size),), {}

    return build


ZOO |= {f"timm-{name}": _image_model("timm", name) for name in TIMM}
ZOO |= {f"torchvision-{name}": _image_model("torchvision", name) for name in TORCHVISION}
ZOO |= {name: partial(zoo_transformers.build, name) for name in zoo_transformers.MODELS}
ZOO |= zoo_usual.USUAL | DIFFUSERS
