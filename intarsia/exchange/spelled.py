"""A module with its library calls written out, as far as they can be: what is handed to other compilers knows no library of ours.

Every call that a rule of `decompose` covers on any machine becomes primitives, and products and attention become `prim.contract`. What is
left are convolutions and sorts, where they are not written out, too, and calls that nothing covers. Tensors count as a GPU's, because rules say more there; no text names a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ..ir.dialects import kernel, prim
from ..ir.dialects.aten import AtenOp, aten_op, overload
from ..ir.dtypes import I64
from ..ir.fx.canonical import NotCanonical, completed
from ..ir.retarget import retarget
from ..ir.symbols import Dim
from ..ir.syntax import line_of
from ..passes.analysis.machine import Machine
from ..passes.core.context import CompileContext
from ..passes.graph.aten_rules.builder import Builder, NotCovered, Result, Rule
from ..passes.graph.dce import DCE
from ..passes.graph.decompose import Decompose, replace_by
from .errors import ExchangeError
from .spelled_out import CALLS, is_written_out, write_out

_OURS = (
    "target",
    "own",
    "packed",
    "tile",
    "choice",
    "why",
    "backend",
    "empty_rows",
)  # attributes that are no arguments


def spelled(module: ModuleOp, out: bool = False) -> ModuleOp:
    """A copy with library calls written out; with `out` also convolutions, sorts, scatters, argmax and running reductions
    (`spelled_out`).

    Raises:
        ExchangeError: the module is made for a kernel of our own that no other compiler has.
    """
    copy = module.clone()
    retarget(copy, "cuda:0")
    machine = Machine()
    for op in list(copy.walk()):
        if isinstance(op, kernel.Extern):
            _as_call(op)
    rules = _RULES | CALLS if out else _RULES
    for op in list(copy.walk()):
        if isinstance(op, AtenOp) and op.target in rules:
            replace_by(op, Builder(op, machine), rules[op.target])
    Decompose(random="eager").apply(CompileContext(machine), copy)
    for found in [op for op in copy.walk() if is_written_out(op)] if out else ():
        write_out(found, machine)
    DCE().apply(CompileContext(machine), copy)
    return copy


def _as_call(op: kernel.Extern) -> None:
    """Turn a library call back into the ATen operation that it was, with what its region computes behind it."""
    target = str(op["target"])
    attention = target == kernel.ATTENTION and (op.regions or op.get("empty_rows") == "nan")
    if op.get("packed") or attention:
        raise ExchangeError(
            f"{line_of(op) or '@main'}: {op.name}<{target}> is made for a kernel of our own; give the module as it was "
            "before the passes at level 'prim', as `-p decompose` leaves it"
        )
    try:
        registered = overload(target)
    except LookupError:
        return  # an operator of somebody else, which whoever writes the module refuses by name
    epilogue = kernel.read_by_region(op) if op.regions else []
    kept = [k for k in range(len(op.operands)) if k not in epilogue]
    names = tuple(op["operands"][k] for k in kept)
    operands = [op.operands[k] for k in kept]
    kinds = {name: prim.tensor(v) for name, v in zip(names, operands, strict=True)}
    given = {name: value for name, value in op.literals.items() if name not in _OURS}
    extra: dict[str, Any] = {k: given.pop(k) for k in ("returned", "effect", "seed", "binds", "assumes") if k in given}
    for gone in ("operands", "operand_strides", "strides"):
        given.pop(gone, None)
    try:
        arguments = completed(registered, kinds, [prim.tensor(r) for r in op.results], given)
    except NotCanonical:
        return
    call = aten_op(target).make(
        operands, [r.type for r in op.results], {"operands": names, **arguments, **extra}, loc=op.location
    )
    block = op.parent
    assert block is not None
    block.insert_op_before(call, op)
    results: list[SSAValue] = list(call.results)
    if op.regions:
        inner = op.block_body
        known: dict[SSAValue, SSAValue] = dict(
            zip(inner.args, [results[0], *(op.operands[k] for k in epilogue)], strict=True)
        )
        for one in inner.ops:
            if isinstance(one, kernel.Yield):
                results[0] = known.get(one.operands[0], one.operands[0])
                break
            copied = one.clone(known)
            block.insert_op_before(copied, op)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


# ---- products -----------------------------------------------------------------------------------------------------------


def _product(b: Builder, x: SSAValue, y: SSAValue, maps: tuple[str, str, str]) -> SSAValue:
    """The sums of products of two operands, by letters: ("mk", "kn", "mn"); what is in no result is added up."""
    a, c, made = maps
    if not b.dtype_of(x).is_float or b.dtype_of(x) != b.dtype_of(y):
        raise NotCovered("a product that is not of floats of one dtype")
    sizes: dict[str, Dim] = dict(zip(c, b.shape_of(y), strict=True)) | dict(zip(a, b.shape_of(x), strict=True))
    inner = [k for k in dict.fromkeys(a + c) if k not in made]
    place = dict(zip([*made, *inner], prim.axes(len(made) + len(inner)), strict=True))
    index = [[place[k] for k in letters] for letters in (a, c)]
    if any(sizes[k] == 0 for k in inner):
        raise NotCovered("a product over nothing")
    return b.add(prim.contract(x, y, index, [sizes[k] for k in made], [sizes[k] for k in inner]))


def _added(b: Builder, sums: SSAValue, other: SSAValue | None) -> SSAValue:
    if other is not None:
        sums = b.ew("add", sums, b.to_shape(b.cast(other, b.dtype_of(sums)), b.shape_of(sums)))
    return b.cast(sums, b.type.dtype)


def _mm(b: Builder) -> Result:
    return _added(b, _product(b, b.tensor("self"), b.tensor("mat2"), ("mk", "kn", "mn")), None)


def _bmm(b: Builder) -> Result:
    return _added(b, _product(b, b.tensor("self"), b.tensor("mat2"), ("bmk", "bkn", "bmn")), None)


def _mv(b: Builder) -> Result:
    return _added(b, _product(b, b.tensor("self"), b.tensor("vec"), ("mk", "k", "m")), None)


def _dot(b: Builder) -> Result:
    return _added(b, _product(b, b.tensor("self"), b.tensor("tensor"), ("k", "k", "")), None)


def _scaled(b: Builder, value: SSAValue, factor: float) -> SSAValue:
    return value if factor == 1 else b.ew("mul", value, float(factor))


def _addmm(b: Builder) -> Result:
    """beta * self + alpha * product; a beta of 0 leaves `self` out, whatever it holds."""
    batched = b.has("batch1")
    a, c = (b.tensor("batch1"), b.tensor("batch2")) if batched else (b.tensor("mat1"), b.tensor("mat2"))
    sums = _product(b, a, c, ("bmk", "bkn", "bmn") if batched else ("mk", "kn", "mn"))
    sums = _scaled(b, sums, b.get("alpha", 1))
    beta = b.get("beta", 1)
    other = None if beta == 0 else _scaled(b, b.cast(b.tensor("self"), b.dtype_of(sums)), beta)
    return _added(b, sums, other)


def _linear(b: Builder) -> Result:
    x, weight = b.tensor("input"), b.tensor("weight")
    if b.rank_of(weight) != 2:
        raise NotCovered("a weight of one dimension")
    rows = "abcdefgh"[: b.rank_of(x) - 1]
    return _added(b, _product(b, x, weight, (f"{rows}k", "nk", f"{rows}n")), b.maybe("bias"))


def _attention(b: Builder) -> Result:
    """softmax(query @ key^T * scale + mask) @ value; a row that a mask shuts gives zeros, as the operator does."""
    q, k, v = (b.tensor(name) for name in ("query", "key", "value"))
    if b.get("dropout_p") or b.get("enable_gqa") or not b.rank_of(q) == b.rank_of(k) == b.rank_of(v) >= 2:
        raise NotCovered("attention with dropout or shared heads")
    batch = "abcdef"[: b.rank_of(q) - 2]
    shapes = [b.shape_of(x) for x in (q, k, v)]
    if len({s[:-2] for s in shapes}) != 1 or 0 in (*shapes[0], *shapes[1]):
        raise NotCovered("attention whose batches are broadcast, or of nothing")
    scale = b.get("scale")
    if scale is None:
        width = shapes[0][-1]
        if not isinstance(width, int):
            raise NotCovered("a scale that a size decides")
        scale = 1.0 / math.sqrt(width)
    scores = b.ew("mul", _product(b, q, k, (f"{batch}mk", f"{batch}nk", f"{batch}mn")), float(scale))
    shape, kind = b.shape_of(scores), b.dtype_of(scores)
    mask = b.maybe("attn_mask")
    if b.get("is_causal"):
        row, column = (
            b.add(prim.Iota.make([], [prim.tensor(scores).with_(dtype=I64)], {"dim": d, "start": 0, "step": 1}))
            for d in (len(shape) - 2, len(shape) - 1)
        )
        scores = b.ew("where", b.ew("ge", row, column), scores, -math.inf)
    if mask is not None:
        wide = b.to_shape(mask, shape)
        if b.dtype_of(mask).kind == "bool":
            scores = b.ew("where", wide, scores, -math.inf)
        else:
            scores = b.ew("add", scores, b.cast(wide, kind))
    last = (len(shape) - 1,)
    top = b.spread(b.reduce("max", scores, last), shape, last)
    open_ = b.ew("ne", top, -math.inf)
    weights = b.ew("where", open_, b.ew("exp", b.ew("sub", scores, top)), 0.0)
    total = b.spread(b.reduce("sum", weights, last), shape, last)
    weights = b.ew("where", open_, b.ew("div", weights, total), 0.0)
    given = b.cast(weights, b.dtype_of(v))
    return _added(b, _product(b, given, v, (f"{batch}mn", f"{batch}nk", f"{batch}mk")), None)


_RULES: dict[str, Rule] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.mv.default": _mv,
    "aten.dot.default": _dot,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.linear.default": _linear,
    kernel.ATTENTION: _attention,
}


def integers(values: Sequence[Any], what: str) -> tuple[int, ...]:
    """Numbers that are known.

    Raises:
        ExchangeError: one is a symbol.
    """
    for value in values:
        if not isinstance(value, int):
            raise ExchangeError(f"{what}: {value} is a symbol: give the module sizes that are numbers")
    return tuple(values)
