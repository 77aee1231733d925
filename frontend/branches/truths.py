"""Truths and numbers that only the running program knows, as tensors of the graph and back.

`tensor_of_truth` is for what decides (`if`, `while`, `assert`): a comparison of numbers that were read of tensors is one of these tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..errors import GraphBreak
from ..graph.read_numbers import read_truth
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import data_dependent_errors
from ..torch_private.symbols import is_unknown, unknown_int
from ..values.constant import is_constant
from ..values.kinds import isinstance
from .asked import number_asked

_UNKNOWN: Any = (GraphBreak, *data_dependent_errors())

__all__ = [
    "any_of",
    "as_operand",
    "as_tensor",
    "certain",
    "is_among",
    "number_in",
    "presumed",
    "tensor_of_truth",
    "truth_of",
    "undecided",
]


def undecided(vm: Interpreter, value: Any) -> Tensor | None:
    """The truth of a symbolic number as a tensor, where only the running program knows it; else None."""
    if (late := vm.dynamic.late(value)) is not None:
        return vm.out.call_function(torch.ne, (late, 0), {})  # type: ignore[no-any-return]
    if type(value) not in (torch.SymBool, torch.SymInt) or not vm.out.read.is_read(value):
        return None
    expr = value.node.expr if type(value) is torch.SymBool else sympy.Ne(value.node.expr, 0)
    try:
        known = bool(value)
    except _UNKNOWN:
        try:
            return _value(vm, expr)
        except GraphBreak:  # no tensor holds what it is made of
            return None
    return _relied_on(vm, expr, known)


def _relied_on(vm: Interpreter, expr: Any, known: bool) -> Tensor | None:
    """Check a truth that follows from what operators have taken for granted of sizes (`squeeze`: none is 1): where that does not hold,
    the graph's operators run one by one and are right, but the program would have gone another way.

    Where there can be no check, as in a round of a loop, the truth is one that only the running program knows: `while n < 9` ends there
    whatever `x[n]` in the round has taken for granted of `n`.
    """
    any_size = {s: sympy.Dummy(integer=True, nonnegative=True) for s in expr.free_symbols if is_unknown(s)}
    if not any_size or expr.xreplace(any_size) in (sympy.true, sympy.false):
        return None
    if vm.side is not None and (vm.side.in_round or not vm.side.takes_checks):
        try:
            return _value(vm, expr)  # type: ignore[no-any-return]
        except GraphBreak:  # no tensor holds what it is made of
            raise GraphBreak("a truth that operators have taken for granted decides in a round of a loop") from None
    if vm.checks.is_new(vm, expr):
        vm.checks.expect(vm, _value(vm, expr), known)
    return None


def presumed(vm: Interpreter, value: Any) -> bool | None:
    """The truth of a symbolic number for all sizes but 0 and 1, where it follows from sizes that values decide, and is one truth; else None.

    What a program asks of such a size is mostly whether there is anything at all. Whoever takes this answer has to check it.
    """
    if type(value) not in (torch.SymBool, torch.SymInt) or value.node.constant is not None:
        return None
    expr = value.node.expr if type(value) is torch.SymBool else sympy.Ne(value.node.expr, 0)
    return vm.out.read.presumed(expr)


def tensor_of_truth(vm: Interpreter, value: Any) -> Any:
    """What decides by `value`: a tensor where only the running program knows it, else the value."""
    found = undecided(vm, value)
    return value if found is None else found


def truth_of(vm: Interpreter, value: Any) -> Any:
    """`bool(value)`: True, False, or a symbol where only the running program knows it."""
    found = value if isinstance(value, Tensor) else undecided(vm, value)
    if not isinstance(found, Tensor) or is_composite(found) or vm.overrides.concern((found,)):
        return vm.truth(value)
    if vm.overrides.own(found, "__bool__") is not None:
        return vm.truth(value)
    if getattr(found, "constant", None) is not None or any(n != 1 for n in found.shape):
        return vm.truth(value)
    known = vm.dynamic.truth(found)
    known = certain(vm, found) if known is None else known
    known = number_asked(vm, found) if known is None else known
    truth = read_truth(vm, found) if known is None else bool(known)
    return vm.truth(value) if truth is None else truth


def certain(vm: Interpreter, tensor: Tensor) -> bool | None:
    """The truth of a comparison of a number that `torch.rand` draws with one outside of [0, 1), as a rate of 0 is; else None."""
    compared = vm.out.node(tensor) if vm.out.is_known(tensor) else None
    if compared is None or len(compared.args) != 2:
        return None
    node, bound = compared.args
    target: Any = compared.target
    outcome = _OF_DRAWN.get(target if isinstance(target, str) else getattr(target, "__name__", ""))
    if (
        outcome is None
        or not isinstance(bound, int | float)
        or not isinstance(node, fx.Node)
        or node.target is not torch.rand
    ):
        return None
    drawn = node.meta["example_value"]
    if drawn.dtype not in (torch.float32, torch.float64) or drawn.is_inference() or drawn._version:
        return None
    return outcome(bound)


def _of_drawn(low: bool, high: bool, ends: tuple[float, float]) -> Callable[[float], bool | None]:
    """What a comparison is below and above the bounds, with the ends that still are."""
    return lambda bound: low if bound <= ends[0] else high if bound >= ends[1] else None


_TINY = 5e-324
_OF_DRAWN = {
    "lt": _of_drawn(False, True, (0.0, 1.0)),
    "ge": _of_drawn(True, False, (0.0, 1.0)),
    "le": _of_drawn(False, True, (-_TINY, 1.0)),
    "gt": _of_drawn(True, False, (-_TINY, 1.0)),
}


def any_of(vm: Interpreter, values: Sequence[Any], wanted: bool) -> Any:
    """Whether one of these has this truth, where only the running program knows; None where they are more than tensors and numbers."""
    known = [tensor_of_truth(vm, value) for value in values]
    tensors = [v for v in known if isinstance(v, Tensor) and getattr(v, "constant", None) is None]
    if not tensors or any(v.numel() != 1 or v.device != tensors[0].device or not vm.out.is_known(v) for v in tensors):
        return None
    if vm.overrides.concern(tuple(tensors)) or not all(isinstance(v, Tensor) or is_constant(v) for v in known):
        return None
    if any(bool(v) is wanted for v in known if not isinstance(v, Tensor)):
        return None  # which may be the first one
    made = None
    for tensor in tensors:
        one = vm.out.call_function(torch.ne if wanted else torch.eq, (tensor, 0), {})
        one = vm.out.call_method("reshape", (one, ()), {}) if one.dim() else one
        made = one if made is None else vm.out.call_function(torch.logical_or, (made, one), {})
    return truth_of(vm, made)


def is_among(vm: Interpreter, item: Any, container: Any) -> Any:
    """`item in container` of an integer that is read and a few plain ones, as a symbol; None of anything else."""
    if type(item) is not torch.SymInt or not vm.out.read.is_read(item) or type(container) not in _OF_NUMBERS:
        return None
    if type(container) is range and container.step == 1 and container:
        return (item >= container.start) & (item < container.stop)
    if not 0 < len(container) <= _MOST_SOUGHT or any(type(number) is not int for number in container):
        return None
    return functools.reduce(operator.or_, [item == number for number in container])


_OF_NUMBERS = (tuple, list, set, frozenset, range)
_MOST_SOUGHT = 16


def as_operand(vm: Interpreter, value: Any, other: Any) -> Any:
    """A truth that only the running program knows as a tensor, which is the same to a tensor beside it on its device."""
    made = undecided(vm, value) if type(value) is torch.SymBool else None
    return made if isinstance(other, Tensor) and made is not None and made.device == other.device else value


def number_in(vm: Interpreter, tensor: Tensor, kind: type) -> Any:
    """The number of this kind in a 0-dim tensor that nobody writes to."""
    if kind is bool:
        return read_truth(vm, tensor)
    if kind is float:
        return vm.dynamic.late_item(tensor)
    if not vm.dynamic.may_be_late():
        return None
    symbol = unknown_int(vm.out.shape_env)
    vm.out.read.late[symbol.node.expr] = tensor, symbol
    return symbol


def as_tensor(vm: Interpreter, value: Any, kind: type, device: torch.device) -> Tensor | None:
    """A number as a 0-dim tensor; None where there is no rule for it."""
    dtype = _DTYPES[kind]
    with torch.no_grad():
        if type(value) is kind:
            return vm.out.call_function(torch.full, ((), value), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]
        late = vm.dynamic.late(value)
        if late is not None:
            return late
        if type(value) is torch.SymFloat:
            return None
        made = _value(vm, value.node.expr)
        if not isinstance(made, Tensor):
            return vm.out.call_function(torch.full, ((), made), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]
        return made if made.dtype == dtype else None


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _value(vm: Interpreter, expr: Any) -> Any:
    """A 0-dim tensor that holds what an expression of numbers does; a number for one of sizes alone."""
    if expr.is_Integer:
        return int(expr)
    if expr in (sympy.true, sympy.false):
        return bool(expr)
    if expr.is_Symbol:
        return vm.out.read.value_of(vm.out, expr)
    truth = _truth(vm, expr)
    if truth is not None:
        return truth
    function, of_numbers = _FUNCTIONS.get(type(expr).__name__, (None, None))
    if function is None:
        raise GraphBreak(f"a number that depends on a tensor's values decides: {expr}")
    with torch.no_grad():
        made, *rest = (_value(vm, part) for part in expr.args)
        if function in _BY_NUMBERS and (not isinstance(made, Tensor) or type(rest[0]) is not int or rest[0] == 0):
            raise GraphBreak(f"a number that depends on a tensor's values decides: {expr}")
        if of_numbers is None and not isinstance(made, Tensor):
            if isinstance(rest[0], Tensor):
                function, made, rest = _FLIPPED.get(function, function), rest[0], [made]
            else:  # a truth of sizes
                made = vm.out.call_function(torch.full, ((), made), {"dtype": torch.int64})
        if not rest:
            return vm.out.call_function(function, (made,), {})
        for part in rest:
            if isinstance(made, Tensor):
                made = vm.out.call_function(function, (made, part), {})
            elif isinstance(part, Tensor):
                made = vm.out.call_function(function, (part, made), {})
            else:
                made = of_numbers(made, part)
    return made


def _truth(vm: Interpreter, expr: Any) -> Tensor | None:
    """Of `symbol != 0` or `symbol == 0`, where the symbol is a truth that was read, that truth or its opposite."""
    sides = expr.args if isinstance(expr, sympy.Ne | sympy.Eq) else ()
    made = vm.out.read.truths.get(sides[0]) if sides and sides[1] == 0 else None
    if made is None or isinstance(expr, sympy.Ne):
        return made
    return vm.out.call_function(torch.logical_not, (made,), {})  # type: ignore[no-any-return]


# By the class of an expression: the function of tensors, and that of numbers for those whose operands may change places.
_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "Add": (torch.add, operator.add),
    "Mul": (torch.mul, operator.mul),
    "Equality": (torch.eq, None),
    "Unequality": (torch.ne, None),
    "StrictLessThan": (torch.lt, None),
    "LessThan": (torch.le, None),
    "StrictGreaterThan": (torch.gt, None),
    "GreaterThan": (torch.ge, None),
    "Not": (torch.logical_not, None),
    "And": (torch.logical_and, None),
    "Or": (torch.logical_or, None),
    "Mod": (torch.remainder, None),
    "PythonMod": (torch.remainder, None),
    "FloorDiv": (torch.floor_divide, None),
}
_BY_NUMBERS = (torch.remainder, torch.floor_divide)  # which round as Python does; by a tensor they might fail
_FLIPPED: dict[Any, Any] = {torch.lt: torch.gt, torch.gt: torch.lt, torch.le: torch.ge, torch.ge: torch.le}
