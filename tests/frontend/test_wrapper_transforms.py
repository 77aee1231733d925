"""Transforms of torch.func over wrapper tensors: torch calls their methods, each operator is followed and recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_subclass_programs import Held
from test_wrapper_gradients import Pair, nested, pair, x
from test_wrapper_leaves import equal
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import intarsia

SEEN: list[int] = []


class Counting(Pair):
    """Counts its operators."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        SEEN.append(1)
        return super().__torch_dispatch__(func, types, args, kwargs)


def plain(v: Tensor) -> Tensor:
    return (v * 2).sin().sum()


def kind(v: Tensor) -> Tensor:
    return v.sum() * (2 if isinstance(v, Pair) else 3) * v.shape[0]


def asked(v: Tensor) -> Tensor:
    return v.a.sum()


PROGRAMS: dict[str, Any] = {
    "grad": lambda w, v: grad(plain)(w),
    "grad, twice": lambda w, v: grad(lambda u: grad(plain)(u).sum())(w),
    "value": lambda w, v: grad_and_value(lambda u: (u * v).cos().sum())(w),
    "closed": lambda w, v: grad(lambda u: (u * w).sum())(v),
    "kind": lambda w, v: grad(kind)(w),
    "asked": lambda w, v: grad(asked)(w),
    "vjp": lambda w, v: vjp(lambda u: u.sin() * v, w)[1](w.detach() * 3),
    "vmap": lambda w, v: vmap(lambda u: (u * 2).cos())(w),
    "vmap, closed": lambda w, v: vmap(lambda u: u * 2 + w[0])(v),
    "rows": lambda w, v: vmap(lambda u, y: (u * y).sum())(w, v),
    "of rows": lambda w, v: vmap(grad(lambda u: u.square().sum()))(w),
    "jacobian": lambda w, v: jacrev(lambda u: u.sin())(w[0]),
    "several": lambda w, v: grad(lambda p: (p["w"] * p["v"]).sum())({"w": w, "v": v}),
    "behind": lambda w, v: (grad(plain)(w * 2) + w, (w * v).sum()),
    "parts": lambda w, v: grad(plain)(w).a * 2 if isinstance(w, Pair) else grad(plain)(w),
}
MAKERS: dict[str, Any] = {"pair": pair, "nested": nested, "held": lambda seed: Held(x(seed), 2.0)}


def outcome(program: Any, *given: Any) -> Any:
    try:
        return [t.detach() if isinstance(t, Tensor) else t for t in pytree.tree_leaves(program(*given))]
    except (RuntimeError, AttributeError, NotImplementedError, AssertionError) as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, kind: str) -> None:
    program = PROGRAMS[name]
    function, log = compiled(program, number_backend)
    failed = False
    with torch.enable_grad():
        for k in range(3):
            want = outcome(program, MAKERS[kind](k), x(k + 3))
            equal(outcome(function, MAKERS[kind](k), x(k + 3)), want)
            failed |= isinstance(want, str)
    assert failed or kind == "held" or not log.breaks and not log.fallbacks, (log.breaks, log.fallbacks)


@pytest.mark.parametrize("make", [pair, MAKERS["held"]])
def test_tangents(make: Any) -> None:
    """With real tensors torch may have no tangents for such classes, which fake ones do not show."""

    def program(v: Tensor) -> Any:
        w = make(1)
        return jvp(lambda u: (u * 2).sin(), (w * v,), (w,))

    function, log = compiled(program, number_backend)
    for k in range(3):
        equal(outcome(function, x(k)), outcome(program, x(k)))
    assert log.breaks


@pytest.mark.parametrize("name", ["grad", "closed", "vjp", "vmap", "rows", "behind"])
def test_gradients_outside(name: str) -> None:
    program = PROGRAMS[name]
    function, log = compiled(program, number_backend)
    with torch.enable_grad():
        for k in range(3):
            found = []
            for run in (program, function):
                w, v = pair(k, True), x(k + 3).requires_grad_()
                result = pytree.tree_leaves(run(w, v))
                sum(r.sum() for r in result if r.requires_grad).sum().backward()
                found.append([[r.detach() for r in result], w.grad, v.grad])
            equal(*found)
    assert not log.fallbacks


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: grad(plain)(Counting(a, b)),
        lambda a, b: vmap(lambda u: u.sin() * 2)(Counting(a, b)),
        lambda a, b: (
            jvp(lambda u: u.sin(), (a,), (b,))[1] * vjp(lambda u: u.sin(), Counting(a, b))[1](Counting(a, b))[0].a
        ),
    ],
)
def test_what_methods_change_is_not_lost(program: Any) -> None:
    """The graph breaks where a method inside of a transform changes something: it runs in no compiled call."""
    function = intarsia.compile(program, options={"on_error": "warn", "verify_each": False})
    for k in range(3):
        found = []
        for run in (program, function):
            SEEN.clear()
            found.append([run(x(k), x(k + 1)), len(SEEN)])
        equal(found[1][0].detach(), found[0][0].detach())
        assert k == 0 or found[0][1] == found[1][1]


@pytest.mark.slow(seconds=6)
def test_a_model_of_wrapper_parameters() -> None:
    """With code of ours."""
    model = nn.Linear(4, 3)
    weights = {"weight": pair(1), "bias": Pair(x(2)[:, 0], x(3)[:, 0])}

    def program(v: Tensor) -> Any:
        given = Pair(v, v + 1)
        return grad_and_value(lambda p: functional_call(model, p, (given,)).square().sum())(weights)

    function = intarsia.compile(program, fullgraph=True)
    for k in range(2):
        equal(*([t.detach() for t in pytree.tree_leaves(run(x(k)))] for run in (function, program)))
