"""Programs that read values, branch, loop, give functions to operators, differentiate and set state: each is one graph.

A row is a program, what its calls are given, and whether it is trained. `test_one_graph.py` runs them with the graph as it is,
`benchmarks/one_graph.py` with the compiler.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from intarsia.frontend.versions import minor

COPIES_UNKNOWN_SIZES = minor(torch.__version__) >= (
    2,
    13,
)  # torch 2.11 asks whether two sizes that it does not know are equal
PROGRAMS: dict[str, Program] = {}


@dataclass
class Program:
    """`make` gives the function; `calls` the arguments of each call. Tensors that require gradients are trained.

    `breaks`: where it is not one graph today, a part of the reason.
    """

    make: Callable[[], Any]
    calls: tuple[tuple[Any, ...], ...]
    breaks: str = ""


def program(*calls: tuple[Any, ...], breaks: str = "") -> Callable[[Any], Any]:
    """Add a function as it is."""

    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = Program(lambda: function, calls, breaks)
        return function

    return add


def made(*calls: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Add what a function gives: a module with weights of its own."""

    def add(make: Any) -> Any:
        PROGRAMS[make.__name__] = Program(make, calls)
        return make

    return add


def t(*shape: int) -> Tensor:
    """Numbers between -1 and 1."""
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


def r(*shape: int) -> Tensor:
    """The same, trained."""
    return t(*shape).requires_grad_()


def i(*values: int) -> Tensor:
    """Integers."""
    return torch.tensor(values)


# ---- values that the program reads ----


@program((t(4), i(2)), (t(4), i(3)))
def item_as_size(x, n):
    return torch.zeros(n.item()) + x.sum()


@program((t(4), i(2)), (t(4), i(3)))
def item_as_factor(x, n):
    return x * n.item()


@program((r(4), torch.tensor(0.5)), (r(4), torch.tensor(3.0)))
def float_item_as_factor(x, s):
    return (x * s.item()).sin()


@program((t(6), i(2, 4)), (t(6), i(5, 1)))
def tolist_as_sizes(x, sizes):
    return torch.split(x, sizes.tolist())


@program((t(6), i(1, 4)), (t(6), i(3, 3)))
def tolist_as_bounds(x, bounds):
    a, b = bounds.tolist()
    return x[a:] * 2, x[:b].sum()


@program((t(7),), (-t(7) + 0.4,), (torch.ones(7),))
def nonzero(x):
    return torch.nonzero(x > 0.2) * 2


@program((r(7),), ((t(7) + 0.4).requires_grad_(),))
def mask(x):
    return x[x > 0.2].exp().sum()


@program((t(7),), (t(7).abs(),))
def masked_rows(x):
    rows = torch.outer(x, x)[x > 0]
    return rows @ x, rows.shape[0]


@program((i(3, 1, 3, 2),), (i(1, 1, 1, 1),), (i(4, 3, 2, 1),))
def unique(x):
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    return values * 2, inverse, counts, values.shape[0]


@program((r(3, 2), i(1, 0, 2)), (r(3, 2), i(3, 2, 2)))
def repeat_interleave(x, n):
    return x.repeat_interleave(n, dim=0).sin().sum(0)


@program((t(5, 2), torch.tensor(1)), (t(5, 2), torch.tensor(-1)), (t(5, 2), torch.tensor(5)))
def row_of_a_tensor(x, n):
    return x[n] * 3


@program((r(5, 2), torch.tensor(1)), (r(5, 2), torch.tensor(-1)))
def row_of_a_tensor_trained(x, n):
    return x[n] * 3


@program((r(5, 2), i(1, 4)), (r(5, 2), i(-1, 0)))
def rows_of_a_tensor(x, n):
    return x[n] * 3


@program((t(6), i(3)), (t(6), i(5)), (t(6), i(9)))
def checked(x, n):
    k = n.item()
    torch._check(k >= 2)
    torch._check(k <= 6, lambda: f"{k} is too much")
    return x[:k] * 2


@program((t(4),), (t(4) + 2,), (t(4) - 3,))
def asserted(x):
    assert (x < 2).all(), f"too large: {x}"
    torch._assert(x.min() > -3, "too small")
    return x.sqrt()


@program((t(4),), (t(4) + 2,), (t(4) * math.nan,))
def any_in_front_of_raise(x):
    if torch.isnan(x).any():
        raise ValueError(f"found NaN in {x}, mean {x.mean():.2f}")
    if (x > 2.5).any() or x.sum() > 100:
        raise RuntimeError("too large: {}".format(x.max()))
    return x + 1


@program((r(4, 2), i(1, 1, 0, 1)), (r(4, 2), i(1, 1, 1, 1)), (r(4, 2), i(1, 0, 1, 0)))
def placeholders(x, ids):
    n = (ids == 1).sum()
    if x[: x.shape[0] - 1].shape[0] != n:
        raise ValueError(f"Image features and image tokens do not match: tokens: {n}, features {x.shape[0] - 1}")
    return x.masked_scatter((ids == 1).unsqueeze(-1), x[1:] * 2)


# ---- branches, loops and functions that are given to operators ----


@program((r(4),), ((-t(4) + 0.5).requires_grad_(),))
def cond(x):
    return torch.cond(x.sum() > 0, lambda v: v.sin() * 2, lambda v: v.cos(), (x,))


@program((t(4),), (-t(4) + 0.5,))
def branch(x):
    if x.sum() > 0:
        y = x.sin() @ x
    else:
        y = (x @ x) - 1
    return y * 2


@program((t(4), torch.tensor(3)), (t(4), torch.tensor(0)))
def while_loop(x, n):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda k, v: k > 0, lambda k, v: (k - 1, v * 1.5 + 1), (n, x))


@program((t(4),), (t(4) * 3,))
def loop_until(x):
    while x.abs().max() > 0.1:
        x = x * 0.5
    return x


@program((r(5, 2),), ((t(5, 2) * 2).requires_grad_(),))
def scan(x):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, v: ((c + v).tanh(), c * v), torch.zeros(2), x)


@program((r(5, 2),), ((t(5, 2) * 2).requires_grad_(),))
def map_(x):
    from torch._higher_order_ops.map import map as torch_map

    return torch_map(lambda v, s: (v * s).sin(), x, x.sum())


@program((r(5, 2),), ((t(5, 2) * 2).requires_grad_(),))
def associative_scan(x):
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


@torch.compiler.assume_constant_result
def number():
    """Called once."""
    return len(KNOWN) - 1


@program((r(4),), ((t(4) * 3).requires_grad_(),))
def constant_result(x):
    return x * number()


@torch.compiler.nested_compile_region
def region(x, w):
    """A part that is compiled once."""
    return (x @ w).tanh()


@program((r(3, 3), r(3, 3)), ((t(3, 3) * 2).requires_grad_(), r(3, 3)))
def nested_compile_region(x, w):
    for _ in range(3):
        x = region(x, w)
    return x


def causal(b, h, q, k):
    """A mask."""
    return q >= k


@program((t(1, 2, 4, 8),), (t(1, 2, 4, 8) * 2,))
def flex_attention_with_a_bias(q):
    return flex_attention(q, q.cos(), q.sin(), score_mod=lambda s, b, h, q, k: s + (q - k) * 0.1)


@program((t(1, 2, 128, 8),), (t(1, 2, 128, 8) * 2,))
def flex_attention_with_a_mask(q):
    return flex_attention(q, q.cos(), q.sin(), block_mask=create_block_mask(causal, None, None, 128, 128, device="cpu"))


# ---- training ----


class Clip(torch.autograd.Function):
    """Clamps forward, passes gradients on."""

    @staticmethod
    def forward(ctx, x, most):
        ctx.save_for_backward(x)
        ctx.most = most
        return x.clamp(-most, most)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() < 2 * ctx.most), None


@program((r(4), 0.5), ((t(4) * 3).requires_grad_(), 0.5))
def custom_function(x, most):
    for _ in range(3):
        x = Clip.apply(x * 1.5, most)
    return x.sin()


@made((r(2, 4),), ((t(2, 4) * 2).requires_grad_(),))
def checkpointed():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x):
            x = checkpoint(self.block, x, use_reentrant=False)
            return checkpoint(self.block, x, use_reentrant=False).sum()

    return Model()


# ---- transforms ----


@program((r(4, 3), r(3)), ((t(4, 3) * 2).requires_grad_(), r(3)))
def vmap_with_gradients(x, w):
    return vmap(lambda v: (v * w).sin().sum())(x)


@program((t(4, 3),), (t(4, 3) * 2,))
def vmap_different(x):
    return vmap(lambda v: v + torch.rand(3) + F.dropout(v, 0.5), randomness="different")(x)


@program((t(4, 3),), (t(4, 3) * 2,))
def vmap_same(x):
    return vmap(lambda v: v + torch.rand(3), randomness="same")(x)


@program((r(5, 3),), ((t(5, 3) * 2).requires_grad_(),))
def vmap_chunks(x):
    return vmap(lambda v: v.softmax(0), chunk_size=2)(x)


@program((t(3),), (t(3) * 2,), (r(3),))
def jacobians(x):
    f = lambda v: (v * v.sum()).sin()  # noqa: E731
    return jacfwd(f)(x), jacrev(f)(x)


@program((t(3),), (t(3) * 2,), (r(3),))
def hessian_(x):
    return hessian(lambda v: (v * v.sum()).sin().sum())(x)


@program((t(3), t(3) + 1), (t(3) * 2, t(3)), (r(3), r(3)))
def jvp_(x, d):
    return jvp(lambda v: (v * v.sum()).sin(), (x,), (d,))


@program((t(3), t(3) + 1), (t(3) * 2, t(3)), (r(3), r(3)))
def vjp_(x, d):
    value, back = vjp(lambda v: (v * v.sum()).sin(), x)
    return value, back(d)


@program((t(3), t(3) + 1), (t(3) * 2, t(3)))
def linearize_(x, d):
    value, along = linearize(lambda v: (v * v.sum()).sin(), x)
    return value, along(d)


@program((r(3), r(3)), breaks="torch.func.linearize is called, and gradients are wanted")
def linearize_trained(x, d):
    value, along = linearize(lambda v: (v * v.sum()).sin(), x)
    return value, along(d)


@program((r(4, 3), r(3)), ((t(4, 3) * 2).requires_grad_(), r(3)))
def gradients_of_each(x, w):
    return vmap(grad(lambda v, u: (v * u).tanh().sum(), argnums=1), in_dims=(0, None))(x, w)


# ---- subclasses and modes ----


class Named(Tensor):
    """A tensor that counts the calls it is given to."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.sin else result


@program((t(4).as_subclass(Named),), ((t(4) * 3).as_subclass(Named),))
def torch_function(x):
    return (torch.sin(x) + 1).cos()


@program((r(4),), ((t(4) * 3).requires_grad_(),))
def as_subclass(x):
    return torch.sin(x.as_subclass(Named)).as_subclass(Tensor) + 1


class Scaled(Tensor):
    """A wrapper: numbers times a scale."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers"], self.scale

    @staticmethod
    def __tensor_unflatten__(parts, scale, size, stride):
        return Scaled(parts["numbers"], scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.numbers * a.scale if isinstance(a, Scaled) else a for a in args]
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].numbers.detach(), args[0].scale)
        return func(*plain, **(kwargs or {}))


@program((r(2, 4), Scaled(t(4, 4), 2.0)), (r(2, 4), Scaled(t(4, 4).sin(), 2.0)))
def wrapper(x, w):
    return (x @ w).relu() + 1


class Doubled(TorchFunctionMode):
    """Doubles what sin gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class Halved(TorchDispatchMode):
    """Halves what sin gives."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 0.5 if func is torch.ops.aten.sin.default else result


@program((r(4),), ((t(4) * 3).requires_grad_(),))
def function_mode(x):
    with Doubled():
        y = torch.sin(x) + 1
    return torch.sin(y)


@program((t(4),), (t(4) * 3,))
def dispatch_mode(x):
    with Halved():
        y = torch.sin(x) + 1
    return torch.sin(y)


# ---- state ----


@program((t(4),), (t(4) * 3,))
def inference_mode(x):
    with torch.inference_mode():
        y = x.sin() * 2
    return y + 1, torch.is_inference_mode_enabled(), y.is_inference()


@made((t(4), torch.Generator().manual_seed(3)), (t(4) * 3, torch.Generator().manual_seed(4)))
def generator():
    return lambda x, g: x + torch.rand(4, generator=g) + torch.randn(4, generator=g)


@program((t(4), 3), (t(4), 5))
def manual_seed(x, seed):
    torch.manual_seed(seed)
    return x + torch.rand(4)


@program((t(4),), (t(4) * 2,))
def rng_state(x):
    state = torch.get_rng_state()
    a = torch.rand(4)
    torch.set_rng_state(state)
    return x + a - torch.rand(4)


# ---- Python ----


@program((r(4),), ((t(4) * 3).requires_grad_(),))
def defaultdict(x):
    found = collections.defaultdict(list)
    sums: Any = collections.defaultdict(lambda: torch.zeros(4))
    for n in range(4):
        found[n % 2].append(x * n)
        sums[n % 3] = sums[n % 3] + x * n
    return {k: sum(v) for k, v in found.items()}, dict(sums)


@made((r(2, 4),), ((t(2, 4) * 3).requires_grad_(),))
def parameters_as_keys():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    scale = {p: n + 1 for n, p in enumerate(layer.parameters())}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            seen = {self.layer.weight: 2.0}
            return F.linear(x, layer.weight * scale[layer.weight] * seen[layer.weight], layer.bias * scale[layer.bias])

    return Model()


@made((r(2, 4),), ((t(2, 4) * 3).requires_grad_(),))
def id_of_modules():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            one = nn.Linear(4, 4)
            self.layers = nn.ModuleList([one, nn.Linear(4, 4), one])

        def forward(self, x):
            known: dict[int, Tensor] = {}
            for layer in self.layers:
                if id(layer) not in known:
                    known[id(layer)] = layer(x)
                x = x + known[id(layer)]
            return x, len({id(layer) for layer in self.layers})

    return Model()


KNOWN = {torch.sin, F.relu, math.sqrt, len}


@program((r(4), torch.sin), (r(4), torch.cos))
def functions_in_sets(x, f):
    here = {F.relu, torch.cos}
    return f(x) * (2 if f in KNOWN else 3) * (5 if f in here else 7)


@program((r(4),), ((-t(4) * 3).requires_grad_(),))
def min_and_max(x):
    return max(x[0], x[1], x[2] * 2) * 2, min([x[0], x[3]]).sin(), max(x.sum(), x.mean() + 0.25)


@program((t(4),), (t(4) * 0.5,))
def quantize_per_tensor(x):
    q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    return q.dequantize() + q.int_repr().sum() * q.q_scale()


@program((t(4),), (t(4) * 2,), (t(4) * math.inf,))
def formatted(x):
    if not torch.isfinite(x[1:]).all():
        message = f"bad tensor {x} of shape {tuple(x.shape)} with {x.max()}"
        raise ValueError(message)
    return x * 2


# ---- writes, sides and classes ----


@program(
    *((r(6), torch.tensor(2)), (r(6), torch.tensor(0)), (r(6), torch.tensor(9))),
    breaks="" if COPIES_UNKNOWN_SIZES else "the result of setitem depends on a tensor's values",
)
def written_up_to_a_read_number(x, k):
    y = x.clone()
    y[: k.item()] *= 3
    y[k.item() :] = 1
    return y


@program((r(4),), ((t(4) - 3).requires_grad_(),), (torch.tensor([0.0, 1.0]).requires_grad_(),))
def a_side_with_infinite_gradients(x):
    y = x.sqrt() / x if x.sum() > 0 else x.sin().log()
    return y * 2


@program((r(4), 2.0), (r(4), 3.0))
def a_function_of_autograds_defined_inside(x, s):
    class Through(torch.autograd.Function):
        scale = s

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].cos() * Through.scale * s

    return Through.apply(x).sum() + Through.apply(x * 2)
