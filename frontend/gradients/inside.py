"""What a capture knows of the gradients that the program itself takes, and what its end makes of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..breaks.breaks import Restart, Suspended, split_point
from ..errors import GraphBreak, Refused, SourceLine, Unsupported
from ..graph.output import GraphInput
from ..guards.checks import is_argument
from ..guards.emitter import Emitter
from ..guards.recompile_reason import Miss
from ..guards.source import Source
from ..state import Interpreter
from ..torch_private.autograd_graph import has_leaf_hooks, hooks_on_saving, is_freed, is_held
from ..torch_private.functions import WITHOUT_SUBCLASSES
from ..values.kinds import isinstance
from .nodes import OUTSIDE, WHOLE, freed, leaf

__all__ = [
    "HOOK",
    "HooksOutside",
    "Inside",
    "NoHooks",
    "WrapperLeaf",
    "no_hooks_of_wrappers",
    "check_no_leaf",
    "said",
    "settle",
]


HOOK = "a hook is registered on a tensor"


class HooksOutside(GraphBreak):
    """Hooks are registered, and backward comes later: capture starts again with `Inside.outside`."""

    def __init__(self, error: GraphBreak) -> None:
        super().__init__(error.reason, error.advice)
        self.frames, self.split = error.frames, error.split


@dataclass
class _Call:
    """A call that the graph has a node for, and where the capture would be split instead."""

    what: str
    frames: tuple[SourceLine, ...]
    split: Any
    frees: bool  # whether backward is then done with what it went through


@dataclass
class WrapperLeaf:
    """A wrapper tensor of the caller's that gradients arrive at."""

    real: Tensor
    source: Source
    static: bool = False


@dataclass
class Inside:
    """The calls, the leaves among the inputs that gradients arrive at, and the hooks on other tensors."""

    calls: list[_Call] = field(default_factory=list)
    leaves: dict[int, GraphInput] = field(default_factory=dict)  # without hooks
    wrapped: dict[int, WrapperLeaf] = field(default_factory=dict)  # wrapper tensors of the caller's, without hooks
    hooked: dict[int, GraphInput] = field(default_factory=dict)  # whose hooks have guards of their own
    hooks: list[Any] = field(default_factory=list)  # that the program has registered, `hooks.Hook`
    outside: bool = False  # whether it is known of the capture that gradients are wanted through its results
    attached: list[Any] = field(default_factory=list)  # hooks that are called then, `hooks.Outer`
    regions: list[Any] = field(default_factory=list)  # open blocks with hooks on saved tensors, `saving.Region`
    watched: bool = False  # whether there were such hooks around the first of them
    forbidden: str | None = None  # why the program forbids such hooks here
    forbidding: _Call | None = None  # where it has begun to
    repeated: list[Any] = field(default_factory=list)  # functions that backward calls again, `repeated.Repeated`
    raised: bool = False  # whether a call has raised: what eager has done by then, its order of nodes decides

    def note(self, vm: Interpreter, what: str, frees: bool = False) -> None:
        """A call is about to become a node. Raises GraphBreak where the backend takes none."""
        if not vm.dynamic.marks.gradients:
            raise GraphBreak(what)
        self.check_repeated()
        vm.out.asked = True  # for the grad mode
        self.calls.append(self.here(vm, what, frees))

    def here(self, vm: Interpreter, what: str, frees: bool = False) -> _Call:
        """A call, at the instruction that is being interpreted."""
        split = split_point(vm)
        if isinstance(split, Suspended):
            split = Restart(split.frames[-1].begun)
        return _Call(what, tuple(vm.places()), split, frees)

    def check_repeated(self) -> None:
        """Break at the first call of a function that backward would call again with other values."""
        for repeated in self.repeated:
            repeated.check()

    def is_watched(self) -> bool:
        """Whether hooks of the caller's are given what is saved for backward."""
        return self.watched if self.regions else hooks_on_saving()

    def check_closed(self) -> None:
        """Break at the beginning of a block that is open where the graph ends."""
        for region in self.regions:
            raise region.refused("the graph ends inside of the block")
        if self.forbidden is not None and self.forbidding is not None:
            error = GraphBreak("hooks on saved tensors are forbidden, and the graph ends inside of the block")
            error.frames, error.split = self.forbidding.frames, self.forbidding.split
            raise error

    def guards(self) -> list[NoHooks]:
        """What later calls are asked."""
        watched: Any = (self.leaves, no_hooks), (self.wrapped, no_hooks_of_wrappers), (self.hooked, no_others)
        return [NoHooks(list(inputs.values()), check) for inputs, check in watched if inputs]


def no_hooks(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing of the program's sees the gradients of these tensors but `.grad`."""
    return not (hooks_on_saving() or any(map(has_leaf_hooks, tensors)))


def no_hooks_of_wrappers(tensors: Sequence[Tensor]) -> bool:
    """The same of wrapper tensors, whose classes are not asked."""
    with WITHOUT_SUBCLASSES():
        return no_hooks(tensors)


def no_others(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but `.grad` and hooks that are listed sees the gradients of these tensors."""
    return not (hooks_on_saving() or any(map(is_held, tensors)))


class NoHooks:
    """The guard of leaves whose gradients a graph computes."""

    def __init__(self, inputs: Sequence[GraphInput | WrapperLeaf], check: Callable[[Sequence[Tensor]], bool]) -> None:
        self.check = check
        self.sources: list[Source] = [i.source for i in inputs if not i.static]
        self.held = tuple(i.real for i in inputs if i.static)
        self.first = not self.held and all(map(is_argument, self.sources))

    def lines(self, emit: Emitter) -> None:
        """One call for all."""
        check = emit.constant(self.check, self.check.__name__)
        given = "".join(f"{emit.fetch(s)}, " for s in self.sources)
        held = f"*{emit.constant(self.held, 'leaves')}, " if self.held else ""
        emit.miss_if(f"not {check}(({given}{held}))")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """What has one now."""
        if self.check((*self.held, *(s.fetch(args) for s in self.sources))):
            return None
        return Miss("hooks on leaves and on saved tensors", "none", "some")

    def __str__(self) -> str:
        return f"no hooks on {len(self.sources) + len(self.held)} leaves, none on saved tensors"


def said(vm: Interpreter, emit: Emitter) -> list[str]:
    """Statements before the graph that say of inputs whether they require gradients, as the program does before it uses them."""
    found = [i for i in vm.out.inputs.values() if i.says is not None]
    targets = [emit.constant(i.real, i.source.name()) if i.static else emit.fetch(i.source) for i in found]
    return [f"{target}.requires_grad_({info.says})" for target, info in zip(targets, found, strict=True)]


class Results(Protocol):
    """The generated code: results of the graph, and expressions for values."""

    emit: Emitter
    outputs: list[Tensor]

    @property
    def known(self) -> dict[int, str]:
        """The names of values that were built or fetched, by identity."""

    def value(self, value: Any, /) -> str:
        """Any value of the stack."""


def settle(vm: Interpreter, body: Results) -> list[str]:
    """Statements that give the graph's results their place in autograd's graph.

    Raises GraphBreak, at the first of the calls, where gradients are wanted outside of the graph through what it computes.
    """
    inside: Inside = vm.gradients
    inside.check_repeated()
    for outer in inside.attached:
        if id(outer.handle) in body.known:
            raise outer.kept
    if vm.overrides.leaves_inside and not inside.calls:
        raise Refused("gradients are not taken inside of the graph", "through")
    if not inside.calls:
        return []
    if inside.raised:
        raise Unsupported(f"{inside.calls[-1].what}, raises, and the program goes on")
    if any(isinstance(i.fake, Tensor) and i.node is not None and is_changed(i) for i in vm.out.used):
        raise _outside(vm)
    lines, at = [], 0
    while at < len(body.outputs):  # a gradient of a leaf that is a result is one, too
        result = body.outputs[at]
        if not result.requires_grad:
            pass
        elif result.is_leaf:
            lines.append(f"out{at} = {body.emit.constant(leaf, 'leaf')}(out{at})")
            found, gradient = vm.effects.attr(result, "grad")
            if found and gradient is not None:
                lines.append(f"out{at}.grad = {body.value(gradient)}")
        elif is_freed(result):
            lines.append(f"out{at} = {body.emit.constant(freed, 'freed')}(out{at})")
            found, gradient = vm.effects.attr(result, "grad")
            if found and gradient is not None:
                lines += [f"out{at}.retain_grad()", f"out{at}.grad = {body.value(gradient)}"]
        else:
            vm.out.meta[OUTSIDE] = vm.out.meta[WHOLE] = True
        at += 1
    if OUTSIDE in vm.out.meta:
        if not _may_go_on(vm, body.outputs):
            raise _outside(vm)
        for at, result in enumerate(body.outputs):
            if result.requires_grad and is_freed(result):  # nothing is to go through it
                body.outputs[at] = vm.out.call_method("detach", (result,), {})
    return lines


def _may_go_on(vm: Interpreter, results: Sequence[Tensor]) -> bool:
    """Whether backward may go on through the graph as a whole: what it leads to are the inputs as they were."""
    leaves = any(r.requires_grad and r.is_leaf for r in results)
    said = any(name == "requires_grad" for _, name in vm.effects.attrs)
    led = any(
        isinstance(i.fake, Tensor) and i.required for i in vm.out.used
    )  # else the graph is traced without gradients
    return led and not (vm.overrides.leaves_inside or vm.gradients.hooks or leaves or said)


def is_changed(info: GraphInput) -> bool:
    """Whether the program wrote to an input in a way that autograd records."""
    base = info.fake if info.fake._base is None else info.fake._base
    return operator.is_not(base.grad_fn, info.history)


def check_no_leaf(vm: Interpreter, tensor: Tensor) -> None:
    """Break where a wrapper tensor is given out that the program lets require gradients: its parts are no leaves."""
    if tensor.requires_grad and tensor.is_leaf and vm.gradients.calls:
        raise _outside(vm)


def _outside(vm: Interpreter) -> GraphBreak:
    inside: Inside = vm.gradients
    first = inside.calls[0]
    if vm.overrides.leaves_inside:
        raise Refused(f"{first.what}, and gradients are wanted through the results of the same graph later", "through")
    error = GraphBreak(f"{first.what}, and gradients are wanted through the results of the same graph later")
    error.frames = first.frames
    if not any(call.frees for call in inside.calls):
        error.split = first.split  # else eager alone frees no more than that: a compiled graph is one node
    return HooksOutside(error) if all(call.what == HOOK for call in inside.calls) else error
