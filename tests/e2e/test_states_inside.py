"""Seeds, generators, inference mode, defaults and grad modes inside compiled code: eager's results, and eager's state afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import intarsia

CASES: list[tuple[Any, tuple[Any, ...], int]] = []
GLOBAL = torch.Generator().manual_seed(4)
LINEAR = nn.Linear(4, 4)
KEPT: list[Any] = []


def case(*arguments: Any, breaks: int = 0) -> Any:
    """A program, the arguments of its calls, and how many breaks it has."""

    def add(program: Any) -> Any:
        CASES.append((program, arguments, breaks))
        return program

    return add


def t(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def r(*shape: int) -> Tensor:
    return t(*shape).requires_grad_()


def g(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- the default generator ----


@case((t(4, 8),), (t(5, 8),))
def seeds(x):
    first = torch.rand(3)
    torch.manual_seed(3)
    second = torch.rand(3)
    torch.manual_seed(3)
    return first, second, torch.randn(3) * x.sum()


@case((t(4), 1), (t(4), 7), (t(4), -9), (t(4), 2**40))
def seed_given(x, seed):
    torch.manual_seed(seed)
    return x + torch.rand(4)


@case((t(4),))
def seed_alone(x):
    torch.manual_seed(5)
    torch.cuda.manual_seed_all(5)
    return x


@case((t(4),), breaks=1)
def seed_too_large(x):
    torch.manual_seed(2**63 + 1)
    return x + torch.rand(4)


@case((t(4),), (t(6),))
def fork(x):
    first = torch.rand(2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        second = torch.rand(2)
    return x.sum() + first + second + torch.rand(2)


@case((t(4),))
def fork_without_devices(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(2)
    return x.sum() + first + torch.rand(2)


@case((t(4),))
def state_returned(x):
    state = torch.get_rng_state()
    y = x + torch.rand(4)
    return y, state, torch.get_rng_state()


@case((t(4), g(9).get_state()), (t(4), g(10).get_state()))
def state_given(x, state):
    torch.set_rng_state(state)
    return x + torch.rand(4)


@case((t(4), torch.zeros(7, dtype=torch.uint8)), (t(4), torch.zeros(5056, dtype=torch.uint8)), breaks=-1)
def state_wrong(x, state):
    torch.set_rng_state(state)
    return x + torch.rand(4)


@case((r(4),))
def seed_with_gradients(x):
    torch.manual_seed(2)
    return (F.dropout(x, 0.5) * torch.rand(4)).sum()


@case((t(2, 4),))
def seed_with_parameters(x):
    torch.manual_seed(2)
    y = F.dropout(LINEAR(x), 0.5)
    torch.manual_seed(2)
    return y, F.dropout(LINEAR(x), 0.5)


# ---- generators ----


@case((t(4, 8),))
def generator_made(x):
    g = torch.Generator().manual_seed(3)
    return x + torch.rand(4, 8, generator=g), torch.randn(3, generator=g), g.initial_seed(), g.device


@case((t(4, 8),))
def generator_draws(x):
    g = torch.Generator()
    g.manual_seed(-5)
    first = torch.empty(20).normal_(generator=g)
    return (
        *(first, torch.randperm(5, generator=g), torch.bernoulli(x.sigmoid(), generator=g)),
        *(torch.randint(0, 9, (3,), generator=g), torch.multinomial(x.exp(), 2, generator=g)),
        *(torch.empty(3).uniform_(1, 2, generator=g), torch.normal(0.0, 1.0, (3,), generator=g)),
        *(torch.poisson(x.exp(), generator=g), torch.empty(3).bernoulli_(0.5, generator=g)),
        *(torch.empty(3).random_(2, 9, generator=g), torch.empty(3).exponential_(generator=g)),
        *(torch.normal(x, 2.0, generator=g), torch.randn(2, dtype=torch.float64, generator=g)),
    )


@case((t(4), lambda: g(1)), (t(4), lambda: g(2)), (t(5)[:4], lambda: torch.default_generator))
def generator_given(x, g):
    return x + torch.rand(4, generator=g)


@case((t(4), lambda: g(1)), (t(4), lambda: g(2)))
def generator_state(x, g):
    state = g.get_state()
    first = torch.rand(2, generator=g)
    g.set_state(state)
    return x.sum() + first, torch.rand(2, generator=g), state


@case((t(4), lambda: g(1), lambda: g(2)), (t(4), lambda: KEPT[0], lambda: KEPT[0]))
def generators_given(x, g, h):
    return x + torch.rand(4, generator=g), torch.rand(4, generator=h), torch.rand(4, generator=g)


@case((t(4),), (t(4),))
def generator_global(x):
    return x + torch.rand(4, generator=GLOBAL)


@case((t(4),))
def generator_default(x):
    return x + torch.rand(4, generator=torch.default_generator), torch.default_generator.get_state()


@case((t(4),), breaks=1)
def generator_over_break(x):
    g = torch.Generator().manual_seed(3)
    first = torch.rand(2, generator=g)
    intarsia.graph_break()
    return x.sum() + first, torch.rand(2, generator=g)


@case((t(4),))
def generator_returned(x):
    g = torch.Generator().manual_seed(3)
    return x.sum() + torch.rand(2, generator=g), g


@case((t(4), lambda: g(1)))
def generator_initialises(x, g):
    w = torch.empty(4, 4)
    nn.init.kaiming_uniform_(w, generator=g)
    nn.init.normal_(w[0], generator=g)
    return x @ w


@case((t(6, 6), lambda: g(1)), breaks=1)
def generator_not_contiguous(x, g):
    return x, torch.zeros(40)[::2].normal_(generator=g)


@case((r(4), lambda: g(1)), breaks=1)
def generator_with_gradients(x, g):
    return torch.bernoulli(x.sigmoid(), generator=g) * x


@case((t(4), lambda: g(1)), (t(6), lambda: g(2)), (t(7), lambda: g(2)))
def generator_of_sizes(x, g):
    return x + torch.rand(x.shape[0], generator=g), torch.rand_like(x)


@case((t(4), lambda: g(1)), breaks=-1)
def generator_refuses(x, g):
    return x + torch.empty(4).normal_(0, -1, generator=g)


@case((t(4), lambda: g(1)), (-t(4), lambda: g(2)), (t(4) * torch.nan, lambda: g(2)))
def generator_before_check(x, g):
    state = torch.get_rng_state()
    y = x + torch.rand(4, generator=g) + torch.rand(4)
    assert y.isfinite().all()
    torch.set_rng_state(state)
    return y


# ---- inference mode ----


@case((t(4),), (r(4),))
def inference(x):
    with torch.inference_mode():
        y = x.sin()
        facts = torch.is_inference_mode_enabled(), y.is_inference(), torch.is_inference(x), torch.is_grad_enabled()
    return y, y.view(-1, 1), facts, torch.is_inference_mode_enabled()


@case((r(4),))
def inference_beside_gradients(x):
    with torch.inference_mode():
        y = x.sin()
    return y, (x * 2).sum()


@case((r(4),), breaks=-1)
def inference_saved(x):
    with torch.inference_mode():
        y = x.sin()
    return y * x


@case((t(4),), (t(5),))
def inference_used(x):
    with torch.inference_mode():
        y = x.sin()
    return y * x, y[1:], (y + 1).is_inference(), y[1:].is_inference()


@case((t(4),), breaks=-1)
def inference_written(x):
    with torch.inference_mode():
        y = x.sin()
    y.add_(1)
    return y


@case((t(4),), (r(4),))
def inference_view(x):
    with torch.inference_mode():
        y = x.view(2, 2)
    return y, y.is_inference(), x.sum()


@case((t(4),))
def inference_writes(x):
    with torch.inference_mode():
        x.mul_(2)
        y = x.sin()
        y.add_(1)
        y[0] = 3
    return y


@case((t(4),))
def inference_off(x):
    with torch.inference_mode(False):
        y = x.sin()
    with torch.inference_mode():
        a = x * 2
        with torch.inference_mode(False):
            b, modes = x * 3, (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    return y, a, b, modes


@torch.inference_mode()
def _inferred(x):
    return LINEAR(x).relu()


@case((t(2, 4),), (r(2, 4),))
def inference_decorated(x):
    return _inferred(x) * 1.0, _inferred(x)


@torch.inference_mode()
def inference_whole(x):
    return LINEAR(x) + 1


case((t(2, 4),), (r(2, 4),))(inference_whole)


@case((t(2, 4),), breaks=2)
def inference_over_break(x):
    with torch.inference_mode():
        y = LINEAR(x)
        intarsia.graph_break()
        z = y * 2
    return y, z


@case((t(4),), breaks=2)
def inference_leaf(x):
    with torch.inference_mode():
        return torch.ones(3, requires_grad=True)


@case((t(4),))
def inference_of_parameter(x):
    with torch.inference_mode():
        w = LINEAR.weight.t()
        z = x @ w
    return w, z


@case((t(4),))
def inference_conjugate(x):
    with torch.inference_mode():
        return torch.complex(x, x).conj()


# ---- defaults ----


@case((t(4),), (torch.arange(4),))
def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(3) + torch.tensor(0.1) + torch.full((3,), 0.3) + torch.rand(3) + torch.arange(0.0, 3.0)
    now = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return y + x.sum(), now


@case((t(4),))
def default_dtype_left(x):
    torch.set_default_dtype(torch.float64)
    return torch.ones(3) * x.sum(), torch.linspace(0, 1, 3)


@case((torch.arange(4),), breaks=1)
def default_dtype_promotes(x):
    torch.set_default_dtype(torch.float64)
    y, z = x / 2 + x * 0.5, x.sin()
    torch.set_default_dtype(torch.float32)
    return y, z


@case((t(4),), breaks=-1)
def default_dtype_wrong(x):
    torch.set_default_dtype(torch.int32)
    return x


@case((t(4),), breaks=1)
def default_dtype_over_break(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(3)
    intarsia.graph_break()
    z = torch.zeros(2)
    torch.set_default_dtype(torch.float32)
    return x, y, z


@case((t(4),), breaks=-1)
def default_dtype_raises(x):
    torch.set_default_dtype(torch.float64)
    raise ValueError("no")


@case((t(4),))
def default_device(x):
    torch.set_default_device("meta")
    a, now = torch.zeros(3), torch.get_default_device()
    torch.set_default_device(None)
    return x + torch.ones(4), now, torch.get_default_device(), a.device


@case((t(4),))
def default_device_around(x):
    with torch.device("meta"):
        a, now, b = torch.zeros(3), torch.get_default_device(), torch.ones(4, device="cpu")
    return x + b, now, a.device


@case((t(4),))
def default_device_left(x):
    torch.set_default_device("cpu")
    return x + torch.ones(4), torch.get_default_device()


@case((t(4),), breaks=1)
def default_device_over_break(x):
    torch.set_default_device("cpu")
    intarsia.graph_break()
    return x + torch.ones(4), torch.get_default_device()


# ---- grad mode and autocast ----


@torch.set_grad_enabled(False)
def _without(x):
    return x * 2


@case((r(4),))
def grad_decorated(x):
    return _without(x), x * 3


@case((r(4),))
def grad_left_off(x):
    torch.set_grad_enabled(False)
    return x * 2


@case((r(4),))
def grad_nested(x):
    with torch.set_grad_enabled(False):
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return y, z


@case((r(4),))
def grad_around_functions(x):
    f, g, h = torch.no_grad()(lambda a: a * 2), torch.no_grad(lambda a: a * 3), torch.enable_grad()(lambda a: a * 4)
    return f(x), g(x), h(x)


@torch.autocast("cpu", torch.bfloat16)
def _cast(x):
    return x @ x.t()


@case((t(4, 4),), (r(4, 4),))
def autocast_decorated(x):
    return _cast(x), x @ x


@case((t(4, 4),))
def autocast_spellings(x):
    with torch.cpu.amp.autocast():
        a = x @ x
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        b = x @ x
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        c = x @ x
    with torch.autocast("cpu", enabled=False):
        d = x @ x
    with torch.autocast("cpu", cache_enabled=False):
        e = x @ x
        with torch.autocast("cpu", enabled=False):
            f, on = e.float() @ x, (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled())
    return a, b, c, d, e, f, on, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@case((t(4, 4),))
def autocast_twice(x):
    mode = torch.autocast("cpu")
    with mode:
        a = x @ x
    with mode:
        return a, x @ x


class _Plain(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.t(), a.t() @ grad


class _Full(_Plain):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b


@case((r(4, 4),))
def autocast_custom(x):
    with torch.autocast("cpu"):
        return _Plain.apply(x, x)


@case((r(4, 4),))
def autocast_custom_full(x):
    with torch.autocast("cpu"):
        return _Full.apply(x, x)


# ---- the comparison ----


def _facts(value: Any) -> Any:
    if isinstance(value, Tensor):
        data = None if value.is_meta else value.detach().clone().resolve_conj()
        shape = tuple(value.shape), tuple(value.stride()), str(value.device), value.dtype
        return "tensor", shape, value.requires_grad, value.is_inference(), value.is_conj(), data
    if isinstance(value, torch.Generator):
        return "generator", value.get_state()
    return [_facts(v) for v in value] if isinstance(value, tuple | list) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.allclose(a.to(torch.complex128), b.to(torch.complex128), 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def _reset() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    GLOBAL.manual_seed(4)
    KEPT[:] = [g(3)]


def _given(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value() if callable(value) else value


def _account(program: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """What a call gives or raises, the state that it leaves, its arguments and their gradients."""
    _reset()
    args, out, raised = [_given(a) for a in arguments], None, None
    try:
        out = program(*args)
    except Exception as error:
        raised = type(error), str(error).splitlines()[0]
    state = [torch.get_rng_state(), GLOBAL.get_state(), torch.get_default_dtype(), torch.get_default_device()]
    state += [torch._C._len_torch_function_stack(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    _reset()
    roots = [v for v in pytree.tree_leaves(out) if isinstance(v, Tensor) and v.grad_fn is not None]
    if roots:
        sum(v.float().sum() for v in roots).backward()
    grads = [a.grad for a in args if isinstance(a, Tensor)]
    return [_facts(v) for v in (out, raised, state, args, grads)]


@pytest.fixture(autouse=True)
def _clean() -> Any:
    yield
    _reset()


@pytest.mark.parametrize("program, arguments, breaks", CASES, ids=[c[0].__name__ for c in CASES])
def test_like_eager(program: Any, arguments: tuple[Any, ...], breaks: int) -> None:
    compiled = intarsia.compile(program)
    for given in (arguments[0], *arguments):
        want, got = _account(program, given), _account(compiled, given)
        for what, a, b in zip(("result", "error", "state", "arguments", "gradients"), got, want, strict=True):
            assert _same(a, b), f"{what}: {a} for {b}"
    if breaks >= 0:
        _reset()
        found = intarsia.explain(program)(*[_given(a) for a in arguments[0]]).breaks
        assert len(found) == breaks, found


@torch.enable_grad()
def _with_gradients(x):
    return x * 2


def _set_inside(x):
    with torch.inference_mode():
        torch.set_grad_enabled(True)
        y, seen = x * 2, torch.is_grad_enabled()
    return y, seen, torch.is_grad_enabled()


def _block_inside(x):
    with torch.inference_mode(), torch.enable_grad():
        y = x * 2
    return y, x * 3


def _function_inside(x):
    with torch.inference_mode():
        return _with_gradients(x)


@pytest.mark.parametrize("program", [_set_inside, _block_inside, _function_inside, _with_gradients])
@pytest.mark.parametrize("around", [False, True])
def test_gradients_that_are_switched_on_in_inference_mode(program, around):
    """Autograd records nothing there."""

    def facts(function, grad):
        with torch.inference_mode(around):
            found = function(torch.ones(3, requires_grad=grad))
        values = found if isinstance(found, tuple) else (found,)
        return [(v.tolist(), v.requires_grad, v.is_inference()) if isinstance(v, torch.Tensor) else v for v in values]

    compiled = intarsia.compile(program)
    for grad in (True, False, True):
        before = torch.is_grad_enabled()
        assert facts(compiled, grad) == facts(program, grad)
        torch.set_grad_enabled(before)
