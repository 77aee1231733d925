"""Tiny models of diffusers, which is no dependency: name -> (module, args, kwargs). Empty where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Built = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


_UNET = {"sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_TRANSFORMER = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8, "patch_size": 2}

# name -> (class, settings, arguments)
_MODELS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "diffusers-unet": (
        "UNet2DConditionModel",
        {
            **_UNET,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
        },
        lambda: {
            "sample": _noise(1, 4, 16, 16),
            "timestep": torch.tensor(7),
            "encoder_hidden_states": _noise(1, 6, 32),
        },
    ),
    "diffusers-unet-plain": (
        "UNet2DModel",
        {
            **_UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: {"sample": _noise(1, 3, 16, 16), "timestep": 7},
    ),
    "diffusers-vae": (
        "AutoencoderKL",
        {
            "block_out_channels": (16, 32),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "norm_num_groups": 8,
        },
        lambda: {"sample": _noise(1, 3, 16, 16)},
    ),
    "diffusers-controlnet": (
        "ControlNetModel",
        {
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "conditioning_embedding_out_channels": (8, 16),
        },
        lambda: {
            "sample": _noise(1, 4, 16, 16),
            "timestep": torch.tensor(7),
            "encoder_hidden_states": _noise(1, 6, 32),
            "controlnet_cond": _noise(1, 3, 32, 32),
        },
    ),
    "diffusers-dit": (
        "DiTTransformer2DModel",
        {**_TRANSFORMER, "in_channels": 4, "out_channels": 4, "num_embeds_ada_norm": 10},
        lambda: {
            "hidden_states": _noise(1, 4, 8, 8),
            "timestep": torch.tensor([3]),
            "class_labels": torch.tensor([1]),
        },
    ),
    "diffusers-pixart": (
        "PixArtTransformer2DModel",
        {**_TRANSFORMER, "in_channels": 4, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": 32},
        lambda: {
            "hidden_states": _noise(1, 4, 8, 8),
            "encoder_hidden_states": _noise(1, 6, 32),
            "timestep": torch.tensor([3]),
            "encoder_attention_mask": torch.ones(1, 6),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
    "diffusers-sd3": (
        "SD3Transformer2DModel",
        {
            **_TRANSFORMER,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 8,
        },
        lambda: {
            "hidden_states": _noise(1, 4, 8, 8),
            "encoder_hidden_states": _noise(1, 6, 32),
            "pooled_projections": _noise(1, 16),
            "timestep": torch.tensor([3]),
        },
    ),
    "diffusers-flux": (
        "FluxTransformer2DModel",
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 16,
            "axes_dims_rope": (4, 6, 6),
        },
        lambda: {
            "hidden_states": _noise(1, 16, 4),
            "encoder_hidden_states": _noise(1, 6, 32),
            "pooled_projections": _noise(1, 16),
            "timestep": torch.tensor([0.3]),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(6, 3),
        },
    ),
}


def _build(name: str) -> Built:
    import diffusers

    model, settings, arguments = _MODELS[name]
    torch.manual_seed(0)
    return getattr(diffusers, model)(**settings).eval(), (), arguments()


DIFFUSERS: dict[str, Callable[[], Built]] = (
    {name: partial(_build, name) for name in _MODELS} if importlib.util.find_spec("diffusers") else {}
)
