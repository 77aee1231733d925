"""How a write through a view reaches the tensor that was viewed: one row for each view operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.functions import OpOverload

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...]]
_Rule = Callable[[tuple[Any, ...], dict[str, Any], "int | None", Tensor, Tensor], Call]
PARENT, NEW = "parent", "new"


def invert_view(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], index: int | None, parent: Tensor, view: Tensor
) -> Call:
    """The call that gives the parent's new contents once the view ``func(parent, *args)[index]`` was overwritten.

    Among its arguments the strings ``"parent"`` and ``"new"`` stand for the old contents of the parent and the new ones of
    the view.  Raises NotImplementedError where a view has no inverse (overlapping memory).
    """
    rule = _INVERSES.get(func)
    if rule is None:
        raise NotImplementedError(f"a write through {func} cannot be expressed")
    names = [a.name for a in func._schema.arguments[1:]]
    defaults = {a.name: a.default_value for a in func._schema.arguments[1:] if a.has_default_value()}
    bound = defaults | dict(zip(names, args, strict=False)) | kwargs
    return rule(tuple(args), bound, index, parent, view)


def _reshape(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.view.default, (NEW, list(parent.shape))


def _permute(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    dims = [d % parent.dim() for d in kw["dims"]]
    return aten.permute.default, (NEW, [dims.index(d) for d in range(len(dims))])


def _transpose(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.transpose.int, (NEW, kw["dim0"], kw["dim1"])


def _t(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.t.default, (NEW,)


def _expand(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    if tuple(view.shape[view.dim() - parent.dim() :]) != tuple(parent.shape) or any(
        n != 1 for n in view.shape[: view.dim() - parent.dim()]
    ):
        raise NotImplementedError("a write through expand cannot be expressed, its elements overlap")
    return _reshape(args, kw, index, parent, view)


def _slice(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.slice_scatter.default, (PARENT, NEW, kw["dim"], kw["start"], kw["end"], kw["step"])


def _select(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.select_scatter.default, (PARENT, NEW, kw["dim"], kw["index"])


def _diagonal(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.diagonal_scatter.default, (PARENT, NEW, kw["offset"], kw["dim1"], kw["dim2"])


def _as_strided(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.as_strided_scatter.default, (PARENT, NEW, kw["size"], kw["stride"], kw["storage_offset"])


def _unbind(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.select_scatter.default, (PARENT, NEW, kw["dim"], index)


def _split(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    start = kw["split_size"] * index
    return aten.slice_scatter.default, (PARENT, NEW, kw["dim"], start, start + view.shape[kw["dim"]], 1)


def _split_with_sizes(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    start = sum(kw["split_sizes"][:index])
    return aten.slice_scatter.default, (PARENT, NEW, kw["dim"], start, start + view.shape[kw["dim"]], 1)


def _view_dtype(args: Any, kw: dict[str, Any], index: Any, parent: Tensor, view: Tensor) -> Call:
    return aten.view.dtype, (NEW, parent.dtype)


def _unary(func: OpOverload) -> _Rule:
    return lambda args, kw, index, parent, view: (func, (NEW,))


_INVERSES: dict[OpOverload, _Rule] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
    aten.view.dtype: _view_dtype,
    aten.view_as_real.default: _unary(aten.view_as_complex.default),
    aten.view_as_complex.default: _unary(aten.view_as_real.default),
    aten._conj.default: _unary(aten._conj.default),
    aten._neg_view.default: _unary(aten._neg_view.default),
}


def reaches_beyond(base: Tensor, itemsize: int, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> bool:
    """Whether `as_strided`, counted in items from the beginning of the storage, shows memory that is not the base's elements'."""
    if 0 in size:
        return False
    count = 1
    for step, length in sorted(zip(base.stride(), base.shape, strict=True)):
        if length != 1 and step != count:
            return True  # there are gaps between the base's own elements
        count *= length
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    first = base.storage_offset()
    return bool(offset * itemsize < first * base.itemsize or (last + 1) * itemsize > (first + count) * base.itemsize)
