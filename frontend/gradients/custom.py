"""`torch.autograd.Function` where gradients are wanted: forward is part of the graph, backward a graph beside it.

Forward's operations are recorded where gradients are off, as eager runs them. Behind them stands one node, a `CustomGradient`: it
gives the outputs again, as results of an autograd function whose backward runs the graph that was captured of the program's
`backward`. Whoever runs the captured graph under autograd (eager, AOTAutograd) sees both halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import once_differentiable

from ..calls import contexts
from ..calls.registry import Rows
from ..errors import GraphBreak, Refused, Unsupported, UserRaise
from ..state import Interpreter
from ..subclasses import methods
from ..torch_private.dispatch import storage_key
from ..torch_private.fake import is_fake
from ..torch_private.functions import WITHOUT_SUBCLASSES
from ..torch_private.wrapped import is_wrapped
from ..values import object as objects
from ..values.kinds import isinstance, tensors_in
from .state import VisibleState

__all__ = ["ROWS", "is_linear"]

ROWS = Rows()
REASON = "gradients are wanted through the torch.autograd.Function"
ADVICE = "nothing has to be done: it runs as Python, forward and backward, between two graphs"


class FunctionContext:
    """The `ctx` of a torch.autograd.Function."""

    saved_tensors: tuple[Tensor, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()
    dirty: tuple[Tensor, ...] = ()
    non_differentiable: tuple[Tensor, ...] = ()
    materialize_grads: bool = True

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors."""
        self.__dict__["saved_tensors"] = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Inputs that are returned as they are."""
        self.__dict__["dirty"] = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Outputs without gradients."""
        self.__dict__["non_differentiable"] = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether gradients that do not arrive are zeros."""
        self.__dict__["materialize_grads"] = value

    def save_for_forward(self, *_: Any) -> None:
        """Only forward mode would look at it."""


@dataclass(frozen=True)
class Backward:
    """A captured backward: a graph of some of the saved values, by place, and of the gradients that arrive."""

    module: fx.GraphModule
    read: tuple[int, ...]


Captured = dict[tuple[bool, ...], Backward]


class CustomGradient:
    """Outputs that have been computed, as results of an autograd function of their inputs.

    A call takes the outputs, the inputs that gradients are wanted of, and what backward reads beside, in this order; it gives
    copies of the outputs, views of those that share memory with something that there was before.

    Attributes:
        backward: what backward computes, by which gradients arrive where it is told of those that do not.
        recorded: the same where autograd records backward; empty where that makes no difference.
        once: whether the program's backward is marked as one that cannot be differentiated.
        shared: for each output, whether it shares memory.
        saved: where backward's values are found, ("output", k) or ("given", k).
        told: whether it is: else a gradient that does not arrive is zeros.
    """

    def __init__(
        self,
        name: str,
        backward: Captured,
        recorded: Captured,
        shared: Sequence[bool],
        saved: Sequence[tuple[str, int]],
        told: bool,
        once: bool,
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.backward, self.recorded, self.shared, self.saved = backward, recorded, tuple(shared), tuple(saved)
        self.told, self.once = told, once

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        kind = _OnceGradient if self.once else _Gradient
        return kind.apply(self, *given)  # type: ignore[no-any-return, no-untyped-call]


def is_linear(graph: fx.Graph) -> bool:
    """Whether backward of a graph makes nothing of zeros: functions with several outputs are given zeros for those that are not used."""
    return not any(isinstance(n.target, CustomGradient) and len(n.target.shared) > 1 for n in graph.nodes)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: CustomGradient, *given: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        pairs = zip(given, plan.shared, strict=False)
        made = tuple(output.view_as(output) if shared else output.clone() for output, shared in pairs)
        values = [made[k] if where == "output" else given[k] for where, k in plan.saved]
        ctx.plan = plan
        ctx.set_materialize_grads(not plan.told)
        ctx.save_for_backward(*(v for v in values if isinstance(v, Tensor)))
        ctx.others = [None if isinstance(v, Tensor) else v for v in values]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        plan: CustomGradient = ctx.plan
        tensors = iter(ctx.saved_tensors)
        values = [next(tensors) if other is None else other for other in ctx.others]
        arriving = tuple(g is not None for g in gradients)
        if not any(arriving):
            return (None,) * len(ctx.needs_input_grad)
        backward = (plan.recorded if plan.recorded and torch.is_grad_enabled() else plan.backward)[arriving]
        found = backward.module(*(values[k] for k in backward.read), *(g for g in gradients if g is not None))
        behind = len(plan.saved)  # at most so many given values that are no inputs
        return (None, *[None] * len(plan.shared), *found, *[None] * behind)[: len(ctx.needs_input_grad)]


class _OnceGradient(_Gradient):
    """Gradients of its gradients are eager's error, or none."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled() and any(is_fake(g) and g.requires_grad for g in gradients):
            raise RuntimeError(f"{ctx.plan.__name__} is marked with @once_differentiable, and differentiated twice")
        return _once(ctx, *gradients)  # type: ignore[no-any-return]


_once = once_differentiable(_Gradient.backward)
_ONCE = _once.__code__  # one code object for all functions that are marked


def _is_once(function: Any) -> bool:
    while function is not None:
        if getattr(function, "__code__", None) is _ONCE:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


@ROWS.rule(torch.autograd.Function.apply)
def _apply(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args)
    if wanted and not vm.out.inside and methods.is_followed(vm):
        return _seen(vm, cls, args, kwargs)
    known = cls in vm.dynamic.marks.wrapping if isinstance(cls, type) else False
    if wanted and not vm.out.inside and (known or any(is_wrapped(a) for a in args)):
        return methods.applied(vm, cls, args, kwargs, _seen)
    if vm.out.differentiated or vm.out.inside and torch.is_grad_enabled():  # what it is given does not tell inside vmap
        raise GraphBreak(
            "a torch.autograd.Function is called inside a transform of torch.func, and gradients are taken"
        )
    vm.out.modes += 1  # whether gradients are wanted
    context = vm.create(FunctionContext())
    context.__dict__["needs_input_grad"] = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    if not wanted:
        return _unfollowed(_forward(vm, cls, context, args, kwargs), vm, args, context)
    with contexts.grad_mode(vm, False):
        output = _forward(vm, cls, context, args, kwargs)
    return _followed(vm, cls, context, args, output)


def _seen(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call in a method that is followed, for what its halves do beside computing: torch runs both as they are."""
    context = vm.create(FunctionContext())
    context.__dict__["needs_input_grad"] = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    with contexts.grad_mode(vm, False):
        output = _forward(vm, cls, context, args, kwargs)
        if context.dirty:
            raise _refuse(cls, "which marks what it is given as dirty")
        outputs = output if type(output) is tuple else (output,)
        if not context.materialize_grads and len(outputs) > _MOST_TOLD:
            raise _refuse(cls, "which takes None for each of many gradients")
        each = [_arriving(o, not context.materialize_grads) for o in outputs]
        if prod(map(len, each)) > _MOST_FOLLOWED:
            raise _refuse(cls, "which gives many wrapper tensors")
        function, raised = objects.load_attr(vm, cls, "backward"), None
        for arriving in product(*each):
            try:
                vm.call(function, (context, *arriving), {})
            except UserRaise as error:  # it may take one kind of gradient only
                raised = error
            else:
                each = []
        if each and raised is not None:
            raise raised
    shut = {id(t) for t in context.non_differentiable}
    made = tuple(_grown(t) if isinstance(t, Tensor) and id(t) not in shut else t for t in outputs)
    return made if type(output) is tuple else made[0]


def _arriving(output: Any, told: bool) -> list[Any]:
    """Gradients of an output such as may arrive: of a wrapper tensor one that is made as it is, or a plain one."""
    if not isinstance(output, Tensor):
        return [None]
    found: list[Any] = [methods.gradient_of(output)]
    if is_wrapped(output):
        with WITHOUT_SUBCLASSES():
            facts = output.shape, output.dtype, output.device
        found.append(torch.zeros(tuple(facts[0]), dtype=facts[1], device=facts[2]))
    return [*found, None] if told else found


def _grown(output: Tensor) -> Tensor:
    """The same as a result of which gradients are wanted."""
    if not (output.dtype.is_floating_point or output.dtype.is_complex):
        return output
    made: Tensor = _Grown.apply(output.detach().requires_grad_())  # type: ignore[no-untyped-call]
    return made


class _Grown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:  # type: ignore[override]
        return output.detach() if is_wrapped(output) else output.view_as(output)  # its class may take no views

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def _forward(vm: Interpreter, cls: Any, context: FunctionContext, args: tuple[Any, ...], kwargs: Any) -> Any:
    forward = objects.load_attr(vm, cls, "forward")
    if cls.setup_context is torch.autograd.Function.setup_context:
        return vm.call(forward, (context, *args), kwargs)
    output = vm.call(forward, args, kwargs)
    vm.call(objects.load_attr(vm, cls, "setup_context"), (context, args, output), {})
    return output


def _unfollowed(output: Any, vm: Interpreter, args: tuple[Any, ...], context: FunctionContext) -> Any:
    """Inputs come back as views of themselves, unless they were marked dirty."""

    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor) or any(value is d for d in context.dirty) or all(value is not a for a in args):
            return value
        if value.requires_grad:
            return vm.out.call_method("detach", (value,), {})
        return vm.out.call_method("view_as", (value, value), {})

    return tuple(map(fresh, output)) if type(output) is tuple else fresh(output)


def _refuse(cls: Any, what: str) -> Unsupported:
    return Unsupported(f"{REASON} {cls.__name__}, {what}", ADVICE)


def _followed(vm: Interpreter, cls: Any, context: FunctionContext, args: tuple[Any, ...], output: Any) -> Any:
    """The outputs, with a gradient that is the captured backward."""
    outputs = list(output) if type(output) is tuple else [output]
    values = [v for v in outputs if isinstance(v, Tensor)]
    shut = {id(t) for t in context.non_differentiable}
    followed = [t for t in values if t.dtype.is_floating_point or t.dtype.is_complex]
    followed = [t for t in followed if id(t) not in shut]
    dirty = {id(t) for t in context.dirty}
    if not all(_may_be_written(vm, t, args, followed) for t in context.dirty):
        raise _refuse(cls, "which marks as dirty what is a leaf, a view, an argument of the graph or no output")
    if not context.materialize_grads and len(followed) > _MOST_TOLD:
        raise _refuse(cls, "which takes None for each of many gradients")
    if any(map(is_wrapped, values)):
        vm.dynamic.marks.wrapping.add(cls)
        raise Refused(f"the autograd function {cls.__name__} gives a wrapper tensor", "functions")
    if len(list(tensors_in(outputs))) != len(values) or not followed:
        raise _refuse(cls, "whose outputs have no gradients, or are tensors in containers")
    memory = [storage_key(a) for a in args if isinstance(a, Tensor)]
    shared = list[bool]()
    for value in values:
        shared.append(storage_key(value) in memory and id(value) not in dirty)
        memory.append(storage_key(value))
    if any(s and all(v is not f for f in followed) for v, s in zip(values, shared, strict=True)):
        raise _refuse(cls, "an output of which has no gradient and shares memory")
    shared = [s for v, s in zip(values, shared, strict=True) if any(v is f for f in followed)]
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    inputs = [args[i] for i in places]
    every = (True,) * len(followed)
    patterns = (
        [every] if context.materialize_grads else [p for p in product((True, False), repeat=len(every)) if any(p)]
    )
    function = objects.load_attr(vm, cls, "backward")
    once, modes = _is_once(function), vm.out.modes
    again = partial(_backward, vm, cls, context, function, outputs, followed, args, places)
    captured = [{p: again(p) for p in patterns}]
    kept = [*values, *(v for _, found in captured[0].values() for v in found)]
    if any(isinstance(v, Tensor) and v.grad_fn is not None and all(v is not a for a in args) for v in kept):
        raise _refuse(cls, "which keeps what autograd recorded in forward")
    if not once and vm.out.modes != modes:  # what it does depends on whether autograd records it
        captured.append({p: again(p, True) for p in patterns})
    read = list({id(v): v for part in captured for _, found in part.values() for v in found}.values())
    backward, recorded = (
        {p: Backward(module, tuple(_place(read, v) for v in r)) for p, (module, r) in part.items()}
        for part in (*captured, {})[:2]
    )
    known = {id(t): ("output", k) for k, t in enumerate(followed)}
    extra = [v for v in read if id(v) not in known and not any(v is a for a in inputs)]
    passed = [*followed, *inputs, *extra]
    saved = [known.get(id(v)) or ("given", _place(passed, v, len(followed))) for v in read]
    told = not context.materialize_grads
    plan = CustomGradient(f"{cls.__name__}_gradient", backward, recorded, shared, saved, told, once)
    made = vm.out.call_function(plan, tuple(passed), {})
    new = {id(t): m for t, m in zip(followed, made, strict=True)}
    for written in context.dirty:  # the tensor itself becomes the output
        new[id(written)] = vm.out.call_method("copy_", (written, new[id(written)]), {})
    results = tuple(new.get(id(v), v) for v in outputs)
    return results if type(output) is tuple else results[0]


_MOST_FOLLOWED = 64  # calls of a backward that is followed
_MOST_TOLD = 3  # outputs of a function that is told which gradients do not arrive: one graph for each of the cases


def _may_be_written(vm: Interpreter, tensor: Tensor, args: tuple[Any, ...], followed: list[Tensor]) -> bool:
    """Whether an input that is marked dirty can be an output under the same name."""
    given = any(tensor is a for a in args) and any(tensor is f for f in followed)
    return given and id(tensor) not in vm.out.inputs and not (tensor.is_leaf or tensor._is_view())


def _place(passed: list[Any], value: Any, start: int = 0) -> int:
    return next(k for k in range(start, len(passed)) if passed[k] is value)


def _backward(
    vm: Interpreter,
    cls: Any,
    context: FunctionContext,
    function: Any,
    outputs: list[Any],
    followed: list[Tensor],
    args: tuple[Any, ...],
    places: list[int],
    arrives: tuple[bool, ...],
    recorded: bool = False,
) -> tuple[fx.GraphModule, list[Any]]:
    """The graph of `backward`: from what it reads, then the gradients of the outputs that arrive, to those of the inputs at `places`.

    With `recorded`, as autograd runs it where gradients of gradients are wanted.
    """
    state = VisibleState(vm, context, around="a backward")
    off = torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)
    with torch.set_grad_enabled(recorded), off[0], off[1]:
        pairs = zip(followed, arrives, strict=True)
        arriving = {id(o): torch.empty_like(o, requires_grad=recorded).clone() for o, does in pairs if does}
        with vm.out.beside(list(arriving.values())) as aside:
            try:
                gradients = [arriving.get(id(o)) for o in outputs]
                if context.materialize_grads:
                    gradients = [
                        vm.call(torch.zeros_like, (o,), {}) if g is None and isinstance(o, Tensor) else g
                        for o, g in zip(outputs, gradients, strict=True)
                    ]
                found = vm.call(function, (context, *gradients), {})
            except (GraphBreak, Unsupported, UserRaise) as error:
                raise _refuse(cls, f"whose backward cannot be captured ({error})") from None
            results = list(found) if isinstance(found, tuple | list) else [found]
            if len(results) < len(args) or any(r is not None for r in results[len(args) :]):
                raise _refuse(cls, "whose backward gives more or fewer gradients than forward takes arguments")
            wanted = [results[i] for i in places]
            if not all(r is None or isinstance(r, Tensor) for r in wanted):
                raise _refuse(cls, "whose backward gives something else than tensors")
            if not all(r is None or r.shape == args[i].shape for i, r in zip(places, wanted, strict=True)):
                raise _refuse(cls, "whose backward gives gradients of other shapes than forward's arguments")
            if aside.writes():
                raise _refuse(cls, "whose backward writes to a tensor that it did not make")
            module, read = aside.finish(wanted)
    if state.is_changed():
        raise _refuse(cls, "whose backward changes something that the program sees")
    return module, read
