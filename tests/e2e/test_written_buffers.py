"""A forward half that writes to buffers where they are, as on a GPU: eager's values, and no copies of statistics."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import intarsia
from intarsia import training
from intarsia.frontend.functional.trace import functionalize
from intarsia.graph_compiler import Report, compile_graph
from intarsia.ir.dialects import buffer
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.retarget import retarget
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(training, "writes_inside", lambda inputs: True)
    with torch.enable_grad():
        yield


class Norms(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8, momentum=momentum) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.norms[1](self.last(self.norms[0](self.first(x)).relu())).relu().mean()


class Buffered(nn.Module):
    """Multiplies by a buffer and changes it, in one of these ways."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any], late: bool) -> None:
        super().__init__()
        self.change, self.late, self.linear = change, late, nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.late:
            y = y * self.scale  # backward reads the old value
            self.change(self.scale, y.detach())
            return y.sum()
        self.change(self.scale, y.detach())
        return (y * self.scale).sum() + self.scale.sum()


def averaged(scale: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        scale.mul_(0.9).add_(y.mean(0), alpha=0.1)


def hidden(scale: Tensor, y: Tensor) -> None:
    scale.data.mul_(0.9)


def part(scale: Tensor, y: Tensor) -> None:
    scale[1:3] = y[0, 1:3]


def counted(scale: Tensor, y: Tensor) -> None:
    scale.add_(1)


def steps(model: nn.Module, run: Callable[..., Tensor], shape: tuple[int, ...]) -> list[Any]:
    """Losses, gradients and buffers of some steps."""
    torch.manual_seed(1)
    found: list[Any] = []
    for k in range(4):
        x = torch.randn(shape if k != 2 else (3, *shape[1:]), requires_grad=True)
        model.zero_grad()
        try:
            loss = run(x)
            loss.backward()
        except RuntimeError as error:
            found.append("inplace operation" in str(error))
            continue
        found += [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        found += [b.clone() for b in model.buffers()]
    return found


def twins(make: Callable[[], nn.Module]) -> list[nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make())
    return made


@pytest.mark.parametrize("mode", ["train", "eval", "cumulative", "frozen"])
def test_batch_norms(mode: str) -> None:
    one, other = twins(lambda: Norms(None if mode == "cumulative" else 0.1).train(mode != "eval"))
    if mode == "frozen":
        for model in (one, other):
            model.norms.requires_grad_(False)  # type: ignore[union-attr]
    wanted = steps(one, one, (4, 3, 10, 10))
    found = steps(other, intarsia.compile(other), (4, 3, 10, 10))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not intarsia.counters()["fallbacks"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("change", [averaged, hidden, part, counted])
def test_buffers(change: Callable[[Tensor, Tensor], Any], late: bool) -> None:
    one, other = twins(lambda: Buffered(change, late))
    wanted = steps(one, one, (4, 4))
    found = steps(other, intarsia.compile(other), (4, 4))
    if not late:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    elif change is not hidden:  # eager refuses the buffer that has changed; a graph has kept the old value
        assert all(w is True for w in wanted)
    torch.testing.assert_close(other.scale, one.scale)
    assert change is not counted or other.scale._version == one.scale._version == 4


def test_what_cannot_be_differentiated_twice_is_said() -> None:
    """The graph would write once more."""
    model = Norms()
    x = torch.randn(4, 3, 10, 10, requires_grad=True)
    (found,) = torch.autograd.grad(intarsia.compile(model)(x), x, create_graph=True)
    before = [b.clone() for b in model.buffers()]
    with pytest.raises(RuntimeError):
        found.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))


def test_no_copies_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running mean, variance and count of each norm are written by the kernels that compute them; backward reads none of them."""
    copies, written = list[int](), list[int]()

    def lowered(graph: torch.fx.GraphModule, inputs: Any, *rest: Any) -> tuple[Any, Report]:
        module = import_fx(functionalize(graph, inputs)).module
        retarget(module, "cuda:0")
        for item in default_pipeline(gpu=True):
            item.apply(CompileContext(), module)
        func = next(op for op in module.body.block.ops if op.name == "prim.func")
        copies.append(sum(isinstance(op, buffer.Copy) for op in func.block_body.ops))
        written.append(len(func.get("mutations", ())))
        return compile_graph(graph, inputs, *rest)

    monkeypatch.setattr(training, "compile_graph", lowered)
    model = Norms()
    intarsia.compile(model)(torch.randn(4, 3, 10, 10)).backward()
    assert copies == [0, 0] and written == [6, 0]


@pytest.mark.parametrize("played", [True, False])
@pytest.mark.parametrize("retain", [False, True])
def test_what_forward_saved_is_held_by_the_list_alone(
    monkeypatch: pytest.MonkeyPatch, retain: bool, played: bool
) -> None:
    """A recording of backward may write there once the list is empty; it is asked first."""
    model, held, halves = Norms(), list[list[tuple[int, ...]]](), list[training.Half]()
    plain = training.Half._compiled

    def compiled(half: training.Half) -> Any:
        halves.append(half)
        return plain(half)

    def take(args: list[Any]) -> list[Any] | None:
        assert not torch.is_autocast_enabled("cpu")  # what is recorded casts nothing of its own
        given = list(args)
        copies = [a.clone() if isinstance(a, Tensor) else a for a in given]
        owned = [(StorageWeakRef(a.untyped_storage()), tuple(a.shape)) for a in given if isinstance(a, Tensor)]
        given.clear()
        args[:] = [None] * len(args)
        held.append([shape for storage, shape in owned if not storage.expired()])
        args[:] = copies
        return list(halves[-1](*copies)) if played else None

    monkeypatch.setattr(training.Half, "_compiled", compiled)
    run, x = intarsia.compile(model), torch.randn(4, 3, 10, 10)
    run(x).backward()
    halves[-1].recorded = SimpleNamespace(may_take=True, take_recorded=take)  # type: ignore[assignment]
    loss = run(x)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward(retain_graph=retain)
    parameters = {tuple(p.shape) for p in model.parameters()} | {(), tuple(x.shape)}
    images = [shape for shape in held[0] if shape not in parameters]
    assert bool(images) == retain
    found = [p.grad for p in model.parameters()]
    torch.testing.assert_close(
        found, list(torch.autograd.grad(model(x), list(model.parameters()))), rtol=1e-4, atol=1e-5
    )
