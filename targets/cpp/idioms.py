"""Loops that have a better form in C++ than their own: which they are, and their text."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from xdsl.ir import Operation

from ...ir.dialects import loop
from ...ir.scalars import identity
from ...ir.symbols import dim, free_symbols, symbol
from ...ir.syntax import Op
from ..text.walk import dtype_of
from .angles import Angles, find_angles
from .loops import head_of, plain_for
from .text import cpp_constant, cpp_index, index_text
from .writer import JOINS, PURE, Writer

SCANNED = 256  # elements of a running reduction that are joined at a time, in the nearest cache


def loop_for(w: Writer, op: Op) -> None:
    """A loop, in its best form."""
    if op.get("transpose") and _transpose(w, op):
        return
    if op.get("vector") and _first_extreme(w, op):
        return
    if op["kind"] == "scan" and _blocked_scan(w, op):
        return
    if op["kind"] == "reduce" and _arg_rows(w, op):
        return
    angles = find_angles(op) if op.get("vector") else None
    if angles is None:
        plain_for(w, op)
    elif not angles.values:
        _near_for(w, op)
    else:
        with w.scope(f"if ({' | '.join(_far_angles(w, op, angles))}) {{"):
            plain_for(w, op)
        with w.scope("} else {", "}"):
            _near_for(w, op)


def _near_for(w: Writer, op: Op) -> None:
    """A loop whose angles are known to be near zero."""
    w.near = True
    plain_for(w, op)
    w.near = False


def _far_angles(w: Writer, op: Op, angles: Angles) -> list[str]:
    """A loop that looks for the largest angles; the conditions that one of them is far from zero."""
    largest = {}
    for dtype, bits in (("f32", "int32_t"), ("f64", "int64_t")):
        if any(dtype_of(value).name == dtype for value in angles.values):
            largest[dtype] = w.fresh("largest")
            w.line(f"{bits} {largest[dtype]} = 0;")
    w.line(f"#pragma omp simd reduction(max : {', '.join(largest.values())})")
    with w.scope(head_of(op), "}"):
        w.plainly(angles.needed)
        for value in angles.values:
            name = largest[dtype_of(value).name]
            w.line(f"{name} = im::max({name}, im::magnitude({w.names[value]}));")
    return [f"im::is_far({name})" for name in largest.values()]


def _first_extreme(w: Writer, op: Op) -> bool:
    """A loop of one argmax or argmin and pure operations, in two loops that vectorise: the extreme value, then its first place.

    The same extreme may be accumulated for itself, too.
    """
    *before, last = op.block_body.ops
    if not isinstance(last, loop.Accumulate) or last["kind"] not in ("argmax", "argmin"):
        return False
    pure = [o for o in before if isinstance(o, PURE)]
    plain = [o for o in before if isinstance(o, loop.Accumulate)]
    if len(pure) + len(plain) < len(before):
        return False
    if any(
        o["kind"] != last["kind"][3:] or o.operands[0] is not last.operands[0] or o.operands[1] not in w.registers
        for o in plain
    ):
        return False
    value, at, best, best_at = last.operands
    if best not in w.registers or best_at not in w.registers or op["kind"] == "parallel":
        return False
    how = last["kind"][3:]
    extreme, first = w.fresh("extreme"), w.fresh("first")
    w.line(f"{dtype_of(value).cpp} {extreme} = {cpp_constant(identity(how, dtype_of(value)), dtype_of(value))};")
    w.line(f"int64_t {first} = INT64_MAX;")
    for clause, join in (
        (f"im_{how} : {extreme}", "{extreme} = im::{how}({extreme}, {value});"),
        (
            f"min : {first}",
            "{first} = im::index_min({first}, ({value} == {extreme}) | ({value} != {value}) ? {at} : INT64_MAX);",
        ),
    ):
        w.line(f"#pragma omp simd reduction({clause})")
        with w.scope(head_of(op), "}"):
            w.plainly(pure)
            w.line(join.format(extreme=extreme, first=first, how=how, value=w.names[value], at=w.names[at]))
    for o in plain:
        name = w.names[o.operands[1]]
        w.line(f"{name} = im::{how}({name}, {extreme});")
    a, b = w.names[best], w.names[best_at]
    w.line(f"if (im::arg_{how}_wins({extreme}, {first}, {a}, {b})) {{ {a} = {extreme}; {b} = {first}; }}")
    return True


def _arg_rows(w: Writer, op: Op) -> bool:
    """argmax or argmin of the columns of memory, a loop over rows around one over columns: one call."""
    if len(op.block_body.ops) != 2 or op.get("step", 1) != 1:
        return False
    number, inner = op.block_body.ops
    if not isinstance(number, loop.Index) or not isinstance(inner, loop.For) or len(inner.block_body.ops) != 2:
        return False
    load, join = inner.block_body.ops
    if not isinstance(load, loop.Load) or not isinstance(join, loop.Accumulate) or not inner.get("vector"):
        return False
    if join["kind"] not in ("argmax", "argmin") or load.get("mask") or number["value"] != symbol(str(op["var"])):
        return False
    value, at, best, best_at = join.operands
    row, lane = (symbol(str(v)) for v in (op["var"], inner["var"]))
    pitch = dim(sympy.sympify(load["index"]).coeff(row))
    along = [sympy.sympify(access["index"]).coeff(lane) for access in (load, join)]
    start = {row: sympy.sympify(op.get("start", 0)), lane: sympy.sympify(inner.get("start", 0))}
    if (
        value is not load.results[0]
        or at is not number.results[0]
        or along != [1, 1]
        or {row, lane} & free_symbols([pitch])
    ):
        return False
    dtype = load.ref.dtype
    if dtype != dtype_of(value) or dtype.bytes < 4 or best in w.registers or free_symbols([join["index"]]) & {row}:
        return False
    rows, lanes = (dim(each["stop"] - start[var]) for each, var in ((op, row), (inner, lane)))
    places = [(load.operands[0], load["index"]), (best, join["index"]), (best_at, join["index"])]
    values, *arrays = (w.address(memory, sympy.sympify(index).xreplace(start)) for memory, index in places)
    texts = [values, *(cpp_index(e) for e in (pitch, rows, dim(start[row]))), *arrays, cpp_index(lanes)]
    w.line(f"im::arg_rows<im::{JOINS[join['kind'][3:]]}>({', '.join(texts)});")
    return True


def _blocked_scan(w: Writer, op: Op) -> bool:
    """A running reduction of pure operations, block by block: compute what is joined, join it in registers, use the results.

    The first and the last part are vector loops. What both need is computed twice.
    """
    body = list(op.block_body.ops)
    joins = [o for o in body if isinstance(o, loop.Accumulate)]
    if len(joins) != 1 or any(not isinstance(o, (*PURE, loop.Store, loop.Accumulate)) for o in body):
        return False
    (join,) = joins
    at = body.index(join)
    value, carry = join.operands
    dtype = dtype_of(value)
    if carry not in w.registers or dtype.kind == "bool" or dtype.bytes < 4 or join["kind"] not in JOINS:
        return False
    before, after = body[:at], body[at + 1 :]
    results = [o for o in after if isinstance(o, loop.Load) and o.operands[0] is carry]
    if len(results) != 1 or any(isinstance(o, loop.Store) for o in before):
        return False
    trips = dim(op["stop"] - sympy.sympify(op.get("start", 0)))
    if isinstance(trips, int) and trips < SCANNED // 8:
        return False
    run, var, stop = w.fresh("run"), op["var"], cpp_index(op["stop"])
    here, name, how = f"{run}[{var} - {run}_from]", w.names[carry], JOINS[join["kind"]]
    head = f"for (int64_t {var} = {run}_from; {var} < {run}_to; ++{var}) {{"
    start = cpp_index(op.get("start", 0))
    with w.scope(f"for (int64_t {run}_from = {start}; {run}_from < {stop}; {run}_from += {SCANNED}) {{", "}"):
        w.line(f"const int64_t {run}_to = im::index_min({stop}, {run}_from + {SCANNED});")
        w.line(f"alignas(64) {dtype.cpp} {run}[{SCANNED}];")
        w.line("#pragma omp simd")
        with w.scope(head, "}"):
            w.plainly(before)
            w.line(f"{here} = {w.names[value]};")
        w.line(f"{name} = im::scan<im::{how}>({run}, {run}_to - {run}_from, {name});")
        w.line("#pragma omp simd")
        with w.scope(head, "}"):
            for inner in [*_needed(after, before), *after]:
                if inner is results[0]:
                    w.value(results[0], here)
                else:
                    w.plainly([inner])
    return True


def _needed(users: Sequence[Operation], made: Sequence[Operation]) -> list[Operation]:
    """The operations of `made`, in order, that `users` depend on."""
    work, found = [v.owner for o in users for v in o.operands], set()
    while work:
        owner = work.pop()
        if owner in made and owner not in found:
            assert isinstance(owner, Operation)
            found.add(owner)
            work += [v.owner for v in owner.operands]
    return [o for o in made if o in found]


def _transpose(w: Writer, op: Op) -> bool:
    """Two loops that only copy, reading along the inner one and writing along the outer one: one call; false if they are not."""
    inner = op.block_body.first_op
    if not isinstance(inner, loop.For) or len(op.block_body.ops) != 1:
        return False
    load, store = inner.block_body.first_op, inner.block_body.last_op
    if len(inner.block_body.ops) != 2 or not isinstance(load, loop.Load) or not isinstance(store, loop.Store):
        return False
    source, target = load.ref, store.ref
    if source.dtype != target.dtype or source.dtype.bytes < 4 or load.get("mask") or source.dtype.kind == "bool":
        return False
    start = {op["var"]: op.get("start", 0), inner["var"]: inner.get("start", 0)}
    first = {v: sympy.sympify(e) for v, e in start.items()}
    calls = []
    for access, place, along in ((load, load.operands[0], op), (store, store.operands[1], inner)):
        pitch = dim(access["index"].coeff(along["var"]))
        base = dim(access["index"].xreplace(first))
        count = dim(along["stop"] - start[along["var"]])
        calls.append(f"{w.names[place]} + {index_text(sympy.sympify(base), 1)}, {cpp_index(pitch)}, {cpp_index(count)}")
    w.line(f"im::transpose({', '.join(calls)});")
    return True
