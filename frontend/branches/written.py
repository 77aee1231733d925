"""Tensors of the caller's that a graph writes to, as they were before: for a call that is run again because a check has failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functional.overlap import is_folded
from ..gradients.inside import is_changed
from ..graph.aside import storage_of
from ..graph.output import GraphInput
from ..state import Interpreter
from ..torch_private.autograd_graph import set_versions
from ..torch_private.symbols import hint_of
from ..values.kinds import isinstance

__all__ = ["WRITTEN", "keep", "or_put_back", "put_back", "unkept", "written_inputs"]

WRITTEN = "written"  # in the `meta` of a graph whose call runs again where it raises: the places of the inputs that it writes to

_MOST_BYTES = 1 << 24  # a copy of more in each call costs more than a break


def written_inputs(vm: Interpreter) -> list[GraphInput]:
    """The inputs that the graph writes to."""
    out, statistics = vm.out, vm.out.statistics
    return [i for i in out.used if out.is_written(i) or isinstance(i.fake, Tensor) and storage_of(i.fake) in statistics]


def unkept(vm: Interpreter) -> str | None:
    """Why there can be no copy of what the graph writes to that a call puts back; None: there can."""
    total = 0
    for info in written_inputs(vm):
        tensor = info.fake
        plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not info.replaced
        if not plain or is_folded(tensor) or info.real.is_inference():
            return "the graph writes to a tensor of the caller's"
        if tensor.requires_grad is not info.requires_grad or is_changed(info):
            return "autograd records a write to a tensor of the caller's"
        sizes = [n if type(n) is int else hint_of(n) for n in tensor.shape]
        total += math.prod(_MOST_BYTES if n is None else n for n in sizes) * tensor.element_size()
    return "the graph writes to large tensors of the caller's" if total > _MOST_BYTES else None


def keep(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, int]]:
    """Copies of the tensors, and how often each was written to."""
    with torch.no_grad():
        return [(tensor, tensor.clone(), tensor._version) for tensor in tensors]


def or_put_back(function: Callable[..., Any], places: Sequence[int] | None) -> Callable[..., Any]:
    """A graph in eager that writes to the arguments at these places. Where it raises, they are as they were, and the error says so,
    unless autograd has recorded the writes: then it is the program's error.
    """
    if not places:
        return function

    def run(*args: Any) -> Any:
        tensors = [args[k] for k in places if isinstance(args[k], Tensor)]
        kept = keep(tensors)
        try:
            return function(*args)
        except Exception as error:
            if any(t.requires_grad for t in tensors):
                error.of_program = True  # type: ignore[attr-defined]
            else:
                put_back(kept)
                error.unwritten = True  # type: ignore[attr-defined]
            raise

    return run


def put_back(kept: list[tuple[Tensor, Tensor, int]]) -> None:
    """Make the tensors what they were: autograd sees no write."""
    with torch.no_grad():
        for tensor, copy, _ in kept:
            tensor.copy_(copy)
    set_versions([tensor for tensor, _, _ in kept], [version for _, _, version in kept])
