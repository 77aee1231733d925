"""Wrapper tensors that hold objects which are equal to themselves alone: layouts of quantized weights without `__eq__`."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Layout:
    """Says how large groups are; two of them are never equal."""

    def __init__(self, group: int, inner: Any = None) -> None:
        self.group, self.inner = group, inner


class Weight(Tensor):
    """Integers and scales, with a layout."""

    @staticmethod
    def __new__(cls, q, scale, layout):
        return Tensor._make_wrapper_subclass(cls, q.shape, dtype=scale.dtype, device=q.device)

    def __init__(self, q, scale, layout):
        self.q, self.scale, self.laid = q, scale, layout

    def __tensor_flatten__(self):
        return ["q", "scale"], [self.laid, "other"]

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["q"], inner["scale"], context[0])

    def whole(self):
        return self.q.to(self.scale.dtype) * self.scale * self.laid.group

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear and isinstance(args[1], cls):
            return args[0] @ args[1].whole().t()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        one = args[0]
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            made = cls(func(one.q), func(one.scale), one.laid)
            return return_and_correct_aliasing(func, args, kwargs or {}, made)
        if func is aten.mul.Tensor:
            return cls(one.q, one.scale * args[1], one.laid)
        if func is aten.neg.default:
            return cls(one.q, -one.scale, Layout(one.laid.group))
        if func is aten.abs.default:
            one.laid.group += 1
            return cls(one.q, one.scale, one.laid)
        return func(*(a.whole() if isinstance(a, cls) else a for a in args), **(kwargs or {}))


def t(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight(layout: Any, seed: int = 0) -> Weight:
    return Weight((t(3, 4, seed=seed) * 9).to(torch.int8), t(3, 1, seed=seed + 1), layout)


def shown(value: Any) -> Any:
    if isinstance(value, Weight):
        return [value.q, value.scale, id(value.laid), value.laid.group]
    if isinstance(value, Tensor):
        return [value]
    return [x for each in value for x in shown(each)] if isinstance(value, tuple | list) else [value]


def agree(program: Any, make: Any, breaks: bool = False, captures: int = 1, calls: int = 3) -> Any:
    function, log = compiled(program)
    for k in range(calls):
        given = make(k)
        before = [vars(each.laid).copy() for each in given if isinstance(each, Weight)]
        want = shown(program(*given))
        for each, state in zip([each for each in given if isinstance(each, Weight)], before, strict=True):
            vars(each.laid).update(state)
        got = shown(function(*given))
        assert len(got) == len(want)
        for one, other in zip(got, want):
            if isinstance(other, Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other
    assert bool(log.breaks) == breaks, log.breaks
    assert breaks or not log.fallbacks and len(log.captures) == captures, (log.fallbacks, len(log.captures))
    return log


LAYOUT = Layout(2)
OTHER = Layout(2)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.linear(x, w),
        lambda x, w: w * 2,
        lambda x, w: (w * x.sum(), x @ w.t()),
        lambda x, w: x * w.laid.group,
        lambda x, w: (w.detach(), (w * 2).laid.group),
        lambda x, w: w * 2 if w.laid is LAYOUT else w * 3,
        lambda x, w: Weight(w.q, w.scale * 2, w.laid),
    ],
)
def test_one_graph(program: Any) -> None:
    agree(program, lambda k: (t(2, 4, seed=k), weight(LAYOUT, k)))


def test_which_object_it_is_and_what_it_holds_are_guarded() -> None:
    """Another object of the same class, and the same one after a change, are other layouts."""
    agree(
        lambda x, w: (w * 2, F.linear(x, w)), lambda k: (t(2, 4, seed=k), weight([LAYOUT, OTHER][k % 2], k)), captures=2
    )
    changing = Layout(1)

    def make(k: int) -> Any:
        changing.group = 1 + k // 2
        return t(2, 4, seed=k), weight(changing, k)

    agree(lambda x, w: F.linear(x, w) + x @ w.t(), make, captures=2, calls=4)
    deep = Layout(1, Layout(3))

    def inner(k: int) -> Any:
        deep.inner.group = 3 + k // 2
        return t(2, 4, seed=k), weight(deep, k)

    agree(lambda x, w: x * w.laid.inner.group, inner, captures=2, calls=4)
    own = Layout(2)
    own.inner = own
    agree(lambda x, w: F.linear(x, w) * w.laid.inner.group, lambda k: (t(2, 4, seed=k), weight(own, k)))


def changed(x: Tensor, w: Weight) -> Any:
    w.laid.group = 5
    return x @ w.t()


def held_alone(x: Tensor, w: Weight) -> Any:
    return Weight(w.q, w.scale, Layout(7)) * 2


@pytest.mark.parametrize("program", [changed, lambda x, w: abs(w) * 2, lambda x, w: -w])
def test_changed_or_made_in_the_call(program: Any) -> None:
    """What the graph's traces would read as it was before, and what is another one in every call, breaks."""
    function, log = compiled(program)
    for k in range(3):
        one, other = (weight(Layout(2), k) for _ in range(2))
        want, got = program(t(2, 4, seed=k), one), function(t(2, 4, seed=k), other)
        assert one.laid.group == other.laid.group and type(want) is type(got)
        if isinstance(want, Weight):
            assert (got.laid is other.laid) == (want.laid is one.laid) and got.laid.group == want.laid.group
            torch.testing.assert_close(got.scale, want.scale)
        else:
            torch.testing.assert_close(got, want)
    assert log.breaks or log.fallbacks


def test_made_inside() -> None:
    function, log = compiled(held_alone)
    found = [function(t(2, 4), weight(LAYOUT, k)) for k in range(2)]
    assert [each.laid.group for each in found] == [7, 7] and found[0].laid is not found[1].laid and log.breaks


def test_training_beside_frozen_weights() -> None:
    """Forward, backward and the optimizer's step are one graph; each layer has a layout of its own."""

    def run(compile: Any) -> Any:
        layers = [(weight(Layout(k + 1), k), t(4, 3, seed=k).requires_grad_()) for k in range(2)]
        optimizer = torch.optim.AdamW([a for _, a in layers], lr=0.1)

        def step(x):
            for w, a in layers:
                x = torch.tanh(F.linear(x, w) @ a.t()) + x
            loss = x.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        fast = compile(step)
        return [[fast(t(2, 4, seed=k)).detach(), *(a.detach().clone() for _, a in layers)] for k in range(3)]

    log: list[Any] = []

    def ours(step: Any) -> Any:
        function, seen = compiled(step, number_backend)
        log.append(seen)
        return function

    with torch.enable_grad():
        torch.testing.assert_close(run(ours), run(lambda f: f))
    assert not log[0].breaks and not log[0].fallbacks


def test_module_with_parameters_of_it() -> None:
    model = nn.Linear(4, 3, bias=False).requires_grad_(False)
    model.weight = nn.Parameter(weight(LAYOUT), requires_grad=False)
    agree(model, lambda k: (t(2, 4, seed=k),))


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A layout that says what is equal."""

    group: int = 2


FROZEN = Frozen(3)
HOLDER = types.SimpleNamespace(laid=Frozen(3), alone=LAYOUT)


def of_global(x, w):
    return Weight(w.q, w.scale + 1, FROZEN)


def of_attribute(x, w):
    return Weight(w.q, w.scale + 1, layout=HOLDER.laid) * 2, x @ Weight(w.q, w.scale, HOLDER.alone).t()


def of_one_made_inside(x, w):
    return Weight(w.q, w.scale + 1, Frozen(w.laid.group + 1)) * 2


@pytest.mark.parametrize("program", [of_global, of_attribute, of_one_made_inside])
def test_made_with_data(program: Any) -> None:
    """Objects of plain data are constants of the graph, guarded where they are the caller's."""
    log, function = None, None
    function, log = compiled(program)
    for k in range(4):
        HOLDER.laid = Frozen(3 + k // 2)
        given = t(2, 4, seed=k), weight(LAYOUT, k)
        got, want = function(*given), program(*given)
        for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (got, want))):
            assert type(one) is type(other)
            if isinstance(one, Weight):
                assert one.laid == other.laid and type(one.laid) is type(other.laid)
                torch.testing.assert_close((one.q, one.scale), (other.q, other.scale))
            else:
                torch.testing.assert_close(one, other)
    assert not log.breaks and not log.fallbacks and len(log.captures) == 1 + (program is of_attribute)


@dataclasses.dataclass
class Open:
    """A layout that may be changed."""

    group: int


def test_a_results_data_is_its_own() -> None:
    function, log = compiled(lambda w: w * 2)
    for _ in range(3):
        result = function(weight(Open(2)))
        assert result.laid == Open(2)
        result.laid.group = 7
    assert len(log.captures) == 1 and not log.breaks
