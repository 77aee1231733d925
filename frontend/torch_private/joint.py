"""The joint graph of forward and backward as AOTAutograd hands it over, and the two halves that it takes back.

What the halves agree on: forward takes the graph's inputs and gives the results, then the saved tensors, then the saved
sizes; backward takes the saved sizes, the saved tensors and the gradients that arrive. Every symbol of what backward takes
is one of its sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload

from ..graph.value_errors import raises_on_values
from .dispatch import draws_numbers, is_seeded
from .graphs import lazy_graph_module
from .symbols import is_relied_on, unknown_symbol

__all__ = [
    "Joint",
    "gives_nothing",
    "has_effect",
    "hint",
    "is_size",
    "is_view",
    "may_repeat",
    "raise_unread",
    "shows_number",
    "without_unread",
]


def is_size(node: fx.Node) -> bool:
    """Whether a node gives a symbolic number or condition, not a tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def hint(size: Any, otherwise: int) -> int:
    """A size as it was when the graph was captured; `otherwise` where only the running program knows it."""
    if isinstance(size, int):
        return size
    known = getattr(size.node, "hint", None)
    return int(known) if known is not None else otherwise


class Joint:
    """A joint graph, read.

    Attributes:
        module, graph: the graph itself.
        inputs: what forward takes.
        arriving: the gradients that backward takes.
        results: what forward gives to the program, nodes or constants.
        gradients: what backward gives.
        late: what only backward can compute: it depends on a gradient that arrives, or is marked as its own.
        kept: nodes that are done in forward even where nothing reads them.
        kept_late: the same in backward.
    """

    def __init__(self, module: fx.GraphModule, results: int, kept: Iterable[fx.Node] = ()) -> None:
        self.module, self.graph = module, module.graph
        placeholders = self.graph.find_nodes(op="placeholder")
        self.arriving = [n for n in placeholders if _arrives(n)]
        self.inputs = [n for n in placeholders if not _arrives(n)]
        everything = pytree.tree_leaves([n.args for n in self.graph.find_nodes(op="output")])
        self.results, self.gradients = everything[:results], everything[results:]
        self.late = set(self.arriving)
        for node in self.graph.nodes:
            own = _own_of_backward(node)
            if node.op != "output" and (own or not self.late.isdisjoint(node.all_input_nodes)):
                self.late.add(node)
        effects = [n for n in self.graph.nodes if n.op not in ("placeholder", "output") and has_effect(n)]
        self._asked = set(kept)
        self.kept = [n for n in self.graph.nodes if n not in self.late and (n in self._asked or n in effects)]
        self.kept_late = [n for n in effects if n in self.late]
        self._order = {n: i for i, n in enumerate(self.graph.nodes)}

    def again(self) -> Joint:
        """The graph read again, after it was changed."""
        return Joint(self.module, len(self.results), [n for n in self.graph.nodes if n in self._asked])

    def needed(self, wanted: Iterable[Any], given: Iterable[fx.Node] = ()) -> set[fx.Node]:
        """What has to be computed for `wanted` where `given` is known, `given` included as far as it is read."""
        known, found = set(given), set[fx.Node]()
        waiting = [n for n in wanted if isinstance(n, fx.Node)]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += node.all_input_nodes if node not in known else ()
        return found

    def halves(self, saved: Sequence[fx.Node], last: Collection[fx.Node] = ()) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The two graphs; of `saved`, in the graph's order, backward takes what it reads: channels-last what is in `last`."""
        wanted = [*self.gradients, *self.kept_late]
        read = self.needed(wanted, [*saved, *self.arriving])
        saved = sorted((n for n in saved if n in read), key=self._order.__getitem__)
        tensors = [n for n in saved if not is_size(n)]
        # Those whose versions autograd does not look at come last.
        tensors.sort(key=lambda n: bool(n.meta.get("saved_tensor_with_no_vc_check", False)))
        sizes = self._symbols([*(n for n in saved if is_size(n)), *tensors, *self.arriving])
        turned = {n: _channels_last(n.meta["val"]) for n in tensors if n in last}
        visible = [(x, False) for x in self.results]
        wanted_first = [*visible, *((n, n in turned) for n in tensors), *((n, False) for n in sizes)]
        forward = self._part(self.inputs, wanted_first, self.kept, _as_they_are, {})
        late = [(x, False) for x in self.gradients]
        backward = self._part([*sizes, *tensors, *self.arriving], late, self.kept_late, self._late_first, turned)
        return forward, backward

    def _symbols(self, taken: Sequence[fx.Node]) -> list[fx.Node]:
        """The sizes that backward takes: symbols by themselves first, then what is computed of them."""
        from torch.fx.experimental.symbolic_shapes import (
            find_symbol_binding_fx_nodes,
            free_symbols,
            is_symbol_binding_fx_node,
        )

        bound, derived = list[fx.Node](), list[fx.Node]()
        known = set[Any]()
        for node in taken:
            if is_size(node):
                symbol = is_symbol_binding_fx_node(node)
                (bound if symbol else derived).append(node)
                known |= {symbol} if symbol else set()
        binding = find_symbol_binding_fx_nodes(self.graph)
        for node in taken:
            if node in bound or "val" not in node.meta:
                continue
            missing = sorted((s for s in free_symbols(node.meta["val"]) - known if s in binding), key=lambda s: s.name)
            bound += [binding[s] for s in missing]
            known.update(missing)
        return [*bound, *derived]

    def _late_first(self, nodes: list[fx.Node], given: Iterable[fx.Node]) -> list[fx.Node]:
        """Backward's own nodes in their order; what they read of forward is computed just before."""
        done, order = set(given), list[fx.Node]()
        wanted = set(nodes)

        def add(last: fx.Node) -> None:
            found = [n for n in self.needed([last], done) if n in wanted and n not in done]
            order.extend(sorted(found, key=self._order.__getitem__))
            done.update(found)

        for node in nodes:
            if node in self.late:
                add(node)
        for node in nodes:
            if node not in done:
                add(node)
        return order

    def _part(
        self,
        given: Sequence[fx.Node],
        asked: Sequence[tuple[Any, bool]],
        kept: Sequence[fx.Node],
        ordered: Callable[[list[fx.Node], Iterable[fx.Node]], list[fx.Node]],
        turned: Mapping[fx.Node, torch.Tensor],
    ) -> fx.GraphModule:
        """A graph that computes what is asked for, channels-last or as it is, and does what is `kept`, of what is `given`.

        Args:
            turned: what of the given lies channels-last, as it arrives. What reads it (a view, say) was traced with
                the layout that it had, and has it again; that is a copy in eager alone, kernels read either layout.
        """
        made, known = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in given:
            known[node] = made.placeholder(node.name)
            known[node].meta = dict(node.meta)
            if node in turned:
                known[node].meta["val"] = turned[node]
                known[node] = _turned(made, known[node], node.meta, torch.contiguous_format)
        wanted = [x for x, _ in asked]
        needed = self.needed([*wanted, *kept], given)
        for node in ordered([n for n in self.graph.nodes if n in needed and n not in known], given):
            if node.op == "placeholder":
                raise RuntimeError(f"a half of a joint graph reads {node.name}, which it is not given")
            known[node] = made.node_copy(node, known.__getitem__)
        made.output(tuple(_given(made, known[x], last) if isinstance(x, fx.Node) else x for x, last in asked))
        made.lint()
        return lazy_graph_module(self.module, made)


def without_unread(graph: fx.Graph) -> None:
    """Let backward take what it reads alone, in place: a batch norm's in training reads statistics of the batch, not the running ones."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default):
        if node.args[_TRAIN] is True:
            node.args = (*node.args[:_RUNNING], None, None, *node.args[_RUNNING + 2 :])


_RUNNING, _TRAIN = 3, 7  # places of running_mean, in front of running_var, and of train among the operator's arguments


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous(memory_format=torch.channels_last)


def _given(graph: fx.Graph, node: fx.Node, last: bool) -> fx.Node:
    """What a half gives for a node: the same, or its values channels-last."""
    if not last:
        return node
    return _turned(graph, node, node.meta, torch.channels_last)


def _turned(graph: fx.Graph, node: fx.Node, meta: Mapping[str, Any], form: torch.memory_format) -> fx.Node:
    """The values of a node in another memory format; `meta`: what else is known of them."""
    turned = graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": form})
    turned.meta = {**meta, "val": meta["val"].contiguous(memory_format=form)}
    return turned


def _as_they_are(nodes: list[fx.Node], given: Iterable[fx.Node]) -> list[fx.Node]:
    return nodes


def _arrives(node: fx.Node) -> bool:
    return "tangents" in str(node.target) or any(n in str(node.target) for n in ("bwd_seed", "bwd_base_offset"))


def _own_of_backward(node: fx.Node) -> bool:
    """Whether a node that may not depend on a gradient was run by backward, with an effect of its own."""
    tag = node.meta.get("partitioner_tag")
    if tag == "must_be_in_backward":
        return True
    changes = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    return tag == "is_backward" and (changes or is_seeded(node.target))


def is_view(node: fx.Node) -> bool:
    """Whether a node gives a view of its first operand."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
        return False
    if node.target is torch.ops.aten._unsafe_view.default:
        return True
    returned = node.target._schema.returns
    return bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write


def may_repeat(node: fx.Node) -> bool:
    """Whether a node gives the same again when it is computed again, and does nothing else.

    Only operators of torch's own are known well enough.
    """
    target = node.target
    if node.op != "call_function":
        return node.op == "get_attr"
    if has_effect(node) or isinstance(target, HigherOrderOperator) or _is_unknown(node):
        return False
    if not isinstance(target, OpOverload):
        return True  # numbers: operators of Python, torch.sym_*
    return target.namespace in ("aten", "prims")


def has_effect(node: fx.Node) -> bool:
    """Whether a node does something beside giving its value: it writes, checks, draws random numbers, or talks to other processes."""
    if isinstance(node.target, OpOverload) and node.target.namespace.startswith("_c10d_functional"):
        return True
    return bool(node.is_impure(impure_random=False)) or draws_numbers(node.target, node.args, node.kwargs)


def _is_unknown(node: fx.Node) -> bool:
    """Whether sizes of a node's value, or the number that it is, are known to the running program alone."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(node.meta.get("val")))


def gives_nothing(function: object) -> bool:
    """An operator that is called for a check alone."""
    return isinstance(function, OpOverload) and function.namespace == "aten" and not function._schema.returns


def shows_number(function: object) -> bool:
    """An operator whose result shows a number that only the running program knows."""
    return isinstance(function, OpOverload) and not _SHOW_NUMBERS.isdisjoint(function.tags)


_SHOW_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _shows_checked(node: fx.Node) -> bool:
    """Whether something was taken for granted of a number that a node shows, which nothing else might."""
    value = node.meta.get("val") if shows_number(node.target) else None
    sizes = value.shape if isinstance(value, Tensor) else (value,)
    return any(isinstance(n, torch.SymInt) and unknown_symbol(n) is not None and is_relied_on(n) for n in sizes)


def _is_asked(node: fx.Node) -> bool:
    return raises_on_values(node) or gives_nothing(node.target) or _shows_checked(node)


def raise_unread(joint: fx.Graph) -> set[fx.Node]:
    """The program's own operators that raise on values and that no result of the joint graph needs."""
    read: set[fx.Node] = set()
    for node in reversed(joint.nodes):
        if node.op == "output" or node in read:
            read.update(node.all_input_nodes)
    arriving: set[fx.Node] = set()  # what is made of gradients is made in backward
    for node in joint.nodes:
        if "tangents" in node.name if node.op == "placeholder" else not arriving.isdisjoint(node.all_input_nodes):
            arriving.add(node)
    return {n for n in joint.nodes if n not in read | arriving and (_is_asked(n))}
