"""Products of several matrices in the cheapest order (the matrix chain problem, Godbole 1973), as a pass of others.

torch multiplies in the order that the program writes, and so does every compiler that keeps eager's rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from intarsia.extend import F32, F64, Pass, apply_rules, kernel, prim, splat

OPERANDS = {
    "aten.mm.default": ("self", "mat2"),
    "aten.bmm.default": ("self", "mat2"),
    "aten.linear.default": ("input", "weight"),
}


def is_product(op: Any) -> bool:
    """A product of matrices or of batches of them: known sizes, one dtype, no half type (whose rounding would show)."""
    if op.name != "kernel.extern" or op["target"] not in OPERANDS or op.regions:
        return False
    types = [v.type for v in (*op.operands, *op.results)]
    known = all(isinstance(n, int) and n > 0 for t in types for n in t.shape)
    rank = 3 if op["target"] == "aten.bmm.default" else 2
    return known and len(types[0].shape) == rank and types[0].dtype in (F32, F64) and len({t.dtype for t in types}) == 1


def chain(op: Any) -> tuple[list[Any], float, int]:
    """(factors, number, multiplications as written): factors are (value, the strides that calls are given, transposed)."""
    strides, weight = op.get("operand_strides") or (None, None), op["target"] == "aten.linear.default"
    left = inside(op.operands[0]) or ([(op.operands[0], strides[0], False)], 1.0, 0)
    right = (None if weight else inside(op.operands[1])) or ([(op.operands[1], strides[1], weight)], 1.0, 0)
    here = op.results[0].type.numel * op.operands[0].type.shape[-1]
    return left[0] + right[0], left[1] * right[1], left[2] + right[2] + here


def inside(value: Any) -> tuple[list[Any], float, int] | None:
    """The product that a factor is, perhaps reshaped and times numbers, where nothing else reads it."""
    at, scale = value, 1.0
    while len(list(at.uses)) == 1 and hasattr(at.owner, "operands"):
        op, at = at.owner, at.owner.operands[0]
        number = splat(op.operands[1]) if op.name in ("prim.mul", "prim.div") else None
        if isinstance(number, float):
            scale = scale * number if op.name == "prim.mul" else scale / (number or math.nan)
        elif is_product(op) and len(op.operands) == 2 and op.results[0].type.shape[-2:] == value.type.shape[-2:]:
            factors, inner, cost = chain(op)
            return (factors, scale * inner, cost) if 1e-30 < abs(scale * inner) < 1e30 else None
        elif op.name != "prim.reshape":
            return None
    return None


def cheapest(op: Any) -> Any:
    """(a b) c -> a (b c), where that takes fewer multiplications"""
    factors, scale, written = chain(op) if is_product(op) else ([], 1.0, 0)
    out, made = op.results[0].type, []
    sizes = [v.type.shape[-2:][:: -1 if turned else 1] for v, _, turned in factors]

    @cache
    def best(i: int, j: int) -> tuple[int, int]:
        outer = math.prod(out.shape[:-2]) * sizes[i][0] * sizes[j][1]
        ways = ((best(i, k)[0] + best(k + 1, j)[0] + outer * sizes[k][1], k) for k in range(i, j))
        return min(ways, default=(0, i))

    def add(new: Any) -> Any:
        made.append(new)
        return new.results[0]

    def build(i: int, j: int) -> Any:
        if i == j:
            value, strides, turned = factors[i]
            if len(value.type.shape) == len(out.shape):
                return value, strides, turned
            return add(prim.reshape(value, (*out.shape[:-2], *value.type.shape[-2:]))), None, turned
        left, right = build(i, best(i, j)[1]), build(best(i, j)[1] + 1, j)
        if left[2]:
            left = add(prim.permute(left[0], (1, 0))), (1, left[0].type.shape[-1]), False
        target = f"aten.{'linear' if right[2] else 'mm' if len(out.shape) == 2 else 'bmm'}.default"
        attrs = {"target": target, "operands": OPERANDS[target], "operand_strides": (left[1], right[1])}
        t = out.with_(shape=(*out.shape[:-2], sizes[i][0], sizes[j][1]))
        return add(kernel.Extern.make([left[0], right[0]], [t], attrs)), None, False

    if len(factors) < 3 or best(0, len(factors) - 1)[0] >= written:
        return None
    result = build(0, len(factors) - 1)[0]
    if scale != 1.0:
        result = add(prim.ELEMENTWISE["mul"].make([result, add(prim.full(scale, out))], [out]))
    if len(op.operands) == 3:
        result = add(
            prim.ELEMENTWISE["add"].make([result, add(prim.broadcast(op.operands[2], out.shape, (1,)))], [out])
        )
    return made


@dataclass(frozen=True)
class ProductOrder(Pass):
    """Multiply matrices in the order that takes the fewest multiplications."""

    name = "product-order"
    level = "prim"
    after = ("dce",)
    before = ("own-kernels?", "match-attention?", "hoist?", "fuse")

    def apply(self, ctx: Any, module: Any) -> None:
        ctx.diagnostics.count(self.name, "chains", apply_rules(module, {"kernel.extern": (cheapest,)}))
