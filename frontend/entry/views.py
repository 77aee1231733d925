"""Results that are views: made again, after the graph, by the calls that made them, in the grad mode of then.

A graph computes memory. Which of the results are views of an argument or of one another, what autograd records of that, and
whether they require gradients, is what the program's own calls (`detach`, `view`, `chunk` ...) say when they run on the real
tensors. So every backend gives eager's answers, and a view made under `no_grad` stays one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from ..errors import Unsupported
from ..graph.output import GRAD_MODE, INFERENCE, MUTATES, OutputGraph
from ..graph.writes import in_place_view
from ..guards.emitter import Emitter
from ..torch_private.dispatch import storage_key
from ..torch_private.dtensor import is_composite, is_shared
from ..torch_private.fake import is_leaf
from ..torch_private.functions import ENTER_AUTOCAST, EXIT_AUTOCAST, SET_GRAD_MODE, OpOverload, OpOverloadPacket
from ..values.kinds import isinstance

__all__ = ["Views", "given_as", "view_of_wrapper"]


class Body(Protocol):
    """The generated code: the graph's outputs, and expressions for values."""

    emit: Emitter
    outputs: list[Tensor]

    def base(self, tensor: Tensor, /) -> str:
        """A result of the graph, or an argument."""

    def value(self, value: Any, /) -> str:
        """Any value of the stack."""


@dataclass
class _Result:
    """One result that may be a view: its name in the generated code, and the nodes from its base to it."""

    name: str
    tensor: Tensor
    base: fx.Node
    chain: list[fx.Node]

    @property
    def is_cut_off(self) -> bool:
        """Whether a view was made where autograd did not look, of a tensor that requires gradients."""
        made = [node.meta["example_value"] for node in self.chain]
        return any(isinstance(v, Tensor) and v.requires_grad and v.grad_fn is None for v in made)


class Views:
    """The results of one capture that may be views; `statements` decides which are, once all are known."""

    def __init__(self, body: Body, out: OutputGraph, with_grad: bool) -> None:
        self.body, self.out, self.with_grad = body, out, with_grad  # the grad mode in which the generated function runs
        self.results: list[_Result] = []
        self._made: dict[fx.Node, str] = {}

    def add(self, tensor: Tensor) -> str | None:
        """A name for the result, or None where it is no view, or its making cannot be repeated."""
        node = self.out.node(tensor)
        chain: list[fx.Node] = []
        while (source := _viewed(node)) is not None:
            chain.insert(0, node)
            node = source
        made = [item.meta["example_value"] for item in chain]
        if not chain or storage_key(tensor) in _changed_shapes(self.out.graph):
            return None
        if any(isinstance(v, Tensor) and v.requires_grad and not _follows(v) for v in made):
            return None  # it was detached, and then written to where autograd looks, or made a leaf
        if not all(self._can_write(argument) for item in chain for argument in _arguments(item)):
            return None
        result = _Result(f"view{len(self.results)}", tensor, node, chain)
        self.results.append(result)
        return result.name

    def tensors(self) -> list[Tensor]:
        """Those that were added."""
        return [result.tensor for result in self.results]

    def statements(self) -> list[str]:
        """What to run right after the graph. A view of memory that no other result shares is one of the graph's results."""
        body, lines = self.body, list[str]()
        keys = [storage_key(t) for t in (*body.outputs, *(r.tensor for r in self.results))]
        for result in self.results:
            inputs = self.out.inputs
            base = result.base.meta["example_value"]
            known = id(base) in inputs or is_composite(base)
            if not known and keys.count(storage_key(base)) == 1 and not result.is_cut_off:
                lines.append(f"{result.name} = {body.base(result.tensor)}")
                continue
            name = body.base(base)
            for node in result.chain:
                made = self._made.get(node)
                if made is None:
                    last = node is result.chain[-1]
                    made = self._made[node] = result.name if last else f"base{len(self._made)}"
                    lines.append(f"{made} = {self._text(node, name)}")
                elif node is result.chain[-1]:
                    lines.append(f"{result.name} = {made}")
                name = made
        return lines

    def sweep(self) -> None:
        """Remove from the graph what only the repeated calls needed."""
        graph = self.out.graph
        for node in reversed(self._made):
            if not node.users:
                graph.erase_node(node)
        for node in reversed(graph.nodes):
            sized = node.op != "placeholder" and isinstance(node.meta.get("example_value"), torch.SymInt)
            if self._made and sized and not node.users:
                graph.erase_node(node)
        marks = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
        if self._made and all(n.target in _MARKS for n in marks):  # balanced: the graph ends in the mode it began in
            for node in reversed(marks):
                graph.erase_node(node)

    def _text(self, node: fx.Node, base: str) -> str:
        emit, method = self.body.emit, node.op == "call_method"
        name = str(node.target) if method else getattr(node.target, "__name__", "view")
        if name in _AS:  # only the sizes of the other tensor matter
            name, method, args = _AS[name], True, [self._argument(tuple(node.meta["example_value"].shape))]
        else:
            args = [self._argument(a) for a in node.args[1:]]
            args += [f"{k}={self._argument(v)}" for k, v in node.kwargs.items()]
        inference = node.meta.get(INFERENCE)
        if inference or node.meta[GRAD_MODE] is not self.with_grad:
            function = emit.constant(getattr(Tensor, name) if method else node.target, name)
            if inference:
                return f"{emit.constant(_in_inference, 'in_inference')}({', '.join([function, base, *args])})"
            return (
                f"{emit.constant(_in_mode, 'in_mode')}({', '.join([str(not self.with_grad), function, base, *args])})"
            )
        if node.target is operator.getitem:
            return f"{base}[{self._index(node.args[1])}]"
        if method:
            return f"{base}.{name}({', '.join(args)})"
        return f"{emit.constant(node.target, name)}({', '.join([base, *args])})"

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple) and index:
            return ", ".join(map(self._part, index)) + ("," if len(index) == 1 else "")
        return self._part(index)

    def _part(self, index: Any) -> str:
        if isinstance(index, slice):
            ends = ("" if end is None else self._argument(end) for end in (index.start, index.stop, index.step))
            return ":".join(ends)
        return self._argument(index)

    def _argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.body.value(value.meta["example_value"])
        if isinstance(value, torch.SymInt):
            return self.body.value(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self._argument, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._argument, value))}]"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._argument, (value.start, value.stop, value.step)))})"
        return self.body.emit.literal(value)

    @staticmethod
    def _can_write(value: Any) -> bool:
        if isinstance(value, fx.Node):
            return isinstance(value.meta["example_value"], int | torch.SymInt)
        return value is None or value is Ellipsis or isinstance(value, _PLAIN)


def given_as(body: Any, tensor: Tensor) -> str | None:
    """The name of a result that is made behind the graph: a view, or one of the caller's tensors by a truth that the graph gives."""
    picked = body.vm.branches.choices.pick(body.vm, tensor)
    if picked is None:
        name: str | None = body.views.add(tensor)
        return name
    takes, both = picked
    first, second = (body.base(tensor) if one is None else body.value(one) for one in both)
    made: str = body._fresh(tensor, f"{first} if {body.base(takes)} else {second}")
    return made


def view_of_wrapper(views: Views | None, tensor: Tensor) -> str:
    """The name of a view of a wrapper tensor of the caller's, which is made again: autograd and versions know of it."""
    name = None if views is None or is_shared(tensor) else views.add(tensor)
    if name is None:
        raise Unsupported(f"a view of a {type(tensor).__qualname__} of the caller's is given out")
    return name


_AS = {"view_as": "view", "expand_as": "expand", "reshape_as": "reshape"}
_PLAIN = (bool, int, float, str, torch.dtype, torch.memory_format)
_MARKS = (SET_GRAD_MODE, ENTER_AUTOCAST, EXIT_AUTOCAST)


def _in_mode(mode: bool, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with gradients on or off."""
    with torch.set_grad_enabled(mode):
        return function(*args, **kwargs)


def _in_inference(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function in inference mode."""
    with torch.inference_mode():
        return function(*args, **kwargs)


def _viewed(node: fx.Node) -> fx.Node | None:
    """The node that this one's call only shows in another way; None where it does more, or nothing of the kind."""
    if node.op not in ("call_function", "call_method") or node.meta.get(MUTATES) or GRAD_MODE not in node.meta:
        return None
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or not _is_torchs(node):
        return None
    as_other = _name(node) in _AS
    if not as_other and any(_has_tensors(n.meta.get("example_value")) for n in _given(node)):
        return None
    made, given = node.meta["example_value"], source.meta.get("example_value")
    if isinstance(given, tuple | list):
        return source if node.target is operator.getitem and _viewed(source) is not None else None
    if not isinstance(given, Tensor):
        return None
    items = list(_tensors(made))
    if is_composite(given):  # whose memory is that of others
        root = given if given._base is None else given._base
        return source if items and all(is_composite(i) and i._base is root for i in items) else None
    return source if items and all(storage_key(item) == storage_key(given) for item in items) else None


def _is_torchs(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, str):
        return True
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).startswith("aten.")
    module = getattr(target, "__module__", None)
    return module in (None, "_operator", "builtins") or str(module).startswith("torch")


def _given(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes among the arguments after the first."""
    return (value for value in _arguments(node) if isinstance(value, fx.Node))


def _arguments(node: fx.Node) -> Iterator[Any]:
    """The arguments after the first that matter, those in containers one by one."""
    if _name(node) in _AS:
        return
    for value in (*node.args[1:], *node.kwargs.values()):
        yield from _leaves(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors of a result; whatever else is in it counts as none of them."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Tensor):
        yield value


def _has_tensors(value: Any) -> bool:
    return next(_tensors(value), None) is not None


def _changed_shapes(graph: fx.Graph) -> set[int]:
    """Memory whose tensors get other sizes or strides in place (`t_`, `unsqueeze_`): views of it may be of before."""
    changed = [n.args[0] for n in graph.nodes if in_place_view(_name(n))]
    values = [n.meta["example_value"] for n in changed if isinstance(n, fx.Node)]
    return {storage_key(v) for v in values if isinstance(v, Tensor)}


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")


def _follows(view: Tensor) -> bool:
    """Whether a view requires gradients because its base does: by autograd, or as one that is made without it, which is a leaf."""
    return view._is_view() and (not is_leaf(view) or view._base is not None and view._base.requires_grad)
