"""Gathers, scatters, slices at places that are computed, and sorts of StableHLO as calls of torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .stablehlo_windows import joined_by


def _line(c: Any, size: int, at: int, rank: int) -> Any:
    """0, 1, ... along one of `rank` dimensions."""
    return c.make(torch.arange, size).reshape([size if k == at else 1 for k in range(rank)])


def _columns(c: Any, index: Any, shape: Sequence[int], vector: int, count: int) -> tuple[list[Any], list[int]]:
    """The numbers of each place, one tensor for each of `count` dimensions, and the shape of the batch."""
    if vector == len(shape):
        index, shape = index.unsqueeze(vector), [*shape, 1]
    if not 0 <= vector < len(shape) or shape[vector] != count:
        c.fail("the places have not one number for each dimension that is named")
    batch = [n for k, n in enumerate(shape) if k != vector]
    index = index.to(torch.int64)
    return [index.select(vector, k) for k in range(count)], batch


def _grid(
    c: Any, columns: dict[int, Any], batch: list[int], batched: dict[int, int], window: dict[int, int], rank: int
) -> list[Any]:
    """For each dimension of the operand its places, over the batch and then the window's dimensions."""
    inner = sorted(window)
    whole = len(batch) + len(inner)
    found = []
    for d in range(rank):
        place: Any = None
        if d in columns:
            place = columns[d].reshape([*batch, *[1] * len(inner)])
        if d in batched:
            place = _line(c, batch[batched[d]], batched[d], whole)
        if d in window and (window[d] > 1 or place is None):
            own = _line(c, window[d], len(batch) + inner.index(d), whole)
            place = own if place is None else place + own
        found.append(c.make(torch.zeros, [1] * whole, dtype=torch.int64) if place is None else place)
    return found


def _gather(c: Any) -> Any:
    numbers, sizes = c.attribute("dimension_numbers"), c.integers("slice_sizes")
    x, shape = c.values[0], c.shape(0)
    named = list(numbers.get("start_index_map", []))
    columns, batch = _columns(c, c.values[1], c.shape(1), numbers.get("index_vector_dim", 0), len(named))
    own, others = list(numbers.get("operand_batching_dims", [])), list(numbers.get("start_indices_batching_dims", []))
    gone = {*numbers.get("collapsed_slice_dims", []), *own}
    if (
        len(sizes) != len(shape)
        or any(sizes[d] != 1 for d in gone)
        or not all(0 <= s <= n for s, n in zip(sizes, shape, strict=True))
    ):
        c.fail("the sizes of its slices do not fit")
    offsets = list(numbers.get("offset_dims", []))
    kept = [d for d in range(len(shape)) if d not in gone]
    # A batch dimension of the places is counted without the dimension of their numbers.
    vector = numbers.get("index_vector_dim", 0)
    batched = {d: k - (k > vector) for d, k in zip(own, others, strict=True)}
    starts = {d: torch.clamp(v, 0, shape[d] - sizes[d]) for d, v in zip(named, columns, strict=True)}
    whole = all(sizes[d] == shape[d] for d in kept)
    if len(named) == 1 and not own and gone == set(named) and whole:
        (d,) = named
        made = torch.index_select(x, d, starts[d].reshape(-1)).reshape([*shape[:d], *batch, *shape[d + 1 :]])
        made = made.permute([*range(d, d + len(batch)), *range(d), *range(d + len(batch), len(shape) - 1 + len(batch))])
    else:
        places = _grid(c, starts, batch, batched, {d: sizes[d] for d in kept}, len(shape))
        made = x[tuple(places)] if places else x
    if not shape:
        made = x.expand(batch)
    rank = len(batch) + len(kept)
    order, first = [], 0
    for k in range(rank):
        if k in offsets:
            order.append(len(batch) + offsets.index(k))
        else:
            order.append(first)
            first += 1
    return made.expand([*batch, *(sizes[d] for d in kept)]).permute(order)


_SCATTERED = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin"}


def _scatter(c: Any) -> Any:
    """Elements whose place lies outside are written to one more element behind the operand, which is cut off."""
    if len(c.values) != 3:
        c.fail("several operands are not taken")
    numbers = c.attribute("scatter_dimension_numbers")
    (x, index, updates), shape = c.values, c.shape(0)
    region, vector = c.op.regions[0], numbers.get("index_vector_dim", 0)
    replaces = len(region.operations) == 1 and region.operations[0].operands == [region.arguments[1][0]]
    kind = "" if replaces else joined_by(c, region)
    if not replaces and kind not in _SCATTERED:
        c.fail("what its region does is not taken")
    named = list(numbers.get("scatter_dims_to_operand_dims", []))
    columns, batch = _columns(c, index, c.shape(1), vector, len(named))
    own, others = list(numbers.get("input_batching_dims", [])), list(numbers.get("scatter_indices_batching_dims", []))
    gone = {*numbers.get("inserted_window_dims", []), *own}
    kept = [d for d in range(len(shape)) if d not in gone]
    windows = list(numbers.get("update_window_dims", []))
    sizes = {d: c.shape(2)[w] for d, w in zip(kept, windows, strict=True)}
    batched = {d: k - (k > vector) for d, k in zip(own, others, strict=True)}
    places = _grid(c, dict(zip(named, columns, strict=True)), batch, batched, sizes, len(shape))
    count = math.prod(shape)
    linear: Any = c.make(torch.zeros, (), dtype=torch.int64)
    inside: Any = c.make(torch.ones, (), dtype=torch.bool)
    for place, size in zip(places, shape, strict=True):
        linear = linear * size + place
        inside = inside & (place >= 0) & (place < size)
    wide = [*batch, *(sizes[d] for d in kept)]
    linear = torch.where(inside, linear, count).expand(wide).reshape(-1)
    rank = len(c.shape(2))
    moved = updates.permute([*(d for d in range(rank) if d not in windows), *windows]).reshape(-1)
    flat = torch.cat([x.reshape(-1), c.make(torch.zeros, [1], dtype=c.dtype())])
    if replaces:
        made = torch.scatter(flat, 0, linear, moved)
    elif kind == "add":
        made = torch.scatter_add(flat, 0, linear, moved)
    else:
        made = torch.scatter_reduce(flat, 0, linear, moved, _SCATTERED[kind])
    return made[:count].reshape(shape)


def _starts(c: Any, given: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Where a slice begins, moved so that it lies inside."""
    rows = zip(given, c.shape(0), sizes, strict=True)
    return [torch.clamp(v.to(torch.int64), 0, n - s) for v, n, s in rows]


def _dynamic_slice(c: Any) -> Any:
    sizes = c.integers("slice_sizes")
    if not all(0 <= s <= n for s, n in zip(sizes, c.shape(0), strict=True)):
        c.fail("the slice is larger than the operand")
    x = c.values[0]
    for d, (start, size) in enumerate(zip(_starts(c, c.values[1:], sizes), sizes, strict=True)):
        if size != c.shape(0)[d]:
            x = torch.index_select(x, d, start + c.make(torch.arange, size))
    return x


def _dynamic_update_slice(c: Any) -> Any:
    x, update, *given = c.values
    sizes, rank = c.shape(1), len(c.shape(0))
    if not all(s <= n for s, n in zip(sizes, c.shape(0), strict=True)):
        c.fail("the update is larger than the operand")
    if not rank:
        return update
    places = [
        start + _line(c, n, d, rank) for d, (start, n) in enumerate(zip(_starts(c, given, sizes), sizes, strict=True))
    ]
    return torch.index_put(x, places, update)


def _sort(c: Any) -> Any:
    """By the first operand, up or down: what its region does is found out by running it on all pairs of some numbers."""
    d, kind = c.attribute("dimension", len(c.shape(0)) - 1), c.dtype(c.types[0])
    real = kind.is_floating_point
    numbers = [-math.inf, -1.0, -0.0, 0.0, 2.0, math.inf] if real else [0, 1] if kind == torch.bool else [0, 3, 7]
    others = [math.nan] if real else []
    grid = list(itertools.product([*numbers, *others], repeat=2))
    a, b = (torch.tensor([row[k] for row in grid], dtype=kind) for k in range(2))
    given = [a, b]
    for t in c.types[1:]:
        zeros = torch.zeros(len(grid), dtype=c.dtype(t))
        given += [zeros, torch.ones_like(zeros)]
    (first,) = c.run(c.op.regions[0], given)
    swapped = [given[k ^ 1] if k > 1 else given[k] for k in range(len(given))]
    if not torch.equal(first, c.run(c.op.regions[0], swapped)[0]):
        c.fail("an order by several operands is not taken")
    plain = ~(a.isnan() | b.isnan())
    for down in (False, True):
        large, small = (a, b) if down else (b, a)
        order = (a > b if down else a < b) | (large.isnan() & ~small.isnan())
        if torch.equal(first[plain], order[plain]) and (torch.equal(first, order) or not bool(first[~plain].any())):
            break
    else:
        c.fail("an order that is neither up nor down is not taken")
    values, places = torch.sort(c.values[0], dim=d, stable=True, descending=down)
    return [values, *(torch.gather(v, d, places) for v in c.values[1:])]


PLACES: dict[str, Callable[[Any], Any]] = {
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.sort": _sort,
}
