"""Wrapper tensors of the caller's as leaves: `.grad` read and assigned, `backward()` inside of the graph, steps of optimizers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_subclass_programs import Held
from test_wrapper_gradients import Pair, nested, pair, x
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import intarsia
from intarsia.frontend.torch_private.wrapped import is_wrapped


class Asked(Pair):
    """Doubles what is asked of its gradient."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Asked(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = []
        for name in ("a", "b"):
            given, named = pytree.tree_map_only(cls, lambda t: getattr(t, name), (args, kwargs or {}))
            found.append(func(*given, **named))
        made = cls(*found) if isinstance(found[0], Tensor) else found[0]
        return return_and_correct_aliasing(func, args, kwargs or {}, made)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__get__" and getattr(func, "__self__", None) is Tensor.grad:
            return result if result is None else result * 2
        return result


def leaf(kind: str, seed: int = 0) -> Tensor:
    if kind == "held":
        return Held(x(seed), 2.0).requires_grad_()
    if kind == "asked":
        return Asked(x(seed), x(seed + 1)).requires_grad_()
    return {"pair": pair, "nested": nested, "plain": lambda s, g: x(s).requires_grad_(g)}[kind](seed, True)


def seen(value: Any) -> Any:
    """All of a tensor and its gradient."""
    if not isinstance(value, Tensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.detach(), value.grad, value.requires_grad


def parts(value: Any) -> Any:
    if is_wrapped(value):
        held = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        return type(value).__name__, [parts(v) for v in held.values()]
    return [parts(v) for v in value] if isinstance(value, tuple | list) else value


def equal(one: Any, other: Any) -> None:
    one, other = parts(one), parts(other)
    if isinstance(other, Tensor):
        assert type(one) is type(other)
        torch.testing.assert_close(one, other)
    elif isinstance(other, tuple | list):
        assert len(one) == len(other)
        for pair in zip(one, other):
            equal(*pair)
    else:
        assert one == other


def check(program: Any, make: Any, breaks: bool = False, calls: int = 3, behind: Any = None) -> Any:
    """Three calls, the leaves kept from call to call: results, gradients, versions."""
    function, log = compiled(program, number_backend)
    first, second = make(), make()
    with torch.enable_grad():
        for k in range(calls):
            given = [x(k), x(k + 9)]
            got, want = function(*first, *given), program(*second, *given)
            equal(pytree.tree_map(seen, got), pytree.tree_map(seen, want))
            if behind is not None:
                behind(got), behind(want)
            equal([seen(t) for t in first], [seen(t) for t in second])
    assert bool(log.breaks) == breaks and not log.fallbacks, (log.breaks, log.fallbacks)
    return log


def accumulated(w, v, y):
    (w * v).sum().backward()
    return w.grad


def replaced(w, v, y):
    w.grad = None
    (w * v).sin().sum().backward()
    return w.grad * 2


def twice(w, v, y):
    w.grad = None
    (w * v).sum().backward()
    (w * y).cos().sum().backward()
    return w.grad.sum()


def stepped(w, v, y):
    w.grad = None
    loss = (w * v).tanh().sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    return loss


def kept(w, v, y):
    loss = (w * v).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def of_inputs(w, v, y):
    (w * v).square().sum().backward(inputs=[w])
    return w.grad


def zeroed(w, v, y):
    if w.grad is not None:
        w.grad.zero_()
    (w * v).sum().backward()
    return w.grad


def scaled(w, v, y):
    (w * v).sum().backward()
    w.grad.mul_(0.5)
    return w.grad


def assigned(w, v, y):
    w.grad = w.detach() * 3
    return w.grad + 1


def moved(w, v, y):
    w.grad = None
    (w * v).sum().backward()
    found = w.grad
    w.grad = None
    return found


@pytest.mark.parametrize("kind", ["pair", "nested", "held", "asked", "plain"])
@pytest.mark.parametrize(
    "program", [accumulated, replaced, twice, stepped, kept, of_inputs, zeroed, scaled, assigned, moved]
)
def test_gradients_arrive_in_the_graph(program: Any, kind: str) -> None:
    check(program, lambda: [leaf(kind)])


def beside(w, v, y):
    (w * v).sum().backward()
    return w * y  # gradients of which are wanted later


def later(w, v, y):
    loss = (w * v).sum()
    return loss, w.grad


@pytest.mark.parametrize(("program", "breaks"), [(beside, True), (later, False)])
@pytest.mark.parametrize("kind", ["pair", "held"])
def test_gradients_arrive_behind_the_graph(program: Any, breaks: bool, kind: str) -> None:
    """Nothing is lost where both are wanted."""

    def behind(result: Any) -> None:
        (result[0] if isinstance(result, tuple) else result).sum().backward()

    check(program, lambda: [leaf(kind)], breaks, behind=behind)


def test_hooks_of_the_caller_are_called() -> None:
    log: list[Any] = []

    def make() -> list[Tensor]:
        made = leaf("pair")
        made.register_hook(lambda g: log.append(1) or g * 2)
        return [made]

    check(replaced, make, breaks=True)
    assert len(log) == 6

    function, _ = compiled(replaced)
    w, other = leaf("pair"), leaf("pair")
    with torch.enable_grad():
        function(w, x(1), x(2))
        for each in (w, other):
            each.register_hook(lambda g: g * 5)
        equal(seen(function(w, x(1), x(2))), seen(replaced(other, x(1), x(2))))


def test_two_that_share_parts() -> None:
    def make() -> list[Tensor]:
        shared = x(4)
        return [Pair(shared, x(1)).requires_grad_(), Pair(shared, x(2)).requires_grad_()]

    def program(w, u, v, y):
        (w * v + u * y).sum().backward()
        with torch.no_grad():
            w.add_(w.grad, alpha=-0.1)
        return u * 2

    function, _ = compiled(program)
    first, second = make(), make()
    with torch.enable_grad():
        for k in range(3):
            got, want = function(*first, x(k), x(k + 9)), program(*second, x(k), x(k + 9))
            equal(got.detach(), want.detach())
            equal([seen(t) for t in first], [seen(t) for t in second])


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "kept": lambda p: torch.optim.SGD(p, lr=0.1),
}


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("SGD", "pair"), ("SGD", "nested"), ("SGD", "held"), ("Adam", "pair"), ("AdamW", "pair"), ("kept", "pair")],
)
def test_training_steps(name: str, kind: str) -> None:
    """Forward, backward, clipping and the optimizer's step in one program, with code of ours, as in eager."""

    def run(compile: Any) -> list[Any]:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.bias = nn.Parameter(leaf(kind).detach()), nn.Parameter(x(5))

            def forward(self, v: Tensor) -> Tensor:
                return torch.tanh(self.weight * v + self.bias).square().sum()

        model = Model()
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(v: Tensor) -> Tensor:
            loss = model(v)
            optimizer.zero_grad(set_to_none=name != "kept")
            loss.backward()
            nn.utils.clip_grad_norm_([model.bias], 1.0)
            optimizer.step()
            return loss

        fast, found = compile(step), []
        for k in range(4):
            loss = fast(x(k))
            found.append([loss.detach(), *((p.detach().clone(), p.grad.detach().clone()) for p in model.parameters())])
        return found

    with torch.enable_grad():
        want = run(lambda f: f)
        equal(run(lambda f: intarsia.compile(f, fullgraph=True)), want)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    """Gradients of two leaves, taken, added to, replaced and read in any order."""
    draw = random.Random(seed)
    lines = ["t = w * v + u"]
    for _ in range(draw.randint(3, 6)):
        lines.append(
            draw.choice(
                [
                    "t = (t * y).sin()",
                    "t = t + w",
                    "(t * u).sum().backward(retain_graph=True)",
                    "(w * w * y).sum().backward()",
                    "w.grad = None",
                    "u.grad = None if u.grad is None else u.grad * 2",
                    "found.append(w.grad)",
                    "w.grad = u.detach() + 1",
                    "found.append(t.detach())",
                    "if w.grad is not None: w.grad.mul_(0.5)",
                    "with torch.no_grad(): u.mul_(0.9)",
                ]
            )
        )
    text = "def program(w, u, v, y):\n    found = []\n" + "".join(f"    {line}\n" for line in lines)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(text + "    return found\n", f"<program {seed}>", "exec"), namespace)
    program, kind = namespace["program"], draw.choice(["pair", "held", "nested"])
    function, _ = compiled(program, number_backend)
    first, second = ([leaf(kind, 3), leaf(kind, 4)] for _ in range(2))
    with torch.enable_grad():
        for k in range(3):
            outcomes = []
            for run, leaves in ((function, first), (program, second)):
                try:
                    outcomes.append(pytree.tree_map(seen, run(*leaves, x(k), x(k + 9))))
                except RuntimeError as error:
                    outcomes.append(str(error).split("(")[0])
            equal(*outcomes), equal([seen(t) for t in first], [seen(t) for t in second])


CALLS: list[str] = []
FACTS = [f"__get__ {name}" for name in ("shape", "dtype", "device", "requires_grad")]


class Told(Asked):
    """Writes down what it is asked."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Told(inner["a"], inner["b"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        CALLS.append(f"{getattr(func, '__name__', func)} {getattr(getattr(func, '__self__', None), '__name__', '')}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def noted(w, v, y):
    CALLS.append("begin")
    return w * v


@pytest.mark.parametrize("program", [accumulated, replaced, stepped, assigned, noted])
def test_classes_are_asked_as_in_eager(program: Any) -> None:
    """Neither guards nor what gives a gradient to the caller's tensor asks `__torch_function__`; what it notes is not lost."""
    function, log = compiled(program, number_backend)
    first, second = (Told(x(0), x(1)).requires_grad_() for _ in range(2))
    with torch.enable_grad():
        for k in range(5):
            found = []
            for run, w in ((program, second), (function, first)):
                CALLS.clear()
                result = run(w, x(k), x(k + 9))
                # Capture itself asks, and so does a graph that runs as it is.
                calls = [c for c in CALLS if c not in FACTS] if k > 2 else []
                found.append([calls, seen(result), seen(w)])
            equal(found[1], found[0])
    assert log.breaks


def taken(w, v, y):
    (g,) = torch.autograd.grad((w * v).sin().sum(), [w])
    return g * 2


def test_hooks_of_the_caller_see_gradients_that_are_asked_for() -> None:
    function, log = compiled(taken)
    first, second = leaf("pair"), leaf("pair")
    with torch.enable_grad():
        for k in range(4):
            if k == 2:
                assert not log.breaks and len(log.captures) == 1
                for each in (first, second):
                    each.register_hook(lambda g: g * 5)
            equal(function(first, x(k), x(k + 9)), taken(second, x(k), x(k + 9)))
