"""Tensors of classes with `__torch_function__`, and function modes, in graphs."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

import intarsia

SEEN: list[Any] = []


class Plain(Tensor):
    """Has nothing of its own."""


class Tagged(Tensor):
    label = "class"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append((func.__name__, tuple(t.__name__ for t in types), kwargs))
        return super().__torch_function__(func, types, args, kwargs or {})

    def twice(self):
        return self * 2

    @property
    def scale(self):
        return self.factor * 2


class Derived(Tagged):
    pass


class Silent(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Other(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented if len(types) > 1 else super().__torch_function__(func, types, args, kwargs or {})


class Unwrapped(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func is Tensor.add:
            return result.as_subclass(Tensor) * 10
        return result.as_subclass(cls) if isinstance(result, Tensor) else result


class Named:
    """No tensor; stands for one."""

    def __init__(self, value, name):
        self.value, self.name = value, name

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append((func.__name__, tuple(t.__name__ for t in types), kwargs and sorted(kwargs)))
        plain = [a.value if isinstance(a, Named) else a for a in args]
        named = {k: v.value if isinstance(v, Named) else v for k, v in (kwargs or {}).items()}
        return Named(func(*plain, **named), f"{func.__name__}({', '.join(map(cls.of, args))})")

    @staticmethod
    def of(value):
        return value.name if isinstance(value, Named) else "_"


class Count(TorchFunctionMode):
    def __init__(self, by=1.0):
        super().__init__()
        self.calls, self.by = [], by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append((func.__name__, tuple(t.__name__ for t in types), kwargs))
        result = func(*args, **(kwargs or {}))
        return result * self.by if func is torch.sin else result


def x(*shape: int, of: Any = None, grad: bool = False) -> Tensor:
    torch.manual_seed(0)
    made = torch.randn(*(shape or (3, 4))).requires_grad_(grad)
    return made if of is None else made.as_subclass(of)


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    return type(value)(map(plain, value)) if isinstance(value, tuple | list) else value


def kinds(value: Any) -> Any:
    return [kinds(v) for v in value] if isinstance(value, tuple | list) else type(value)


def agree(got: Any, want: Any) -> None:
    if isinstance(want, tuple | list):
        for one, other in zip(got, want, strict=True):
            agree(one, other)
    elif isinstance(want, Tensor):
        torch.testing.assert_close(plain(got), plain(want))
    else:
        assert got == want


def same(program: Any, *args: Any, graphs: int = 1, calls: int = 2, backend: Any = None) -> Any:
    """Compiled as eager: values, classes, and what `__torch_function__` saw; in that many graphs, with no break if it is one."""
    function, log = compiled(program)
    for _ in range(calls):
        SEEN.clear()
        want, seen = program(*args), list(SEEN)
        SEEN.clear()
        got, now = function(*args), list(SEEN)
        assert kinds(got) == kinds(want) and now == seen
        agree(got, want)
    assert len(log.captures) == graphs and not log.fallbacks, (log.breaks, log.fallbacks)
    assert graphs > 1 or not log.breaks, log.breaks
    return function


@pytest.mark.parametrize("kind", [Plain, Tagged, Derived, Silent, Unwrapped])
def test_results_have_the_class_that_eager_gives(kind):
    def program(x):
        y = x.as_subclass(kind)
        return y * 2 + 1, (2 - y).as_subclass(Tensor), y.sum(dim=0), y.view(-1)[1:], y == y, -y, y @ y.T, 3 > y

    same(program, x())


@pytest.mark.parametrize("kind", [Plain, Tagged, Derived, Silent, Unwrapped])
def test_arguments_of_a_class(kind):
    def program(y, p):
        return (
            F.softmax(y, dim=0),
            torch.cat([y, p]),
            F.linear(y, p),
            y.max(dim=1),
            y[0],
            y.shape,
            y.dim(),
            y.chunk(2),
            len(y),
        )

    same(program, x(of=kind), x())


def test_the_class_decides_again_in_each_call():
    def program(y):
        return y * 2, type(y).__name__, isinstance(y, Tagged), isinstance(y, Tensor)

    function, log = compiled(program)
    for given in (x(of=Tagged), x(), x(of=Derived), x(of=Plain), x(of=Tagged), x()):
        want, got = program(given), function(given)
        assert kinds(got) == kinds(want) and got[1:] == want[1:]
    assert len(log.captures) == 4


@pytest.mark.parametrize("left", [None, Plain, Tagged, Derived, Other, Silent])
@pytest.mark.parametrize("right", [None, Plain, Tagged, Derived, Other, Silent])
def test_which_class_is_asked_first(left, right):
    def program(a, b):
        return torch.add(a, b), a - b, torch.where(b > 0, a, b), torch.stack([a, b])

    given = x(of=left), x(of=right) + 1 if right is None else (x() + 1).as_subclass(right)
    try:
        program(*given)
    except TypeError as error:
        with pytest.raises(TypeError) as raised:
            compiled(program)[0](*given)
        assert str(raised.value) == str(error)
    else:
        same(program, *given)


def test_attributes_and_methods_of_a_class():
    def program(y):
        y.factor = 3
        z = y.twice()
        z.factor = y.factor + 1
        return z, z.scale, y.scale, y.label, Tagged.label, z.twice().twice(), hasattr(z, "nothing"), getattr(y, "no", 5)

    function = same(program, x(of=Tagged))
    given = x(of=Tagged)
    given.factor = 7
    assert function(given)[0].factor == 4 and given.factor == 3


def test_attributes_are_guarded():
    def program(y):
        return y * y.factor

    function, log = compiled(program)
    for factor in (2, 2, 5):
        given = x(of=Tagged)
        given.factor = factor
        assert torch.equal(plain(function(given)), plain(given) * factor)
    assert len(log.captures) == 2
    with pytest.raises(AttributeError, match="factor"):
        function(x(of=Tagged))


@pytest.mark.parametrize("kind", [Plain, Derived, Silent])
@pytest.mark.parametrize("name", ["data", "grad", "requires_grad", "real"])
def test_what_torch_decides_about_is_not_held_by_the_tensor(kind, name):
    """`p.data = x` is no attribute of the program's: what is computed behind it sees it."""

    def program(p, other):
        setattr(p, name, True if name == "requires_grad" else other * 2)
        made = p * 3
        return made, made.requires_grad, p.detach() if name != "grad" else p.grad

    found, wanted = (f(x(of=kind), x() + 1) for f in (compiled(program)[0], program))
    agree(found, wanted)


def test_a_method_that_changes_is_seen():
    class Mine(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(y):
        return y + 1

    function, given = compiled(program)[0], x(of=Mine)
    assert torch.equal(plain(function(given)), plain(given) + 1)

    def other(cls, func, types, args=(), kwargs=None):
        return "other"

    Mine.__torch_function__ = classmethod(other)
    assert function(given) == "other"


def test_objects_that_are_no_tensors():
    def program(x):
        n = Named(x, "n")
        a, b = torch.add(n, 1), torch.sin(torch.cat([n.value, x]))
        c, d = x * n, torch.mul(other=n, input=x)
        return a.value, a.name, b, c.value, c.name, F.relu(n).name, d.name

    same(program, x())


def test_gradients_flow_through_classes():
    def program(y, p):
        return (y * p).sin().as_subclass(Tagged) * 2

    function = intarsia.compile(program)
    results = []
    for run in (program, function, function):
        leaf, p = x(grad=True), x(grad=True)
        run(leaf.as_subclass(Tagged), p).sum().backward()
        results.append((leaf.grad, p.grad))
    for got in results[1:]:
        torch.testing.assert_close(got, results[0])
    with torch.no_grad():
        assert not function(x(of=Tagged), x(grad=True)).requires_grad


def test_a_leaf_of_a_class_gets_its_gradient():
    def program(y):
        return (y * y).sum()

    function = intarsia.compile(program)
    grads = []
    for run in (program, function):
        y = nn.Parameter(x(of=Tagged))
        run(y).backward()
        grads.append(y.grad)
    torch.testing.assert_close(plain(grads[1]), plain(grads[0]))


def test_backward_inside():
    def program(y):
        (y * y).sum().backward()
        return y * 2

    function, _ = compiled(program)
    for _ in range(2):
        y, z = x(of=Tagged).requires_grad_(), x(of=Tagged).requires_grad_()
        function(y), program(z)
        torch.testing.assert_close(plain(y.grad), plain(z.grad))


def test_parameters_of_a_class():
    lin = nn.Linear(4, 4)
    lin.weight = nn.Parameter(lin.weight.detach().as_subclass(Tagged))
    function = intarsia.compile(lin, fullgraph=True)
    want = lin(x())
    got = function(x())
    assert type(got) is type(want) is Tagged
    torch.testing.assert_close(plain(got), plain(want))
    with torch.no_grad():
        lin.weight.mul_(2)
    torch.testing.assert_close(plain(function(x())), plain(lin(x())))
    lin.weight.data = lin.weight.data + 1
    torch.testing.assert_close(plain(function(x())), plain(lin(x())))
    got.sum().backward()
    grad = lin.weight.grad.clone()
    lin.weight.grad = None
    want.sum().backward()
    torch.testing.assert_close(plain(grad), plain(lin.weight.grad))


def test_writes_to_arguments_of_a_class():
    def program(y):
        y.add_(1)
        y[0] = 3
        z = y.mul_(2)
        return z is y, z + 1

    a, b = x(of=Tagged), x(of=Tagged)
    function, log = compiled(program)
    got, want = function(a), program(b)
    assert got[0] is want[0] and torch.equal(plain(a), plain(b)) and torch.equal(plain(got[1]), plain(want[1]))
    assert len(log.captures) == 1 and not log.breaks


def test_the_same_argument_twice():
    def program(a, b):
        return a is b, a + b

    function, _ = compiled(program)
    a, b = x(of=Tagged), x(of=Tagged)
    for given in ((a, b), (a, a), (b, b), (a, b)):
        assert function(*given)[0] is (given[0] is given[1])


def test_making_one():
    class Made(Tagged):
        @staticmethod
        def __new__(cls, data, unit):
            return Tensor._make_subclass(cls, data)

        def __init__(self, data, unit):
            self.unit = unit

    def program(x):
        y = Made(x * 2, "m")
        z = Tagged(x)
        return y, y.unit, (y + 1), z, z * 2, y.detach()

    function = same(program, x())
    assert function(x())[0].unit == "m"


def test_sizes_that_change():
    def program(y):
        return (y * 2).reshape(-1)[: y.shape[0]], y.size(0)

    function, log = compiled(program)
    for n in (3, 5, 7, 9):
        want, got = program(x(n, 4, of=Tagged)), function(x(n, 4, of=Tagged))
        assert torch.equal(plain(got[0]), plain(want[0])) and got[1] == want[1]
    assert len(log.captures) == 2


def test_exceptions_come_from_where_eager_raises():
    class Strict(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is Tensor.sub:
                raise ValueError("no subtraction")
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(y):
        try:
            return y - 1
        except ValueError as error:
            return str(error), y + 1

    same(program, x(of=Strict))
    with pytest.raises(ValueError, match="no subtraction"):
        compiled(lambda y: y - 1)[0](x(of=Strict))


def test_values_break_visibly():
    def program(y):
        return y * 2 if y.sum() > 0 else y * 3

    function, log = compiled(program)
    torch.testing.assert_close(plain(function(x(of=Tagged))), plain(program(x(of=Tagged))))
    assert log.breaks and "tensor's value" in str(log.breaks[0])


# ---- modes ----


def test_modes_see_what_eager_shows_them():
    def program(x, w):
        mode = Count(3.0)
        with mode:
            y = torch.sin(x) + 1
            z = torch.zeros(3) + y.shape[0]
            y = F.relu(y) @ w.t()
            y[0] = 1
        return y, z, torch.sin(x), mode.calls

    same(program, x(), x())


def test_modes_inside_modes():
    def program(x):
        outer, inner = Count(2.0), Count(5.0)
        with outer:
            a = x.cos()
            with inner:
                b = torch.sin(x)
            c = torch.sin(b)
        return a, b, c, outer.calls, inner.calls

    same(program, x())


def test_modes_before_classes():
    def program(y):
        mode = Count()
        with mode:
            a = y * 2
            with torch._C.DisableTorchFunctionSubclass():
                b = y * 2
            with torch._C.DisableTorchFunction():
                c = y * 2
        return a, b, c, mode.calls

    same(program, x(of=Tagged))


def test_a_mode_of_the_callers():
    mode = Count(2.0)

    def program(x):
        with mode:
            return torch.sin(x)

    function, log = compiled(program)
    for by in (2.0, 4.0):
        mode.by = by
        torch.testing.assert_close(function(x()), torch.sin(x()) * by)
    assert mode.calls == [("sin", (), None)] * 2 or len(mode.calls) == 2


def test_a_break_inside_a_mode():
    def program(x):
        mode = Count()
        with mode:
            y = torch.sin(x)
            n = int(y.sum() > 0)
            z = torch.sin(y) * n
        return z, mode.calls, torch.overrides._get_current_function_mode()

    same_values(program, x())


def same_values(program: Any, *args: Any) -> None:
    function, _ = compiled(program)
    want, got = program(*args), function(*args)
    torch.testing.assert_close(plain(got[0]), plain(want[0]))
    assert got[1:] == want[1:]


def test_modes_with_an_exception():
    def program(x):
        try:
            with Count():
                torch.sin(x)
                raise KeyError(1)
        except KeyError:
            return torch.sin(x) + 1

    same(program, x())


def test_grad_modes_inside_a_mode_break():
    def program(x):
        mode = Count()
        with mode, torch.no_grad():
            y = x * 2
        return y, mode.calls

    same_values(program, x())


def test_modes_of_torch_and_modes_that_enter_otherwise():
    class Own(Count):
        def __enter__(self):
            super().__enter__()
            return 5

    def base(x):
        with BaseTorchFunctionMode():
            return torch.sin(x), torch.ones(3)

    def own(x):
        with Own() as n:
            y = torch.sin(x) + n
        return torch.sin(y), torch.overrides._get_current_function_mode()

    def by_hand(x):
        mode = Count()
        mode.__enter__()
        y = torch.sin(x)
        mode.__exit__(None, None, None)
        return torch.sin(y), mode.calls

    same(base, x())
    same_values(own, x())
    same_values(by_hand, x())
    assert torch.overrides._get_current_function_mode() is None


def test_vmap_inside_a_mode_of_torch():
    def program(x):
        with BaseTorchFunctionMode():
            return torch.vmap(lambda r: torch.sin(r) * torch.sin(r).sum())(x), torch.vmap(torch.sin, in_dims=1)(x)

    same(program, x())


def test_a_mode_that_takes_nothing():
    class Nothing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return NotImplemented

    def program(x):
        with Nothing():
            return torch.sin(x)

    with pytest.raises(TypeError) as want:
        program(x())
    with pytest.raises(TypeError) as got:
        compiled(program)[0](x())
    assert str(got.value).partition(" at 0x")[0] == str(want.value).partition(" at 0x")[0]


def test_transforms_and_branches_see_modes_and_classes():
    def mapped(x):
        with Count(2.0) as mode:
            y = torch.vmap(torch.sin)(x)
        return y, mode.calls

    def summed(y):
        return torch.func.grad(lambda r: (r * r).sum())(y), torch.vmap(lambda r: r * 2)(y)

    same_values(mapped, x())
    SEEN.clear()
    want, seen = summed(x(of=Tagged)), list(SEEN)
    SEEN.clear()
    function, log = compiled(summed)
    got = function(x(of=Tagged))
    assert kinds(got) == kinds(want) and SEEN == seen and log.breaks
    agree(got, want)


def test_in_place_powers():
    def program(x):
        y = x.abs().as_subclass(Tagged)
        y **= 2
        y -= 1
        y //= 2
        return y

    same(program, x())
    assert torch.equal(plain(intarsia.compile(program, fullgraph=True)(x())), plain(program(x())))


def test_lists_ask_for_lengths():
    same(lambda y: [*y, *y][0], x(of=Tagged))


def test_builtins_ask_too():
    def program(y):
        return (
            abs(y),
            sum([y, y]),
            pow(y, 2),
            operator.add(y, 1),
            torch.Tensor.add(y, 1),
            Tensor.__rsub__(y, 2),
        )

    same(program, x(of=Tagged))
