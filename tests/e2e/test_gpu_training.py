"""A training step under autocast, through the passes for a GPU and run by the interpreter: gradients as near to float64's as eager's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import intarsia
from intarsia import graph_compiler, training
from intarsia.frontend.functional.trace import functionalize
from intarsia.graph_compiler import Report
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.partition.step import compute_again
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline


class Block(nn.Module):
    """A residual branch as ResNet-50 has it."""

    def __init__(self, outer: int, inner: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, k, padding=k // 2, bias=False)
            for a, b, k in ((outer, inner, 1), (inner, inner, 3), (inner, outer, 1))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (inner, inner, outer))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = y.relu() if k < 2 else y
        return F.relu(y + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.block, self.head = Block(16, 8), nn.Linear(16, 10)
        self.amp = True

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.amp):
            x = F.max_pool2d(self.norm(self.stem(x)).relu(), 3, 2, 1)
            return F.cross_entropy(self.head(self.block(x).mean((2, 3))), target)


def lowered_for_a_gpu(
    graph: fx.GraphModule, inputs: Sequence[Any], *_: Any, trace: Callable[..., Any] = functionalize
) -> tuple[Callable[..., Any], Report]:
    """In place of `compile_graph`: the graph's loops for a GPU, run by the interpreter."""
    imported = import_fx(trace(graph, inputs))
    retarget(imported.module, "cuda:0")
    for item in default_pipeline(gpu=True):
        item.apply(CompileContext(), imported.module)
    kernels = [op.name for op in imported.module.body.block.ops if op.name == "loop.kernel"]
    assert len(kernels) > 5

    def run(*args: Any) -> tuple[Any, ...]:
        return tuple(run_user(imported.module, [a.detach().clone() for a in args] + list(imported.constants)))

    return run, Report()


def gradients(step: Callable[..., Tensor], model: nn.Module, *args: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    step(*args).backward()
    return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def as_near_as_eager(
    found: dict[str, Tensor], eager: dict[str, Tensor], gold: dict[str, Tensor], times: float = 1.5
) -> None:
    """Each gradient at most so many times as far from float64's as eager's."""
    assert found.keys() == eager.keys() == gold.keys()
    for name, wanted in gold.items():
        off, allowed = (found[name] - wanted).norm(), times * (eager[name] - wanted).norm() + 1e-3 * wanted.norm()
        assert off <= allowed, f"{name}: {off:.3g} off float64, {allowed:.3g} allowed, its size is {wanted.norm():.3g}"


def in_float64(model: nn.Module, x: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The gradients without rounding."""
    wide = copy.deepcopy(model).double()
    wide.amp = False  # type: ignore[assignment]
    return gradients(wide, wide, x.double(), target)


@torch.enable_grad()
def test_gradients_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "compile_graph", lowered_for_a_gpu)
    torch.manual_seed(0)
    model = Net()
    x, target = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    gold, eager = in_float64(model, x, target), gradients(model, model, x, target)
    found = gradients(intarsia.compile(model, fullgraph=True), model, x, target)
    as_near_as_eager(found, eager, gold)


@torch.enable_grad()
@pytest.mark.parametrize("amp", [True, False])
def test_gradients_of_a_whole_step(monkeypatch: pytest.MonkeyPatch, amp: bool) -> None:
    """Forward and backward are one program, in which backward computes again what is cheaper than to keep."""
    kept = []

    def chosen(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        functional = functionalize(graph, inputs)
        kept.append(compute_again(functional))
        return functional

    for name in ("choose", "costs", "step"):
        monkeypatch.setattr(f"intarsia.partition.{name}.is_on_gpu", lambda node: True)
    monkeypatch.setattr(graph_compiler, "compile_graph", lambda *args: lowered_for_a_gpu(*args, trace=chosen))
    torch.manual_seed(0)
    model = Net()
    model.amp = amp
    names = [n for n, _ in model.named_parameters()]
    x, target = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    gold, eager = in_float64(model, x, target), gradients(model, model, x, target)
    model.zero_grad(set_to_none=True)

    def step(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x, target), list(model.parameters()))

    found = dict(zip(names, intarsia.compile(step, fullgraph=True)(x, target), strict=True))
    as_near_as_eager({n: g.double() for n, g in found.items()}, eager, gold)
    (partition,) = kept
    assert partition is not None and partition.again["relu"] >= 2
