"""Gradients of gradients of a compiled graph: when backward runs with `create_graph=True`, the graph runs once more, in eager.

The compiled backward half computes numbers; nothing of how they were made is recorded. So each call remembers its inputs (tensors
that are not parameters weakly), and a backward that has to be differentiable itself makes the results again from them.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from .counters import COUNTERS
from .frontend.torch_private.autograd import AotNode, aot_node

log = logging.getLogger("intarsia")


def twice_differentiable(
    run: Callable[..., Sequence[Any]],
    gm: fx.GraphModule,
    repeatable: Callable[[], bool],
    depends: Sequence[frozenset[int]],
) -> Callable[..., Sequence[Any]]:
    """`run`, what AOTAutograd made of the graph `gm`, with a backward that can be differentiated, and gives None where eager does.

    `repeatable` is asked after the first call: whether running the graph again gives the same results. Where it does not, or the
    graph writes to its inputs, a second differentiation stays the error that AOTAutograd raises. `depends` has, once backward is
    compiled, which of the gradients that arrive each of the inputs' is made of.
    """
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
                node.keep_nothing_as_nothing(results[place].grad_fn, depends)
            if node is None or not node.is_plain(len(args)) or not repeatable():
                place = -1
                return results
            loose = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and not isinstance(a, nn.Parameter)]
            node.differentiate_with(lambda kept, arriving: _again(gm, kept, arriving))
        found = results[place].grad_fn
        if found is not None:  # gradients may be off now
            kept = list(args)
            for i in loose:
                kept[i] = weakref.ref(args[i])
            found.intarsia_inputs = kept, [a._version if isinstance(a, torch.Tensor) else 0 for a in args]
        return results

    return call


def _find(results: Sequence[Any]) -> tuple[int, AotNode | None]:
    for i, result in enumerate(results):
        node = aot_node(result.grad_fn) if isinstance(result, torch.Tensor) else None
        if node is not None:
            return i, node
    return -1, None


def _again(gm: fx.GraphModule, kept: tuple[list[Any], list[int]], arriving: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients of a call's inputs, as differentiable functions of the inputs and of the gradients that arrive."""
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
    _tell(gm)
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    with torch.enable_grad():
        for i in wanted:
            inputs[i] = inputs[i].view_as(inputs[i])  # hooks on the input are called by the backward around this one
        results = gm(*inputs)
    pairs = [(r, t) for r, t in zip(results, arriving, strict=False) if _differentiable(r) and t is not None]
    gradients: list[Any] = [None] * len(inputs)
    if pairs and wanted:
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [inputs[i] for i in wanted],
            [t for _, t in pairs],
            create_graph=True,
            allow_unused=True,
        )
        for i, gradient in zip(wanted, found, strict=True):
            gradients[i] = gradient
    return tuple(gradients)


def _differentiable(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


_warned: weakref.WeakSet[fx.GraphModule] = weakref.WeakSet()  # graphs that a warning was given for


def _tell(gm: fx.GraphModule) -> None:
    COUNTERS.add("fallbacks")
    if gm not in _warned:
        _warned.add(gm)
        log.warning("this graph runs in eager where its backward is differentiated (create_graph=True)")
