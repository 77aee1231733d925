"""What graphs call for gradients: plain functions, which give the same on real tensors as where a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.hooks import RemovableHandle

from ..torch_private.dispatch import storage_key
from ..torch_private.graphs import write_code

__all__ = [
    "NODES",
    "OUTSIDE",
    "WHOLE",
    "Attached",
    "HookGraph",
    "Hooked",
    "freed",
    "gradients",
    "has_gradients",
    "hooked",
    "in_eager",
    "leaf",
    "leaf_gradients",
    "set_requires_grad",
    "asks_autograd",
    "together",
]

Tensors = Sequence[Tensor]

WHOLE = "whole"  # in a graph module's `meta`: it is not to be split, as its calls see autograd's graph
OUTSIDE = "outside"  # in a graph module's `meta`: gradients are wanted through its results, though it takes some itself


def gradients(
    outputs: Tensors,
    inputs: Tensors,
    arriving: Sequence[Tensor | None] | None,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool | None,
    materialize: bool,
    batched: bool,
    seen: Callable[[], Tensors] = tuple,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`; what hooks have `seen` of the gradients is theirs as well."""
    return torch.autograd.grad(
        outputs,
        inputs,
        arriving,
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
        materialize_grads=materialize,
        is_grads_batched=batched,
    )


def leaf_gradients(
    outputs: Tensors,
    leaves: Tensors,
    arriving: Sequence[Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    new: Sequence[bool],
    seen: Callable[[], Tensors] = tuple,
) -> tuple[Tensor | None, ...]:
    """What `backward()` gives each leaf, None where nothing arrives: where `new`, in memory of its own, as it becomes `.grad`.

    Memory that hooks have `seen` is not its own.
    """
    found = torch.autograd.grad(
        outputs, leaves, arriving, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
    )
    given = (*outputs, *leaves, *(t for t in arriving if t is not None))
    taken = set(map(storage_key, (*given, *seen())))
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


class _Together(torch.autograd.Function):
    """One node of autograd for several tensors."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*(t for t in tensors if not t.requires_grad))
        return tensors

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        return arriving


def together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as results of one node, which the hooks of a module are put on."""
    return _Together.apply(*tensors)  # type: ignore[no-any-return,no-untyped-call]


NODES = frozenset({gradients, leaf_gradients, set_requires_grad, together})


@dataclass(frozen=True)
class HookGraph:
    """What a hook computes: of values of the graph around it, of the gradients that it is given, of what earlier hooks have made.

    Attributes:
        on_node: whether it is on the node that made a tensor, and is given gradients of the node's inputs and of its results.
        module: gives the gradients that take the place of the first, and everything that the hook has made.
        replaced: how many gradients those are; None where the hook leaves them alone.
    """

    on_node: bool
    module: fx.GraphModule
    replaced: int | None


class Hooked:
    """A function of this file with hooks.

    A call takes the function's arguments, then the tensor of each hook, then the values that each reads; it gives the function's
    result and what each hook has made.
    """

    def __init__(self, function: Callable[..., Any], hooks: Sequence[HookGraph]) -> None:
        self.__name__ = self.__qualname__ = f"hooked_{function.__name__}"
        self.function, self.hooks = function, tuple(hooks)

    def __call__(self, *args: Any) -> tuple[Any, tuple[tuple[Tensor, ...], ...]]:
        *given, tensors, values = args
        made = [tuple[Tensor, ...]() for _ in self.hooks]

        def run(place: int, *gradients: Any) -> Any:
            hook = self.hooks[place]
            earlier = (t for part in made[:place] for t in part)
            found = hook.module(*values[place], *flat(gradients), *earlier)
            made[place] = tuple(found[hook.replaced or 0 :])
            if hook.replaced is None:
                return None
            return tuple(found[: hook.replaced]) if hook.on_node else found[0]

        places = enumerate(zip(self.hooks, tensors, strict=True))
        listeners = [(hook.on_node, tensor, partial(run, place)) for place, (hook, tensor) in places]
        return hooked(self.function, given, listeners, made), tuple(made)


class Attached:
    """A hook on a tensor, for backward outside of the graph: a call takes the tensor and the values that the hook reads."""

    def __init__(self, hook: HookGraph, name: str) -> None:
        self.__name__ = self.__qualname__ = "attached_hook"
        self.hook, self.name = hook, name

    def __call__(self, tensor: Tensor, *values: Any) -> None:
        if tensor.requires_grad:  # else gradients are off where the graph runs
            self.put(tensor, *values)

    def put(self, tensor: Tensor, *values: Any) -> RemovableHandle:
        """Register it."""

        def run(gradient: Tensor) -> Any:
            return self.hook.module(*values, gradient)[0]

        run.__name__ = self.name  # errors speak of it
        return tensor.register_hook(run)  # type: ignore[no-any-return,no-untyped-call]


def flat(gradients: Sequence[Any]) -> list[Tensor]:
    """The gradients that a hook is given, one or a tuple for each side, without those that are None."""
    sides = (g if isinstance(g, tuple) else (g,) for g in gradients)
    return [g for side in sides for g in side if g is not None]


def hooked(
    function: Callable[..., Any],
    given: Sequence[Any],
    listeners: Sequence[tuple[bool, Tensor, Callable[..., Any]]],
    made: Sequence[Sequence[Tensor]],
) -> Any:
    """`function(*given)` with hooks on nodes or tensors, instead of those that leaves have; what they have made is seen."""
    own = {
        id(t): (t._backward_hooks, dict(t._backward_hooks)) for _, t, _ in listeners if t.is_leaf and t._backward_hooks
    }
    handles = []
    try:
        for hooks, _ in own.values():
            hooks.clear()
        for on_node, tensor, run in listeners:
            handles.append((tensor.grad_fn if on_node else tensor).register_hook(run))  # type: ignore[union-attr]
        with torch.autograd.set_multithreading_enabled(False):  # hooks are called in this thread
            return function(*given, seen=lambda: [t for part in made for t in part])
    finally:
        for handle in handles:
            handle.remove()
        for hooks, before in own.values():
            hooks.update(before)


def has_gradients(graph: fx.Graph) -> bool:
    """Whether autograd has to see what a graph computes, and nothing outside of it does."""
    return any(map(asks_autograd, graph.nodes))


def asks_autograd(node: fx.Node) -> bool:
    """Whether autograd is asked for something where a graph comes to this node."""
    return node.op == "call_function" and (isinstance(node.target, Hooked) or node.target in NODES)


def in_eager(gm: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The graph as it was captured: where it takes gradients, in the grad mode of now, whoever calls it."""
    mode = torch.is_grad_enabled() if has_gradients(gm.graph) else None

    def run(*args: Any) -> Sequence[Any]:
        write_code(gm)
        with nullcontext() if mode is None else torch.set_grad_enabled(mode):
            result = gm.forward(*args)  # not the call: that prints errors of the graph, which are the program's own
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
