"""Truths and numbers that follow from integers of the caller's (masks, lengths, sizes in buffers): asked again in front of the graph.

Where a graph would end because Python needs such a value, capture takes the one of the call that is captured, and a guard computes it
again in each call. That is right whatever the value depends on; it is only worth it where the value seldom changes and costs little. So
it has to follow from integers and truths alone, by few operators, and a value that has turned often breaks the graph as any other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..entry.nature import has_no_effect, may_draw
from ..errors import CaptureError, GraphBreak
from ..graph.aside import storage_of
from ..graph.output import MUTATES, GraphInput
from ..graph.read_numbers import read_list, read_truth
from ..graph.sym_nodes import FUNCTIONS, applied
from ..guards.computation import Computation
from ..guards.drawn import is_drawn
from ..guards.source import Computed, Fetch, Made, Source
from ..state import Interpreter
from ..torch_private.fake import real_tensors
from ..torch_private.symbols import is_unknown
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import SYMBOLIC, isinstance

__all__ = ["list_asked", "number_asked", "read_asked", "retried", "settled", "unknown_number"]

NUMBER = "control flow or a number depends on a tensor's values"
_MOST = 48  # operators between the caller's integers and a value
_TURNS = 2  # a value that turns more often breaks the graph
_WHOLE = frozenset([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])


def number_asked(vm: Interpreter, value: Any) -> Any:
    """What a tensor of one number holds, or what a number is that only the running program knows, guarded; None where the graph has to end."""
    try:
        node = _node_of(vm, value)
    except CaptureError:
        return None
    computed = None if node is None else _computed(vm, node)
    if computed is None:
        return None
    computation, inputs, found = computed
    if type(found) not in (bool, int, float) or found != found:
        return None
    settings = [i for i in inputs if isinstance(i.fake, Tensor)]
    if all(i.static and i.fake.numel() == 1 for i in settings) and len(settings) == len(inputs):
        with real_tensors():
            guards: list[tuple[Source, Any]] = [(Fetch(Tensor.item, i.source), i.real.item()) for i in settings]
    else:
        guards = [(Fetch(type(found), Computed(computation, tuple(i.source for i in inputs))), found)]
    if any(vm.dynamic.marks.turns.get(source, 0) > _TURNS for source, _ in guards):
        return None
    for source, expected in guards:
        vm.guards.add("equals", source, expected)
    _note(value, found)
    return found


def list_asked(vm: Interpreter, tensor: Tensor) -> Any:
    """What `tensor.tolist()` gives of whole numbers or truths that follow from the caller's, guarded; None where the graph has to end."""
    if tensor.dtype not in _WHOLE or not vm.out.is_known(tensor):
        return None
    computed = _computed(vm, vm.out.node(tensor), True)
    if computed is None:
        return None
    computation, inputs, found = computed
    source = Fetch(str, Computed(computation, tuple(info.source for info in inputs)))
    if type(found) is not str or vm.dynamic.marks.turns.get(source, 0) > _TURNS:
        return None
    vm.guards.add("equals", source, found)
    return ast.literal_eval(found)


def _computed(vm: Interpreter, node: fx.Node, listed: bool = False) -> tuple[Computation, list[GraphInput], Any] | None:
    """What a guard computes again, of which inputs, and what it is in the call that is captured."""
    if vm.side is not None or vm.out.inside or vm.exporting:
        return None
    part = _Part(vm).of(node)
    if part is None:
        return None
    computation, inputs = part
    if any(is_drawn(info.source) for info in inputs):
        return None
    computation = replace(computation, listed=listed)
    with real_tensors():
        found = computation(*(i.real.detach() if isinstance(i.real, Tensor) else i.real for i in inputs))
    return computation, inputs, found


def settled(vm: Interpreter, args: Any, kwargs: Any, reads: Any = None) -> Any:
    """The arguments of a call with numbers in place of what only the running program knows; None where nothing was found.

    Where the call has just asked for values, `reads` is its function or method. Then these are tensors of one integer, too, but for the
    first argument, and any tensor of one number where the operator takes a number in all its overloads.
    """
    found = False

    def number(item: Any, inside: bool, place: int | str = "") -> Any:
        nonlocal found
        kind = type(item)
        if kind in (tuple, list, torch.Size):
            made = [number(i, True) for i in item]
            return made if kind is list else tuple(made)
        if kind is dict:
            return {k: number(i, True, k) for k, i in item.items()}
        if isinstance(item, SYMBOLIC):
            asked = number_asked(vm, item) if _is_read(item) else None
        elif isinstance(item, Tensor):
            for size in item.shape:
                if isinstance(size, torch.SymInt) and _is_read(size) and number_asked(vm, size) is not None:
                    found = found or not _is_read(size)
            whole = inside and item.dtype in _WHOLE and item.dtype != torch.bool
            takes = reads is not None and item.dim() == 0 and (whole or _takes_number(reads, place))
            asked = number_asked(vm, item) if takes else None
        else:
            asked = None
        if asked is None:
            return item
        found = True
        return asked

    made = *(number(a, k > 0, k) for k, a in enumerate(args)), number(kwargs, True)
    return (made[:-1], made[-1]) if found else None


def _takes_number(target: Any, place: int | str) -> bool:
    """Whether an operator of ATen's takes a number, and no tensor, for an argument by number or by name."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() and not name.startswith("__") else None
    if packet is None:
        return False
    kinds = set()
    for overload in packet.overloads():
        given = getattr(packet, overload)._schema.arguments
        kinds |= {
            str(a.type)
            for k, a in enumerate(given)
            if place == (a.name if isinstance(place, str) else k if not a.kwarg_only else None)
        }
    return bool(kinds) and kinds <= {"number", "float", "int", "Optional[number]", "Optional[float]", "Optional[int]"}


def read_asked(vm: Interpreter, tensor: Tensor, method: str) -> Any:
    """What stands for `tensor.item()` or `tensor.tolist()`; None of other methods, and where the graph has to end."""
    if method not in ("item", "tolist") or is_wrapped(tensor):  # what numbers a wrapper tensor has, its class says
        return None
    if method == "tolist" and isinstance(kept := getattr(tensor, "constant", None), Tensor):
        with real_tensors():  # a GPU's list is a copy on the host
            return kept.tolist()
    number = read_list(vm, tensor, method)
    if number is None and method == "tolist":
        return list_asked(vm, tensor)
    if number is None and method == "item":
        number = number_asked(vm, tensor)
        if number is None and tensor.dtype is torch.bool and getattr(tensor, "constant", None) is None:
            number = read_truth(vm, tensor)
    return number


def retried(vm: Interpreter, error: Exception, function: Any, args: Any, kwargs: Any) -> Any:
    """A call of Python code that failed for a number that only the running program knows: again, with numbers."""
    recording, vm.recording = vm.recording, False
    try:
        counter = vm.branches.loops.counted(vm, args) if function is range else None
        again = settled(vm, args, kwargs) if counter is None else None
    finally:
        vm.recording = recording
    if counter is not None:
        return counter
    if again is None:
        refused = vm.branches.loops.refused if function is range else None
        raise (GraphBreak(f"{NUMBER}, and {refused}") if refused else unknown_number(error)) from None
    return vm.native(function, *again[0], **again[1])


def unknown_number(error: Exception) -> GraphBreak:
    """The break where Python code asks for a number that only the running program knows."""
    return GraphBreak(f"{NUMBER} ({type(error).__name__})")


def _is_read(value: Any) -> bool:
    expr = getattr(value.node, "expr", None)  # a ragged size of a nested tensor has none
    return expr is not None and any(map(is_unknown, expr.free_symbols))


def _note(value: Any, found: Any) -> None:
    """Tell torch's environment of symbols what a number is."""
    try:
        if isinstance(value, torch.SymBool):
            torch._check(value if found else torch.sym_not(value))
        elif isinstance(value, torch.SymInt):
            torch._check(value == found)
    except RuntimeError:
        pass


def _node_of(vm: Interpreter, value: Any) -> fx.Node | None:
    if isinstance(value, Tensor):
        plain = vm.out.is_known(value) and getattr(value, "constant", None) is None
        return vm.out.node(value) if plain and all(type(n) is int and n == 1 for n in value.shape) else None
    if isinstance(value, torch.SymBool):
        expr = value.node.expr
        function, _ = FUNCTIONS.get(type(expr).__name__, (None, None))
        if function is None:
            return None
        made = applied(function, [vm.out._expr_node(arg, None) for arg in expr.args], vm.out.sym_call)
    else:
        made = vm.out.sym_node(value) if isinstance(value, torch.SymInt) else None
    return made if isinstance(made, fx.Node) else None


class _Part:
    """The nodes that a value follows from."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.inputs = {info.node: info for info in vm.out.inputs.values() if info.node is not None}
        self.found: set[fx.Node] = set()
        self.memory: set[int] = set()

    def of(self, node: fx.Node) -> tuple[Computation, list[GraphInput]] | None:
        """The function, and the inputs that it takes; None where it is none that a guard should run."""
        if not self._add(node):
            return None
        while written := self.memory & self.vm.out._written:
            writes = [n for n in self.vm.out.graph.nodes if n.meta.get(MUTATES) and n not in self.found]
            more = [n for n in writes if any(_memory(a) in written for a in n.all_input_nodes)]
            if not more:
                break
            if not all(map(self._add, more)):
                return None
        nodes = [n for n in self.vm.out.graph.nodes if n in self.found]
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        inputs = [n for n in nodes if n.op == "placeholder"]
        for count, one in enumerate([*inputs, *(n for n in nodes if n.op != "placeholder")]):
            if one.op == "placeholder":
                made[one] = graph.placeholder(f"v{count}")
                continue
            args = fx.map_arg(one.args, made.__getitem__)
            kwargs = fx.map_arg(one.kwargs, made.__getitem__)
            made[one] = graph.create_node(one.op, one.target, args, kwargs, name=f"v{count}")
        graph.output(made[node])
        run: Callable[..., Any] = fx.GraphModule({}, graph).forward
        return Computation(graph.python_code("self").src, run), [self.inputs[n] for n in inputs]

    def _add(self, node: fx.Node) -> bool:
        """Add a node and all before it, if a guard should run them."""
        ahead = [node]
        while ahead:
            one = ahead.pop()
            if one in self.found:
                continue
            if not self._takes(one) or len(self.found) > _MOST:
                return False
            self.found.add(one)
            self.memory.add(_memory(one))
            ahead += one.all_input_nodes
        return True

    def _takes(self, node: fx.Node) -> bool:
        if node.op == "placeholder":
            info = self.inputs.get(node)
            if info is None or type(info.source) is Made:
                return False
            if not isinstance(info.fake, Tensor):
                return type(info.real) is int
            return info.fake.dtype in _WHOLE and type(info.real) in _PLAIN and not self.vm.out.is_written(info)
        return node.op in ("call_function", "call_method") and has_no_effect(node) and not may_draw(node)


_PLAIN = (Tensor, torch.nn.Parameter)


def _memory(node: fx.Node) -> int:
    value = node.meta.get("example_value")
    return storage_of(value) if isinstance(value, Tensor) else 0
