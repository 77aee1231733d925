"""`dynamic_shapes=` of `export`: which sizes of the arguments are symbols, as `torch.export` takes it, with names or without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..frontend.graph.dynamic import MARKS, mark_dynamic, maybe_mark_dynamic

__all__ = ["SameSizes", "dynamic_sizes"]

_SMALLEST, _LARGEST = 2, 1 << 31  # bounds beyond these say nothing: sizes 0 and 1 are compiled on their own


class SameSizes:
    """The sizes that have one name: they must be equal in each call."""

    def __init__(self) -> None:
        self.places: dict[str, list[tuple[tuple[Any, ...], int]]] = {}

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise ValueError where two sizes of one name differ."""
        for name, places in self.places.items():
            sizes = [(_at(values, path).shape[dim], path, dim) for path, dim in places]
            for size, path, dim in sizes[1:]:
                if size != sizes[0][0]:
                    raise ValueError(
                        f"{name} is {sizes[0][0]} in {_shown(*sizes[0][1:])} and {size} in {_shown(path, dim)}: these sizes have one name"
                    )


@contextlib.contextmanager
def dynamic_sizes(values: Mapping[str, Any], shapes: Any) -> Iterator[SameSizes]:
    """While it lasts the arguments are marked as `shapes` says.

    Args:
        values: the arguments by name.
        shapes: by argument (a mapping by name, or a sequence by position), nested as the argument is; for a tensor None, a mapping
            from dimensions, or one item for each dimension. An item is a `torch.export.Dim`, a name, `Dim.DYNAMIC`, `Dim.AUTO`, or None
            (`Dim.STATIC`, the size itself) for a size that stays.

    Raises:
        ValueError: `shapes` does not fit the arguments: says where.
    """
    same, marks = SameSizes(), list[tuple[Tensor, int, str, int | None, int | None]]()
    if isinstance(shapes, Mapping):
        unknown = [name for name in shapes if name not in values]
        if unknown:
            raise ValueError(
                f"dynamic_shapes names {unknown[0]!r}, which is no argument; there are {', '.join(values)}"
            )
        pairs = [((name,), values[name], spec) for name, spec in shapes.items()]
    else:
        given = list(shapes)
        if len(given) > len(values):
            raise ValueError(f"dynamic_shapes has {len(given)} items for {len(values)} arguments")
        pairs = [((name,), values[name], spec) for name, spec in zip(values, given, strict=False)]
    for path, value, spec in pairs:
        _collect(path, value, spec, same, marks)
    same.check(values)
    before = {id(tensor): (tensor, dict(tensor.__dict__.get(MARKS, {}))) for tensor, *_ in marks}
    try:
        for tensor, dim, kind, low, high in marks:
            mark_dynamic(tensor, dim, low, high) if kind == "dynamic" else maybe_mark_dynamic(tensor, dim)
        yield same
    finally:
        for tensor, known in before.values():
            tensor.__dict__.pop(MARKS, None)
            if known:
                tensor.__dict__[MARKS] = known


def _collect(path: tuple[Any, ...], value: Any, spec: Any, same: SameSizes, marks: list[Any]) -> None:
    if spec is None:
        return
    if isinstance(value, Tensor):
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for dim, item in dims:
            _one(path, value, dim, item, same, marks)
        return
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, item in spec.items():
            if key not in value:
                raise ValueError(f"dynamic_shapes: {_shown(path)} has no item {key!r}")
            _collect((*path, key), value[key], item, same, marks)
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple) and len(value) == len(spec):
        for at, item in enumerate(spec):
            _collect((*path, at), value[at], item, same, marks)
    else:
        raise ValueError(f"dynamic_shapes: {_shown(path)} is a {type(value).__name__}, which {spec!r:.60} does not fit")


def _one(path: tuple[Any, ...], value: Tensor, dim: Any, item: Any, same: SameSizes, marks: list[Any]) -> None:
    if not isinstance(dim, int) or not -value.dim() <= dim < value.dim():
        raise ValueError(f"dynamic_shapes: {_shown(path)} has {value.dim()} dimensions, and no dimension {dim!r}")
    size, dim = value.shape[dim], dim % value.dim()
    hint = getattr(getattr(item, "type", None), "name", None)  # of Dim.AUTO, Dim.DYNAMIC, Dim.STATIC
    if item is None or hint == "STATIC":
        return
    if isinstance(item, int):
        if item != size:
            raise ValueError(f"dynamic_shapes: {_shown(path, dim)} is {size}, not {item}")
        return
    name = item if isinstance(item, str) else getattr(item, "__name__", None)
    if name is None and hint is None:
        raise ValueError(f"dynamic_shapes: {item!r:.60} for {_shown(path, dim)} is no torch.export.Dim, name or size")
    low, high = (getattr(item, bound, None) for bound in ("min", "max"))
    low = int(low) if low is not None and int(low) > _SMALLEST else None
    high = int(high) if high is not None and high < _LARGEST else None
    if (low is not None and size < low) or (high is not None and size > high):
        raise ValueError(
            f"dynamic_shapes: {_shown(path, dim)} is {size}, outside the range of {name} from {low} to {high}"
        )
    marks.append((value, dim, "maybe" if hint == "AUTO" else "dynamic", low, high))
    if name is not None:
        same.places.setdefault(name, []).append((path, dim))


def _at(values: Mapping[str, Any], path: tuple[Any, ...]) -> Any:
    value: Any = values
    for key in path:
        value = value[key]
    return value


def _shown(path: tuple[Any, ...], dim: int | None = None) -> str:
    text = str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
    return text if dim is None else f"{text}.shape[{dim}]"
