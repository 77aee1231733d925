"""Models by name, built from their configurations with random weights from a fixed seed: nothing is downloaded.

    model, args, kwargs, second = build("resnet18")

`model` is a function or a module in eval mode; `second` is a second set of positional arguments with another batch size, or None.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torchvision_stub
from torch import Tensor


class Case(NamedTuple):
    """Something to compile, with its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    second: tuple[Any, ...] | None
    bytes_moved: int | None = None  # of a kernel that memory bounds: what it must read and write


def build(name: str) -> Case:
    """The case of that name, on the CPU in float32.

    Raises:
        KeyError: no such case.
    """
    maker = ALL[name]
    torchvision_stub.install()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return maker()


# ---- kinds of inputs ------------------------------------------------------------------------------------------------


def _images(model: Any, batch: int, size: int, channels: int = 3) -> Case:
    shape = (channels, size, size)
    return Case(model.eval(), (torch.randn(batch, *shape),), {}, (torch.randn(batch + 1, *shape),))


def _tokens(model: Any, batch: int, length: int, vocabulary: int, **kwargs: Any) -> Case:
    first = torch.randint(2, vocabulary, (batch, length))
    second = torch.randint(2, vocabulary, (batch + 1, length))
    return Case(model.eval(), (first,), kwargs, (second,))


def _vision(name: str, batch: int, size: int, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        from torchvision import models

        return _images(getattr(models, name)(weights=None, **options), batch, size)

    return make


def _timm(name: str, size: int = 64, batch: int = 2, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        import timm

        return _images(timm.create_model(name, pretrained=False, num_classes=10, **options), batch, size)

    return make


def _text(
    kind: str, batch: int = 2, length: int = 16, run: dict[str, Any] | None = None, **config: Any
) -> Callable[[], Case]:
    """A transformers model `{kind}` with the config `{family}Config`, called on token numbers."""

    def make() -> Case:
        import transformers

        model_class = getattr(transformers, kind)
        settings = model_class.config_class(**config)
        return _tokens(model_class(settings), batch, length, settings.vocab_size, **(run or {}))

    return make


# ---- the demo -------------------------------------------------------------------------------------------------------


def _toy() -> Case:
    def toy(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Pointwise work around a reduction over rows: eight operators, one kernel."""
        z = torch.nn.functional.gelu(x + y) * scale
        z = z - z.mean(dim=-1, keepdim=True)
        return torch.tanh(z) + torch.sigmoid(x) * y

    def inputs(rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 768), torch.randn(rows, 768), torch.randn(768)

    return Case(toy, inputs(4096), {}, inputs(2048))


DEMO: dict[str, Callable[[], Case]] = {
    "toy": _toy,
    "resnet18": _vision("resnet18", 16, 128),
    "resnet50": _vision("resnet50", 1, 224),
    "mobilenet_v3_small": _vision("mobilenet_v3_small", 1, 224),
    "mobilenet_v3_large": _vision("mobilenet_v3_large", 1, 224),
    "convnext_tiny": _vision("convnext_tiny", 1, 224),
    "bert_base": _text("BertModel", 1, 128),
    "gpt2": _text("GPT2Model", 1, 128, {"use_cache": False}),
}

# ---- more models of the sizes that people run -----------------------------------------------------------------------


class _Decoder(torch.nn.Module):
    """One step of a Llama-shaped decoder: the next token after `past` others, whose keys and values are given."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, keys: list[Tensor], values: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """(batch, 1) token numbers; a (batch, heads, past, size) tensor a layer -> logits and the longer caches."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            cache.update(k, v, layer)
        out = self.model(token, past_key_values=cache, use_cache=True)
        return out.logits, [part for layer in cache.layers for part in (layer.keys, layer.values)]


def _llama_step(hidden: int = 1024, layers: int = 8, heads: int = 16, past: int = 128) -> Case:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
    )
    model = _Decoder(transformers.LlamaForCausalLM(config)).eval()

    def inputs(batch: int) -> tuple[Any, ...]:
        shape = (batch, heads // 2, past, hidden // heads)
        keys, values = ([torch.randn(shape) for _ in range(layers)] for _ in range(2))
        return torch.randint(2, 8192, (batch, 1)), keys, values

    return Case(model, inputs(1), {}, inputs(2))


def _whisper_tiny_encoder() -> Case:
    import transformers

    model = transformers.WhisperModel(transformers.WhisperConfig()).get_encoder().eval()
    return Case(model, (torch.randn(1, 80, 3000),), {}, (torch.randn(2, 80, 3000),))


class _UNet(torch.nn.Module):
    """The U-Net of Ronneberger et al. (2015), with padded convolutions, batch norm and fewer channels."""

    def __init__(self, inputs: int = 3, outputs: int = 2, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << i for i in range(depth + 1)]
        self.down = torch.nn.ModuleList(map(self._double, [inputs, *sizes[:-1]], sizes))
        self.up = torch.nn.ModuleList(torch.nn.ConvTranspose2d(2 * n, n, 2, 2) for n in reversed(sizes[:-1]))
        self.join = torch.nn.ModuleList(self._double(2 * n, n) for n in reversed(sizes[:-1]))
        self.head = torch.nn.Conv2d(width, outputs, 1)

    @staticmethod
    def _double(inside: int, outside: int) -> torch.nn.Module:
        layers: list[torch.nn.Module] = []
        for n in (inside, outside):
            layers += [torch.nn.Conv2d(n, outside, 3, padding=1, bias=False), torch.nn.BatchNorm2d(outside)]
            layers.append(torch.nn.ReLU(inplace=True))
        return torch.nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width), both multiples of 2**depth -> (batch, outputs, height, width)."""
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else torch.nn.functional.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def _bfloat16(maker: Callable[[], Case]) -> Callable[[], Case]:
    """The same in bfloat16: the model's numbers, and inputs of floating point."""

    def make() -> Case:
        case = maker()

        def cast(args: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(a.bfloat16() if a.is_floating_point() else a for a in args)

        return Case(case.model.bfloat16(), cast(case.args), case.kwargs, case.second and cast(case.second))

    return make


MORE: dict[str, Callable[[], Case]] = {
    "distilbert": _text("DistilBertModel", 1, 128),
    "t5_encoder": _text("T5EncoderModel", 1, 128),
    "whisper_encoder": _whisper_tiny_encoder,
    "llama_step": _llama_step,
    "vit_small": _timm("vit_small_patch16_224", 224, 1),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224", 224, 1),
    "mixer_small": _timm("mixer_s16_224", 224, 1),
    "unet": lambda: _images(_UNet(), 1, 128),
    "bert_base_bf16": _bfloat16(DEMO["bert_base"]),
    "resnet50_bf16": _bfloat16(DEMO["resnet50"]),
    "vit_small_bf16": _bfloat16(_timm("vit_small_patch16_224", 224, 1)),
}

# ---- other architectures, as small as they come ---------------------------------------------------------------------

_SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
_CAUSAL = {**_SMALL, "pad_token_id": 0, "max_position_embeddings": 64}
_NO_CACHE = {"use_cache": False}


def _whisper_encoder() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=37,
        num_mel_bins=16,
        max_source_positions=30,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=37,
        vocab_size=99,
        pad_token_id=0,
    )
    model = transformers.WhisperModel(config).get_encoder().eval()
    return Case(model, (torch.randn(2, 16, 60),), {}, (torch.randn(3, 16, 60),))


def _clip_vision() -> Case:
    import transformers

    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    return _images(transformers.CLIPVisionModel(config), 2, 32)


WIDE: dict[str, Callable[[], Case]] = {
    "distilbert_small": _text("DistilBertModel", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
    "roberta": _text("RobertaForSequenceClassification", **_SMALL, max_position_embeddings=64),
    "albert": _text("AlbertModel", **_SMALL, embedding_size=16),
    "electra": _text("ElectraModel", **_SMALL, embedding_size=16),
    "opt": _text(
        "OPTModel",
        run=_NO_CACHE,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=37,
        word_embed_proj_dim=32,
    ),
    "bloom": _text("BloomModel", run=_NO_CACHE, vocab_size=99, hidden_size=32, n_layer=2, n_head=4),
    "gpt_neox": _text("GPTNeoXModel", run=_NO_CACHE, **_SMALL, max_position_embeddings=64),
    "llama": _text("LlamaForCausalLM", run=_NO_CACHE, **_CAUSAL, num_key_value_heads=2),
    "mistral": _text("MistralModel", run=_NO_CACHE, **_CAUSAL, num_key_value_heads=2),
    "qwen2": _text("Qwen2Model", run=_NO_CACHE, **_CAUSAL, num_key_value_heads=2),
    "gemma": _text("GemmaModel", run=_NO_CACHE, **_CAUSAL, num_key_value_heads=1, head_dim=8),
    "t5_encoder_small": _text("T5EncoderModel", vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4),
    "whisper_encoder_small": _whisper_encoder,
    "clip_vision": _clip_vision,
    "vit": _timm("vit_tiny_patch16_224", img_size=64, depth=2),
    "swin": _timm("swin_tiny_patch4_window7_224", img_size=56, size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 4)),
    "mixer": _timm("mixer_s32_224", img_size=64),
    "efficientnet": _timm("efficientnet_lite0"),
    "densenet": _timm("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    "regnet": _timm("regnety_002"),
    "convnext_atto": _timm("convnext_atto"),
    "ghostnet": _timm("ghostnet_050"),
    "repvgg": _timm("repvgg_a0"),
    "poolformer": _timm("poolformer_s12"),
    "shufflenet": _vision("shufflenet_v2_x0_5", 2, 64),
    "squeezenet": _vision("squeezenet1_1", 2, 64),
}

ALL = DEMO | MORE | WIDE
