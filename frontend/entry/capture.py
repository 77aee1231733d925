"""Capture: one call of a function or module, interpreted on fake tensors, as a graph, guards and a residual."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..breaks import breaks
from ..breaks.breaks import Break, Restart, Stop, Suspended
from ..breaks.pieces import Family, Piece
from ..bytecode import closing
from ..bytecode.frame import NULL, Frame, Lasti, Saved
from ..bytecode.symbolic_interpreter import SymbolicInterpreter
from ..calls.dispatch import call_forward
from ..calls.registry import complete, row_of
from ..errors import CaptureError, InternalError, Refused, SourceLine, Unsupported, UserRaise
from ..gradients.inside import HooksOutside
from ..graph.dynamic import ConstraintError, Marks
from ..guards.checks import StateCheck
from ..guards.definitions import recording
from ..guards.filters import FilterError, GuardFilter, kept
from ..guards.guards import GuardSet
from ..guards.source import Arg, Const
from ..modes.autocast import Casts, is_on
from ..modes.environment import refuse_environment
from ..runtime.error_origin import culprit, of_fake_tensors
from ..torch_private.fake import quiet_fake_errors
from ..torch_private.functions import SET_GRAD_MODE
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .finish import Broken, Capture, Returned, finish, partial_guards
from .parameters import Parameters

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
    )  # why the graph takes no checks, branches, loops, texts, draws
    keep: GuardFilter | None = None

    def first(self) -> Capture:
        """Run it; again, up to an earlier place, where a break cannot be split."""
        complete()
        refuse_environment()
        self.marks = self.marks or Marks()  # a capture that starts again knows what this one learned
        stop: tuple[int, Stop] | None = None
        left = _ATTEMPTS
        while left:
            left -= 1
            try:
                return self.run(stop)
            except Refused as refused:
                left += refused.what == "functions"  # of which there is one more that is known
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
                    if "shells" not in self.refused or "apart" in self.refused:
                        raise
                    self.refused["apart"], stop = error.reason, None
                    continue
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
            "hits": vm.branches.hits,
            "lists": vm.branches.lists,
            "texts": vm.texts,
            "told": vm.told,
            "draws": vm.random.python,
            "shells": vm.foreign.shells,
            "apart": vm.foreign.apart,
            "functions": vm.overrides.methods,
            "leaves": vm.overrides.leaves,
            "through": vm.overrides.through,
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
            end = Broken(Break.of(error), error.split, self.family, not isinstance(self.target, Piece))
            try:
                closing.check_split(vm, error.split.frames, vm.is_native)
                return finish(vm, self.parameters, state, end, training, self.views)
            except CaptureError as unfinished:  # something that is alive at the break cannot be built again
                unfinished.frames = unfinished.frames or error.frames
                unfinished.split = unfinished.split or breaks.before_caller(error.split)
                raise
        return finish(vm, self.parameters, state, Returned(result), training, self.views)


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
