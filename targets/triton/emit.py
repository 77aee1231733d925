"""From loops to Triton text: loops with `block = n` become tensors of n elements along one axis, one walk writes the rest.

One `loop.kernel` becomes one function `def name(in0, ..., out0, ..., size, ...)`. Program ids stand for parallel loops, the last one
fastest. Every value has one axis for each loop that is a tensor, of length 1 where it does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import sympy
from xdsl.ir import Block, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import F32, DType
from ...ir.scalars import JOINT, REDUCES, identity
from ...ir.symbols import Dim, FloorDiv, bounds, dim, known_equal
from ...ir.syntax import Op, location_of
from ...ir.types import RefType, ScalarType
from ...passes.blocks import most
from ..index_text import IndexSyntax
from .dot import dot_loop, product_in

PRELUDE = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\nfrom intarsia.targets.triton.language import *  # noqa: F403\n"
INT32_MAX = 2**31 - 1


def emit_module(kernels: Iterable[loop.Kernel]) -> str:
    """The text of a module with these kernels."""
    return PRELUDE + "".join("\n\n" + emit_kernel(kernel) for kernel in kernels)


def emit_kernel(kernel: loop.Kernel) -> str:
    """The text of one function."""
    inputs = kernel["inputs"]
    writer = _Writer(wide=needs_int64(kernel))
    names = []
    for i, argument in enumerate(kernel.block_body.args):
        name = f"in{i}" if i < inputs else f"out{i - inputs}"
        writer.names[argument] = name
        names.append(name)
    writer.axes = _axes(kernel.block_body)
    writer.block(kernel.block_body)
    lines = kernel.get("lines", ())
    comment = f"# from {', '.join(lines)}\n" if lines else ""
    head = f"{comment}@triton.jit\ndef {kernel['sym_name']}({', '.join([*names, *kernel.get('symbols', ())])}):"
    return "\n".join([head, *(writer.text or ["    pass"]), ""])


def needs_int64(kernel: loop.Kernel) -> bool:
    """Whether an element's number may not fit into 32 bits. Symbolic sizes are taken to fit; a launch checks that."""
    extents = [_extent(a.type) for a in kernel.block_body.args if isinstance(a.type, RefType)]
    grid = program_count(kernel)
    return any(isinstance(e, int) and e > INT32_MAX for e in (*extents, grid))


def _extent(ref: RefType) -> Dim:
    return dim(1 + sum((size - 1) * stride for size, stride in zip(ref.shape, ref.strides, strict=True)))


def program_count(kernel: loop.Kernel) -> Dim:
    """How many programs a launch has."""
    count: Dim = 1
    for op in kernel.block_body.walk():
        if isinstance(op, loop.For) and op["kind"] == "parallel":
            count = dim(count * _blocks(op))
    return count


def _blocks(op: loop.For) -> Dim:
    size, block = dim(sympy.sympify(op["stop"]) - op.get("start", 0)), op.get("block", 1)
    return size if block == 1 else dim(FloorDiv(sympy.sympify(size + block - 1), sympy.Integer(block)))


def _axes(block: Block) -> dict[loop.For, int]:
    """The axis of each loop that is a tensor: parallel loops first; those within a row share one."""
    found: dict[loop.For, int] = {}
    inner = []
    for op in block.walk():
        if isinstance(op, loop.For) and op.get("block", 1) > 1:
            if op["kind"] == "parallel":
                found[op] = len(found)
            else:
                inner.append(op)
    last = len(found)
    return found | {op: last - 1 if product_in(op) is not None else last for op in inner}


@dataclass
class _Loop:
    """An open loop."""

    op: loop.For
    name: str
    mask: str = ""


@dataclass
class _Accumulator:
    """Scratch of one element a row: what has been joined so far, along the axis of the loop that joins."""

    name: str
    positions: str = ""  # of argmax and argmin


@dataclass
class _Writer:
    """The function being written."""

    wide: bool
    text: list[str] = field(default_factory=list)
    names: dict[SSAValue, str] = field(default_factory=dict)
    axes: dict[loop.For, int] = field(default_factory=dict)
    open: list[_Loop] = field(default_factory=list)
    spans: dict[SSAValue, frozenset[str]] = field(default_factory=dict)  # the loops that a value depends on
    bound: dict[str, tuple[str, frozenset[str]]] = field(
        default_factory=dict
    )  # index variables: text, loops they depend on
    known: dict[str, str] = field(default_factory=dict)  # expression -> the name that holds it
    locals: dict[SSAValue, loop.Local] = field(default_factory=dict)
    scanned: dict[SSAValue, str] = field(
        default_factory=dict
    )  # scratch of a scan: the name of what came before the block
    depth: int = 1
    count: int = 0
    place: tuple[str, int] | None = None
    places: dict[loop.For, str] = field(default_factory=dict)  # the blocks of loops that are not simply counted
    raw: set[loop.Load] = field(default_factory=set)  # what stays in the dtype in which it lies in memory

    @property
    def rank(self) -> int:
        return max(self.axes.values(), default=-1) + 1

    def line(self, text: str) -> None:
        self.text.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def folded(self, op: loop.For) -> str:
        """The shape of a row's block with neighbours that one thread loads at once along an axis of their own."""
        sizes = [e["block"] for e in sorted(self.axes, key=lambda e: self.axes[e]) if e["kind"] == "parallel"]
        narrow = min((load.ref.dtype.bytes for load in op.block_body.walk() if isinstance(load, loop.Load)), default=4)
        together = min(op["block"], max(1, 16 // narrow))
        return f"[{', '.join(map(str, [*sizes, op['block'] // together, together]))}]"

    def spread(self, text: str, spans: frozenset[str]) -> str:
        """A value in the shape of the loops that are open, where it depends on fewer of them."""
        here = {self.axes[each.op] for each in self.open if each.op in self.axes}
        depends = {axis for op, axis in self.axes.items() if op["var"].name in spans}
        if here <= depends and len(here) == self.rank:
            return text
        return f"tl.broadcast_to({text}, {self.row_shape(each.op for each in self.open)})"

    def hold(self, prefix: str, expression: str) -> str:
        """A name for an expression; the same one for the same expression."""
        if expression.isidentifier():
            return expression
        if expression not in self.known:
            name = self.fresh(prefix)
            self.line(f"{name} = {expression}")
            self.known[expression] = name
        return self.known[expression]

    def value(self, op: Op, expression: str, spans: frozenset[str]) -> None:
        self.names[op.results[0]] = self.hold("t", expression)
        self.spans[op.results[0]] = spans

    def operand_spans(self, op: Op) -> frozenset[str]:
        return frozenset().union(*(self.spans.get(v, frozenset()) for v in op.operands))

    def block(self, block: Block) -> None:
        for op in block.ops:
            assert isinstance(op, Op)
            self.operation(op)

    def operation(self, op: Op) -> None:
        place = location_of(op)
        if place is not None and place != self.place and not isinstance(op, loop.For | loop.Local):
            self.place = place
            self.line(f"# {place[0]}:{place[1]}")
        _EMIT[op.name](self, op)

    def opened(self, op: loop.For, name: str, mask: str) -> _Loop:
        return _Loop(op, name, mask)

    # -- indices and masks

    def factor(self, value: Dim) -> str:
        """An index expression as an operand."""
        return str(value) if isinstance(value, int) else f"({self.index(value)})"

    def index(self, value: Dim) -> str:
        """An index expression, with bound variables by their names."""
        return index_text(value, {name: text for name, (text, _) in self.bound.items()})

    def far_index(self, value: Dim) -> str:
        """The same in 64 bits, for numbers that are no places in memory."""
        depends = value.free_symbols if isinstance(value, sympy.Expr) else ()
        wide = {s.name: f"{self.bound[s.name][0]}.to(tl.int64)" for s in depends if s.name in self.bound}
        return index_text(value, wide)

    def index_spans(self, *values: Dim) -> frozenset[str]:
        """The loops that index expressions depend on."""
        found: set[str] = set()
        for value in values:
            for s in value.free_symbols if isinstance(value, sympy.Expr) else ():
                found |= self.bound[s.name][1] if s.name in self.bound else set()
        return frozenset(found)

    def masks(self, spans: Iterable[str]) -> list[str]:
        """The conditions that a point lies within the loops that it depends on."""
        wanted = set(spans)
        return [each.mask for each in self.open if each.mask and each.op["var"].name in wanted]

    def conditions(self, op: Op) -> list[str]:
        return [f"({self.index(c)} >= 0)" for c in op.get("mask", ())]

    def shape(self, axis: int | None) -> str:
        """Text that puts a range along an axis."""
        if self.rank == 1:
            return ""
        return f"[{', '.join(':' if k == axis else 'None' for k in range(self.rank))}]"

    def axes_of(self, spans: frozenset[str]) -> dict[int, int]:
        """The axes of a value that depends on these loops, and its sizes along them."""
        loops = (each.op for each in self.open if each.op in self.axes and each.op["var"].name in spans)
        return {self.axes[op]: op["block"] for op in loops}

    def shape_of(self, spans: frozenset[str]) -> str:
        """The shape of a value that depends on these loops."""
        sizes = self.axes_of(spans)
        return f"[{', '.join(str(sizes.get(k, 1)) for k in range(self.rank))}]"

    def row_shape(self, also: Iterable[loop.For] = ()) -> str:
        """The shape of a value of a row: 1 along the axis within it, but for the loops in `also`."""
        sizes = [1] * self.rank
        for op in [*(each.op for each in self.open if each.op["kind"] == "parallel"), *also]:
            if op in self.axes:
                sizes[self.axes[op]] = op["block"]
        return f"[{', '.join(map(str, sizes))}]"


def _for(w: _Writer, op: Op) -> None:
    assert isinstance(op, loop.For)
    product = product_in(op)
    if op["kind"] == "parallel":
        _parallel(w, op)
    elif product is not None:
        dot_loop(w, op, product, triton_type)
    elif op.get("block", 1) > 1 and _is_one_block(op):
        _walk(w, op, f"{w.index(op.get('start', 0))}" if op.get("start", 0) != 0 else "")
    else:
        _looped(w, op)


def _is_one_block(op: loop.For) -> bool:
    size = dim(sympy.sympify(op["stop"]) - op.get("start", 0))
    return isinstance(size, int) and size <= op["block"]


def _parallel(w: _Writer, op: loop.For) -> None:
    """A loop over the programs of the grid."""
    inner: Dim = 1
    for each in op.block_body.walk():
        if isinstance(each, loop.For) and each["kind"] == "parallel":
            inner = dim(inner * _blocks(each))
    if not w.open:
        program = "tl.program_id(0).to(tl.int64)" if w.wide else "tl.program_id(0)"
        w.line(f"program = {program}")
    text = "program" if inner == 1 else f"program // {w.factor(inner)}"
    if w.open:
        text = f"{text} % {w.factor(_blocks(op))}"
    text = _in_groups(w, op, inner) or w.places.pop(op, "") or text
    block, start = op.get("block", 1), op.get("start", 0)
    if block > 1:
        text = f"{text} * {block}" if text == "program" else f"({text}) * {block}"
    if start != 0:
        text = f"{text} + {w.index(start)}"
    _walk(w, op, text)


def _in_groups(w: _Writer, op: loop.For, inner: Dim) -> str:
    """The block of a loop whose programs take a few of its blocks with each one of the loop inside; that one's is put into `w.places`."""
    within = next((each for each in op.block_body.ops if isinstance(each, loop.For)), None)
    if not op.get("group") or within is None or within["kind"] != "parallel" or not known_equal(inner, _blocks(within)):
        return ""
    count, size = _blocks(op), dim(op["group"] * _blocks(within))
    here = "program" if not w.open else w.hold("p", f"program % {w.factor(dim(count * inner))}")
    first = w.hold("p", f"{here} // {w.factor(size)} * {op['group']}")
    tall = w.hold("p", f"tl.minimum({w.factor(count)} - {first}, {op['group']})")
    place = w.hold("p", f"{here} % {w.factor(size)}")
    w.places[within] = f"{place} // {tall}"
    return f"({first} + {place} % {tall})"


def _walk(w: _Writer, op: loop.For, base: str) -> None:
    """The body of a loop whose variable is one tensor from `base` on, or the number `base` itself."""
    var, block = op["var"].name, op.get("block", 1)
    text = base
    if op in w.axes:
        text = f"tl.arange(0, {block}){w.shape(w.axes[op])}"
        text = f"{base} + {text}" if base else text
    name = w.hold("i", text) if op in w.axes or op["kind"] == "parallel" else text
    size = dim(sympy.sympify(op["stop"]) - op.get("start", 0))
    mask = ""
    if op in w.axes and not (isinstance(size, int) and size % block == 0):
        mask = w.hold("m", f"{name} < {w.index(op['stop'])}")
    outer, place = dict(w.known), w.place
    w.bound[var] = (name, frozenset([var]))
    w.open.append(_Loop(op, name, mask))
    joins = _joined(op)
    w.block(op.block_body)
    for local in joins:
        _finish(w, op, local)
    w.open.pop()
    if op["kind"] != "parallel" and not _is_one_block(op):
        w.known = outer
    w.place = place


def _looped(w: _Writer, op: loop.For) -> None:
    """A loop that a program walks, block by block or one by one."""
    var, block = op["var"].name, op.get("block", 1)
    joins = _joined(op)
    outer = dict(w.known)
    for local in joins:
        _start(w, op, local)
    at = w.fresh("at")
    start, step = op.get("start", 0), f", {block}" if block > 1 else ""
    before = "" if start == 0 else w.hold("i", w.index(start)) + " + "
    w.line(f"for {at} in range(0, {w.index(_longest(op))}{step}):")
    w.depth += 1
    if block > 1:
        _body(w, op, w.hold("r", f"{before}{at} + tl.arange(0, {block}){w.shape(w.axes[op])}"))
    else:
        _body(w, op, f"({before}{at})" if before else at)
    w.depth -= 1
    w.known = outer
    for local in joins:
        _finish(w, op, local)
    w.bound.pop(var, None)


def _longest(op: loop.For) -> Dim:
    """The most iterations of a loop. What is too much for a chunk of a long one is masked."""
    return most(dim(op.get("start", 0)), op["stop"])


def _body(w: _Writer, op: loop.For, name: str) -> None:
    size, most, block = dim(sympy.sympify(op["stop"]) - op.get("start", 0)), _longest(op), op.get("block", 1)
    mask = ""
    if not known_equal(size, most) or (block > 1 and not (isinstance(size, int) and size % block == 0)):
        mask = w.hold("m", f"{name} < {w.index(op['stop'])}")
    w.bound[op["var"].name] = (name, frozenset([op["var"].name]))
    w.open.append(_Loop(op, name, mask))
    place = w.place
    w.block(op.block_body)
    w.place = place
    w.open.pop()


def _joined(op: loop.For) -> list[SSAValue]:
    """The scratch that a loop within a row joins values into, each once."""
    found: dict[SSAValue, None] = {}
    if op["kind"] in ("reduce", "scan"):
        for inner in op.block_body.walk():
            if isinstance(inner, loop.Accumulate):
                found[inner.operands[-1]] = None
    return list(found)


def _accumulates(op: loop.For, memory: SSAValue) -> loop.Accumulate:
    return next(a for a in op.block_body.walk() if isinstance(a, loop.Accumulate) and a.operands[-1] is memory)


def _start(w: _Writer, op: loop.For, memory: SSAValue) -> None:
    """What a loop's scratch holds before it."""
    join = _accumulates(op, memory)
    dtype = _dtype(join.operands[0])
    shape = w.row_shape([op] if op["kind"] == "reduce" else [])
    first = constant_text(identity(join["kind"], dtype), dtype)
    if join["kind"] in JOINT:
        shape = f"{w.folded(op).rpartition(',')[0]}]"
        for place, value in zip(join.operands[1:], JOINT[join["kind"]], strict=True):
            w.names[place] = w.fresh("acc")
            w.line(f"{w.names[place]} = {_full(shape, constant_text(value, dtype), dtype)}")
        return
    name = w.fresh("acc")
    w.names[join.operands[-2] if len(join.operands) == 4 else memory] = name
    w.line(f"{name} = {_full(shape, first, dtype)}")
    if len(join.operands) == 4:
        positions = w.fresh("acc")
        w.names[memory] = positions
        w.line(f"{positions} = {_full(shape, str(INT32_MAX), None)}")


def _full(shape: str, value: str, dtype: DType | None) -> str:
    kind = f"tl.{triton_type(dtype)}" if dtype is not None else "tl.int64"
    return f"tl.full({shape}, {value}, {kind})"


def _finish(w: _Writer, op: loop.For, memory: SSAValue) -> None:
    """Join what the scratch holds along the axis of the loop."""
    if op not in w.axes or op["kind"] == "scan":
        return
    join = _accumulates(op, memory)
    axis, kind = w.axes[op], join["kind"]
    if kind in JOINT:
        made = [w.fresh("t") for _ in join.operands[1:]]
        parts = ", ".join(w.names[m] for m in join.operands[1:])
        w.line(f"{', '.join(made)} = tl.reduce(({parts}), {axis}, {kind}_join, keep_dims=True)")
        w.line(f"{', '.join(made)} = {kind}_end({', '.join(made)})")
        w.names.update(zip(join.operands[1:], made, strict=True))
        return
    if len(join.operands) == 4:
        values, name = join.operands[-2], w.fresh("best")
        pair = f"({w.names[values]}, {w.names[memory]})"
        w.line(f"{name}, {name}_at = tl.reduce({pair}, {axis}, {kind}_pair, keep_dims=True)")
        w.names[values], w.names[memory] = name, f"{name}_at"
        return
    text = w.names[memory]
    combine = REDUCES[kind].combine
    if _dtype(join.operands[0]).kind == "bool":
        text = f"{text}.to(tl.int8)"
    reduced = f"tl.reduce({text}, {axis}, {combine}_, keep_dims=True)"
    if _dtype(join.operands[0]).kind == "bool":
        reduced += " != 0"
    w.names[memory] = w.hold("t", reduced)


def _local(w: _Writer, op: Op) -> None:
    assert isinstance(op, loop.Local)
    if op["size"] != 1:
        raise TypeError(f"no Triton text for scratch of {op['size']} elements")
    w.locals[op.results[0]] = op


def _load(w: _Writer, op: Op) -> None:
    memory = op.operands[0]
    if memory in w.locals:
        rows = frozenset(each.op["var"].name for each in w.open if each.op["kind"] == "parallel")
        w.names[op.results[0]] = w.names[memory]
        w.spans[op.results[0]] = w.spans.get(memory, rows)
        return
    ref, result = memory.type, op.results[0].type
    assert isinstance(ref, RefType) and isinstance(result, ScalarType)
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans) + w.conditions(op)
    address = w.names[memory] if op["index"] == 0 else f"{w.names[memory]} + {_place(w, op['index'])}"
    if masks and w.axes_of(spans) != w.axes_of(w.index_spans(op["index"])):  # a mask is not larger than the addresses
        address = f"tl.broadcast_to({address}, {w.shape_of(spans)})"
    text = f"tl.load({address}"
    if masks:
        other = constant_text(op.get("other", False if ref.dtype.kind == "bool" else 0), ref.dtype, exact=False)
        text += f", mask={' & '.join(masks)}, other={other}"
    text += ")"
    if ref.dtype != result.dtype and op not in w.raw:
        text += f".to(tl.{triton_type(result.dtype)})"
    w.value(op, text, spans)


def _place(w: _Writer, index: Dim) -> str:
    text = w.index(index)
    return f"({text})" if any(c in text for c in " ") else text


def _store(w: _Writer, op: Op) -> None:
    value, memory = op.operands
    ref = memory.type
    assert isinstance(ref, RefType)
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans | w.spans.get(value, frozenset())) + w.conditions(op)
    address = w.names[memory] if op["index"] == 0 else f"{w.names[memory]} + {_place(w, op['index'])}"
    text = w.names[value]
    if _dtype(value) != ref.dtype:
        text = f"{_as_tensor(value, text)}.to(tl.{triton_type(ref.dtype)})"
    if w.rank:  # addresses and values have the same shape
        text = w.spread(_as_tensor(value, text), w.spans.get(value, frozenset()))
        address = w.spread(address, spans)
    w.line(f"tl.store({address}, {text}{', mask=' + ' & '.join(masks) if masks else ''})")


def _as_tensor(value: SSAValue, text: str) -> str:
    """A constant as a tensor, so that it has methods."""
    if isinstance(value.owner, loop.Constant):
        return _full("[]", text, _dtype(value))
    return text


def _accumulate(w: _Writer, op: Op) -> None:
    kind, memory = op["kind"], op.operands[-1]
    if not w.open or w.open[-1].op["kind"] == "parallel":  # a loop of one iteration is none: nothing came before
        for place, source in zip(
            op.operands[len(op.operands) // 2 :], op.operands[: len(op.operands) // 2], strict=True
        ):
            w.names[place] = _as_tensor(source, w.names[source])
            w.spans[place] = w.spans.get(source, frozenset())
        return
    around = w.open[-1].op
    value, dtype = w.names[op.operands[0]], _dtype(op.operands[0])
    spans = frozenset(each.op["var"].name for each in w.open)
    blocked = around in w.axes
    if w.rank:
        value = w.hold("t", w.spread(_as_tensor(op.operands[0], value), w.spans.get(op.operands[0], frozenset())))
    if kind in JOINT:
        _accumulate_joint(w, op, around, value)
        return
    first = constant_text(identity(kind, dtype), dtype)
    mask = w.masks(spans & {around["var"].name})
    if mask:
        value = w.hold("t", f"tl.where({' & '.join(mask)}, {value}, {first})")
    whole = blocked and _is_one_block(around)
    if around["kind"] == "scan":
        _scan(w, op, around, value, whole)
        return
    if len(op.operands) == 4:
        position = w.names[op.operands[1]]
        if w.rank:
            position = w.hold("t", f"tl.broadcast_to({position}, {w.row_shape([around])}).to(tl.int64)")
        if whole:
            w.names[op.operands[2]], w.names[memory] = value, position
            return
        pair = f"{w.names[op.operands[2]]}, {w.names[memory]}"
        w.line(f"{pair} = {kind}_pair({pair}, {value}, {position})")
        return
    if whole:
        w.names[memory] = value
        return
    combine = REDUCES[kind].combine
    assert combine is not None
    w.line(f"{w.names[memory]} = {scalar_text(combine, [w.names[memory], value])}")


def _accumulate_joint(w: _Writer, op: Op, around: loop.For, value: str) -> None:
    """Join what a thread has of a block, a few neighbours, among themselves first: its accumulators are few then."""
    if around not in w.axes or _is_one_block(around):
        raise TypeError(f"no Triton text for {op['kind']} in a loop that is no walk over blocks")
    mask = w.masks({around["var"].name})
    folded = w.folded(around)
    value = w.hold("t", f"tl.reshape({value}, {folded})")
    inside = "True"
    if mask:
        inside = w.hold("m", f"tl.reshape(tl.broadcast_to({' & '.join(mask)}, {w.row_shape([around])}), {folded})")
    parts = ", ".join(w.names[m] for m in op.operands[1:])
    w.line(f"{parts} = {op['kind']}_add({parts}, {value}, {inside})")


def _scan(w: _Writer, op: Op, around: loop.For, value: str, whole: bool) -> None:
    """Join a block to what came before along the loop; the scratch then has the value at each element."""
    kind, memory = op["kind"], op.operands[-1]
    combine = REDUCES[kind].combine
    assert combine is not None
    spans = frozenset(each.op["var"].name for each in w.open)
    w.spans[memory] = spans
    if around not in w.axes:
        w.line(f"{w.names[memory]} = {scalar_text(combine, [w.names[memory], value])}")
        return
    axis = w.axes[around]
    as_int = _dtype(op.operands[0]).kind == "bool"
    text = f"{value}.to(tl.int8)" if as_int else value
    here = w.hold("t", f"tl.associative_scan({text}, {axis}, {combine}_){' != 0' if as_int else ''}")
    if whole:
        w.names[memory] = here
        return
    carry = w.names[memory]
    joined = w.hold("t", scalar_text(combine, [carry, here]))
    total = f"tl.reduce({text}, {axis}, {combine}_, keep_dims=True){' != 0' if as_int else ''}"
    w.line(f"{carry} = {scalar_text(combine, [carry, total])}")
    w.names[memory] = joined
    w.scanned[memory] = carry


def _bind(w: _Writer, op: Op) -> None:
    var, size = op["var"].name, w.index(op["size"])
    text = w.names[op.operands[0]]
    if op.get("wrap"):
        text = w.hold("t", f"tl.where({text} < 0, {text} + {size}, {text})")
    spans = w.spans.get(op.operands[0], frozenset())
    if op.get("inside"):
        narrow = not w.wide and _dtype(op.operands[0]).bytes > 4
        w.bound[var] = (w.hold("t", f"{text}.to(tl.int32)") if narrow else text, spans)
        return
    inside = f"({text} >= 0) & ({text} < {size})"
    allowed = [f"({c} == 0)" for c in [*w.masks(spans), *w.conditions(op)]]
    w.line(f'tl.device_assert({" | ".join([f"({inside})", *allowed])}, "index out of range")')
    w.bound[var] = (w.hold("t", f"tl.where({inside}, {text}, 0)"), spans)


def _prefetch(w: _Writer, op: Op) -> None:
    """Blocks are prefetched by the hardware's other programs."""


def _index(w: _Writer, op: Op) -> None:
    spans = w.index_spans(op["value"])
    far = not w.wide and _dtype(op.results[0]).bytes == 8 and not _fits(w, op["value"])
    text = w.far_index(op["value"]) if far else w.index(op["value"])
    if not spans:
        w.value(op, _full("[]", text, _dtype(op.results[0])), spans)
    else:
        w.value(op, f"({text}).to(tl.{triton_type(_dtype(op.results[0]))})", spans)


def _fits(w: _Writer, value: Dim) -> bool:
    """Whether a number that is no place in memory is known to fit into 32 bits."""
    low, high = bounds(value, {each.op["var"]: (0, dim(each.op["stop"] - 1)) for each in w.open})
    return isinstance(low, int) and isinstance(high, int) and low >= -INT32_MAX and high <= INT32_MAX


def _constant(w: _Writer, op: Op) -> None:
    dtype = _dtype(op.results[0])
    value = op["value"]
    if isinstance(value, sympy.Expr) and not value.is_number:
        text = _full("[]", w.index(value), dtype)
    else:
        text = constant_text(value, dtype)
    w.names[op.results[0]] = text
    w.spans[op.results[0]] = frozenset()


def _cast(w: _Writer, op: Op) -> None:
    source, target = _dtype(op.operands[0]), _dtype(op.results[0])
    text = _as_tensor(op.operands[0], w.names[op.operands[0]])
    if source == target:
        expression = text
    elif target.kind == "bool":
        expression = f"{text} != 0"
    else:
        expression = f"{text}.to(tl.{triton_type(target)})"
    w.value(op, expression, w.operand_spans(op))


def _scalar(w: _Writer, op: Op) -> None:
    assert isinstance(op, loop.ScalarOp)
    if _is_one_more(op):
        return
    for value in op.operands if op.row.name == "add" else ():
        if isinstance(value.owner, loop.ScalarOp) and _is_one_more(value.owner):
            inner = value.owner
            name = w.names[inner.operands[0]]
            w.value(op, f"one_plus_{inner.row.name}({name})", w.operand_spans(inner))
            return
    names = [w.names[v] for v in op.operands]
    if op.row.name in _OF_TENSORS or all(isinstance(v.owner, loop.Constant) for v in op.operands):
        names = [_as_tensor(v, n) for v, n in zip(op.operands, names, strict=True)]
    dtype = _dtype(op.operands[-1])
    w.value(op, scalar_text(op.row.name, names, dtype), w.operand_spans(op))


# Their functions ask operands for their dtypes.
def _is_one_more(op: loop.ScalarOp) -> bool:
    """Whether a value in float32 is only used as 1 + it, for which there is a faster way: the two forms of gelu."""
    if (
        op.row.name not in ("erf", "tanh")
        or _dtype(op.results[0]) != F32
        or isinstance(op.operands[0].owner, loop.Constant)
    ):
        return False
    uses = list(op.results[0].uses)
    for use in uses:
        other = use.operation.operands[1 - use.index] if use.operation.name == "scalar.add" else None
        if other is None or not isinstance(other.owner, loop.Constant) or other.owner["value"] != 1.0:
            return False
    return bool(uses)


_OF_TENSORS = ("floordiv", "mod", "sign", "sqrt", "pow", "shl", "shr", "philox")


def scalar_text(name: str, names: Sequence[str], dtype: DType | None = None) -> str:
    """The text of one row of the scalar table."""
    row = loop.SCALAR_OPS[name].row
    if dtype is not None and dtype.is_integer:
        special = {"not": "{0} == 0"} if dtype.kind == "bool" else {"fmod": "{0} % {1}", "pow": "int_pow({0}, {1})"}
        if name in special:
            return special[name].format(*names)
    return row.triton.format(*(n if _is_simple(n) else f"({n})" for n in names))


def _is_simple(text: str) -> bool:
    return text.replace("_", "a").replace(".", "a").isalnum() or text.startswith("tl.full(")


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


def _dtype(value: SSAValue) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


_TYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "int1"}
_POINTERS = {"f64": "fp64", "f32": "fp32", "bool": "i1"} | {"f16": "fp16"}


def triton_type(dtype: DType) -> str:
    """The name of a dtype in `triton.language`."""
    return _TYPES.get(dtype.name) or f"{'uint' if dtype.kind == 'uint' else 'int'}{8 * dtype.bytes}"


def pointer_type(dtype: DType) -> str:
    """The name of a pointer to a dtype in a kernel's signature."""
    return "*" + _POINTERS.get(dtype.name, dtype.name)


def constant_text(value: object, dtype: DType, exact: bool = True) -> str:
    """A number of that dtype; `exact`: with a type of its own where a plain number would take another."""
    if isinstance(value, sympy.Expr):
        value = int(value) if value.is_Integer else float(value)
    assert isinstance(value, int | float)
    if dtype.kind == "bool":
        text = "True" if value else "False"
        return f"tl.full([], {int(bool(value))}, tl.int1)" if exact else text
    if dtype.is_float:
        number = float(value)
        if math.isnan(number):
            text = 'float("nan")'
        elif math.isinf(number) or dtype.name != "f64" and abs(number) > 3.4028235677973366e38:
            text = f'float("{"-" if number < 0 else ""}inf")'
        else:
            text = repr(number)
        return f"tl.full([], {text}, tl.float64)" if exact and dtype.name == "f64" else text
    text = str(int(value))
    return text if not exact or dtype.name == "i32" else f"tl.full([], {text}, tl.{triton_type(dtype)})"


def index_text(value: Dim, names: dict[str, str]) -> str:
    """An index expression as Triton text, variables by their `names`."""

    def name(symbol: str) -> tuple[str, bool]:
        text = names.get(symbol, symbol)
        return text, _is_simple(text)

    return IndexSyntax("Triton", ("//", "%"), ("floordiv", "mod", "tl.maximum", "tl.minimum"), name).text(value)
