"""Every family of decomposition rules against eager: dtypes, promotion, special values, sizes 0 and 1, broadcasting."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor

from intarsia.frontend.errors import Unsupported
from intarsia.ir.interpreter.run import InterpreterError
from tests.opdb.harness import try_interpreter

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.uint8, torch.int8, torch.int32, torch.int64)
ALL = (*FLOATS, *INTS, torch.bool)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, 20.5, -20.5, float("inf"), float("-inf"), float("nan")]


def vector(dtype: torch.dtype, size: int = 14, turn: int = 0) -> Tensor:
    """Special values of the dtype, the first one `turn` places later."""
    if dtype.is_floating_point:
        values = [SPECIAL[(i + turn) % len(SPECIAL)] for i in range(size)]
    elif dtype == torch.bool:
        values = [bool((i + turn) % 2) for i in range(size)]
    else:
        values = [(i + turn) % 7 - (3 if dtype.is_signed else 0) for i in range(size)]
    return torch.tensor(values, dtype=dtype)


def matrix(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random values without special ones."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    high = 2 if dtype == torch.bool else 5
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def same(expected: Any, found: Any, zeros: bool = False) -> None:
    """Dtypes, shapes, values; with `zeros` also their signs."""
    a, b = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if not isinstance(x, Tensor):
            assert x == y
            continue
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.is_floating_point:
            near = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[x.dtype]
            torch.testing.assert_close(y, x, rtol=near, atol=near, equal_nan=True)
            if zeros:
                known = ~x.isnan()
                assert torch.equal(x.signbit()[known], y.signbit()[known]), (x, y)
        else:
            assert torch.equal(x, y), (x, y)


RAISED = (RuntimeError, TypeError, IndexError, NotImplementedError, ValueError, AttributeError)


def compare(fn: Callable[..., Any], *args: Any, zeros: bool = False) -> None:
    """Eager and the decomposed graph; where eager raises there is nothing to compare."""
    try:
        expected = fn(*args)
    except RAISED:
        return
    try:
        found = in_interpreter(fn, *args)
    except Unsupported:  # such a call runs in eager, visibly
        return
    same(expected, found, zeros)


def compare_all(fn: Callable[..., Any], cases: Iterable[tuple[Any, ...]], zeros: bool = False) -> None:
    """`compare` for many arguments in one graph, which takes a fraction of the time; one by one where one of them is not supported."""
    kept = []
    for args in cases:
        with contextlib.suppress(*RAISED):
            kept.append((args, fn(*args)))
    tensors = [[a for a in args if isinstance(a, Tensor)] for args, _ in kept]

    def every(*given: Tensor) -> list[Any]:
        rest = iter(given)
        return [fn(*(next(rest) if isinstance(a, Tensor) else a for a in args)) for args, _ in kept]

    try:
        found = in_interpreter(every, *itertools.chain(*tensors))
    except Unsupported:
        for args, _ in kept:
            compare(fn, *args, zeros=zeros)
        return
    for (_, expected), values in zip(kept, found, strict=True):
        same(expected, values, zeros)


def in_interpreter(fn: Callable[..., Any], *args: Any) -> Any:
    """The results of the decomposed graph."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return try_interpreter(fn, args, {})[0]


UNARY: dict[str, Callable[[Tensor], Any]] = {
    **{
        name: getattr(torch, name)
        for name in ["neg", "abs", "sign", "sgn", "bitwise_not", "floor", "ceil", "trunc", "round", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid", "erf", "erfc", "lgamma", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "reciprocal", "square", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not", "relu", "frac", "nan_to_num", "positive", "erfinv", "deg2rad", "digamma", "sinc", "logit"]
    },
    **{
        name: getattr(F, name)
        for name in ["silu", "relu6", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "selu", "celu", "mish", "softplus", "logsigmoid", "tanhshrink", "softsign", "hardshrink", "softshrink"]
    },
    "gelu": lambda x: F.gelu(x.clamp(max=50)),  # eager's float32 kernel gives nan for inf, float64's gives inf
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.5, -3.0),
    "leaky_relu steep": lambda x: F.leaky_relu(x, -2.0),
    "elu scaled": lambda x: F.elu(x, 0.7),
    "celu scaled": lambda x: F.celu(x, 0.7),
    "softplus beta": lambda x: F.softplus(x, 2.0, 5.0),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp fractions": lambda x: x.clamp(-0.7, 1.3),
    "clamp crossed": lambda x: x.clamp(2, -1),
    # Elsewhere than its documentation says, torch 2.11 leaves the numbers as they are.
    **({"clamp nan": lambda x: x.clamp(max=float("nan"))} if torch.__version__ >= (2, 13) else {}),
    "clamp_min": lambda x: x.clamp_min(1),
    "clamp_max": lambda x: x.clamp_max(1),
    **{f"pow {e}": lambda x, e=e: x**e for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 2.0, 3.0, 4, True)},
    **{f"base {e}": lambda x, e=e: e**x for e in (0, 1, 2, -2, 0.5, 2.5)},
    **{f"to {d}": lambda x, d=d: x.to(d) for d in ALL},
    "rsub": lambda x: 3 - x,
    "rsub fraction": lambda x: 0.5 - x,
    "rdiv": lambda x: 1 / x,
    "full_like": lambda x: torch.full_like(x, 3),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2),
    "where number": lambda x: torch.where(x > 0, x, 1),
    "where fraction": lambda x: torch.where(x > 0, x, 1.5),
    "where numbers": lambda x: torch.where(x > 0, 2, 1),
    "where mixed numbers": lambda x: torch.where(x > 0, 2, 1.5),
    "logical_and number": lambda x: torch.logical_and(x, x > 1),
    "round digits": lambda x: torch.round(x, decimals=1),
    "heaviside": lambda x: torch.heaviside(x, x.new_ones(())),
    "clone": lambda x: x.clone(),
}  # fmt: skip
SIGNED_ZERO = {"neg", "abs", "sign", "floor", "ceil", "trunc", "round", "sin", "tan", "atan", "asin", "sinh", "tanh",
               "asinh", "sqrt", "clone", "positive", "leaky_relu", "rsub", "frac"}  # fmt: skip


# torch's fake result of these has another dtype than the operator's own, so the library call does not give its type.
FAKE_DTYPE = pytest.mark.xfail(strict=True, raises=InterpreterError, reason="the fake result's dtype is not eager's")


def known(names: Iterable[str]) -> list[Any]:
    """Test names, with a mark on those that torch's metadata makes fail."""
    return [pytest.param(n, marks=FAKE_DTYPE) if n in ("pow True", "ldexp") else n for n in names]


@pytest.mark.parametrize("name", known(UNARY))
def test_unary(name: str) -> None:
    vectors = [vector(dtype) for dtype in ALL if (dtype, name) != (torch.int64, "lgamma")]
    compare_all(UNARY[name], [(x,) for x in vectors], zeros=name in SIGNED_ZERO)
    compare_all(UNARY[name], [(part,) for x in vectors for part in (x[:0], x[2])])


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(torch, name)
    for name in ["add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "pow", "rsub", "logaddexp", "logaddexp2", "xlogy", "nextafter", "ldexp", "float_power"]
} | {
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "add fraction": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub alpha": lambda x, y: torch.rsub(x, y, alpha=3),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp tensors": lambda x, y: x.clamp(y, y + 1),
    "clamp_min tensor": lambda x, y: x.clamp_min(y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp far": lambda x, y: torch.lerp(x, y, 0.8),
    "lerp tensor": lambda x, y: torch.lerp(x, y, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "prelu": lambda x, y: F.prelu(x, y[:1] if y.ndim else y),
    "masked_fill tensor": lambda x, y: x.masked_fill(y > 0, y.reshape(-1)[0]),
}  # fmt: skip
PAIRS = [(a, b) for a, b in itertools.product(ALL, ALL) if a == b or torch.float32 in (a, b) or torch.int32 in (a, b)
         or (a, b) in ((torch.uint8, torch.int8), (torch.float16, torch.bfloat16), (torch.bool, torch.uint8))]  # fmt: skip


@pytest.mark.parametrize("name", known(BINARY))
def test_binary(name: str) -> None:
    cases = []
    for a, b in PAIRS:
        x, y = vector(a), vector(b, turn=3)
        cases += [
            (x, y),
            (x[:3].reshape(3, 1), y[2]),
        ]  # a tensor without dimensions does not raise the dtype within its kind
    x, y = vector(torch.float32), vector(torch.float32, turn=3)
    compare_all(BINARY[name], [*cases, (x[:12].reshape(3, 4), y[:4]), (x[2], y[:0])])


@pytest.mark.parametrize("name", BINARY)
def test_binary_with_numbers(name: str) -> None:
    cases: list[tuple[Any, Any]] = []
    for dtype, number in itertools.product(ALL, (2, -3, 300, 0.5, -0.0, True, float("nan"))):
        if (name, dtype, number) == ("pow", torch.bool, True):
            continue  # test_unary has it, expected to fail
        x = vector(dtype)
        cases += [(x, number), (number, x)]
    compare_all(BINARY[name], cases)


def _shapes() -> dict[str, Callable[[Tensor], Any]]:
    """Functions of a tensor of shape [4, 6, 5]."""
    return {
        "view": lambda x: x.view(24, 5),
        "reshape minus one": lambda x: x.transpose(0, 1).reshape(-1, 5),
        "permute": lambda x: x.permute(2, 0, 1) + 0,
        "transpose": lambda x: x.transpose(-1, 0).contiguous(),
        "expand": lambda x: x[:1].expand(7, 6, 5),
        "squeeze": lambda x: x[:1].squeeze(),
        "squeeze dims": lambda x: x[:1, :, :1].squeeze((0, 2)),
        "unsqueeze": lambda x: x.unsqueeze(-2),
        "slice": lambda x: x[1:-1, ::2, -3:],
        "slice beyond": lambda x: (x[2:100], x[-100:2], x[5:2], x[:, 4:-4]),
        "slice steps": lambda x: x[:, 1:6:3],
        "select": lambda x: (x[-1], x[:, 2], x.select(2, -5)),
        "split": lambda x: x.split(4, 1),
        "split sizes": lambda x: x.split([1, 0, 5], 1),
        "chunk": lambda x: x.chunk(4, 1),
        "tensor_split": lambda x: (x.tensor_split(4, 1), x.tensor_split([1, 3], 2)),
        "unbind": lambda x: x.unbind(1),
        "flip": lambda x: (x.flip(0, -1), x.fliplr()),
        "roll": lambda x: (x.roll(2, 1), x.roll((-1, 8), (0, 2)), x.roll(7)),
        "repeat": lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2), x.repeat(0, 1, 1)),
        "cat": lambda x: torch.cat([x, x[:, :2], x[:, :0]], 1),
        "cat old empty": lambda x: torch.cat([x, x.new_empty(0)], -1),
        "cat dtypes": lambda x: torch.cat([x, torch.ones(1, 6, 5), torch.ones(1, 6, 5, dtype=torch.int32)]),
        "stack": lambda x: torch.stack([x, x + x], -1),
        "pad": lambda x: (F.pad(x, (1, 2, 0, 3)), F.pad(x, (-1, 2)), F.pad(x, (1, -1), value=3)),
        "pad others": lambda x: (F.pad(x, (1, 2), mode="reflect"), F.pad(x, (1, 2), mode="replicate"), F.pad(x, (1, 2), mode="circular")),
        "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-2, 0, 1)),
        "movedim": lambda x: x.movedim(0, -1).sum(0),
        "unfold": lambda x: x.unfold(1, 3, 2),
        "as_strided": lambda x: x.as_strided((3, 2), (2, 1), 1),
        "tril": lambda x: (x.tril(), x.tril(2), x.tril(-1)),
        "triu": lambda x: (x.triu(), x.triu(2), x.triu(-1)),
        "eye": lambda x: x[0, :5, :5] + torch.eye(5, dtype=x.dtype),
        "arange": lambda x: (torch.arange(5) + x, torch.arange(1, 11, 2), torch.arange(0, 1, 0.3), torch.arange(5, 0, -2)),
        "linspace": lambda x: (torch.linspace(0, 1, 5) + x),
        "full": lambda x: (x.new_full((2, 3), 2), x.new_zeros(2), torch.ones_like(x), torch.full((2,), 3), torch.scalar_tensor(2.0)),
        "slice_scatter": lambda x: (torch.slice_scatter(x, x[:, :2] + x[:, :2], 1, 3, 5), torch.slice_scatter(x, x[:, ::2], 1, 0, 6, 2)),
        "select_scatter": lambda x: torch.select_scatter(x, x[:, 0], 1, -1),
        "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, 0, 0].new_ones(5, 4), 0, 0, 1),
        "written": _written,
        "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
        "pixel_shuffle": lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[:, :, :4], 2)),
        "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
        "upsample nearest": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x[None], size=(12, 15)), F.interpolate(x[None], size=(7, 3))),
        "rot90": lambda x: x.rot90(1, (1, 2)),
        "channel_shuffle": lambda x: F.channel_shuffle(x[None], 2),
        "unflatten": lambda x: x.unflatten(1, (2, 3)).flatten(0, 1),
        "block_diag": lambda x: torch.block_diag(x[0], x[1]),
        "tile": lambda x: x.tile((2, 2)),
    }  # fmt: skip


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3, :, 0] = y[0, :, 1:2].sum(-1).to(y.dtype)
    y[:, 2].zero_()
    y[:, :, -1] += y[:, :, 0]
    y[:, 1::2] = 1
    return y


@pytest.mark.parametrize("name", _shapes())
def test_shape(name: str) -> None:
    compare_all(
        _shapes()[name], [(matrix(d, 4, 6, 5),) for d in (torch.float32, torch.bfloat16, torch.int32, torch.bool)]
    )


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum(0, dtype=torch.float64)),
    "mean": lambda x: (x.mean(), x.mean(1), x.mean((0, -1), keepdim=True)),
    "int mean": lambda x: x.mean(1, dtype=torch.float32),
    "prod": lambda x: (x.prod(), x.prod(1), x.prod(-1, keepdim=True)),
    "amax": lambda x: (x.amax(), x.amax(1), x.amin((0, -1), keepdim=True), x.aminmax()),
    "max": lambda x: (x.max(), x.min(), x.max(1), x.min(-1, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True)),
    "argmax keepdim": lambda x: x.argmax(keepdim=True),
    "any": lambda x: (x.any(), x.all(), x.any(1), x.all((0, 2)), x.any(-1, keepdim=True)),
    "var": lambda x: (x.var(), x.std(1), x.var((0, 1), correction=0), x.std(-1, correction=2, keepdim=True)),
    "var none left": lambda x: x.var(1, correction=6),
    "var_mean": lambda x: (torch.var_mean(x, 1), torch.std_mean(x, (0, 2), keepdim=True)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)),
    "norm": lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, -1, 0.5, float("inf"), float("-inf"))],
    "old norm": lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1), x.norm(3, 1, keepdim=True)),
    "cumsum": lambda x: (x.cumsum(1), x.cumsum(-1, dtype=torch.float64)),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: (x.cummax(1), x.cummin(0)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "softmax": lambda x: (x.softmax(1), x.softmax(-1), x.log_softmax(0), x.softmax(1, dtype=torch.float64)),
    "softmin": lambda x: F.softmin(x, 1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "nansum": lambda x: (x.nansum(), x.nansum(1), x.nanmean(1)),
    "median": lambda x: (x.median(), x.median(1)),
    "layer_norm": lambda x: (F.layer_norm(x, (5,)), F.layer_norm(x, (6, 5), x[0], x[1], 1e-3), F.layer_norm(x, (5,), x[0, 0])),
    "rms_norm": lambda x: (F.rms_norm(x, (5,)), F.rms_norm(x, (6, 5), x[0], 1e-3)),
    "group_norm": lambda x: (F.group_norm(x, 2), F.group_norm(x, 3, x[0, :, 0], x[1, :, 0]), F.group_norm(x, 2, None, x[1, :, 0])),
    "batch_norm": lambda x: (F.batch_norm(x, x[0, :, 0], x[0, :, 1] ** 2), F.batch_norm(x, None, None, x[1, :, 0], x[0, :, 0], True)),
    "instance_norm": lambda x: F.instance_norm(x),
    "normalize": lambda x: (F.normalize(x), F.normalize(x, p=1.0, dim=-1)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1, 1),
    "glu": lambda x: F.glu(x, 1),
    "renorm": lambda x: x.renorm(2, 0, 0.5),
    "diff": lambda x: x.diff(dim=1),
    "trace": lambda x: x[0].trace(),
    "avg_pool": lambda x: (F.avg_pool1d(x, 2), F.avg_pool2d(x, 2, padding=1), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 5))),
    "max_pool": lambda x: (F.max_pool2d(x, 2), F.max_pool1d(x, 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    shapes = [(4, 6, 5)] if name == "var none left" else [(4, 6, 5), (4, 6, 1), (4, 1, 5)]
    compare_all(REDUCTIONS[name], ((matrix(dtype, *shape),) for dtype, shape in itertools.product(ALL, shapes)))


SINGLE = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "var",
    "std",
    "logsumexp",
    "cumsum",
    "cumprod",
    "softmax",
    "log_softmax",
]


@pytest.mark.parametrize("name", SINGLE)
def test_reduction_of_special_values_of_nothing_and_of_a_scalar(name: str) -> None:
    for dtype in ALL:
        given = (
            vector(dtype),
            vector(dtype)[:11],
            vector(dtype)[2],
            vector(dtype)[:0].reshape(0, 3),
            matrix(dtype, 3, 0),
        )
        compare_all(lambda x, *d: getattr(x, name)(*d), itertools.product(given, (0, -1)))
        compare_all(lambda x: getattr(x, name)(), ((x,) for x in given))


def test_softmax_of_infinities() -> None:
    low, inf, nan = float("-inf"), float("inf"), float("nan")
    x = torch.tensor([[1.0, low, 2.0], [low, low, low], [inf, 1.0, 2.0], [nan, 1.0, 2.0], [3e38, -3e38, 0.0]])
    for fn in (torch.softmax, torch.log_softmax, torch.logsumexp):
        for dtype in FLOATS:
            compare(lambda x, fn=fn: fn(x, 1), x.to(dtype))


def _index_cases() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    x = matrix(torch.float32, 4, 6, 5)
    i, j = torch.tensor([3, 0, -1, 2]), torch.tensor([[1], [-6]])
    yield "embedding", lambda i, w: F.embedding(i, w), (torch.tensor([[0, 3], [1, 1]]), x[0])
    yield "embedding padding", lambda i, w: F.embedding(i, w, padding_idx=1), (torch.tensor([[0, 3], [1, 1]]), x[0])
    yield "index_select", lambda x, i: (x.index_select(1, i), x.index_select(-1, i)), (x, torch.tensor([1, 1, 0]))
    yield "index_select int32", lambda x, i: x.index_select(1, i), (x, torch.tensor([1, 1, 0], dtype=torch.int32))
    yield "index one", lambda x, i: (x[i], x[:, i], x[..., i]), (x, i)
    yield "index two", lambda x, i, j: (x[i, j], x[:, j, i]), (x, i, j)
    yield "index apart", lambda x, i, j: x[i, :, j], (x, i, j)
    yield "index three", lambda x, i, j: x[i, j, i], (x, i, j)
    yield "index none", lambda x, i: x[None, i, None], (x, i)
    yield "index empty", lambda x, i: x[i], (x, torch.zeros(0, dtype=torch.int64))
    yield "index uint8", lambda x, i: x[i], (x, torch.tensor([1, 0, 1, 1], dtype=torch.uint8))
    yield "index mask", lambda x: x[x > 0], (x,)
    yield "gather", lambda x, i: (x.gather(1, i), x.gather(-1, i)), (x, torch.tensor([[[0, 1], [4, 2]]]))
    yield "take_along_dim", lambda x, i: x.take_along_dim(i, 1), (x, torch.tensor([[[0], [3]]]))
    yield "take", lambda x, i: x.take(i), (x, torch.tensor([3, 100, -1]))
    yield "one_hot", lambda i: (F.one_hot(i, 7), F.one_hot(i)), (torch.tensor([[0, 3], [1, 1]]),)
    yield "index_put", lambda x, i: x.index_put((i,), x.new_ones(())), (x, torch.tensor([1, 3]))
    yield "index_add", lambda x, i: x.index_add(0, i, x[:2]), (x, torch.tensor([1, 1]))
    yield "scatter", lambda x, i: (x.scatter(1, i, 2.0), x.scatter_add(1, i, x)), (x, torch.tensor([[[0, 1], [4, 2]]]))
    yield "sort", lambda x: (x.sort(1), x.topk(2, 1), x.argsort(0)), (x,)
    yield "searchsorted", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), (x,)


@pytest.mark.parametrize(("name", "fn", "args"), _index_cases(), ids=lambda v: v if isinstance(v, str) else "")
def test_index(name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    compare(fn, *args)


SEVERAL_ROUNDINGS = ("bce logits", "soft margin")  # eager rounds between their operations


def _losses(reduction: str) -> dict[str, Callable[..., Any]]:
    return {
        "mse": lambda x, y: F.mse_loss(x, y, reduction=reduction),
        "l1": lambda x, y: F.l1_loss(x, y, reduction=reduction),
        "smooth_l1": lambda x, y: (F.smooth_l1_loss(x, y, reduction=reduction), F.smooth_l1_loss(x, y, reduction=reduction, beta=0.0)),
        "huber": lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=0.7),
        "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction=reduction),
        "bce certain": lambda x, y: F.binary_cross_entropy((x > 0).to(x.dtype), y.sigmoid(), reduction=reduction),
        "bce logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), x * x, reduction=reduction, pos_weight=y * y),
        "kl": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction=reduction),
        "soft targets": lambda x, y: F.cross_entropy(x, y.softmax(1), reduction=reduction, label_smoothing=0.1),
        "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign(), reduction=reduction),
        "margin": lambda x, y: F.margin_ranking_loss(x, y, y.sign(), reduction=reduction),
        "poisson": lambda x, y: F.poisson_nll_loss(x, y, reduction=reduction),
        "soft margin": lambda x, y: F.soft_margin_loss(x, y.sign(), reduction=reduction),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "reduction"), itertools.product(_losses("sum"), ("none", "sum", "mean")))
def test_loss(name: str, reduction: str) -> None:
    cases = [(matrix(torch.float32, 0, 5), matrix(torch.float32, 0, 5))]
    for dtype in FLOATS:
        args = matrix(dtype, 6, 5), matrix(dtype, 5, 6).t()
        if name in SEVERAL_ROUNDINGS and dtype.itemsize == 2:
            exact = _losses(reduction)[name](*(a.double() for a in args))
            same(exact.to(dtype), try_interpreter(_losses(reduction)[name], args, {})[0])
        else:
            cases.append(args)
    compare_all(_losses(reduction)[name], cases)


@pytest.mark.parametrize("reduction", ("none", "sum", "mean"))
def test_cross_entropy(reduction: str) -> None:
    targets = torch.tensor([0, 3, -100, 4, 2, 2])
    loss = functools.partial(F.cross_entropy, reduction=reduction)
    cases: list[tuple[Any, ...]] = [(loss, matrix(torch.float32, 0, 5), targets[:0])]
    for dtype in FLOATS:
        x, w = matrix(dtype, 6, 5), matrix(dtype, 5).abs()
        cases += [
            (loss, x, targets),
            (loss, x, targets, w),
            (functools.partial(loss, ignore_index=2), x, targets.abs() % 5),
            (functools.partial(loss, label_smoothing=0.1), x, targets),
            (loss, x, torch.full((6,), -100)),
            (functools.partial(F.nll_loss, reduction=reduction), x, targets),
            (functools.partial(F.nll_loss, reduction=reduction), x[0], torch.tensor(3)),
            (loss, matrix(dtype, 2, 5, 3, 2), torch.ones(2, 3, 2).long()),
        ]
    compare_all(lambda fn, *args: fn(*args), cases)
