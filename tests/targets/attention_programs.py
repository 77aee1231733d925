"""Attention over short rows as programs whose kernels are for a GPU, each with a tile of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_programs import DEVICE, Program, graphs_of
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.kernels.attention import Attention as AttentionPass
from intarsia.passes.pipeline import default_pipeline

HALF = (torch.bfloat16, torch.float16)
Attention = Callable[..., Tensor]


@dataclass
class AttentionProgram(Program):
    """A program whose attention becomes a kernel, in this tile."""

    tile: str = ""

    def on_gpu(self) -> ModuleOp:
        module = parse_module(print_module(self.module))
        retarget(module, DEVICE)
        for item in default_pipeline([AttentionPass(tile=self.tile)], gpu=True, until="attention-kernels"):
            item.apply(CompileContext(Machine(tf32_products=True)), module)
        module.verify()
        return module


def joint(images: int, tokens: int, heads: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """What one projection gives for queries, keys and values."""
    return torch.randn(images, tokens, 3, heads, width).to(dtype)


def heads(images: int, count: int, tokens: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Tokens of heads, as a projection of its own gives them."""
    return torch.randn(images, tokens, count, width).to(dtype).transpose(1, 2)


def of_joint(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Views of one tensor; the result as the projection behind it reads it."""
    q, k, v = x.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


def of_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def windows(x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Windows of shifted images, as Swin writes them: a bias for all of them, a mask for each window of an image."""
    q, k, v = x.permute(2, 0, 3, 1, 4)
    count, width = mask.shape[0], q.shape[-1]
    scores = (q * width**-0.5) @ k.transpose(-2, -1) + bias
    scores = scores.view(-1, count, *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
    return (scores.view(-1, *scores.shape[2:]).softmax(-1) @ v).transpose(1, 2).flatten(2)


def written(x: Tensor, bias: Tensor) -> Tensor:
    """Values wider than keys, as LeViT writes it."""
    width = x.shape[-1] // 4
    q, k, v = x.split([width, width, 2 * width], -1)
    weights = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * width**-0.5 + bias).softmax(-1)
    return (weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2)


def _open(*shape: int) -> Tensor:
    """Truth values; the fourth row of the last two dimensions is shut."""
    found = torch.rand(*shape) > 0.4
    found[..., 0] = True
    if shape[-2] > 3:
        found[..., 3, :] = False
    return found


def _numbers(found: Tensor) -> Tensor:
    return torch.zeros(found.shape).masked_fill(~found, float("-inf")).bfloat16()


def _between_images(*shape: int) -> Tensor:
    """-100 between tokens of different images, of which each row has some of its own."""
    found = torch.rand(*shape) > 0.4
    found[..., 0] = True
    return torch.where(found, 0.0, -100.0).bfloat16()


def _half(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def cases() -> dict[str, tuple[str, Attention, list[Tensor]]]:
    """Tile, function and arguments by name."""
    torch.manual_seed(0)
    q, k, v = (heads(2, 2, 49, 32) for _ in range(3))
    return {
        "windows_of_49": ("64x4", of_joint, [joint(3, 49, 2, 32), _half(1, 2, 49, 49)]),
        "windows_of_64": ("64x4", of_joint, [joint(2, 64, 2, 32, torch.float16)]),
        "shifted_windows": (
            "64x4",
            windows,
            [joint(4, 49, 2, 32), _half(1, 2, 49, 49), _between_images(2, 49, 49)],
        ),
        "blocks_of_queries": ("16x1", of_joint, [joint(2, 50, 2, 24), _half(2, 1, 50, 50)]),
        "132_tokens": ("64x8", of_joint, [joint(1, 132, 1, 64)]),
        "few_queries": ("16x1", of_heads, [heads(2, 2, 7, 32), k, v, _half(1, 2, 7, 49)]),
        "one_query": ("16x1", of_heads, [heads(2, 2, 1, 32), k, v]),
        "wider_values": ("64x4", of_heads, [q, k, heads(2, 2, 49, 64)]),
        "padded_mask": ("64x4x1", windows, [joint(4, 49, 2, 32), _half(1, 2, 49, 49), _between_images(2, 49, 49)]),
        "padded_and_shut": ("32x2x1", of_heads, [q, k, v, _numbers(_open(49, 49))]),
        "written_wide": ("", written, [torch.randn(16, 16, 16, 64).bfloat16(), _half(16, 16, 16)]),
        "mask_of_keys": ("32x2x1", of_heads, [q, k, v, _open(2, 1, 1, 49)]),
        "shut_rows": ("32x2", of_heads, [q, k, v, _open(2, 1, 49, 49)]),
        "shut_by_numbers": ("32x2", of_heads, [q, k, v, _numbers(_open(49, 49))]),
        "causal": ("64x4", causal, [q, k, v]),
        "float32": ("64x4", of_heads, [x.float() for x in (q, k, v)]),
        "float16": ("64x4", of_heads, [x.half() for x in (q, k, v)]),
    }


def attention(names: Sequence[str] = ()) -> Iterator[Program]:
    """The programs."""
    for name, (tile, fn, args) in cases().items():
        if not names or name in names:
            yield captured(name, fn, args, tile)


def captured(name: str, fn: Callable[..., Any], args: list[Tensor], tile: str = "") -> AttentionProgram:
    """The program of a function, captured on the CPU."""
    ((module, inputs),) = graphs_of(fn, args)
    return AttentionProgram(name, module, inputs, [1.0], tile=tile)
