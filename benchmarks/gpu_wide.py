"""More models for benchmarks/gpu.py (`--suite wide`), of families that its other suites leave out; random weights, nothing downloaded.

They were written down before any of them was measured, and stay whatever they show.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from gpu_cases import BF16, Case
from torch import Tensor, nn


def _timm(name: str, batch: int, size: int = 224, dtype: torch.dtype = BF16) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import timm

        model = timm.create_model(name, pretrained=False).to("cuda", dtype).eval()
        return model, [torch.randn(batch, 3, size, size, device="cuda", dtype=dtype)]

    return make


def _of_torchvision(path: str, *shape: int, dtype: torch.dtype = BF16, **options: Any) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import torchvision

        made: Any = torchvision.models
        for part in path.split("."):
            made = getattr(made, part)
        return made(weights=None, **options).to("cuda", dtype).eval(), [torch.randn(*shape, device="cuda", dtype=dtype)]

    return make


def _tokens(name: str, config: str, batch: int, length: int, **options: Any) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import transformers

        settings = getattr(transformers, config)(**options)
        model = getattr(transformers, name)(settings).to("cuda", BF16).eval()
        return model, [torch.randint(2, settings.vocab_size, (batch, length), device="cuda")]

    return make


def _waves(name: str, config: str, *shape: int, **options: Any) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        import transformers

        model = getattr(transformers, name)(getattr(transformers, config)(**options)).to("cuda", BF16).eval()
        return model, [torch.randn(*shape, device="cuda", dtype=BF16)]

    return make


class _Recommender(nn.Module):
    """Embeddings of 26 features, their pairwise products, and two stacks of linear layers (Naumov et al., 2019)."""

    def __init__(self, rows: int = 100_000, size: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, size) for _ in range(26))
        self.below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, size))
        pairs = 27 * 26 // 2
        self.above = nn.Sequential(nn.Linear(pairs + size, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.last = nn.Linear(256, 1)
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1))

    def forward(self, dense: Tensor, features: Tensor) -> Tensor:
        x = self.below(dense)
        all_of = torch.stack([x, *(table(features[:, i]) for i, table in enumerate(self.tables))], 1)
        products = (all_of @ all_of.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.last(self.above(torch.cat([x, products], 1))).sigmoid()


def _recommender() -> tuple[Any, list[Tensor]]:
    dense = torch.randn(8192, 13, device="cuda", dtype=BF16)
    return _Recommender().to("cuda", BF16).eval(), [dense, torch.randint(0, 100_000, (8192, 26), device="cuda")]


class _Messages(nn.Module):
    """Three rounds of messages along edges, with attention over each node's neighbours (Velickovic et al., 2018)."""

    def __init__(self, size: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.scores = nn.ModuleList(nn.Linear(2 * size, 1) for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for layer, score in zip(self.layers, self.scores, strict=True):
            h = layer(x)
            weight = F.leaky_relu(score(torch.cat([h[source], h[target]], -1)), 0.2).squeeze(-1)
            top = torch.full_like(x[:, 0], float("-inf")).scatter_reduce(0, target, weight, "amax")
            weight = (weight - top[target]).exp()
            total = torch.zeros_like(top).index_add(0, target, weight)
            x = F.elu(torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target])[:, None])) + x
        return x


def _messages() -> tuple[Any, list[Tensor]]:
    x = torch.randn(20_000, 128, device="cuda")
    return _Messages().cuda().eval(), [x, torch.randint(0, 20_000, (2, 200_000), device="cuda")]


class _Separator(nn.Module):
    """A temporal convolutional network that masks a learned spectrum (Luo and Mesgarani, 2019)."""

    def __init__(self, size: int = 256, inner: int = 512) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, size, 16, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(size, inner, 1),
                nn.PReLU(),
                nn.GroupNorm(1, inner),
                nn.Conv1d(inner, inner, 3, padding=2**i, dilation=2**i, groups=inner),
                nn.PReLU(),
                nn.GroupNorm(1, inner),
                nn.Conv1d(inner, size, 1),
            )
            for _ in range(2)
            for i in range(8)
        )
        self.decode = nn.ConvTranspose1d(size, 1, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = h = self.encode(x)
        for block in self.blocks:
            h = h + block(h)
        return self.decode(x * h.sigmoid())


def _separator() -> tuple[Any, list[Tensor]]:
    return _Separator().to("cuda", BF16).eval(), [torch.randn(8, 1, 32_000, device="cuda", dtype=BF16)]


def _whisper() -> tuple[Any, list[Tensor]]:
    import transformers

    model = transformers.WhisperModel(transformers.WhisperConfig()).to("cuda", BF16).eval()
    return model.get_encoder(), [torch.randn(4, 80, 3000, device="cuda", dtype=BF16)]


_SMALL = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16}
_GATED = _SMALL | {"intermediate_size": 2816, "num_key_value_heads": 4, "use_cache": False}

WIDE: dict[str, Case] = {
    "efficientnet_b0 b64": _timm("efficientnet_b0", 64),
    "regnety_016 b32": _timm("regnety_016", 32),
    "densenet121 b32": _timm("densenet121", 32),
    "mixer_b16 b32": _timm("mixer_b16_224", 32),
    "maxvit_tiny b16": _timm("maxvit_tiny_tf_224", 16),
    "poolformer_s12 b32": _timm("poolformer_s12", 32),
    "ghostnet_100 b64": _timm("ghostnet_100", 64),
    "xcit_small b16": _timm("xcit_small_12_p16_224", 16),
    "vgg16 b16": _of_torchvision("vgg16", 16, 3, 224, 224),
    "inception_v3 b32": _of_torchvision(
        "inception_v3", 32, 3, 299, 299, aux_logits=False, transform_input=False, init_weights=False
    ),
    "deeplabv3_resnet50 b4": _of_torchvision("segmentation.deeplabv3_resnet50", 4, 3, 512, 512, weights_backbone=None),
    "r3d_18 b4": _of_torchvision("video.r3d_18", 4, 3, 16, 112, 112),
    "albert 8x256": _tokens("AlbertModel", "AlbertConfig", 8, 256, hidden_size=768, num_attention_heads=12),
    "deberta_v2 8x256": _tokens("DebertaV2Model", "DebertaV2Config", 8, 256, **_SMALL, relative_attention=True),
    "opt 4x512": _tokens("OPTForCausalLM", "OPTConfig", 4, 512, use_cache=False),
    "gpt_neox 4x512": _tokens(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", 4, 512, **_SMALL, intermediate_size=4096, use_cache=False
    ),
    "bloom 4x512": _tokens(
        "BloomForCausalLM", "BloomConfig", 4, 512, hidden_size=1024, n_layer=6, n_head=16, use_cache=False
    ),
    "gemma2 4x512": _tokens("Gemma2ForCausalLM", "Gemma2Config", 4, 512, **_GATED, head_dim=64),
    "qwen3 1x2048": _tokens("Qwen3ForCausalLM", "Qwen3Config", 1, 2048, **_GATED, head_dim=64),
    "mixtral 4x256": _tokens("MixtralForCausalLM", "MixtralConfig", 4, 256, **_GATED, num_local_experts=8),
    "mamba 4x256": _tokens(
        "MambaForCausalLM", "MambaConfig", 4, 256, hidden_size=768, num_hidden_layers=6, use_cache=False
    ),
    "whisper encoder b4": _whisper,
    "wav2vec2 b4": _waves("Wav2Vec2Model", "Wav2Vec2Config", 4, 32_000, num_hidden_layers=6),
    "segformer b8": _waves("SegformerModel", "SegformerConfig", 8, 3, 256, 256),
    "recommender b8192": _recommender,
    "messages 20000": _messages,
    "separator b8": _separator,
}

# -- training steps of the same models: parameters in float32, bfloat16 autocast, nothing drawn


class _Score(nn.Module):
    """The mean square of a model's answer under autocast: a loss that asks for each parameter's gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.amp = model, True

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast("cuda", BF16, enabled=self.amp):
            found = self.model(*args)
        if not isinstance(found, Tensor):
            found = found["out"] if "out" in found else found["logits"] if "logits" in found else found[0]
        return found.float().square().mean()


def _undrawn(holder: Any) -> None:
    """Sets the probabilities of dropout, of dropped layers and of masked spans to zero, so that systems can be compared."""
    for name, value in list(vars(holder).items()):
        drawn = "drop" in name or name.startswith("mask_time_") or name.startswith("mask_feature_")
        if name == "p" and isinstance(holder, nn.modules.dropout._DropoutNd) or drawn and type(value) is float:
            setattr(holder, name, 0.0)


def _step(case: Case) -> Case:
    def make() -> tuple[Any, list[Tensor]]:
        model, args = case()
        for module in model.modules():
            _undrawn(module)
            if hasattr(module, "config"):
                _undrawn(module.config)
        for weight in model.parameters():  # a head of zeros would leave no gradient to compare
            if weight.ndim > 1 and not weight.any():
                nn.init.normal_(weight, std=0.02)
        return _Score(model.float().train()), [a.float() if a.is_floating_point() else a for a in args]

    return make


WIDE_TRAINING: dict[str, Case] = {name: _step(case) for name, case in WIDE.items()}
