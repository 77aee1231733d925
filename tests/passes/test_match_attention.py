"""Random programs that write attention out, and such that nearly do, on both targets.

The clauses of `takes_products` and of the kernels are drawn on both sides: `SPOILERS` break one each, and no call may
be made of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import kernel
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline

SPOILERS = ("returned", "scores", "behind", "queries", "negative", "odd", "double", "digits", "twice")
ON_GPU_ONLY = ("behind", "negative", "odd", "digits")  # a kernel of ours takes these on a CPU


@dataclass
class Written:
    """An attention as a program writes it. `spoiler`: what keeps it from being one call."""

    rng: random.Random
    dtype: torch.dtype
    spoiler: str = ""
    args: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.b, self.h, self.rows, self.keys = rng.choice((1, 2)), rng.choice((2, 3)), rng.choice((1, 5, 16)), 16
        self.width = 15 if self.spoiler == "odd" else rng.choice((8, 24))
        self.three = rng.random() < 0.3
        self.scaling = rng.choice(("q", "mul", "div", "none", "baddbmm"))
        self.wide = rng.random() < 0.5 or self.spoiler == "digits"
        lead = (self.b * self.h,) if self.three else (self.b, self.h)
        self.args = [torch.randn(*lead, n, self.width).to(self.dtype) for n in (self.rows, self.keys, self.keys)]
        self.masks: list[tuple[str, float, Tensor]] = []
        kinds = [rng.choice(("add", "inf", "low", "where", "causal")) for _ in range(rng.choice((0, 1, 1, 2)))]
        if self.spoiler in ("behind", "digits"):
            kinds = ["add"]
        for kind in kinds:
            self.masks.append(self.mask(kind, lead))

    def mask(self, kind: str, lead: tuple[int, ...]) -> tuple[str, float, Tensor]:
        rng = self.rng
        low = -1e9 if self.dtype == torch.float32 else torch.finfo(self.dtype).min
        outer = [n if rng.random() < 0.5 else 1 for n in lead]
        shape = (*outer, self.rows, self.keys) if rng.random() < 0.7 else (self.rows, self.keys)
        if kind == "causal":
            return kind, rng.choice((-math.inf, low)), torch.ones(self.rows, self.keys, dtype=torch.bool).triu(1)
        shut = torch.rand(shape) < 0.3
        if rng.random() < 0.3:
            shut[..., 0, :] = True
        if kind == "add":
            value = torch.randn(shape).masked_fill(shut, -math.inf if rng.random() < 0.5 else -2.0)
            return kind, 0.0, value.to(self.dtype)
        return kind, low if kind == "low" else -math.inf, shut

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        factor = -0.3 if self.spoiler == "negative" else 0.3
        if self.scaling == "q" and self.spoiler != "negative":
            q = q * factor
        turned = k.transpose(-2, -1)
        if self.scaling == "baddbmm" and self.three and self.spoiler != "negative":
            bias = (
                masks[0].expand(self.b * self.h, self.rows, self.keys) if masks and self.masks[0][0] == "add" else None
            )
            zero = torch.zeros(1, 1, 1, dtype=q.dtype).expand(self.b * self.h, self.rows, self.keys)
            scores = torch.baddbmm(
                zero if bias is None else bias, q, turned, beta=0 if bias is None else 1, alpha=factor
            )
            skipped = int(bias is not None)
        else:
            scores, skipped = q @ turned, 0
            if self.scaling == "mul" or self.spoiler == "negative":
                scores = scores * factor
            elif self.scaling == "div":
                scores = scores / (1 / factor)
        before = scores
        if self.wide:
            scores = scores.float() if q.dtype != torch.float64 else scores
        for (kind, number, _), mask in list(zip(self.masks, masks, strict=True))[skipped:]:
            if kind == "add":
                more = (mask.to(scores.dtype) * 1.01).exp() if self.spoiler == "digits" else mask.to(scores.dtype)
                scores = scores + more
            elif kind == "causal":
                shut = torch.ones(self.rows, self.keys, dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(shut, number)
            elif kind == "where":
                scores = torch.where(~mask, scores, number)
            else:
                scores = scores.masked_fill(mask, number)
        if self.spoiler == "behind":
            scores = scores * 0.5
        weights = scores.softmax(-2 if self.spoiler == "queries" else -1)
        if self.spoiler == "twice":
            weights = weights.softmax(-1)
        weights = weights.to(v.dtype)
        result = weights @ v
        if self.spoiler in ("returned", "scores"):
            return result, weights if self.spoiler == "returned" else before
        return result if self.three else result.transpose(1, 2).flatten(2)


def _lowered(fn: Callable[..., object], args: list[Tensor], gpu: bool) -> tuple[ModuleOp, list[Tensor]]:
    made: list[ModuleOp] = []
    results: list[Tensor] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        module = import_fx(functionalize(graph, inputs)).module
        if gpu:
            retarget(module, "cuda:0")
        run_pipeline(CompileContext(Machine(bfloat16=False)), module, default_pipeline(gpu=gpu, until="attention"))
        made.append(module)
        results.extend(run_user(module, inputs))
        return graph.forward

    with torch.no_grad():
        intarsia.compile(fn, backend=backend, fullgraph=True)(*args)
    return made[0], results


def _draw(seed: int, spoiler: str = "") -> Written:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    dtypes = [torch.float32, torch.float32, torch.bfloat16, torch.float16]
    if spoiler == "digits":
        dtypes = [torch.bfloat16, torch.float16]
    return Written(rng, torch.float64 if spoiler == "double" else rng.choice(dtypes), spoiler)


def _is_exact(case: Written) -> bool:
    """Whether nothing hinges on how float16 holds numbers that are to shut a score."""
    return case.dtype != torch.float16 or all(kind == "add" or number == -math.inf for kind, number, _ in case.masks)


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("seed", range(30))
def test_random_attention(seed: int, gpu: bool) -> None:
    case = _draw(seed)
    args = [*case.args, *(m for _, _, m in case.masks)]
    module, found = _lowered(case, args, gpu)
    if _is_exact(case):
        assert any(isinstance(op, kernel.Extern) and op["target"] == kernel.ATTENTION for op in module.walk())
        assert not any(isinstance(op, kernel.Extern) and "bmm" in op["target"] for op in module.walk())
    expected = case(*(a.float() if a.is_floating_point() else a for a in args))
    assert isinstance(expected, Tensor)
    bound = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}[case.dtype]
    torch.testing.assert_close(found[0].float(), expected, atol=bound, rtol=bound, equal_nan=True)


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("spoiler", SPOILERS)
def test_what_is_no_attention(spoiler: str, gpu: bool) -> None:
    for seed in range(3):
        case = _draw(seed, spoiler)
        args = [*case.args, *(m for _, _, m in case.masks)]
        module, found = _lowered(case, args, gpu)
        calls = [op for op in module.walk() if isinstance(op, kernel.Extern) and op["target"] == kernel.ATTENTION]
        if spoiler not in ON_GPU_ONLY or gpu:
            assert not calls, (seed, spoiler)
        expected = case(*(a.double() if a.is_floating_point() else a for a in args))
        first = expected if isinstance(expected, Tensor) else expected[0]
        bound = {torch.bfloat16: 8e-2, torch.float16: 8e-3}.get(case.dtype, 1e-5)
        torch.testing.assert_close(found[0].double(), first.double(), atol=bound, rtol=bound, equal_nan=True)


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_positions_that_are_products(gpu: bool) -> None:
    """Scores between queries and positions are added to those between queries and keys: one of the two is the mask."""

    def relative(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) + q @ positions.transpose(-2, -1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    args = [torch.randn(2, 3, 16, 24) for _ in range(4)]
    module, (found,) = _lowered(relative, args, gpu)
    targets = [op["target"] for op in module.walk() if isinstance(op, kernel.Extern)]
    assert sorted(targets) == ["aten.bmm.default", kernel.ATTENTION]
    torch.testing.assert_close(found, relative(*args), atol=1e-5, rtol=1e-5)


def test_layers_share_a_mask() -> None:
    """What is made of a mask is made once, however many layers read it."""

    def layers(x: Tensor, shut: Tensor) -> Tensor:
        for _ in range(3):
            x = (x @ x.transpose(-2, -1)).masked_fill(shut, -1e9).softmax(-1) @ x
        return x

    args = [torch.randn(2, 3, 16, 24), torch.rand(2, 1, 16, 16) < 0.3]
    for gpu in (False, True):
        module, _ = _lowered(layers, args, gpu)
        calls = [op for op in module.walk() if isinstance(op, kernel.Extern)]
        assert len(calls) == 3 and len({op.operands[3] for op in calls}) == 1
