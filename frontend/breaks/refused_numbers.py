"""Numbers that the type of a tensor does not hold. Some of eager's operators refuse them; fake tensors, and kernels, do not."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import GraphBreak, UserRaise
from ..graph.sym_nodes import check_relation
from ..guards.sameness import is_numpy_number
from ..torch_private.fake import FakeTensor
from ..torch_private.symbols import hint_of, range_within
from ..values.kinds import isinstance
from .eager_errors import said_by_eager

__all__ = ["check_numbers", "check_unknown"]

_REFUSED = ("without overflow", "ZeroDivisionError")  # a number of 2**40 is 0 among numbers of eight bits
_SHAPES = {
    "view",
    "reshape",
    "expand",
    "repeat",
    "narrow",
    "split",
    "select",
    "unflatten",
    "unfold",
    "as_strided",
    "new_zeros",
}
_FILLS = {
    *("fill_", "fill", "full", "full_like", "new_full", "masked_fill", "masked_fill_", "pad", "constant_pad_nd"),
    *("setitem", "where", "clamp", "clamp_", "clamp_min", "clamp_max"),
}  # what takes a number that changes between calls, and refuses what its type does not hold
_DIVIDE = {
    *("floordiv", "mod", "ifloordiv", "imod", "floor_divide", "floor_divide_", "remainder", "remainder_", "fmod"),
    *("fmod_", "__floordiv__", "__mod__", "__ifloordiv__", "__imod__", "div", "div_", "divide", "divide_"),
}


def check_numbers(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error where it refuses a number, or what is written, in this call."""
    args, kwargs = [_plain(v) for v in args], {k: _plain(v) for k, v in kwargs.items()}
    _check_overflow(op, target, name, args, kwargs)
    _check_written(op, target, name, args, kwargs)


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's, which is what torch takes it for; anything else as it is."""
    return value.item() if is_numpy_number(value) else value


def _check_overflow(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error where it refuses a number in this call; a number that changes is guarded to be one that is not refused.

    What is asked is eager itself, with zeros, in front of it whether a number is outside of what one of the types holds.
    """
    numbers = [v for v in (*args, *kwargs.values()) if type(v) in _NUMBERS]
    if not numbers or name in _SHAPES:
        return
    for dtype in set(_types(name, args, kwargs)):
        low, high = _limits(dtype)
        for number in numbers:
            changes = type(number) in (torch.SymInt, torch.SymFloat)
            asked = name in _FILLS or name in _DIVIDE and not dtype.is_floating_point
            if changes and not (asked and number.node.has_hint()):
                continue
            value = hint_of(number) if changes else number
            if value - value != 0.0 and dtype.is_floating_point:
                continue
            if not low <= value <= high:
                _ = changes and bool(number == value)  # a guard
                error = said_by_eager(op, target, args, kwargs)
                if error is not None and any(said in str(error) for said in _REFUSED):
                    raise UserRaise(error)
            elif changes:
                _ = bool(number <= high), bool(number >= low)  # a guard each


def check_unknown(vm: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check in the graph that a number which only the running program knows is one that eager takes; where it is not, CPython runs the call."""
    if name not in _FILLS:
        return
    for number in (*args, *kwargs.values()):
        if type(number) not in (torch.SymInt, torch.SymFloat) or number.node.has_hint():
            continue
        for dtype in set(_types(name, args, kwargs)):
            low, high = _limits(dtype)
            if _refuses(name, number, dtype) and not _holds(vm, number, dtype):
                late = vm.dynamic.late(number)
                for condition in (number <= high, number >= low) if late is None else ():
                    if not check_relation(vm, condition):
                        raise GraphBreak(_UNKNOWN)
                if late is not None and not vm.checks.expect(vm, _within(vm.out, late, dtype), True):
                    raise GraphBreak(_UNKNOWN)


_UNKNOWN = "a number that is read of a tensor is written to another one, whose type may not hold it"


def _holds(vm: Any, number: Any, dtype: torch.dtype) -> bool:
    """Whether a type holds a number, by the type of the tensor that it is read of."""
    low, high = _limits(dtype)
    late = vm.dynamic.late(number)
    if late is None:
        return dtype.is_floating_point and high >= 2.0**64 or range_within(number, int(low), int(high))
    node = vm.out.node(late)
    of = node.args[0].meta["example_value"].dtype if node.target == "to" else torch.float64
    return dtype.is_floating_point and bool(of.is_floating_point) and _limits(of)[1] <= high


def _refuses(name: str, number: Any, dtype: torch.dtype) -> bool:
    """Whether eager refuses numbers that the type does not hold; what promotes, or takes half types' numbers in float32, takes all."""
    if name in _PROMOTES and type(number) is torch.SymFloat and not dtype.is_floating_point:
        return False
    return not (name in _WIDENS and dtype in (torch.float16, torch.bfloat16))


_PROMOTES = {"where", "clamp", "clamp_", "clamp_min", "clamp_max"}
_WIDENS = {"where", "setitem"}


def _within(out: Any, late: Any, dtype: torch.dtype) -> Any:
    """Whether a type holds the number in a tensor, as a tensor; types of floats hold NaN and infinity, too."""
    low, high = _limits(dtype)
    with torch.no_grad():
        large, small = (out.call_function(f, (late, v), {}) for f, v in ((torch.le, high), (torch.ge, low)))
        holds = out.call_function(torch.logical_and, (large, small), {})
        if not dtype.is_floating_point:
            return holds
        finite = out.call_function(torch.isfinite, (late,), {})
        return out.call_function(torch.logical_or, (holds, out.call_function(torch.logical_not, (finite,), {})), {})


def _check_written(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error where a write would narrow the kind of a number (an int into bools), or subtracts bools, which not all fake
    operators refuse."""
    into = args[0] if args else None
    if not name.endswith("_") and target not in _WRITING or type(into) is not FakeTensor:
        return
    given = [*args[1:], *kwargs.values()]
    subtracts = name in ("sub_", "subtract_", "isub") and any(map(_is_bool, (into, *given)))
    if subtracts or any(_rank(value) > _rank(into) for value in given):
        error = said_by_eager(op, target, args, kwargs)
        if error is not None and (_NARROWS in str(error) or subtracts):
            raise UserRaise(error)


_NARROWS = "can't be cast to the desired output type"
_WRITING = frozenset(getattr(operator, f"__i{n}__") for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"))


def _is_bool(value: Any) -> bool:
    return value.dtype == torch.bool if isinstance(value, torch.Tensor) else type(value) in (bool, torch.SymBool)


def _rank(value: Any) -> int:
    """Of kinds of numbers: bools, ints, floats, complex ones."""
    if isinstance(value, torch.Tensor):
        kind = value.dtype
        return 3 if kind.is_complex else 2 if kind.is_floating_point else int(kind != torch.bool)
    return _RANKS.get(type(value), 0)


_RANKS = {int: 1, torch.SymInt: 1, float: 2, torch.SymFloat: 2, complex: 3}


def _types(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.dtype]:
    if name == "full" and kwargs.get("dtype") is None and any(type(v) in (float, torch.SymFloat) for v in args[1:2]):
        yield torch.get_default_dtype()
    given = (*args, *kwargs.values())
    if name in _MAKE_FLOATS and any(type(v) in (float, torch.SymFloat) for v in given):
        integral = not any(type(v) is FakeTensor and v.is_floating_point() for v in given)
        yield from (torch.get_default_dtype(),) if integral else ()
    for value in (*args, *kwargs.values()):
        if type(value) is FakeTensor and value.dtype in _LIMITED:
            yield value.dtype
        elif isinstance(value, torch.dtype) and value in _LIMITED:
            yield value


# What takes floats beside integers, bools or nothing, in a result of the default dtype.
_MAKE_FLOATS = {"where", "clamp", "clip", "clamp_min", "clamp_max", "scalar_tensor"}


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_LIMITED = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
)
