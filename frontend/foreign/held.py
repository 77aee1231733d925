"""Foreign tensors of the caller's that a graph hands whole to its calls: it is given a handle of each, and its parts are not fetched.

Taking one apart is most of what a call with one costs, and of a quantized one it is a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ..state import Interpreter
from ..torch_private.foreign.operators import call_operator
from .tensors import Foreign, handle_input

__all__ = ["hold_whole"]


def hold_whole(vm: Interpreter) -> None:
    """At the end of a capture: parts of the caller's tensors that only calls on the whole take are no inputs any more.

    A call then sees the tensor as it is when the call runs. So nothing may be written to that comes from outside, nothing may be
    recorded for a backward, which could run later, and nothing may have been read of the parts.
    """
    out = vm.out
    known = [f for f in vm.foreign.known.values() if type(f) is Foreign]
    differentiated = bool(out.fake_mode.dispatch.tracked)  # type: ignore[attr-defined]
    if not known or differentiated or any(map(out.is_written, out.inputs.values())):
        return
    for foreign in known:
        others = {id(part) for other in known if other is not foreign for part in other.parts}
        if (
            foreign.source is not None
            and not foreign.opened
            and not foreign.replaced
            and not any(id(p) in others for p in foreign.parts)
        ):
            _hold(vm, foreign)


def _hold(vm: Interpreter, foreign: Foreign) -> None:
    out = vm.out
    infos = [out.inputs[id(part)] for part in foreign.parts]
    nodes = [info.node for info in infos if info.node is not None]
    if len(nodes) < len(infos) or _counts(vm, foreign):
        return
    calls = list(dict.fromkeys(user for node in nodes for user in node.users))
    if not all(_takes_whole(call, nodes, foreign) for call in calls):
        return
    handle = _handle(vm, foreign)
    for call in calls:
        _give(call, nodes, handle)
    for info, node in zip(infos, nodes, strict=True):
        out.graph.erase_node(node)
        out.used.remove(info)
        del out.inputs[id(info.fake)]
        vm.user.arg_tensors.remove(info)


def _counts(vm: Interpreter, foreign: Foreign) -> bool:
    """Whether anything is computed with how many values there are, or guarded of that."""
    sizes = [n for part in foreign.parts for n in (*part.shape, *part.stride()) if isinstance(n, torch.SymInt)]
    if not sizes:
        return False
    symbols = {s for n in sizes for s in n.node.expr.free_symbols}
    symbols -= {s for n in foreign.size if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}
    found = list(vm.out._sym_nodes)
    found += [guard.expr for guard in vm.shape_env.guards]
    return any(symbols & expression.free_symbols for expression in found)


def _takes_whole(call: fx.Node, nodes: list[Any], foreign: Foreign) -> bool:
    """Whether a node is a call that takes these parts together, and none of them alone."""
    if call.target is not call_operator():
        return False
    tensors, _, what = _args(call)
    places = [tensors.index(node) if node in tensors else -1 for node in nodes]
    read = json.loads(what)
    return all(text is None for given in (*read["args"], *read["kwargs"].values()) for text in _texts(given, places))


def _args(call: fx.Node) -> tuple[Any, ...]:
    """Tensors, sizes and text of a call."""
    return call.args


def _give(call: fx.Node, nodes: list[Any], handle: fx.Node) -> None:
    """The call with the handle instead of the parts."""
    before, sizes, what = _args(call)
    read = json.loads(what)
    places = [before.index(node) for node in nodes]
    tensors = [node for node in before if node not in nodes] + [handle]
    moved = {k: tensors.index(node) for k, node in enumerate(before) if node not in nodes}

    def placed(given: Any) -> Any:
        if not isinstance(given, list):
            return given
        word, *rest = given
        if word == "foreign":
            structure, size, parts = rest
            return ["held", len(tensors) - 1] if parts == places else [word, structure, size, [moved[k] for k in parts]]
        return [word, moved[rest[0]]] if word in _OF_TENSORS else [word, *map(placed, rest)]

    read["args"] = list(map(placed, read["args"]))
    read["kwargs"] = {name: placed(given) for name, given in read["kwargs"].items()}
    call.args = (tensors, sizes, json.dumps(read))


def _handle(vm: Interpreter, foreign: Foreign) -> fx.Node:
    assert foreign.source is not None
    real = vm.user.real(foreign.stand_in)
    return vm.out.node(handle_input(vm, real, foreign.source)[0])  # type: ignore[no-any-return]


_OF_TENSORS = frozenset(["tensor", "number", "object", "held"])


def _texts(given: Any, places: list[int]) -> Iterator[Any]:
    """None for each place where the whole is given, and what else is given of its parts."""
    if not isinstance(given, list):
        return
    word, *rest = given
    if word == "foreign" and rest[2] == places:
        yield None
    elif word == "foreign" or word in _OF_TENSORS:
        yield from (k for k in (rest[2] if word == "foreign" else rest) if k in places)
    else:
        for item in rest:
            yield from _texts(item, places)
