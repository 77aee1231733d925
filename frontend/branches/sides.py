"""Both sides of an `if` on a tensor, run by the interpreter one after the other, each from the same state of the frame.

A side may compute, and keep what it computes in variables and on the stack: nothing else, so that running it changes nothing that the
other side, or the program, could see. Which instructions and calls do more is known before they run (`Side.check`).
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..bytecode.frame import Frame
from ..bytecode.liveness import live_names
from ..bytecode.opcodes import HANDLERS, steps_of
from ..calls.registry import row_of
from ..errors import CaptureError, UserRaise
from ..guards.sameness import indistinguishable
from ..state import Interpreter
from ..values.constant import has_identity, is_constant
from ..values.kinds import isinstance
from ..values.lazy import Unread
from ..values.tensor import TensorMethod

__all__ = ["Ended", "Path", "Plan", "Prevented", "named", "run_side", "shown"]

Path = tuple[Any, ...]

_ALLOWED = frozenset(
    """
    LOAD_CONST POP_TOP PUSH_NULL COPY SWAP LOAD_FAST STORE_FAST LOAD_GLOBAL LOAD_DEREF UNARY COMPARE_OP IS_OP CONTAINS_OP BINARY_OP
    BINARY_SUBSCR LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR BUILD_TUPLE BUILD_LIST BUILD_SLICE BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING
    LIST_TO_TUPLE LIST_EXTEND UNPACK_SEQUENCE JUMP POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    RETURN_VALUE CALL CALL_FUNCTION_EX MAKE_CELL DICT_MERGE
    """.split()  # noqa: SIM905
)
_BUILTINS = (len, isinstance, abs, max, min, float, int, bool, tuple)
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class Prevented(Exception):
    """A side does what cannot be done on both ways; `reason` names the statement."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Side:
    """One side while it runs: what may be called."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm

    def check(self, function: Any) -> None:
        """Raises Prevented before a call that may do more than compute."""
        kind = type(function)
        if kind in (types.MethodType, TensorMethod):
            function = function.__func__ if kind is types.MethodType else function.__name__
            kind = type(function)
        if kind is str:
            allowed = not function.endswith("_")
        elif isinstance(function, _FUNCTIONS):
            torch_own = _module(function).startswith("torch") or getattr(function, "__objclass__", None) in _TENSORS
            allowed = function in _BUILTINS or torch_own and not function.__name__.endswith("_")
        elif kind is types.FunctionType:
            allowed = row_of(function) is None or _module(function).startswith("torch.nn.functional")
        else:
            allowed = function in _BUILTINS if isinstance(function, type) else isinstance(function, nn.Module)
        if not allowed:
            name = function if kind is str else getattr(function, "__qualname__", None) or kind.__name__
            raise Prevented(f"{name} is called in {self.place()}")

    def place(self) -> str:
        """The statement that runs."""
        line = self.vm.places()[-1]
        return f"`{line.text}` (line {line.lineno})"


_TENSORS = (Tensor, *Tensor.__mro__[1:-1])


def _module(function: Any) -> str:
    module = getattr(function, "__module__", None)
    return module if type(module) is str else ""


def _steps(code: types.CodeType) -> tuple[tuple[Any, Any, int], ...]:
    return tuple(
        (_checked if handler.__name__ == "BINARY_OP" and str(arg).endswith("=") else handler, arg, touched)
        if handler.__name__ in _ALLOWED
        else (_prevented, handler.__name__, 0)
        for handler, arg, touched in steps_of(code)
    )


def _prevented(vm: Interpreter, frame: Frame, op: str) -> None:
    raise Prevented(f"{op} is done in {Side(vm).place()}")


def _checked(vm: Interpreter, frame: Frame, symbol: str) -> None:
    """`x += y` of numbers, which makes another one."""
    left = frame.stack[-2]
    if not is_constant(left):
        raise Prevented(f"`{symbol}` writes to a {vm.type_of(left).__name__} in {Side(vm).place()}")
    HANDLERS["BINARY_OP"](vm, frame, symbol)


@dataclass
class Ended:
    """The frame at the end of a side: its variables, its stack, where it is, or what it returns."""

    fast: dict[str, Any]
    stack: list[Any]
    ip: int
    result: Any = None

    def at(self, path: Path) -> Any:
        """The value at a path of a plan."""
        kind, key, *rest = path
        value = _read(self.result if kind == "result" else (self.fast if kind == "variable" else self.stack)[key])
        for place in rest:
            value = _read(value[place])
        return value


def _read(value: Any) -> Any:
    return value.read() if type(value) is Unread else value


def run_side(vm: Interpreter, frame: Frame, start: int, joins: frozenset[int]) -> Ended:
    """Run the frame from `start` to one of `joins`, or to its end, and set it back to where it was.

    Raises:
        Prevented: the side does more than compute, raises, or cannot be captured.
    """
    kept = {name: getattr(frame, name) for name in ("fast", "stack", "ip", "begun", "before", "result")}
    before = vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error
    frame.fast, frame.stack, frame.ip = dict(frame.fast), list(frame.stack), start
    vm.stop_at, vm.side, vm.steps_of = -1, Side(vm), _steps
    try:
        return _run(vm, frame, _steps(frame.code), joins)
    except UserRaise as raised:
        raise Prevented(f"{type(raised.value).__name__} is raised in {Side(vm).place()}") from None
    except CaptureError as error:
        line = error.frames[-1] if error.frames else vm.places()[-1]
        raise Prevented(f"`{line.text}` (line {line.lineno}) cannot be captured: {error.reason}") from None
    finally:
        for name, value in kept.items():
            setattr(frame, name, value)
        vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error = before


def _run(vm: Interpreter, frame: Frame, steps: Any, joins: frozenset[int]) -> Ended:
    leaving = vm.branches.loops.leaving
    known = dict(leaving.cut) if leaving is not None and leaving.frame is frame else {}
    while frame.ip not in joins:
        index = frame.ip
        if index in known:
            frame.stack.pop()
            frame.ip = known[index]
            continue
        frame.ip = index + 1
        handler, arg, touched = steps[index]
        vm.step = frame.begun = vm.step + 1
        frame.before = frame.stack[:]
        vm.out_size = vm.out.size
        if vm.unread and touched:
            vm.read_operands(frame, touched, arg)
        signal = handler(vm, frame, arg)
        if vm.delayed_break is not None:
            raise Prevented(vm.delayed_break.reason)
        if signal is not None:
            return Ended(frame.fast, frame.stack, len(steps), frame.result)
    return Ended(frame.fast, frame.stack, frame.ip)


class Plan:
    """What the frame holds behind both sides: what is one value on both, and the paths to tensors of which one is chosen."""

    def __init__(self, code: types.CodeType, joins: frozenset[int], known: set[int]) -> None:
        self.code, self.joins, self.known = code, joins, known
        self.paths: list[Path] = []

    def ended(self, first: Ended, second: Ended) -> Any:
        """The state behind the branch, with a function of the chosen tensors for each value."""
        if (first.ip == len(steps_of(self.code))) != (second.ip == len(steps_of(self.code))):
            raise Prevented("one side alone returns")
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
            place = len(self.paths)
            self.paths.append(path)
            return lambda chosen: chosen[place]
        if is_constant(a) and is_constant(b) and indistinguishable(a, b) and not has_identity(a):
            return lambda chosen: a
        kind = type(a)
        if kind is type(b) and kind in (tuple, list) and len(a) == len(b) and not {id(a), id(b)} & self.known:
            items = [self._value(x, y, (*path, k)) for k, (x, y) in enumerate(zip(a, b, strict=True))]
            return lambda chosen: kind([item(chosen) for item in items])
        raise Prevented(f"{named(path)} is {shown(a)} on one side and {shown(b)} on the other")


def named(path: Path) -> str:
    """A path in words."""
    name = {"result": "what is returned", "stack": "a value"}.get(path[0], str(path[1]))
    return name + "".join(f"[{place}]" for place in path[2:])


def shown(value: Any) -> str:
    """A value in a few words."""
    if is_constant(value):
        return repr(value)[:40]
    return "a Tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
