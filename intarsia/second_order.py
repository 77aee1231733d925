"""Gradients of gradients of a compiled graph: when backward runs with `create_graph=True`, the graph runs once more.

The compiled backward half computes numbers; nothing of how they were made is recorded. So each call remembers its inputs (tensors
that are not parameters weakly), and a backward that has to be differentiable itself makes the results again from them: as a graph of
its own, compiled with a backward (`Second`), or in eager where sizes change between calls or backward is differentiated once more.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from .counters import COUNTERS
from .frontend.gradients.custom import is_linear
from .frontend.gradients.nodes import OUTSIDE, WHOLE, gradients
from .frontend.graph.output import TEMPORARY
from .frontend.torch_private.autograd import AotNode, aot_node, outside_of_tracing
from .frontend.torch_private.batches import is_batched
from .frontend.torch_private.fake import fake_mode_of, is_fake
from .frontend.torch_private.foreign.unlike import collecting
from .frontend.torch_private.graphs import lazy_graph_module
from .frontend.torch_private.wrapped import Taken

log = logging.getLogger("intarsia")


def twice_differentiable(
    run: Callable[..., Sequence[Any]],
    gm: fx.GraphModule,
    repeatable: Callable[[], bool],
    depends: Sequence[frozenset[int]],
    compiled: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]],
) -> Callable[..., Sequence[Any]]:
    """`run`, what AOTAutograd made of the graph `gm`, with a backward that can be differentiated, and gives None where eager does.

    `repeatable` is asked after the first call: whether running the graph again gives the same results. Where it does not, or the
    graph writes to its inputs, a second differentiation stays the error that AOTAutograd raises. `depends` has, once backward is
    compiled, which of the gradients that arrive each of the inputs' is made of. `compiled` compiles a graph with its backward.
    """
    second = Second(gm, compiled)
    place: int | None = None  # of a result whose node is AOTAutograd's; -1: there is none that can be used
    loose: list[int] = []
    # Results made of views that autograd does not know: eager has them require gradients all the same.
    cut: list[int] = []

    def call(*args: Any) -> Sequence[Any]:
        nonlocal place, loose, cut
        results = run(*args)
        if place is None:
            wanted = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="output")[0].args[0]]
            pairs = enumerate(zip(results, wanted, strict=False))
            cut = [
                i for i, (r, w) in pairs if _differentiable(w) and isinstance(r, torch.Tensor) and not r.requires_grad
            ]
        if cut:
            results = [r.requires_grad_().view_as(r) if i in cut else r for i, r in enumerate(results)]
        if place == -1:
            return results
        if place is None:
            place, node = _find(results)
            if node is not None:
                node.keep_nothing_as_nothing(results[place].grad_fn, depends, is_linear(gm.graph))
            if node is None or not node.is_plain(len(args)) or not repeatable():
                place = -1
                return results
            if SECOND not in gm.meta and not _gives_wrappers(gm):  # whose inputs nobody else has
                held = [n.meta.get(TEMPORARY) for n in gm.graph.find_nodes(op="placeholder")]
                pairs = enumerate(zip(args, held, strict=True))
                loose = [i for i, (a, h) in pairs if _is_tensor(a) and not h]
            node.differentiate_with(lambda kept, arriving, unlike: _again(gm, kept, arriving, second, unlike))
        found = results[place].grad_fn
        if found is not None and aot_node(found) is not None:  # gradients may be off now, or the call ran in eager
            kept = list(args)
            for i in loose:
                kept[i] = weakref.ref(args[i])
            found.intarsia_inputs = kept, [a._version if isinstance(a, torch.Tensor) else 0 for a in args]
        return results

    return call


def _gives_wrappers(gm: fx.GraphModule) -> bool:
    """Whether a graph gives parts of wrapper tensors that require gradients: a backward that eager needs no inputs for may need them."""
    return any(node.op == "call_function" and type(node.target) is Taken for node in gm.graph.nodes)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)


def _find(results: Sequence[Any]) -> tuple[int, AotNode | None]:
    for i, result in enumerate(results):
        node = aot_node(result.grad_fn) if isinstance(result, torch.Tensor) else None
        if node is not None:
            return i, node
    return -1, None


def _again(
    gm: fx.GraphModule, kept: tuple[list[Any], list[int]], arriving: Sequence[Any], second: Second, unlike: Any
) -> tuple[Any, ...]:
    """The gradients of a call's inputs, as differentiable functions of the inputs and of the gradients that arrive.

    `unlike` has the gradients of wrapper tensors that look otherwise than what they are of: then eager makes them all, and it is given
    those of the caller's wrapper tensors.
    """
    inputs: list[Any] = [item() if isinstance(item, weakref.ref) else item for item in kept[0]]
    tensors: list[Any] = [
        x for x, item in zip(inputs, kept[0], strict=True) if isinstance(item, weakref.ref | torch.Tensor)
    ]
    versions = [n for n, item in zip(kept[1], kept[0], strict=True) if isinstance(item, weakref.ref | torch.Tensor)]
    if any(x is None for x in tensors) or [x._version for x in tensors] != versions:
        raise RuntimeError(
            "backward with create_graph=True needs the inputs of the compiled graph as they were in forward, and one of them "
            "was changed or is gone\n  what to do: keep it until then, or call the uncompiled function"
        )
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        for i in wanted:
            inputs[i] = inputs[i].view_as(inputs[i])  # hooks on the input are called by the backward around this one
        found = second(inputs, arriving) if not unlike else None
        if found is not None:
            return found
        _tell(gm, "where a gradient arrives that is not made as its tensor" if unlike else _DIFFERENTIATED)
        results = gm(*inputs)
    pairs = [(r, t) for r, t in zip(results, arriving, strict=False) if _differentiable(r) and t is not None]
    slopes: list[Any] = [None] * len(inputs)
    if pairs and wanted:
        ends, given = [r for r, _ in pairs], [t for _, t in pairs]
        with collecting(results, unlike):
            found = torch.autograd.grad(
                ends, [inputs[i] for i in wanted], given, create_graph=recorded, allow_unused=True
            )
        for i, gradient in zip(wanted, found, strict=True):
            slopes[i] = gradient
    return tuple(slopes)


class Second:
    """The gradients of a graph as a compiled function of its inputs and of the gradients that arrive, one for each set of those.

    Sizes are numbers: what compiling would assume of symbols, no guard of the entry knows. A graph of gradients has none itself.
    """

    def __init__(
        self, gm: fx.GraphModule, compiled: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
    ) -> None:
        self.gm, self.compiled = gm, compiled
        self.given = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
        self.fixed = SECOND not in gm.meta and all(map(_is_fixed, self.given))
        self.known: dict[Any, _Slopes | None] = {}

    def __call__(self, inputs: Sequence[Any], arriving: Sequence[Any]) -> tuple[Any, ...] | None:
        """The gradients of the inputs, recorded; None where eager is to make them."""
        if not self.fixed or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return None
        places = tuple(i for i, t in enumerate(arriving) if t is not None)
        if any(is_batched(arriving[i]) for i in places):
            return None
        recorded = tuple(arriving[i].requires_grad for i in places)
        if (places, recorded) not in self.known:
            try:
                self.known[places, recorded] = self._make(places, recorded)
            except RuntimeError:  # eager shows whether it is the program's
                self.known[places, recorded] = None
        slopes = self.known[places, recorded]
        return None if slopes is None else slopes(inputs, [arriving[i] for i in places])

    def _make(self, places: tuple[int, ...], recorded: tuple[bool, ...]) -> _Slopes | None:
        mode = fake_mode_of(self.given)
        if mode is None:
            return None
        with outside_of_tracing(), torch.enable_grad():
            with mode:
                results = self.gm(*self.given)
                pairs = zip(places, recorded, strict=True)
                taken = {i: r for i, r in pairs if i < len(results) and _differentiable(results[i])}
                asked = list(taken)
                arriving = [
                    torch.empty_like(results[i], requires_grad=taken[i], memory_format=torch.contiguous_format)
                    for i in asked
                ]
                wanted = [i for i, x in enumerate(self.given) if _differentiable(x)]
                options = True, True, True, False, False
                found = gradients([results[i] for i in asked], [self.given[i] for i in wanted], arriving, *options)
            if not any(map(_differentiable, found)) or not all(_is_fixed(t) for t in (*arriving, *found)):
                return None
            made = self._graph(asked, wanted, arriving, found)
            run = self.compiled(made, [*self.given, *arriving])
        return _Slopes(
            run,
            [places.index(i) for i in asked],
            arriving,
            [i for i, t in zip(wanted, found, strict=True) if t is not None],
        )

    def _graph(
        self, asked: list[int], wanted: list[int], arriving: list[torch.Tensor], found: Sequence[Any]
    ) -> fx.GraphModule:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        results: Any = graph.graph_copy(self.gm.graph, copies)
        inputs = graph.find_nodes(op="placeholder")
        given, last = list[fx.Node](), inputs[-1]
        for k, value in enumerate(arriving):
            with graph.inserting_after(last):
                last = graph.placeholder(f"arriving_{k}")
            last.meta["example_value"] = value
            given.append(last)
        outputs = [results[i] for i in asked]
        call = graph.call_function(
            gradients, (outputs, [inputs[i] for i in wanted], given, True, True, True, False, False)
        )
        parts = []
        for k, value in enumerate(found):
            if value is not None:
                parts.append(graph.call_function(operator.getitem, (call, k)))
                parts[-1].meta["example_value"] = value
        graph.output(tuple(parts))
        made = lazy_graph_module(self.gm, graph)
        made.meta.update(self.gm.meta)
        made.meta.update({SECOND: True, OUTSIDE: True, WHOLE: True})
        return made


SECOND = "second"  # in a graph module's `meta`: it gives the gradients of another


class _Slopes:
    """One compiled function of gradients."""

    def __init__(
        self, run: Callable[..., Sequence[Any]], taken: list[int], arriving: list[torch.Tensor], places: list[int]
    ) -> None:
        self.run, self.taken, self.places = run, taken, places
        self.planned = [(t.shape, t.dtype, t.device) for t in arriving]

    def __call__(self, inputs: Sequence[Any], arriving: list[Any]) -> tuple[Any, ...] | None:
        given = [arriving[k] for k in self.taken]
        if [(t.shape, t.dtype, t.device) for t in given] != self.planned:
            return None
        found = self.run(*inputs, *(t.resolve_conj().resolve_neg().contiguous() for t in given))
        slopes = dict(zip(self.places, found, strict=True))
        return tuple(slopes.get(i) for i in range(len(inputs)))


def _is_fixed(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride()) if value.layout is torch.strided else (None,)
        return is_fake(value) and all(type(n) is int for n in sizes)
    return isinstance(value, int | float | bool | str | None)


def _differentiable(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


_warned: weakref.WeakSet[fx.GraphModule] = weakref.WeakSet()  # graphs that a warning was given for


_DIFFERENTIATED = "where its backward is differentiated (create_graph=True)"


def _tell(gm: fx.GraphModule, where: str) -> None:
    COUNTERS.add("fallbacks")
    if gm not in _warned:
        _warned.add(gm)
        log.warning("this graph runs in eager %s", where)
