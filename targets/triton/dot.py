"""Matrix products in Triton text: a walk over the inner size that multiplies two tiles, both loaded as they lie in memory.

Every other value has one axis for each loop that is a tensor; the inner loop shares the axes of the result. For the first operand it is
the second axis, for the second one the first axis, so each operand is written by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import BY_NAME
from ...ir.scalars import DOT
from ...ir.symbols import Dim, dim
from ...ir.syntax import Op
from ...passes.schedule.nests import coefficient
from .text import triton_type
from .writer import OpenLoop, Writer, is_one_block


def product_in(op: loop.For) -> loop.Accumulate | None:
    """What a loop adds up, where that are products of tiles."""
    if op["kind"] != "reduce" or op.get("block", 1) == 1:
        return None
    return next((a for a in op.block_body.ops if isinstance(a, loop.Accumulate) and a["kind"] == DOT), None)


def dot_loop(w: Writer, op: loop.For, join: loop.Accumulate) -> None:
    """The walk over the inner size."""
    memory, var, block = join.operands[-1], op["var"].name, op["block"]
    start, size = op.get("start", 0), dim(sympy.sympify(op["stop"]) - op.get("start", 0))
    even = isinstance(size, int) and size % block == 0
    acc, before = w.fresh("acc"), "" if start == 0 else w.hold("i", w.index(start)) + " + "
    whole = is_one_block(op)
    if not whole:
        w.line(f"{acc} = tl.zeros({w.row_shape(each.op for each in w.open)}, tl.float32)")
    sides = [_needed(op, value) for value in join.operands[:2]]
    mapped = [w.described.get(value.owner) for value in join.operands[:2]]  # type: ignore[call-overload]  # a block is no key
    wrapped = [_wrapped(w, side) if each is None else [] for each, side in zip(mapped, sides, strict=True)]
    at, outer, place = "0", dict(w.known), w.place
    if not whole:
        at = w.fresh("at")
        w.line(f"for {at} in range(0, {w.index(size)}, {block}):")
        w.depth += 1
        before = f"{before}{at} + "
    texts = []
    rows, bound = w.open, dict(w.bound)
    for axis, side, open_loops, value, each in zip((1, 0), sides, wrapped, join.operands[:2], mapped, strict=True):
        if each is not None:
            places = [w.bases[each.row], at]
            loaded = f"{each.name}.load([{', '.join(places if each.inner_last else places[::-1])}])"
            texts.append(w.hold("t", loaded if each.inner_last == (axis == 1) else f"{loaded}.T"))
            continue
        w.axes[op] = axis
        w.open = [each for each, _ in open_loops]
        w.bound = bound | {each.op["var"].name: (name, bound[each.op["var"].name][1]) for each, name in open_loops}
        name = w.hold("r", f"{before}tl.arange(0, {block}){w.shape(axis)}")
        mask = "" if even else w.hold("m", f"{name} < {w.index(op['stop'])}")
        w.bound[var] = (name, frozenset([var]))
        w.open.append(OpenLoop(op, name, mask))
        dtype = BY_NAME[join["dtype"]]
        load = value.owner if isinstance(value.owner, loop.Load) and value.owner.operands[0] not in w.locals else None
        plain = load is not None and load.ref.dtype == dtype
        if load is not None and plain:
            w.raw.add(load)
        w.operations(side)
        text = w.names[value]
        if not plain:
            text = w.spread(text, w.spans.get(value, frozenset()))
            if mask:
                text = w.hold("t", f"tl.where({mask}, {text}, 0.0)")
            text = w.hold("t", f"{text}.to(tl.{triton_type(dtype)})")
        texts.append(text)
    exact = "tf32" if join.get("tf32") else "ieee"
    precision = f', input_precision="{exact}"' if join["dtype"] == "f32" else ""
    w.line(f"{acc} = tl.dot({texts[0]}, {texts[1]}{'' if whole else f', {acc}'}{precision})")
    w.depth -= not whole
    w.open, w.bound, w.known, w.place = rows, bound, outer, place
    w.names[memory] = acc
    w.spans[memory] = frozenset(each.op["var"].name for each in rows)


def _needed(op: loop.For, value: SSAValue) -> list[Op]:
    """The operations of the loop's body that an operand is computed by, in order."""
    wanted: set[Operation] = set()
    stack = [value]
    while stack:
        owner = stack.pop().owner
        if isinstance(owner, Operation) and owner.parent is op.block_body and owner not in wanted:
            wanted.add(owner)
            stack += owner.operands
    return [inner for inner in op.block_body.ops if inner in wanted and isinstance(inner, Op)]


def _wrapped(w: Writer, side: Sequence[Op]) -> list[tuple[OpenLoop, str]]:
    """The open loops, and their variables' names while an operand is read.

    Behind the end of the result's rows or columns nothing is stored, so it does not matter what is read there: numbers begin again at 0,
    which needs no mask, unless neighbours in memory lie along the loop: these would not be known as such any more.
    """
    found = []
    for each in w.open:
        name = w.bound[each.op["var"].name][0]
        indices: list[Dim] = [load["index"] for load in side if isinstance(load, loop.Load)]
        depends = any(_steps(index, each.op["var"]) != 0 for index in indices)
        along = any(_steps(index, each.op["var"]) == 1 for index in indices)
        others = any(isinstance(op, loop.Bind) or op.get("mask") for op in side)
        if each.mask and depends and not along and not others:
            name = w.hold("w", f"{name} % {w.factor(each.op['stop'])}")
            each = OpenLoop(each.op, each.name, "")
        found.append((each, name))
    return found


def _steps(index: Dim, var: sympy.Symbol) -> Dim | None:
    return coefficient(index, var)
