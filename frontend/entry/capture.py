"""Capture: one call of a function or module, interpreted on fake tensors, as a graph, guards and a residual."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from ..branches import random_state, written
from ..breaks import breaks
from ..breaks.breaks import Break, Restart, Stop, Suspended
from ..breaks.pieces import Family, Piece
from ..breaks.suspend import suspend
from ..bytecode import closing
from ..bytecode.frame import NULL, Frame, Lasti, Saved
from ..bytecode.symbolic_interpreter import SymbolicInterpreter
from ..calls.contexts import changes_modes, mode_keeper, set_grad
from ..calls.dispatch import call_forward
from ..calls.registry import row_of
from ..errors import CaptureError, InternalError, Refused, SourceLine, Unsupported, UserRaise
from ..gradients.grads import dropped
from ..gradients.inside import HooksOutside, said, settle
from ..graph.dynamic import ConstraintError, Marks, Symbols
from ..graph.host_numbers import put_number
from ..graph.output import GraphInput
from ..guards.checks import Classes, SizeCheck, StateCheck, tensor_checks
from ..guards.definitions import DefinitionCheck, recording
from ..guards.emitter import Emitter, with_few_locals
from ..guards.filters import FilterError, GuardFilter, kept
from ..guards.guards import GuardSet
from ..guards.source import Arg, Const, Source
from ..modes.autocast import Casts, is_on
from ..runtime import hidden_frames, profiling
from ..runtime.error_origin import culprit, of_fake_tensors
from ..torch_private.fake import quiet_fake_errors
from ..torch_private.functions import SET_GRAD_MODE
from ..values.held import check_last_acts
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .aliasing import guard_aliasing
from .entry import Entry
from .environment import refuse_environment
from .inlined import with_program
from .nature import changes, is_repeatable, is_writing
from .parameters import Parameters
from .residual import Residual

__all__ = ["Capture", "ProgramRaised", "capture", "capture_bound"]


class ProgramRaised(Exception):
    """The program itself raised `value` while being captured; run it in eager to see the real traceback."""

    def __init__(self, value: BaseException, frames: tuple[SourceLine, ...], guards: GuardSet) -> None:
        super().__init__(f"{type(value).__name__}: {value}")
        self.value, self.frames, self.guards = value, frames, guards
        self.culprit, self.of_fakes = culprit(value), of_fake_tensors(value)

    def forget(self) -> None:
        """Let go of the frames of the capture, and with them of the call's arguments."""
        self.__context__ = self.__traceback__ = None

    def unsupported(self) -> Unsupported:
        """The error to report when eager does not raise: then the mistake is capture's."""
        what = " ".join(str(self.value).split())[:200]
        if self.culprit:  # what capture alone calls: an operator's fake implementation
            raised = f"{type(self.value).__name__}: {what}"
            text = f"capture runs {self.culprit}, which raised {raised}; eager does not call it"
        else:
            text = f"capture sees {type(self.value).__name__}: {what}; eager does not"
            text += ", only fake tensors do" if self.of_fakes else ""
        error = Unsupported(text)
        error.frames = self.frames
        error.guards = self.guards  # type: ignore[attr-defined]
        return error


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


def capture(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool | None = None,
    exporting: bool = False,
    compiling: bool = False,
) -> Capture:
    """Capture the call `fn(*args, **kwargs)`; all results are the graph's. `exporting`: the program is told so, where it asks.

    With `compiling` the graph is the one that `compile` makes with its own backend: it may have results more that say whether a check of the
    program's has failed, which the caller has to read, and it computes with numbers that change.

    Raises Unsupported or GraphBreak (with the user's line) where that is not possible, ProgramRaised where the
    program itself raises. Nothing that the program can see is changed.
    """
    parameters = Parameters.of(fn)
    values = parameters.bind(tuple(args), kwargs or {})
    marks = Marks()
    marks.floats = compiling
    refused = {"checks": None if compiling else ""}
    return _Attempt(
        fn, parameters, values, bool(dynamic), marks, None, exporting, hooks=True, views=False, refused=refused
    ).first()


def capture_bound(
    target: Any,
    parameters: Parameters,
    values: Mapping[str, Any],
    *,
    dynamic: bool = False,
    marks: Marks | None = None,
    family: Family | None = None,
    views: bool = True,
    checks: bool = False,
    keep: GuardFilter | None = None,
) -> Capture:
    """`capture` for bound arguments; a failed capture leaves `error.guards`, what it relied on until then.

    Of a module its `forward` is captured, without hooks. With `family`, a graph break splits the call: the capture ends there, and
    the family makes the pieces that follow. Results that are views are not the graph's: the generated function makes them.
    With `checks`, `compile_entry` is given a `failed` that runs the call where a check of the program's has failed: its error is None.
    `keep` chooses among the guards (`guards.filters`).
    """
    asked = None if checks else ""
    return _Attempt(target, parameters, values, dynamic, marks, family, keep=keep, refused={"checks": asked}).first()


_ATTEMPTS = 6


@dataclass
class _Attempt:
    """One capture, to be run once or, with a place to stop at, again."""

    target: Any
    parameters: Parameters
    values: Mapping[str, Any]
    dynamic: bool
    marks: Marks | None
    family: Family | None
    exporting: bool = False
    hooks: bool = False  # whether a module's call is captured as a whole
    views: bool = True  # whether the generated function makes results that are views, and not the graph
    outside: bool = False  # whether backward comes to hooks of the program's behind the graph
    refused: dict[str, str | None] = field(
        default_factory=dict
    )  # why the graph takes no checks, branches, loops, texts
    keep: GuardFilter | None = None

    def first(self) -> Capture:
        """Run it; again, up to an earlier place, where a break cannot be split."""
        refuse_environment()
        stop: tuple[int, Stop] | None = None
        for _ in range(_ATTEMPTS):
            try:
                return self.run(stop)
            except Refused as refused:
                self.refused[refused.what] = refused.reason
                stop = None
            except CaptureError as error:
                if isinstance(error, HooksOutside) and not self.outside:
                    self.outside = True
                    continue
                split = error.split
                if (
                    self.family is None
                    or error.asked
                    or not isinstance(split, Restart)
                    or (stop is not None and (split.step, not split.native) >= (stop[0], not stop[1].native))
                ):
                    raise
                stop = split.step, Stop(error, split.native)
        raise stop[1].error  # type: ignore[index]

    def run(self, stop: tuple[int, Stop] | None) -> Capture:
        """Interpret the call and finish the graph, at its end or at the first break."""
        vm = SymbolicInterpreter(self.dynamic, self.marks)
        vm.splits, vm.exporting = self.family is not None, self.exporting
        vm.gradients.outside = self.outside
        vm.guards.keep = None if self.keep is None else functools.partial(kept, self.keep, self.values)
        takers: dict[str, Any] = {
            "checks": vm.checks,
            "branches": vm.branches,
            "loops": vm.branches.loops,
            "texts": vm.texts,
            "told": vm.told,
        }
        for what, reason in self.refused.items():
            takers[what].refused = reason
        vm.label = "".join(
            f"{p.function.rpartition('<locals>.')[2]} ({os.path.basename(p.filename)}:{p.lineno})"
            for p in _definition(self.target)
        )
        vm.stop_in_front_of(*(stop or (None, None)))
        state = StateCheck()
        training = torch.is_grad_enabled()
        try:
            if training and vm.inference:  # autograd records nothing there; capture, outside of it, would
                raise Unsupported("gradients are switched on in inference mode")
            with (
                recording(vm.definitions),
                torch.inference_mode(False),  # tensors made in it have no versions, by which mutations are seen
                torch.set_grad_enabled(training),
                quiet_fake_errors(),
                vm.fake_mode,
                vm.symbolic,
            ):
                return self._interpret(vm, state, training)
        except CaptureError as error:
            error.asked = vm.strict
            own = getattr(error, "guards", [])  # what else the refused calls have in common
            error.guards = partial_guards(vm, state)  # type: ignore[attr-defined]
            error.guards.extra += own  # type: ignore[attr-defined]
            error.frames = error.frames or _definition(self.target)
            raise
        except UserRaise as raised:
            if vm.told.asked and vm.told.refused is None and not self.exporting:
                raise Refused("the program raises where it is told that it is compiled", "told") from None
            known = vm.raised_at is not None and vm.raised_at[0] is raised.value
            frames = vm.raised_at[1] if known and vm.raised_at else _definition(self.target)
            raise ProgramRaised(raised.value, frames, partial_guards(vm, state)) from None
        except (MemoryError, ConstraintError, FilterError, Refused):
            raise
        except Exception as error:  # not in an instruction of the program: an argument, the residual
            internal = InternalError(f"{type(error).__name__}: {error}")
            internal.frames = _definition(self.target)
            raise internal from error
        finally:
            for scope in reversed(list(vm.scopes)):
                scope._leave()
            SET_GRAD_MODE(training)  # the outermost scope may have begun in a mode of capture's own
            vm.defaults.restore()
            vm.effects.leave()
            vm.user.release()
            vm.dissolve()

    def _interpret(self, vm: SymbolicInterpreter, state: StateCheck, training: bool) -> Capture:
        try:
            result = _run(vm, self.target, self.parameters, self.values, self.hooks)
            if vm.delayed_break is not None:
                raise vm.delayed_break
        except CaptureError as error:
            if self.family is None or vm.strict or not isinstance(error.split, Suspended):
                raise
            end = _Broken(Break.of(error), error.split, self.family, not isinstance(self.target, Piece))
            try:
                closing.check_split(vm, error.split.frames, vm.is_native)
                return _finish(vm, self.parameters, state, end, training, self.views)
            except CaptureError as unfinished:  # something that is alive at the break cannot be built again
                unfinished.frames = unfinished.frames or error.frames
                unfinished.split = unfinished.split or breaks.before_caller(error.split)
                raise
        return _finish(vm, self.parameters, state, _Returned(result), training, self.views)


@dataclass
class _Returned:
    """The program returned."""

    result: Any
    broken: Break | None = None

    def text(self, vm: SymbolicInterpreter, body: Residual) -> str:
        text = body.value(self.result)
        closing.check_returned(vm, body.known)
        return text


@dataclass
class _Broken:
    """The graph broke."""

    broken: Break
    split: Suspended
    family: Family
    root: bool

    def text(self, vm: SymbolicInterpreter, body: Residual) -> str:
        return suspend(vm, body, self.split, self.family, self.root)


def _definition(target: Any) -> tuple[SourceLine, ...]:
    """Where the target is defined: the place of errors that no single line causes."""
    if isinstance(target, Piece):
        return (SourceLine(target.code.co_filename, target.line, target.code.co_qualname),)
    function = inspect.unwrap(target.forward if isinstance(target, nn.Module) else target)
    code = getattr(function, "__code__", None)
    return () if code is None else (SourceLine(code.co_filename, code.co_firstlineno, code.co_qualname),)


def _run(vm: SymbolicInterpreter, target: Any, parameters: Parameters, values: Mapping[str, Any], hooks: bool) -> Any:
    vm.out.casts = Casts(vm) if is_on() else None
    if isinstance(target, Piece):
        return _run_piece(vm, target, values)
    function = target
    if isinstance(target, nn.Module):
        vm.user.track(target, target, Const(target, "self"))
    elif isinstance(target, types.MethodType):
        owner = target.__self__
        vm.user.track(owner, owner, Const(owner, "self"))
    elif isinstance(target, functools.partial):
        function = vm.user.wrap(target, Const(target, "target"))  # its arguments may be tensors
    elif not isinstance(target, types.FunctionType) and not isinstance(target, type):
        vm.user.track(target, target, Const(target, "target"))
    wrapped = _arguments(vm, target, parameters, values)
    args, kwargs = parameters.spread({n: vm.materialize(v) if isinstance(v, dict) else v for n, v in wrapped.items()})
    if isinstance(target, nn.Module) and not hooks:
        return call_forward(vm, target, args, kwargs)
    return vm.call(function, args, kwargs, True)


def _arguments(
    vm: SymbolicInterpreter, target: Any, parameters: Parameters, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of the call; where they go straight into the locals of a frame, each is read at its first use."""
    if not _is_plain(target):
        return {name: vm.argument(value, Arg(name)) for name, value in values.items()}
    vm.unread = True
    wrapped: dict[str, Any] = {}
    for name, parameter in parameters.signature.parameters.items():
        packed = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        wrapped[name] = (vm.argument if packed else functools.partial(Unread, vm))(values[name], Arg(name))
    return wrapped


def _is_plain(target: Any) -> bool:
    """Whether calling `target` does nothing but run one Python function of the user's."""
    if isinstance(target, nn.Module):
        target = target.forward
    if isinstance(target, types.MethodType):
        target = target.__func__
    if not isinstance(target, types.FunctionType) or row_of(target) is not None or "_intarsia_target" in vars(target):
        return False
    return not (target.__module__ or "").startswith("torch") and not target.__code__.co_flags & 0x2A0


def _run_piece(vm: SymbolicInterpreter, piece: Piece, values: Mapping[str, Any]) -> Any:
    wrapped = [Unread(vm, value, Arg(name)) for name, value in values.items()]
    vm.unread, vm.user.given = bool(wrapped), [*wrapped]
    for at in range(len(piece.cells)):
        wrapped[at] = wrapped[at].read()
    closure = tuple(types.CellType() for _ in piece.code.co_freevars) or None
    function = types.FunctionType(piece.code, piece.globals, piece.code.co_name, None, closure)
    fast = dict(zip((*piece.cells, *piece.names), wrapped, strict=False))
    frame = Frame(function, fast)
    frame.ip, frame.direct = piece.ip, True
    rest = iter(wrapped[len(fast) :])
    for kind in piece.layout:
        if kind == "saved":
            frame.push(Saved(vm.current_error, next(rest).read()))
            vm.current_error = frame.stack[-1].now
        elif kind in ("null", "lasti"):
            frame.push(NULL if kind == "null" else Lasti())
        else:
            frame.push(next(rest))
    return vm.run(frame)[1]


def _finish(
    vm: SymbolicInterpreter,
    parameters: Parameters,
    state: StateCheck,
    end: _Returned | _Broken,
    training: bool,
    views: bool,
) -> Capture:
    vm.gradients.check_closed()
    vm.effects.check_closed()
    _leave_scopes(vm)
    if vm.out.casts is not None:
        vm.out.casts.finish()
    vm.overrides.methods.check_backward()
    emit = Emitter()
    body = Residual(vm, emit, training if views else None)
    if torch.is_grad_enabled() is not training:  # the program set it, for good
        body.post.append(f"{emit.constant(SET_GRAD_MODE, 'set_grad')}({torch.is_grad_enabled()})")
        set_grad(vm, training)
    body.post += vm.defaults.statements(emit)
    guard_aliasing(vm)
    by_host = vm.dynamic.written_by_host()
    sizes = None
    symbols = None
    if vm.shape_env is not None:
        sizes = SizeCheck([i for i in vm.out.inputs.values() if not i.static], vm.shape_env)
        symbols = Symbols(sizes, vm.dynamic)
        symbols.check()
    checks: list[Any] = [*tensor_checks(vm.out.inputs.values(), state.inference)]
    state.narrow(vm.out)
    numbers, drawn = [sizes] if sizes is not None else [], vm.random.python.check()
    vm.guards.extra += [*checks, *([] if drawn else numbers), *vm.gradients.guards(), *vm.random.guards(), state]
    classes = Classes(vm.guards.parts.values())
    vm.guards.extra += [classes] if classes.modules else []
    _rely_on_definitions(vm, vm.guards)
    vm.guards.extra += [drawn, *numbers] if drawn else []  # what is decided by what was drawn: behind all else
    vm.guards.lines(emit, watched=True)
    for number, tensors in by_host.items():
        given = "".join(f"{emit.fetch(source)}, " for source in tensors)
        body.post.append(f"{emit.constant(put_number, 'put_number')}(({given}), {emit.fetch(number)})")
    body.sizes = sizes
    check_last_acts(vm)
    body.effects()
    body.post += vm.random.statements(body)
    text = end.text(vm, body)
    if body.views is not None:
        body.post[:0] = body.views.statements()
        body.views.sweep()
    vm.branches.finish(vm, [*body.outputs, *(() if body.views is None else body.views.tensors())])
    failing = vm.checks.finish(vm, body)
    body.post[:0] = settle(vm, body)
    outputs = body.outputs = [*body.outputs, *vm.out.read.unread(vm.out, body.outputs)]
    body.post[:0] = vm.inferred.statements(outputs, emit)
    vm.texts.sweep(vm.out, outputs)
    module = vm.out.finish(outputs)
    repeatable = is_repeatable(vm)
    module.meta["gradients"] = body.gradients
    inputs = written.written_inputs(vm)
    if repeatable:
        module.meta[written.WRITTEN] = [k for k, info in enumerate(vm.out.used) if any(info is i for i in inputs)]
    fetch = _given(vm.out.used, emit)
    keeps = "".join(f"{body.value(info.fake)}, " for info in inputs) if failing else ""
    emit.lines += parameters.given(emit, vm.guards)
    shown = profiling.test(emit)
    rest = "\n".join([*fetch, *body.post, text])
    emit.lines += [] if failing else dropped(vm, emit, rest)
    emit.lines += said(vm, emit)
    entry = Entry(
        parameters.names,
        with_few_locals(emit.lines, rest),
        text,
        body.post,
        fetch,
        len(outputs),
        bool(outputs) or any(n.op not in ("placeholder", "output") for n in module.graph.nodes),
        shown,
        late=emit.late,
        failing=failing,
        lasting=vm.checks.only_begun(),
        draws=bool(failing) and not repeatable,
        keeps=f"({keeps})" if keeps else "",
        drawn=drawn is not None,
        lets_go=body.lets_go and isinstance(end, _Broken) and end.root,
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
