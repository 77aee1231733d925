"""A function that an operator is given becomes a graph of its own.

The same interpreter runs it, on the operands or on tensors like them. What it reads beside (closures, parameters, what the program
computed before) becomes an operand of the node that is recorded for the operator. Its results are tensors of their own memory:
what is an operand, a view, or a result twice, is copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils import _pytree as pytree

from ..errors import GraphBreak, Unsupported, UserRaise
from ..gradients.state import VisibleState
from ..graph.aside import storage_of
from ..state import Interpreter
from ..torch_private.fake import data_dependent_errors
from ..values.kinds import isinstance

__all__ = [
    "ENDS",
    "EXACT",
    "WITHIN",
    "Body",
    "captured",
    "differences",
    "emit",
    "is_tracked",
    "over",
    "owned",
    "read_by",
    "result_like",
    "rule",
    "same",
    "single",
    "unlike",
]


ENDS = "ends"  # marks the node of a loop that is known to end
WITHIN = "within"  # marks an index that is never outside
EXACT = "exact"  # marks that of one whose rounds are eager's, whatever check in them fails


@dataclass(frozen=True)
class Body:
    """A captured function.

    Attributes:
        module: its graph: of what it reads of the graph around, then of what it is given.
        reads: what it reads, tensors.
        results: what it gives: tensors of their own memory.
        tree: their nesting.
    """

    module: fx.GraphModule
    reads: list[Tensor]
    results: list[Tensor]
    tree: pytree.TreeSpec


def rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for a call: where a size that only the running program knows would decide, the graph breaks."""
    signature, unknown = inspect.signature(function), data_dependent_errors()

    @wraps(function)
    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(vm, *args, **kwargs)
        except TypeError as error:
            raise GraphBreak(
                f"an operator that takes functions is called in a way that it is not made for: {error}"
            ) from None
        try:
            return function(vm, *args, **kwargs)
        except unknown:
            raise GraphBreak("a size that depends on a tensor's values decides how an operator is called") from None

    return apply


def captured(vm: Interpreter, what: str, function: Any, args: Sequence[Any], given: Sequence[Tensor] = ()) -> Body:
    """The graph of `function(*args)`; of the tensors in `args`, those in `given` are new, and the graph takes them.

    Raises:
        GraphBreak: it cannot be captured, or has an effect; the message begins with `what`.
    """
    state = VisibleState(vm, around=what)
    with vm.out.beside(given) as aside:
        try:
            found = vm.call(function, tuple(args), {})
        except (GraphBreak, Unsupported, UserRaise) as error:
            raise GraphBreak(f"{what} cannot be captured: {error}") from None
        leaves, tree = pytree.tree_flatten(vm.materialize(found))
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise GraphBreak(f"{what} gives something else than tensors")
        if aside.writes():
            raise GraphBreak(f"{what} writes to a tensor that it did not make")
        if vm.branches.choices.is_written(vm):
            raise GraphBreak(f"{what} writes to a tensor that is one of two, by a tensor's value")
        results = owned(vm, what, leaves, aside.tensors())
        module, reads = aside.finish(results)
        if not all(isinstance(r, Tensor) for r in reads):
            raise GraphBreak(f"{what} reads a number that changes between calls")
    if state.is_changed():
        raise GraphBreak(f"{what} changes something that the program sees")
    return Body(module, reads, results, tree)


def owned(vm: Interpreter, what: str, results: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
    """The results, in memory that is theirs alone."""
    inside = {storage_of(t) for t in made if not t._is_view()}
    taken, found = set[int](), list[Tensor]()
    for result in results:
        memory = storage_of(result)
        own = memory in inside and memory not in taken and not result._is_view() and vm.out.is_known(result)
        found.append(result if own else _copy(vm, what, result))
        taken.add(memory)
    return found


def _copy(vm: Interpreter, what: str, value: Tensor) -> Tensor:
    """A copy that lies as the tensor does."""
    copied: Tensor = vm.call(torch.clone, (value,), {})
    if copied.stride() == value.stride():
        return copied
    raise GraphBreak(f"{what} gives a tensor with gaps between its elements, or one over another")


def differences(first: Body, second: Body) -> str:
    """What differs between what two functions give; "" where nothing does."""
    if first.tree != second.tree:
        return f"{_nesting(first.tree)} and {_nesting(second.tree)}"
    return unlike(first.results, second.results)


def unlike(first: Sequence[Tensor], second: Sequence[Tensor]) -> str:
    """What differs between two lists of tensors; "" where nothing does."""
    if len(first) != len(second):
        return f"{len(first)} and {len(second)} tensors"
    for place, (a, b) in enumerate(zip(first, second, strict=True)):
        for what, x, y in (
            ("dtypes", a.dtype, b.dtype),
            ("sizes", list(a.shape), list(b.shape)),
            ("devices", a.device, b.device),
            ("strides", list(a.stride()), list(b.stride())),
        ):
            if not same(x, y):
                return f"result {place} has the {what} {x} and {y}"
    return ""


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; of sizes that the program computes: whether that is known before it runs."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return guard_or_false(a == b)


def _nesting(tree: pytree.TreeSpec) -> str:
    return str(pytree.tree_unflatten(["tensor"] * tree.num_leaves, tree)).replace("'tensor'", "a tensor")


def over(body: Body, operands: Sequence[Tensor]) -> fx.GraphModule:
    """The graph of a body as a function of what it is given, then of all these operands."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    placeholders = body.module.graph.find_nodes(op="placeholder")
    for node in placeholders[len(body.reads) :]:
        copies[node] = graph.placeholder(node.name)
    places = {id(t): graph.placeholder(f"operand_{k}") for k, t in enumerate(operands)}
    for node, value in zip(placeholders, body.reads, strict=False):
        copies[node] = places[id(value)]
    for node in body.module.graph.nodes:
        if node.op == "output":  # torch refuses results that are what is given
            (results,) = node.args
            own = [graph.call_function(torch.clone, (copies[r],)) if r in placeholders else copies[r] for r in results]
            graph.output(tuple(own))
        elif node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(body.module, graph)


def single(module: fx.GraphModule) -> fx.GraphModule:
    """The graph, which gives one result, with that alone and not in a tuple."""
    output = module.graph.find_nodes(op="output")[0]
    output.args = (output.args[0][0],)  # type: ignore[index]
    module.recompile()
    return module


def read_by(*found: Body) -> list[Tensor]:
    """What bodies read of the graph around them."""
    return list({id(t): t for body in found for t in body.reads}.values())


def emit(
    vm: Interpreter,
    target: Any,
    args: Sequence[Any],
    results: Sequence[Tensor],
    tracked: bool = False,
    ends: bool = False,
) -> tuple[Tensor, ...]:
    """Record a call of an operator that takes functions; an argument that is a graph becomes a node that names it.

    `tracked`: autograd records it, so that what it gives requires gradients. `ends`: it is a loop that ends where eager's does, and
    also where a check before or in it fails.
    """

    def lifted(value: Any) -> Any:
        if isinstance(value, fx.GraphModule):
            return vm.out.attribute("body", value)
        return tuple(map(lifted, value)) if isinstance(value, list | tuple) else vm.out.lift(value)

    made = tuple(map(result_like, results))
    if tracked:  # as results of autograd functions
        made = tuple(t.requires_grad_().clone() if t.is_floating_point() or t.is_complex() else t for t in made)
    vm.out.record(target, (tuple(map(lifted, args)), {}), made, False)
    if ends:
        vm.out.node(made[0]).args[0].meta[ENDS] = True  # type: ignore[union-attr]
    return made


def result_like(value: Tensor) -> Tensor:
    """A new fake tensor that lies as this one."""
    return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device)


def is_tracked(values: Sequence[Any]) -> bool:
    """Whether autograd records what is computed of these."""
    return torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values)
