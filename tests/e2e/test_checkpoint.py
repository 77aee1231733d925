"""torch.utils.checkpoint: part of the graph, with eager's values; what is inside is not saved for backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import intarsia
from intarsia.targets.run import arenas


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    intarsia.reset()
    with torch.enable_grad():
        yield


class Block(nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, way: Callable[[nn.ModuleList, Tensor], Tensor], rate: float = 0.0) -> None:
        super().__init__()
        self.blocks, self.way = nn.ModuleList(Block(rate) for _ in range(3)), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.blocks, x).square().sum()


def each(**options: Any) -> Callable[[nn.ModuleList, Tensor], Tensor]:
    def way(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, **options)
        return x

    return way


def plain(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def nested(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    def outer(x: Tensor) -> Tensor:
        return checkpoint(blocks[1], checkpoint(blocks[0], x, use_reentrant=False), use_reentrant=False)

    return blocks[2](checkpoint(outer, x, use_reentrant=False))


WAYS = {
    "not reentrant": each(use_reentrant=False),
    "reentrant": each(use_reentrant=True),
    "no numbers kept": each(use_reentrant=False, preserve_rng_state=False),
    "not checked": each(use_reentrant=False, determinism_check="none", early_stop=False),
    "in segments": lambda blocks, x: checkpoint_sequential(blocks, 3, x, use_reentrant=False),
    "nested": nested,
}


def trained(net: Any, module: nn.Module, rows: int = 32) -> list[Tensor]:
    torch.manual_seed(1)
    x = torch.randn(rows, 16).requires_grad_()
    module.zero_grad()
    loss = net(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def saved_bytes(net: Any) -> int:
    """What the node behind a call's result keeps for backward, parameters not counted."""
    x = torch.randn(32, 16).requires_grad_()
    result = net(x)  # up to torch 2.11 what its nodes keep goes when the result does
    todo, seen, memory = [result.grad_fn], set[Any](), dict[int, int]()
    while todo:
        node = todo.pop()
        seen.add(node)
        for tensor in getattr(node, "saved_tensors", None) or ():
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        todo += [n for n, _ in node.next_functions if n is not None and n not in seen]
    return sum(memory.values())


@pytest.mark.parametrize("name", WAYS)
def test_values_and_gradients_are_those_of_eager(name: str) -> None:
    torch.manual_seed(0)
    net = Net(WAYS[name])
    compiled = intarsia.compile(net, fullgraph=True)
    for rows in (32, 32, 33):
        torch.testing.assert_close(trained(compiled, net, rows), trained(net, net, rows), rtol=1e-4, atol=1e-4)
    assert intarsia.counters()["fallbacks"] == 0
    assert saved_bytes(compiled) <= 0.5 * saved_bytes(intarsia.compile(Net(plain), fullgraph=True))


def test_random_numbers_are_the_same_in_both_computations() -> None:
    def program(x: Tensor) -> Tensor:
        return checkpoint(lambda x: F.dropout(x * 1.0, 0.5), x, use_reentrant=False)  # type: ignore[no-any-return]

    x = torch.ones(1000, requires_grad=True)
    y = intarsia.compile(program, fullgraph=True)(x)
    y.sum().backward()
    assert 300 < int((y == 0).sum()) < 700
    torch.testing.assert_close(x.grad, y.detach())


def test_autocast_inside() -> None:
    class Cast(Block):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    torch.manual_seed(0)
    net = Net(WAYS["not reentrant"])
    net.blocks = nn.ModuleList(Cast() for _ in range(2))
    compiled = intarsia.compile(net, fullgraph=True)
    torch.testing.assert_close(trained(compiled, net), trained(net, net), rtol=5e-2, atol=5e-1)


COUNTS: list[int] = []


def counted(block: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        COUNTS.append(1)
        return block(x)

    return run


def normalized(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    return checkpoint(nn.BatchNorm1d.forward, blocks[0].norm, x, use_reentrant=False)  # type: ignore[no-any-return]


def parted(blocks: nn.ModuleList) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda x: (blocks[0](x), blocks[1](x).detach())


LEFT: dict[str, Callable[[nn.ModuleList, Tensor], Tensor]] = {
    "a side effect": lambda blocks, x: checkpoint(counted(blocks[0]), x, use_reentrant=False),
    "a result without gradients": lambda blocks, x: sum(checkpoint(parted(blocks), x, use_reentrant=True)),
    "contexts of nothing": each(use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext())),
    "other contexts": each(use_reentrant=False, context_fn=lambda: (torch.autocast("cpu"), torch.autocast("cpu"))),
    "of no tensor with gradients": lambda blocks, x: checkpoint(blocks[0], x.detach(), use_reentrant=True) + x,
    "statistics": normalized,
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("name", LEFT)
def test_what_would_differ_runs_in_eager(name: str) -> None:
    found = []
    for compiler in (lambda net: net, intarsia.compile):
        torch.manual_seed(0)
        net = Net(LEFT[name])
        if name == "statistics":
            net.blocks[0].norm = nn.BatchNorm1d(16)
        COUNTS.clear()
        result = trained(compiler(net), net)
        found.append([*result, torch.tensor(len(COUNTS)), *net.buffers()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def whole_step(net: nn.Module, x: Tensor) -> list[Tensor]:
    loss = net(x)
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p.sub_(p.grad, alpha=0.01)
            p.grad = None
    return [loss.detach(), x.grad]


def asked_for(net: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(net(x), [x, *net.parameters()]))


@pytest.mark.parametrize(
    ("name", "step"),
    [*((n, whole_step) for n in ("reentrant", "nested", "products saved")), ("not checked", asked_for)],
)
def test_backward_inside_of_the_graph(name: str, step: Callable[..., Any]) -> None:
    run, found = intarsia.compile(step, fullgraph=True), []
    for function in (step, run):
        torch.manual_seed(0)
        net = Net((WAYS | CHOSEN)[name])
        for rows in (32, 32, 33):
            x = torch.randn(rows, 16).requires_grad_()
            found.append([*function(net, x), *(p.detach().clone() for p in net.parameters())])
    torch.testing.assert_close(found[3:], found[:3], rtol=1e-4, atol=1e-4)
    assert intarsia.counters()["fallbacks"] == 0


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    save = op in PRODUCTS and args[1].shape[1] == 64
    return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def chosen_inside(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    """The contexts are made in the captured code."""

    def wide(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return op is torch.ops.aten.addmm.default and args[1].shape[1] == 64  # type: ignore[no-any-return]

    for block in blocks:
        x = checkpoint(
            block,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, wide),
        )
    return x


def listed_inside(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    kept = list(PRODUCTS)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(kept))
    return x


CHOSEN = {
    "one product saved, inside": chosen_inside,
    "products saved, inside": listed_inside,
    "products saved": each(
        use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(list(PRODUCTS))
    ),
    "one product saved": each(
        use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)
    ),
}


PRODUCTS_AGAIN = {"not reentrant": 3} | {name: 3 if name.startswith("one") else 0 for name in CHOSEN}


@pytest.mark.parametrize(("name", "products"), PRODUCTS_AGAIN.items())
def test_the_program_chooses_what_is_saved(name: str, products: int) -> None:
    """The second product of a block is read by none of its gradients."""
    net = Net((WAYS | CHOSEN)[name])
    partition = intarsia.explain(net)(torch.randn(32, 16)).graphs[0].partition
    assert partition is not None
    assert partition.again.get("addmm", 0) == products
    assert ("addmm" in {s.name for s in partition.saved}) is (products == 0)


def planned(way: Callable[[nn.ModuleList, Tensor], Tensor], monkeypatch: Any) -> int:
    monkeypatch.setattr(arenas, "_FREE", [])
    net, x = Net(way), torch.randn(4096, 16).requires_grad_()
    step = intarsia.compile(whole_step, fullgraph=True)
    step(net, x), step(net, x)
    return arenas.held_bytes()


def test_a_whole_step_holds_less(monkeypatch: Any) -> None:
    whole, checkpointed = planned(plain, monkeypatch), planned(WAYS["not reentrant"], monkeypatch)
    assert checkpointed <= 0.8 * whole


def test_random_numbers_of_a_whole_step_are_drawn_once() -> None:
    def step(w: Tensor) -> Tensor:
        y = checkpoint(lambda w: F.dropout(torch.sin(w), 0.5), w, use_reentrant=False)
        y.sum().backward()
        return y.detach()

    w = torch.ones(1000, requires_grad=True)
    y = intarsia.compile(step, fullgraph=True)(w)
    assert 300 < int((y == 0).sum()) < 700
    torch.testing.assert_close((w.grad == 0), (y == 0))


def test_other_random_numbers_in_backward_are_a_break() -> None:
    def program(x: Tensor) -> Tensor:
        return checkpoint(F.dropout, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]

    intarsia.compile(program)(torch.ones(10, requires_grad=True))
    assert intarsia.counters()["breaks"] == 1


class Sized(nn.Module):
    """Statistics, and a break inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).sin()
        if x.sum() > 0:
            x = x * 2
        return self.last(x).cos()


@pytest.mark.parametrize("options", [{}, {"early_stop": False}, {"preserve_rng_state": False}], ids=str)
def test_checkpoints_around_compiled_modules(options: dict[str, Any]) -> None:
    """The second computation ends in the middle of a compiled call, behind what it writes."""
    found = []
    for compiler in (lambda m: m, intarsia.compile):
        torch.manual_seed(0)
        net = Net(lambda blocks, x: functools.reduce(run, blocks, x))
        net.blocks = nn.ModuleList([Sized(), Block(), Sized()])
        called = [compiler(block) for block in net.blocks]

        def run(x: Tensor, block: nn.Module, called: Any = called, net: Net = net) -> Tensor:
            block = called[list(net.blocks).index(block)]
            return checkpoint(block, x, use_reentrant=False, **options)  # type: ignore[no-any-return]

        found.append([[*trained(net, net, rows), *(b.clone() for b in net.buffers())] for rows in (32, 32, 33)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert intarsia.counters()["graphs"] and intarsia.counters()["fallbacks"] == 0


class _Held:
    scale = 3.0


_LIST, _TABLE, _HELD = [2.0], {"a": torch.tensor([2.0])}, _Held()
_GLOBAL = 4.0


def _variable(x: Tensor) -> Tensor:
    y = x * 2
    z = checkpoint(lambda a: a * y, y, use_reentrant=False)
    y = y + 100
    return z


def _variable_and_backward(x: Tensor) -> Tensor:
    y = x * 2
    z = checkpoint(lambda a: a * y, y, use_reentrant=False)
    y = y + 100
    z.sum().backward()
    assert x.grad is not None
    return x.grad.clone()


def _attribute(x: Tensor) -> Tensor:
    z = checkpoint(lambda a: a * _HELD.scale, x, use_reentrant=False)
    _HELD.scale = 7.0
    return z


def _made_list(x: Tensor) -> Tensor:
    made = [x * 2]
    z = checkpoint(lambda a: a * made[0], x, use_reentrant=False)
    made[0] = x + 100
    return z


def _list(x: Tensor) -> Tensor:
    z = checkpoint(lambda a: a * _LIST[0], x, use_reentrant=False)
    _LIST[0] = 8.0
    return z


def _argument(x: Tensor) -> Tensor:
    z = checkpoint(lambda table: x * table["a"], _TABLE, use_reentrant=False)
    _TABLE["a"] = _TABLE["a"] + 8.0
    return z


def _global(x: Tensor) -> Tensor:
    global _GLOBAL
    z = checkpoint(lambda a: a * _GLOBAL, x, use_reentrant=False)
    _GLOBAL = _GLOBAL + 1
    return z


def _nested(x: Tensor) -> Tensor:
    k = x * 3
    z = checkpoint(lambda a: checkpoint(lambda b: b * k, a, use_reentrant=False).sin(), x, use_reentrant=False)
    k = k + 1
    return z


def _loop(x: Tensor) -> Tensor:
    for k in range(1, 4):
        x = checkpoint(lambda a: a * x.detach() * k, x, use_reentrant=False)  # noqa: B023
    return x


@pytest.mark.parametrize(
    "function",
    [_variable, _variable_and_backward, _attribute, _made_list, _list, _argument, _global, _nested, _loop],
)
def test_what_the_function_reads_changes_before_backward(function: Callable[[Tensor], Tensor]) -> None:
    """Eager calls the function again with the new values, so the graph cannot do it with the old ones."""
    global _GLOBAL
    found = []
    for call in (function, intarsia.compile(function)):
        _GLOBAL, _LIST[0], _TABLE["a"], _HELD.scale = 4.0, 2.0, torch.tensor([2.0]), 3.0
        x = torch.tensor([4.0], requires_grad=True)
        result = call(x)
        if result.requires_grad:
            result.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_what_changes_after_backward_breaks_nothing() -> None:
    def step(x: Tensor) -> Tensor:
        y = x * 2
        z = checkpoint(lambda a: a * y, y, use_reentrant=False)
        z.sum().backward()
        y = y + 100
        return y.detach()

    x = torch.tensor([4.0], requires_grad=True)
    compiled = intarsia.compile(step, fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.tensor([108.0]))
    torch.testing.assert_close(x.grad, torch.tensor([32.0]))


def test_what_was_there_before_and_does_not_change_breaks_nothing() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(2, 2), 0

        def inner(self, x: Tensor) -> Tensor:
            own = [x]
            own.append(self.layer(x).sin())
            return own[1] * len(_LIST)

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.inner, x, use_reentrant=False)
            self.seen = self.seen + 1
            return checkpoint(self.layer, x, use_reentrant=False).relu_()

    model, x = Model(), torch.randn(3, 2, requires_grad=True)
    intarsia.compile(model, fullgraph=True)(x).sum().backward()
    got, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(got, x.grad)
