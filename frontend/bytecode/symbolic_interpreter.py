"""The symbolic interpreter: frames of normal-form bytecode, run over real objects and fake tensors."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..branches.asked import read_asked, retried, settled, unknown_number
from ..branches.branches import Branches
from ..branches.checks import Checks
from ..branches.sides import Side
from ..branches.truths import certain, tensor_of_truth
from ..breaks import breaks
from ..breaks.budget import Budget
from ..breaks.iterators import taken_over
from ..calls import dispatch
from ..calls.builtins import TENSOR_METHODS
from ..calls.visibility import refuse_opaque
from ..classes.special_methods import SpecialMethods
from ..distributed.tensors import METHODS
from ..entry.effects import Effects
from ..errors import CaptureError, InternalError, SourceLine, Unsupported, UserRaise
from ..foreign.calls import foreigners
from ..gradients.inside import Inside
from ..graph.dynamic import Dynamic, Marks
from ..graph.fake_dispatch import new_fake_mode
from ..graph.output import OutputGraph
from ..guards.definitions import Definitions
from ..guards.guards import GuardSet
from ..guards.source import Attr, Fetch, Item, Source
from ..modes.defaults import Defaults
from ..modes.inference import Inference
from ..modes.randomness import Generators
from ..state import Generator, Told
from ..subclasses import tensors as subclasses
from ..subclasses.overrides import Overrides
from ..torch_private.dispatch import python_dispatcher
from ..torch_private.dynamo import breaks_are_errors
from ..torch_private.fake import allow_symbols, data_dependent_errors
from ..torch_private.symbols import new_shape_env
from ..values import function as functions
from ..values import object as objects
from ..values.container import GlobalsDict, InstanceDict, LazyDict, is_class_namespace, shown_dict
from ..values.identity import PLAIN_KINDS, Addresses
from ..values.kinds import is_library, isinstance
from ..values.lazy import Append, Unread, breaks_at_once
from ..values.namespaces import rely_on_definition
from ..values.protocol import ItemsByIndex, answered, ask_length, checked_iterator
from ..values.tensor import ASKED, asked, refuse_method, tensor_class
from ..values.text import Texts
from ..values.user import UserState
from . import closing, exceptions
from .coroutine import suspended_kind
from .frame import Frame, Lasti, Whence
from .generator import InterpretedGenerator
from .opcodes import ALL, steps_of

__all__ = ["SymbolicInterpreter"]

_FRONTEND = __name__.rsplit(".", 2)[0]
_DEPTH_PER_CALL = 9
_LAZY = frozenset((Unread, Append))


class _Recorder(TorchFunctionMode):
    """Routes torch calls that C code makes on its own (sum of tensors, reduce) to the interpreter."""

    def __init__(self, vm: SymbolicInterpreter) -> None:
        super().__init__()
        self.vm = vm

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        vm = self.vm
        # Finalizers of others may run at any point: what has no tensor of this capture is not recorded.
        if not vm.recording or not vm.out.concerns((args, kwargs)):
            return function(*args, **(kwargs or {}))
        vm.recording = False
        try:
            return vm.call(function, args, kwargs or {})
        except UserRaise as raised:
            vm.carried = exceptions.note(raised.value)
            raise raised.value from None
        finally:
            vm.recording = True


class SymbolicInterpreter:
    """One capture in progress: frames, the graph, guards, what is known of the user's objects, effects."""

    def __init__(self, dynamic: bool = False, marks: Marks | None = None) -> None:
        self.dynamic = Dynamic(self, dynamic, marks or Marks())
        self.shape_env: Any = None
        self.symbolic = ExitStack()
        self.fake_mode = new_fake_mode(None)
        self.out = OutputGraph(self.fake_mode, Whence(self))
        self.out.settled = functools.partial(settled, self)
        self.out.number_in, self.out.read.allow = self.dynamic.any_item, self.dynamic.may_be_late
        self.guards = GuardSet(where=self.here)
        self.definitions = Definitions()
        self.user = UserState(self)
        self.effects = Effects()
        self.overrides = Overrides(
            self, functools.partial(subclasses.load, self), functools.partial(subclasses.store, self)
        )
        self.out.overrides = self.overrides
        self.frames: list[Frame] = []
        self.label = ""  # what is captured, for profilers
        self.splits = False  # whether the capture may end at a graph break
        self.ranges: list[tuple[str, str | None]] = []  # the program's ranges of the profiler, where it may not
        self.gradients = Inside()
        self.checks, self.told, self.texts, self.addresses = Checks(), Told(), Texts(self), Addresses(self)
        self.branches, self.foreign = Branches(), foreigners(self)
        self.side: Side | None = None  # of a branch that is being run
        self.steps_of = steps_of
        self.out.new_leaf = functools.partial(self.gradients.note, self)
        self.created: dict[int, Any] = {}
        self.locks: list[Any] = []  # that the call has made
        self.recipes: dict[int, tuple[Any, ...]] = {}  # how an object of C's that capture made is made again
        self.scopes: list[Any] = []
        self.exporting = False  # whether the graph is to be exported
        self.inference = torch.is_inference_mode_enabled()  # of the program; capture itself never runs in it
        self.inferred, self.defaults, self.random = Inference(self), Defaults(self), Generators(self)
        self.device: torch.device | None = None  # of the innermost `with torch.device(...)`
        # Fakes that are parameters made during capture: whether they require grad.
        self.parameters: dict[int, bool] = {}
        self.caches: dict[int, Any] = {}  # what caches hold that the program has made, by their ids
        self.open_scopes: list[Any] = []
        self.current_error: BaseException | None = None
        self.outer_error = sys.exc_info()[1]  # what the caller is handling
        self.carried: exceptions.note | None = None
        self.recorder = _Recorder(self)
        self.methods = SpecialMethods(self)
        self.called_back = 0  # how often C code has called the program
        self.under_way = (
            0  # the last instruction in which C code called the program or took items, so has changed things
        )
        self.recording, self.strict = False, breaks_are_errors()
        self.step = self.out_size = 0
        self.unknown, self.unread = data_dependent_errors(), False
        self.stop: breaks.Stop | None = None
        self.last_step: int | None = None
        self.stop_at, self.budget = -1, Budget()
        self.raised_at: tuple[BaseException, tuple[SourceLine, ...]] | None = None
        self.delayed_break: CaptureError | None = None  # a break that was found where none can be raised
        self.generators: weakref.WeakSet[Generator] = weakref.WeakSet()
        self.steppings: list[Any] = []  # C iterators may drop one that they are in
        self.codes: dict[int, types.CodeType] = {}  # of all frames so far
        self.globals_read: dict[tuple[int, str], Any] = {}
        self.plain: set[types.FunctionType] = set()  # functions whose calls are known to be the running of their code
        self._trace_cache: dict[tuple[str, int, str], str] = {}
        here, frame = 0, sys._getframe()
        while frame is not None:
            here, frame = here + 1, frame.f_back  # type: ignore[assignment]
        self.max_depth: int = max(8, (sys.getrecursionlimit() - here - 80) // _DEPTH_PER_CALL)

    def dissolve(self) -> None:
        """The capture is done: let go of everything at once. It refers to itself in many ways, and to the call's arguments."""
        for part in (self.user, self.effects, self.recorder, self.methods, self):
            vars(part).clear()

    # ---- running frames ----

    def run(self, frame: Frame) -> tuple[bool, Any]:
        """Run until the frame returns (True, value) or yields (False, value)."""
        if len(self.frames) >= self.max_depth:
            error = Unsupported(f"calls nest deeper than {self.max_depth} levels")
            error.split = breaks.Restart(self.frames[0].begun)
            raise error
        self.frames.append(frame)
        self.codes[id(frame.code)] = frame.code
        steps = self.steps_of(frame.code)
        recording, self.recording = self.recording, False
        depth = self.methods.aside()
        try:
            while True:
                index = frame.ip
                frame.ip = index + 1
                handler, arg, touched = steps[index]
                self.step = frame.begun = self.step + 1
                frame.before = frame.stack[:]
                self.out_size = self.out.size
                if self.step == self.stop_at:
                    self._stopped()
                if self.unread and touched and not _LAZY.isdisjoint(map(type, frame.stack[-touched:])):
                    self.read_operands(frame, touched, arg)
                try:
                    if frame.error is not None:
                        thrown, frame.error = frame.error, None
                        raise UserRaise(thrown)
                    signal = handler(self, frame, arg)
                except UserRaise as raised:
                    self._unwind(frame, index, raised)
                    continue
                except self.unknown as error:  # a rule asked for a number that only the running program knows
                    raise unknown_number(error) from None
                if self.delayed_break is not None:
                    raise self.delayed_break
                if signal is not None:
                    if signal == "return":
                        self._release(frame)
                    return signal == "return", frame.result
        except CaptureError as error:
            self._locate(error)
            if error.split is None and not isinstance(error, InternalError):
                error.split = breaks.split_point(self)
            raise
        except UserRaise as raised:
            if self.generators and not isinstance(raised.value, GeneratorExit):
                closing.check_left(self, frame)
            raise
        except RecursionError:
            raise Unsupported("calls nest deeper than capture can follow") from None
        except Exception as error:
            ins = frame.program.instructions[frame.ip - 1]
            internal = InternalError(f"{type(error).__name__}: {error} (at {ins})")
            self._locate(internal)
            raise internal from error
        finally:
            self.recording = recording
            self.methods.back(depth)
            self.frames.pop().left()

    def resume(self, frame: Frame, error: BaseException | None) -> tuple[bool, Any]:
        """Run a suspended frame on; with `error`, it sees that raised where it stopped."""
        if error is not None:
            frame.ip -= 1
            frame.error = error
            if frame.stack:
                frame.pop()
        return self.run(frame)

    def _release(self, frame: Frame) -> None:
        """Let go of a frame's variables, in CPython's order: generators that only they hold are closed now."""
        if not self.generators:
            return
        frame.before = []
        for name in (*frame.code.co_varnames, *frame.code.co_cellvars):
            frame.fast.pop(name, None)

    def _unwind(self, frame: Frame, index: int, raised: UserRaise) -> None:
        if self.raised_at is None or self.raised_at[0] is not raised.value:
            self.raised_at = (raised.value, tuple(self.places()))
            if raised.value.__context__ is None:
                exceptions.set_context(raised.value, self.current_error)
        if not raised.again:
            exceptions.add_entry(self, raised.value, frame)
        raised.again = False
        entry = frame.program.handler(index)
        if entry is None:
            try:
                raise raised
            finally:
                del raised, frame  # its traceback leads to this frame
        for dropped in frame.stack[entry.depth :] if self.unread else ():
            closing.check_dropped(self, dropped)
        del frame.stack[entry.depth :]
        if entry.push_lasti:
            frame.push(Lasti(frame.seen_at))
        frame.push(raised.value)
        frame.ip = entry.target

    def argument(self, value: Any, source: Source) -> Any:
        """Bring an argument of the call onto the stack."""
        return self.user.wrap(value, source)

    def read_operands(self, frame: Frame, count: int, arg: Any) -> None:
        """Read the operands of the next instruction that were not read yet."""
        stack = frame.stack
        # Who looks at methods: of a call dispatch says so, and what takes no known operands takes none of an outer call.
        lazy = (Unread,) if type(arg) is tuple or count == ALL else _LAZY
        start = max(len(stack) - count, 0)
        unread = [at for at, value in enumerate(stack[-count:], start) if type(value) in lazy]
        if unread and type(arg) is tuple and breaks_at_once(stack[start : start + 2]):
            unread = [at for at in unread if at < start + 2]
        for at in unread:
            value = stack[at]
            stack[at] = Append(value) if arg == "append" and value.can_append() else value.read()

    @property
    def is_native(self) -> bool:
        """Whether capture stands where CPython is to run the rest of the innermost frame."""
        return self.stop is not None and self.stop.native and self.step == self.stop_at

    def stop_in_front_of(self, step: int | None, stop: breaks.Stop | None) -> None:
        """Where this capture is to end; what it may spend until then."""
        self.last_step, self.stop = step, stop
        unlimited = self.strict or not self.splits
        self.stop_at = self.budget.next_stop(0, step) if not unlimited else -1 if step is None else step

    def _stopped(self) -> None:
        """Raise the break that an earlier attempt asked for here, or see whether plain Python runs too long."""
        if self.step == self.last_step:
            raise self.stop.again(self.frames[-1])  # type: ignore[union-attr]
        self.budget.look(self)
        self.stop_at = self.budget.next_stop(self.step, self.last_step)

    def _locate(self, error: CaptureError) -> None:
        if not error.frames:
            error.frames = tuple(self.places())

    def places(self) -> list[SourceLine]:
        """The lines that capture is in, outermost first."""
        return [SourceLine(f.code.co_filename, f.line, f.code.co_qualname) for f in self.frames]

    def here(self) -> tuple[str, int, str] | None:
        """The innermost line of the program's own that capture is in: file, line number, function."""
        for frame in reversed(self.frames):
            if not self.is_library_frame(frame):
                return frame.code.co_filename, frame.line, frame.code.co_qualname
        return None

    def trace(self) -> str:
        """The current lines in the form that FX nodes keep."""
        parts = []
        for frame in self.frames:
            name = frame.code.co_filename
            if self.is_library_frame(frame) and len(self.frames) > 1:
                continue
            key = (name, frame.line, frame.code.co_name)
            text = self._trace_cache.get(key)
            if text is None:
                text = f'  File "{name}", line {key[1]}, in {key[2]}\n    {SourceLine(*key).text}\n'
                self._trace_cache[key] = text
            parts.append(text)
        return "".join(parts)

    # ---- calling ----

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool = False) -> Any:
        """Call anything the program can call.

        With `direct`, the result is that of a CALL instruction, with nothing left to do: frames can be suspended in it.
        """
        if self.side is None:
            return dispatch.call(self, function, tuple(args), kwargs, direct)
        do = functools.partial(dispatch.call, self, function, tuple(args), kwargs, direct)
        return self.side.call(function, args, kwargs, do)

    def inline(
        self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool = False
    ) -> Any:
        """Interpret a Python function; `direct` as for `call`."""
        code = function.__code__
        rely_on_definition(self, function)
        fast = functions.bind(self, function, args, kwargs)
        frame = Frame(function, fast)
        frame.direct = direct and not self.is_created(frame.globals)
        if function.__closure__:
            source = None if self.is_created(function) else self.user.source_of(function)
            for i, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__, strict=True)):
                fast[name] = cell
                if source is not None and id(cell) not in self.created and self.user.source_of(cell) is None:
                    self.user.track(cell, cell, Item(Attr(source, "__closure__"), i))
        suspended = suspended_kind(code)
        if suspended is None:
            return self.run(frame)[1]
        frame.direct = False
        return suspended(self, frame)

    def native(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call real Python code; its exceptions become the program's."""
        methods = self.methods
        methods.depth += 1
        stood = methods.standing != []
        try:
            if (getattr(function, "__module__", None) or "").startswith("torch"):
                self.out.asked = True
            plain = not methods.owners and self.shape_env is None
            result = function(*args, **kwargs) if plain else methods.run(function, args, kwargs)
            if type(result) is str or self.addresses.callers:
                self.addresses.note(result, function, args, kwargs)
            return result
        except (CaptureError, UserRaise):
            raise
        except self.unknown as error:
            return retried(self, error, function, args, kwargs)
        except BaseException as error:
            if not isinstance(error, Exception) and (self.carried is None or self.carried.error is not error):
                raise
            self.texts.check(function, args, kwargs)
            if self.carried is not None and self.carried.error is error:
                raise UserRaise(self.carried.restore()) from None
            self.addresses.note_error(error, function, args, kwargs)
            raise UserRaise(exceptions.cleaned(exceptions.guarded(error, args, kwargs), self.outer_error)) from None
        finally:
            methods.depth -= 1
            if methods.standing and not stood:
                methods.leave()

    def native_recorded(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`native` for C code that may operate on tensors."""
        before, self.recording = self.recording, True
        try:
            with self.recorder:
                return self.native(function, *args, **kwargs)
        finally:
            self.recording = before

    def call_tensor_method(self, tensor: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`tensor.name(*args)`."""
        if self.overrides.active:
            result = self.overrides.method(tensor, name, args, kwargs)
            if result is not NotImplemented:
                return result
        if self.foreign.of(tensor) is not None:
            return self.out.call_method(name, (tensor, *args), kwargs)
        rule = METHODS.get(name) or TENSOR_METHODS.get(name)
        if rule is not None:
            return rule(self, tensor, *args, **kwargs)
        if name in ASKED and not args and not kwargs:
            return asked(self, tensor, name)
        if name != "item" or getattr(tensor, "constant", None) is None:
            if not args and not kwargs and (number := read_asked(self, tensor, name)) is not None:
                return number
            refuse_method(name)
        return self.out.call_method(name, (tensor, *args), kwargs)

    # ---- reading the user's world ----

    def is_created(self, obj: Any) -> bool:
        """Whether capture itself made the object."""
        return id(obj) in self.created

    def create(self, obj: Any) -> Any:
        """Note that capture made the object."""
        self.created[id(obj)] = obj
        return obj

    def type_of(self, value: Any) -> type:
        """`type(value)` as the program sees it."""
        if isinstance(value, Tensor):
            return tensor_class(self, value)
        if isinstance(value, LazyDict):
            return type(value.real)
        if type(value) is torch.SymFloat:
            self.dynamic.check_type(value)
        return PLAIN_KINDS.get(type(value), type(value))

    @staticmethod
    def is_frontend_class(kind: type) -> bool:
        """Whether `kind` is one of the frontend's own helper classes."""
        return kind.__module__.startswith(_FRONTEND)

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def is_library(module: str | None) -> bool:
        """Whether a module is torch's or Python's, and so not expected to change between calls."""
        return is_library((module or "").partition(".")[0])

    def is_library_frame(self, frame: Frame) -> bool:
        """Whether a frame runs torch's or Python's code."""
        return self.is_library(frame.globals.get("__name__"))

    def need_symbols(self) -> None:
        """From here on, sizes and numbers may be symbolic."""
        if self.shape_env is None:
            self.shape_env = self.out.shape_env = new_shape_env(self.here)
            self.out.numbers = self.dynamic
            allow_symbols(self.fake_mode, self.shape_env)
            self.symbolic.enter_context(python_dispatcher())

    # ---- operators ----

    def truth(self, value: Any) -> bool:
        """`bool(value)`."""
        return bool(self.decision(value))

    def decision(self, value: Any, jump: int | None = None) -> bool | None:
        """`bool(value)` for a conditional jump, by where it leads; None where both ways are to be taken (`branches`)."""
        if value is None or value is True or value is False:
            return bool(value)
        asked = value
        if type(value) in PLAIN_KINDS:
            value = tensor_of_truth(self, value)
        if isinstance(value, Tensor):
            if (own := self.overrides.own(value, "__bool__")) is not None:
                return bool(answered(self, bool, value, "__bool__", self.call(own, (), {})))
            if self.overrides.concern((value,)):
                return self.decision(self.overrides.run(bool, (value,), {}), jump)
            if (
                getattr(value, "constant", None) is None and value.numel() == 1
            ):  # of another an error, whatever it holds
                known = self.dynamic.truth(value)
                known = certain(self, value) if known is None else known
                many = self.branches.presumed(self, asked) if known is None and jump is None else None
                return self.checks.decide(self, value, jump, many) if known is None else known
            return bool(self.native(bool, value))
        for name in ("__bool__", "__len__"):
            method = objects.find_method(type(value), name)
            if method is not None:
                result = self.call(method, (value,), {})
                return bool(answered(self, bool if name == "__bool__" else len, value, name, result))
            if objects.lookup(type(value), name)[1] is not None:
                break
        mapping = self.tracked_contents(value)
        if mapping is None:
            refuse_opaque(self, value, "`if`")
        return len(mapping) > 0 if mapping is not None else bool(self.native(bool, value))

    def tracked_mapping(self, value: Any) -> LazyDict | None:
        """The reading view of a user's object that derives from dict, or shows a dict."""
        if type(value) is LazyDict:
            return value
        if type(value) is types.MappingProxyType:
            return self._shown_mapping(value)
        if isinstance(value, dict) and type(value) not in (dict,) and self.user.source_of(value) is not None:
            entry = self.user.by_value[id(value)]
            if entry.real is value:
                return LazyDict(self, value, entry.source)
        return None

    def _shown_mapping(self, proxy: types.MappingProxyType[Any, Any]) -> LazyDict | None:
        """The dict behind a mapping proxy of the user's; the same that the program may reach, and change, by its own name."""
        entry = self.user.by_value.get(id(proxy))
        if entry is None or entry.real is not proxy or not isinstance(shown := shown_dict(proxy), dict):
            return None
        if is_class_namespace(entry.source):
            if self.effects.classes:
                raise Unsupported("the namespace of a class is read after one was written")
            return LazyDict(self, shown, entry.source)
        if "__module__" in shown:  # a class's, under a name of the caller's
            return None
        source = Fetch(shown_dict, entry.source)
        found = self.user.wrap(shown, source)
        if found is shown or not isinstance(found, dict):
            return self.tracked_mapping(found)
        mapping = LazyDict(self, shown, source)
        mapping.shadow = found
        return mapping

    def tracked_contents(self, value: Any) -> LazyDict | list[Any] | None:
        """What a user's object that derives from dict or list holds, for reading."""
        mapping = self.tracked_mapping(value)
        return self.user.items_of(value) if mapping is None else mapping

    def iterate(self, value: Any) -> Any:
        """`iter(value)`."""
        if isinstance(value, Tensor):
            own = self.overrides.own(value, "__iter__")
            rows = TENSOR_METHODS["__iter__"](self, value) if own is None else self.call(own, (), {})
            return rows if own is None else checked_iterator(self, rows)
        method = objects.find_method(type(value), "__iter__")
        if method is not None:
            return checked_iterator(self, self.call(method, (value,), {}))
        mapping = self.tracked_mapping(value)
        if mapping is not None:
            return iter(mapping)
        if objects.lookup(type(value), "__iter__")[1] is None:
            getter = objects.find_method(type(value), "__getitem__")
            if getter is not None:
                return ItemsByIndex(self, getter, value)
        items = self.user.items_of(value)
        if items is None:
            refuse_opaque(self, value, "iteration")
        return self.native(iter, value if items is None else items)

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        """(True, next value), or (False, None) at the end."""
        if type(iterator) is InterpretedGenerator:
            return iterator.step(None, None)
        method = objects.find_method(type(iterator), "__next__")
        try:
            if method is not None:
                return True, self.call(method, (iterator,), {})
            taken = taken_over(self, iterator)
            self.under_way = self.step
            return True, self.native_recorded(next, taken)
        except UserRaise as raised:
            if isinstance(raised.value, StopIteration):
                return False, raised.value.value
            raise

    def listed(self, value: Any) -> list[Any]:
        """`list(value)`."""
        if type(value) in (list, tuple):
            return list(value)
        iterator = self.iterate(value)
        ask_length(self, value)
        out: list[Any] = []
        while (step := self.advance(iterator))[0]:
            out.append(step[1])
        return out

    def load_attr(self, obj: Any, name: str) -> Any:
        """`obj.name`."""
        return objects.load_attr(self, obj, name)

    def materialize(self, value: Any) -> Any:
        """A value that real Python code may look into: views of the user's mappings become plain dicts."""
        if type(value) in (LazyDict, InstanceDict, GlobalsDict):
            return value.force()
        return taken_over(self, value)
