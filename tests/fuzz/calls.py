"""Random calls of operators that have a fast form here, on both sides of every clause of its precondition.

    python -m calls --seed 0 --count 1000 [--seconds 600]

compiles them in batches, compares with eager by the accuracy rule, and prints the calls that differ.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65]
SMALL = [1, 1, 2, 3, 4, 5, 6, 7, 9, 11, 14]


@dataclass
class Case:
    """One call: what it is in words, and the function of parameters and inputs."""

    text: str
    call: Callable[[list[Tensor], list[Tensor]], Any]
    parameters: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)


class Draw:
    """Random choices for one case; tensors that it makes are parameters or inputs of the case."""

    def __init__(self, seed: int) -> None:
        self.rng, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.parameters: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.words: list[str] = []

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def size(self, *, empty: float = 0.01) -> int:
        return 0 if self.chance(empty) else self.rng.choice(SIZES)

    def values(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Contiguous numbers; seldom zeros, infinities of neither sign."""
        x = torch.randn(shape, generator=self.generator) * scale
        if not dtype.is_floating_point:
            x = x * 3
        return x.to(dtype)

    def laid(self, x: Tensor) -> Tensor:
        """The same values in another layout."""
        how = self.rng.random()
        if how < 0.5 or x.dim() == 0:
            return x
        if how < 0.6 and x.dim() in (4, 5):
            return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
        if how < 0.7:  # turned
            order = list(range(x.dim()))
            self.rng.shuffle(order)
            back = [order.index(i) for i in range(x.dim())]
            return x.permute(order).contiguous().permute(back)
        if how < 0.8:  # gaps
            d = self.rng.randrange(x.dim())
            wide = torch.zeros([n * 2 if i == d else n for i, n in enumerate(x.shape)], dtype=x.dtype)
            view = wide[tuple(slice(None, None, 2) if i == d else slice(None) for i in range(x.dim()))]
            return view.copy_(x)
        if how < 0.9:  # an offset
            wide = torch.zeros(x.numel() + 3, dtype=x.dtype)
            return wide[3 : 3 + x.numel()].view(x.shape).copy_(x)
        d = self.rng.randrange(x.dim())  # one element seen again and again
        return x.narrow(d, 0, 1).expand(x.shape) if x.shape[d] else x

    def tensor(
        self, *shape: int, dtype: torch.dtype = torch.float32, parameter: float = 0.0, scale: float = 1.0
    ) -> Callable[..., Tensor]:
        """A tensor in some layout; gives how to find it among parameters and inputs."""
        return self.given(self.laid(self.values(*shape, dtype=dtype, scale=scale)), parameter)

    def given(self, x: Tensor, parameter: float = 0.0) -> Callable[..., Tensor]:
        held = self.parameters if self.chance(parameter) else self.inputs
        held.append(x)
        k, is_parameter = len(held) - 1, held is self.parameters
        self.words.append(f"{'p' if is_parameter else 'x'}{k}: {x.dtype} {tuple(x.shape)} {x.stride()}")
        return (lambda ps, xs: ps[k]) if is_parameter else (lambda ps, xs: xs[k])

    def numbers(self, *choices: int, count: int) -> Any:
        """A number for every dimension: one for all, a tuple, a list of one."""
        how = self.rng.random()
        if how < 0.35:
            return self.one(*choices)
        if how < 0.5:
            return [self.one(*choices)]
        return tuple(self.one(*choices) for _ in range(count))


def _behind(d: Draw, shape: torch.Size, dtype: torch.dtype) -> Callable[..., Tensor]:
    """What follows a convolution or product: nothing, an activation, a residual."""
    steps: list[Callable[..., Tensor]] = []
    names = []
    for _ in range(d.one(0, 0, 1, 1, 2, 3)):
        name = d.one(
            "relu",
            "gelu",
            "gelu tanh",
            "silu",
            "tanh",
            "sigmoid",
            "hardswish",
            "hardtanh",
            "leaky",
            "add",
            "mul",
            "scalar",
        )
        names.append(name)
        if name == "add" and 0 not in shape:
            other = d.tensor(*shape, dtype=dtype)
            steps.append(lambda y, ps, xs, other=other: y + other(ps, xs))
        else:
            act: dict[str, Callable[[Tensor], Tensor]] = {
                "relu": F.relu, "gelu": F.gelu, "gelu tanh": lambda y: F.gelu(y, approximate="tanh"), "silu": F.silu, "tanh": torch.tanh,
                "sigmoid": torch.sigmoid, "hardswish": F.hardswish, "hardtanh": lambda y: F.hardtanh(y, -0.5, 0.75),
                "leaky": lambda y: F.leaky_relu(y, 0.2), "add": lambda y: y + y, "mul": lambda y: y * 2, "scalar": lambda y: y + 1,
            }  # fmt: skip
            steps.append(lambda y, ps, xs, f=act[name]: f(y))
    d.words.append(f"then {names}")

    def run(y: Tensor, ps: list[Tensor], xs: list[Tensor]) -> Tensor:
        for step in steps:
            y = step(y, ps, xs)
        return y

    return run


def convolution_as_it_lies(d: Draw) -> Callable[..., Any]:
    """Groups of an image that is channels-last in eager: the library gets the bias in whatever layout it has."""
    x = d.given(d.values(2, 32, 9, 9).contiguous(memory_format=torch.channels_last))
    w, b = d.given(d.values(32, 16, 3, 3, scale=0.2), 1.0), d.tensor(32, parameter=0.8)
    d.words.insert(0, "conv2d groups=2, channels-last")
    return lambda ps, xs: F.conv2d(x(ps, xs), w(ps, xs), b(ps, xs), groups=2)


def convolution(d: Draw) -> Callable[..., Any]:
    n = d.one(1, *[2] * 7, 3)
    transposed = d.chance(0.1)
    dtype = d.one(*[torch.float32] * 10, torch.bfloat16, torch.float16, torch.float64)
    kind = d.one("dense", "dense", "dense", "depthwise", "depthwise", "groups")
    inputs, outputs, groups = d.one(3, 16, 17, 32, 33, *SIZES), d.one(*SIZES), 1
    if kind == "depthwise":
        groups = outputs = inputs = d.one(8, 15, 16, 17, 24, 32, 40, 64)
        outputs *= d.one(1, 1, 1, 2)
    elif kind == "groups":
        groups = d.one(2, 3, 4)
        inputs, outputs = groups * d.one(1, 2, 8), groups * d.one(1, 4, 8)
    window = (
        tuple(d.one(1, 1, 2, 3, 3, 3, 4, 5, 7) for _ in range(n))
        if d.chance(0.3)
        else (d.one(1, 2, 3, 3, 3, 3, 3, 5, 7, 8),) * n
    )
    space = tuple(max(d.one(*SMALL), window[i] if d.chance(0.8) else 1) for i in range(n))
    stride, dilation = d.numbers(1, 1, 1, 2, 2, 3, count=n), d.numbers(1, 1, 1, 1, 2, count=n)
    padding: Any = d.numbers(0, 0, 1, 1, 2, 3, count=n)
    if not transposed and d.chance(0.15):
        padding = "valid"
    elif not transposed and d.chance(0.1):
        padding, stride = "same", 1
    batch = (0 if d.chance(0.04) else d.one(1, 2, 2, 3, 5),)
    x = d.tensor(*(batch if d.chance(0.95) else ()), inputs, *space, dtype=dtype)
    shape = (inputs, outputs // groups, *window) if transposed else (outputs, inputs // groups, *window)
    w = d.tensor(*shape, dtype=dtype, parameter=0.9, scale=0.2)
    b = d.tensor(outputs, dtype=dtype, parameter=0.8) if d.chance(0.6) else None
    name = f"conv{'_transpose' if transposed else ''}{n}d"
    fn = getattr(F, name)
    d.words.insert(0, f"{name} {stride=} {padding=} {dilation=} {groups=}")

    def plain(ps: list[Tensor], xs: list[Tensor]) -> Tensor:
        bias = None if b is None else b(ps, xs)
        if transposed:
            return fn(x(ps, xs), w(ps, xs), bias, stride, padding, 0, groups, dilation)
        return fn(x(ps, xs), w(ps, xs), bias, stride, padding, dilation, groups)

    result = plain(d.parameters, d.inputs)
    norm = None
    if n == 2 and d.chance(0.3) and dtype == torch.float32 and result.dim() == 4:
        statistics = [
            d.given(t, 0.9) for t in (d.values(outputs), d.values(outputs).abs() + 0.5)
        ]  # the operator may write
        parts = [*statistics, *(d.given(d.laid(d.values(outputs)), 0.9) for _ in range(2))]
        some = d.one(4, 4, 2)
        norm = lambda y, ps, xs: F.batch_norm(y, *(p(ps, xs) for p in parts[:some]))  # noqa: E731
        d.words.append("batch norm")
    behind = _behind(d, result.shape, dtype)
    return lambda ps, xs: behind(plain(ps, xs) if norm is None else norm(plain(ps, xs), ps, xs), ps, xs)


def gradients(d: Draw) -> Callable[..., Any]:
    """The gradients of a convolution with windows of one pixel, or with one filter a channel, or almost; or itself, by a weight that is no parameter."""
    dtype = torch.float64 if d.chance(0.1) else torch.float32
    inputs, alone = d.one(1, 3, 8, 16, 17, 40, 65), d.chance(0.5)
    outputs = inputs * d.one(1, 1, 1, 2) if alone else d.one(inputs, 1, 2, 5, 8, 24, 33, 64, 70)
    window = tuple(d.one(1, 2, 3, 5, 8) if alone else d.one(*[1] * 6, 2) for _ in range(2))
    stride, dilation, padding = (
        tuple(d.one(*given) for _ in range(2))
        for given in ((1, 1, 1, 1, 2), (1,) * 9 + (2,), (0, 0, 1) if alone else (0,) * 5 + (1,))
    )
    x = d.tensor(
        0 if d.chance(0.04) else d.one(1, 2, 3, 5),
        inputs,
        *(d.one(1, 2, 4, 7, 8, 9, 16) for _ in range(2)),
        dtype=dtype,
    )
    w = d.tensor(outputs, 1 if alone else inputs, *window, dtype=dtype, scale=0.2)
    how = (stride, padding, dilation, False, (0, 0), inputs if alone else 1)
    transposed = d.chance(0.3) and inputs == outputs
    how = (*how[:3], transposed, *how[4:])
    b = d.tensor(outputs, dtype=dtype) if d.chance(0.4) else None
    d.words.insert(0, f"convolution {how}")
    plain = lambda ps, xs: torch.convolution(x(ps, xs), w(ps, xs), None if b is None else b(ps, xs), *how)  # noqa: E731
    if d.chance(0.3):
        return plain
    g = d.tensor(*plain(d.parameters, d.inputs).shape, dtype=dtype)
    mask = d.one(
        [True, True, True], [True, True, False], [True, False, False], [False, True, False], [False, True, True]
    )
    d.words.append(f"gradients {mask}")

    def call(ps: list[Tensor], xs: list[Tensor]) -> list[Tensor]:
        found = torch.ops.aten.convolution_backward(g(ps, xs), x(ps, xs), w(ps, xs), [outputs], *how, mask)
        return [one for one, wanted in zip(found, mask, strict=True) if wanted]

    return call


def product(d: Draw) -> Callable[..., Any]:
    dtype = d.one(*[torch.float32] * 5, *[torch.bfloat16] * 3, torch.float16, torch.float64)
    name = d.one("linear", "linear", "linear", "addmm", "addmm", "mm", "matmul", "bmm", "baddbmm", "mv", "addmv")
    rows, inner, columns = d.size(), d.size(), d.size()
    inner *= d.one(1, 1, 4)
    d.words.append(name)
    scale = 0.3
    if name == "linear":
        lead = d.one((rows,), (rows,), (2, rows), (d.one(1, 3), 2, rows), ())
        x, w = d.tensor(*lead, inner, dtype=dtype), d.tensor(columns, inner, dtype=dtype, parameter=0.9, scale=scale)
        b = d.tensor(columns, dtype=dtype, parameter=0.6) if d.chance(0.6) else None
        call = lambda ps, xs: F.linear(x(ps, xs), w(ps, xs), None if b is None else b(ps, xs))  # noqa: E731
    elif name in ("addmm", "baddbmm", "addmv"):
        lead = (d.one(1, 2, 3),) if name == "baddbmm" else ()
        tail = () if name == "addmv" else (columns,)
        whole = (*lead, rows, *tail)
        bias = tuple(1 if d.chance(0.2) else n for n in whole)[d.one(0, 0, *range(len(whole))) :]
        b = d.tensor(*bias, dtype=dtype, parameter=0.4)
        x = d.tensor(*lead, rows, inner, dtype=dtype)
        w = d.tensor(*lead, inner, *tail, dtype=dtype, parameter=0.8, scale=scale)
        factors = {"alpha": d.one(1, 1, 1, 2, 0.5, 0), "beta": d.one(1, 1, 1, 2, 0.5, 0)} if d.chance(0.4) else {}
        d.words.append(str(factors))
        call = lambda ps, xs: getattr(torch, name)(b(ps, xs), x(ps, xs), w(ps, xs), **factors)  # noqa: E731
    else:
        lead = (d.one(1, 2, 3),) if name == "bmm" or (name == "matmul" and d.chance(0.5)) else ()
        right = lead if name == "bmm" or d.chance(0.5) else ()
        tail = () if name == "mv" else (columns,)
        x = d.tensor(*lead, rows, inner, dtype=dtype)
        turned = name != "mv" and d.chance(0.4)
        kept = (*right, columns, inner) if turned else (*right, inner, *tail)
        w = d.tensor(*kept, dtype=dtype, parameter=0.8, scale=scale)
        fn = getattr(torch, name)
        call = lambda ps, xs: fn(x(ps, xs), w(ps, xs).transpose(-2, -1) if turned else w(ps, xs))  # noqa: E731
    behind = _behind(d, call(d.parameters, d.inputs).shape, dtype)
    return lambda ps, xs: behind(call(ps, xs), ps, xs)


def narrow(d: Draw) -> Callable[..., Any]:
    """A product by a weight that the program widens, perhaps with a factor for each row, column or number."""
    stored = d.one(torch.int8, torch.uint8, torch.bfloat16, torch.float16, torch.int16)
    dtype = d.one(*[torch.float32] * 6, torch.float64, torch.bfloat16)
    rows, inner, columns = d.size(), d.size(), d.size()
    inner *= d.one(1, 1, 5)
    lead = d.one((rows,), (rows,), (2, rows), ())
    x = d.tensor(*lead, inner, dtype=dtype)
    held = d.values(columns, inner, dtype=torch.float32, scale=20).to(stored)
    w = d.given(d.laid(held) if d.chance(0.3) else held, 0.9)
    factor = d.one((), (columns, 1), (columns, 1), (1, inner), (columns, inner), (1, 1), None)
    s = None if factor is None else d.tensor(*factor, dtype=dtype, parameter=0.8, scale=0.05)
    b = d.tensor(*d.one((columns,), (columns,), (1,), ()), dtype=dtype, parameter=0.6) if d.chance(0.5) else None
    turned, first = d.chance(0.3), d.chance(0.5)

    def call(ps: list[Tensor], xs: list[Tensor]) -> Tensor:
        wide = w(ps, xs).to(dtype)
        if s is not None:
            wide = wide * s(ps, xs) if first else s(ps, xs) * wide
        if turned:
            y = x(ps, xs) @ wide.t()
            return y if b is None else y + b(ps, xs)
        return F.linear(x(ps, xs), wide, None if b is None else b(ps, xs))

    behind = _behind(d, call(d.parameters, d.inputs).shape, dtype)
    return lambda ps, xs: behind(call(ps, xs), ps, xs)


def attention(d: Draw) -> Callable[..., Any]:
    dtype = d.one(*[torch.float32] * 4, torch.bfloat16, torch.bfloat16, torch.float16, torch.float64)
    batch, heads, queries, keys = d.one(1, 2, 3), d.one(1, 2, 4, 6), d.size(), d.size()
    depth = d.one(1, 4, 8, 15, 16, 24, 32, 64)
    width = depth if d.chance(0.8) else d.one(1, 8, 20, 33)
    shared = d.one(1, 1, 1, 2)
    if heads % shared:
        shared = 1
    three = shared == 1 and d.chance(0.15)
    lead, kept = ((batch * heads,), (batch * heads,)) if three else ((batch, heads), (batch, heads // shared))
    q, k, v = (d.tensor(*s, dtype=dtype) for s in ((*lead, queries, depth), (*kept, keys, depth), (*kept, keys, width)))
    options: dict[str, Any] = {}
    if d.chance(0.3):
        options["scale"] = d.one(0.1, 1.0, 2)
    if shared > 1:
        options["enable_gqa"] = True
    mask = None
    if d.chance(0.25):
        options["is_causal"] = True
    elif d.chance(0.6):
        shape = [n if d.chance(0.7) else 1 for n in (*lead, queries, keys)][d.one(0, 0, -2, *([] if three else [-3])) :]
        if d.chance(0.5):
            mask = d.given(d.laid(d.values(*shape) > -0.5))
        else:
            bias = d.values(*shape, dtype=dtype)
            mask = d.given(d.laid(bias.masked_fill(bias > 1, -torch.inf) if d.chance(0.5) else bias))
    written = mask is None and not options and d.chance(0.3)
    d.words.insert(0, f"sdpa {options} {written=} mask={mask is not None}")

    def call(ps: list[Tensor], xs: list[Tensor]) -> Tensor:
        if written:
            return torch.softmax(q(ps, xs) @ k(ps, xs).transpose(-2, -1) / depth**0.5, -1) @ v(ps, xs)
        given = None if mask is None else mask(ps, xs)
        return F.scaled_dot_product_attention(q(ps, xs), k(ps, xs), v(ps, xs), given, **options)

    return call


def pool(d: Draw) -> Callable[..., Any]:
    n = d.one(1, 2, 2, 2, 3)
    dtype = d.one(*[torch.float32] * 5, torch.bfloat16, torch.float16, torch.float64)
    channels, batch = d.one(1, 3, 8, 16, 17, 33), d.one(1, 2, 3)
    kind = d.one("max", "max", "max", "avg", "avg", "adaptive_avg", "adaptive_max", "lp")
    n = min(n, 2) if kind == "lp" else n
    kernel = d.numbers(1, 2, 3, 3, 4, count=n)
    biggest = kernel if isinstance(kernel, int) else max(kernel)
    space = tuple(d.one(*SMALL) + biggest for _ in range(n))
    x = d.tensor(*((batch,) if d.chance(0.9) else ()), channels, *space, dtype=dtype)
    stride = d.one(None, d.numbers(1, 2, 3, count=n))
    smallest = kernel if isinstance(kernel, int) else min(kernel)
    padding = d.one(0, 0, smallest // 2, [smallest // 2])
    ceil = d.chance(0.3)
    before = None
    if (
        n == 2 and dtype == torch.float32 and d.chance(0.8) and len(d.inputs[0].shape) == 4
    ):  # after a convolution: channels-last
        before = d.tensor(16, channels, 1, 1, parameter=1)
    if kind == "max":
        dilation, indices = d.numbers(1, 1, 2, 3, count=n), d.chance(0.2)
        call = lambda y: getattr(F, f"max_pool{n}d")(y, kernel, stride, padding, dilation, ceil, indices)  # noqa: E731
        text = f"max_pool{n}d {kernel=} {stride=} {padding=} {dilation=} {ceil=} {indices=}"
    elif kind == "avg":
        counted, divisor = d.chance(0.5), d.one(None, None, 3) if n > 1 else None
        extra = () if n == 1 else (divisor,)
        call = lambda y: getattr(F, f"avg_pool{n}d")(y, kernel, stride, padding, ceil, counted, *extra)  # noqa: E731
        text = f"avg_pool{n}d {kernel=} {stride=} {padding=} {ceil=} {counted=} {divisor=}"
    elif kind == "lp":
        call = lambda y: getattr(F, f"lp_pool{n}d")(y.abs() + 0.1, 2.0, kernel, stride, ceil)  # noqa: E731
        text = f"lp_pool{n}d {kernel=} {stride=} {ceil=}"
    else:
        size = d.one(1, d.one(2, 3, 5), tuple(d.one(1, 2, 4, 7) for _ in range(n)))
        call = lambda y: getattr(F, f"{kind}_pool{n}d")(y, size)  # noqa: E731
        text = f"{kind}_pool{n}d {size=}"
    d.words.insert(0, text)
    return lambda ps, xs: call(x(ps, xs) if before is None else F.conv2d(x(ps, xs), before(ps, xs)))


def places(d: Draw) -> Callable[..., Any]:
    dtype = d.one(*[torch.float32] * 4, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
    rank = d.one(1, 2, 2, 3)
    shape = [d.one(1, 2, 3, 5, 8, 17, 33) for _ in range(rank)]
    dim = d.rng.randrange(-rank, rank)
    count = 0 if d.chance(0.03) else d.one(1, 3, 8, 20)
    kind = d.one("index_add", "index_add", "index_copy", "index_select", "scatter", "scatter_add", "scatter_reduce", "gather", "index_put",
                 "embedding", "take_along_dim", "masked_scatter", "bag")  # fmt: skip
    whole = [count if i == dim % rank else n for i, n in enumerate(shape)]
    index = torch.randint(0, shape[dim], (count,), generator=d.generator)
    wide = torch.randint(0, shape[dim], whole, generator=d.generator)
    if kind in ("index_add", "index_put") and d.chance(0.3):
        index = index.int()
    if kind == "index_copy":
        index = torch.randperm(shape[dim], generator=d.generator)[: min(count, shape[dim])]
        whole[dim % rank] = len(index)
    x, source = d.tensor(*shape, dtype=dtype), d.tensor(*whole, dtype=dtype)
    i, j = d.given(d.laid(index)), d.given(d.laid(wide))
    d.words.insert(0, f"{kind} {dim=}")
    if kind == "index_add":
        alpha = d.one(1, 1, 2, 0.5) if dtype.is_floating_point else d.one(1, 3)
        d.words.append(f"{alpha=}")
        return lambda ps, xs: x(ps, xs).index_add(dim, i(ps, xs), source(ps, xs), alpha=alpha)
    if kind == "index_copy":
        return lambda ps, xs: x(ps, xs).index_copy(dim, i(ps, xs), source(ps, xs))
    if kind == "index_select":
        return lambda ps, xs: x(ps, xs).index_select(dim, i(ps, xs))
    if kind == "scatter":  # places that are met twice have no order
        return lambda ps, xs: (
            x(ps, xs).scatter(dim, j(ps, xs), 2) if dtype.is_floating_point else x(ps, xs).scatter(dim, j(ps, xs), 3)
        )
    if kind == "scatter_add":
        return lambda ps, xs: x(ps, xs).scatter_add(dim, j(ps, xs), source(ps, xs))
    if kind == "scatter_reduce":
        how, include = d.one("sum", "prod", "mean", "amax", "amin"), d.chance(0.5)
        d.words.append(f"{how} {include=}")
        return lambda ps, xs: x(ps, xs).scatter_reduce(dim, j(ps, xs), source(ps, xs), how, include_self=include)
    if kind in ("gather", "take_along_dim"):
        return lambda ps, xs: (
            getattr(torch, kind)(x(ps, xs), dim, j(ps, xs))
            if kind == "gather"
            else torch.take_along_dim(x(ps, xs), j(ps, xs), dim)
        )
    if kind == "index_put":
        rows = torch.randint(-shape[0], shape[0], (count,), generator=d.generator)
        r = d.given(d.laid(rows))
        value, accumulate = d.tensor(count, *shape[1:], dtype=dtype), True
        return lambda ps, xs: x(ps, xs).index_put((r(ps, xs),), value(ps, xs), accumulate=accumulate)
    if kind == "masked_scatter":
        mask = d.given(d.laid(d.values(*shape) > 0))
        return lambda ps, xs: x(ps, xs).masked_fill(mask(ps, xs), 2)
    table = d.tensor(9, d.one(1, 4, 16, 33), parameter=0.7)
    if kind == "bag":
        mode = d.one("sum", "mean", "max")
        ids = d.given(torch.randint(0, 9, (d.one(1, 3), d.one(1, 4)), generator=d.generator))
        return lambda ps, xs: F.embedding_bag(ids(ps, xs), table(ps, xs), mode=mode)
    ids = d.given(d.laid(torch.randint(0, 9, tuple(whole), generator=d.generator)))
    padding = d.one(None, 0, -1)
    return lambda ps, xs: F.embedding(ids(ps, xs), table(ps, xs), padding_idx=padding)


def rows(d: Draw) -> Callable[..., Any]:
    """Norms and reductions, seldom with values that are not finite."""
    dtype = d.one(*[torch.float32] * 4, torch.bfloat16, torch.float16, torch.float64)
    n, channels, space = d.one(1, 2, 5), d.one(1, 2, 6, 16, 33, 64), d.one(1, 4, 15, 130)
    given = d.values(n, channels, space, dtype=dtype)
    special = d.chance(0.25)
    if special and given.numel():
        flat = given.view(-1)
        for _ in range(d.one(1, 2, 5)):
            flat[d.rng.randrange(len(flat))] = d.one(torch.nan, torch.inf, -torch.inf, 0.0, -0.0)
    x = d.given(d.laid(given))
    kind = d.one("layer_norm", "group_norm", "batch_norm", "instance_norm", "softmax", "log_softmax", "max", "argmax", "argmin", "amin",
                 "cumsum", "cummax", "logsumexp", "sum", "prod", "std", "norm", "clamp", "relu", "topk", "sort", "median", "softmin", "logcumsumexp")  # fmt: skip
    dim = d.rng.randrange(-3, 3)
    d.words.insert(0, f"{kind} {dim=} {special=}")
    if kind in ("group_norm", "batch_norm", "instance_norm"):
        w, b = (d.tensor(channels, dtype=dtype, parameter=0.7) if d.chance(0.7) else None for _ in range(2))
        pick = lambda ps, xs: (None if w is None else w(ps, xs), None if b is None else b(ps, xs))  # noqa: E731
        if kind == "group_norm":
            groups = d.one(*(g for g in (1, 2, 3, 4, 16) if channels % g == 0))
            return lambda ps, xs: F.group_norm(x(ps, xs), groups, *pick(ps, xs))
        if kind == "batch_norm":
            m, v = d.tensor(channels, dtype=dtype), d.given(d.values(channels, dtype=dtype).abs() + 0.5)
            return lambda ps, xs: F.batch_norm(x(ps, xs), m(ps, xs), v(ps, xs), *pick(ps, xs))
        return lambda ps, xs: F.instance_norm(x(ps, xs), None, None, *pick(ps, xs)) if space > 1 else x(ps, xs)
    if kind == "layer_norm":
        w, b = (d.tensor(space, dtype=dtype, parameter=0.7) if d.chance(0.7) else None for _ in range(2))
        return lambda ps, xs: F.layer_norm(
            x(ps, xs), (space,), None if w is None else w(ps, xs), None if b is None else b(ps, xs)
        )
    if kind == "clamp":
        return lambda ps, xs: x(ps, xs).clamp(-0.5, 0.5)
    if kind == "relu":
        return lambda ps, xs: (F.relu(x(ps, xs)), F.relu6(x(ps, xs)), F.hardswish(x(ps, xs)))
    if kind == "topk":
        return lambda ps, xs: x(ps, xs).topk(1, dim)[0]
    if kind == "sort":
        return lambda ps, xs: x(ps, xs).sort(dim)[0]
    if kind in ("softmax", "log_softmax", "softmin"):
        return lambda ps, xs: getattr(F, kind)(x(ps, xs), dim)
    if kind in ("max", "median", "cummax"):
        return lambda ps, xs: getattr(x(ps, xs), kind)(dim)[0]
    return lambda ps, xs: getattr(x(ps, xs), kind)(dim=dim)


KINDS = [
    convolution,
    convolution,
    convolution,
    gradients,
    product,
    product,
    product,
    attention,
    attention,
    pool,
    places,
    rows,
    narrow,
]


def random_case(seed: int, kinds: list[Callable[..., Any]] | None = None) -> Case | None:
    """The call of this seed, or None where eager does not take it."""
    d = Draw(seed)
    make = d.one(*(kinds or KINDS))
    try:
        call = make(d)
        call(d.parameters, d.inputs)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return None
    return Case(f"seed {seed}: {'; '.join(d.words)}", call, d.parameters, d.inputs)


class Batch(nn.Module):
    """Several calls in one program."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.calls = [case.call for case in cases]
        self.held = nn.ModuleList()
        for case in cases:
            self.held.append(nn.ParameterList([nn.Parameter(p, requires_grad=False) for p in case.parameters]))
        self.counts = [len(case.inputs) for case in cases]

    def forward(self, *xs: Tensor) -> list[Any]:
        """The inputs of all cases, one after another -> their results."""
        found, at = [], 0
        for call, held, count in zip(self.calls, self.held, self.counts, strict=True):
            found.append(call(list(held), list(xs[at : at + count])))
            at += count
        return found


@torch.no_grad()
def differing(cases: list[Case], options: dict[str, Any], dynamic: bool | None = None) -> list[tuple[Case, str]]:
    """The cases whose compiled results differ from eager's, with what differs. Together first, then, where they fail, by halves."""
    import intarsia
    from intarsia.testing import Undecided, check

    intarsia.reset()
    batch = Batch(cases).eval()
    inputs = [x for case in cases for x in case.inputs]
    try:
        check(
            batch, inputs, compiled=intarsia.compile(batch, fullgraph=True, dynamic=dynamic, options=options), calls=1
        )
        return []
    except Undecided:
        return []
    except Exception as error:
        if len(cases) == 1:
            return [(cases[0], f"{type(error).__name__}: {str(error)[:600]}")]
    half = len(cases) // 2
    return differing(cases[:half], options, dynamic) + differing(cases[half:], options, dynamic)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--kind", action="append")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [k for k in KINDS if k.__name__ in args.kind] if args.kind else None
    start, done, wrong = time.monotonic(), 0, 0
    for first in range(args.seed, args.seed + args.count, args.together):
        if time.monotonic() - start > args.seconds:
            break
        cases = [c for s in range(first, first + args.together) if (c := random_case(s, kinds)) is not None]
        options: dict[str, Any] = {"verify_each": True, "winograd": first // args.together % 2 == 0}
        if first // args.together % 3 == 2:
            options["packing"] = 0  # narrow weights stay narrow
        for case, what in differing(cases, options, True if first // args.together % 5 == 4 else None):
            wrong += 1
            print(f"--- {case.text}\n{what}\n", flush=True)
        done += len(cases)
    print(f"{done} calls, {wrong} differ, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
