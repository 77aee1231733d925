"""From loops to C++ text: a table of operations and one walk.

One `loop.kernel` becomes one function `extern "C" int name(const T* in..., T* out..., int64_t size...)` that returns 0, with 1 when
a `loop.bind` met an index outside its dimension, and with 2 when memory was lacking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import DType
from ...ir.scalars import REDUCES, identity
from ...ir.symbols import Dim, dim, free_symbols, symbol
from ...ir.syntax import Op, comment_of, location_of
from ...ir.types import RefType, ScalarType
from .angles import FUNCTIONS, Angles, find_angles
from .moves import moved
from .text import constant_bits, cpp_cast, cpp_constant, cpp_index, index_text

PRELUDE = '#include "intarsia_kernel.h"\n'
STACK_BYTES = 64 * 1024  # scratch of a kernel up to this size in all lives on the stack: threads may have little of it
STREAMED = 8 * 1024  # bytes that are gathered in the nearest cache, and then written past the caches
SCANNED = 256  # elements of a running reduction that are joined at a time, in the nearest cache
_PURE = (loop.Load, loop.ScalarOp, loop.ScalarCast, loop.Constant, loop.Index)


def emit_unit(kernels: Iterable[loop.Kernel]) -> str:
    """The text of one translation unit."""
    body = "".join("\n" + emit_kernel(kernel) for kernel in kernels)
    return PRELUDE + body


def kernels_of(module: ModuleOp) -> list[loop.Kernel]:
    """The kernels of a module, in order."""
    return [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]


def parameters(kernel: loop.Kernel) -> list[str]:
    """The C++ parameters of a kernel, in the order in which they are passed."""
    inputs = kernel["inputs"]
    written = _written(kernel.block_body)
    found = []
    for i, argument in enumerate(kernel.block_body.args):
        assert isinstance(argument.type, RefType)
        constness = "const " if i < inputs and argument not in written else ""
        found.append(f"{constness}{argument.type.dtype.cpp}* {_argument_name(i, inputs)}")
    return found + [f"int64_t {name}" for name in kernel.get("symbols", ())]


def _argument_name(position: int, inputs: int) -> str:
    return f"in{position}" if position < inputs else f"out{position - inputs}"


def _written(block: Block) -> set[SSAValue]:
    found: set[SSAValue] = set()
    for op in block.walk():
        if isinstance(op, loop.Store | loop.Accumulate):
            found.update(v for v in op.operands if isinstance(v.type, RefType))
    return found


def emit_kernel(kernel: loop.Kernel) -> str:
    """The text of one function."""
    writer = _Writer(stack=_on_stack(kernel))
    for i, argument in enumerate(kernel.block_body.args):
        writer.names[argument] = _argument_name(i, kernel["inputs"])
    lines = kernel.get("lines", ())
    comment = f"// from {comment_of(', '.join(lines))}\n" if lines else ""
    writer.moved = moved(kernel.block_body)
    writer.checks = any(isinstance(op, loop.Bind) and op.is_checked for op in kernel.block_body.walk())
    if writer.checks:
        writer.line("int status = 0;")
    if uses_heap(kernel):
        writer.line("const int before = im::shortages_so_far();")
    writer.block(kernel.block_body)
    codes = [*(["status"] if writer.checks else []), *(["im::lacked(before)"] if uses_heap(kernel) else [])]
    writer.line(f"return {' | '.join(codes) or '0'};")
    head = f'extern "C" int {kernel["sym_name"]}({", ".join(parameters(kernel))}) {{'
    return "\n".join([comment + head, *writer.text, "}", ""])


def uses_heap(kernel: loop.Kernel) -> bool:
    """Whether a kernel takes memory that may be lacking: scratch of unknown size, or beyond what may lie on the stack."""
    return len(_on_stack(kernel)) < len(_scratch(kernel))


def _scratch(kernel: loop.Kernel) -> list[loop.Local]:
    return [op for op in kernel.block_body.walk() if isinstance(op, loop.Local) and op["size"] != 1]


def _on_stack(kernel: loop.Kernel) -> set[Operation]:
    """The scratch that lies on the stack, small ones first: the compiler knows that nothing else points there."""
    sizes = [(_bytes(op), k, op) for k, op in enumerate(_scratch(kernel)) if isinstance(op["size"], int)]
    found: set[Operation] = set()
    left = STACK_BYTES
    for size, _, op in sorted(sizes):
        left -= size
        if left >= 0:
            found.add(op)
    return found


def _bytes(op: loop.Local) -> int:
    ref = op.results[0].type
    assert isinstance(ref, RefType)
    return int(op["size"] * ref.dtype.bytes)


@dataclass
class _Writer:
    """The function being written."""

    text: list[str] = field(default_factory=list)
    names: dict[SSAValue, str] = field(default_factory=dict)
    registers: set[SSAValue] = field(default_factory=set)  # scratch of one element: a variable, not an array
    moved: dict[SSAValue, DType] = field(default_factory=dict)  # held as the bits of their half type
    depth: int = 1
    count: int = 0
    checks: bool = False
    in_parallel: bool = False
    near: bool = False  # angles are known to be small
    streams: dict[Operation, str] = field(
        default_factory=dict
    )  # stores that go to memory past the caches: their elements
    place: tuple[str, int] | None = None
    stack: set[Operation] = field(default_factory=set)  # the scratch that lies there

    def line(self, text: str) -> None:
        self.text.append("  " * self.depth + text if text else "")

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def value(self, op: Op, expression: str) -> None:
        """Bind the result of an operation to a named constant."""
        name = self.fresh("t")
        result = op.results[0]
        assert isinstance(result.type, ScalarType)
        self.names[result] = name
        kind = "uint16_t" if result in self.moved else result.type.dtype.cpp
        self.line(f"const {kind} {name} = {expression};")

    def block(self, block: Block) -> None:
        for op in block.ops:
            assert isinstance(op, Op)
            place = location_of(op)
            if place is not None and place != self.place and not isinstance(op, loop.For | loop.Local):
                self.place = place
                self.line(f"// {comment_of(f'{place[0]}:{place[1]}')}")
            _EMIT[op.name](self, op)

    def element(self, memory: SSAValue, index: Dim) -> str:
        """The text of one element of memory."""
        name = self.names[memory]
        return name if memory in self.registers else f"{name}[{cpp_index(index)}]"


def _for(w: _Writer, op: Op) -> None:
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
        _plain_for(w, op)
        return
    if not angles.values:
        w.near = True
        _plain_for(w, op)
        w.near = False
        return
    w.line(f"if ({' | '.join(_far_angles(w, op, angles))}) {{")
    w.depth += 1
    _plain_for(w, op)
    w.depth, w.near = w.depth - 1, True
    w.line("} else {")
    w.depth += 1
    _plain_for(w, op)
    w.depth, w.near = w.depth - 1, False
    w.line("}")


def _far_angles(w: _Writer, op: Op, angles: Angles) -> list[str]:
    """A loop that looks for the largest angles; the conditions that one of them is far from zero."""
    largest = {}
    for dtype, bits in (("f32", "int32_t"), ("f64", "int64_t")):
        if any(_dtype(value).name == dtype for value in angles.values):
            largest[dtype] = w.fresh("largest")
            w.line(f"{bits} {largest[dtype]} = 0;")
    w.line(f"#pragma omp simd reduction(max : {', '.join(largest.values())})")
    w.line(_head(op))
    w.depth += 1
    for inner in angles.needed:
        _EMIT[inner.name](w, cast(Op, inner))
    for value in angles.values:
        name = largest[_dtype(value).name]
        w.line(f"{name} = im::max({name}, im::magnitude({w.names[value]}));")
    w.depth -= 1
    w.line("}")
    return [f"im::is_far({name})" for name in largest.values()]


def _dtype(value: SSAValue) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def _plain_for(w: _Writer, op: Op) -> None:
    streams = [o for o in op.block_body.ops if isinstance(o, loop.Store) and o.get("stream")]
    if streams and not w.streams:
        _streamed_for(w, op, streams)
        return
    outside = op["kind"] == "parallel" and not w.in_parallel
    fenced = outside and any(isinstance(o, loop.Store) and o.get("stream") for o in op.block_body.walk())
    pragma = _pragma(w, op)
    if fenced:  # every thread waits for its own writes
        region, pragma = _region(w, op)
        w.line(f"#pragma {region}")
        w.line("{")
        w.depth += 1
    if pragma:
        w.line(f"#pragma {pragma}")
    w.line(_head(op))
    outer, w.in_parallel = w.in_parallel, w.in_parallel or op["kind"] == "parallel"
    place = w.place
    w.depth += 1
    w.block(op.block_body)
    w.depth -= 1
    w.in_parallel, w.place = outer, place
    w.line("}")
    if fenced:
        w.line("im::streamed();")
        w.depth -= 1
        w.line("}")


def _streamed_for(w: _Writer, op: Op, streams: Sequence[loop.Store]) -> None:
    """A loop with results that go to memory past the caches: a piece of each is gathered in the nearest cache first."""
    var, start = op["var"], op.get("start", 0)
    length = STREAMED // max(s.ref.dtype.bytes for s in streams)
    trips = dim(op["stop"] - sympy.sympify(start))
    stop = cpp_index(op["stop"])
    pieces = not isinstance(trips, int) or trips > length
    begin, end = (f"{var}_from", f"{var}_to") if pieces else (cpp_index(start), stop)
    if pieces:
        w.line(f"for (int64_t {begin} = {cpp_index(start)}; {begin} < {stop}; {begin} += {length}) {{")
        w.depth += 1
        w.line(f"const int64_t {end} = im::index_min({stop}, {begin} + {length});")
    else:
        length = int(trips)
    place = f"[{var}]" if begin == "0" else f"[{var} - {begin if begin.isidentifier() else f'({begin})'}]"
    for store in streams:
        name = w.fresh("stream")
        w.streams[store] = f"{name}{place}"
        w.line(f"alignas(64) {store.ref.dtype.cpp} {name}[{length}];")
    pragma = _pragma(w, op)
    if pragma:
        w.line(f"#pragma {pragma}")
    w.line(f"for (int64_t {var} = {begin}; {var} < {end}; ++{var}) {{")
    w.depth += 1
    w.block(op.block_body)
    w.depth -= 1
    w.line("}")
    for store in streams:
        index = sympy.sympify(store["index"]).xreplace(
            {symbol(str(var)): symbol(begin) if pieces else sympy.sympify(start)}
        )
        count = f"{end} - {begin}" if pieces else str(length)
        w.line(f"im::stream({_place(w, store.operands[1], index)}, {w.streams[store].split('[')[0]}, {count});")
    w.streams.clear()
    if pieces:
        w.depth -= 1
        w.line("}")
    if not w.in_parallel:
        w.line("im::streamed();")


def _first_extreme(w: _Writer, op: Op) -> bool:
    """A loop of one argmax or argmin and pure operations, in two loops that vectorise: the extreme value, then its first place.

    The same extreme may be accumulated for itself, too.
    """
    *before, last = op.block_body.ops
    if not isinstance(last, loop.Accumulate) or last["kind"] not in ("argmax", "argmin"):
        return False
    pure = [o for o in before if isinstance(o, _PURE)]
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
    w.line(f"{_dtype(value).cpp} {extreme} = {cpp_constant(identity(how, _dtype(value)), _dtype(value))};")
    w.line(f"int64_t {first} = INT64_MAX;")
    for clause, join in (
        (f"im_{how} : {extreme}", "{extreme} = im::{how}({extreme}, {value});"),
        (
            f"min : {first}",
            "{first} = im::index_min({first}, ({value} == {extreme}) | ({value} != {value}) ? {at} : INT64_MAX);",
        ),
    ):
        w.line(f"#pragma omp simd reduction({clause})")
        w.line(_head(op))
        w.depth += 1
        for inner in pure:
            _EMIT[inner.name](w, cast(Op, inner))
        w.line(join.format(extreme=extreme, first=first, how=how, value=w.names[value], at=w.names[at]))
        w.depth -= 1
        w.line("}")
    for o in plain:
        name = w.names[o.operands[1]]
        w.line(f"{name} = im::{how}({name}, {extreme});")
    a, b = w.names[best], w.names[best_at]
    w.line(f"if (im::arg_{how}_wins({extreme}, {first}, {a}, {b})) {{ {a} = {extreme}; {b} = {first}; }}")
    return True


def _arg_rows(w: _Writer, op: Op) -> bool:
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
    if dtype != _dtype(value) or dtype.bytes < 4 or best in w.registers or free_symbols([join["index"]]) & {row}:
        return False
    rows, lanes = (dim(each["stop"] - start[var]) for each, var in ((op, row), (inner, lane)))
    places = [(load.operands[0], load["index"]), (best, join["index"]), (best_at, join["index"])]
    values, *arrays = (_place(w, memory, sympy.sympify(index).xreplace(start)) for memory, index in places)
    texts = [values, *(cpp_index(e) for e in (pitch, rows, dim(start[row]))), *arrays, cpp_index(lanes)]
    w.line(f"im::arg_rows<im::{_JOINS[join['kind'][3:]]}>({', '.join(texts)});")
    return True


def _place(w: _Writer, memory: SSAValue, index: sympy.Expr) -> str:
    """The text of the address of an element."""
    return w.names[memory] if index == 0 else f"{w.names[memory]} + {index_text(index, 1)}"


def _blocked_scan(w: _Writer, op: Op) -> bool:
    """A running reduction of pure operations, block by block: compute what is joined, join it in registers, use the results.

    The first and the last part are vector loops. What both need is computed twice.
    """
    body = list(op.block_body.ops)
    joins = [o for o in body if isinstance(o, loop.Accumulate)]
    if len(joins) != 1 or any(not isinstance(o, (*_PURE, loop.Store, loop.Accumulate)) for o in body):
        return False
    (join,) = joins
    at = body.index(join)
    value, carry = join.operands
    dtype = _dtype(value)
    if carry not in w.registers or dtype.kind == "bool" or dtype.bytes < 4 or join["kind"] not in _JOINS:
        return False
    before, after = body[:at], body[at + 1 :]
    results = [o for o in after if isinstance(o, loop.Load) and o.operands[0] is carry]
    if len(results) != 1 or any(isinstance(o, loop.Store) for o in before):
        return False
    trips = dim(op["stop"] - sympy.sympify(op.get("start", 0)))
    if isinstance(trips, int) and trips < SCANNED // 8:
        return False
    run, var, stop = w.fresh("run"), op["var"], cpp_index(op["stop"])
    w.line(
        f"for (int64_t {run}_from = {cpp_index(op.get('start', 0))}; {run}_from < {stop}; {run}_from += {SCANNED}) {{"
    )
    w.depth += 1
    w.line(f"const int64_t {run}_to = im::index_min({stop}, {run}_from + {SCANNED});")
    w.line(f"alignas(64) {dtype.cpp} {run}[{SCANNED}];")
    head = f"for (int64_t {var} = {run}_from; {var} < {run}_to; ++{var}) {{"
    needed = _needed(after, before)
    for part, ops in enumerate((before, [*needed, *after])):
        w.line("#pragma omp simd")
        w.line(head)
        w.depth += 1
        for inner in ops:
            if inner is results[0]:
                w.value(cast(Op, inner), f"{run}[{var} - {run}_from]")
            else:
                _EMIT[inner.name](w, cast(Op, inner))
        if part == 0:
            w.line(f"{run}[{var} - {run}_from] = {w.names[value]};")
        w.depth -= 1
        w.line("}")
        if part == 0:
            name = w.names[carry]
            w.line(f"{name} = im::scan<im::{_JOINS[join['kind']]}>({run}, {run}_to - {run}_from, {name});")
    w.depth -= 1
    w.line("}")
    return True


_JOINS = {"sum": "Sum", "prod": "Product", "max": "Largest", "min": "Smallest"}


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


def _head(op: Op) -> str:
    """The line that opens a loop."""
    var, step = op["var"], op.get("step", 1)
    advance = f"++{var}" if step == 1 else f"{var} += {cpp_index(step)}"
    return f"for (int64_t {var} = {cpp_index(op.get('start', 0))}; {var} < {cpp_index(op['stop'])}; {advance}) {{"


def _transpose(w: _Writer, op: Op) -> bool:
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


def _pragma(w: _Writer, op: Op) -> str:
    """The OpenMP directive of a loop, without `#pragma`."""
    if op["kind"] == "parallel" and not w.in_parallel:
        threads, shares = _region(w, op)
        return threads.replace("parallel", "parallel" + shares[3:].removesuffix(" nowait"), 1)
    if op.get("unroll"):
        return f"GCC unroll {op['unroll']}"
    if not op.get("vector") or op["kind"] == "scan":
        return ""
    clauses = []
    if any(isinstance(inner, loop.Bind) and inner.is_checked for inner in op.block_body.walk()):
        clauses.append("reduction(| : status)")
    clauses += _reductions(w, op)
    return " ".join(["omp simd", *clauses])


def _region(w: _Writer, op: Op) -> tuple[str, str]:
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


def _reductions(w: _Writer, op: Op) -> list[str]:
    """A reduction clause for each register that the loop accumulates into."""
    found: dict[str, str] = {}
    for inner in op.block_body.walk():
        if isinstance(inner, loop.Accumulate) and inner.operands[1] in w.registers:
            found[w.names[inner.operands[1]]] = _OMP_REDUCTION[inner["kind"]]
    return [f"reduction({how} : {name})" for name, how in found.items()]


_OMP_REDUCTION = {"sum": "+", "prod": "*", "max": "im_max", "min": "im_min", "any": "|", "all": "&"}


def _local(w: _Writer, op: Op) -> None:
    ref = op.results[0].type
    assert isinstance(ref, RefType)
    size, value = op["size"], op.get("value")
    # Reductions into bytes vectorise, into bools they do not.
    cpp = "uint8_t" if ref.dtype.kind == "bool" else ref.dtype.cpp
    start = None if value is None else cpp_constant(value, ref.dtype)
    name = w.fresh("acc" if size == 1 else "scratch")
    w.names[op.results[0]] = name
    if size == 1:
        w.registers.add(op.results[0])
        w.line(f"{cpp} {name} = {start};" if start is not None else f"{cpp} {name};")
        return
    if op in w.stack:
        w.line(f"alignas(64) {cpp} {name}[{size}];")
    else:
        w.line(f"im::Scratch<{cpp}> {name}_memory({cpp_index(size)});")
        w.line(f"{cpp}* const {name} = {name}_memory.data;")
        w.line(f"if (!{name}) {'continue' if w.depth > 1 else 'return im::lacked_memory'};")
    if start is not None:
        w.line("#pragma omp simd")
        w.line(f"for (int64_t k = 0; k < {cpp_index(size)}; ++k) {name}[k] = {start};")


def _mask(op: Op) -> str:
    return " & ".join(f"({cpp_index(e)} >= 0)" for e in op["mask"])


def _load(w: _Writer, op: Op) -> None:
    text, result = w.element(op.operands[0], op["index"]), op.results[0].type
    assert isinstance(result, ScalarType)
    if result.dtype.kind == "bool":
        text = f"im::truth({text})"
    if op.results[0] in w.moved:
        text = f"{text}.bits"
        if op.get("mask"):
            text = f"({_mask(op)}) ? {text} : {constant_bits(op.get('other', 0), w.moved[op.results[0]])}"
    elif op.get("mask"):
        other = cpp_constant(op.get("other", 0), result.dtype)
        text = f"({_mask(op)}) ? {result.dtype.cpp}({text}) : {other}"
    w.value(op, text)


def _store(w: _Writer, op: Op) -> None:
    ref, source = op.operands[1].type, op.operands[0].type
    assert isinstance(ref, RefType) and isinstance(source, ScalarType)
    text, target = w.names[op.operands[0]], w.streams.get(op) or w.element(op.operands[1], op["index"])
    if op.operands[0] in w.moved:
        target = f"{target}.bits"
    elif ref.dtype != source.dtype:
        text = cpp_cast(text, source.dtype, ref.dtype)
    guard = f"if ({_mask(op)}) " if op.get("mask") else ""
    w.line(f"{guard}{target} = {text};")


def _accumulate(w: _Writer, op: Op) -> None:
    kind = op["kind"]
    if kind in ("argmax", "argmin"):
        value, at = w.names[op.operands[0]], w.names[op.operands[1]]
        best, best_at = (w.element(m, op["index"]) for m in op.operands[2:])
        w.line(
            f"if (im::arg_{kind[3:]}_wins({value}, {at}, {best}, {best_at})) {{ {best} = {value}; {best_at} = {at}; }}"
        )
        return
    target, value = w.element(op.operands[1], op["index"]), w.names[op.operands[0]]
    combine = REDUCES[kind].combine
    assert combine is not None
    ref = op.operands[1].type
    if isinstance(op.operands[1].owner, loop.Local) and isinstance(ref, RefType) and ref.dtype.kind == "bool":
        value = f"uint8_t({value})"
    w.line(f"{target} = {_SCALAR_TEXT[combine].format(target, value)};")


def _bind(w: _Writer, op: Op) -> None:
    var, size = op["var"], cpp_index(op["size"])
    w.line(f"int64_t {var} = {w.names[op.operands[0]]};")
    if op.get("inside"):
        return
    if op.get("wrap"):
        w.line(f"{var} += {var} < 0 ? {size} : 0;")
    w.line(f"const bool {var}_outside = ({var} < 0) | ({var} >= {size});")
    guard = f" & {_mask(op)}" if op.get("mask") else ""
    w.line(f"status |= {var}_outside{guard};")
    w.line(f"{var} = {var}_outside ? 0 : {var};")


def _prefetch(w: _Writer, op: Op) -> None:
    start = index_text(sympy.sympify(op["index"]), 1)
    w.line(f"im::prefetch({w.names[op.operands[0]]} + {start}, {cpp_index(op['count'])});")


def _index(w: _Writer, op: Op) -> None:
    result = op.results[0].type
    assert isinstance(result, ScalarType)
    w.value(op, f"static_cast<{result.dtype.cpp}>({cpp_index(op['value'])})")


def _constant(w: _Writer, op: Op) -> None:
    result = op.results[0].type
    assert isinstance(result, ScalarType)
    w.names[op.results[0]] = cpp_constant(op["value"], result.dtype)  # written where it is used


def _cast(w: _Writer, op: Op) -> None:
    source, result = op.operands[0].type, op.results[0].type
    assert isinstance(source, ScalarType) and isinstance(result, ScalarType)
    if op.results[0] in w.moved:
        w.names[op.results[0]] = w.names[op.operands[0]]
        return
    w.value(op, cpp_cast(w.names[op.operands[0]], source.dtype, result.dtype))


def _scalar(w: _Writer, op: Op) -> None:
    assert isinstance(op, loop.ScalarOp)
    text = _SCALAR_TEXT[op.row.name]
    if op.row.name == "where" and _dtype(op.results[0]).kind == "bool":
        text = "({0} & {1}) | (!{0} & {2})"  # of a ternary over bools gcc makes a branch
    if w.near and op.row.name in FUNCTIONS:
        text = text.replace("(", "_small(", 1)
    names = [w.names[v] for v in op.operands]
    half = w.moved.get(op.results[0])
    if half is not None:
        text = "{0} ^ 0x8000" if op.row.name == "neg" else text
        constants = [v.owner["value"] if isinstance(v.owner, loop.Constant) else None for v in op.operands]
        names = [
            n if c is None or k == 0 else constant_bits(c, half)
            for k, (n, c) in enumerate(zip(names, constants, strict=True))
        ]
    w.value(op, text.format(*names))


_SCALAR_TEXT = {name: cls.row.cpp for name, cls in loop.SCALAR_OPS.items()}

_EMIT: dict[str, Callable[[_Writer, Op], None]] = {
    "loop.for": _for,
    "loop.local": _local,
    "loop.load": _load,
    "loop.store": _store,
    "loop.accumulate": _accumulate,
    "loop.bind": _bind,
    "loop.prefetch": _prefetch,
    "loop.index": _index,
    "scalar.constant": _constant,
    "scalar.cast": _cast,
    **{f"scalar.{name}": _scalar for name in loop.SCALAR_OPS},
}


def uses(kernel: loop.Kernel) -> set[str]:
    """Names of the size symbols that a kernel's text mentions."""
    found: set[str] = set()
    for op in kernel.block_body.walk():
        assert isinstance(op, Op)
        for value in op.literals.values():
            items = value if isinstance(value, tuple) else (value,)
            found |= {s.name for s in free_symbols(i for i in items if isinstance(i, sympy.Expr))}
    return found
