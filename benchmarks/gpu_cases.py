"""What benchmarks/gpu.py runs on a GPU: each case is a function and its arguments, made on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BF16 = torch.bfloat16
Case = Callable[[], tuple[Any, list[Tensor]]]


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def _half(*shape: int) -> Tensor:
    return _normal(*shape, dtype=BF16)


def _below(limit: int, *shape: int) -> Tensor:
    return torch.randint(0, limit, shape, device="cuda")


# -- kernels that memory bounds


def _rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return h, F.rms_norm(h, (h.shape[-1],), w)


def _rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * c + torch.cat([-x[..., half:], x[..., :half]], -1) * s


def _embedding_norm(i: Tensor, e: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(i, e), (1024,), w, b)


def _masked_softmax(x: Tensor, m: Tensor) -> Tensor:
    return F.softmax(x.masked_fill(m, float("-inf")), -1)


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m.lerp(g, 0.1)
    v = v * 0.999 + g * g * 0.001
    return p - 0.001 * m / (v.sqrt() + 1e-8), m, v


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


Kernel = tuple[Callable[..., Any], Callable[[], list[Tensor]]]

# The sizes of the first eleven are those for which torch.compile's share of the copy rate is known.
KERNELS: dict[str, Kernel] = {
    "sin+cos": (lambda x, y: x.sin() + y.cos(), lambda: [_normal(1 << 24), _normal(1 << 24)]),
    "gelu": (lambda x, b, r: F.gelu(x + b) * 0.5 + r, lambda: [_half(8192, 4096), _half(4096), _half(8192, 4096)]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4096,), w, b),
        lambda: [_half(8192, 4096), _half(4096), _half(4096)],
    ),
    "add+rms_norm": (_rms_norm, lambda: [_half(8192, 4096), _half(8192, 4096), _half(4096)]),
    "softmax": (lambda x: F.softmax(x, -1), lambda: [_half(16384, 2048)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), lambda: [_normal(512, 131072)]),
    "cross_entropy": (F.cross_entropy, lambda: [_half(8192, 50304), _below(50304, 8192)]),
    "column_sum": (lambda x: x.sum(0), lambda: [_normal(16384, 4096)]),
    "full_sum": (lambda x: x.sum(), lambda: [_normal(16384, 4096)]),
    "transpose+add": (lambda x, y: x.t() + y, lambda: [_normal(8192, 4096), _normal(4096, 8192)]),
    "cat": (lambda x, y: torch.cat([x * 2, y + 1], 1), lambda: [_normal(16384, 4096), _normal(16384, 2048)]),
    "argmax_rows": (lambda x: x.argmax(1), lambda: [_normal(16384, 4096)]),
    "embedding+norm": (
        _embedding_norm,
        lambda: [_below(50000, 64, 512), _normal(50000, 1024), _normal(1024), _normal(1024)],
    ),
    "group_norm": (lambda x: F.silu(F.group_norm(x, 32)), lambda: [_half(32, 256, 64, 64)]),
    "batch_statistics": (lambda x: torch.var_mean(x, (0, 2, 3)), lambda: [_normal(64, 256, 56, 56)]),
    "cumsum": (lambda x: x.cumsum(1), lambda: [_normal(8192, 4096)]),
    "rotary": (_rotary, lambda: [_half(8, 32, 2048, 128), _half(2048, 128), _half(2048, 128)]),
    "silu*mul": (lambda a, b: F.silu(a) * b, lambda: [_half(8192, 11008), _half(8192, 11008)]),
    "masked_softmax": (
        _masked_softmax,
        lambda: [_half(16, 12, 512, 512), torch.rand(16, 1, 512, 512, device="cuda") > 0.8],
    ),
    "adam": (_adam, lambda: [_normal(1 << 24), _normal(1 << 24), _normal(1 << 24), _normal(1 << 24).abs()]),
    "quantize_rows": (_quantize, lambda: [_half(16384, 4096)]),
}

# -- products and what follows them, at the sizes of large models


def _swiglu(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, a)) * F.linear(x, b)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    ahead = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(ahead, float("-inf"))
    return scores.softmax(-1) @ v


def _weight(*shape: int) -> Tensor:
    return _half(*shape) * shape[-1] ** -0.5


def _gelu_linear(rows: int, inner: int, outer: int) -> Kernel:
    return lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [_half(rows, inner), _weight(outer, inner), _half(outer)]


PRODUCTS: dict[str, Kernel] = {
    "gelu(linear) 8192x4096x4096": _gelu_linear(8192, 4096, 4096),
    "gelu(linear) 4096x1024x4096": _gelu_linear(4096, 1024, 4096),
    "gelu(linear) 16384x768x3072": _gelu_linear(16384, 768, 3072),
    "gelu(linear) 100352x96x384": _gelu_linear(100352, 96, 384),
    "gelu(linear) 128x768x3072": _gelu_linear(128, 768, 3072),
    "linear+residual 16384x3072x768": (
        lambda x, w, b, r: F.linear(x, w, b) + r,
        lambda: [_half(16384, 3072), _weight(768, 3072), _half(768), _half(16384, 768)],
    ),
    "swiglu 8192x4096x11008": (_swiglu, lambda: [_half(8192, 4096), _weight(11008, 4096), _weight(11008, 4096)]),
    "swiglu 2048x2048x5632": (_swiglu, lambda: [_half(2048, 2048), _weight(5632, 2048), _weight(5632, 2048)]),
    "swiglu 1x2048x5632": (_swiglu, lambda: [_half(1, 2048), _weight(5632, 2048), _weight(5632, 2048)]),
    "attention 8x32x2048x128": (_attention, lambda: [_half(8, 32, 2048, 128) for _ in range(3)]),
    "causal 8x32x2048x128": (_causal, lambda: [_half(8, 32, 2048, 128) for _ in range(3)]),
    "attention 32x12x512x64": (_attention, lambda: [_half(32, 12, 512, 64) for _ in range(3)]),
}

# -- models in inference


def _vision(name: str, batch: int, dtype: torch.dtype = BF16, last: bool = False) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import torchvision

        form = torch.channels_last if last else torch.contiguous_format
        model = getattr(torchvision.models, name)().cuda().to(dtype).eval().to(memory_format=form)
        return model, [_normal(batch, 3, 224, 224, dtype=dtype).to(memory_format=form)]

    return make


def _text(name: str, config: str, batch: int, length: int, **options: Any) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import transformers

        settings = getattr(transformers, config)(**options)
        model = getattr(transformers, name)(settings).cuda().to(BF16).eval()
        return model, [2 + _below(settings.vocab_size - 2, batch, length)]

    return make


_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16}

MODELS: dict[str, Case] = {
    "resnet50 b32": _vision("resnet50", 32),
    "resnet50 b32 nhwc": _vision("resnet50", 32, last=True),
    "resnet18 b16 f32": _vision("resnet18", 16, torch.float32),
    "resnext101_32x8d b16 f32": _vision("resnext101_32x8d", 16, torch.float32),
    "mobilenet_v3_large b32": _vision("mobilenet_v3_large", 32),
    "convnext_tiny b32": _vision("convnext_tiny", 32),
    "vit_b_16 b32": _vision("vit_b_16", 32),
    "swin_t b32": _vision("swin_t", 32),
    "bert_base 1x128": _text("BertModel", "BertConfig", 1, 128),
    "bert_base 32x512": _text("BertModel", "BertConfig", 32, 512),
    "gpt2 8x512": _text("GPT2LMHeadModel", "GPT2Config", 8, 512, use_cache=False),
    "llama 8 layers 4x512": _text("LlamaForCausalLM", "LlamaConfig", 4, 512, use_cache=False, **_LLAMA),
    "t5_small encoder 8x256": _text("T5EncoderModel", "T5Config", 8, 256),
}

# -- training steps: the loss of a batch; the caller goes backward


class _Classifier(torch.nn.Module):
    """A model and the loss of its answers, under autocast where asked for."""

    def __init__(self, model: torch.nn.Module, amp: bool) -> None:
        super().__init__()
        self.model, self.amp = model, amp

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast("cuda", BF16, enabled=self.amp):
            found = self.model(x)
            logits = found if isinstance(found, Tensor) else found.logits
            return F.cross_entropy(logits, target)


def _begun(model: torch.nn.Module) -> torch.nn.Module:
    """A network whose residual branches begin small, as those that are to be trained in half types do.

    With torchvision's factors of 1 a rounding error grows from block to block, so that eager's gradients of ResNet-50 under bfloat16
    autocast have a cosine of 0.15 with float64's; with 0.2 it is 0.94, and a wrong gradient can be told.
    """
    for block in model.modules():
        if hasattr(block, "downsample"):
            torch.nn.init.constant_(getattr(block, "bn3", block.bn2).weight, 0.2)
    return model


def _vision_step(name: str, batch: int, amp: bool) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import torchvision

        model = _Classifier(_begun(getattr(torchvision.models, name)()), amp).cuda().train()
        return model, [_normal(batch, 3, 224, 224), _below(1000, batch)]

    return make


def _bert_step(batch: int, length: int, dropout: float) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import transformers

        config = transformers.BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        model = _Classifier(transformers.BertForSequenceClassification(config), True).cuda().train()
        return model, [2 + _below(30000, batch, length), _below(2, batch)]

    return make


TRAINING: dict[str, Case] = {
    "resnet18 b16 f32": _vision_step("resnet18", 16, False),
    "resnet50 b32 amp": _vision_step("resnet50", 32, True),
    "bert_base 16x128 amp": _bert_step(16, 128, 0.0),
    "bert_base 16x128 amp dropout": _bert_step(16, 128, 0.1),
}
