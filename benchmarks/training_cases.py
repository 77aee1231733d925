"""The training steps that benchmarks/training.py runs: a module that gives the loss of a batch, the batch, and an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torchvision_stub
from torch import Tensor, nn

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """One training step.

    Attributes:
        make: a module whose call gives the loss, and its arguments.
        optimizer: the optimizer of that module's parameters.
        large: systems are measured one after the other, because they do not fit into memory side by side.
    """

    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    large: bool = False


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)


class WithLoss(nn.Module):
    """A model and the cross-entropy of its logits, under autocast where asked for."""

    def __init__(self, model: nn.Module, device: str, amp: bool) -> None:
        super().__init__()
        self.model, self.device, self.amp = model, device, amp

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(self.device, BF16, enabled=self.amp):
            found = self.model(x)
            logits = found if isinstance(found, Tensor) else found.logits
            return F.cross_entropy(logits.flatten(0, -2), target.flatten())


class Denoising(nn.Module):
    """A diffusion model's loss: the noise that was added to an image is found again."""

    def __init__(self, model: nn.Module, device: str, amp: bool) -> None:
        super().__init__()
        self.model, self.device, self.amp = model, device, amp

    def forward(self, x: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        with torch.autocast(self.device, BF16, enabled=self.amp):
            at = level[:, None, None, None]
            found = self.model(x * at.sqrt() + noise * (1 - at).sqrt(), level)
            return F.mse_loss(found.float(), noise)


class Block(nn.Module):
    """A residual block of two convolutions; the level of noise is added between them."""

    def __init__(self, inner: int, outer: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.level = nn.Linear(embedding, outer)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.level(F.silu(level))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention among the pixels of an image."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(batch, 3, self.heads, channels // self.heads, -1).transpose(-1, -2).unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(batch, channels, height, width))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """A UNet with attention at its lower levels, as diffusion models have it."""

    def __init__(self, width: int, levels: int = 3) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(levels)]
        self.embed = nn.Sequential(nn.Linear(1, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for k, size in enumerate(sizes):
            attend = Attention(size, 8) if k else nn.Identity()
            smaller = nn.Conv2d(size, sizes[k + 1], 3, 2, 1) if k + 1 < levels else nn.Identity()
            self.down.append(nn.ModuleList([Block(size, size, 4 * width), attend, smaller]))
        for k in reversed(range(levels)):
            attend = Attention(sizes[k], 8) if k else nn.Identity()
            larger = nn.ConvTranspose2d(sizes[k], sizes[k - 1], 2, 2) if k else nn.Identity()
            self.up.append(nn.ModuleList([Block(2 * sizes[k], sizes[k], 4 * width), attend, larger]))
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        embedded = self.embed(level[:, None])
        x, kept = self.first(x), []
        for block, attend, smaller in self.down:  # type: ignore[misc]
            x = attend(block(x, embedded))
            kept.append(x)
            x = smaller(x)
        for block, attend, larger in self.up:  # type: ignore[misc]
            x = larger(attend(block(torch.cat([x, kept.pop()], 1), embedded)))
        return self.last(x)  # type: ignore[no-any-return]


def _small_branches(model: nn.Module) -> nn.Module:
    """Residual branches of torchvision's networks begin small: else rounding errors under autocast grow from block to block."""
    for block in model.modules():
        if hasattr(block, "downsample"):
            nn.init.constant_(getattr(block, "bn3", block.bn2).weight, 0.2)
    return model


def _images(device: str, name: str, batch: int, size: int, amp: bool, **options: Any) -> Case:
    from_timm = options.pop("timm", False)

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        torchvision_stub.install()
        if from_timm:
            import timm

            model = timm.create_model(name, num_classes=1000)
        else:
            import torchvision

            model = _small_branches(getattr(torchvision.models, name)(weights=None))
        batch_of = torch.randn(batch, 3, size, size, device=device), torch.randint(1000, (batch,), device=device)
        return WithLoss(model, device, amp).to(device), batch_of

    return Case(make, momentum if name.startswith("resnet") and device == "cuda" else adamw)


def _tokens(device: str, kind: str, batch: int, length: int, amp: bool, large: bool = False, **config: Any) -> Case:
    """A transformers model that gives a token's successor, or a class for each row of tokens."""

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        torchvision_stub.install()
        import transformers

        model_class = getattr(transformers, kind)
        settings = model_class.config_class(**config)
        model = WithLoss(model_class(settings), device, amp).to(device)
        per_row = kind.endswith("SequenceClassification")
        target = torch.randint(2, (batch,)) if per_row else torch.randint(2, settings.vocab_size, (batch, length))
        return model, (torch.randint(2, settings.vocab_size, (batch, length), device=device), target.to(device))

    return Case(make, adamw, large)


class Translation(nn.Module):
    """An encoder and decoder with the loss of the given answer."""

    def __init__(self, model: nn.Module, device: str, amp: bool) -> None:
        super().__init__()
        self.model, self.device, self.amp = model, device, amp

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(self.device, BF16, enabled=self.amp):
            return self.model(input_ids=x, labels=target, use_cache=False).loss  # type: ignore[no-any-return]


def _t5(device: str, batch: int, length: int, amp: bool, **config: Any) -> Case:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        torchvision_stub.install()
        import transformers

        settings = transformers.T5Config(decoder_start_token_id=0, dropout_rate=0.0, **config)
        model = Translation(transformers.T5ForConditionalGeneration(settings), device, amp).to(device)
        tokens = torch.randint(2, settings.vocab_size, (2, batch, length), device=device)
        return model, (tokens[0], tokens[1])

    return Case(make, adamw)


def _unet(device: str, width: int, batch: int, size: int, amp: bool) -> Case:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        images = torch.randn(2, batch, 3, size, size, device=device)
        return Denoising(UNet(width), device, amp).to(device), (images[0], images[1], torch.rand(batch, device=device))

    return Case(make, adamw)


_NO_DROPOUT_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NO_DROPOUT_GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
_LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "use_cache": False,
}
_SMALL_BERT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_SMALL_GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8000}


def _cuda() -> dict[str, Case]:
    images, tokens = functools.partial(_images, "cuda"), functools.partial(_tokens, "cuda")
    return {
        "resnet18 16x128 f32": images("resnet18", 16, 128, False),
        "resnet50 32x224 amp": images("resnet50", 32, 224, True),
        "convnext_tiny 32x224 amp": images("convnext_tiny", 32, 224, True),
        "vit_b_16 32x224 amp": images("vit_b_16", 32, 224, True),
        "bert_base 16x128 amp": tokens("BertForSequenceClassification", 16, 128, True, **_NO_DROPOUT_BERT),
        "gpt2 8x512 amp": tokens("GPT2LMHeadModel", 8, 512, True, **_NO_DROPOUT_GPT2),
        "t5_small 16x128 amp": _t5("cuda", 16, 128, True),
        "unet 8x64 amp": _unet("cuda", 128, 8, 64, True),
        "llama 1B 4x2048 amp": tokens("LlamaForCausalLM", 4, 2048, True, large=True, **_LLAMA_1B),
    }


def _cpu() -> dict[str, Case]:
    images, tokens = functools.partial(_images, "cpu"), functools.partial(_tokens, "cpu")
    return {
        "resnet18 4x128": images("resnet18", 4, 128, False),
        "mobilenet_v3_small 4x128": images("mobilenet_v3_small", 4, 128, False),
        "vit_tiny 2x224": images("vit_tiny_patch16_224", 2, 224, False, timm=True),
        "bert_small 8x64": tokens("BertForSequenceClassification", 8, 64, False, **_SMALL_BERT, **_NO_DROPOUT_BERT),
        "gpt2_small 4x64": tokens("GPT2LMHeadModel", 4, 64, False, **_SMALL_GPT2, **_NO_DROPOUT_GPT2),
    }


CASES: dict[str, dict[str, Case]] = {"cuda": _cuda(), "cpu": _cpu()}
