"""What graphs call for gradients: plain functions, which give the same on real tensors as where a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_private.dispatch import storage_key

__all__ = ["NODES", "freed", "gradients", "has_gradients", "in_eager", "leaf", "leaf_gradients", "set_requires_grad"]

Tensors = Sequence[Tensor]


def gradients(
    outputs: Tensors,
    inputs: Tensors,
    arriving: Sequence[Tensor | None] | None,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool | None,
    materialize: bool,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`."""
    return torch.autograd.grad(
        outputs,
        inputs,
        arriving,
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
        materialize_grads=materialize,
    )


def leaf_gradients(
    outputs: Tensors,
    leaves: Tensors,
    arriving: Sequence[Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    new: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """What `backward()` gives each leaf, None where nothing arrives: where `new`, in memory of its own, as it becomes `.grad`."""
    found = torch.autograd.grad(
        outputs, leaves, arriving, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
    )
    given = (*outputs, *leaves, *(t for t in arriving if t is not None))
    taken = set(map(storage_key, given))
    made: list[Tensor | None] = []
    with torch.set_grad_enabled(create_graph):
        for leaf, gradient, is_new in zip(leaves, found, new, strict=True):
            if gradient is not None and is_new and gradient.layout is torch.strided:  # a sparse one breaks the graph
                gradient = _laid_out(gradient, leaf)
                if storage_key(gradient) in taken:
                    gradient = gradient.clone()
                taken.add(storage_key(gradient))
            made.append(gradient)
    return tuple(made)


def _laid_out(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient as eager stores it: in the leaf's strides where that fills its memory, else contiguous."""
    if not _fills_its_memory(leaf):
        return gradient if gradient.is_contiguous() else gradient.contiguous()
    strides = zip(gradient.shape, gradient.stride(), leaf.stride(), strict=True)
    if all(size == 1 or mine == its for size, mine, its in strides):
        return gradient
    return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)


def _fills_its_memory(tensor: Tensor) -> bool:
    """Whether the elements lie in one piece of memory, none over another."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1
    ):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def set_requires_grad(tensor: Tensor, requires_grad: bool) -> Tensor:
    """`tensor.requires_grad_(...)`."""
    return tensor.requires_grad_(requires_grad)


NODES = frozenset({gradients, leaf_gradients, set_requires_grad})


def has_gradients(graph: fx.Graph) -> bool:
    """Whether autograd has to see what a graph computes, and nothing outside of it does."""
    return any(node.target in NODES for node in graph.nodes if node.op == "call_function")


def in_eager(gm: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The graph as it was captured: where it takes gradients, in the grad mode of now, whoever calls it."""
    mode = torch.is_grad_enabled() if has_gradients(gm.graph) else None

    def run(*args: Any) -> Sequence[Any]:
        with nullcontext() if mode is None else torch.set_grad_enabled(mode):
            result = gm(*args)
        return result if isinstance(result, tuple | list) else (result,)

    return run


class _Freed(torch.autograd.Function):
    """A result whose graph backward has freed."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        leaf = torch.ones((), requires_grad=True)
        with torch.enable_grad():
            square = leaf * leaf
        torch.autograd.grad(square, leaf)
        return torch.autograd.grad(square, leaf)  # eager's own error


def freed(value: Tensor) -> Tensor:
    """The tensor as one whose graph is no more: it requires gradients, and backward from it is eager's error."""
    with torch.enable_grad():
        return _Freed.apply(torch.empty(0, requires_grad=True), value.detach())  # type: ignore[no-any-return,no-untyped-call]


def leaf(value: Tensor) -> Tensor:
    """The tensor as a leaf that requires gradients."""
    return value.detach().requires_grad_()
