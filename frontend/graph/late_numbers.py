"""Numbers that a program reads of tensors that its graph computes (`loss.item()`, `update.norm().item()`).

The graph goes on: the number stays in a 0-dim tensor of float64, which is Python's float. Arithmetic is done there, and operators take it
as a tensor (`call_numbers`); that it raises nothing (a division by zero) is a check. Floats of integers that are read are such numbers, too, and
their whole parts are integers again. A comparison gives a truth of the same kind (`read_numbers.read_truth`). What
asks for the number itself breaks the graph; a number that the program keeps is read of a result of the graph, behind it.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.symbols import is_unknown, sym_sqrt, unknown_float
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import isinstance
from .output import OutputGraph
from .read_numbers import read_number, read_truth

__all__ = ["READ", "LateNumbers", "is_number"]

_CHOSEN = "control flow depends on a tensor's value"
READ = "a tensor's value is read (.item()), and what it is decides what follows"


@dataclass
class _Late:
    """A number: what stands for it, the tensor that holds it, and what it is not below (NaN is below nothing).

    `chosen`: it is a tensor in eager, or a float, as `max(1e-3, tensor)` is: a break where it was chosen. Arithmetic alone takes it.
    """

    value: Any
    tensor: Tensor
    least: float = -math.inf
    chosen: GraphBreak | None = None


@dataclass
class LateNumbers:
    """Those of one capture."""

    vm: Interpreter
    known: dict[int, _Late] = field(default_factory=dict)

    def read(self, tensor: Tensor) -> Any:
        """What stands for `tensor.item()`; None where that is no float of the graph's own."""
        if not tensor.is_floating_point() or not self.out.is_known(tensor) or is_wrapped(tensor):
            return None
        if any(size != 1 for size in tensor.shape):
            return None
        with torch.no_grad():
            made = self.out.call_method("detach", (tensor,), {}) if tensor.requires_grad else tensor
            if made.dim():
                made = self.out.call_method("reshape", (made, ()), {})
            # Not the same memory, which the program may write to.
            made = self.out.call_method(*(("clone", (made,), {}) if made.dtype is torch.float64 else _wide(made)))
        target = self.out.node(tensor).target
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        return self._make(made, 0.0 if name in _NEVER_NEGATIVE else -math.inf)

    def tensor_of(self, value: Any) -> Tensor | None:
        """The tensor that holds a number; None of any other value."""
        found = self.known.get(id(value))
        return None if found is None else found.tensor

    def applied(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function` of numbers, one of which is late."""
        if (
            not isinstance(function, _C)
            and not any(f is function for f in _SYMBOLIC)
            or _keeps(function)
            and all(self.tensor_of(a) is None for a in args[:-1])
        ):
            for value in args if isinstance(function, _C) else ():
                self.check(value)
            return function(*args, **kwargs)  # what it asks of the number raises
        compared = None if kwargs else self._compared(function, args)
        if compared is not None and (truth := read_truth(self.vm, compared)) is not None:
            return truth
        rule = next((r for f, r in _RULES if f is function), None)
        if rule is None or kwargs or not all(type(a) in (int, float, torch.SymInt, torch.SymFloat) for a in args):
            raise GraphBreak(READ)
        try:
            made = rule(self, *(float(a) if type(a) is int else a for a in args))
        except OverflowError:
            raise GraphBreak(READ) from None
        return self._as_chosen(made, *args)

    def extreme(self, value: Any, other: Any, larger: bool) -> Any:
        """`max(value, other)` or `min(value, other)`: the first, unless the other is larger (smaller). None where one is no number."""
        if not all(type(v) in (int, float, torch.SymInt, torch.SymFloat) for v in (value, other)):
            return None
        compared = self._call(torch.gt if larger else torch.lt, other, value)
        made = self.out.call_function(torch.where, (compared, self._tensor(other), self._tensor(value)), {})
        least = (max if larger else min)(self._least(value), self._least(other))
        found = self._make(made, least)
        if len({type(v) in (int, torch.SymInt) for v in (value, other)}) > 1:  # an int or a float, as the values are
            self.known[id(found)].chosen = self._where_chosen(self.vm)
        return self._as_chosen(found, value, other)

    def _where_chosen(self, vm: Interpreter) -> GraphBreak:
        here, error = vm.gradients.here(vm, _CHOSEN), GraphBreak(_CHOSEN)
        error.frames, error.split = here.frames, here.split
        return error

    def chosen(self, vm: Interpreter, value: Any, other: Any, larger: bool) -> Any:
        """`extreme` of a number and a tensor of one number, which gives either; None of anything else."""
        first, tensor = isinstance(value, Tensor), value if isinstance(value, Tensor) else other
        if isinstance(other if first else value, Tensor):
            return None
        number = self.read(tensor)
        if number is None:
            return None
        self.known[id(number)].chosen = self._where_chosen(vm)
        return self.extreme(*((number, other) if first else (value, number)), larger)

    def check(self, value: Any) -> None:
        """Break, where it was chosen, at what asks a number for its type, or keeps it."""
        found = self.known.get(id(value))
        if found is not None and found.chosen is not None:
            raise found.chosen

    def widened(self, value: torch.SymInt) -> Any:
        """`float(value)` of an integer that only the running program knows."""
        symbol = next(s for s in value.node.expr.free_symbols if is_unknown(s))
        options = {"dtype": torch.float64, "device": self.out.read.shown(symbol)[0].device}
        return self._make(self.out.call_function(torch.scalar_tensor, (value,), options))

    def of_integers(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function`, whose result is a float, of integers that are read."""
        read = self.out.read.is_read
        given = tuple(self.widened(a) if type(a) is torch.SymInt and read(a) else a for a in args)
        if function in (operator.truediv, operator.itruediv) and all(type(a) in (int, torch.SymInt) for a in args):
            for late in given:  # the quotient is rounded once: where both are floats without rounding
                if self.tensor_of(late) is not None:
                    self._check_that(self._call(torch.lt, self._positive(late), float(_EXACT)))
                elif type(late) is not int or abs(late) > _EXACT:
                    raise GraphBreak(READ)
        return self.applied(function, given, kwargs)

    # ---- parts ----

    @property
    def out(self) -> OutputGraph:
        return self.vm.out

    def _check_that(self, holds: Tensor) -> None:
        """Python raises where this does not hold: eager is to."""
        try:
            if self.vm.checks.expect(self.vm, holds, True):
                return
        except GraphBreak:
            pass
        raise GraphBreak(READ)

    def _whole(self, rounded: Callable[..., Any], x: Any) -> Any:
        """An integer; neither NaN nor infinity has one, and larger ones than tensors hold are eager's."""
        made = self._call(rounded, x)
        self._check_that(self._call(torch.lt, self._positive(self._make(made)), 2.0**63))
        number = read_number(self.vm, self.out.call_method("to", (made, torch.int64), {}))
        if number is None:
            raise GraphBreak(READ)
        return number

    def _compared(self, function: Any, args: tuple[Any, ...]) -> Tensor | None:
        """A comparison of two numbers, one of which is late, or a question about one, as a tensor; None of anything else, or where it is not exact."""
        asked = next((g for f, g in _ASKED if f is function), None)
        if asked is not None and len(args) == 1:
            return self._call(asked, *args)
        flipped = next((g for f, g in _COMPARED if f is function), None)
        if flipped is None or not all(type(a) in (int, float, torch.SymInt, torch.SymFloat) for a in args):
            return None
        for value in args:
            self.check(value)
            if (
                type(value) is int
                and abs(value) > _EXACT
                or type(value) is torch.SymInt
                and self.out.read.is_read(value)
            ):
                return None
        first, second = (float(a) if type(a) is int else a for a in args)
        if self.tensor_of(first) is None:
            function, first, second = flipped, second, first
        with torch.no_grad():
            given = second if type(second) is float else self._tensor(second)
            return self.out.call_function(function, (self.tensor_of(first), given), {})  # type: ignore[no-any-return]

    def _as_chosen(self, made: Any, *args: Any) -> Any:
        for found in (self.known[id(a)] for a in args if id(a) in self.known):
            if found.chosen is not None and id(made) in self.known:
                self.known[id(made)].chosen = found.chosen
        return made

    def _make(self, tensor: Tensor, least: float = -math.inf) -> Any:
        value = unknown_float(self.out.shape_env)
        self.known[id(value)] = _Late(value, tensor, least)
        return value

    def _least(self, value: Any) -> float:
        found = self.known.get(id(value))
        if found is not None:
            return found.least
        return float(value) if type(value) in (int, float) and value == value else -math.inf

    def _tensor(self, value: Any) -> Any:
        found = self.tensor_of(value)
        if found is not None:
            return found
        device = next(iter(self.known.values())).tensor.device
        return self.out.call_function(torch.scalar_tensor, (value,), {"dtype": torch.float64, "device": device})

    def _call(self, function: Any, *values: Any) -> Tensor:
        with torch.no_grad():
            return self.out.call_function(function, tuple(map(self._tensor, values)), {})  # type: ignore[no-any-return]

    def _divided(self, x: Any, y: Any) -> Any:
        if self.tensor_of(y) is None:
            if y == 0:
                raise GraphBreak(READ)
        elif self._least(y) <= 0:
            self._check_that(self._call(torch.ne, y, 0.0))
        return self._make(self._call(torch.div, x, y))

    def _root(self, x: Any) -> Any:
        if self._least(x) < 0:
            self._check_that(self._call(torch.logical_not, self._make(self._call(torch.lt, x, 0.0))))
        return self._make(self._call(torch.sqrt, x), 0.0)

    def _sum(self, x: Any, y: Any) -> Any:
        least = self._least(x) + self._least(y)
        return self._make(self._call(torch.add, x, y), least if least == least else -math.inf)

    def _positive(self, x: Any) -> Any:
        return self._make(self._call(torch.abs, x), 0.0)


def is_number(tensor: Tensor, out: OutputGraph) -> bool:
    """Whether the graph computes a tensor of one number without a gradient, as exactly as Python does, or nearly so."""
    plain = tensor.dim() == 0 and tensor.dtype in (torch.float32, torch.float64) and not tensor.requires_grad
    return plain and id(tensor) not in out.inputs and getattr(tensor, "constant", None) is None


def _wide(tensor: Tensor) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "to", (tensor, torch.float64), {}


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda late, *args: late._make(late._call(function, *args))


def _rounds(rounded: Callable[..., Any]) -> Callable[..., Any]:
    def rule(late: LateNumbers, x: Any, *digits: Any) -> Any:
        if digits:
            raise GraphBreak(READ)
        return late._whole(rounded, x)

    return rule


_RULES: list[tuple[Any, Callable[..., Any]]] = [
    *((f, LateNumbers._sum) for f in (operator.add, operator.iadd)),
    *((f, _plain(torch.sub)) for f in (operator.sub, operator.isub)),
    *((f, _plain(torch.mul)) for f in (operator.mul, operator.imul)),
    *((f, LateNumbers._divided) for f in (operator.truediv, operator.itruediv)),
    *((f, LateNumbers._positive) for f in (operator.abs, abs, math.fabs)),
    (operator.neg, _plain(torch.neg)),
    (operator.pos, lambda late, x: x),
    *((f, lambda late, x: x) for f in (float, torch.sym_float)),
    *((f, LateNumbers._root) for f in (math.sqrt, sym_sqrt)),
    *((f, _rounds(torch.trunc)) for f in (int, math.trunc)),
    *[(math.floor, _rounds(torch.floor)), (math.ceil, _rounds(torch.ceil)), (round, _rounds(torch.round))],
]
# Comparisons, and what they are with their operands exchanged.
_SYMBOLIC = (sym_sqrt, torch.sym_float)  # torch's, of symbols
_COMPARED: list[tuple[Any, Any]] = [
    *[(operator.lt, operator.gt), (operator.gt, operator.lt), (operator.le, operator.ge), (operator.ge, operator.le)],
    *[(operator.eq, operator.eq), (operator.ne, operator.ne)],
]
_ASKED: list[tuple[Any, Any]] = [(math.isnan, torch.isnan), (math.isinf, torch.isinf), (math.isfinite, torch.isfinite)]
_EXACT = 2**53  # integers up to here are floats
_NEVER_NEGATIVE = frozenset(["norm", "vector_norm", "linalg_vector_norm", "abs", "sqrt", "square", "exp"])
_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, type)


def _keeps(function: Any) -> bool:
    """Whether a function of C puts its last argument into a container without looking at it."""
    owner = getattr(function, "__self__", None)
    bound = type(owner) in (list, dict) and function.__name__ in ("append", "setdefault")
    return bound or function in (list.append, dict.setdefault, operator.setitem, operator.is_, operator.is_not)
