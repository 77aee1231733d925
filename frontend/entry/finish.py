"""The end of a capture: what was interpreted becomes a graph, guards and the function of one entry."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..branches import random_state, written
from ..breaks.breaks import Break, Suspended
from ..breaks.pieces import Family
from ..breaks.suspend import suspend
from ..bytecode import closing
from ..bytecode.symbolic_interpreter import SymbolicInterpreter
from ..calls.contexts import changes_modes, mode_keeper, set_grad
from ..errors import Unsupported
from ..foreign import writes as foreign_writes
from ..foreign.held import hold_whole
from ..gradients.grads import dropped
from ..gradients.inside import said, settle
from ..graph.dynamic import Symbols
from ..graph.host_numbers import put_number
from ..graph.output import GraphInput
from ..guards.checks import Classes, SizeCheck, StateCheck, tensor_checks
from ..guards.definitions import DefinitionCheck
from ..guards.emitter import Emitter, with_few_locals
from ..guards.guards import GuardSet
from ..guards.source import Source
from ..runtime import hidden_frames, profiling
from ..torch_private.functions import SET_GRAD_MODE
from ..values.held import check_last_acts
from ..values.kinds import isinstance
from .aliasing import guard_aliasing
from .entry import Entry
from .inlined import with_program
from .nature import changes, is_repeatable, is_writing, may_be_drawn_again
from .parameters import Parameters
from .residual import Residual

__all__ = ["Broken", "Capture", "Returned", "finish", "partial_guards"]


@dataclass
class Capture:
    """What one capture found.

    `graph_module` takes the tensors of `inputs` in order and returns a tuple of tensors; `example_inputs` are their
    fake twins. `entry` is a function that checks `guards`, fetches the inputs, calls the graph, replays effects and
    builds the result, as data; `compile_entry` makes it for a compiled graph. Where the graph
    broke, `broken` says why, and the function ends in the break's instruction and the pieces that follow it.
    """

    graph_module: fx.GraphModule
    example_inputs: list[Any]
    inputs: list[Source]
    guards: GuardSet
    entry: Entry
    parameters: Parameters
    broken: Break | None = None
    namespace: dict[str, Any] = field(repr=False, default_factory=dict)
    symbols: Symbols | None = field(repr=False, default=None)
    repeatable: bool = False  # whether the graph draws no random numbers
    writes: bool = False  # whether it writes to its inputs
    changes: tuple[str, ...] = ()  # what the program changes beside the tensors that the graph writes to, in words
    label: str = ""  # what the graph is of: a function and its line
    # The program's ranges of the profiler that are around the whole graph.
    ranges: tuple[tuple[str, str | None], ...] = ()
    # Sets the modes back that a graph has changed when it raises.
    restore: Callable[[], None] | None = field(repr=False, default=None)

    @property
    def operations(self) -> int:
        """How many nodes the graph has, inputs and output not counted."""
        return sum(n.op not in ("placeholder", "output") for n in self.graph_module.graph.nodes)

    def compile_entry(
        self, graph: Callable[..., Any], miss: Any, failed: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """The function of one entry; it returns `miss` where a guard does not hold.

        Where the graph raises, it returns what `failed(error, arguments)` does.
        """
        failed = failed or _raise
        if self.restore is not None:
            failed = functools.partial(_restored, self.restore, failed)
        self.namespace["MISS"] = miss  # by which a namespace of ours is known (`runtime._needed`)
        namespace = {**self.namespace, "graph": graph, "failed": failed}
        namespace["profiled"] = profiling.graph_range(graph, self.label, self.ranges)
        if self.symbols is not None:
            self.entry = self.entry.with_late(self.symbols.late())
        self.entry = with_program(self.entry, namespace, graph)
        exec(compile(self.entry.text(), hidden_frames.name_of("<intarsia residual>"), "exec"), namespace)
        return namespace.pop("entry")  # type: ignore[no-any-return]  # a function that its own globals hold is a cycle


@dataclass
class Returned:
    """The program returned."""

    result: Any
    broken: Break | None = None

    def text(self, vm: SymbolicInterpreter, body: Residual) -> str:
        text = body.value(self.result)
        closing.check_returned(vm, body.known)
        return text


@dataclass
class Broken:
    """The graph broke."""

    broken: Break
    split: Suspended
    family: Family
    root: bool

    def text(self, vm: SymbolicInterpreter, body: Residual) -> str:
        return suspend(vm, body, self.split, self.family, self.root)


def finish(
    vm: SymbolicInterpreter,
    parameters: Parameters,
    state: StateCheck,
    end: Returned | Broken,
    training: bool,
    views: bool,
) -> Capture:
    """What was interpreted as a graph, guards and a residual. The order matters: each step sees what those before have added."""
    _close(vm)
    hold_whole(vm)
    emit = Emitter()
    body = Residual(vm, emit, training if views else None)
    _set_modes(vm, body, training)
    guard_aliasing(vm)
    by_host = vm.dynamic.written_by_host()
    symbols = _symbols(vm)
    body.sizes = None if symbols is None else symbols.sizes
    drawn = _guard(vm, state, body.sizes)
    vm.guards.lines(emit, watched=True)
    _collect(vm, emit, drawn)
    for number, tensors in by_host.items():
        given = "".join(f"{emit.fetch(source)}, " for source in tensors)
        body.post.append(f"{emit.constant(put_number, 'put_number')}(({given}), {emit.fetch(number)})")
    text, failing = _results(vm, body, end)
    module = vm.out.finish(body.outputs)
    repeatable = is_repeatable(vm)
    module.meta["gradients"] = body.gradients
    inputs = written.written_inputs(vm)
    if repeatable:
        module.meta[written.WRITTEN] = [k for k, info in enumerate(vm.out.used) if any(info is i for i in inputs)]
    entry = replace(
        _entry(vm, body, parameters, text, failing, inputs),
        has_graph=bool(body.outputs) or any(n.op not in ("placeholder", "output") for n in module.graph.nodes),
        draws=not repeatable and (bool(failing) or may_be_drawn_again(vm)),
        drawn=drawn,
        lets_go=body.lets_go and isinstance(end, Broken) and end.root,
    )
    if entry.keeps:
        emit.namespace["keep"], emit.namespace["put_back"] = written.keep, written.put_back
    if entry.draws:
        emit.namespace["drawn"], emit.namespace["rewind"] = random_state.keeper(random_state.devices_of(module.graph))
    _forget_arguments(vm)
    vm.guards.where = None
    vm.dynamic.release()
    return Capture(
        module,
        [i.example() for i in vm.out.used],
        [i.source for i in vm.out.used],
        vm.guards,
        entry,
        parameters,
        end.broken,
        emit.namespace,
        symbols,
        repeatable,
        is_writing(vm),
        changes(vm),
        vm.label,
        tuple(vm.ranges),
        mode_keeper() if changes_modes(module.graph) else None,
    )


def _close(vm: SymbolicInterpreter) -> None:
    """What the program opened ends with the graph: scopes of gradients, effects, contexts, casts, overridden methods."""
    vm.gradients.check_closed()
    vm.effects.check_closed()
    _leave_scopes(vm)
    if vm.out.casts is not None:
        vm.out.casts.finish()
    vm.overrides.methods.check_backward()


def _set_modes(vm: SymbolicInterpreter, body: Residual, training: bool) -> None:
    """Modes and defaults that the program set for good are set behind the graph; capture itself goes on in the old ones."""
    if torch.is_grad_enabled() is not training:
        body.post.append(f"{body.emit.constant(SET_GRAD_MODE, 'set_grad')}({torch.is_grad_enabled()})")
        set_grad(vm, training)
    body.post += vm.defaults.statements(body.emit)


def _symbols(vm: SymbolicInterpreter) -> Symbols | None:
    if vm.shape_env is None:
        return None
    symbols = Symbols(SizeCheck([i for i in vm.out.inputs.values() if not i.static], vm.shape_env), vm.dynamic)
    symbols.check()
    return symbols


def _guard(vm: SymbolicInterpreter, state: StateCheck, sizes: SizeCheck | None) -> bool:
    """Add the guards that only the whole capture knows. Returns whether some draw Python's random numbers."""
    checks: list[Any] = [*tensor_checks(vm.out.inputs.values(), state.inference)]
    state.narrow(vm.out)
    numbers, drawn = [sizes] if sizes is not None else [], vm.random.python.check()
    vm.guards.extra += [*checks, *([] if drawn else numbers), *vm.gradients.guards(), *vm.random.guards(), state]
    classes = Classes(vm.guards.parts.values())
    vm.guards.extra += [classes] if classes.modules else []
    _rely_on_definitions(vm, vm.guards)
    vm.guards.extra += [drawn, *numbers] if drawn else []  # what is decided by what was drawn: behind all else
    return drawn is not None


def _collect(vm: SymbolicInterpreter, emit: Emitter, drawn: bool) -> None:
    """Collect garbage as often as the program does, once the guards hold, and ask them again: finalizers may have changed anything."""
    if vm.effects.collections == 0:
        return
    checks = list(emit.lines)
    collect = f"{emit.constant(gc.collect, 'collect')}()"
    emit.lines += [collect] * vm.effects.collections
    emit.lines += ["undo(before)"] if drawn else []
    emit.lines += checks


def _results(vm: SymbolicInterpreter, body: Residual, end: Returned | Broken) -> tuple[str, tuple[int, ...]]:
    """The text of the call's result, and which of the graph's results are checks that failed. Fills `body.outputs`."""
    check_last_acts(vm)
    body.effects()
    body.post += vm.random.statements(body)
    body.post += foreign_writes.statements(vm, body)
    text = end.text(vm, body)
    if body.views is not None:
        body.post[:0] = body.views.statements()
        body.views.sweep()
    vm.branches.finish(vm, [*body.outputs, *(() if body.views is None else body.views.tensors())])
    failing = vm.checks.finish(vm, body)
    body.post[:0] = settle(vm, body)
    body.outputs = [*body.outputs, *vm.out.read.unread(vm.out, body.outputs)]
    body.post[:0] = vm.inferred.statements(body.outputs, body.emit)
    vm.texts.sweep(vm.out, body.outputs)
    return text, failing


def _entry(
    vm: SymbolicInterpreter,
    body: Residual,
    parameters: Parameters,
    text: str,
    failing: tuple[int, ...],
    inputs: Sequence[GraphInput],
) -> Entry:
    """The function that checks, fetches the graph's arguments, calls it and builds the result, as statements.

    What the graph writes to of `inputs` is put back where a check fails.
    """
    emit = body.emit
    fetch = _given(vm.out.used, emit)
    keeps = "".join(f"{body.value(info.fake)}, " for info in inputs) if failing else ""
    emit.lines += parameters.given(emit, vm.guards)
    shown = profiling.test(emit)
    rest = "\n".join([*fetch, *body.post, text])
    emit.lines += [] if failing else dropped(vm, emit, rest)
    emit.lines += said(vm, emit)
    return Entry(
        parameters.names,
        with_few_locals(emit.lines, rest),
        text,
        body.post,
        fetch,
        len(body.outputs),
        profiled=shown,
        late=emit.late,
        failing=failing,
        lasting=bool(vm.checks.begun),
        passes_over=vm.branches.passed_over,
        keeps=f"({keeps})" if keeps else "",
    )


def _forget_arguments(vm: SymbolicInterpreter) -> None:
    """Guards know a tensor that is no parameter by its facts: they must not keep it alive."""
    for info in vm.out.inputs.values():
        if not info.static:
            info.real = None


def _rely_on_definitions(vm: SymbolicInterpreter, guards: GuardSet) -> None:
    check = DefinitionCheck(vm.definitions, vm.is_library)
    if check:
        guards.extra.append(check)


def _given(used: list[GraphInput], emit: Emitter) -> list[str]:
    """The arguments of the graph: many in a row that are held by identity are one constant, which costs one step."""
    given = []
    for static, group in itertools.groupby(used, lambda info: info.static):
        found = list(group)
        if static and len(found) >= 8:
            given.append(f"*{emit.constant(tuple(info.real for info in found), 'parameters')}")
        else:
            given += [emit.constant(i.real, i.source.name()) if static else emit.fetch(i.source) for i in found]
    return given


@hidden_frames.unseen
def _restored(
    restore: Callable[[], None], failed: Callable[..., Any], error: Exception, values: tuple[Any, ...]
) -> Any:
    restore()
    return failed(error, values)


def _raise(error: Exception, _: tuple[Any, ...]) -> Any:
    raise error


def _leave_scopes(vm: SymbolicInterpreter) -> None:
    """The graph ends in the thread state in which it began: contexts that are open at a break are entered again after it."""
    vm.open_scopes = list(vm.scopes)
    for scope in reversed(vm.open_scopes):
        scope._leave()
    vm.scopes.clear()


def partial_guards(vm: SymbolicInterpreter, state: StateCheck) -> GuardSet:
    """What a capture that failed relied on, for remembering the failure."""
    guards = GuardSet(dict(vm.guards.parts))
    guards.extra += tensor_checks(vm.out.inputs.values(), state.inference)
    if vm.shape_env is not None and not vm.random.python.steps:
        with suppress(Unsupported):  # a relation with a data-dependent size; the failure is remembered more broadly
            guards.extra.append(SizeCheck([i for i in vm.out.inputs.values() if not i.static], vm.shape_env))
    guards.extra.append(state)
    _forget_arguments(vm)
    _rely_on_definitions(vm, guards)
    return guards
