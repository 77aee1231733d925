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
    """Whether two captures of a function made the same calls: with the same numbers, of the same values.

    An index without dimensions is a number in a graph, and one with dimensions is not: of indexing counts what is taken by what.
    """
    reads = len(first.reads) == len(second.reads) and all(map(operator.is_, first.reads, second.reads))
    return reads and _calls(first) == _calls(second)


def _calls(body: Body) -> list[str]:
    names: dict[fx.Node, str] = {}
    taken: dict[
        fx.Node, tuple[str, frozenset[str]]
    ] = {}  # by what is an element of a tensor: the tensor's name, those of its indices
    rows: list[str] = []
    for node in body.module.graph.nodes:
        if node.target == "item" or node.target == "clone" and all(user.target == "item" for user in node.users):
            names[node] = names[node.all_input_nodes[0]]
        elif indices := _indices(node):
            base = node.all_input_nodes[0]
            before, already = taken.get(base, (names[base], frozenset()))
            taken[node] = before, already | {names[n] for n in indices}
            names[node] = f"{before}{sorted(taken[node][1])}"
        else:
            names[node] = f"%{len(rows)}"
            args = fx.node.map_arg((node.args, node.kwargs), names.__getitem__)  # type: ignore[arg-type]
            rows.append(f"{node.op} {node.target if node.op.startswith('call') else ''} {args}")
    return rows


def _indices(node: fx.Node) -> list[fx.Node]:
    """The values that an element of a tensor is taken by, where the node does nothing else."""
    if node.target is torch.select:
        return [n for n in node.args[2:] if isinstance(n, fx.Node)]
    if node.target is not operator.getitem:
        return []
    key = node.args[1] if isinstance(node.args[1], tuple | list) else (node.args[1],)
    return [n for n in key if isinstance(n, fx.Node)] if all(isinstance(n, fx.Node) for n in key) else []


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
