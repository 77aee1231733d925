"""Branches of which both sides are computed: values, aliases and gradients are eager's, and the rest breaks with its reason."""

import random

import pytest
import torch
from harness import compiled, number_backend
from torch.utils import _pytree as pytree

import intarsia

XS = [torch.linspace(-1, 2, 32), torch.linspace(-2, 1, 32), torch.linspace(-1, 0.9, 32), torch.linspace(-3, 2.9, 32)]
XS = [x.reshape(4, 8) for x in XS]
linear = torch.nn.Linear(8, 8)


def returned(x):
    y = x.sin()
    if y.sum() > 0:
        return y + 1
    return y - 1


def one_side(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y * 3


def expressions(x):
    s = x.sum()
    return (x * 2 if s > 0 else x - 1) + (s if s > 1 else -s)


def scaled(x, most=0.5):
    if x.max() > most:
        return x * (most / 1.5)
    return x * 1.0


def inlined(x):
    return scaled(x) + scaled(x * 2, 0.7)


def unpacked(x):
    if x.sum() > 0:
        a, b = x * 2, x + 1
    else:
        a, b = x - 1, x * 3
    return a + b, [a]


def nested_containers(x):
    if x.sum() > 0:
        r = (x * 2, [x + 1])
    else:
        r = (x, [x - 1])
    return r[0] * 1, r[1]


def several(x):
    s = x.sum()
    if s > 2:
        y = x + 1
    elif s > 0:
        y = x + 2
    else:
        y = x * 3
    return y.sin()


def deeper(x):
    if x.sum() > 0:
        y = x * 2
        if y.max() > 1:
            y = y / 2
    else:
        y = x - 1
    return y + 1


def in_a_loop(x):
    for k in range(3):
        if x.sum() > k:
            x = x - 1
        else:
            x = x + 0.5
    return x


def unread(x):
    if x.sum() > 0:
        z = x * 2  # noqa: F841
    return x + 1


def conjunction(x):
    if x.sum() > 0 and x.max() < 2:
        return x + 1
    return x - 1


def extremes(x):
    return max(x[0, 0], x[0, 1], x[1, 1]) * min([x[1, 0], x[1, 1]])


def large(x):
    if x.sum() > 0:
        return x.unique().sum()
    return x.sum()


def number(x):
    n = 0
    if x.sum() > 0:
        n = 1
    return x + n


def checked(x):
    if x.sum() > 0:
        if not isinstance(x, torch.Tensor) or issubclass(type(x), int) or not hasattr(x, "sin"):
            raise TypeError(type(x))
        return x + torch.finfo(x.dtype).eps * torch.iinfo(torch.int8).max
    return getattr(x, "abs")() + callable(x)


def comprehensions(x, scale=2):
    if x.sum() > 0:
        parts = {k: [v * scale for v in row] for k, row in enumerate(x[:2].unbind())}
        for k, (a, b) in enumerate(zip(parts[0], reversed(parts[1]))):
            parts[0][-1] if k else None
            x = x + a * b
        return x + sum(range(3))
    return x - max([float(k) for k in (1, 2)])


def shared_variables(x):
    def both(y, n):
        def one():
            return y * n

        n = n + 1
        return one()

    return both(x, 1) if x.sum() > 0 else both(x + 1, 2)


ONE = (returned, one_side, expressions, inlined, unpacked, nested_containers, several, deeper, in_a_loop, unread)
ONE += (conjunction, extremes, large, checked, comprehensions, shared_variables, number)


def same_object(x):
    if x.sum() > 0:
        x = x * 2
    return x


def written_later(x):
    y = x * 2
    z = y
    if x.sum() > 0:
        y = y + 1
    z.add_(5)
    return y * 1


def two_of_them(x):
    y = x * 2
    z = y
    if x.sum() > 0:
        y = y + 1
    return y, z


def two_kinds(x):
    n = 0
    if x.sum() > 0:
        n = 1.0
    return x + n, n


def appended(x):
    found = []
    if x.sum() > 0:
        found.append((x, 1))
    return x * 1, len(found)


def dtypes(x):
    if x.sum() > 0:
        return x * 2
    return x.double()


def in_place(x):
    y = x * 2
    if x.sum() > 0:
        y += 1
    return y


def printed(x):
    if x.sum() > 0:
        print(end="")
    return x * 2


def items_of_an_iterator(x):
    items, y = iter([1, 2, 3]), x.sin()
    if y.sum() > 0:
        y = y * tuple(items)[0]
    return y, list(items)


def items_in_an_iterator(x):
    items, y = iter([1, 2, 3]), x.sin()
    if y.sum() > 0:
        y = y * (2 in items)
    else:
        y = y * 3
    return y, list(items)


def items_unpacked(x):
    items, y = iter([1, 2, 3, 4]), x.sin()
    if y.sum() > 0:
        y = y * [*items][2]
    else:
        a, b, c, d = items
        y = y - d
    return y, list(items)


def items_behind_another(x):
    items, y = iter([1, 2, 3, 4]), x.sin()
    if y.sum() > 0:
        y = y + sum([k for k, _ in zip(items, range(2))])
    return y, list(items)


def items_in_a_loop(x):
    items, y = iter([1, 2, 3, 4]), x.sin()
    if y.sum() > 0:
        for k in items:
            y = y + k
    return y, list(items)


def a_variable_of_a_function(x):
    n = 1

    def change():
        nonlocal n
        n = n + 1
        return x * n

    y = change() if x.sum() > 0 else x * 1
    return y, n


def a_class_made(x):
    if x.sum() > 0:
        return x * len(type("Name", (), {}).__name__)
    return x * 3


class Noted(type):
    def __instancecheck__(cls, value):
        cls.asked.append(value.sum())
        return True


class Anything(metaclass=Noted):
    asked = []


def instance_check_of_a_class(x):
    if x.sum() > 0:
        return x * isinstance(x, Anything)
    return x * 3


def given_out(x):
    return max(x[0, 0], x[0, 1])


def unbound(x):
    if x.sum() > 0:
        y = x * 2
    return y


def until(x):
    while x.sum() > 1:
        x = x * 0.5
    return x


def raises(x):
    if x.sum() > 0:
        return x @ torch.ones(3)
    return x + 1


def structures(x):
    if x.sum() > 0:
        y = x * 3
    else:
        y = [x, x * 2]
    return y


def sizes(x):
    y = x[:1] * 2 if x.sum() > 0 else x[:2] * 2
    return y + 1


def nothing(x):
    y = None if x.sum() > 0 else x * 2
    return y


ONE += (same_object, given_out, raises)
OTHERS = {
    structures: "is a Tensor on one side and a list on the other",
    sizes: "has the sizes",
    nothing: "is None on one side and a Tensor on the other",
    written_later: "written to",
    two_of_them: "given out",
    two_kinds: "n is 1.0 on one side and 0 on the other",
    appended: "list.append is called in `found.append((x, 1))`",
    dtypes: "what is returned has the dtype",
    in_place: "`+=` writes to a Tensor in `y += 1`",
    instance_check_of_a_class: "ppend is called in `cls.asked.append(value.sum())`",
    items_of_an_iterator: "items are taken of an iterator that was there before, in `y = y * tuple(items)[0]`",
    items_in_an_iterator: "items are taken",
    items_unpacked: "items are taken",
    items_behind_another: "items are taken",
    items_in_a_loop: "items are taken",
    a_variable_of_a_function: "the variable n, which functions share, is assigned in `n = n + 1`",
    a_class_made: "a class is made",
    printed: "print is called in `print(end=",
    unbound: "y is bound on one side only",
}


def outcome(function, x):
    x = x.clone()
    try:
        result = function(x)
    except Exception as error:
        return type(error), str(error), x
    leaves, spec = pytree.tree_flatten(result)
    alias = [isinstance(v, torch.Tensor) and v.data_ptr() == x.data_ptr() for v in leaves]
    facts = [(v.dtype, v.stride(), v.storage_offset()) for v in leaves if isinstance(v, torch.Tensor)]
    return leaves, spec, alias, facts, x


def same(a, b):
    (left, spec), (right, other) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    equal = (torch.equal(p, q) if isinstance(p, torch.Tensor) else p == q for p, q in zip(left, right))
    return spec == other and all(equal)


@pytest.mark.parametrize("function", [*ONE, *OTHERS], ids=lambda f: f.__name__)
def test_as_eager(function):
    fast, log = compiled(function, number_backend)
    for x in (*XS, XS[0]):
        assert same(outcome(fast, x), outcome(function, x))
    assert log.fallbacks == []
    if function in ONE:
        assert log.breaks == [] and len(log.captures) == 1
    else:
        assert OTHERS[function] in log.breaks[0].reason


def test_in_whole():
    for function in (several, extremes, inlined, large):
        fast = intarsia.compile(function, fullgraph=True)
        for x in XS:
            torch.testing.assert_close(fast(x), function(x))
    with pytest.raises(Exception, match=r"(?s)n = 1|if x.sum\(\) > 0.*n is 1 on one side"):
        compiled(number, fullgraph=True)[0](XS[0])


def product(x):
    y = x * 2
    if y.sum() > 0:
        y = linear(y)
        return y.exp(), [y + x]
    return y.flip(0) - 1, [linear(x)]


def test_large_sides_are_a_conditional():
    fast = intarsia.compile(product, fullgraph=True)
    with torch.no_grad():
        for x in XS:
            torch.testing.assert_close(fast(x), product(x))
        other, log = compiled(product, number_backend)
        assert all(same(outcome(other, x), outcome(product, x)) for x in XS) and not log.breaks
    with pytest.raises(Exception, match="has the requires_grad"):
        compiled(product, fullgraph=True)[0](XS[0])


def added(x, w):
    y = x * w
    if y.sum() > 0:
        y = y + w
    return y


def different_leaves(x, w):
    return x * 2 if x.sum() > 0 else w * 2


def not_finite(x, w):
    y = x * w
    return y.sqrt() if y.sum() > 0 else y * 2


def both_not_finite(x, w):
    return 1 / (x * w) if x.sum() > 0 else (x * w).log() * w.rsqrt()


def nested(x, w):
    y = x * w
    if x.sum() > 0:
        return y.log() if x[1] > 0.7 else y.sqrt() / x
    return y.exp() / y


def written_later(x, w):
    y = x * w
    z = y.sqrt() if x.sum() > 1 else y.log() * x
    y += 1
    return z.detach() * y


def gradient_inside(x, w):
    y = x.detach().requires_grad_()
    z = y.sqrt() if y.sum() > 0 else y.log()
    return torch.autograd.grad(z.sum(), y)[0] * x * w


def shared(x, w):
    y = (x * w).sqrt()
    return (y * 2 if x.sum() > 0 else y / 3) * w


def earlier(x, w):
    a, b = (x * w).sqrt() * 1, x * w * 3
    return a if b.sum() > 0 else b


def larger(x, w):
    return max((x + w).sum(), (x - w).sum())


@pytest.mark.parametrize(
    "function",
    [
        *(
            added,
            different_leaves,
            not_finite,
            both_not_finite,
            nested,
            written_later,
            gradient_inside,
            shared,
            earlier,
        ),
        larger,
    ],
    ids=lambda f: f.__name__,
)
def test_gradients(function):
    """Zeros at a root of 0 are NaN, and no gradient is None."""
    fast, log = compiled(function, number_backend)
    for x in (torch.tensor([0.0, 1, 2]), torch.tensor([0.0, -1, -2]), torch.tensor([0.0, 0.5, 0.2])):
        for tracked in ((True, True), (False, True), (True, False), (False, False)):
            found = []
            for one in (function, fast):
                given = [x.clone().requires_grad_(tracked[0]), torch.tensor([1.0, 1.5, 2.0]).requires_grad_(tracked[1])]
                result = one(*given)
                if result.requires_grad:
                    (result * result).sum().backward()
                found.append([result.detach(), *(g.grad for g in given), result.requires_grad])
            for a, b in zip(*found):
                assert torch.allclose(a, b, equal_nan=True) if isinstance(a, torch.Tensor) and b is not None else a is b
    assert bool(log.breaks) == (function in (different_leaves, earlier, written_later))


def test_a_gradient_of_a_gradient_through_one_side():
    """The side that is not taken stays out of the second derivative, too."""

    def function(x):
        y = x.square().sqrt() * x if x.sum() > 0 else x.log() * x
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum()

    fast, log = compiled(function, number_backend)
    for values in ([0.0, 1, 2], [0.0, -1, -2], [float("inf"), 1, 0], [1.0, 2, 3]):
        want, got = (
            [one := f(x := torch.tensor(values).requires_grad_()), *torch.autograd.grad(one, x)]
            for f in (function, fast)
        )
        for a, b in zip(want, got, strict=True):
            torch.testing.assert_close(b, a, equal_nan=True)
    assert not log.breaks


def test_what_backward_may_want_is_not_written_to():
    """Eager raises in backward, where the side that is taken has saved what is written to."""

    def function(x):
        y = x * 1
        z = y.sqrt() if x.sum() > 0 else y.log()
        y.mul_(2)
        return (z + y).sum()

    fast, log = compiled(function, number_backend)
    for values in ([1.0, 2], [-1.0, -2]):
        found = []
        for f in (function, fast):
            x = torch.tensor(values).requires_grad_()
            try:
                found.append(torch.autograd.grad(f(x), x)[0].tolist())
            except RuntimeError as error:
                found.append(str(error)[:40])
        assert found[0] == found[1]
    assert "takes gradients" in log.breaks[0].reason


_VALUES = [
    "x * {a}",
    "x + {n}",
    "-y",
    "y.abs()",
    "x.clamp(-{a}, {a})",
    "y.sum() * x",
    "(x, y)[{n} % 2] * 1",
    "torch.sin(y)",
]
_VALUES += [
    "x.flip(0) @ torch.ones(8, 8)",
    "x.cumsum(0)",
    "x.double()",
    "x[:2]",
    "y.exp()",
    "torch.where(x > {a}, x, y)",
    "x",
    "z",
]
_TESTS = [
    "x.sum() > {a}",
    "y.mean() < {a}",
    "(x > {a}).any()",
    "not (y < {n}).all()",
    "x[0, 0] > y[1, 1]",
    "z.max() > {n}",
]
_LINES = ["{v} = {e}", "if {t}:\n        {v} = {e}", "if {t}:\n        {v} = {e}\n    else:\n        {v} = {f}"]
_LINES += ["{v} = {e} if {t} else {f}", "if {t}:\n        return {e}, {v}", "z.mul_({a})", "{v} = {e}; w = {v}"]


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed):
    draw = random.Random(seed)

    def filled(text):
        return text.format(a=round(draw.uniform(0, 2), 1), n=draw.randint(0, 3))

    lines = [
        draw.choice(_LINES).format(
            v=draw.choice("yz"),
            e=filled(draw.choice(_VALUES)),
            f=filled(draw.choice(_VALUES)),
            t=filled(draw.choice(_TESTS)),
            a=round(draw.uniform(0, 2), 1),
        )
        for _ in range(6)
    ]
    text = "\n".join(
        ["def f(x):", "    y = z = w = x.cos()", *(f"    {line}" for line in lines), "    return x, y, z, w"]
    )
    namespace = dict(torch=torch)
    exec(text, namespace)
    fast, log = compiled(namespace["f"], number_backend)
    for x in XS:
        assert same(outcome(fast, x), outcome(namespace["f"], x)), text
    assert log.fallbacks == [], text
