"""Reductions, windows and convolutions of StableHLO as calls of torch, and what a region of one joins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

# What a region of one operation joins: all elements along dimensions, two values, and what it begins with.
_IDENTITIES: dict[str, Callable[[torch.dtype], Any]] = {
    "add": lambda t: False if t == torch.bool else 0,
    "multiply": lambda t: True if t == torch.bool else 1,
    "maximum": lambda t: False if t == torch.bool else -math.inf if t.is_floating_point else torch.iinfo(t).min,
    "minimum": lambda t: True if t == torch.bool else math.inf if t.is_floating_point else torch.iinfo(t).max,
    "or": lambda t: False,
    "and": lambda t: True,
}
_OF_BOOLS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}


def joined_by(c: Any, region: Any) -> str:
    """The name of the one operation in a region, its operands the two arguments."""
    names = [name for name, _ in region.arguments]
    first, *rest = region.operations
    if (
        len(rest) == 1
        and len(names) == 2
        and sorted(first.operands) == sorted(names)
        and rest[0].operands == first.results
    ):
        kind, name = c.dtype(region.arguments[0][1]), first.name.partition(".")[2]
        if kind == torch.bool:
            name = _OF_BOOLS.get(name, name)
        if name in _IDENTITIES and (name not in ("or", "and") or kind == torch.bool):
            return name
    return str(c.fail("what its region does is not taken; taken are add, multiply, maximum, minimum, and, or"))


def along(name: str, x: Any, dims: Sequence[int], kind: torch.dtype) -> Any:
    """All elements along dimensions joined."""
    if not dims:
        return x
    if name == "add":
        return torch.sum(x, list(dims), dtype=kind)
    if name in ("maximum", "minimum"):
        return (torch.amax if name == "maximum" else torch.amin)(x, list(dims))
    one: Callable[..., Any] = {"multiply": torch.prod, "or": torch.any, "and": torch.all}[name]  # type: ignore[assignment]
    for d in sorted(dims, reverse=True):
        x = one(x, d, dtype=kind) if name == "multiply" else one(x, d)
    return x


_BOTH: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "or": torch.logical_or,
    "and": torch.logical_and,
}


def begun(c: Any, name: str, x: Any, start: Any, kind: torch.dtype) -> Any:
    """The joined elements, joined with what the reduction begins with."""
    number = c.known(start)
    return x if number is not None and number == _IDENTITIES[name](kind) else _BOTH[name](x, start)


def _reduce(c: Any) -> Any:
    dims, count = c.integers("dimensions"), len(c.values) // 2
    if not all(0 <= d < len(c.shape(0)) for d in dims) or len(set(dims)) != len(dims):
        c.fail("the dimensions are none of the operand's")
    if count == 2:
        return _extreme(c, dims)
    if count != 1:
        c.fail("several operands are not taken")
    name, kind = joined_by(c, c.op.regions[0]), c.dtype()
    x, start = c.values
    if any(c.shape(0)[d] == 0 for d in dims):
        return start.expand(c.result)
    return begun(c, name, along(name, x, dims, kind), start, kind)


def _extreme(c: Any, dims: list[int]) -> Any:
    """The extreme and its first place. What the region does is found out by running it on all pairs of some numbers."""
    kind, places = c.dtype(c.types[0]), c.dtype(c.types[1])
    real = kind.is_floating_point
    numbers = [-math.inf, -1.0, 0.0, 1.0, math.inf, math.nan] if real else [0, 1] if kind == torch.bool else [-3, 0, 7]
    if not kind.is_signed and not real and kind != torch.bool:
        numbers = [0, 3, 7]
    grid = list(itertools.product(numbers, (0, 5), numbers, (1, 4)))
    a, i, b, j = (torch.tensor([row[k] for row in grid], dtype=t) for k, t in enumerate((kind, places, kind, places)))
    value, place = c.run(c.op.regions[0], [a, i, b, j])
    name = next((n for n in ("max", "min") if _picks(n, a, i, b, j, value, place)), "")
    if not name:
        c.fail("what its region does to two operands is not taken; taken are the largest or smallest and its place")
    x, along_places = c.values[:2]
    if (
        len(dims) != 1
        or c.iota_along(along_places) != dims[0]
        or c.known(c.values[3]) != 0
        or c.known(c.values[2]) != _IDENTITIES[f"{name}imum"](kind)
    ):
        c.fail("places that are no iota along the dimension, or another beginning, are not taken")
    if c.shape(0)[dims[0]] == 0:
        return [c.values[2].expand(c.result), c.values[3].expand(c.result)]
    found = (torch.argmax if name == "max" else torch.argmin)(x.to(torch.uint8) if kind == torch.bool else x, dims[0])
    extreme = along(
        "or" if kind == torch.bool and name == "max" else "and" if kind == torch.bool else f"{name}imum", x, dims, kind
    )
    return [extreme, found.to(places)]


def _picks(name: str, a: Any, i: Any, b: Any, j: Any, value: Any, place: Any) -> bool:
    """Whether these are the extremes of a and b and their first places; which of two NaN is named is not said."""
    none = a.isnan() & b.isnan()
    best = (a > b if name == "max" else a < b) | (a.isnan() & ~b.isnan()) | ((a == b) & (i < j))
    same = torch.equal(value.nan_to_num(9), torch.where(best, a, b).nan_to_num(9))
    return same and bool(((place == torch.where(best, i, j)) | none).all())


def _reduce_window(c: Any) -> Any:
    if len(c.values) != 2:
        c.fail("several operands are not taken")
    x, start = c.values
    shape, kind = c.shape(0), c.dtype()
    rank, ones = len(shape), [1] * len(shape)
    window = c.integers("window_dimensions")
    strides, dilation = c.integers("window_strides", ones), c.integers("window_dilations", ones)
    if any(n != 1 for n in c.integers("base_dilations", ones)):
        c.fail("a dilated operand is not taken")
    padding = c.pairs("padding", rank)
    name = joined_by(c, c.op.regions[0])
    number = c.known(start)
    if number is None or number != _IDENTITIES[name](kind):
        c.fail("another beginning than the identity is not taken")
    wide = [d for d in range(rank) if window[d] > 1]
    if len(wide) == 1 and strides == ones == dilation and window[wide[0]] == shape[wide[0]]:
        d, size = wide[0], shape[wide[0]]
        front = [[size - 1, 0] if k == d else [0, 0] for k in range(rank)]
        back = [[0, size - 1] if k == d else [0, 0] for k in range(rank)]
        if padding in (front, back):
            turned = padding == back and size > 1
            made = _running(name, torch.flip(x, [d]) if turned else x, d, kind)
            return torch.flip(made, [d]) if turned else made
    x = padded(x, list(shape), [p[0] for p in padding], [p[1] for p in padding], [0] * rank, start, number)
    spatial = [rank - 2, rank - 1]
    if rank == 4 and set(wide) <= set(spatial) and kind in (torch.float32, torch.float64) and dilation == ones:
        if name == "maximum" and strides[:2] == [1, 1]:
            return F.max_pool2d(x, window[2:], strides[2:])
        if name == "add" and strides[:2] == [1, 1]:
            return F.avg_pool2d(x, window[2:], strides[2:], divisor_override=1)
    dims: list[int] = []
    for d in range(rank):
        if window[d] == 1:
            x = x[(*[slice(None)] * d, slice(None, None, strides[d]))] if strides[d] != 1 else x
            continue
        reach = (window[d] - 1) * dilation[d] + 1
        x = x.unfold(d, reach, strides[d])
        if dilation[d] != 1:
            x = x[..., :: dilation[d]]
        dims.append(rank + len(dims))
    return along(name, x, dims, kind)


def _running(name: str, x: Any, d: int, kind: torch.dtype) -> Any:
    if name == "add":
        return torch.cumsum(x, d, dtype=kind)
    if name == "multiply":
        return torch.cumprod(x, d, dtype=kind)
    if name in ("or", "and"):
        made = torch.cummax if name == "or" else torch.cummin
        return made(x.to(torch.uint8), d)[0].to(torch.bool)
    return (torch.cummax if name == "maximum" else torch.cummin)(x, d)[0]


def _convolution(c: Any) -> Any:
    x, w = c.values
    text = str(c.attribute("dimension_numbers")).replace(" ", "")
    try:
        sides = [part.strip("[]").split(",") for part in text.replace("->", "x").split("x")]
        left, kernel, made = sides
    except ValueError:
        c.fail(f"the dimensions {text[:60]} cannot be read")
    rank = len(left) - 2
    axes = [str(k) for k in range(rank)]
    if rank not in (1, 2, 3) or not all(
        sorted(s) == sorted([*axes, *w]) for s, w in ((left, "bf"), (kernel, "io"), (made, "bf"))
    ):
        c.fail(f"the dimensions {text[:60]} are not taken")
    if c.attribute("batch_group_count", 1) != 1:
        c.fail("groups of the batch are not taken")
    ones = [1] * rank
    x = x.permute([left.index(n) for n in ("b", "f", *axes)])
    w = w.permute([kernel.index(n) for n in ("o", "i", *axes)])
    sizes = [c.shape(0)[left.index(n)] for n in ("b", "f", *axes)]
    spread, padding = c.integers("lhs_dilation", ones), c.pairs("padding", rank)
    turned = [k for k, flag in enumerate(c.op.attributes.get("window_reversal", [])) if flag]
    if turned:
        w = torch.flip(w, [2 + k for k in turned])
    kind = c.dtype()
    x, w = (v if c.dtype(t) == kind else v.to(kind) for v, t in zip((x, w), c.types, strict=True))
    low, high = ([0, 0, *(p[k] for p in padding)] for k in range(2))
    if any(n != 1 for n in spread) or low != high or any(n < 0 for n in low):
        zero = c.make(torch.zeros, (), dtype=kind)
        x = padded(x, sizes, low, high, [0, 0, *(n - 1 for n in spread)], zero, 0)
        low = [0] * (rank + 2)
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    result = run(
        x,
        w,
        None,
        c.integers("window_strides", ones),
        low[2:],
        c.integers("rhs_dilation", ones),
        c.attribute("feature_group_count", 1),
    )
    return result.permute([("b", "f", *axes).index(n) for n in made])


def padded(
    x: Any, sizes: list[int], low: list[int], high: list[int], inner: list[int], value: Any, number: Any = None
) -> Any:
    """x with `value` around it and between its elements; negative numbers take away."""
    for d, count in enumerate(inner):
        if count and sizes[d] > 1:
            wide = value.expand([*sizes[: d + 1], count, *sizes[d + 1 :]])
            x = torch.cat([x.unsqueeze(d + 1), wide], d + 1)
            sizes[d] = sizes[d] * (1 + count)
            x = x.reshape(sizes).narrow(d, 0, sizes[d] - count)
            sizes[d] -= count
    if number is not None and any((*low, *high)):
        pairs = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
        return F.pad(x, pairs, value=number)
    for d, (a, b) in enumerate(zip(low, high, strict=True)):
        parts = [x.narrow(d, max(-a, 0), sizes[d] - max(-a, 0) - max(-b, 0))] if a < 0 or b < 0 else [x]
        sizes[d] = sizes[d] - max(-a, 0) - max(-b, 0)
        for count, first in ((a, True), (b, False)):
            if count > 0:
                wide = value.expand([*sizes[:d], count, *sizes[d + 1 :]])
                parts = [wide, *parts] if first else [*parts, wide]
        sizes[d] += max(a, 0) + max(b, 0)
        x = parts[0] if len(parts) == 1 else torch.cat(parts, d)
    return x


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.convolution": _convolution,
}
