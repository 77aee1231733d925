"""Programs whose kernels are for a GPU, from wherever the tests have some: handwritten, of every scalar operation, random, captured.

All are made with tensors on the CPU and then put on "cuda:0", so no GPU is needed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import loop
from intarsia.ir.dtypes import BF16, BOOL, F16, F32, F64, I64, DType
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.retarget import retarget
from intarsia.ir.scalars import SCALARS, ScalarRow
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.graph.decompose import Decompose
from intarsia.passes.pipeline import default_pipeline

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "passes"), str(TESTS / "fuzz")]

from graphs import random_program  # noqa: E402
from kernel_zoo import CASES, Case, Region_, t  # noqa: E402
from test_schedule import arguments  # noqa: E402

from tests.ladder import ladder  # noqa: E402

DEVICE = "cuda:0"
_PASSES = default_pipeline(gpu=True, until="horizontal-fusion")
ROW_DTYPES = (F32, F64, BF16, F16, I64, BOOL)
NOT_OF_BOOL = ("neg", "abs", "sign", "add", "sub", "mul", "floordiv", "mod", "fmod", "pow", "shl", "shr")


@dataclass
class Program:
    """A module on the CPU, arguments for it, and the bounds of its results where these are large.

    `exact`: what runs on the CPU instead, where a GPU's random numbers are others than the library's.
    """

    name: str
    module: ModuleOp
    args: Sequence[Any]
    scales: Sequence[float] = ()
    exact: ModuleOp | None = None

    def on_gpu(self) -> ModuleOp:
        """The same program on a GPU, up to its kernels."""
        module = parse_module(print_module(self.module))
        retarget(module, DEVICE)
        levels = {op.name.partition(".")[0] for op in module.walk()}
        always = {item.name for item in ladder(gpu=True)} | {"horizontal-fusion"}
        for item in _PASSES:
            if item.name in always or "kernel" not in levels and (item.level != "aten" or "aten" in levels):
                item.apply(CompileContext(), module)
        module.verify()
        return module


def kernels_of(module: ModuleOp) -> list[loop.Kernel]:
    """The kernels of a module."""
    return [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]


def zoo() -> Iterator[Program]:
    """The handwritten kernels."""
    for name, case in CASES.items():
        yield Program(name, case.module(), arguments(case))


def rows(dtypes: Sequence[DType] = ROW_DTYPES) -> Iterator[Program]:
    """Every scalar operation on every dtype that it is for."""
    for dtype in dtypes:
        for row in SCALARS.values():
            if _takes(row, dtype):
                case = Case(f"{row.name}_{dtype.name}", _types(row, dtype), _row(row, dtype), {}, 0)
                yield Program(case.name, case.module(), _operands(row, dtype))


def _takes(row: ScalarRow, dtype: DType) -> bool:
    if row.domain == "i64":
        return dtype == I64
    if dtype.is_float:
        return row.domain != "int"
    return row.domain != "float" and not (dtype == BOOL and row.name in NOT_OF_BOOL)


def _types(row: ScalarRow, dtype: DType) -> list[Any]:
    kinds = [BOOL, dtype, dtype] if row.name == "where" else [dtype] * row.arity
    return [t(70, dtype=kind) for kind in kinds]


def _row(row: ScalarRow, dtype: DType) -> Callable[..., SSAValue]:
    half = dtype in (BF16, F16)

    def build(k: Region_, *xs: SSAValue) -> SSAValue:
        if half:  # computed in float32, and rounded once
            xs = tuple(x if x.type.dtype == BOOL else k.cast(x, F32) for x in xs)  # type: ignore[attr-defined]
        found = getattr(k, row.name)(*xs) if row.name not in ("and", "or", "not", "add") else _named(k, row.name, xs)
        return k.cast(found, dtype) if half and row.result != "bool" else found

    return build


def _named(k: Region_, name: str, xs: Sequence[SSAValue]) -> SSAValue:
    return getattr(k, f"{name}_")(*xs)  # type: ignore[no-any-return]


def _operands(row: ScalarRow, dtype: DType) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(row.name))
    first = torch.rand(70, generator=generator) > 0.5
    if dtype == BOOL:
        return [torch.rand(70, generator=generator) > 0.5 for _ in range(row.arity)]
    if dtype.is_float:
        found = [torch.randn(70, generator=generator, dtype=torch.float64).to(dtype.torch) for _ in range(row.arity)]
        special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 0.5, 1.5, -2.5]
        found[-1][: len(special)] = torch.tensor(special)
        found[0][-len(special) :] = torch.tensor(special)
    else:
        found = [torch.randint(-9, 10, (70,), generator=generator) for _ in range(row.arity)]
        if row.name in ("floordiv", "mod", "fmod"):
            found[1] = torch.where(found[1] == 0, 3, found[1])
        if row.name == "philox":
            found = [
                torch.randint(-(2**63), 2**63 - 1, (70,), generator=generator),
                found[1].abs() << torch.arange(70) % 50,
            ]
        if row.name in ("pow", "shl", "shr"):
            found[1] = found[1].abs() * (7 if row.name != "pow" else 1)
    return [first, *found[1:]] if row.name == "where" else found


def randoms(seeds: Sequence[int]) -> Iterator[Program]:
    """Random programs, each with its first sizes."""
    for seed in seeds:
        made = random_program(seed, random.Random(seed).choice([4, 8, 14]))
        yield Program(f"random_{seed}", made.module, made.inputs(made.bindings[0], seed), made.scales)


class Block(nn.Module):
    """A layer of a small transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (a.unflatten(-1, (4, -1)).transpose(1, 2) for a in self.qkv(self.norm(x)).chunk(3, -1))
        scores = (q @ k.transpose(2, 3) * 0.3).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.last(x + self.down(F.gelu(self.up(x), approximate="tanh")))


def _convolutions() -> nn.Module:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8)]
    return nn.Sequential(*body, nn.Conv2d(8, 8, 3), nn.Hardswish(), *head)


def _depthwise() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GELU(), nn.Conv2d(16, 16, 5, 2, 2, groups=16))


def _loss(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target) + F.mse_loss(x.sigmoid(), x.tanh()) + F.huber_loss(x, x.flip(1))


def _mixed(*tensors: Tensor) -> Any:
    """Kernels of one text whose memory differs in size or type, and one that is launched alone as well."""
    wide, first = [x.float() * 2 for x in tensors], [x.exp() for x in tensors]
    return *wide, *first, (first[0] @ first[0].t()).exp(), [x[:0] + 1 for x in tensors]


def _random(x: Tensor) -> Any:
    hidden = F.layer_norm(F.dropout(x, 0.3) + x, (50,))
    numbers = torch.rand_like(x), torch.randn(7, 9, dtype=torch.float64), torch.randint(-3, 9, (40,)), torch.rand(())
    wide = torch.randint(0, 2**40, (5,)), torch.bernoulli(x.sigmoid()), F.dropout(x[:, ::2].t().bfloat16(), 0.5)
    return hidden, *numbers, *wide, torch.empty_like(x).exponential_(), torch.empty_like(x).geometric_(0.2)


def _adam(*tensors: Tensor) -> Any:
    params, grads, means, squares = ([*tensors[k::4]] for k in range(4))
    means = torch._foreach_lerp(means, grads, 0.1)
    squares = torch._foreach_addcmul(torch._foreach_mul(squares, 0.99), grads, grads, 0.01)
    root = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    return *torch._foreach_addcdiv(params, means, root, -0.1), *means, *squares, norm


def _casts(*w: Tensor) -> Any:
    """Kernels that are joined, with parts of one text on other types, of one name with other texts, of no elements; and one of them alone."""
    halves = [x.bfloat16() for x in w[:3]] + [w[3].half(), w[3].bfloat16() * 2, w[4] + 1, w[5] + 1]
    total = (halves[0] @ halves[1]).float().cumsum(0)
    return *halves, total, total.bfloat16(), (total * w[0]).sum(0)


MODELS: dict[str, Callable[[], tuple[Callable[..., Any], list[Tensor]]]] = {
    "transformer": lambda: (Block(), [torch.randn(2, 6, 32)]),
    "convolutions": lambda: (_convolutions().eval(), [torch.randn(2, 3, 12, 12)]),
    "depthwise": lambda: (_depthwise().eval(), [torch.randn(2, 16, 17, 9)]),
    "convolutions_training": lambda: (_convolutions(), [torch.randn(2, 3, 12, 12)]),
    "loss": lambda: (_loss, [torch.randn(9, 13), torch.randint(0, 13, (9,))]),
    "embedding_bag": lambda: (
        lambda w, i: F.normalize(w[i].mean(1)),
        [torch.randn(9, 12), torch.randint(0, 9, (4, 3))],
    ),
    "statistics": lambda: (lambda x: (x.std(1), x.var(0), x.logsumexp(1), x.norm(dim=0)), [torch.randn(12, 40)]),
    "gaps": lambda: (
        lambda x: (F.pad(x[:, :1001].exp(), (0, 7)), F.pad(x[:, :990], (0, 18)), x[:, :1001].max(1)[0]),
        [torch.randn(3, 1008).bfloat16()],
    ),
    "vocabulary": lambda: (lambda x: x[:, :50257].float().logsumexp(1), [torch.randn(2, 50264).bfloat16()]),
    "sorting": lambda: (lambda x: (x.cumsum(1), x.cummax(1)[0], x.argmin(0), x.any(1)), [torch.randn(5, 33)]),
    "half": lambda: (
        lambda x, w: F.silu(F.rms_norm(x, (24,), w)) * x,
        [torch.randn(5, 24).bfloat16(), torch.ones(24).bfloat16()],
    ),
    "rotary": lambda: (
        lambda x, f: torch.cat([-x[..., 8:], x[..., :8]], -1) * f.sin() + x * f.cos(),
        [torch.randn(2, 3, 16)] * 2,
    ),
    "lists": lambda: (_adam, [torch.rand(shape) for shape in ((4, 33), (70,), (4, 33), (), (3, 0)) for _ in range(4)]),
    "casts": lambda: (_casts, [torch.rand(shape) for shape in ((9, 9), (9, 9), (4, 33), (4, 33), (0, 5), (0,))]),
    "mixed": lambda: (
        _mixed,
        [
            torch.rand(16, n).to(t)
            for n, t in ((16, F32.torch), (64, F32.torch), (48, F32.torch), (16, BF16.torch), (64, F16.torch))
        ],
    ),
    "random": lambda: (_random, [torch.randn(3, 50)]),
    "images": lambda: (
        lambda x: F.pixel_shuffle(F.pad(x, (1, 2, 0, 1), "reflect"), 2).relu(),
        [torch.randn(2, 4, 5, 5)],
    ),
}


def graphs_of(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[tuple[ModuleOp, list[Any]]]:
    """The graphs of a call, imported, and the arguments of each."""
    graphs: list[tuple[Any, list[Any]]] = []

    def keep(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append((graph, inputs))
        return graph.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        intarsia.compile(fn, backend=keep, fullgraph=True)(*args)
        return [(import_fx(functionalize(graph, inputs)).module, inputs) for graph, inputs in graphs]


def models(names: Sequence[str] = tuple(MODELS)) -> Iterator[Program]:
    """Small models, captured on the CPU. Each graph of a model is a program."""
    for name in names:
        torch.manual_seed(0)
        fn, args = MODELS[name]()
        with torch.no_grad():
            for number, (module, inputs) in enumerate(graphs_of(fn, args)):
                exact = parse_module(print_module(module))
                Decompose(random="philox").apply(CompileContext(), exact)
                yield Program(f"{name}_{number}", module, inputs, exact=exact if name == "random" else None)
