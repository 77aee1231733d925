"""Operators of ONNX that read or write at places: `Resize`, `ScatterND`, `ScatterElements`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_JOINED = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _scatter_elements(c: Any) -> Any:
    axis, (x, index, source), kind = c.axis(c.get("axis", 0)), c.values, c.get("reduction", "none")
    index = torch.where(index < 0, index + c.shape(0)[axis], index).to(torch.int64)
    if kind == "none":
        return torch.scatter(x, axis, index, source)
    if kind not in _JOINED:
        c.fail(f"the reduction {kind} is not taken")
    return torch.scatter_reduce(x, axis, index, source, _JOINED[kind], include_self=True)


def _scatter_nd(c: Any) -> Any:
    """`index` has the places of rows in its last dimension."""
    (x, index, source), kind, shape = c.values, c.get("reduction", "none"), c.shape(0)
    if kind not in ("none", "add"):
        c.fail(f"the reduction {kind} is not taken")
    if not c.shape(1) or c.shape(1)[-1] > len(shape):
        c.fail("the index has more places than the tensor has dimensions")
    if 0 in c.shape(1):
        return x
    columns = [index.select(-1, k) for k in range(c.shape(1)[-1])]
    columns = [torch.where(i < 0, i + n, i) for i, n in zip(columns, shape, strict=False)]
    return torch.index_put(x, columns, source, accumulate=kind == "add")


def _resize(c: Any) -> Any:
    """Along one dimension after another: each element of the result is a sum of elements of the operand, by weights that sizes decide."""
    mode, how = c.get("mode", "nearest"), c.get("coordinate_transformation_mode", "half_pixel")
    shape = c.shape(0)
    if mode not in ("nearest", "linear", "cubic") or how not in _PLACES:
        c.fail(f"the mode {mode} with {how} is not taken")
    if c.get("antialias", 0) or c.get("exclude_outside", 0):
        c.fail("filters that look further (antialias, exclude_outside) are not taken")
    if c.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        c.fail("keeping the aspect ratio is not taken")
    axes = [c.axis(a) for a in c.get("axes", range(len(shape)))]
    if c.has(3) and c.shape(3) != (0,):
        sizes = c.integers(3)
        scales = [n / shape[a] if shape[a] else 1.0 for a, n in zip(axes, sizes, strict=True)]
    else:
        scales = [float(v) for v in _floats(c, 2)]
        sizes = [math.floor(shape[a] * s) for a, s in zip(axes, scales, strict=True)]
    x = c.values[0]
    for a, size, scale in zip(axes, sizes, scales, strict=True):
        if size < 0 or (size and not shape[a]):
            c.fail(f"the size {shape[a]} becomes {size}")
        if size != shape[a] or scale != 1.0:
            x = _along(c, x, a, [_PLACES[how](k, scale, shape[a], size) for k in range(size)], shape[a], mode)
    return x


def _floats(c: Any, k: int) -> list[float]:
    found = c.known(k) if c.has(k) else None
    return c.fail("neither sizes nor scales are known") if found is None else found.reshape(-1).tolist()


def _along(c: Any, x: Any, axis: int, places: list[float], size: int, mode: str) -> Any:
    last = size - 1
    if mode == "nearest":
        how = c.get("nearest_mode", "round_prefer_floor")
        if how not in _ROUNDED:
            c.fail(f"the rounding {how} is not taken")
        rounded = _ROUNDED[how]
        return _taken(c, x, axis, [min(max(rounded(p), 0), last) for p in places])
    if mode == "linear":
        places = [min(max(p, 0.0), float(last)) for p in places]
    first = [math.floor(p) for p in places]
    rest = [p - i for p, i in zip(places, first, strict=True)]
    if mode == "linear":
        steps, weights = [0, 1], [[1 - r for r in rest], rest]
    else:
        a = c.get("cubic_coeff_a", -0.75)
        steps = [-1, 0, 1, 2]
        weights = [[_cubic(abs(r - step), a) for r in rest] for step in steps]
    rank, made = len(c.shape(0)), None
    for step, row in zip(steps, weights, strict=True):
        near = _taken(c, x, axis, [min(max(i + step, 0), last) for i in first])
        factor = c.make(torch.tensor, row, dtype=c.dtype(0)).reshape([-1 if k == axis else 1 for k in range(rank)])
        made = near * factor if made is None else made + near * factor
    return made


def _taken(c: Any, x: Any, axis: int, places: list[int]) -> Any:
    return torch.index_select(x, axis, c.make(torch.tensor, places, dtype=torch.int64))


def _cubic(d: float, a: float) -> float:
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


# Where element k of `size` stands in `old` elements.
_PLACES: dict[str, Callable[[int, float, int, int], float]] = {
    "half_pixel": lambda k, scale, old, size: (k + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda k, scale, old, size: (k + 0.5) / scale - 0.5 if size > 1 else 0.0,
    "align_corners": lambda k, scale, old, size: k * (old - 1) / (size - 1) if size > 1 else 0.0,
    "asymmetric": lambda k, scale, old, size: k / scale,
}
_ROUNDED: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda p: math.ceil(p - 0.5),
    "round_prefer_ceil": lambda p: math.floor(p + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}
PLACES = {"Resize": _resize, "ScatterND": _scatter_nd, "ScatterElements": _scatter_elements}
