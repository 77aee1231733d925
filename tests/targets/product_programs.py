"""Matrix products with what is computed from them, as programs whose kernels are for a GPU, each with a tile of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_programs import DEVICE, Program, graphs_of
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.dialects import loop
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.kernels import pad_products
from intarsia.passes.kernels.choose_products import ChooseProducts
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.triton.compile import load_text
from intarsia.targets.triton.emit import emit_module
from intarsia.targets.triton.launch import kernel_source


@dataclass
class ProductProgram(Program):
    """A program whose products all become kernels, in this tile."""

    tile: str = ""

    def on_gpu(self) -> ModuleOp:
        module = parse_module(print_module(self.module))
        retarget(module, DEVICE)
        for item in default_pipeline([ChooseProducts(tile=self.tile)], gpu=True, until="choose-forms"):
            item.apply(CompileContext(Machine(tf32_products=True)), module)
        module.verify()
        return module


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers."""
    return (torch.randn(*shape) * 0.5).to(dtype)


torch.manual_seed(0)  # for the arguments of the cases: sums of half types are near their bounds
Case = tuple[str, Callable[..., Any], list[Tensor]]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Positions as angles between the halves of a head."""
    half_size = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half_size:], x[..., :half_size]], -1) * sin


PROLOGUES: dict[str, Case] = {  # what factors are computed by, without a tile: by the cost model
    "dequantized": (
        "",
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        [
            half(48, 256, dtype=torch.float16),
            torch.randint(-127, 128, (96, 256), dtype=torch.int8),
            half(96, dtype=torch.float16) / 64,
        ],
    ),
    "rotary_scores": (
        "",
        lambda q, k, cos, sin: rotated(q, cos, sin) @ rotated(k, cos, sin).transpose(-1, -2),
        [half(2, 3, 32, 64), half(2, 3, 32, 64), half(32, 64), half(32, 64)],
    ),
    "scaled_by_a_norm": ("", lambda x, g, w: F.linear(x * g, w), [half(40, 128), half(128), half(64, 128)]),
}

CASES: dict[str, Case] = {
    **PROLOGUES,
    "prologue_and_epilogue": (
        "32x32x32x4x2",
        lambda x, g, w, r: F.silu(F.linear(torch.tanh(x + g), w)) + r,
        [half(40, 64), half(64), half(96, 64), half(40, 96)],
    ),
    "linear_gelu": ("32x32x32x4x3", lambda x, w, b: F.gelu(F.linear(x, w, b)), [half(64, 64), half(96, 64), half(96)]),
    "residual": (
        "32x64x32x4x3",
        lambda x, w, b, r: r + F.linear(x, w, b) * 0.5,
        [half(2, 23, 64), half(96, 64), half(96), half(2, 23, 96)],
    ),
    "stored_too": ("16x16x16x1x2", lambda x, w: ((y := x @ w), y.relu()), [half(48, 64), half(64, 32)]),
    "odd_sizes": ("32x32x32x4x2", lambda x, w: (x @ w).sigmoid(), [half(50, 72), half(72, 40)]),
    "transposed_first": ("32x32x16x4x2", lambda x, w: (x.t() @ w).tanh(), [half(64, 48), half(64, 32)]),
    "heads": (
        "16x32x32x1x2",
        lambda x, w, b: F.linear(x, w, b).view(2, 8, 4, 16).transpose(1, 2).contiguous() * 0.5,
        [half(2, 8, 32), half(64, 32), half(64)],
    ),
    "gated": ("32x32x32x4x2", lambda x, w, v: F.silu(x @ w) * (x @ v), [half(40, 32), half(32, 64), half(32, 64)]),
    "two_layers": (
        "16x16x32x1x2",
        lambda x, w, v: torch.relu(torch.relu(x @ w) @ v),
        [half(20, 32), half(32, 24), half(24, 16)],
    ),
    "batched": ("16x16x32x1x2", lambda x, y: torch.bmm(x, y).relu(), [half(3, 20, 32), half(3, 32, 24)]),
    "batched_sum": (
        "16x16x32x1x2",
        lambda r, x, y: torch.baddbmm(r, x, y).relu(),
        [half(3, 20, 24), half(3, 20, 32), half(3, 32, 24)],
    ),
    "one_row": ("32x32x32x4x2", lambda x, w: F.silu(F.linear(x, w)), [half(1, 48), half(24, 48)]),
    "chunks": (
        "16x16x16x1x2x4",
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [half(20, 128), half(40, 128), half(40)],
    ),
    "float16": (
        "16x32x16x1x2",
        lambda x, w: (x @ w).exp(),
        [half(24, 32, dtype=torch.float16) * 0.1, half(32, 40, dtype=torch.float16)],
    ),
    "tf32": (
        "16x16x16x1x2",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        [torch.randn(24, 32), torch.randn(40, 32), torch.randn(40)],
    ),
    "persistent": (
        "32x32x32x4x3x1x3",
        lambda x, w, b, r: r + F.gelu(F.linear(x, w, b)),
        [half(72, 80), half(96, 80), half(96), half(72, 96)],
    ),
    "persistent_by_columns": (
        "32x64x32x4x3x1x4",
        lambda x, w: (x.t() @ w).sigmoid(),
        [half(96, 80), half(96, 72)],
    ),
    "persistent_heads": (
        "16x32x16x4x3x1x5",
        lambda x, w, b: F.linear(x, w, b).view(2, 8, 4, 16).transpose(1, 2).contiguous() * 0.5,
        [half(2, 8, 32), half(64, 32), half(64)],
    ),
    "persistent_wide": ("16x512x16x4x2x1x2", lambda x, w: F.linear(x, w).sin(), [half(48, 32), half(520, 32)]),
    "odd_columns": ("32x32x32x4x3", F.linear, [half(48, 64), half(67, 64)]),
    "persistent_odd_columns": ("32x32x32x4x3x1x2", F.linear, [half(48, 64), half(67, 64)]),
    "several_results": (
        "16x16x16x1x2",
        lambda x, w, m: ((y := x @ w).sin(), y * m, (y * m).cos()),
        [half(24, 32), half(32, 40), half(24, 40)],
    ),
}


def captured(name: str, fn: Callable[..., Any], args: list[Tensor], tile: str = "") -> ProductProgram:
    """The program of a function, captured on the CPU."""
    ((module, inputs),) = graphs_of(fn, args)
    return ProductProgram(name, module, inputs, [1.0] * 3, tile=tile)


def products(names: Sequence[str] = tuple(CASES)) -> Iterator[Program]:
    """The programs."""
    for name in names:
        torch.manual_seed(0)
        tile, fn, args = CASES[name]
        yield captured(name, fn, args, tile)


def class_gradients(x: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a linear layer's classes, and its gradients, in one program."""
    scores = F.linear(x, w).float()
    logs = scores.log_softmax(1)
    loss = F.nll_loss(logs, t)
    share = torch.where(t == -100, 0.0, 1 / (t != -100).sum())[:, None]
    here = torch.arange(w.shape[0]) == t[:, None]
    g = (logs.exp() * share - torch.where(here, share, 0.0)).to(x.dtype)
    return loss, g @ w, g.t() @ x


def norm_gradients(g: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """A product by rows that a kernel reduces and stores, and the sum of its columns."""
    d = g.float() * s
    d = (d - d.mean(1, keepdim=True)).to(g.dtype)
    return d @ x, d.float().sum(0)


UNEVEN: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "classes": (class_gradients, [half(24, 16), half(53, 16), torch.tensor([-100, 52, 3] * 8)]),
    "norm": (norm_gradients, [half(24, 53), half(53, 16), torch.randn(53)]),
    "inner": (F.linear, [half(24, 51), half(40, 51), half(40)]),
    "few columns": (lambda a, b: (a.relu().t() @ b).float() * 2, [half(32, 51), half(32, 24)]),
}


def uneven() -> Iterator[Program]:
    """Products whose rows begin anywhere, as if longer ones always paid."""
    pad_products.pays_padding = lambda *_: True
    for name, (fn, args) in UNEVEN.items():
        torch.manual_seed(0)
        (program,) = (Program(f"uneven_{name}", *graph, [1.0] * 3) for graph in graphs_of(fn, args))
        yield program


def ptx_of(kernel: loop.Kernel) -> str:
    """What Triton makes of a kernel for Hopper."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = kernel_source(kernel)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(emit_module([kernel]))
        function = getattr(load_text(path, source.name), source.name)
        attributes = {(k,): [["tt.divisibility", 16]] for k in source.aligned}
        ast = ASTSource(function, signature=dict(source.signature), constexprs={}, attrs=attributes)
        options = {"num_warps": source.warps, "num_stages": source.stages}
        return str(triton.compile(ast, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
