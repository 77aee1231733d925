"""Nodes that name graphs: each graph becomes a function of the module, which an operation calls (ir/regions.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from xdsl.ir import SSAValue

from ..dialects import prim
from ..dialects.aten import aten_op
from ..regions import COND, MAP, SCAN, WHILE_LOOP
from ..syntax import Op

if TYPE_CHECKING:
    from .importer import _Arguments, _Importer

__all__ = ["REGIONS", "import_region"]

# What a node's arguments are: "tensor", "tensors", or "body".
REGIONS: dict[Any, tuple[str, tuple[tuple[str, str], ...]]] = {
    torch.ops.higher_order.cond: (
        COND,
        (("pred", "tensor"), ("true_body", "body"), ("false_body", "body"), ("operands", "tensors")),
    ),
    torch.ops.higher_order.while_loop: (
        WHILE_LOOP,
        (("condition", "body"), ("body", "body"), ("carried", "tensors"), ("operands", "tensors")),
    ),
    torch.ops.higher_order.scan: (
        SCAN,
        (("body", "body"), ("carried", "tensors"), ("items", "tensors"), ("operands", "tensors")),
    ),
    torch.ops.higher_order.map_impl: (MAP, (("body", "body"), ("items", "tensors"), ("operands", "tensors"))),
}


@dataclass
class Functions:
    """The functions beside `@main`, and how many have a name: those inside of them, too."""

    made: list[prim.Func] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=count)


@dataclass(frozen=True)
class _Body:
    """A body as the importer takes it: it gives its results in order."""

    graph_module: fx.GraphModule
    outputs: Sequence[Any]
    effects: Sequence[str] = ()
    mutations: Sequence[Any] = ()


def import_region(importer: _Importer, node: fx.Node, call: _Arguments) -> None:
    """One operation for the node, and a function for each graph that it names: of the same operands, the constants of all last."""
    target, kinds = REGIONS[node.target]
    given: list[tuple[tuple[str, str], Any]] = list(zip(kinds, (*node.args, ()), strict=False))
    inner: list[tuple[str, prim.Func, list[Tensor]]] = []
    further = _binding(importer, node, [importer.values[value] for (_, kind), value in given if kind == "body"])
    carried = sum(len(value) for (name, _), value in given if name == "carried")
    for (name, kind), value in given:
        if kind == "body":
            inner.append((name, *_function(importer, value, further, node)))
            if name == "body" and carried:
                inner[-1][1]["owned"] = tuple((k, k) for k in range(carried))
            continue
        tensors = value if kind == "tensors" else (value,)
        if not all(isinstance(n, fx.Node) and isinstance(n.meta["val"], Tensor) for n in tensors):
            raise importer._failure("a function that an operator is given takes something else than tensors", node)
        for k, tensor in enumerate(tensors):
            importer._take(f"{name}.{k}" if kind == "tensors" else name, tensor, node, call)
    number = sum(name.startswith("operands.") for name in call.names)
    for k, argument in enumerate(further):
        importer._take(f"operands.{number + k}", argument, node, call)
    number += len(further)
    constants = [constant for _, _, own in inner for constant in own]
    for k, constant in enumerate(constants):
        call.operands.append(importer._constant(constant, None))
        call.names.append(f"operands.{number + k}")
        call.strides.append(importer._strides(constant, prim.tensor(call.operands[-1])))
    before = 0
    for _, func, own in inner:
        _widen(func, len(func.block_body.args) - len(own), call, len(call.names) - len(constants), before)
        before += len(own)
        _widen(
            func, len(func.block_body.args), call, len(call.names) - len(constants) + before, len(constants) - before
        )
    types = [importer._type(value, node) for value in node.meta["val"]]
    strides = [importer._strides(value, kind) for value, kind in zip(node.meta["val"], types, strict=True)]
    attrs: dict[str, Any] = {"operands": tuple(call.names)} | {name: func["sym_name"] for name, func, _ in inner}
    for name, entries in (("strides", strides), ("operand_strides", call.strides)):
        if any(entry is not None for entry in entries):
            attrs[name] = tuple(entries)
    if any(_has_effect(func) for _, func, _ in inner):
        attrs["effect"] = True
    op = importer._append(aten_op(target).make(call.operands, types, attrs), node)
    importer.values[node] = dict(enumerate(op.results))


def _binding(importer: _Importer, node: fx.Node, bodies: Sequence[fx.GraphModule]) -> list[fx.Node]:
    """Arguments that functions take besides, because sizes in them are computed of symbols that none of their operands has by itself.

    Of a symbol that the graph is given as a number, one of the tensors that the node is given: the items of a loop show how many there are.
    """
    missing = {name for gm in bodies for name in _symbols(gm) - _bound(gm)}
    given = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), Tensor)]
    found = dict[fx.Node, None]()
    for name in sorted(missing):
        row = importer.sizes.bound.get(name)
        places = [importer.arguments[row[1]]] if row is not None else []
        shows = [each for each in places if isinstance(each.meta["val"], Tensor)]
        shows += [each for each in given if any(str(n) == name for n in each.meta["val"].shape if type(n) is not int)]
        found |= dict.fromkeys(shows[:1])
    return list(found)


def _symbols(gm: fx.GraphModule) -> set[str]:
    """The symbols in sizes and strides of a graph, and of those that it names."""
    found = set[str]()
    for node in gm.graph.nodes:
        named = getattr(gm, str(node.target), None) if node.op == "get_attr" else None
        found |= _symbols(named) if isinstance(named, fx.GraphModule) else set()
        found |= {str(symbol) for size in _sizes(node) for symbol in size.node.expr.free_symbols}
    return found


def _bound(gm: fx.GraphModule) -> set[str]:
    """The symbols that a graph's inputs have by themselves."""
    sizes = (size for node in gm.graph.find_nodes(op="placeholder") for size in _sizes(node))
    return {str(size.node.expr) for size in sizes if size.node.expr.is_Symbol}


def _sizes(node: fx.Node) -> list[torch.SymInt]:
    value = node.meta.get("val")
    found: list[Any] = []
    for part in value if isinstance(value, list | tuple) else (value,):
        found += (*part.shape, *part.stride()) if isinstance(part, Tensor) else (part,)
    return [size for size in found if isinstance(size, torch.SymInt)]


def _taking(gm: fx.GraphModule, further: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph with inputs behind its own that it does not read."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in gm.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
    for node in further:
        graph.placeholder(node.name).meta["val"] = node.meta["val"]
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _function(
    importer: _Importer, body: Any, further: Sequence[fx.Node], node: fx.Node
) -> tuple[prim.Func, list[Tensor]]:
    """The function of a graph, which takes its inputs, then `further`, then the tensors of its own that are given beside it."""
    gm = importer.values[body]
    assert isinstance(gm, fx.GraphModule)
    gm = _taking(gm, further) if further else gm
    (results,) = gm.graph.find_nodes(op="output")[0].args
    if not all(isinstance(r, fx.Node) and isinstance(r.meta["val"], Tensor) for r in results):
        raise importer._failure("a function that an operator is given gives something else than tensors", node)
    outputs = [("value", k) for k in range(len(results))]
    functions = Functions(names=importer.functions.names)
    imported = type(importer)(_Body(gm, outputs, gm.meta.get("effects", ())), functions=functions).run()
    func, *others = [op for op in imported.module.body.block.ops if isinstance(op, prim.Func)]
    func["sym_name"] = f"body{next(functions.names)}"
    for op in (func, *others):
        op.detach()
        importer.functions.made.append(op)
    return func, imported.constants


def _widen(func: prim.Func, place: int, call: _Arguments, first: int, count: int) -> None:
    """Let a function take `count` more arguments of a call, which it does not read."""
    for k in range(count):
        value: SSAValue = call.operands[first + k]
        func.block_body.insert_arg(value.type, place + k)
        for name, entry in (
            ("arg_names", call.names[first + k]),
            ("arg_strides", call.strides[first + k]),
            ("arg_static", False),
        ):
            func[name] = (*func[name][: place + k], entry, *func[name][place + k :])


def _has_effect(func: prim.Func) -> bool:
    return any(isinstance(op, Op) and op.get("effect") for op in func.block_body.ops)
