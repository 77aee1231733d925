"""Symbolic floats among the arguments of torch calls: inputs of the graph, and 0-dim tensors where a gradient goes through the call.

Autograd's formulas take few symbolic numbers; of tensors they take all. A number meets a tensor in the tensor's dtype, in single
precision at least, and does not raise the result's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..values.kinds import isinstance, tensors_in

__all__ = ["Numbers", "has_float", "has_late", "is_differentiated", "with_inputs", "with_tensors"]

Call = Callable[..., Any]


class Numbers(Protocol):
    """What a capture knows of its symbolic floats."""

    vm: Any

    def number_input(self, value: Any, /) -> Any:
        """An input of the graph that is the number."""

    def is_float(self, value: Any, /) -> bool:
        """Whether a number does not follow from sizes alone."""

    def late(self, value: Any, /) -> Tensor | None:
        """The tensor that holds a number which only the running program knows."""

    def check_type(self, value: Any, /) -> None:
        """Break where a number came to be that may be a tensor in eager, if it is."""


def has_float(value: Any) -> bool:
    """Whether a symbolic float is among the arguments of a call."""
    if isinstance(value, list | tuple):
        return any(map(has_float, value))
    return any(map(has_float, value.values())) if isinstance(value, dict) else isinstance(value, torch.SymFloat)


def has_late(args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Numbers) -> bool:
    """Whether an argument is a number that only the running program knows; the dtype of a tensor of one number shows what that is."""
    given = (*args, *kwargs.values())
    found = [a for a in given if numbers.late(a) is not None]
    if any(isinstance(a, Tensor) and a.dim() == 0 for a in given):
        for value in found:
            numbers.check_type(value)
    return bool(found)


def is_differentiated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a gradient may go through a call."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((args, kwargs)))


def with_inputs(value: Any, numbers: Numbers, fixed: bool) -> Any:
    """Symbolic floats that are computed in Python reach the graph as inputs of their own; where `fixed`, as what they are now."""
    kind = type(value)
    if kind is torch.SymFloat:
        return float(value) if fixed and numbers.is_float(value) else numbers.number_input(value)
    if kind in (list, tuple):
        return kind(with_inputs(v, numbers, fixed) for v in value)
    return {k: with_inputs(v, numbers, fixed) for k, v in value.items()} if kind is dict else value


def with_tensors(
    call: Call, record: Call, late: Call, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of `call(target, args, kwargs)` with tensors for its numbers, or NotImplemented; `record` calls a function.

    `late` gives the tensor of a number that has one.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    rule = _RULES.get(name)
    given = list(tensors_in((args, kwargs)))
    if rule is None or not given or any(t.dtype != given[0].dtype or t.device != given[0].device for t in given):
        return NotImplemented
    dtype = given[0].dtype
    half = dtype in (torch.float16, torch.bfloat16)
    if dtype not in (torch.float32, torch.float64) and not (half and name in _WIDENED):
        return NotImplemented
    settings = {"dtype": torch.float32 if half else dtype, "device": given[0].device}

    def tensor(value: Any, times: Any = None) -> Any:
        if times is not None:
            return record(torch.mul, (tensor(value), tensor(times)), {})
        if isinstance(value, Tensor):
            return record(torch.Tensor.float, (value,), {}) if half else value
        known = late(value)
        if known is not None:
            return record(torch.Tensor.to, (known,), settings)
        return None if value is None else record(torch.scalar_tensor, (value,), settings)

    found = rule(tensor, *args, **kwargs)
    if found is NotImplemented:
        return NotImplemented
    result = call(target, *found)
    return record(torch.Tensor.to, (result, dtype), {}) if half else result


# Each gives arguments and keyword arguments, or NotImplemented.


def _binary(tensor: Call, *args: Any, **kwargs: Any) -> Any:
    return (tuple(map(tensor, args)), {}) if len(args) == 2 and not kwargs else NotImplemented


def _sum(tensor: Call, *args: Any, **kwargs: Any) -> Any:
    """With `alpha`, the second operand is multiplied first."""
    if kwargs.keys() != {"alpha"} or len(args) != 2 or not isinstance(args[1], Tensor):
        return _binary(tensor, *args, **kwargs)
    return (tensor(args[0]), tensor(args[1], kwargs["alpha"])), {}


def _between(tensor: Call, *args: Any, **kwargs: Any) -> Any:
    if not args or not isinstance(args[0], Tensor) or not {*kwargs} <= {"min", "max"}:
        return NotImplemented
    return tuple(map(tensor, args)), {name: tensor(bound) for name, bound in kwargs.items()}


def _towards(tensor: Call, *args: Any, **kwargs: Any) -> Any:
    return (tuple(map(tensor, args)), {}) if len(args) == 3 and not kwargs else NotImplemented


def _of_two(tensor: Call, *args: Any, **kwargs: Any) -> Any:
    """A sum with the product or quotient of two, the first of which takes the factor `value`."""
    if kwargs.keys() != {"value"} or len(args) != 3:
        return NotImplemented
    return (args[0], tensor(args[1], kwargs["value"]), args[2]), {}


# Names of functions, of operators and of methods. Of half types, those whose result has their operand's dtype under autocast, too.
_WIDENED = frozenset(["mul", "multiply", "div", "divide", "true_divide", "truediv", "add", "sub", "subtract"])
_RULES: dict[str, Any] = {
    **dict.fromkeys([*_WIDENED, "pow", "imul", "itruediv", "mul_", "div_"], _binary),
    **dict.fromkeys(["gt", "lt", "ge", "le", "eq", "ne"], _binary),
    **dict.fromkeys(["add", "sub", "subtract", "add_", "sub_", "iadd", "isub"], _sum),
    **dict.fromkeys(["clamp", "clip"], _between),
    **dict.fromkeys(["lerp", "lerp_"], _towards),
    **dict.fromkeys(["addcmul", "addcmul_", "addcdiv", "addcdiv_"], _of_two),
}
