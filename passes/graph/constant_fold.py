"""Constant folding: what depends on numbers alone becomes a number.

The only constants are `full` (one number) and `iota` (an arithmetic progression), so folding never makes large data.
Numbers are computed by the row's torch function on a tensor of one element: eager's own result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import sympy
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects.prim import (
    ELEMENTWISE,
    Broadcast,
    Cast,
    Concat,
    Elementwise,
    Full,
    Iota,
    Pad,
    Permute,
    Reduce,
    Slice,
    elementwise,
    tensor,
)
from ...ir.dtypes import DType
from ...ir.literals import Literal
from ...ir.scalars import REDUCES
from ...ir.symbols import dim, product
from ...ir.syntax import Op
from ...ir.types import TensorType
from ..analysis.cost import LARGEST_SUM
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import Rewrite, Table, apply_rules, producer, rule_table, splat


@dataclass(frozen=True)
class ConstantFold(Pass):
    """Compute what depends on numbers alone: operations on full and iota."""

    name: ClassVar[str] = "constant-fold"
    accepts: ClassVar[tuple[str, ...]] = ("kernel",)
    after: ClassVar[tuple[str, ...]] = ("canonicalize",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        ctx.diagnostics.count(self.name, "folded", apply_rules(module, RULES))


def evaluate(function: object, dtypes: list[DType], values: list[Literal]) -> Literal:
    """The function on one element of each dtype, as a Python number; None where torch cannot (integer division by 0)."""
    try:
        arguments = [torch.tensor(v, dtype=d.torch) for v, d in zip(values, dtypes, strict=True)]
        return function(*arguments).item()  # type: ignore[operator]
    except (RuntimeError, NotImplementedError, OverflowError, TypeError):
        return None


def fold_elementwise(op: Elementwise) -> Rewrite:
    """f(full(a), full(b)) -> full(f(a, b))"""
    values = [splat(v) for v in op.operands]
    if any(v is None for v in values):
        return None
    types = [tensor(v) for v in op.operands]
    if any(isinstance(v, sympy.Expr) for v in values):
        result = _symbolic(op, values)
    else:
        # Half types compute in float32, as the operations around them do, and round once.
        wide = [t.dtype.compute for t in types]
        exact = [_rounded(v, t.dtype) for v, t in zip(values, types, strict=True)]
        result = evaluate(op.row.torch, wide, exact)
    return _full(op.type, result)


_SYMBOLIC = {"add": sympy.Add, "sub": lambda a, b: a - b, "mul": sympy.Mul}


def _symbolic(op: Elementwise, values: list[Literal]) -> Literal:
    rule = _SYMBOLIC.get(op.row.name)
    return dim(rule(*map(sympy.sympify, values))) if rule is not None and op.type.dtype.name == "i64" else None


def _rounded(value: Literal, dtype: DType) -> Literal:
    return evaluate(lambda x: x, [dtype], [value])


def _full(type_: TensorType, value: Literal) -> Full | None:
    return None if value is None else Full.make([], [type_], {"value": value})


def fold_cast(op: Cast) -> Rewrite:
    """cast<T>(full(a)) -> full(T(a))"""
    value, source = splat(op.operands[0]), tensor(op.operands[0]).dtype
    if value is None or isinstance(value, sympy.Expr):
        return None
    if source.is_float and op.type.dtype.is_integer and op.type.dtype.kind != "bool":
        limits = torch.iinfo(op.type.dtype.torch)
        if not (math.isfinite(value) and limits.min <= value <= limits.max):
            return None  # the result is the machine's, not the language's
    return _full(op.type, evaluate(lambda x: x.to(op.type.dtype.torch), [source], [value]))


def fold_reduce(op: Reduce) -> Rewrite:
    """reduce(full(a)) -> full(a reduced)"""
    value = splat(op.operands[0])
    operand = tensor(op.operands[0])
    sizes = [operand.shape[d] for d in op["dims"]]
    if value is None or isinstance(value, sympy.Expr) or not all(isinstance(s, int) and s > 0 for s in sizes):
        return None
    if op["kind"] in ("argmax", "argmin"):
        return _full(op.type, 0)
    if op["kind"] in ("max", "min", "any", "all"):
        return _full(op.type, value)
    if product(sizes) > LARGEST_SUM:
        return None
    row = REDUCES[op["kind"]]
    return _full(
        op.type,
        evaluate(lambda x: row.torch(x.expand(sizes), tuple(range(len(sizes)))), [operand.dtype], [value]),
    )


def fold_concat(op: Concat) -> Rewrite:
    """concat(full(a), full(a)) -> full(a)"""
    sources = [producer(v, Full) for v in op.operands]
    values = {None if s is None else s.attributes["value"] for s in sources}
    return _full(op.type, splat(op.operands[0])) if len(values) == 1 else None


def fold_pad(op: Pad) -> Rewrite:
    """pad(full(a), a) -> full(a)"""
    source = producer(op.operands[0], Full)
    if source is None or source.attributes["value"] != op.attributes["value"]:
        return None
    return _full(op.type, op["value"])


# Progressions. Only integers: on floats start + step*i rounds differently from what it replaces.


def _progression(value: SSAValue) -> Iota | None:
    source = producer(value, Iota)
    return source if source is not None and source.type.dtype.name == "i64" else None


def _iota(type_: TensorType, d: int, start: Literal, step: Literal) -> Iota:
    return Iota.make([], [type_], {"dim": d, "start": dim(start), "step": dim(step)})


def slice_of_iota(op: Slice) -> Rewrite:
    """slice(iota(a, s), b, q) -> iota(a + s*b, s*q)"""
    source = _progression(op.operands[0])
    if source is None:
        return None
    d = source["dim"]
    return _iota(op.type, d, source["start"] + source["step"] * op["starts"][d], source["step"] * op["steps"][d])


def permute_of_iota(op: Permute) -> Rewrite:
    """permute(iota along d) -> iota along d's new place"""
    source = _progression(op.operands[0])
    if source is None:
        return None
    return _iota(op.type, list(op["perm"]).index(source["dim"]), source["start"], source["step"])


def broadcast_of_iota(op: Broadcast) -> Rewrite:
    """broadcast(iota along d) -> iota along d's new place, when d itself is not stretched"""
    source = _progression(op.operands[0])
    if source is None:
        return None
    d = op["dims"][source["dim"]]
    if source.type.shape[source["dim"]] != op.type.shape[d]:
        return None
    return _iota(op.type, d, source["start"], source["step"])


def iota_plus_number(op: Elementwise) -> Rewrite:
    """add | sub (iota(a, s), full(c)) -> iota(a +- c, s)"""
    source, number = _progression(op.operands[0]), splat(op.operands[1])
    if op.row.name == "add" and source is None:
        source, number = _progression(op.operands[1]), splat(op.operands[0])
    if source is None or number is None:
        return None
    return _iota(
        op.type, source["dim"], source["start"] + (number if op.row.name == "add" else -number), source["step"]
    )


def iota_times_number(op: Elementwise) -> Rewrite:
    """mul(iota(a, s), full(c)) -> iota(a*c, s*c)"""
    for a, b in (op.operands, op.operands[::-1]):
        source, number = _progression(a), splat(b)
        if source is not None and number is not None:
            return _iota(op.type, source["dim"], source["start"] * number, source["step"] * number)
    return None


def compare_iota(op: Elementwise) -> Rewrite:
    """lt | le | gt | ge (iota, full(c)) -> full(true | false) when all elements agree"""
    source, number = _progression(op.operands[0]), splat(op.operands[1])
    if source is None or not isinstance(number, int):
        return None
    count, start, step = source.type.shape[source["dim"]], source["start"], source["step"]
    if not all(isinstance(n, int) for n in (count, start, step)) or count == 0:
        return None
    ends = (start, start + (count - 1) * step)
    answers = {evaluate(op.row.torch, [source.type.dtype] * 2, [end, number]) for end in ends}
    return _full(op.type, answers.pop()) if len(answers) == 1 else None


def sum_of_one_hot(op: Reduce) -> Rewrite:
    """reduce<sum>(where(iota along d == x, y, 0), d) -> where(0 <= x < size, y, 0) + 0, where x and y are the same all along d

    The gradient of a loss of classes is 0 but for a row's class. Casts in between go with the element: autocast rounds a
    gradient. The last addition turns -0 into 0, as a sum does.
    """
    value, casts = op.operands[0], list[Cast]()
    while isinstance(value.owner, Cast):
        casts.insert(0, value.owner)
        value = value.owner.operands[0]
    chosen = producer(value, ELEMENTWISE["where"])
    if op["kind"] != "sum" or len(op["dims"]) != 1 or chosen is None or splat(chosen.operands[2]) != 0:
        return None
    (d,), here = op["dims"], producer(chosen.operands[0], ELEMENTWISE["eq"])
    if here is None:
        return None
    for place, target in (here.operands, here.operands[::-1]):
        made: list[Op] = []
        source, at, y = _progression(place), _without(made, target, d), _without(made, chosen.operands[1], d)
        if source is None or at is None or y is None or (source["dim"], source["start"], source["step"]) != (d, 0, 1):
            continue

        def row(name: str, *operands: SSAValue, made: list[Op] = made) -> SSAValue:
            made.append(elementwise(name, *operands))
            return made[-1].results[0]

        def number(value: Literal, like: SSAValue, made: list[Op] = made) -> SSAValue:
            made.append(
                Full.make([], [tensor(like)], {"value": float(value) if tensor(like).dtype.is_float else value})
            )
            return made[-1].results[0]

        inside = row("and", row("ge", at, number(0, at)), row("lt", at, number(tensor(place).shape[d], at)))
        zero = number(0, y)
        found = row("where", inside, y, zero)
        for cast in casts:
            made.append(Cast.make([found], [tensor(found).with_(dtype=cast.type.dtype)], cast.literals))
            found = made[-1].results[0]
            zero = number(0, found)
        if tensor(found).dtype != op.type.dtype:
            made.append(Cast.make([found], [op.type]))
            zero = number(0, found := made[-1].results[0])
        row("add", found, zero)
        return made
    return None


def _without(made: list[Op], value: SSAValue, d: int) -> SSAValue | None:
    """A value without dimension d, along which all of its elements are the same; None where they may differ."""
    shape, found = tensor(value).shape, value.owner
    kind = tensor(value).with_(shape=(*shape[:d], *shape[d + 1 :]))
    if isinstance(found, Broadcast) and d not in found["dims"]:
        if found.operands[0].type == kind:
            return found.operands[0]
        made.append(Broadcast.make(found.operands, [kind], {"dims": tuple(k - (k > d) for k in found["dims"])}))
        return made[-1].results[0]
    if isinstance(found, Full):
        made.append(Full.make([], [kind], {"value": found["value"]}))
        return made[-1].results[0]
    return None


RULES: Table = rule_table(
    {kind.name: (fold_elementwise,) for kind in ELEMENTWISE.values()},
    {"prim.add": (iota_plus_number,), "prim.sub": (iota_plus_number,), "prim.mul": (iota_times_number,)},
    {f"prim.{name}": (compare_iota,) for name in ("lt", "le", "gt", "ge")},
    *(fold_cast, fold_reduce, fold_concat, fold_pad, slice_of_iota, permute_of_iota, broadcast_of_iota),
    sum_of_one_hot,
)
