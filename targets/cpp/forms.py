"""The text of loops, by their form: a loop's own, or a better one that `choose-forms` has found it fit for."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from xdsl.ir import Operation

from ...ir.dialects import loop
from ...ir.scalars import identity
from ...ir.symbols import dim, symbol
from ...ir.syntax import Op
from ...passes.schedule.cpu.forms import far_angles
from ...passes.schedule.kernels import needed_for
from ..text.walk import dtype_of
from .loops import head_of, plain_for
from .text import cpp_constant, cpp_index, index_text
from .writer import JOINS, Writer

SCANNED = 256  # elements of a running reduction that are joined at a time, in the nearest cache


def loop_for(w: Writer, op: Op) -> None:
    """A loop, in its form."""
    _FORMS[op.get("form")](w, op)


def _near_angles(w: Writer, op: Op) -> None:
    """A loop whose angles are known to be near zero."""
    w.near = True
    plain_for(w, op)
    w.near = False


def _measured_angles(w: Writer, op: Op) -> None:
    """A loop that looks for the largest angles, and then the loop for any angles or for those near zero."""
    angles = far_angles(op.block_body)
    largest = {}
    for dtype, bits in (("f32", "int32_t"), ("f64", "int64_t")):
        if any(dtype_of(value).name == dtype for value in angles):
            largest[dtype] = w.fresh("largest")
            w.line(f"{bits} {largest[dtype]} = 0;")
    w.line(f"#pragma omp simd reduction(max : {', '.join(largest.values())})")
    with w.scope(head_of(op), "}"):
        w.plainly(needed_for(angles, list(op.block_body.ops)))
        for value in angles:
            name = largest[dtype_of(value).name]
            w.line(f"{name} = im::max({name}, im::magnitude({w.names[value]}));")
    with w.scope(f"if ({' | '.join(f'im::is_far({name})' for name in largest.values())}) {{"):
        plain_for(w, op)
    with w.scope("} else {", "}"):
        _near_angles(w, op)


def _extreme(w: Writer, op: Op) -> None:
    """A loop of one argmax or argmin in two loops that vectorise: the extreme value, then its first place."""
    *before, last = op.block_body.ops
    assert isinstance(last, loop.Accumulate)
    value, at, best, best_at = last.operands
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
            w.plainly(o for o in before if not isinstance(o, loop.Accumulate))
            w.line(join.format(extreme=extreme, first=first, how=how, value=w.names[value], at=w.names[at]))
    for o in before:
        if isinstance(o, loop.Accumulate):  # the extreme for itself
            name = w.names[o.operands[1]]
            w.line(f"{name} = im::{how}({name}, {extreme});")
    a, b = w.names[best], w.names[best_at]
    w.line(f"if (im::arg_{how}_wins({extreme}, {first}, {a}, {b})) {{ {a} = {extreme}; {b} = {first}; }}")


def _arg_rows(w: Writer, op: Op) -> None:
    """argmax or argmin of the columns of memory, a loop over rows around one over columns: one call."""
    inner = op.block_body.last_op
    assert isinstance(inner, loop.For)
    load, join = inner.block_body.ops
    assert isinstance(load, loop.Load) and isinstance(join, loop.Accumulate)
    row, lane = (symbol(str(v)) for v in (op["var"], inner["var"]))
    pitch = dim(sympy.sympify(load["index"]).coeff(row))
    start = {row: sympy.sympify(op.get("start", 0)), lane: sympy.sympify(inner.get("start", 0))}
    rows, lanes = (dim(each["stop"] - start[var]) for each, var in ((op, row), (inner, lane)))
    places = [(load.operands[0], load["index"]), *((memory, join["index"]) for memory in join.operands[2:])]
    values, *arrays = (w.address(memory, sympy.sympify(index).xreplace(start)) for memory, index in places)
    texts = [values, *(cpp_index(e) for e in (pitch, rows, dim(start[row]))), *arrays, cpp_index(lanes)]
    w.line(f"im::arg_rows<im::{JOINS[join['kind'][3:]]}>({', '.join(texts)});")


def _blocked_scan(w: Writer, op: Op) -> None:
    """A running reduction of pure operations, block by block: compute what is joined, join it in registers, use the results.

    The first and the last part are vector loops. What both need is computed twice.
    """
    body = list(op.block_body.ops)
    join = next(o for o in body if isinstance(o, loop.Accumulate))
    value, carry = join.operands
    before, after = body[: body.index(join)], body[body.index(join) + 1 :]
    result = next(o for o in after if isinstance(o, loop.Load) and o.operands[0] is carry)
    run, var, stop = w.fresh("run"), op["var"], cpp_index(op["stop"])
    here, name, how = f"{run}[{var} - {run}_from]", w.names[carry], JOINS[join["kind"]]
    head = f"for (int64_t {var} = {run}_from; {var} < {run}_to; ++{var}) {{"
    start = cpp_index(op.get("start", 0))
    with w.scope(f"for (int64_t {run}_from = {start}; {run}_from < {stop}; {run}_from += {SCANNED}) {{", "}"):
        w.line(f"const int64_t {run}_to = im::index_min({stop}, {run}_from + {SCANNED});")
        w.line(f"alignas(64) {dtype_of(value).cpp} {run}[{SCANNED}];")
        w.line("#pragma omp simd")
        with w.scope(head, "}"):
            w.plainly(before)
            w.line(f"{here} = {w.names[value]};")
        w.line(f"{name} = im::scan<im::{how}>({run}, {run}_to - {run}_from, {name});")
        w.line("#pragma omp simd")
        with w.scope(head, "}"):
            used: list[Operation] = needed_for([v for o in after for v in o.operands], before)
            for inner in [*used, *after]:
                if inner is result:
                    w.value(result, here)
                else:
                    w.plainly([inner])


def _transpose(w: Writer, op: Op) -> None:
    """Two loops that only copy, reading along one and writing along the other: one call."""
    inner = op.block_body.first_op
    assert isinstance(inner, loop.For)
    load, store = inner.block_body.ops
    assert isinstance(load, loop.Load) and isinstance(store, loop.Store)
    start = {op["var"]: op.get("start", 0), inner["var"]: inner.get("start", 0)}
    first = {v: sympy.sympify(e) for v, e in start.items()}
    calls = []
    for access, place, along in ((load, load.operands[0], op), (store, store.operands[1], inner)):
        pitch = dim(access["index"].coeff(along["var"]))
        base = dim(access["index"].xreplace(first))
        count = dim(along["stop"] - start[along["var"]])
        calls.append(f"{w.names[place]} + {index_text(sympy.sympify(base), 1)}, {cpp_index(pitch)}, {cpp_index(count)}")
    w.line(f"im::transpose({', '.join(calls)});")


_FORMS: dict[str | None, Callable[[Writer, Op], None]] = {
    None: plain_for,
    "near_angles": _near_angles,
    "measured_angles": _measured_angles,
    "extreme": _extreme,
    "arg_rows": _arg_rows,
    "blocked_scan": _blocked_scan,
    "transpose": _transpose,
}
