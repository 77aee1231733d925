"""torch.func's transforms (vmap, grad, jacrev, ...): the function is captured alone, its graph is transformed by torch.

The function is interpreted once, on what it sees inside the transform, into a graph of its own. Torch then transforms
that graph, and each operator that comes out below the transform is recorded in the graph around the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..errors import GraphBreak
from ..graph.call_numbers import Numbers, has_float
from ..graph.output import GraphInput, OutputGraph
from ..state import Interpreter
from ..torch_private.dispatch import CaptureMode, broadcast_to_tree
from ..torch_private.functions import SET_GRAD_MODE
from ..values.kinds import isinstance
from .registry import Rows

__all__ = ["Transformed"]

ROWS = Rows()


class _Inner(OutputGraph):
    """The graph of the transformed function; tensors from around it become its inputs."""

    inside = True

    def __init__(self, outer: OutputGraph, differentiated: bool) -> None:
        self.outer, self.differentiated = outer, differentiated
        super().__init__(outer.fake_mode, outer._trace)
        self.captured: list[tuple[Tensor, int]] = []  # with their versions when they were first used
        self.inputs = outer.inputs

    @property
    def numbers(self) -> Numbers | None:
        """Those of the whole capture."""
        return self.outer.numbers

    @numbers.setter
    def numbers(self, numbers: Numbers | None) -> None:
        if numbers is not None:
            self.outer.numbers = numbers

    def add_input(self, info: GraphInput) -> None:
        """Inputs are those of the whole capture."""
        self.outer.add_input(info)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The tensor of a number is made around."""
        if target is torch.scalar_tensor and has_float(args):
            return self.outer.call_function(target, args, kwargs)
        return super().call_function(target, args, kwargs)

    def is_known(self, fake: Any) -> bool:
        """Also what the graph around knows."""
        return id(fake) in self._node_of or self.outer.is_known(fake)

    def node(self, fake: Tensor) -> fx.Node:
        """A tensor from around is captured when it is first used."""
        if id(fake) not in self._node_of and self.outer.is_known(fake):
            self.captured.append((fake, fake._version))
            self.argument(fake)
        return super().node(fake)

    def argument(self, fake: Tensor) -> None:
        """Make the tensor the next input."""
        self._node_of[id(fake)] = self._new_placeholder(f"arg_{len(self._node_of)}")
        self._alive.append(fake)

    def sym_node(self, value: Any) -> Any:
        """Sizes are constants here."""
        raise GraphBreak("a size that changes between calls is used inside a transform of torch.func")


class _Below(CaptureMode):
    """Records each operator that runs below the transform."""

    def __init__(self, out: OutputGraph) -> None:
        super().__init__()
        self.out = out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # C++ of torch 2.14 and later asks it of fake tensors; guards know it
            return func(*args)
        if func is torch.ops.aten._to_copy.default and not isinstance(args[0], Tensor):  # a number that became a tensor
            func, kwargs = torch.ops.aten.scalar_tensor.default, {"dtype": kwargs["dtype"]}
        lifted = self.out.lift(args), self.out.lift(kwargs)
        result = func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:  # squeeze_ and its like: another view under the same name
            packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"))
            return self.out.rename(getattr(packet, func._overloadname), lifted, result)
        # Below autograd no version tells of a write: the schema does.
        return self.out.record(func, lifted, result, func._schema.is_mutable)


class Transformed:
    """`transform(function, **options)`, not called yet."""

    def __init__(self, vm: Interpreter, transform: Any, function: Any, options: dict[str, Any]) -> None:
        self.vm, self.transform, self.function, self.options = vm, transform, function, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        vm, outer = self.vm, self.vm.out
        args, kwargs = pytree.tree_map(vm.materialize, args), pytree.tree_map(vm.materialize, kwargs)
        given = pytree.tree_leaves((args, kwargs))
        inner = _Inner(outer, self.transform not in _LOOPS or outer.differentiated or _is_tracked(given))
        seen_args, seen_kwargs = self._seen(args, kwargs)
        for leaf in pytree.tree_leaves((seen_args, seen_kwargs)):
            if isinstance(leaf, Tensor):
                inner.argument(leaf)
        vm.out = inner
        try:
            result = vm.call(self.function, tuple(seen_args), seen_kwargs)
            results, out_spec = pytree.tree_flatten(result)
            made = [r for r in results if isinstance(r, Tensor)]
            module = inner.finish(made)
        finally:
            vm.out = outer
        if any(fake._version != version for fake, version in inner.captured):
            raise GraphBreak("a function inside a transform of torch.func writes to a tensor from around it")
        around = [fake for fake, _ in inner.captured]
        switched = any(node.target is SET_GRAD_MODE for node in inner.graph.nodes)
        if switched and (outer.differentiated or _is_tracked([*given, *around])):  # what is recorded does not show it
            raise GraphBreak("gradients are switched on or off inside a transform of torch.func, and wanted around it")

        def replay(*given: Any, **named: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, Tensor)]
            outputs = iter(module.forward(*tensors, *around))
            return pytree.tree_unflatten([next(outputs) if isinstance(r, Tensor) else r for r in results], out_spec)

        def transformed() -> Any:
            with _Below(outer):
                return self.transform(replay, **self.options)(*args, **kwargs)

        return vm.native(transformed)

    def _seen(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the function is given inside the transform: vmap takes one dimension away."""

        def alone(value: Any, dim: Any = None) -> Any:
            if not isinstance(value, Tensor):
                return value
            if any(isinstance(size, torch.SymInt) for size in value.shape):
                raise GraphBreak("a size that changes between calls meets a transform of torch.func")
            with torch.no_grad():
                return value.detach() if dim is None else value.select(dim, 0).detach()

        if self.transform not in _LOOPS:
            return pytree.tree_map(alone, args), pytree.tree_map(alone, kwargs)
        in_dims = self.options.get("in_dims", 0)
        if isinstance(in_dims, int):
            in_dims = (in_dims,) * len(args)
        dims = broadcast_to_tree(tuple(in_dims), tuple(args))
        if dims is None:
            raise GraphBreak("vmap with in_dims that do not fit its arguments")
        leaves, spec = pytree.tree_flatten(tuple(args))
        seen = [alone(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True)]
        return pytree.tree_unflatten(seen, spec), pytree.tree_map(lambda v: alone(v, 0), kwargs)


_LOOPS = (torch.vmap, torch.func.vmap)


def _is_tracked(values: Sequence[Any]) -> bool:
    """Whether autograd records what is computed of these."""
    return torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values)


def _transform(transform: Any) -> Callable[..., Any]:
    names = list(inspect.signature(transform).parameters)

    def apply(vm: Interpreter, function: Any, *args: Any, **options: Any) -> Any:
        options |= dict(zip(names[1:], args, strict=False))
        if options.get("randomness", "error") != "error" or options.get("chunk_size") is not None:
            raise GraphBreak("vmap with random numbers or chunks is called")
        return Transformed(vm, transform, function, options)

    return apply


for _name in ("vmap", "grad", "grad_and_value", "jacrev"):  # forward mode meets the meta device on its way
    ROWS.rule(getattr(torch.func, _name))(_transform(getattr(torch.func, _name)))
ROWS.rule(torch.vmap)(_transform(torch.vmap))
