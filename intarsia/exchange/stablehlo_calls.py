"""Operations of StableHLO as calls of torch: elementwise, shapes, products; a rule each. They hold for values of a graph and for tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .stablehlo_places import PLACES
from .stablehlo_windows import WINDOWS, padded

Rule = Callable[[Any], Any]  # takes a `from_stablehlo.Call`


def _same(function: Any) -> Rule:
    return lambda c: function(*c.values)


def _of(bools: Callable[..., Any], others: Callable[..., Any]) -> Rule:
    """By the dtype of the first operand."""
    return lambda c: (bools if c.types[0].element == "i1" else others)(*c.values)


def _divide(c: Any) -> Any:
    real = c.dtype().is_floating_point or c.dtype().is_complex
    return torch.div(*c.values) if real else torch.div(*c.values, rounding_mode="trunc")


def _sign(c: Any) -> Any:
    """Of NaN and of zeros it is the number itself."""
    (x,) = c.values
    if not c.dtype().is_floating_point:
        return torch.sign(x)
    return torch.where((x == 0) | torch.isnan(x), x, torch.sign(x))


def _round_afz(c: Any) -> Any:
    """Halves away from zero."""
    (x,) = c.values
    whole = torch.trunc(x)
    return torch.where(torch.abs(x - whole) >= 0.5, whole + torch.sign(x), whole)


def _cbrt(c: Any) -> Any:
    (x,) = c.values
    return torch.copysign(torch.pow(torch.abs(x), 1.0 / 3.0), x)


_DIRECTIONS = {"EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge}
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _compare(c: Any) -> Any:
    direction = c.attribute("comparison_direction")
    if direction not in _DIRECTIONS:
        c.fail(f"the direction {direction} is not known")
    a, b = c.values
    if c.op.attributes.get("compare_type") == "TOTALORDER":
        kind = c.dtype(c.types[0])
        if kind.itemsize not in _WORDS or not kind.is_floating_point:
            c.fail(f"the total order of {kind} is not taken")
        a, b = (_ordered(v, _WORDS[kind.itemsize]) for v in (a, b))
    return _DIRECTIONS[direction](a, b)


def _ordered(x: Any, word: torch.dtype) -> Any:
    """The bits of floats as integers whose order is the total order."""
    bits = x.view(word)
    most = torch.iinfo(word).max
    return torch.where(bits < 0, torch.bitwise_xor(bits, most), bits)


def _shift_right_logical(c: Any) -> Any:
    """By way of the arithmetic shift, whose copies of the sign are taken away; a shift outside the width gives 0."""
    x, by = c.values
    kind = c.dtype()
    if not kind.is_signed:
        return torch.bitwise_right_shift(x, by)
    bits = 8 * kind.itemsize
    once = torch.bitwise_and(torch.bitwise_right_shift(x, 1), torch.iinfo(kind).max)
    made = torch.bitwise_right_shift(once, torch.clamp(by - 1, 0, bits - 1))
    return torch.where((by < 0) | (by >= bits), 0, torch.where(by == 0, x, made)).to(kind)


def _clamp(c: Any) -> Any:
    low, x, high = c.values
    return torch.minimum(torch.maximum(x, low), high)


def _convert(c: Any) -> Any:
    (x,) = c.values
    return x.to(c.dtype())


def _bitcast(c: Any) -> Any:
    if c.dtype().itemsize != c.dtype(c.types[0]).itemsize or c.result != c.shape(0):
        c.fail("between dtypes of other widths is not taken")
    return c.values[0].view(c.dtype())


def _iota(c: Any) -> Any:
    shape, d = c.result, c.attribute("iota_dimension")
    kind = c.dtype()
    line = c.make(torch.arange, shape[d], dtype=torch.int64 if not kind.is_floating_point else kind)
    return line.to(kind).reshape([-1 if k == d else 1 for k in range(len(shape))]).expand(shape)


def _broadcast(c: Any) -> Any:
    shape, dims = c.result, c.integers("broadcast_dimensions")
    have = c.shape(0)
    if len(dims) != len(have) or len(set(dims)) != len(dims) or not all(0 <= d < len(shape) for d in dims):
        c.fail("the dimensions do not fit the operand")
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    x = c.values[0] if order == list(range(len(dims))) else c.values[0].permute(order)
    placed = [1] * len(shape)
    for k, d in enumerate(dims):
        if have[k] not in (1, shape[d]):
            c.fail("a size does not become that of its dimension")
        placed[d] = have[k]
    return x.reshape(placed).expand(shape)


def _reshape(c: Any) -> Any:
    return c.values[0].reshape(c.result)


def _transpose(c: Any) -> Any:
    return c.values[0].permute(c.integers("permutation"))


def _slice(c: Any) -> Any:
    rows = zip(c.integers("start_indices"), c.integers("limit_indices"), c.integers("strides"), c.shape(0), strict=True)
    found = []
    for start, stop, step, size in rows:
        if not 0 <= start <= stop <= size or step < 1:
            c.fail(f"{start}:{stop}:{step} of a dimension of size {size}")
        found.append(slice(start, stop, step))
    return c.values[0][tuple(found)] if found else c.values[0]


def _reverse(c: Any) -> Any:
    return torch.flip(c.values[0], c.integers("dimensions"))


def _concatenate(c: Any) -> Any:
    return torch.cat(list(c.values), c.attribute("dimension"))


def _pad(c: Any) -> Any:
    x, value = c.values
    low, high = c.integers("edge_padding_low"), c.integers("edge_padding_high")
    inner = c.integers("interior_padding")
    if any(n < 0 for n in inner):
        c.fail("a negative interior padding")
    return padded(x, list(c.shape(0)), low, high, inner, value, c.known(value))


def _dot_general(c: Any) -> Any:
    numbers = c.attribute("dot_dimension_numbers")
    batch, inner = (
        [list(numbers.get(f"{side}_{kind}_dimensions", [])) for side in ("lhs", "rhs")]
        for kind in ("batching", "contracting")
    )
    ranks = len(c.shape(0)), len(c.shape(1))
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    names: list[dict[int, str]] = [{}, {}]
    for pairs in (batch, inner):
        for p, q in zip(*pairs, strict=True):
            if c.shape(0)[p] != c.shape(1)[q]:
                c.fail(f"dimensions {p} and {q} are of other sizes")
            names[0][p] = names[1][q] = next(letters)
    made = [names[0][p] for p in batch[0]]
    for side in range(2):
        for d in range(ranks[side]):
            if d not in names[side]:
                names[side][d] = next(letters)
                made.append(names[side][d])
    kind = c.dtype()
    x, y = (v if c.dtype(t) == kind else v.to(kind) for v, t in zip(c.values, c.types, strict=True))
    texts = ["".join(n[d] for d in range(rank)) for n, rank in zip(names, ranks, strict=True)]
    return torch.einsum(f"{texts[0]},{texts[1]}->{''.join(made)}", x, y)


def _top_k(c: Any) -> Any:
    """Equal ones in their order, as CHLO has it: a stable sort."""
    count = c.attribute("k")
    values, places = torch.sort(c.values[0], dim=-1, descending=True, stable=True)
    return [values[..., :count], places[..., :count].to(c.dtype(c.op.types[1]))]


def _custom_call(c: Any) -> Any:
    target = str(c.attribute("call_target_name")).strip('@"')
    if target == "Sharding" and len(c.values) == 1:
        return c.values[0]
    return c.fail(f"the custom call {target[:80]} is not taken")


CALLS: dict[str, Rule] = {
    **{
        f"stablehlo.{name}": _same(function)
        for name, function in {
            "subtract": torch.sub,
            "remainder": torch.fmod,
            "power": torch.pow,
            "atan2": torch.atan2,
            "and": torch.bitwise_and,
            "or": torch.bitwise_or,
            "xor": torch.bitwise_xor,
            "not": torch.bitwise_not,
            "abs": torch.abs,
            "negate": torch.neg,
            "exponential": torch.exp,
            "exponential_minus_one": torch.expm1,
            "log": torch.log,
            "log_plus_one": torch.log1p,
            "logistic": torch.sigmoid,
            "tanh": torch.tanh,
            "sqrt": torch.sqrt,
            "rsqrt": torch.rsqrt,
            "ceil": torch.ceil,
            "floor": torch.floor,
            "round_nearest_even": torch.round,
            "sine": torch.sin,
            "cosine": torch.cos,
            "tan": torch.tan,
            "is_finite": torch.isfinite,
            "shift_left": torch.bitwise_left_shift,
            "shift_right_arithmetic": torch.bitwise_right_shift,
            "select": torch.where,
            "maximum": torch.maximum,
            "minimum": torch.minimum,
            "real": torch.real,
            "imag": torch.imag,
            "complex": torch.complex,
        }.items()
    },
    **{
        f"chlo.{name}": _same(function)
        for name, function in {
            "erf": torch.erf,
            "erfc": torch.erfc,
            "erf_inv": torch.erfinv,
            "lgamma": torch.lgamma,
            "digamma": torch.digamma,
            "asin": torch.asin,
            "acos": torch.acos,
            "atan": torch.atan,
            "sinh": torch.sinh,
            "cosh": torch.cosh,
            "asinh": torch.asinh,
            "acosh": torch.acosh,
            "atanh": torch.atanh,
            "square": torch.square,
            "tan": torch.tan,
        }.items()
    },
    "stablehlo.add": _of(torch.logical_or, torch.add),
    "stablehlo.multiply": _of(torch.logical_and, torch.mul),
    "stablehlo.divide": _divide,
    "stablehlo.sign": _sign,
    "stablehlo.round_nearest_afz": _round_afz,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.compare": _compare,
    "stablehlo.shift_right_logical": _shift_right_logical,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": _convert,
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.iota": _iota,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.pad": _pad,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.optimization_barrier": lambda c: list(c.values),
    "stablehlo.custom_call": _custom_call,
    "chlo.top_k": _top_k,
    **WINDOWS,
    **PLACES,
}
