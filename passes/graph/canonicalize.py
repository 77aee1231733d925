"""Canonicalize: equations that bring equal programs to one form. Each keeps eager's bits.

What is not here, because it would change bits: x + 0.0 -> x (wrong for -0.0), x * 0.0 -> 0.0 (wrong for nan and inf).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.dialects.prim import (
    ELEMENTWISE,
    Broadcast,
    Cast,
    Concat,
    Flip,
    Full,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Scan,
    Slice,
    tensor,
)
from ...ir.dtypes import DType
from ...ir.literals import Literal
from ...ir.symbols import Dim, dim, known_equal
from ...ir.syntax import Op
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import Rewrite, Rule, Table, apply_rules, producer, rule_table, splat


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Bring equal programs to one form: double casts, views of views, neutral operands."""

    name: ClassVar[str] = "canonicalize"
    accepts: ClassVar[tuple[str, ...]] = ("kernel",)
    after: ClassVar[tuple[str, ...]] = ("decompose",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        ctx.diagnostics.count(self.name, "rewrites", apply_rules(module, RULES))


# What changes nothing: when an operation gives its operand.


def _covers_all(op: Op) -> bool:
    return op.operands[0].type == op.results[0].type and set(op["starts"]) <= {0} and set(op["steps"]) <= {1}


def _over_one(op: Op) -> bool:
    """A running reduction of one element, where that is the element."""
    return tensor(op.results[0]).shape[op["dim"]] == 1 and _keeps_one(op)


_KEEPS_ONE = (
    "prod",
    "max",
    "min",
    "any",
    "all",
)  # the reduction of one element is that element: sum turns -0.0 into 0.0


def _keeps_one(op: Op) -> bool:
    return op["kind"] in _KEEPS_ONE or tensor(op.results[0]).dtype.is_integer


def _same_type(op: Op) -> bool:
    return bool(op.operands[0].type == op.results[0].type)


_NOTHING: dict[type[Op], Callable[[Op], bool]] = {
    Cast: _same_type,
    Reshape: _same_type,
    Broadcast: _same_type,
    Permute: lambda op: list(op["perm"]) == list(range(len(op["perm"]))),
    Slice: _covers_all,
    Flip: lambda op: all(tensor(op.results[0]).shape[d] == 1 for d in op["dims"]),
    Pad: lambda op: not any((*op["low"], *op["high"])),
    Reduce: lambda op: not op["dims"] and _same_type(op),
    Scan: _over_one,
}


def nothing(op: Op) -> Rewrite:
    """operation(x) -> x, where it changes nothing"""
    return op.operands[0] if _NOTHING[type(op)](op) else None


# Two operations of one kind that are one.


def _slices(inner: Op, outer: Op) -> dict[str, Literal]:
    starts = tuple(dim(a + b * p) for a, p, b in zip(inner["starts"], inner["steps"], outer["starts"], strict=True))
    return {"starts": starts, "steps": tuple(dim(p * q) for p, q in zip(inner["steps"], outer["steps"], strict=True))}


_COMPOSED: dict[type[Op], Callable[[Op, Op], dict[str, Literal]]] = {
    Reshape: lambda inner, outer: {},
    Permute: lambda inner, outer: {"perm": tuple(inner["perm"][k] for k in outer["perm"])},
    Broadcast: lambda inner, outer: {"dims": tuple(outer["dims"][d] for d in inner["dims"])},
    Slice: _slices,  # a + b*p, p*q for slice(slice(x, a, p), b, q)
    Flip: lambda inner, outer: {"dims": tuple(sorted(set(inner["dims"]) ^ set(outer["dims"])))},
}


def composed(op: Op) -> Rewrite:
    """view(view(x)) -> view(x), of one kind"""
    inner = producer(op.operands[0], type(op))
    return None if inner is None else op.make(inner.operands, [op.results[0].type], _COMPOSED[type(op)](inner, op))


# Casts.

_EXACT = {  # each dtype's values are all values of these
    "bool": {"i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"},
    "u8": {"i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"},
    "i8": {"i16", "i32", "i64", "f16", "bf16", "f32", "f64"},
    "u16": {"i32", "u32", "i64", "u64", "f32", "f64"},
    "i16": {"i32", "i64", "f32", "f64"},
    "u32": {"i64", "u64", "f64"},
    "i32": {"i64", "f64"},
    "f8e4m3": {"f16", "bf16", "f32", "f64"},
    "f8e5m2": {"f16", "bf16", "f32", "f64"},
    "f16": {"f32", "f64"},
    "bf16": {"f32", "f64"},
    "f32": {"f64"},
}


def cast_of_cast(op: Cast) -> Rewrite:
    """cast<C>(cast<B>(x: A)) -> cast<C>(x) when B holds every value of A (`fuse` skips a half type's rounding, inside one kernel)"""
    inner = producer(op.operands[0], Cast)
    if inner is None:
        return None
    x = inner.operands[0]
    a, b, c = tensor(x).dtype, inner.type.dtype, op.type.dtype
    if b.name in _EXACT.get(a.name, ()) and not (a.is_float and c.is_integer and c.kind != "bool"):
        return Cast.make([x], [op.type])
    return None


# Views.


def reshape_of_unsqueeze(op: Reshape) -> Rewrite:
    """reshape(broadcast(x)) -> reshape(x) when the broadcast only adds dimensions of size 1"""
    inner = producer(op.operands[0], Broadcast)
    if inner is None or not known_equal(tensor(inner.operands[0]).numel, inner.type.numel):
        return None
    if not all(known_equal(s, inner.type.shape[d]) for s, d in _mapped(inner)):
        return None
    return Reshape.make(inner.operands, [op.type])


def _mapped(op: Broadcast) -> list[tuple[Dim, int]]:
    """(size, result dimension) of each operand dimension."""
    return list(zip(tensor(op.operands[0]).shape, op["dims"], strict=True))


def broadcast_of_unsqueeze(op: Broadcast) -> Rewrite:
    """broadcast(reshape(x)) -> broadcast(x) when the reshape only adds dimensions of size 1"""
    inner = producer(op.operands[0], Reshape)
    if inner is None:
        return None
    x = inner.operands[0]
    places: list[int] = []
    sizes = list(tensor(x).shape)
    for place, size in enumerate(inner.type.shape):
        if len(places) < len(sizes) and known_equal(size, sizes[len(places)]):
            places.append(place)
        elif size != 1:
            return None
    if len(places) != len(sizes):
        return None
    return Broadcast.make([x], [op.type], {"dims": tuple(op["dims"][p] for p in places)})


def slice_of_concat(op: Slice) -> Rewrite:
    """slice(concat(.., x, ..)) -> slice(x) when it stays inside one piece"""
    inner = producer(op.operands[0], Concat)
    if inner is None:
        return None
    d = inner["dim"]
    start, step, count = op["starts"][d], op["steps"][d], op.type.shape[d]
    if not (isinstance(start, int) and isinstance(step, int) and isinstance(count, int)) or count < 1:
        return None
    begin = 0
    for piece in inner.operands:
        size = tensor(piece).shape[d]
        if not isinstance(size, int):
            return None
        if begin <= start and start + (count - 1) * step < begin + size:
            starts = (*op["starts"][:d], start - begin, *op["starts"][d + 1 :])
            return Slice.make([piece], [op.type], {"starts": starts, "steps": op["steps"]})
        begin += size
    return None


def pad_of_pad(op: Pad) -> Rewrite:
    """pad(pad(x, a, v), b, v) -> pad(x, a + b, v) when nothing is taken away"""
    inner = producer(op.operands[0], Pad)
    if inner is None or inner.attributes["value"] != op.attributes["value"]:
        return None
    amounts = [*inner["low"], *inner["high"], *op["low"], *op["high"]]
    if not all(isinstance(n, int) and n >= 0 for n in amounts):
        return None
    low = tuple(a + b for a, b in zip(inner["low"], op["low"], strict=True))
    high = tuple(a + b for a, b in zip(inner["high"], op["high"], strict=True))
    return Pad.make(inner.operands, [op.type], {"low": low, "high": high, "value": op["value"]})


def concat_of_one(op: Concat) -> Rewrite:
    """concat(x) -> x, and concat(.., empty, ..) -> concat(.., ..)"""
    kept = [v for v in op.operands if tensor(v).shape[op["dim"]] != 0]
    if len(kept) == 1 and kept[0].type == op.type:
        return kept[0]
    if not kept or len(kept) == len(op.operands):
        return None
    return Concat.make(kept, [op.type], {"dim": op["dim"]})


def concat_of_concat(op: Concat) -> Rewrite:
    """concat(concat(a, b), c) -> concat(a, b, c) when nothing else reads the inner one"""
    pieces: list[SSAValue] = []
    for value in op.operands:
        inner = producer(value, Concat)
        same = inner is not None and inner["dim"] == op["dim"] and value.has_one_use()
        pieces += inner.operands if same and inner is not None else [value]
    return None if len(pieces) == len(op.operands) else Concat.make(pieces, [op.type], {"dim": op["dim"]})


def view_of_full(op: Op) -> Rewrite:
    """broadcast | reshape | permute | slice | flip (full(v)) -> full(v)"""
    source = producer(op.operands[0], Full)
    return None if source is None else Full.make([], [op.results[0].type], {"value": source["value"]})


# Reductions.


def reduce_over_ones(op: Reduce) -> Rewrite:
    """reduce<max | min | prod | any | all>(x, dims of size 1) -> reshape(x); of argmax and argmin -> full(0)"""
    sizes = tensor(op.operands[0]).shape
    if any(sizes[d] != 1 for d in op["dims"]) or not op["dims"]:
        return None
    if op["kind"] in ("argmax", "argmin"):
        return Full.make([], [op.type], {"value": 0})
    return Reshape.make(op.operands, [op.type]) if _keeps_one(op) else None


# Arithmetic with a neutral operand: (operation, which operand, its value) -> the other operand.


def _is(value: SSAValue, number: float) -> bool:
    """Every element is this number; -0.0 and 0.0 are different numbers."""
    found = splat(value)
    if not isinstance(found, int | float) or found != number:
        return False
    return number != 0 or math.copysign(1.0, found) == math.copysign(1.0, number)


def _zero_to_add(dtype: DType) -> float:
    return -0.0 if dtype.is_float else 0  # x + -0.0 is x for every x; -0.0 + 0.0 is 0.0


def _ones(dtype: DType) -> int:
    return 1 if dtype.kind == "bool" else -1  # all bits set


_NEUTRAL_RIGHT: dict[str, Callable[[DType], float]] = {
    "add": _zero_to_add,
    "sub": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "div": lambda dtype: 1,
    "pow": lambda dtype: 1,
    "or": lambda dtype: 0,
    "xor": lambda dtype: 0,
    "shl": lambda dtype: 0,
    "shr": lambda dtype: 0,
    "and": _ones,
}


def _neutral(name: str) -> Rule:
    neutral, commutes = _NEUTRAL_RIGHT[name], ELEMENTWISE[name].row.commutative

    def rule(op: Op) -> Rewrite:
        a, b = op.operands
        number = neutral(tensor(a).dtype)
        if _is(b, number):
            return a
        return b if commutes and _is(a, number) else None

    rule.__doc__ = f"{name}(x, neutral) -> x"
    return rule


def floordiv_by_one(op: Op) -> Rewrite:
    """floordiv(x: integer, 1) -> x"""
    return op.operands[0] if tensor(op.operands[0]).dtype.is_integer and _is(op.operands[1], 1) else None


def same_twice(op: Op) -> Rewrite:
    """max | min | and | or (x, x) -> x"""
    return op.operands[0] if op.operands[0] is op.operands[1] else None


def _undone_by_itself(name: str) -> Rule:
    def rule(op: Op) -> Rewrite:
        inner = producer(op.operands[0], ELEMENTWISE[name])
        return None if inner is None else inner.operands[0]

    rule.__doc__ = f"{name}({name}(x)) -> x"
    return rule


def abs_of_sign_change(op: Op) -> Rewrite:
    """abs(neg | abs (x)) -> abs(x), for floats (the integer with no positive partner keeps its sign)"""
    inner = op.operands[0].owner
    if not isinstance(inner, (ELEMENTWISE["neg"], ELEMENTWISE["abs"])) or not tensor(op.operands[0]).dtype.is_float:
        return None
    return ELEMENTWISE["abs"].make(inner.operands, [op.results[0].type])


def small_power(op: Op) -> Rewrite:
    """pow(x, 2) -> x*x, pow(x, 3) -> x*x*x, as eager computes them"""
    x, exponent = op.operands
    if not (_is(exponent, 2) or _is(exponent, 3)):
        return None
    square = prim.elementwise("mul", x, x)
    return square if _is(exponent, 2) else [square, prim.elementwise("mul", square.results[0], x)]


def where_decided(op: Op) -> Rewrite:
    """where(true, a, b) -> a, where(false, a, b) -> b, where(c, a, a) -> a"""
    condition, a, b = op.operands
    known = splat(condition)
    if known is None:
        return a if a is b else None
    return a if known else b


def where_not(op: Op) -> Rewrite:
    """where(not(c), a, b) -> where(c, b, a)"""
    condition, a, b = op.operands
    inner = producer(condition, ELEMENTWISE["not"])
    return None if inner is None else ELEMENTWISE["where"].make([inner.operands[0], b, a], [op.results[0].type])


_ARITHMETIC: dict[str, tuple[Rule, ...]] = {
    **{f"prim.{name}": (_neutral(name),) for name in _NEUTRAL_RIGHT},
    "prim.pow": (_neutral("pow"), small_power),
    "prim.and": (_neutral("and"), same_twice),
    "prim.or": (_neutral("or"), same_twice),
    "prim.floordiv": (floordiv_by_one,),
    "prim.max": (same_twice,),
    "prim.min": (same_twice,),
    "prim.neg": (_undone_by_itself("neg"),),
    "prim.not": (_undone_by_itself("not"),),
    "prim.abs": (abs_of_sign_change,),
    "prim.where": (where_decided, where_not),
}

RULES: Table = rule_table(
    {kind.name: (nothing,) for kind in _NOTHING},
    {kind.name: (composed,) for kind in _COMPOSED},
    *(cast_of_cast, reshape_of_unsqueeze, broadcast_of_unsqueeze, slice_of_concat, pad_of_pad),
    *(concat_of_one, concat_of_concat, reduce_over_ones),
    {view.name: (view_of_full,) for view in prim.VIEWS},
    _ARITHMETIC,
)
