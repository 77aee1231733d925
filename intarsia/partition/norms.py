"""What a norm gives, as a formula of its operand and of its statistics: backward has both, so that nothing else need be saved.

The norm itself reads its operand twice before it has the first result; the formula is computed element by element, in the kernel that
reads it or in one of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["formula_of", "sort_statistics", "sources_of"]

aten = torch.ops.aten
Call = Callable[..., fx.Node]


def sort_statistics(graph: fx.Graph) -> None:
    """Put the statistics of each norm in front of what it gives, so that the graph's order is one of the formula as well."""
    for node in list(graph.nodes):
        if node.target in _NORMS and node.op == "call_function":
            parts = {n.args[1]: n for n in node.users if n.target is operator.getitem}
            for place in (2, 1):
                if place in parts:
                    node.append(parts[place])


def sources_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """What the formula of a norm's result reads; nothing where there is none."""
    found = _parts(node)
    if found is None:
        return ()
    norm, statistics = found
    given = [norm.args[0], *statistics, *_affine(norm)]
    return tuple(dict.fromkeys(n for n in given if isinstance(n, fx.Node)))


def formula_of(node: fx.Node, given: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """The result again, in front of where the graph's next node goes; `given` says what stands for each of `sources_of`."""
    found = _parts(node)
    assert found is not None
    norm, statistics = found
    value = node.meta["val"]

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = node.graph.call_function(target, args, kwargs)
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        with value.fake_mode:
            made.meta = {**node.meta, "val": target(*values, **kwargs)}
        return made

    def wide(source: fx.Node) -> fx.Node:
        if source.meta["val"].dtype is torch.float32:
            return source
        return call(aten._to_copy.default, source, dtype=torch.float32)

    affine = [None if n is None else wide(given(n)) for n in _affine(norm)]
    made = _NORMS[norm.target](call, wide(given(norm.args[0])), [given(n) for n in statistics], *affine)  # type: ignore[arg-type, index]
    if value.dtype is not torch.float32:
        made = call(aten._to_copy.default, made, dtype=value.dtype)
    # A norm lays its result out in its own way, arithmetic as its operands lie; what reads it may be a view of just that.
    if made.meta["val"].stride() == value.stride():
        return made
    return call(aten.clone.default, made, memory_format=_format(value))


def _parts(node: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The norm that gives a node, and its statistics."""
    norm = node.args[0] if node.target is operator.getitem else None
    if not isinstance(norm, fx.Node) or norm.target not in _NORMS or node.args[1] != 0:
        return None
    if norm.target in _TRAINED and not norm.args[3 if norm.target is _OF_BATCH else 5]:
        return None
    parts = {n.args[1]: n for n in norm.users if n.target is operator.getitem}
    places = (1,) if norm.target is _RMS else (1, 2)
    value = norm.args[0].meta["val"]  # type: ignore[union-attr]
    statistics = [parts[k] for k in places if k in parts]
    plain = value.dtype.is_floating_point and value.dtype.itemsize <= 4 and all(isinstance(n, int) for n in value.shape)
    if not plain or len(statistics) < len(places):
        return None
    if any(n.meta["val"].dtype is not torch.float32 for n in statistics):
        return None
    if _format(node.meta["val"]) is None:
        return None
    if norm.target in _TRAINED and any(n.meta["val"].shape != value.shape[1:2] for n in statistics):
        return None
    return norm, statistics


def _format(value: torch.Tensor) -> torch.memory_format | None:
    """The memory format that gives the strides of a tensor; None: there is none."""
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(value.dim(), [])
    return next((f for f in formats if value.is_contiguous(memory_format=f)), None)


def _affine(norm: fx.Node) -> list[fx.Node | None]:
    """Its weight and bias."""
    first = 1 if norm.target in _TRAINED or norm.target is _GROUP else 2
    found = norm.args[first : first + (1 if norm.target is _RMS else 2)]
    return [n if isinstance(n, fx.Node) else None for n in found]


def _batch_norm(
    call: Call, x: fx.Node, statistics: Sequence[fx.Node], weight: fx.Node | None, bias: fx.Node | None
) -> fx.Node:
    """(x - mean) * (scale * weight) + bias, along dimension 1"""
    line, (mean, scale) = [-1, *(1,) * (x.meta["val"].dim() - 2)], statistics

    def spread(value: fx.Node) -> fx.Node:
        return call(aten.view.default, value, line)

    factor = scale if weight is None else call(aten.mul.Tensor, scale, weight)
    made = call(aten.mul.Tensor, call(aten.sub.Tensor, x, spread(mean)), spread(factor))
    return made if bias is None else call(aten.add.Tensor, made, spread(bias))


def _layer_norm(
    call: Call, x: fx.Node, statistics: Sequence[fx.Node], weight: fx.Node | None, bias: fx.Node | None
) -> fx.Node:
    """(x - mean) * scale * weight + bias"""
    made = call(aten.mul.Tensor, call(aten.sub.Tensor, x, statistics[0]), statistics[1])
    made = made if weight is None else call(aten.mul.Tensor, made, weight)
    return made if bias is None else call(aten.add.Tensor, made, bias)


def _rms_norm(call: Call, x: fx.Node, statistics: Sequence[fx.Node], weight: fx.Node | None) -> fx.Node:
    """x * scale * weight"""
    made = call(aten.mul.Tensor, x, statistics[0])
    return made if weight is None else call(aten.mul.Tensor, made, weight)


def _group_norm(
    call: Call, x: fx.Node, statistics: Sequence[fx.Node], weight: fx.Node | None, bias: fx.Node | None
) -> fx.Node:
    """(x - mean) * scale, of each group of channels; * weight + bias, of each channel"""
    shape = x.meta["val"].shape
    groups = statistics[0].meta["val"].shape[1]
    rest = (1,) * (len(shape) - 2)
    parts = call(aten.view.default, x, [shape[0], groups, shape[1] // groups, *shape[2:]])
    mean, scale = (call(aten.view.default, s, [shape[0], groups, 1, *rest]) for s in statistics)
    made = call(aten.mul.Tensor, call(aten.sub.Tensor, parts, mean), scale)
    made = call(aten.view.default, made, list(shape))
    if weight is not None:
        made = call(aten.mul.Tensor, made, call(aten.view.default, weight, [-1, *rest]))
    return made if bias is None else call(aten.add.Tensor, made, call(aten.view.default, bias, [-1, *rest]))


_RMS, _GROUP = aten._fused_rms_norm.default, aten.native_group_norm.default
_OF_BATCH = aten._native_batch_norm_legit.no_stats
_TRAINED = frozenset(
    (
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit_functional.default,
        _OF_BATCH,
        aten.cudnn_batch_norm.default,
    )
)
_NORMS: dict[Any, Callable[..., fx.Node]] = {
    **dict.fromkeys(_TRAINED, _batch_norm),
    aten.native_layer_norm.default: _layer_norm,
    _GROUP: _group_norm,
    _RMS: _rms_norm,
}
