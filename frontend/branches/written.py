"""Tensors of the caller's that a graph writes to, as they were before: for a call that is run again because a check has failed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..functional.overlap import is_folded
from ..graph.aside import storage_of
from ..graph.output import GraphInput
from ..state import Interpreter
from ..torch_private.autograd_graph import set_versions
from ..torch_private.symbols import hint_of
from ..values.kinds import isinstance

__all__ = ["keep", "put_back", "unkept", "written_inputs"]

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
        if not plain or info.requires_grad or tensor.requires_grad or is_folded(tensor) or info.real.is_inference():
            return "the graph writes to a tensor of the caller's"
        sizes = [n if type(n) is int else hint_of(n) for n in tensor.shape]
        total += math.prod(_MOST_BYTES if n is None else n for n in sizes) * tensor.element_size()
    return "the graph writes to large tensors of the caller's" if total > _MOST_BYTES else None


def keep(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, int]]:
    """Copies of the tensors, and how often each was written to."""
    with torch.no_grad():
        return [(tensor, tensor.clone(), tensor._version) for tensor in tensors]


def put_back(kept: list[tuple[Tensor, Tensor, int]]) -> None:
    """Make the tensors what they were: autograd sees no write."""
    with torch.no_grad():
        for tensor, copy, _ in kept:
            tensor.copy_(copy)
    set_versions([tensor for tensor, _, _ in kept], [version for _, _, version in kept])
