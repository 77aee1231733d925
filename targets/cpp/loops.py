"""Loops as C++: heads, OpenMP's directives, stores past the caches."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from ...ir.dialects import loop
from ...ir.symbols import dim, free_symbols, symbol
from ...ir.syntax import Op
from ..text.walk import is_checked
from .text import cpp_index
from .writer import Writer

STREAMED = 8 * 1024  # bytes that are gathered in the nearest cache, and then written past the caches


def plain_for(w: Writer, op: Op) -> None:
    """A loop as it is, or with results that are gathered before they are written."""
    streams = [o for o in op.block_body.ops if isinstance(o, loop.Store) and o.get("stream")]
    if streams and not w.streams:
        _streamed_for(w, op, streams)
        return
    outside = op["kind"] == "parallel" and not w.in_parallel
    if outside and any(isinstance(o, loop.Store) and o.get("stream") for o in op.block_body.walk()):
        region, pragma = _region(w, op)
        w.line(f"#pragma {region}")
        with w.scope("{", "}"):
            _looped(w, op, pragma)
            w.line("im::streamed();")  # every thread waits for its own writes
    else:
        _looped(w, op, _pragma(w, op))


def _looped(w: Writer, op: Op, pragma: str) -> None:
    if pragma:
        w.line(f"#pragma {pragma}")
    outer, place = w.in_parallel, w.place
    w.in_parallel = outer or op["kind"] == "parallel"
    with w.scope(head_of(op), "}"):
        w.operations(op.block_body.ops)
        w.place = place
    w.in_parallel = outer


def _streamed_for(w: Writer, op: Op, streams: Sequence[loop.Store]) -> None:
    """A loop with results that go to memory past the caches: a piece of each is gathered in the nearest cache first."""
    length = STREAMED // max(s.ref.dtype.bytes for s in streams)
    start, stop = op.get("start", 0), cpp_index(op["stop"])
    trips = dim(op["stop"] - sympy.sympify(start))
    if isinstance(trips, int) and trips <= length:
        _streamed_piece(w, op, streams, int(trips), (cpp_index(start), stop), sympy.sympify(start))
    else:
        begin, end = f"{op['var']}_from", f"{op['var']}_to"
        head = f"for (int64_t {begin} = {cpp_index(start)}; {begin} < {stop}; {begin} += {length}) {{"
        with w.scope(head, "}"):
            w.line(f"const int64_t {end} = im::index_min({stop}, {begin} + {length});")
            _streamed_piece(w, op, streams, length, (begin, end), symbol(begin))
    w.streams.clear()
    if not w.in_parallel:
        w.line("im::streamed();")


def _streamed_piece(
    w: Writer, op: Op, streams: Sequence[loop.Store], length: int, ends: tuple[str, str], first: sympy.Expr
) -> None:
    """A piece of at most so many elements, from `first` on."""
    var, (begin, end) = op["var"], ends
    place = f"[{var}]" if begin == "0" else f"[{var} - {begin if begin.isidentifier() else f'({begin})'}]"
    for store in streams:
        name = w.fresh("stream")
        w.streams[store] = f"{name}{place}"
        w.line(f"alignas(64) {store.ref.dtype.cpp} {name}[{length}];")
    if pragma := _pragma(w, op):
        w.line(f"#pragma {pragma}")
    with w.scope(f"for (int64_t {var} = {begin}; {var} < {end}; ++{var}) {{", "}"):
        w.operations(op.block_body.ops)
    count = str(length) if begin == cpp_index(op.get("start", 0)) else f"{end} - {begin}"
    for store in streams:
        index = sympy.sympify(store["index"]).xreplace({symbol(str(var)): first})
        w.line(f"im::stream({w.address(store.operands[1], index)}, {w.streams[store].split('[')[0]}, {count});")


def head_of(op: Op) -> str:
    """The line that opens a loop."""
    var, step = op["var"], op.get("step", 1)
    advance = f"++{var}" if step == 1 else f"{var} += {cpp_index(step)}"
    return f"for (int64_t {var} = {cpp_index(op.get('start', 0))}; {var} < {cpp_index(op['stop'])}; {advance}) {{"


def _pragma(w: Writer, op: Op) -> str:
    """The OpenMP directive of a loop, without `#pragma`."""
    if op["kind"] == "parallel" and not w.in_parallel:
        threads, shares = _region(w, op)
        return threads.replace("parallel", "parallel" + shares[3:].removesuffix(" nowait"), 1)
    if op.get("unroll"):
        return f"GCC unroll {op['unroll']}"
    if not op.get("vector") or op["kind"] == "scan":
        return ""
    clauses = []
    if is_checked(op.block_body):
        clauses.append("reduction(| : status)")
    clauses += _reductions(w, op)
    return " ".join(["omp simd", *clauses])


def _region(w: Writer, op: Op) -> tuple[str, str]:
    """The directive of a parallel loop in two parts: the threads, and the loop, after which none waits for the others."""
    reduction = " reduction(| : status)" if w.checks else ""
    nested = _nested(op)
    collapse = f" collapse({nested})" if nested > 1 else ""
    return f"omp parallel{_enough(op)}{reduction}", f"omp for{collapse} schedule(static) nowait"


def _enough(op: Op) -> str:
    """The clause that keeps a loop with few iterations on one thread, where that is known only when it runs."""
    if not op.get("grain"):
        return ""
    start = op.get("start", 0)
    span = cpp_index(op["stop"]) + (f" - ({cpp_index(start)})" if start != 0 else "")
    return f" if({span} >= {op['grain'] * op.get('step', 1)})"


def _nested(op: Op) -> int:
    """How many parallel loops stand directly inside one another, with bounds that do not depend on each other."""
    depth, variables = 1, {op["var"]}
    while len(op.block_body.ops) == 1:
        inner = op.block_body.first_op
        if not isinstance(inner, loop.For) or inner["kind"] != "parallel":
            break
        if free_symbols((inner.get("start", 0), inner["stop"])) & variables:
            break
        depth, op = depth + 1, inner
        variables.add(inner["var"])
    return depth


def _reductions(w: Writer, op: Op) -> list[str]:
    """A reduction clause for each register that the loop accumulates into."""
    found: dict[str, str] = {}
    for inner in op.block_body.walk():
        if isinstance(inner, loop.Accumulate) and loop.is_register(inner.operands[1]):
            found[w.names[inner.operands[1]]] = _OMP_REDUCTION[inner["kind"]]
    return [f"reduction({how} : {name})" for name, how in found.items()]


_OMP_REDUCTION = {"sum": "+", "prod": "*", "max": "im_max", "min": "im_min", "any": "|", "all": "&"}
