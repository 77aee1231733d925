"""The one form in which a call of an ATen operator is written, by its schema.

    max_pool2d_with_indices(x, [2], [])  ->  kernel_size = [2, 2], stride = [2, 2], padding = [0, 0], dilation = [1, 1], ceil_mode = false

Import completes every call; the verifiers of `aten` operations and of library calls take no other form, so that rules and kernels read
numbers and need no cases for how a program wrote them:
- defaults are filled in; optional arguments that are None are not written;
- lists have one entry for each dimension of a window, also where the schema gives no length (`convolution`); no `stride` is the window's size;
- dimensions count from the front;
- `dtype` is the result's where a call leaves it open;
- paddings are numbers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from ..literals import Literal, print_literal
from ..types import TensorType

Operands = Mapping[str, TensorType]  # by the name of the argument that each fills; `tensors.0` for the first of a list

RESERVED = (
    "operands",
    "operand_strides",
    "strides",
    "returned",
    "effect",
    "seed",
    "choice",
    "why",
    "binds",
    "assumes",
)  # attributes that are no arguments
_WINDOWS = ("stride", "padding", "dilation", "output_padding")
_DIMENSIONS = ("dim", "dims", "dim0", "dim1", "dim2", "axis", "axis0", "axis1", "dimension", "start_dim", "end_dim")
_OF_THE_RESULT = ("unsqueeze", "unsqueeze_copy", "stack", "_stack", "diag_embed", "cat", "_cat", "concat")
_ALL_IS_MINUS_ONE = ("norm_except_dim", "_weight_norm")  # whose dim = -1 is no dimension
_ENUMERATIONS = ("Layout", "MemoryFormat", "Device")  # their defaults come as bare numbers


@dataclass(frozen=True)
class _Argument:
    """What the schema says of one argument."""

    name: str
    kind: str  # "tensor", "dtype", "device", "dimension", "window", "path" (a padding by name), or "other"
    is_list: bool
    length: int | None  # of a list whose length the schema knows
    default: Literal
    has_default: bool  # also of those that may be None


@dataclass(frozen=True)
class _Call:
    """A call whose arguments are completed one after another; `found` holds those that are."""

    op: Any
    operands: Operands
    results: Sequence[TensorType]
    found: dict[str, Literal] = field(default_factory=dict)


class NotCanonical(Exception):
    """A call has no canonical form; the message says why."""


@cache
def _arguments(op: Any) -> dict[str, _Argument]:
    """The arguments of an operator, in order."""
    found = {}
    own = op._schema.name.startswith("aten::")
    for a in op._schema.arguments:
        text = str(a.real_type)
        plain = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
        is_list, default = plain.startswith("List["), a.default_value
        kind = "tensor" if "Tensor" in plain else "other"
        if plain == "ScalarType" and a.name in ("dtype", "out_dtype"):
            kind = "dtype"
        elif own and a.name in _DIMENSIONS and plain in ("int", "List[int]", "SymInt", "List[SymInt]"):
            kind = "dimension" if op._schema.name.removeprefix("aten::") not in _ALL_IS_MINUS_ONE else "other"
        elif plain == "Device":
            kind = "device"
        elif own and a.name == "padding" and plain == "str":
            kind = "path"
        elif own and is_list and "int" in plain.lower() and (a.name in (*_WINDOWS, "kernel_size") or (a.N or 0) > 1):
            kind = "window"
        if kind == "dtype" or plain.startswith(_ENUMERATIONS):
            default = None
        found[a.name] = _Argument(
            a.name,
            kind,
            is_list,
            a.N if a.N and a.N > 1 else None,
            tuple(default) if isinstance(default, list) else default,
            a.has_default_value() or text.startswith("Optional["),
        )
    return found


def completed(
    op: Any, operands: Operands, results: Sequence[TensorType], given: Mapping[str, Literal]
) -> dict[str, Literal]:
    """The arguments of a call that are no tensors, in canonical form and in the schema's order.

    Args:
        op: the `torch._ops.OpOverload`.
        given: the arguments as the call has them, under their schema names; what is not there has its default.

    Raises:
        NotCanonical: a padding is given by name, or an argument is missing.
    """
    call = _Call(op, operands, results)
    filled = {name.partition(".")[0] for name in operands}
    for a in _arguments(op).values():
        if a.name in filled:
            continue
        if a.name not in given and not a.has_default:
            raise NotCanonical(f"the argument '{a.name}' is missing")
        value = given.get(a.name, a.default)
        rule = _RULES.get(a.kind)
        if rule is not None:
            value = rule(call, a, value)
        if value is not None:
            call.found[a.name] = value
    return call.found


def complaint(
    op: Any, operands: Operands, results: Sequence[TensorType], given: Mapping[str, Literal], whole: bool = True
) -> str | None:
    """What is not canonical about a call, or None. Without `whole` arguments that have a default may be left out, but for those of windows."""
    arguments = _arguments(op)
    for name in given:
        if whole and name not in arguments:
            close = difflib.get_close_matches(name, list(arguments), n=1)
            return f"has no argument '{name}'" + (f"; did you mean '{close[0]}'?" if close else "")
    for name in (n.partition(".")[0] for n in operands):
        if whole and name not in arguments:
            close = difflib.get_close_matches(name, list(arguments), n=1)
            return f"has no argument '{name}' for a tensor" + (f"; did you mean '{close[0]}'?" if close else "")
    try:
        wanted = completed(op, operands, results, {k: v for k, v in given.items() if k in arguments})
    except NotCanonical as why:
        return str(why)
    for name, value in wanted.items():
        if name not in given:
            if whole or arguments[name].kind == "window":
                return f"the argument '{name}' is missing; here it is {_text(value)}"
        elif not _same(given[name], value):
            return f"{name} = {_text(given[name])} is not canonical; write {_text(value)}"
    for name in arguments:
        if whole and name in given and name not in wanted:
            return f"{name} = none is not canonical; leave it out"
    return None


def _same(a: Literal, b: Literal) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or bool(a == b) or (a != a and b != b)


def _text(value: Literal) -> str:
    try:
        return print_literal(value)
    except TypeError:
        return repr(value)


# ---- one kind of argument each ----------------------------------------------------------------------------------------


def _window(call: _Call, a: _Argument, value: Literal) -> Literal:
    """[2] -> [2, 2]; a stride of [] -> the window's size."""
    if value is None or not a.is_list:
        return value
    if value == () and a.name == "stride" and "kernel_size" in call.found:
        return call.found["kernel_size"]
    length = a.length
    if length is None and a.name in _WINDOWS and "weight" in call.operands:
        length = call.operands["weight"].rank - 2
    values = value if isinstance(value, tuple) else (value,)
    return values * length if length and len(values) == 1 else values


def _dimension(call: _Call, a: _Argument, value: Literal) -> Literal:
    """-1 -> rank - 1."""
    if value is None:
        return None
    rank = _rank(call)
    values = value if isinstance(value, tuple) else (value,)
    counted = tuple(
        v + rank if rank and isinstance(v, int) and not isinstance(v, bool) and -rank <= v < 0 else v for v in values
    )
    return counted if a.is_list else counted[0]


def _rank(call: _Call) -> int:
    """What dimensions count in; a number alone has one. 0: not known."""
    sizes = call.found.get("input_sizes", call.found.get("sizes"))
    if isinstance(sizes, tuple):  # a gradient of a tensor of those sizes
        return max(1, len(sizes))
    if call.op._schema.name.removeprefix("aten::") in _OF_THE_RESULT:
        return max(1, call.results[0].rank) if call.results else 0
    first = next(iter(call.operands.values()), None)
    return max(1, first.rank) if first is not None else 0


def _dtype(call: _Call, a: _Argument, value: Literal) -> Literal:
    """None -> the result's; not where complex numbers have a real result, whose `dtype` is that of the numbers."""
    if value is not None or len(call.results) != 1 or len(call.op._schema.returns) != 1:
        return value
    dtype, complex_in = call.results[0].dtype, any(t.dtype.kind == "complex" for t in call.operands.values())
    return None if complex_in and dtype.kind != "complex" else dtype.torch


def _device(call: _Call, a: _Argument, value: Literal) -> Literal:
    """None -> the result's, where the operand's is another: without it the call would leave its result where the operand is."""
    first = next(iter(call.operands.values()), None)
    if value is not None or first is None or not call.results or first.device == call.results[0].device:
        return value
    return torch.device(call.results[0].device)


def _named_padding(call: _Call, a: _Argument, value: Literal) -> Literal:
    raise NotCanonical(f"padding = {_text(value)} is a name; write aten.convolution.default with numbers")


_RULES: dict[str, Callable[[_Call, _Argument, Literal], Literal]] = {
    "window": _window,
    "dimension": _dimension,
    "dtype": _dtype,
    "device": _device,
    "path": _named_padding,
}

__all__ = ["RESERVED", "NotCanonical", "complaint", "completed"]
