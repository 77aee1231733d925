"""What is done to a joint graph before it is split: equal nodes become one, and values that say little get a narrow form."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from ..frontend.torch_private.joint import has_effect
from .costs import is_on_gpu

__all__ = ["prepare"]

aten = torch.ops.aten


def prepare(module: fx.GraphModule, *, small: bool = False) -> None:
    """Change the graph in place; results stay nodes of their own, and so does what they are views of.

    With `small`, what takes little to save is worth some time: dropout's mask for what it gives, positions of maxima in a small type.
    """
    graph = module.graph
    results = {node for result in graph.find_nodes(op="output")[0].all_input_nodes for node in _same_memory(result)}
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in results:
            continue
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            continue
        if node.target is aten._conj.default and isinstance(node.args[0], complex):
            _use(node, node.args[0].conjugate())
            continue
        key = _key(node)
        if key is None:
            continue
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        change = _CHANGES.get(node.target) or (_SMALLER.get(node.target) if small else None)
        if change is not None and isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
            change(graph, node)


def _same_memory(result: fx.Node) -> Iterator[fx.Node]:
    """A result, and what it is a view of: memory of its own to the program, whatever else holds the same numbers."""
    node: Any = result
    while isinstance(node, fx.Node):
        yield node
        returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
        node = node.args[0] if any(r.alias_info is not None for r in returns) and node.args else None


def _use(node: fx.Node, number: complex) -> None:
    """Let all users read a number instead."""
    for user in list(node.users):
        user.args = fx.map_arg(user.args, lambda n: number if n is node else n)  # type: ignore[arg-type, return-value]


def _key(node: fx.Node) -> Any:
    """What two equal nodes have in common; None where a node is not to be joined with another."""
    if has_effect(node) or not (isinstance(node.target, OpOverload) or node.target is operator.getitem):
        return None
    key = (node.target, _frozen(node.args), _frozen(node.kwargs))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, float):
        return float, value.hex()  # -0.0 is not 0.0
    return type(value), value


def _narrow(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    """Let all users read the value through a narrow type that holds it exactly."""
    value = node.meta["val"]
    users = list(node.users)
    with graph.inserting_after(node), value.fake_mode:
        small = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
        small.meta = {**node.meta, "val": value.to(dtype)}
    with graph.inserting_after(small):
        wide = graph.call_function(aten._to_copy.default, (small,), {"dtype": value.dtype})
        wide.meta = dict(node.meta)
    for user in users:
        if user.op != "output":
            user.replace_input_with(node, wide)


def _draws_truth(graph: fx.Graph, node: fx.Node) -> None:
    """Numbers that are 0 or 1."""
    if node.meta["val"].dtype.itemsize > 1:
        _narrow(graph, node, torch.bool)


def _of_mask(graph: fx.Graph, node: fx.Node) -> None:
    """dropout(x, p) -> (x * mask * 1 / (1 - p), mask)"""
    given, p, train = node.args
    parts = {n.args[1]: n for n in node.users if n.target is operator.getitem}
    if 0 not in parts or not train or p == 1 or not isinstance(p, float):
        return
    with graph.inserting_after(node):
        mask = parts.get(1) or graph.call_function(operator.getitem, (node, 1))
    if 1 not in parts:
        mask.meta = {**node.meta, "val": node.meta["val"][1]}
    value = parts[0].meta["val"]
    with graph.inserting_before(next(n for n in graph.nodes if n in parts[0].users)):
        kept = graph.call_function(aten.mul.Tensor, (given, mask))
        made = graph.call_function(aten.mul.Tensor, (kept, 1.0 / (1.0 - p)))
    kept.meta, made.meta = dict(parts[0].meta), dict(parts[0].meta)
    assert made.meta["val"] is value
    parts[0].replace_all_uses_with(made)


def _positions(graph: fx.Graph, node: fx.Node) -> None:
    """Positions within a window's plane, of at most 2**31 elements."""
    plane = node.args[0].meta["val"].shape[-2:]  # type: ignore[union-attr]
    if not all(isinstance(n, int) for n in plane) or plane.numel() >= 1 << 31:
        return
    for part in list(node.users):
        if part.target is operator.getitem and part.args[1] == 1 and part.users:
            _narrow(graph, part, torch.int32 if plane.numel() > 127 else torch.int8)


def _of_statistics(graph: fx.Graph, node: fx.Node) -> None:
    """log_softmax(x) -> (x - m) - log(sum(exp(x - m))), m = max(x): both statistics of a row are all that is saved beside x."""
    given, dim, widens = node.args
    assert isinstance(given, fx.Node)
    value, result = given.meta["val"], node.meta["val"]
    if value.dim() == 0 or not all(isinstance(n, int) and n > 0 for n in value.shape) or value.dtype.itemsize > 4:
        return

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        made.meta = {**node.meta, "val": target(*values, **kwargs)}
        return made

    with graph.inserting_before(node), value.fake_mode:
        x = given if value.dtype is torch.float32 else call(aten._to_copy.default, given, dtype=torch.float32)
        shifted = call(aten.sub.Tensor, x, call(aten.amax.default, x, [dim], True))
        total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
        made = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
        if made.meta["val"].dtype is not result.dtype:
            made = call(aten._to_copy.default, made, dtype=result.dtype)
    assert widens or value.dtype is result.dtype
    node.replace_all_uses_with(made)


_NORMS = (
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.native_batch_norm.default,
)


def _from_norm(graph: fx.Graph, node: fx.Node) -> None:
    """threshold_backward(dy, relu(batch_norm(x)), 0): where that was positive is computed of x, which the norm's backward reads anyway.

    Two kernels of a GPU read one image less each. The formula is that of the norm's result in float32, whose sign rounding keeps.
    """
    gradient, result, threshold = node.args
    norm = result.args[0] if isinstance(result, fx.Node) and result.target is aten.relu.default else None
    if threshold != 0 or not isinstance(norm, fx.Node) or norm.target is not operator.getitem or norm.args[1] != 0:
        return
    call = norm.args[0]
    assert isinstance(call, fx.Node) and isinstance(gradient, fx.Node)
    if call.target not in _NORMS or not is_on_gpu(node) or not _trains(call):
        return
    x, weight, bias = call.args[:3]
    saved = {n.args[1]: n for n in call.users if n.target is operator.getitem}
    if not all(isinstance(n, fx.Node) for n in (x, weight, bias)) or not {1, 2} <= saved.keys():
        return
    floats = [n.meta["val"].dtype for n in (weight, bias, saved[1], saved[2])]  # type: ignore[union-attr]
    if any(kind is not torch.float32 for kind in floats) or x.meta["val"].dtype.itemsize > 4:  # type: ignore[union-attr]
        return
    shape = [1, -1, *[1] * (x.meta["val"].dim() - 2)]  # type: ignore[union-attr]

    def made(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        found = graph.call_function(target, args, kwargs)
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        found.meta = {**node.meta, "val": target(*values, **kwargs)}
        return found

    def wide(value: Any) -> fx.Node:
        return made(aten.view.default, value, shape)

    with graph.inserting_before(node), node.meta["val"].fake_mode:
        given: Any = x if x.meta["val"].dtype is torch.float32 else made(aten._to_copy.default, x, dtype=torch.float32)  # type: ignore[union-attr]
        scaled = made(
            aten.mul.Tensor, made(aten.sub.Tensor, given, wide(saved[1])), wide(made(aten.mul.Tensor, saved[2], weight))
        )
        shut = made(aten.le.Scalar, made(aten.add.Tensor, scaled, wide(bias)), 0)
        masked = made(aten.masked_fill.Scalar, gradient, shut, 0)
    masked.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(masked)
    graph.erase_node(node)


def _trains(call: fx.Node) -> bool:
    """Whether a norm takes the statistics of its batch."""
    names = [a.name for a in call.target._schema.arguments]  # type: ignore[union-attr]
    return bool(call.kwargs.get("training", call.args[names.index("training")]))


# What is worth it anyway, and what only with little memory.
_CHANGES: dict[Any, Callable[[fx.Graph, fx.Node], None]] = {
    aten.bernoulli.p: _draws_truth,
    aten.bernoulli.default: _draws_truth,
    aten.bernoulli.Tensor: _draws_truth,
    aten._log_softmax.default: _of_statistics,
    aten.threshold_backward.default: _from_norm,
}
_SMALLER: dict[Any, Callable[[fx.Graph, fx.Node], None]] = {
    aten.native_dropout.default: _of_mask,
    aten.max_pool2d_with_indices.default: _positions,
}
