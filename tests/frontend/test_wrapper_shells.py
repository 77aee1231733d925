"""Wrapper tensors whose class has no `__tensor_flatten__`, masked tensors among them: eager's results, effects and messages in one graph."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor
from torch.masked import as_masked_tensor, masked_tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten
SEEN: list[str] = []


def inner_of(value: Any) -> Any:
    return value.held if isinstance(value, Held) else value


class Held(Tensor):
    """A tensor with a scale; operators run on the tensor, and the first one's scale is handed on."""

    @staticmethod
    def __new__(cls, held, scale=1.0):
        return Tensor._make_wrapper_subclass(cls, held.shape, held.stride(), dtype=held.dtype, device=held.device)

    def __init__(self, held, scale=1.0):
        self.held, self.scale = held, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first = next(v for v in pytree.tree_leaves((args, kwargs or {})) if isinstance(v, cls))
        given, named = pytree.tree_map(inner_of, (args, kwargs or {}))
        made = func(*given, **named)
        if func._schema.is_mutable:
            return args[0]
        return pytree.tree_map(lambda v: cls(v, first.scale) if isinstance(v, Tensor) else v, made)


class Logged(Held):
    """Notes each operator in a list of the module's."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        SEEN.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Tagged(Tensor):
    """Made in `__new__` alone, with containers as attributes."""

    @staticmethod
    def __new__(cls, parts, notes):
        made = Tensor._make_wrapper_subclass(cls, parts[0].shape, dtype=parts[0].dtype)
        made.parts, made.notes = list(parts), dict(notes)
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first = next(v for v in args if isinstance(v, cls))
        if func is aten.neg.default:
            raise ValueError(f"no negation of {first.notes['name']}")
        made = []
        for k in range(len(first.parts)):
            made.append(func(*(v.parts[k] if isinstance(v, cls) else v for v in args), **(kwargs or {})))
        return cls(made, {**first.notes, "count": first.notes.get("count", 0) + 1})


def t(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def masked(*shape: int, seed: int = 0) -> Any:
    return masked_tensor(t(*shape, seed=seed), t(*shape, seed=seed + 100) > -0.5)


def facts(value: Any) -> Any:
    """What a program can see of a value, to be compared; numbers of tensors come as they are."""
    if isinstance(value, Tensor):
        own = {k: facts(v) for k, v in object.__getattribute__(value, "__dict__").items()}
        seen = (type(value), tuple(value.shape), value.dtype, value.requires_grad)
        return (*seen, value.detach().clone()) if type(value) is Tensor else (*seen, value._is_view(), own)
    if isinstance(value, list | tuple | dict):
        items = list(value.items()) if isinstance(value, dict) else value
        return type(value), [facts(v) for v in items]
    return value


def check(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            check(one, other)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            check(found[key], wanted[key])
    elif isinstance(wanted, Tensor):
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert found.stride() == wanted.stride()
    else:
        assert found == wanted


def outcome(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], seen: bool = False) -> Any:
    """The result, what the arguments are afterwards, the warnings and the log of a call."""
    SEEN.clear()
    given = make()
    with warnings.catch_warnings(record=seen) as warned:
        warnings.simplefilter("always" if seen else "ignore")
        try:
            result = facts(function(*given))
        except Exception as error:
            result = type(error), str(error).splitlines()[0]
    said = [(w.category, str(w.message).splitlines()[0]) for w in warned or ()]
    return result, facts(given), list(SEEN), said


PROGRAMS: dict[str, tuple[Any, list[Callable[[], tuple[Any, ...]]], str]] = {}


def program(*calls: Callable[[], tuple[Any, ...]], breaks: str = "") -> Any:
    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = function, list(calls), breaks
        return function

    return add


HELD = [lambda: (Held(t(3, 4), 2.0),), lambda: (Held(t(3, 4, seed=1), 3.0),), lambda: (Held(t(5, 4, seed=2), 3.0),)]
LOGGED = [lambda: (Logged(t(3, 4), 2.0),), lambda: (Logged(t(3, 4, seed=1), 3.0),)]
TAGGED = [lambda: (Tagged([t(3), t(3, seed=1)], {"name": "a"}),), lambda: (Tagged([t(3)], {"name": "b", "count": 4}),)]
MASKED = [lambda: (masked(3, 4),), lambda: (masked(3, 4, seed=1),), lambda: (masked(2, 4, seed=2),)]


@program(*HELD)
def arithmetic(p):
    q = (p * 2 + p).sin()
    return q, q.scale, q.held * p.scale, type(q) is Held, isinstance(q, Tensor), q.shape


@program(*HELD)
def layers(p):
    for _ in range(6):
        p = torch.nn.functional.softmax(p @ torch.ones(4, 4) + 1, -1)
    return p.sum(0), torch.cat([p, p]).held.shape


@program(lambda: (t(3, 4), 2.0), lambda: (t(3, 4, seed=1), 4.0))
def made_inside(x, s):
    p = Held(x * 2, s)
    return p + 1, p.held.sum() * p.scale


@program(*HELD)
def attributes_change(p):
    p.scale += 1.0
    p.note = "seen"
    q = p * 2
    p.held = p.held + 1
    return q, q.scale, p * 1


@program(*HELD)
def written(p):
    p.mul_(2)
    p.held.add_(1)
    return p * 1, p.held


@program(*HELD)
def numbers(p):
    return p.size(0), p.numel(), p.dim(), len(p), p.dtype


@program(*HELD, breaks="is a view")
def view_given(p):
    return p.t()


@program(*HELD)
def view_used(p):
    return p.t() @ torch.ones(p.shape[0], 2), p[0].held, p.reshape(-1).sum()


@program(*LOGGED)
def logs(p):
    q = torch.nn.functional.gelu(p @ torch.ones(4, 2))
    return q.mean(), len(SEEN)


@program(*TAGGED)
def containers(p):
    q = torch.exp(p + p)
    return q, q.notes["count"], len(q.parts), q.parts[0] + 1


@program(*TAGGED)
def raises(p):
    return -(p + 1)


@program(lambda: (Held(Held(t(3), 1.0), 2.0),), lambda: (Held(Held(t(3, seed=1), 5.0), 2.0),))
def nested(p):
    q = p * 2 + 1
    return q, q.held.scale, q.held.held


@program(lambda: (Held(t(3)), Logged(t(3, seed=1))), lambda: (Held(t(3, seed=3)), Logged(t(3, seed=4))))
def side_by_side(p, q):
    return p + 1, q * 2


@program(lambda: (Held(t(3)), t(3, seed=1)), lambda: (Held(t(3, seed=3)), t(3, seed=4)))
def with_plain(p, x):
    return p + x, x * p, torch.where(x > 0, p, x), torch.stack([x, p.held])


@program(lambda: (Held(t(3)), t(3, seed=1).requires_grad_()))
def trained(p, x):
    return x * 2, p * x


@program(*MASKED)
def masked_arithmetic(m):
    return (m * 2 + m).exp(), m.to_tensor(0.0), m.get_mask() & True, m.shape, m.dtype, m.layout


@program(*MASKED)
def masked_reductions(m):
    return m.sum(), m.mean(-1), m.amax(1), m.prod(0), m.argmin()


@program(*MASKED[:2])
def masked_softmax(m):
    return m.softmax(-1), torch.log(m.softmax(0))


@program(lambda: (t(3, 4), t(3, 4, seed=1) > 0), lambda: (t(3, 4, seed=2), t(3, 4, seed=3) > 0))
def masked_made(x, k):
    m = masked_tensor(x, k)
    return m.sum(1), as_masked_tensor(x, ~k).mean().get_data()


@program(lambda: (masked(3, 4), masked(3, 4)), lambda: (masked(3, 4), masked(3, 4, seed=1)))
def masked_pairs(a, b):
    """The second call's masks differ, and eager says so."""
    return a * b + a


@program(*MASKED)
def masked_written(m):
    m.mul_(2)
    return m + 1, m.get_data()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, calls, breaks = PROGRAMS[name]
    fast, log = compiled(function, number_backend)
    for make in (*calls, *calls[::-1]):
        wanted, found = outcome(function, make), outcome(fast, make)
        check(found[0], wanted[0])
        check(found[1:], wanted[1:])
    if breaks:
        assert any(breaks in each.reason for each in log.breaks) or any(breaks in each[2] for each in log.fallbacks)
    else:
        assert not log.breaks and not log.fallbacks, ([each.reason for each in log.breaks], log.fallbacks)


def test_warnings_are_eagers() -> None:
    """Where somebody sees them: the graph breaks there."""
    function, calls, _ = PROGRAMS["masked_made"]
    fast, _ = compiled(function, number_backend)
    for make in calls:
        wanted, found = outcome(function, make, True), outcome(fast, make, True)
        assert wanted[3]
        check(found, wanted)


# ---- random programs ----


def drawn(seed: int) -> tuple[str, str]:
    """The text of a program over `p`, `q` (wrapper tensors), `x` (plain); and the kind of the wrapper tensors."""
    draw = random.Random(seed)
    kind = draw.choice(["Held", "Logged", "masked"])
    either = [
        "p = p * {n} + {n}",
        "p = torch.sin(p)",
        "q = p + {n}",
        "q = q.exp()",
        "p = p * q if {n} > 2 else q",
        "r.append(p.shape[0] * {n})",
        "r.append(p.sum())",
        "r.append(isinstance(q, type(p)))",
        "r.append(x * {n} + 1)",
        "p = torch.nn.functional.relu(p)",
    ]
    own = [
        "p.scale = p.scale * {n}",
        "r.append(p.scale)",
        "p.held.mul_({n})",
        "q.add_({n})",
        "p = type(p)(p.held + x, {n}.0)",
        "p.held = q.held - 1",
        "p = p + x",
        "r.append(q.held.sum().item() > 0)",
        "x = p.held * {n}",
        "q = q.t().t() * 1",
        "r.append(SEEN[-1:] + [len(SEEN)])",
        "q.held.t_() if {n} > 9 else None",
        "r.append(p[0] * {n})",
        "r.append('p' if (p.held.mean() > 0) else p * 3)",
    ]
    mask = [
        "r.append(p.to_tensor({n}.0))",
        "r.append(p.get_mask().sum())",
        "p = masked_tensor(x + {n}, p.get_mask())",
        "r.append(p.amax(1))",
        "p.mul_({n})",
        "x = q.get_data() + {n}",
        "r.append(p.mean(0))",
    ]
    steps = draw.choices([*either, *(mask if kind == "masked" else own)], k=draw.randint(3, 7))
    lines = "".join(f"    {step.replace('{n}', str(draw.randint(1, 4)))}\n" for step in steps)
    return f"def program(p, q, x):\n    r = []\n{lines}    return r, p, q\n", kind


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    text, kind = drawn(seed)
    namespace: dict[str, Any] = dict(globals())
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    function = namespace["program"]
    make = {"Held": Held, "Logged": Logged}.get(kind)

    def given(k: int) -> tuple[Any, ...]:
        rows = 3 + k // 2
        if make is None:
            return masked(rows, 4, seed=k), masked(rows, 4, seed=k), t(rows, 4, seed=9 + k)
        return make(t(rows, 4, seed=k), 1.0 + k), make(t(rows, 4, seed=5 + k), 2.0), t(rows, 4, seed=9 + k)

    fast, log = compiled(function, number_backend)
    for k in (0, 1, 2, 0):
        wanted, found = outcome(function, lambda k=k: given(k)), outcome(fast, lambda k=k: given(k))
        check(found[0], wanted[0])
        check(found[1:], wanted[1:])
    assert not log.fallbacks, (text, log.fallbacks)
