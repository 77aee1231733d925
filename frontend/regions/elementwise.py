"""Whether a function of single elements, run on tensors of all elements at once, gives the same for each.

torch's vmap would run it as on tensors without dimensions. Run on tensors that broadcast over each other, the function gives the same
where each of its operators works element by element, and where a tensor from around is either a number (no dimension) or is indexed
in full by such tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..errors import Unsupported
from ..functional.trace import functionalize
from ..values.kinds import isinstance
from .capture import Body

__all__ = ["not_elementwise", "same_calls"]

aten = torch.ops.aten
_ALSO = frozenset({aten._to_copy.default, aten.floor_divide.default, aten.floor_divide_.Tensor, aten.alias.default})


def same_calls(first: Body, second: Body) -> bool:
    """Whether two captures of a function made the same calls: with the same numbers, of the same values."""

    def calls(body: Body) -> list[str]:
        places = {node: f"%{place}" for place, node in enumerate(body.module.graph.nodes)}
        given = ((n, fx.node.map_arg((n.args, n.kwargs), places.__getitem__)) for n in places)  # type: ignore[arg-type]
        return [f"{n.op} {n.target if n.op.startswith('call') else ''} {args}" for n, args in given]

    reads = len(first.reads) == len(second.reads) and all(map(operator.is_, first.reads, second.reads))
    return reads and calls(first) == calls(second)


def not_elementwise(body: Body, given: Sequence[Tensor]) -> str:
    """Why the function does not work element by element on what it is given, tensors of the same number of dimensions; "": it does."""
    if body.tree != pytree.tree_structure(0):
        return "its result is not one number"
    try:
        graph = functionalize(body.module, [*body.reads, *given]).graph_module.graph
    except Unsupported as error:
        return str(error)
    rank = given[0].dim()
    many = set(graph.find_nodes(op="placeholder")[len(body.reads) :])
    for node in graph.nodes:
        if node.op != "call_function" or many.isdisjoint(node.all_input_nodes):
            continue
        if not _keeps_elements(node, many, rank):
            return f"{node.target} is not elementwise there"
        many.add(node)
    (results,) = graph.find_nodes(op="output")[0].args
    if len(results) != 1 or results[0] not in many and results[0].meta["val"].dim():  # type: ignore[arg-type,index,union-attr]
        return "its result is not one number"
    return ""


def _keeps_elements(node: fx.Node, many: set[fx.Node], rank: int) -> bool:
    target, value = node.target, node.meta["val"]
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, Tensor) or value.dim() != rank:
        return False
    if target is aten.index.Tensor:
        return _is_full_index(node, many)
    if torch.Tag.pointwise not in target.tags and target not in _ALSO:
        return False
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta["val"], Tensor)]
    single = [n.meta["val"] for n in tensors if n not in many]
    if len(tensors) != len(node.all_input_nodes) or any(t.dim() for t in single):
        return False
    wide = [n.meta["val"].dtype for n in tensors if n in many]
    # Among elements a tensor without dimensions decides on the dtype as any other does.
    return all(torch.promote_types(t.dtype, w) in wide for t in single for w in wide)


def _is_full_index(node: fx.Node, many: set[fx.Node]) -> bool:
    """A tensor from around, indexed by as many tensors of integers as it has dimensions."""
    base: Any = node.args[0]
    places: Any = node.args[1]
    if base in many or len(places) != base.meta["val"].dim() or None in places:
        return False
    kinds = [place.meta["val"] for place in places]
    return all(k.dtype in (torch.int32, torch.int64) for k in kinds) and all(
        place in many or kind.dim() == 0 for place, kind in zip(places, kinds, strict=True)
    )
