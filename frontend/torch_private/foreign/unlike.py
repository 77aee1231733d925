"""Gradients that look otherwise than the wrapper tensors that they are of.

A compiled backward takes the gradient of a wrapper tensor that its graph gave out to look as the tensor does. Where another one arrives from
outside, it is noted at the node that gave the tensor's parts. That node makes the graph's results once more, in eager, and backward goes on
from the gradient itself. The gradients that come out for the caller's wrapper tensors are noted where those were taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..autograd_graph import nodes_behind

__all__ = [
    "OWN_INPUTS",
    "collecting",
    "forget_note",
    "forget_notes",
    "note_unlike",
    "put_notes",
    "taken_notes",
    "zeros",
]

OWN_INPUTS = "intarsia_inputs"  # at a node that can run its graph again: what that was given


def _kind(node: Any) -> bool | None:
    """Whether a node takes a wrapper tensor apart (True), or puts one together (False)."""
    return getattr(getattr(type(node), "_forward_cls", None), "takes_apart", None)


def _apart_behind(node: Any) -> Iterator[Any]:
    return (behind for behind, _ in node.next_functions if _kind(behind) is True)


def _takes(node: Any, whole: Any) -> bool:
    """Whether a node takes this wrapper tensor apart, or one that is a part of it."""
    return _kind(node) is True and (node.whole is whole or any(_takes(n, whole) for n in _apart_behind(node)))


def _bases(joined: Any, whole: Any) -> set[Any] | None:
    """The nodes that the parts of a wrapper tensor come from; None where one of them cannot go on from a gradient of the whole."""
    found = set[Any]()
    for node, _ in joined.next_functions:
        if _kind(node) is False:  # a part that is a wrapper tensor
            below = _bases(node, whole)
            if below is None:
                return None
            found |= below
        elif _takes(node, whole) or hasattr(node, OWN_INPUTS):
            found.add(node)
        elif node is not None:
            return None
    return found


def _note(node: Any, gradients: dict[Any, Any]) -> None:
    """Add gradients, by the wrapper tensors that they are of, to what is noted at a node."""
    node.intarsia_unlike = {**getattr(node, "intarsia_unlike", {}), **gradients}


def note_unlike(joined: Any, gradient: Any) -> bool:
    """Note a gradient where the parts of what it is of come from; whether backward can go on there."""
    bases = _bases(joined, joined.whole)
    for node in bases or ():
        _note(node, {joined.whole: gradient})
    return bool(bases)


def zeros(joined: Any) -> list[Any]:
    """Gradients of carrier and parts, by which backward comes to where the gradient is noted."""
    behind = joined.next_functions
    found: list[Any] = [None] * (len(joined.whole.layout.names) + 1 - len(behind))  # it may have no carrier
    return found + [None if node is None else _zeros_like(node._input_metadata[place]) for node, place in behind]


def _zeros_like(facts: Any) -> Tensor | None:
    """Zeros with these sizes, which arrive at a result of a node; None where its type has no gradients."""
    flows = facts.dtype.is_floating_point or facts.dtype.is_complex
    return torch.zeros(tuple(facts.shape), dtype=facts.dtype, device=facts.device) if flows else None


def forget_note(joined: Any) -> None:
    """Take back what an earlier backward has noted that did not come to its end."""
    for node in _bases(joined, joined.whole) or ():
        getattr(node, "intarsia_unlike", {}).pop(joined.whole, None)


def taken_notes(node: Any) -> dict[Any, Any] | None:
    """What is noted at a node, once."""
    found: dict[Any, Any] | None = getattr(node, "intarsia_unlike", None)
    if found is not None:
        del node.intarsia_unlike
    return found


def put_notes(node: Any, notes: dict[Any, Any]) -> None:
    """Hand on what is noted at a node to those behind it that take apart what it is of, or a part of that."""
    for behind in _apart_behind(node):
        own = {whole: gradient for whole, gradient in notes.items() if _takes(behind, whole)}
        if own:
            _note(behind, own)


def forget_notes(node: Any) -> None:
    """Take back what was noted behind a node, where an earlier backward did not come to."""
    for behind in _apart_behind(node):
        taken_notes(behind)


# ---- where a graph is run once more ----


def _put_at_results(results: Sequence[Any], notes: dict[Any, Any]) -> None:
    """Note each gradient at the nodes that gave the results."""
    nodes: set[Any] = {r.grad_fn for r in results if isinstance(r, Tensor) and r.grad_fn is not None}
    for whole, gradient in notes.items():
        ends = [node for node in nodes if _takes(node, whole)]
        if not ends:
            raise RuntimeError("a gradient arrives for a wrapper tensor of which the graph gives no parts")
        for node in ends:
            _note(node, {whole: gradient})


@contextmanager
def collecting(results: Sequence[Any], notes: dict[Any, Any] | None) -> Iterator[None]:
    """Inside, backward goes from these gradients of results; then `notes` has the gradients of what the graph was given."""
    if not notes:
        yield
        return
    _put_at_results(results, notes)
    notes.clear()
    wanted = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    joined = [node for node in nodes_behind(wanted) if _kind(node) is False]
    for node in joined:
        node.collected = notes
    try:
        yield
    finally:
        for node in joined:  # backward may be differentiated, and comes by again
            del node.collected
