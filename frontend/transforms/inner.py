"""A function inside a transform of torch.func, and what torch does with it below.

Torch runs the transform on fake tensors. Each time that it calls the function, this is interpreted on what torch gives it, seen
from inside (of a batch one tensor, of a dual number the primal), into a graph of its own, and torch gets what that graph gives. Each
operator that comes out below the transform is recorded in the graph around the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..errors import GraphBreak
from ..graph.call_numbers import Numbers, has_float
from ..graph.output import GraphInput, OutputGraph
from ..state import Interpreter
from ..torch_private.batches import outside_transforms, seen_from_inside
from ..torch_private.dispatch import ASKED, CaptureMode
from ..torch_private.fake import is_fake
from ..torch_private.functions import SET_GRAD_MODE
from ..torch_private.graphs import write_code
from ..torch_private.guards import forward_mode
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import isinstance

__all__ = ["Below", "Inside", "is_tracked"]


_ARITHMETIC = frozenset(
    ["add", "sub", "rsub", "mul", "multiply", "subtract", "div", "divide", "truediv", "true_divide", "pow", "iadd"]
    + ["isub", "imul", "itruediv", "ipow", "radd", "rmul", "rtruediv", "rpow"]
)


class InnerGraph(OutputGraph):
    """The graph of the transformed function; tensors from around it become its inputs."""

    inside = True

    def __init__(self, outer: OutputGraph, differentiated: bool) -> None:
        self.outer, self.differentiated = outer, differentiated
        super().__init__(outer.fake_mode, outer._whence)
        self.items_of, self.number_in, self.overrides = outer.items_of, outer.number_in, outer.overrides
        self.foreign, self.elsewhere = outer.foreign, outer.elsewhere  # calls on foreign tensors are breaks in here
        self.captured: list[tuple[Any, int]] = []  # tensors with their versions when they were first used, and sizes
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
        self._check_numbers(target.__name__, args)
        return super().call_function(target, args, kwargs)

    def call_method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for a method."""
        self._check_numbers(name, args)
        return super().call_method(name, args, kwargs)

    def _check_numbers(self, name: str, args: tuple[Any, ...]) -> None:
        """A symbol has no derivative; a number has one, of zero, which eager's gradients of derivatives show."""
        given = (
            self.differentiated and name.strip("_") in _ARITHMETIC and any(isinstance(a, torch.SymInt) for a in args)
        )
        if given and is_tracked([info.fake for info in self.inputs.values()]):
            raise GraphBreak("a number that changes between calls is used inside a transform of torch.func")

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
        """A size that changes between calls is an input, too."""
        if not isinstance(value, torch.SymInt):
            raise GraphBreak("a number that changes between calls is used inside a transform of torch.func")
        size = value.node.expr
        if size.is_Integer:
            return int(size)
        if size not in self._sym_nodes:
            self.captured.append((value, 0))
            self._sym_nodes[size] = self._new_placeholder(f"size_{len(self._sym_nodes)}")
            self._sym_nodes[size].meta["example_value"] = value
        return self._sym_nodes[size]


class Below(CaptureMode):
    """Records each operator that runs below the transform, and whether gradients are on for it around the transform."""

    def __init__(self, out: OutputGraph) -> None:
        super().__init__()
        self.out = out
        self.paused = False  # while the function is interpreted
        self.zeros = False  # whether derivatives met that are known to be zero
        self.before = self.grad_mode = torch.is_grad_enabled()
        self._constants: dict[int, Tensor] = {}  # tensors of numbers that the transform makes for itself

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._note_mode(self.before)

    def _note_mode(self, enabled: bool) -> None:
        if enabled is not self.grad_mode:
            self.out.mark(SET_GRAD_MODE, (enabled,))
            self.grad_mode = enabled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func in ASKED:
            return func(*args)
        if self._is_of_constants(func, args, kwargs):
            result = func(*args, **kwargs)
            self._constants.update({id(t): t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)})
            return result
        if _is_on_meta(args) or _is_on_meta(kwargs):
            return self._shape_of_zeros(func, args, kwargs)
        if func is torch.ops.aten._to_copy.default and not isinstance(args[0], Tensor):  # a number that became a tensor
            func, kwargs = torch.ops.aten.scalar_tensor.default, {"dtype": kwargs["dtype"]}
        self.zeros |= func is torch.ops.aten._efficientzerotensor.default
        self._note_mode(torch.is_grad_enabled())
        lifted = self.out.lift(args), self.out.lift(kwargs)
        with self._seen(func, args, kwargs):
            result = func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:  # squeeze_ and its like: another view under the same name
            packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"))
            return self.out.rename(getattr(packet, func._overloadname), lifted, result)
        # Below autograd no version tells of a write: the schema does.
        return self.out.record(func, lifted, result, func._schema.is_mutable)

    def _seen(self, func: Any, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        """Inside, what methods of wrapper tensors do is followed."""
        given = [t for t in pytree.tree_leaves((args, kwargs)) if is_wrapped(t)]
        overrides = self.out.overrides
        if given and forward_mode()._current_level >= 0:  # on real tensors torch may refuse what it does on fake ones
            raise GraphBreak("a tangent is carried through operators on wrapper tensors")
        return nullcontext() if overrides is None or not given else overrides.methods.seen(func, given)

    def _is_of_constants(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the transform computes with numbers of its own: up to torch 2.11 jacobians count their columns in a tensor.

        Such a tensor is a real one that `torch.tensor` has just made; all that is computed of these alone is known, too.
        Draws are not, whatever they are given.
        """
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func is torch.ops.aten.lift_fresh.default:
            return not is_fake(tensors[0]) and tensors[0].device.type == "cpu"
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        return bool(tensors) and not drawn and all(id(t) in self._constants for t in tensors)

    def _shape_of_zeros(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Derivatives that are known to be zero: torch runs their operators on the meta device, to see the result's shape."""
        if "device" not in kwargs or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        with outside_transforms(), torch.no_grad():
            return torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device="meta")


def _is_on_meta(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "meta"
    if isinstance(value, list | tuple | dict):
        return any(map(_is_on_meta, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Tensor) and value.device.type == "meta"


class Inside:
    """The function as torch calls it, in the transform; `differentiates`, `batches`: whether the transform takes derivatives, runs it on batches."""

    def __init__(
        self, vm: Interpreter, function: Any, below: Below, differentiates: bool, batches: bool = False
    ) -> None:
        self.vm, self.function, self.below = vm, function, below
        self.differentiates, self.batches = differentiates, batches
        self.draws = False  # whether it took random numbers
        self.graphs: list[OutputGraph] = []  # one for each time that torch called it
        self.around: list[Tensor] = []  # what it read of the graph around
        self.__name__ = getattr(function, "__name__", None) or repr(function)  # torch names it in messages

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.captured(*args, **kwargs)(*args, **kwargs)

    def captured(self, *args: Any, **kwargs: Any) -> Any:
        """What the function does to arguments like these, as a function that torch can run."""
        below = self.below
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        below.paused, before = True, below.paused
        try:
            with outside_transforms():
                return self._captured(args, kwargs, given)
        finally:
            below.paused = before

    def _captured(self, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Any:
        vm, outer = self.vm, self.vm.out
        inner = InnerGraph(outer, self.differentiates or outer.differentiated or is_tracked(given))
        inner.batched = self.batches or outer.batched
        seen_args, seen_kwargs = pytree.tree_map_only(Tensor, lambda t: self._seen(inner, t), (args, kwargs))
        drawn: Any = outer.fake_mode.dispatch
        drew, drawn.draws = drawn.draws, False
        vm.out = inner
        try:
            result = vm.call(self.function, tuple(seen_args), seen_kwargs)
            results, out_spec = pytree.tree_flatten(vm.materialize(result))
            made = [r for r in results if isinstance(r, Tensor)]
            module = inner.finish(made)
            write_code(module)
        finally:
            vm.out = outer
            self.draws, drawn.draws = self.draws or drawn.draws, drawn.draws or drew
            outer.ended.append(inner)
            outer.modes, outer.asked = outer.modes + inner.modes, outer.asked or inner.asked
        self.graphs.append(inner)
        around = [value for value, _ in inner.captured]
        self.around += [value for value in around if isinstance(value, Tensor)]
        if any(isinstance(value, Tensor) and value._version != version for value, version in inner.captured):
            raise GraphBreak("a function inside a transform of torch.func writes to a tensor from around it")

        def replay(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            outputs = iter(module.forward(*tensors, *around))
            return pytree.tree_unflatten([next(outputs) if isinstance(r, Tensor) else r for r in results], out_spec)

        return replay

    @staticmethod
    def _seen(inner: InnerGraph, tensor: Tensor) -> Tensor:
        """A fake tensor that looks as this one does from inside."""
        if tensor.device.type == "meta":
            raise GraphBreak("a tensor on the meta device meets a transform of torch.func")
        seen = seen_from_inside(tensor)
        inner.argument(seen)
        return seen


def is_tracked(values: Sequence[Any]) -> bool:
    """Whether autograd records what is computed of these."""
    return torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values)
