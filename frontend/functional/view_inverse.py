"""How a write through a view reaches the tensor that was viewed: one row for each view operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.functions import OpOverload

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...]]
_Facts = dict[str, Any]  # the view's arguments by name, `parent`, `view`, and its `place` among the results
_Rule = Callable[[_Facts], Call]
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
    return rule(bound | {"place": index, "parent": parent, "view": view})


def filled(arguments: Sequence[Any], parent: Any, new: Any) -> tuple[Any, ...]:
    """The arguments of such a call with the parent's old contents and the view's new ones."""
    given = {PARENT: parent, NEW: new}
    return tuple(given.get(a, a) if isinstance(a, str) else a for a in arguments)


def _permute(k: _Facts) -> Call:
    dims = [d % k["parent"].dim() for d in k["dims"]]
    return aten.permute.default, (NEW, [dims.index(d) for d in range(len(dims))])


def _expand(k: _Facts) -> Call:
    parent, view = k["parent"], k["view"]
    added = view.dim() - parent.dim()
    if tuple(view.shape[added:]) != tuple(parent.shape) or any(n != 1 for n in view.shape[:added]):
        raise NotImplementedError("a write through expand cannot be expressed, its elements overlap")
    return _reshape(k)


def _part(k: _Facts, start: Any) -> Call:
    """One of the pieces that a tensor was split into."""
    return aten.slice_scatter.default, (PARENT, NEW, k["dim"], start, start + k["view"].shape[k["dim"]], 1)


def _put(func: OpOverload, *names: str) -> _Rule:
    """The operator that puts a part into its place, which these arguments of the view say."""
    return lambda k: (func, (PARENT, NEW, *(k[name] for name in names)))


def _back(func: OpOverload, *names: str) -> _Rule:
    """The opposite view, with the same arguments."""
    return lambda k: (func, (NEW, *(k[name] for name in names)))


def _reshape(k: _Facts) -> Call:
    return aten.view.default, (NEW, list(k["parent"].shape))


def _split(k: _Facts) -> Call:
    return _part(k, k["split_size"] * k["place"])


def _split_with_sizes(k: _Facts) -> Call:
    return _part(k, sum(k["split_sizes"][: k["place"]]))


_RESHAPES: tuple[OpOverload, ...] = (
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
)
_RESHAPES += (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
_INVERSES: dict[OpOverload, _Rule] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    aten.permute.default: _permute,
    aten.transpose.int: _back(aten.transpose.int, "dim0", "dim1"),
    aten.t.default: _back(aten.t.default),
    aten.expand.default: _expand,
    aten.slice.Tensor: _put(aten.slice_scatter.default, "dim", "start", "end", "step"),
    aten.select.int: _put(aten.select_scatter.default, "dim", "index"),
    aten.diagonal.default: _put(aten.diagonal_scatter.default, "offset", "dim1", "dim2"),
    aten.as_strided.default: _put(aten.as_strided_scatter.default, "size", "stride", "storage_offset"),
    aten.unbind.int: _put(aten.select_scatter.default, "dim", "place"),
    **dict.fromkeys((aten.split.Tensor, aten.unsafe_split.Tensor), _split),
    **dict.fromkeys((aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default), _split_with_sizes),
    aten.view.dtype: lambda k: (aten.view.dtype, (NEW, k["parent"].dtype)),
    aten.view_as_real.default: _back(aten.view_as_complex.default),
    aten.view_as_complex.default: _back(aten.view_as_real.default),
    aten._conj.default: _back(aten._conj_physical.default),
    aten._neg_view.default: _back(aten.neg.default),
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
