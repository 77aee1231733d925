"""Checks on values of tensors: one graph, and what fails raises what eager raises, with nothing behind the check done.

PYTEST_DONT_REWRITE: asserts of the programs are Python's own.
"""

import contextlib
import functools
import random
import traceback

import pytest
import torch
from harness import compiled, graph_backend, number_backend
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import intarsia
from intarsia.frontend.branches import written as written_by_graphs

SEEN: list[object] = []
HELD: dict[str, object] = {}
GOOD = torch.arange(32.0).reshape(4, 8) / 10
BIG, NAN, SEVEN = GOOD.clone(), GOOD.clone(), GOOD.clone()
BIG[1, 1], NAN[0, 0], SEVEN[0, 0] = 1000.0, float("nan"), 7.0
CALLS = (GOOD, BIG, GOOD, NAN, SEVEN, GOOD - 60, GOOD, BIG)


class Bad(Exception):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if not torch.isfinite(y).all():
            raise Bad("not finite", self.calls)
        self.last = y.detach()
        return y * 2


def written(x):
    """What the graph writes is set back where a check fails: eager writes it again, up to there."""
    if (x == 7).any():
        raise ValueError(f"seven {x[0]}")
    x.add_(1)
    if (x > 100).any():
        raise ValueError(f"big {x[1]}")
    return x.mul_(2) * 2


def two(x):
    """The second fails, too."""
    SEEN.append("a")
    if (x > 100).any():
        raise ValueError(f"big {x.max()} {x[0]}")
    y = x * 0.5
    SEEN.append(y)
    assert (x != 7).all(), f"seven {y}"
    SEEN.append("c")
    HELD["y"] = y
    return y + 1


def inner(x, least):
    if x.sum() < least:
        raise Bad(f"sum {x.sum():.3f}")
    return x * 2


def inlined(x):
    return inner(x, -100) + inner(x * 2, -150)


def drawn(x):
    y = torch.nn.functional.dropout(x, 0.5)
    if (x > 100).any():
        raise ValueError(f"{y}")
    return y


def in_parts(x, strict=True):
    if (x > 100).any() or (x == 7).any() and strict:
        raise ValueError(f"big {'a' if strict else 'b'}")
    return x + 1


def asserted(x):
    torch._assert((x < 100).all(), "big")
    return x + 1


def indexed(x):
    index = (x[0] * 0.01).long().abs()
    if (index >= 4).any():
        raise IndexError("too large")
    return torch.nn.functional.embedding(index, x)


def counted(x):
    """As an image placeholder check: numbers of tokens and features differ."""
    tokens, features = (x > -50).sum(), (x.abs() < 100).sum()
    if tokens != features:
        raise ValueError(f"Image features and image tokens do not match: tokens: {tokens}, features {features}")
    return torch.where(x > 1, x, -x)


def repeated(x):
    out = []
    for k in range(3):
        if (x + k > 100).any():
            raise ValueError(f"{k}")
        out.append(x + k)
    return out


def generated(x):
    def steps():
        for k in range(3):
            if (x + k > 100).any():
                raise ValueError(f"{k}")
            yield x * k

    return sum(steps())


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
        if (y > 100).any():
            raise ValueError(f"{y}")
    return y + x


def before_a_break(x):
    if (x > 100).any():
        raise ValueError("big")
    SEEN.append("before")
    print(end="")
    y = x * 2
    if (y < -100).any():
        raise ValueError("small")
    return y


def caught(x):
    """The program goes on: it is no check."""
    try:
        return inner(x, -100)
    except Bad as error:
        return str(error)


def either(x):
    if (x > 100).any():
        raise ValueError("big")
    else:
        raise Bad("not big")


ONE = (written, two, inlined, drawn, in_parts, asserted, indexed, counted, repeated, generated, without_gradients)
OTHERS = (before_a_break, caught, either)


def outcome(function, x):
    """All that can be seen of a call."""
    SEEN.clear(), HELD.clear()
    x = x.clone()
    torch.manual_seed(0)
    try:
        result = function(x)
    except Exception as error:
        places = traceback.extract_tb(error.__traceback__)[1:]
        lines = [(p.lineno, p.name) for p in places if p.filename == __file__]
        result = type(error), error.args, lines, str(error.__context__)
    return result, list(SEEN), dict(HELD), x, torch.rand(1)


def same(a, b):
    (left, spec), (right, other) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    tensors = [isinstance(v, torch.Tensor) for v in left]
    close = (torch.allclose(p, q, equal_nan=True) if t else p == q for p, q, t in zip(left, right, tensors))
    return spec == other and all(close)


@pytest.mark.parametrize("function", [*ONE, *OTHERS], ids=lambda f: f.__name__)
def test_as_eager(function):
    fast, log = compiled(function, number_backend)
    for x in CALLS:
        assert same(outcome(fast, x), outcome(function, x))
    assert log.fallbacks == []
    if function in ONE:
        assert log.breaks == [] and len(log.captures) == 1


@pytest.mark.parametrize("function", [two, drawn, indexed], ids=lambda f: f.__name__)
def test_as_eager_in_whole(function):
    fast = intarsia.compile(function, fullgraph=True)
    for x in CALLS:
        assert same(outcome(fast, x), outcome(function, x))


def test_a_module_changes_nothing_behind_a_check():
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    fast, log = compiled(net, number_backend)
    for x in CALLS:
        assert same(outcome(fast, x), outcome(other, x))
        assert net.calls == other.calls and same(getattr(net, "last", None), getattr(other, "last", None))
    assert len(log.captures) < 4 and log.breaks == []  # the number of calls is a symbol from the second on


def test_gradients():
    def f(x, w):
        y = (x * w).exp()
        if not y.isfinite().all():
            raise Bad(f"{y.sum()}")
        return (y * w).sum()

    fast = intarsia.compile(f, fullgraph=True)
    for x in (GOOD, BIG, GOOD * 0.5):
        grads = []
        for function in (f, fast):
            w = torch.full((8,), 0.25, requires_grad=True)
            try:
                function(x * 4, w).backward()
            except Bad as error:
                grads.append(str(error))
            else:
                grads.append(w.grad)
        assert same(grads[1], grads[0])


def test_what_was_written_is_set_back_unseen():
    """Memory in between stays, autograd sees eager's number of writes, and what it saved before is still good."""

    def f(x):
        x.add_(1)
        assert (x < 100).all()
        return x * 2

    fast, log = compiled(f, number_backend)
    for factor in (1.0, 1000.0, 2.0):
        seen = []
        for function in (f, fast):
            base, w = torch.arange(24.0).reshape(4, 6) / 10 * factor, torch.ones(4, requires_grad=True)
            column = base[:, ::2]
            kept = w * base[:, 1]
            with contextlib.suppress(AssertionError):
                seen.append(function(column))
            seen += [base, column._version]
            if factor == 1000.0:
                with pytest.raises(RuntimeError, match="modified"):
                    kept.sum().backward()
        assert same(seen[: len(seen) // 2], seen[len(seen) // 2 :])
    assert log.breaks == [] and log.fallbacks == []


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_of_norms_beside_a_check(momentum):
    def f(norm, x):
        y = norm(x)
        if not y.isfinite().all() or (x > 100).any():
            raise Bad(f"{x.sum():.2f}")
        return (y * y * x).sum()

    norms = [nn.BatchNorm1d(8, momentum=momentum) for _ in range(2)]
    fast, log = compiled(functools.partial(f, norms[1]), number_backend)
    for x in (GOOD, BIG, GOOD * 2, NAN, BIG, GOOD):
        seen = []
        for norm, function in zip(norms, (functools.partial(f, norms[0]), fast)):
            norm.zero_grad()
            try:
                function(x).backward()
            except Bad as error:
                seen.append(str(error))
            seen.append([*norm.buffers(), norm.weight.grad])
        assert same(seen[: len(seen) // 2], seen[len(seen) // 2 :])
    assert log.fallbacks == [] and (log.breaks == [] or momentum is None)


def test_statistics_given_to_a_norm_are_set_back():
    def f(x, mean, variance):
        y = F.batch_norm(x, mean, variance, training=True)
        assert (x < 100).all()
        return y

    fast, log = compiled(f, number_backend)
    for x in (GOOD, BIG, GOOD):
        seen = []
        for function in (f, fast):
            mean, variance = torch.zeros(8), torch.ones(8)
            with contextlib.suppress(AssertionError):
                seen.append(function(x, mean, variance))
            seen += [mean, variance, mean._version]
        assert same(seen[: len(seen) // 2], seen[len(seen) // 2 :])
    assert log.breaks == [] and log.fallbacks == []


def test_all_checks_are_one_result():
    fast, log = compiled(repeated, graph_backend)
    fast(GOOD)
    (capture,) = log.captures
    assert len(capture.entry.failing) == 1 and capture.entry.outputs == 4


def test_no_check_costs_nothing():
    fast, log = compiled(lambda x: x * 2, graph_backend)
    fast(GOOD)
    assert log.captures[0].entry.failing == () and not log.captures[0].entry.draws


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x.add_(1), "writes to large tensors of the caller's"),
        (lambda x: torch.ops.checks_test.told(x), "told may have an effect"),
    ],
    ids=["write", "operator"],
)
def test_what_cannot_be_run_again_breaks(change, why, monkeypatch):
    monkeypatch.setattr(written_by_graphs, "_MOST_BYTES", 100)

    def f(x):
        assert (x < 100).all()
        return change(x) * 2

    fast, log = compiled(f, number_backend)
    for x in CALLS:
        assert same(outcome(fast, x), outcome(f, x))
    assert [why in b.reason for b in log.breaks] == [True]
    with pytest.raises(Exception, match=why):
        compiled(f, fullgraph=True)[0](GOOD)


@torch.library.custom_op("checks_test::told", mutates_args=())
def told(x: torch.Tensor) -> torch.Tensor:
    SEEN.append("told")
    return x + 1


told.register_fake(torch.empty_like)

_STEPS = ["x = x * 2 + {a}", "x = x.sin() * {a}", "SEEN.append(x)", "HELD['k'] = {a}", "x = x + torch.rand(3)"]
_STEPS += ["if (x > {b}).any():\n        raise Bad(f'{{x.sum():.2f}}')", "assert not (x < -{b}).any(), x.shape"]
_STEPS += ["assert x.mean() <= {b} or {a} < 0.3", "for k in range(2):\n        assert (x * k).max() < {b}, k"]
_STEPS += ["y.mul_({a})", "if {a} > 0.7:\n        print(end='')"]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    draw = random.Random(seed)
    steps = [s.format(a=round(draw.random(), 2), b=draw.randint(1, 8)) for s in draw.choices(_STEPS, k=6)]
    text = "\n".join(["def f(x):", "    y = x.clone()", *(f"    {s}" for s in steps), "    return x, y"])
    namespace = dict(torch=torch, SEEN=SEEN, HELD=HELD, Bad=Bad)
    exec(text, namespace)
    fast, log = compiled(namespace["f"], number_backend)
    for k in range(6):
        x = torch.linspace(-1, 1, 3) * (0.5 + k)
        assert same(outcome(fast, x), outcome(namespace["f"], x)), text
    assert log.fallbacks == []
