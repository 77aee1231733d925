"""Loops that gradients go through: the rounds are counted first, then run by a `scan` of that many, whose backward is one in reverse.

How many rounds there are is decided by the loop without gradients, which gives what takes none in the end, too (counters, truths). Of
what it carries only that is left which the condition and these need: of `for _ in range(n.item())` nothing but the counter. What takes
gradients is carried by the scan alone, as torch's backward of it takes nothing else there; what else a round reads is a row, which a
scan without gradients makes; of a counter, which is a sum of the round's number, no such scan is needed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import GraphBreak
from ..graph.aside import storage_of
from ..graph.read_numbers import read_number
from ..state import Interpreter
from ..torch_private.regions import KEEPS_GRADIENTS, SCAN, TAKES_ROUNDS, WHILE_LOOP
from ..torch_private.regions import rounds as scanned
from ..torch_private.symbols import may_be_no_rows, rows
from .capture import Body, emit, over, result_like, single

__all__ = ["differentiated", "tracked_like", "with_history"]


def tracked_like(value: Tensor) -> Tensor:
    """A new fake tensor that lies as this one, computed of one that requires gradients."""
    return result_like(value).requires_grad_().clone()


def differentiated(
    vm: Interpreter,
    asked: Body,
    again: Body,
    carried: Sequence[Tensor],
    read: Sequence[Tensor],
    known_to_end: bool = False,
) -> tuple[Tensor, ...]:
    """What a loop carries when it ends, computed by as many rounds of `again` as begin while `asked` holds.

    Raises:
        GraphBreak: the number of rounds cannot be read within the graph, or this torch has no scan that takes them.
    """
    if not TAKES_ROUNDS:
        raise GraphBreak(
            "gradients are wanted through a loop that values end; torch before 2.13 has no scan that gives them"
        )
    count = len(carried)
    condition, body = _Round(single(over(asked, read)), count), _Round(_by_tensors(over(again, read)), count)
    tracked = [k for k, t in enumerate(again.results) if t.requires_grad]
    others = [k for k in range(count) if k not in tracked]
    with torch.no_grad():
        given = [vm.call(torch.detach, (t,), {}) if t.requires_grad else t for t in carried]
        operands = [vm.call(torch.detach, (t,), {}) if t.requires_grad else t for t in read]
        rounds, found = _counted(vm, condition, body, others, given, operands, again.results, known_to_end)
        _check_leaves(vm, body, tracked, carried, read, vm.out.call_function(torch.gt, (rounds, 0), {}))
        number = read_number(vm, rounds)
        if number is None:
            raise GraphBreak("gradients are wanted through a loop whose number of rounds cannot be read in the graph")
        items = vm.out.call_function(rows, (number, rounds.device), {})
        may_be_no_rows([number])
        asides = sorted(body.read_for(tracked) - {*tracked})
        stacks = _stacked(vm, body, asides, given, operands, again.results, items)
    part = body.part([*tracked, None, *asides], lambda graph, new: [new(body.results[k]) for k in tracked])
    ends = [again.results[k] for k in tracked]
    starts = with_history(vm, [carried[k] for k in tracked], read)
    made = emit(vm, scanned, (part, starts, [items, *stacks], read), ends, True)
    found.update(zip(tracked, made, strict=True))
    return tuple(found[k] for k in range(count))


def with_history(vm: Interpreter, starts: Sequence[Tensor], read: Sequence[Tensor]) -> list[Tensor]:
    """What is carried into the first round of what gradients go through: computed of something that takes them, if it takes none itself.

    Without that, torch before 2.13 loses what reaches earlier rounds.
    """
    tracked = next((t for t in (*starts, *read) if t.requires_grad), None)
    if KEEPS_GRADIENTS or tracked is None:
        return list(starts)
    kept = [t.requires_grad or not (t.is_floating_point() or t.is_complex()) for t in starts]
    return [start if own else _computed_of(vm, start, tracked) for start, own in zip(starts, kept, strict=True)]


def _computed_of(vm: Interpreter, value: Tensor, other: Tensor) -> Tensor:
    """The value, to autograd a function of another tensor whose gradient is zero."""
    chosen = vm.call(torch.full, ((), True), {"dtype": torch.bool, "device": value.device})
    same = vm.call(Tensor.to, (vm.call(torch.sum, (other,), {}), value.device, value.dtype), {})
    found: Tensor = vm.call(torch.where, (chosen, value, same), {})
    return found


class _Round:
    """The graph of a round, or of the condition: of what is carried, then of operands."""

    def __init__(self, module: fx.GraphModule, count: int) -> None:
        self.module, self.count = module, count
        self.inputs = module.graph.find_nodes(op="placeholder")
        (results,) = module.graph.find_nodes(op="output")[0].args
        self.results: Sequence[Any] = results if isinstance(results, list | tuple) else (results,)
        self.written = _written(module)
        self.writes = bool(self.written)

    def needed(self, wanted: Iterable[fx.Node]) -> set[fx.Node]:
        """The nodes that these are computed of; all, where one writes to a tensor."""
        seen, ahead = set[fx.Node](), list(wanted)
        if self.writes:
            return {n for n in self.module.graph.nodes if n.users or n in ahead or n.op != "placeholder"}
        while ahead:
            node = ahead.pop()
            if node not in seen:
                seen.add(node)
                ahead += node.all_input_nodes
        return seen

    def read_for(self, results: Iterable[int]) -> set[int]:
        """The numbers of what is carried that these results are computed of."""
        seen = self.needed([self.results[k] for k in results])
        return {k for k in range(self.count) if self.inputs[k] in seen}

    def closed(self, results: Iterable[int]) -> list[int]:
        """What has to be carried so that these can be."""
        found = set(results)
        while more := self.read_for(found) - found:
            found |= more
        return sorted(found)

    def part(
        self, given: Sequence[int | None], results: Callable[[fx.Graph, Callable[[fx.Node], fx.Node]], Any]
    ) -> fx.GraphModule:
        """A graph of these of what is carried (None: of something that it does not read), then of the operands."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for k in given:
            made = graph.placeholder("row" if k is None else self.inputs[k].name)
            if k is not None:
                copies[self.inputs[k]] = made
        for node in self.inputs[self.count :]:
            copies[node] = graph.placeholder(node.name)

        def new(last: fx.Node) -> fx.Node:
            needed = self.needed([last])
            for node in self.module.graph.nodes:
                if node in needed and node not in copies and node.op != "output":
                    copies[node] = graph.node_copy(node, copies.__getitem__)
            return copies[last]

        found = results(graph, new)
        graph.output(tuple(found) if isinstance(found, list) else found)
        return fx.GraphModule(self.module, graph)


def _counted(
    vm: Interpreter,
    condition: _Round,
    body: _Round,
    others: Sequence[int],
    carried: Sequence[Tensor],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    known_to_end: bool,
) -> tuple[Tensor, dict[int, Tensor]]:
    """The number of rounds, and what `others` of what is carried are behind the last one."""
    kept = body.closed({*condition.read_for([0]), *others})
    if condition.writes:
        kept = list(range(body.count))
    zero = vm.out.call_function(torch.zeros, ((),), {"dtype": torch.int64, "device": carried[0].device})
    asked = condition.part([None, *kept], lambda graph, new: new(condition.results[0]))

    def next_round(graph: fx.Graph, new: Callable[[fx.Node], fx.Node]) -> list[fx.Node]:
        counter = graph.find_nodes(op="placeholder")[0]
        return [graph.call_function(torch.add, (counter, 1)), *(new(body.results[k]) for k in kept)]

    again = body.part([None, *kept], next_round)
    starts, ends = [zero, *(carried[k] for k in kept)], [zero, *(results[k] for k in kept)]
    made = emit(vm, WHILE_LOOP, (asked, again, starts, operands), ends, ends=known_to_end)
    found = dict(zip(kept, made[1:], strict=True))
    return made[0], {k: found[k] for k in others}


def _stacked(
    vm: Interpreter,
    body: _Round,
    wanted: Sequence[int],
    carried: Sequence[Tensor],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    items: Tensor,
) -> list[Tensor]:
    """What these of what is carried are at the beginning of each round, one row a round."""
    steps = {k: step for k in wanted if (step := _step(body, k)) is not None}
    found = {
        k: vm.call(torch.add, (vm.call(torch.mul, (items, step), {}), carried[k]), {}) for k, step in steps.items()
    }
    rest = [k for k in wanted if k not in steps]
    if rest:
        kept = body.closed(rest)

        def with_rows(graph: fx.Graph, new: Callable[[fx.Node], fx.Node]) -> list[fx.Node]:
            last = [new(body.results[k]) for k in kept]
            return [*last, *(graph.call_function(torch.clone, (copy,)) for copy in _given(graph, kept, rest))]

        again = body.part([*kept, None], with_rows)
        ends = [results[k] for k in kept]
        stacks = [
            torch.empty((items.shape[0], *t.shape), dtype=t.dtype, device=t.device)
            for t in map(results.__getitem__, rest)
        ]
        made = emit(vm, SCAN, (again, [carried[k] for k in kept], [items], operands), [*ends, *stacks])
        found.update(zip(rest, made[len(kept) :], strict=True))
    return [found[k] for k in wanted]


def _given(graph: fx.Graph, kept: Sequence[int], wanted: Sequence[int]) -> list[fx.Node]:
    """The inputs of a part for these of what it carries."""
    inputs = graph.find_nodes(op="placeholder")
    return [inputs[kept.index(k)] for k in wanted]


def _by_tensors(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with tensors for numbers that are read of them, where these say which row is written or read: `out[n] = h`, `x[n]`.

    What backward needs of a round is a row of a tensor, which a number is not.
    """
    graph = module.graph
    written = _written(module)
    for node in graph.find_nodes(op="call_function", target=torch.select):
        base, place, number = (*node.args, None, None)[:3]
        if node.kwargs or not isinstance(number, fx.Node) or number.target != "item":
            continue
        stores = [u for u in node.users if u.target is operator.setitem and u.args[:2] == (node, ...)]
        if len(stores) == len(node.users) == 1:
            with graph.inserting_before(stores[0]):
                there = graph.call_method("movedim", (base, place, 0))
                graph.call_method("index_put_", (there, (number.args[0],), stores[0].args[2]))
            graph.erase_node(stores[0])
        elif _memory(base) not in written:
            with graph.inserting_before(node):
                index = graph.call_method("reshape", (number.args[0], (1,)))
                row = graph.call_function(torch.index_select, (base, place, index))
                row = graph.call_method("squeeze", (row, place))
            row.meta.update(node.meta)
            node.replace_all_uses_with(row)
        else:
            continue
        graph.erase_node(node)
    for node in reversed([*graph.find_nodes(op="call_method", target="item")]):
        if not node.users:
            graph.erase_node(node)
    module.recompile()
    return module


def _written(module: fx.GraphModule) -> set[Any]:
    """The memory that a graph writes to."""
    return {_memory(node.args[0] if node.args else None) for node in module.graph.nodes if _writes(node)}


def _memory(node: Any) -> Any:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return storage_of(value) if isinstance(value, Tensor) else node


def _check_leaves(
    vm: Interpreter,
    body: _Round,
    tracked: Sequence[int],
    carried: Sequence[Tensor],
    read: Sequence[Tensor],
    any_: Tensor,
) -> None:
    """Where gradients come to other tensors if there is no round, the call runs in eager then: there these have no gradient, not zeros.

    Raises:
        GraphBreak: there can be no such check, or it depends on the number of rounds which tensors gradients come to.
    """
    inside = {node: k for k, node in enumerate(body.inputs)}
    given = [_leaves([vm.out.node(t)]) for t in (*carried, *read)]
    sources = {k: {inside[n] for n in _leaves([body.results[k]]) if n in inside} for k in tracked}
    if body.writes:
        sources = {k: {*tracked, *range(body.count, len(given))} for k in tracked}
    before = {k: given[k] for k in tracked}
    rounds = [before]
    for _ in range(3):
        last = rounds[-1]
        rounds.append({k: set().union(*(last[j] if j in last else given[j] for j in sources[k])) for k in tracked})
    if rounds[1] != rounds[2] or rounds[2] != rounds[3]:
        raise GraphBreak("the number of rounds of a loop decides which tensors gradients come to")
    if rounds[0] != rounds[1] and not vm.checks.begins(vm, any_):
        raise GraphBreak("gradients are wanted through a loop that may have no round")


def _leaves(last: Sequence[fx.Node]) -> set[fx.Node]:
    """The inputs of a graph that require gradients and that these nodes are computed of."""
    seen, ahead = set[fx.Node](), list(last)
    while ahead:
        node = ahead.pop()
        value = node.meta.get("example_value")
        if node in seen or isinstance(value, Tensor) and not value.requires_grad:
            continue
        seen.add(node)
        ahead += node.all_input_nodes
    return {n for n in seen if n.op == "placeholder"}


def _step(body: _Round, k: int) -> int | None:
    """By how much a counter grows in each round; None of what is none."""
    node, given = body.results[k], body.inputs[k]
    value = given.meta.get("example_value")
    if (
        node.target not in (torch.add, operator.add)
        or len(node.args) != 2
        or node.kwargs
        or _memory(given) in body.written
    ):
        return None
    a, b = node.args
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim():
        return None
    step = b if a is given else a if b is given else None
    return step if type(step) is int else None


def _writes(node: fx.Node) -> bool:
    """Whether a node may do more than give a value: by its name."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__") or name in _WRITING
    return named or "out" in node.kwargs or bool(node.is_impure())


_OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
)
_WRITING = frozenset(["__setitem__", "setitem", "batch_norm", "instance_norm", *(f"i{name}" for name in _OPERATORS)])
