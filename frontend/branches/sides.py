"""Both sides of an `if` on a tensor, run by the interpreter one after the other, each from the same state of the frame.

A side may compute, and keep what it computes in variables and on the stack: nothing else, so that running it changes nothing that the
other side, or the program, could see. Which instructions and calls do more is known before they run (`Side.check`).
"""

from __future__ import annotations

import builtins
import inspect
import logging
import operator
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..bytecode.frame import Frame
from ..bytecode.liveness import live_names
from ..bytecode.opcodes import HANDLERS, steps_of
from ..calls.registry import row_of
from ..errors import CaptureError, UserRaise
from ..graph.aside import storage_of
from ..guards.sameness import indistinguishable
from ..regions.rows import Grown
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..values.constant import has_identity, is_constant
from ..values.identity import PLAIN_KINDS
from ..values.kinds import isinstance
from ..values.lazy import Unread
from ..values.tensor import TensorMethod
from .truths import as_tensor, number_in

__all__ = [
    "LEAVES",
    "STAYS",
    "SUSPENDS",
    "Ended",
    "Path",
    "Plan",
    "Prevented",
    "Way",
    "named",
    "number_kind",
    "run_side",
    "shown",
    "step",
]

Path = tuple[Any, ...]
STAYS, LEAVES = -1, -2
SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE  # flags of code whose frames are left in the middle

_ALLOWED = frozenset(
    """
    LOAD_CONST POP_TOP PUSH_NULL COPY SWAP LOAD_FAST STORE_FAST LOAD_GLOBAL LOAD_DEREF UNARY COMPARE_OP IS_OP CONTAINS_OP BINARY_OP
    BINARY_SUBSCR LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR BUILD_TUPLE BUILD_LIST BUILD_SLICE BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING
    LIST_TO_TUPLE LIST_EXTEND UNPACK_SEQUENCE JUMP POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    RETURN_VALUE CALL CALL_FUNCTION_EX MAKE_CELL DICT_MERGE LOAD_CLOSURE MAKE_FUNCTION STORE_DEREF
    GET_ITER FOR_ITER LIST_APPEND MAP_ADD LOAD_FAST_AND_CLEAR STORE_SUBSCR FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE BUILD_SET SET_ADD
    """.split()  # noqa: SIM905
)
_ITERATORS: tuple[Any, ...] = (zip, enumerate, reversed, iter)
# (`isinstance` in this file is capture's own.)
_BUILTINS: tuple[Any, ...] = (
    len,
    builtins.isinstance,
    issubclass,
    callable,
    hasattr,
    getattr,
    type,
    abs,
    max,
    min,
    sum,
)
_BUILTINS += (float, int, bool, tuple, list, dict, range, *_ITERATORS, torch.finfo, torch.iinfo, torch.Size, super)
_BUILTINS += (format, str, repr, operator.index)
# Methods of Python's own classes that only answer, and those that change a container, which has to be the side's own.
_ANSWERING = (*(m for cls in (str, int, float, tuple, range, frozenset) for m in vars(cls).values() if callable(m)),)
_ANSWERING += (dict.get, dict.keys, dict.values, dict.items, dict.copy, list.copy, list.index, list.count)
_ANSWERING += (Tensor.__index__,)
_CHANGING: tuple[Any, ...] = (
    list.append,
    list.extend,
    list.insert,
    list.pop,
    list.reverse,
    dict.setdefault,
    dict.update,
    dict.pop,
)
_CHANGING += (set.add, set.pop, set.discard, set.update)
_WARNS: tuple[Any, ...] = (warnings.warn, warnings.warn_explicit, logging.warning, logging.error)
_WARNS += (logging.Logger.warning, logging.Logger.error)
# Methods that write numbers to a tensor, and do nothing else.
_WRITES = frozenset(
    """
    abs_ add_ addcdiv_ addcmul_ clamp_ clamp_max_ clamp_min_ clip_ copy_ div_ exp_ expm1_ fill_ floor_ lerp_ log_ masked_fill_ mul_ neg_
    pow_ reciprocal_ relu_ round_ rsqrt_ sigmoid_ sqrt_ square_ sub_ tanh_ zero_
    """.split()  # noqa: SIM905
)
_WRITES_ROWS = frozenset(
    ["index_add_", "index_copy_", "index_fill_", "index_put_", "scatter_", "scatter_add_", "scatter_reduce_"]
)
# Python functions of torch's that have rules, and only answer.
_ANSWERS = (
    inspect.getmro,
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    torch.compiler.is_compiling,
    torch.is_tensor,
)
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class Prevented(Exception):
    """A side does what cannot be done on both ways; `reason` names the statement. `unlikely`: it warns or raises."""

    def __init__(self, reason: str, unlikely: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.unlikely = reason, unlikely
        self.truth: bool | None = None  # that leads to the side


class Side:
    """One side while it runs: what may be called, and which iterators are its own, so that taking their items changes nothing.

    Its checks count where it is taken, if it `takes_checks`. `in_round`: it is a round of a loop, or a part of one. `writes`: what it
    writes to of what was there before is seen afterwards.
    """

    takes_checks = writes = in_round = is_round = False

    def __init__(self, vm: Interpreter, frame: Frame | None = None) -> None:
        self.vm, self.frame = vm, frame
        self.iterators: list[Any] = []
        self.made: list[Any] = []  # containers
        self.last = next(iter(reversed(vm.out.graph.nodes)), None)  # in front of the side
        self.unlikely = False  # whether it has come to a warning, or to what raises
        self.flags: list[Tensor] = []  # each true where a check has failed
        self.outer: Any = vm.side  # the side or round that it is a part of

    def failed(self) -> Tensor | None:
        """Whether one of its checks has failed; None: it has none."""
        made: Tensor | None = None
        for flag in self.flags:
            made = flag if made is None else self.vm.out.call_function(torch.logical_or, (made, flag), {})
        return made

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """The result of a call. Raises Prevented before one that may do more than compute."""
        plain, owner = _unbound(function)
        if self.writes_own(function):
            pass
        elif plain not in _CHANGING or not any((args[0] if owner is None else owner) is own for own in self.made):
            if plain is list.append and args:
                self.vm.branches.lists.want(args[0] if owner is None else owner, args[-1:])
            self.check(plain)
        if type(function) is not types.FunctionType:  # those take items by instructions
            for value in (*args, *kwargs.values()):
                self.check_items(value)
        if function is type and len(args) != 1:
            raise Prevented(f"a class is made in {self.place()}")
        if function is iter and len(args) != 1:
            raise Prevented(f"iter of a function is called in {self.place()}")
        try:
            result = call()
        except CaptureError:
            self.unlikely |= plain in (format, str, repr, str.format)  # a message
            raise
        if plain in _ITERATORS:
            self.iterators.append(result)
        if plain in (list, dict, dict.copy, list.copy):
            self.made.append(result)
        return result

    def writes_own(self, function: Any) -> bool:
        """Whether it is a method that writes to memory which the side has made, in eager too."""
        if type(function) is not TensorMethod or function.__name__ not in _WRITES:
            rows = type(function) is TensorMethod and function.__name__ in _WRITES_ROWS
            return rows and _may_write(self.vm, function.__self__)
        if self.writes:
            return _may_write(self.vm, function.__self__)
        memory = storage_of(function.__self__)
        if self.vm.branches.choices.is_one_of(function.__self__):
            return False
        inside, made = self.last is None, False
        for node in self.vm.out.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, Tensor) and storage_of(value) == memory:
                if not inside or not node.op.startswith("call"):
                    return False
                made = True
            inside = inside or node is self.last
        return made

    def check_items(self, value: Any) -> None:
        """Raises Prevented where taking items of a value would be seen outside of the side."""
        if hasattr(type(value), "__next__") and not any(value is own for own in self.iterators):
            raise Prevented(f"items are taken of an iterator that was there before, in {self.place()}")

    def check(self, function: Any) -> None:
        """Raises Prevented where calling a function may do more than compute."""
        kind = type(function)
        if kind in (types.MethodType, TensorMethod):
            function = function.__func__ if kind is types.MethodType else function.__name__
            kind = type(function)
        if kind is str:
            allowed = not function.endswith("_")
        elif isinstance(function, _FUNCTIONS):
            torch_own = _module(function).startswith("torch") or getattr(function, "__objclass__", None) in _TENSORS
            allowed = (
                function in _BUILTINS or function in _ANSWERING or torch_own and not function.__name__.endswith("_")
            )
        elif kind is types.FunctionType:
            known = row_of(function) is not None and function not in _ANSWERS
            allowed = not known or _module(function).startswith("torch.nn.functional")
        else:
            allowed = function in _BUILTINS if isinstance(function, type) else isinstance(function, (nn.Module, Way))
        if not allowed:
            self.unlikely = function in _WARNS or isinstance(function, type) and issubclass(function, BaseException)
            name = function if kind is str else getattr(function, "__qualname__", None) or kind.__name__
            raise Prevented(f"{name} is called in {self.place()}")

    def place(self) -> str:
        """The statement that runs."""
        line = self.vm.places()[-1]
        return f"`{line.text}` (line {line.lineno})"


_TENSORS = (Tensor, *Tensor.__mro__[1:-1])


def _unbound(function: Any) -> tuple[Any, Any]:
    """A method of a class of Python's, and the object that it is bound to; else the function, and None."""
    owner = getattr(function, "__self__", None) if type(function) is types.BuiltinFunctionType else None
    method = None if owner is None else vars(type(owner)).get(function.__name__)
    return (function, None) if method is None else (method, owner)


def _module(function: Any) -> str:
    module = getattr(function, "__module__", None)
    return module if type(module) is str else ""


def _steps(code: types.CodeType) -> tuple[tuple[Any, Any, int], ...]:
    return tuple(
        (_checked_of(handler, arg), arg, touched) if handler.__name__ in _ALLOWED else (_prevented, handler.__name__, 0)
        for handler, arg, touched in steps_of(code)
    )


def _prevented(vm: Interpreter, frame: Frame, op: str) -> None:
    vm.side.unlikely = op == "RAISE_VARARGS"
    raise Prevented(f"{op} is done in {Side(vm).place()}")


def _checked_of(handler: Any, arg: Any) -> Any:
    """The handler of an allowed instruction, or the one that first looks at what it does."""
    name = handler.__name__
    if name in _TAKES_ITEMS:
        return partial(_taking, handler)
    if name == "BINARY_OP" and str(arg).endswith("="):
        return _added
    return _CHECKED.get(name, handler)


def _taking(handler: Any, vm: Interpreter, frame: Frame, arg: Any) -> Any:
    for value in frame.stack[-2:] if handler.__name__ == "CALL_FUNCTION_EX" else frame.stack[-1:]:
        vm.side.check_items(value)
    return handler(vm, frame, arg)


_TAKES_ITEMS = frozenset(["LIST_EXTEND", "UNPACK_SEQUENCE", "CONTAINS_OP", "CALL_FUNCTION_EX", "FOR_ITER"])


def _added(vm: Interpreter, frame: Frame, symbol: str) -> None:
    """`x += y` of numbers, which makes another one."""
    left = frame.stack[-2]
    if not _may_write(vm, left) and not is_constant(left) and type(left) not in PLAIN_KINDS and type(left) is not Grown:
        if type(left) is list and type(frame.stack[-1]) in (list, tuple):
            vm.branches.lists.want(left, frame.stack[-1])
        raise Prevented(f"`{symbol}` writes to a {vm.type_of(left).__name__} in {Side(vm).place()}")
    HANDLERS["BINARY_OP"](vm, frame, symbol)


def _iterated(vm: Interpreter, frame: Frame, arg: Any) -> None:
    """`for` over anything but an iterator, which is its own."""
    before = frame.stack[-1]
    HANDLERS["GET_ITER"](vm, frame, arg)
    if frame.stack[-1] is not before:
        vm.side.iterators.append(frame.stack[-1])


def _stored(vm: Interpreter, frame: Frame, name: str) -> None:
    """A variable that functions share, of a frame that began in the side."""
    if name in frame.code.co_freevars or vm.side.frame is frame:
        raise Prevented(f"the variable {name}, which functions share, is assigned in {Side(vm).place()}")
    HANDLERS["STORE_DEREF"](vm, frame, name)


def _may_write(vm: Interpreter, value: Any) -> bool:
    """Whether it is a plain tensor that a side may write to."""
    plain = vm.side.writes and isinstance(value, Tensor) and vm.out.is_known(value)
    return plain and not is_composite(value) and not vm.overrides.concern((value,))


def _stored_item(vm: Interpreter, frame: Frame, arg: Any) -> None:
    """`x[k] = y` of a tensor, where a side may write to what was there before."""
    if not _may_write(vm, frame.stack[-2]):
        _prevented(vm, frame, "STORE_SUBSCR")
    HANDLERS["STORE_SUBSCR"](vm, frame, arg)


def _made(name: str, vm: Interpreter, frame: Frame, arg: Any) -> None:
    """A container of the side's own."""
    HANDLERS[name](vm, frame, arg)
    vm.side.made.append(frame.stack[-1])


_CHECKED = {"GET_ITER": _iterated, "STORE_DEREF": _stored, "STORE_SUBSCR": _stored_item}
_CHECKED |= {name: partial(_made, name) for name in ("BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP")}


@dataclass
class Ended:
    """The frame at the end of a side: its variables, its stack, where it is, or what it returns."""

    fast: dict[str, Any]
    stack: list[Any]
    ip: int
    result: Any = None
    failed: Tensor | None = None  # whether one of the side's checks has failed
    grown: dict[int, list[Tensor]] = field(default_factory=dict)  # what it has appended, by the number of the list

    def at(self, path: Path) -> Any:
        """The value at a path of a plan."""
        kind, key, *rest = path
        if kind == "rows":
            return len(self.grown.get(key, ()))
        value = _read(self.result if kind == "result" else (self.fast if kind == "variable" else self.stack)[key])
        for place in rest:
            value = _read(value[place])
        return value


def _read(value: Any) -> Any:
    return value.read() if type(value) is Unread else value


def run_side(
    vm: Interpreter, frame: Frame, start: int | Callable[[Frame], None], joins: frozenset[int], kind: type[Side] = Side
) -> Ended:
    """Run the frame from `start` to one of `joins`, or to its end, and set it back to where it was.

    STAYS and LEAVES are the two ways that the condition of the loop leads to whose way out is being found; a function sets the frame
    to its start.

    Raises:
        Prevented: the side does more than compute, raises, or cannot be captured.
    """
    kept = {name: getattr(frame, name) for name in ("fast", "stack", "ip", "begun", "before", "result")}
    before = vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error
    lists = vm.branches.lists.kept()
    frame.fast, frame.stack = dict(frame.fast), list(frame.stack)
    side = kind(vm, frame)
    side.takes_checks = vm.side is None or vm.side.takes_checks
    side.in_round = vm.side is not None and vm.side.in_round
    vm.stop_at, vm.side, vm.steps_of = -1, side, _steps
    try:
        if callable(start):
            start(frame)
        elif start in (STAYS, LEAVES):
            vm.branches.loops.leaving.begin(start == STAYS)
        else:
            frame.ip = start
        ended = _run(vm, frame, _steps(frame.code), joins)
        ended.failed, ended.grown = side.failed(), vm.branches.lists.waiting(lists)
        return ended
    except UserRaise as raised:
        if type(raised.value) is Prevented:  # in what C code calls
            raise raised.value from None
        raise Prevented(f"{type(raised.value).__name__} is raised in {Side(vm).place()}", True) from None
    except Prevented as prevented:
        raise Prevented(prevented.reason, prevented.unlikely or side.unlikely) from None
    except CaptureError as error:
        if isinstance(error.__cause__, Prevented):  # in what C code calls
            raise Prevented(error.__cause__.reason, side.unlikely) from None
        line = error.frames[-1] if error.frames else vm.places()[-1]
        reason = f"`{line.text}` (line {line.lineno}) cannot be captured: {error.reason}"
        raise Prevented(reason, side.unlikely) from None
    finally:
        vm.branches.lists.put_back(lists)
        for name, value in kept.items():
            setattr(frame, name, value)
        vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error = before


def step(vm: Interpreter, frame: Frame, steps: Any) -> str | None:
    """Run the next instruction of a frame. Raises Prevented where the graph would end behind it."""
    handler, arg, touched = steps[frame.ip]
    frame.ip += 1
    vm.step = frame.begun = vm.step + 1
    frame.before = frame.stack[:]
    vm.out_size = vm.out.size
    if vm.unread and touched:
        vm.read_operands(frame, touched, arg)
    signal: str | None = handler(vm, frame, arg)
    if vm.delayed_break is not None:
        raise Prevented(vm.delayed_break.reason)
    return signal


def _run(vm: Interpreter, frame: Frame, steps: Any, joins: frozenset[int]) -> Ended:
    leaving = vm.branches.loops.leaving
    known = dict(leaving.cut) if leaving is not None and leaving.frame is frame else {}
    while frame.ip not in joins:
        index = frame.ip
        if index in known:
            frame.stack.pop()
            frame.ip = known[index]
            continue
        if step(vm, frame, steps) is not None:
            return Ended(frame.fast, frame.stack, len(steps), frame.result)
    return Ended(frame.fast, frame.stack, frame.ip)


class Way:
    """One side as a function of nothing, whose results are the tensors at the paths of a plan."""

    def __init__(self, vm: Interpreter, frame: Frame, start: int, joins: frozenset[int], plan: Plan) -> None:
        self.run, self.plan = (vm, frame, start, joins), plan

    def __call__(self) -> tuple[Tensor, ...]:
        end = run_side(*self.run)
        return tuple(self.plan.tensors_of(end))


class Plan:
    """What the frame holds behind both sides: what is one value on both, and the paths to tensors and numbers of which one is chosen.

    Numbers are chosen as tensors without dimensions, on the condition's device.
    """

    def __init__(
        self, vm: Interpreter, code: types.CodeType, joins: frozenset[int], known: set[int], device: torch.device
    ) -> None:
        self.vm, self.code, self.joins, self.known, self.device = vm, code, joins, known, device
        self.paths: list[tuple[Path, type]] = []
        self.checked = False  # whether a side has checks
        self.grown: list[tuple[int, list[Any], Any]] = []  # lists that a side appends to, the rows, how many count

    def chosen_of(self, end: Ended) -> list[Tensor]:
        """What is chosen, as one side has left it."""
        found = [(path, kind, self._at(end, path)) for path, kind in self.paths]
        made = [v if kind is Tensor else as_tensor(self.vm, v, kind, self.device) for _, kind, v in found]
        odd = next((path for (path, _, _), tensor in zip(found, made, strict=True) if tensor is None), None)
        if odd is not None:
            raise Prevented(f"{named(odd)} is a number that changes between calls")
        return made  # type: ignore[return-value]

    def both_of(self, one: Ended, other: Ended) -> list[tuple[Tensor, Tensor]]:
        """What is chosen of each side; the last pair says whether their checks have failed, where `checked` says that there are some."""
        ends = (one, other)
        self.checked = any(end.failed is not None for end in ends)
        return list(zip(*(self.tensors_of(end) for end in ends), strict=True))

    def tensors_of(self, end: Ended) -> list[Tensor]:
        """What is chosen, behind it whether a check of the side has failed."""
        found = self.chosen_of(end)
        if not self.checked:
            return found
        none = as_tensor(self.vm, False, bool, self.device) if end.failed is None else end.failed
        assert none is not None
        return [*found, none]

    def behind(self, chosen: Sequence[Tensor]) -> None:
        """Note the check that is behind the branch."""
        if self.checked:
            self.vm.checks.failed(self.vm, chosen[-1])

    def put(self, frame: Frame, build: Any, chosen: Sequence[Tensor], ip: int) -> str | None:
        """Set the frame to what `ended` has given, of what was chosen: the signal of the instruction."""
        self.behind(chosen)
        for k, rows, number in self.grown:
            self.vm.branches.lists.join(self.vm, k, [row(chosen) for row in rows], number(chosen))
        if callable(build):
            frame.result = build(chosen)
            return "return"
        fast, stack = build
        frame.fast = {n: v for n, v in frame.fast.items() if n in fast} | {n: v(chosen) for n, v in fast.items()}
        frame.stack[:] = [value(chosen) for value in stack]
        frame.ip = ip
        return None

    def ended(self, first: Ended, second: Ended) -> Any:
        """The state behind the branch, with a function of the chosen tensors for each value."""
        if (first.ip == len(steps_of(self.code))) != (second.ip == len(steps_of(self.code))):
            raise Prevented("one side alone returns")
        for k in sorted(first.grown.keys() | second.grown.keys()):
            self._grow(k, len(first.grown.get(k, ())), len(second.grown.get(k, ())))
        if first.ip == len(steps_of(self.code)):
            return self._value(first.result, second.result, ("result", None))
        live = frozenset().union(*(live_names(self.code, join) for join in self.joins))
        names = [n for n in live if n in first.fast or n in second.fast]
        odd = next((n for n in names if n not in first.fast or n not in second.fast), None)
        if odd is not None:
            raise Prevented(f"{odd} is bound on one side only")
        if len(first.stack) != len(second.stack):
            raise Prevented("the sides leave stacks of two sizes")
        fast = {n: self._value(first.fast[n], second.fast[n], ("variable", n)) for n in names}
        pairs = zip(first.stack, second.stack, strict=True)
        return fast, [self._value(a, b, ("stack", k)) for k, (a, b) in enumerate(pairs)]

    def _value(self, a: Any, b: Any, path: Path) -> Any:
        if a is b:
            return lambda chosen: a
        a, b = _read(a), _read(b)
        if a is b:
            return lambda chosen: a
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return self._chosen(path, Tensor)
        if is_constant(a) and is_constant(b) and indistinguishable(a, b) and not has_identity(a):
            return lambda chosen: a
        number = number_kind(a)
        if number is not None and number is number_kind(b) and self.vm.dynamic.may_be_late():
            return self._chosen(path, number)
        kind = type(a)
        if kind is type(b) and kind in (tuple, list) and len(a) == len(b) and not {id(a), id(b)} & self.known:
            items = [self._value(x, y, (*path, k)) for k, (x, y) in enumerate(zip(a, b, strict=True))]
            return lambda chosen: kind([item(chosen) for item in items])
        if kind is type(b) is dict and indistinguishable([*a], [*b]) and not {id(a), id(b)} & self.known:
            values = {key: self._value(a[key], b[key], (*path, key)) for key in a if is_constant(key)}
            if len(values) == len(a):
                return lambda chosen: {key: value(chosen) for key, value in values.items()}
        raise Prevented(f"{named(path)} is {shown(a)} on one side and {shown(b)} on the other")

    def _grow(self, k: int, first: int, second: int) -> None:
        """Choose the rows that the sides append to a list, and how many of them count."""
        rows = [self._chosen(("row", k, place), Tensor) for place in range(max(first, second))]
        self.grown.append((k, rows, (lambda chosen: first) if first == second else self._chosen(("rows", k), int)))

    def _at(self, end: Ended, path: Path) -> Any:
        """The value at a path; where a side has appended fewer rows than the other one, one of zeros."""
        if path[0] != "row":
            return end.at(path)
        rows = end.grown.get(path[1], [])
        return rows[path[2]] if path[2] < len(rows) else self.vm.branches.lists.known[path[1]].zeros()

    def _chosen(self, path: Path, kind: type) -> Any:
        place = len(self.paths)
        self.paths.append((path, kind))

        def value(chosen: Sequence[Tensor]) -> Any:
            made = chosen[place] if kind is Tensor else number_in(self.vm, chosen[place], kind)
            if made is None:
                raise Prevented(f"{named(path)}, a number, differs between the sides")
            return made

        return value


def number_kind(value: Any) -> type | None:
    """The type of a number that a tensor of 64 bits holds as it is."""
    kind = PLAIN_KINDS.get(type(value), type(value))
    if kind is int and type(value) is int and abs(value) >= 1 << 63:
        return None
    return kind if kind in (bool, int, float) else None


def named(path: Path) -> str:
    """A path in words."""
    name = {"result": "what is returned", "stack": "a value", "row": "a list"}.get(path[0], str(path[1]))
    return name + "".join(f"[{place}]" for place in path[2:])


def shown(value: Any) -> str:
    """A value in a few words."""
    if is_constant(value):
        return repr(value)[:40]
    return "a Tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
