"""Calls on jagged nested tensors that need the lengths of rows, written out on what they are made of."""

from __future__ import annotations

from types import NoneType
from typing import Any

import torch
from torch import Tensor

from ..state import Interpreter
from ..torch_private.wrapped import again, is_jagged, math_attention

__all__ = ["attention", "row", "unbind"]


def unbind(vm: Interpreter, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The rows: pieces of the values, as long as numbers say that are read of the offsets. Rows with gaps between them are torch's."""
    rows = is_jagged(type(tensor)) and tensor._lengths is None  # type: ignore[attr-defined]
    if not rows or (args, kwargs) not in (((), {}), ((0,), {}), ((), {"dim": 0})):
        return vm.out.call_method("unbind", (tensor, *args), kwargs)
    values, offsets = (vm.out.call_method(name, (tensor,), {}) for name in ("values", "offsets"))
    lengths = vm.call_tensor_method(vm.out.call_method("diff", (offsets,), {}), "tolist", (), {})
    return vm.out.call_function(torch.split, (values, vm.materialize(lengths), tensor._ragged_idx - 1), {})  # type: ignore[attr-defined]


def row(vm: Interpreter, tensor: Tensor, key: Any) -> Any:
    """`tensor[key]` of a number, which is one of the rows; NotImplemented for other keys."""
    if type(key) is not int or not is_jagged(type(tensor)) or tensor._lengths is not None:  # type: ignore[attr-defined]
        return NotImplemented
    count = tensor.shape[0]
    if not -count <= key < count:
        return NotImplemented
    return unbind(vm, tensor)[key]


def attention(vm: Interpreter, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of each query to the keys of its row: eager's mathematical one. NotImplemented where eager takes another, or none."""
    options = dict(zip(_OPTIONS, args, strict=False)) | kwargs
    given = [query, key, value]
    if not all(is_jagged(type(each)) for each in given) or not _is_plain(given, options):
        return NotImplemented
    lengths = [_lengths(vm, each) for each in (query, key)]
    longest = [_read(vm, vm.out.call_method("max", (each,), {})) for each in lengths]
    kept = _kept(vm, query, lengths, options["dropout_p"]) if options.get("dropout_p") else None
    return vm.out.call_function(rows_attend, (query, key, value, *longest, options.get("scale"), kept), {})


def _lengths(vm: Interpreter, rows: Any) -> Tensor:
    return vm.out.call_method("diff", (vm.out.call_method("offsets", (rows,), {}),), {})  # type: ignore[no-any-return]


def _read(vm: Interpreter, number: Tensor) -> Any:
    return vm.materialize(vm.call_tensor_method(number, "item", (), {}))


def _kept(vm: Interpreter, query: Any, lengths: list[Tensor], share: float) -> Tensor:
    """Factors of all weights, row by row, of which dropout takes some away: eager draws for these in one call, and not for what fills up.

    What eager does where a row is empty (some such calls are errors) is eager's own: a count below zero sends the call there.
    """
    counts = vm.out.call_method("mul", tuple(lengths), {})
    total = vm.out.call_method("mul", (vm.out.call_method("sum", (counts,), {}), query.shape[1]), {})
    some = vm.out.call_method("gt", (vm.out.call_method("min", (counts,), {}), 0), {})
    count = _read(vm, vm.out.call_function(torch.where, (some, total, -1), {}))
    ones = vm.out.call_function(torch.ones, (count,), {"dtype": query.dtype, "device": query.device})
    return vm.out.call_function(torch.native_dropout, (ones, share, True), {})[0]  # type: ignore[no-any-return]


_OPTIONS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _is_plain(given: list[Any], options: dict[str, Any]) -> bool:
    """Whether eager would compute it by the mathematical kernel for nested tensors."""
    scale = options.get("scale")
    # Of groups nothing is said where there are as many heads: of others eager makes an error.
    grouped = options.get("enable_gqa", False)
    if set(options) - set(_OPTIONS) or options.get("is_causal") or type(grouped) is not bool:
        return False
    share = options.get("dropout_p", 0.0)
    if type(share) not in (int, float) or not 0 <= share <= 1:
        return False
    if options.get("attn_mask") is not None or type(scale) not in (NoneType, int, float) or not math_attention():
        return False
    query, key, value = given
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")) or query.device.type != "cpu":
        return False
    known = [(each.dim(), each._ragged_idx, each._lengths, each.dtype, each.device) for each in given]
    if known != [(4, 2, None, query.dtype, query.device)] * 3 or not query.is_floating_point():
        return False
    sizes = [(each.shape[0], each.shape[1]) for each in given]
    if sizes != sizes[:1] * 3 or not all(n > 0 for n in sizes[0]) or query.shape[3] != key.shape[3]:
        return False
    if key.shape[2] is not value.shape[2] and key.shape[2] != value.shape[2]:
        return False
    return all(each.transpose(1, 2).is_contiguous() for each in given)


def rows_attend(
    query: Any, key: Any, value: Any, most_queries: Any, most_keys: Any, scale: Any, kept: Tensor | None
) -> Any:
    """The rows, filled up to the longest one, attend under a mask; what fills them up is left out again. `kept`: see `_kept`."""
    (queries, of_queries), (keys, of_keys) = _filled(query, most_queries), _filled(key, most_keys)
    values = _filled(value, most_keys)[0]
    empty = of_keys == 0
    mask = (torch.arange(most_keys, device=keys.device) < of_keys[:, None]) | empty[:, None]
    factor = query.shape[3] ** -0.5 if scale is None else scale
    scores = (queries * factor) @ keys.transpose(-2, -1)
    weights = scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
    if kept is not None:
        weights = weights * _in_place(kept, weights, of_queries, of_keys)
    found = (weights @ values).masked_fill(empty[:, None, None, None], 0.0).transpose(1, 2)
    offsets = query.offsets()
    places = torch.arange(query.values().shape[1], device=found.device)
    row = torch.searchsorted(offsets, places, right=True) - 1
    return again(query, found[row, places - offsets[row]])


def _in_place(kept: Tensor, weights: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """The factors where the weights of filled rows stand."""
    _, heads, queries, keys = weights.shape
    counts = of_queries * of_keys * heads
    first, rows, columns = (n[:, None, None, None] for n in (counts.cumsum(0) - counts, of_queries, of_keys))
    head, place, of = (torch.arange(n, device=kept.device) for n in (heads, queries, keys))
    index = first + (head[:, None, None] * rows + place[:, None]) * columns + of
    return torch.cat([kept, kept.new_zeros(1)])[index.clamp(max=kept.shape[0])]


def _filled(rows: Any, most: Any) -> tuple[Tensor, Tensor]:
    """Heads of the rows as one plain tensor, as long as the longest; and the lengths."""
    offsets = rows.offsets()
    values = rows.values().transpose(0, 1)  # items first
    places = offsets[:-1, None] + torch.arange(most, device=offsets.device)
    return values[places.clamp(max=values.shape[0] - 1)].transpose(1, 2), offsets.diff()
