"""From loops to Triton text: loops with `block = n` become tensors of n elements along one axis, one walk writes the rest.

One `loop.kernel` becomes one function `def name(in0, ..., out0, ..., size, ...)`; of several loop nests each has a part of the grid. Program ids stand for parallel loops, the last one
fastest. Every value has one axis for each loop that is a tensor, of length 1 where it does not depend on it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy
import torch
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import BOOL, F32
from ...ir.symbols import Dim, FloorDiv, Mod, bounds, dim, known_equal
from ...ir.syntax import Op, comment_of, location_of
from ...ir.types import RefType, ScalarType
from ...passes.analysis.size_names import names_of
from .descriptors import descriptors
from .dot import dot_loop, product_in
from .parts import blocks, emit_parts, nests_of, program_count, programs_of_a_row, tiles_of
from .reductions import accumulate, exchange, fills, finish_join, start_join, sum_dtype
from .text import as_tensor, constant_text, converted, dtype_of, full, index_text, scalar_text, triton_type
from .writer import OpenLoop, Writer, is_one_block, joined, longest, whole_blocks

PRELUDE = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\nfrom intarsia.targets.triton.language import *  # noqa: F403\n"
INT32_MAX = 2**31 - 1
LARGE = 1 << 20  # elements; the loads of a smaller kernel take no time


def emit_module(kernels: Iterable[loop.Kernel]) -> str:
    """The text of a module with these kernels."""
    return PRELUDE + "".join("\n\n" + emit_kernel(kernel) for kernel in kernels)


def emit_kernel(kernel: loop.Kernel) -> str:
    """The text of one function; of several, where the kernel's programs are shared out between loop nests."""
    inputs, ops = kernel["inputs"], list(kernel.block_body.ops)
    arguments: dict[SSAValue, str] = {}
    for i, argument in enumerate(kernel.block_body.args):
        arguments[argument] = f"in{i}" if i < inputs else f"out{i - inputs}"
    lines = kernel.get("lines", ())
    comment = f"# from {comment_of(', '.join(lines))}\n" if lines else ""
    if len(nests_of(kernel)) > 1:
        return comment + emit_parts(kernel, arguments, needs_int64(kernel), _function)
    writer = Writer(wide=needs_int64(kernel), contract=kernel.get("contract", True))
    maps = descriptors(kernel)
    if maps:
        writer.described = {each.load: each for each in maps}
        others = [*kernel.get("symbols", ()), *(each.name for each in maps)]
        return comment + _function(writer, kernel["sym_name"], arguments, others, ops)
    name, symbols, aligned = kernel["sym_name"], tuple(kernel.get("symbols", ())), _aligned(kernel)
    if not aligned:
        return comment + _function(writer, name, arguments, symbols, ops)
    # Sizes that are multiples of 16 are written so that Triton sees it: loads are then as wide as for known sizes.
    memory = list(arguments.values())
    inner = [*memory, *(f"{s} // 16 * 16" if s in aligned else s for s in symbols)]
    lines = [f"if {' and '.join(f'{s} % 16 == 0' for s in aligned)}:", f"    {name}_body({', '.join(inner)})", "else:"]
    lines.append(f"    {name}_body({', '.join([*memory, *symbols])})")
    body = _function(writer, f"{name}_body", arguments, symbols, ops)
    head = f"@triton.jit\ndef {name}({', '.join([*memory, *symbols])}):"
    return f"{comment}{body}\n\n" + "\n".join([head, *(f"    {line}" for line in lines), ""])


def _aligned(kernel: loop.Kernel) -> list[str]:
    """Size symbols such that all places that neighbours in memory begin at are multiples of 16 if these are."""
    symbols = set(kernel.get("symbols", ()))
    found: dict[frozenset[str], None] = {}  # the symbols of terms that are not multiples of 16 themselves
    for op in kernel.block_body.walk():
        values = [op["index"]] if isinstance(op, loop.Load | loop.Store) else []
        if isinstance(op, loop.For) and op["kind"] != "parallel" and op.get("block", 1) > 1:
            values = [op.get("start", 0), op["stop"]]
        for value in [v for v in values if isinstance(v, sympy.Expr)]:
            divisors = [part.args[1] for part in value.atoms(FloorDiv, Mod)]
            for term in [t for v in (value, *divisors) for t in sympy.Add.make_args(sympy.expand(v))]:
                factor, rest = term.as_coeff_Mul()
                factors = (
                    f.as_base_exp()[0] for f in sympy.Mul.make_args(rest)
                )  # a size within a division says nothing
                names = frozenset(str(f) for f in factors if f.is_Symbol) & symbols
                if names and factor % 16 != 0:
                    found[names] = None
    chosen: list[str] = []
    while left := [names for names in found if not names & set(chosen)]:
        chosen.append(max(sorted(set().union(*left)), key=lambda s: sum(s in names for names in left)))
    return chosen


def _function(
    w: Writer, name: str, arguments: Mapping[SSAValue, str], others: Iterable[str], ops: Sequence[Operation]
) -> str:
    """The text of a function of these operations; `arguments` are memory."""
    w.names.update(arguments)
    w.axes = _axes(ops)
    w.shared = _shared(ops)
    w.sizes = names_of(size for a in arguments if isinstance(a.type, RefType) for size in a.type.shape)
    _operations(w, ops)
    used = set(re.findall(r"\bsize\d+\b", "\n".join(w.text)))
    sizes = [f"    {n} = {index_text(size, {})}" for n, size in w.sizes.sizes.items() if n.name in used]
    head = f"@triton.jit\ndef {name}({', '.join([*arguments.values(), *others])}):"
    return "\n".join([head, *sizes, *(w.text or ["    pass"]), ""])


def needs_int64(kernel: loop.Kernel) -> bool:
    """Whether an element's number may not fit into 32 bits. Symbolic sizes are taken to fit; a launch checks that."""
    extents = [_extent(a.type) for a in kernel.block_body.args if isinstance(a.type, RefType)]
    grid = program_count(kernel)
    return any(isinstance(e, int) and e > INT32_MAX for e in (*extents, grid))


def _extent(ref: RefType) -> Dim:
    return dim(1 + sum((size - 1) * stride for size, stride in zip(ref.shape, ref.strides, strict=True)))


def _axes(ops: Iterable[Operation]) -> dict[loop.For, int]:
    """The axis of each loop that is a tensor: parallel loops first; those within a row share one."""
    found: dict[loop.For, int] = {}
    inner = []
    for op in (each for outer in ops for each in outer.walk()):
        if isinstance(op, loop.For) and op.get("block", 1) > 1:
            if op["kind"] == "parallel":
                found[op] = len(found)
            else:
                inner.append(op)
    last = len(found)
    return found | {op: last - 1 if product_in(op) is not None else last for op in inner}


def _block(w: Writer, block: Block) -> None:
    _operations(w, block.ops)


def _operations(w: Writer, ops: Iterable[Operation]) -> None:
    """Operations one after another, each behind the user's line that it comes from."""
    for op in ops:
        assert isinstance(op, Op)
        _operation(w, op)


def _operation(w: Writer, op: Op) -> None:
    place = location_of(op)
    if place is not None and place != w.place and not isinstance(op, loop.For | loop.Local):
        w.place = place
        w.line(f"# {comment_of(f'{place[0]}:{place[1]}')}")
    _EMIT[op.name](w, op)


def _for(w: Writer, op: Op) -> None:
    assert isinstance(op, loop.For)
    product = product_in(op)
    if op.get("persistent"):
        _persistent(w, op)
    elif op["kind"] == "parallel":
        _parallel(w, op)
    elif op.get("cooperative"):
        _cooperative(w, op)
    elif product is not None:
        dot_loop(w, op, product, _operation)
    elif op.get("block", 1) > 1 and is_one_block(op):
        _walk(w, op, f"{w.index(op.get('start', 0))}" if op.get("start", 0) != 0 else "")
    else:
        _looped(w, op)


def _parallel(w: Writer, op: loop.For) -> None:
    """A loop over the programs of the grid."""
    inner: Dim = 1
    for each in op.block_body.walk():
        if isinstance(each, loop.For) and each["kind"] == "parallel":
            inner = dim(inner * blocks(each))
    inner = dim(inner * programs_of_a_row(op.block_body))
    _program(w)
    if op in w.axes and blocks(op) == 1 and op not in w.places and not op.get("group"):
        _walk(w, op, "" if op.get("start", 0) == 0 else w.index(op["start"]))
        return
    text = "program" if inner == 1 else f"program // {w.factor(inner)}"
    if w.open:
        text = f"{text} % {w.factor(blocks(op))}"
    text = _in_groups(w, op, inner) or w.places.pop(op, "") or text
    block, start = op.get("block", 1), op.get("start", 0)
    if block > 1:
        text = f"{text} * {block}" if text == "program" else f"({text}) * {block}"
    if start != 0:
        text = f"{text} + {w.index(start)}"
    if any(each.row is op for each in w.described.values()):
        text = w.hold("b", text)
        w.bases[op] = w.hold("b", f"{text}.to(tl.int32)") if w.wide else text
    _walk(w, op, text)


def _persistent(w: Writer, op: loop.For) -> None:
    """The loop of a program over its share of the tiles; in Triton it is one with the loop inside, whose loads run ahead of it."""
    tile = "tile" if w.wide else "program"
    w.line(f"for {tile} in tl.range(tl.program_id(0), {w.index(tiles_of(op))}, tl.num_programs(0), flatten=True):")
    w.depth += 1
    if w.wide:
        w.line("program = tile.to(tl.int64)")
    w.known["tl.program_id(0).to(tl.int64)" if w.wide else "tl.program_id(0)"] = "program"
    _parallel(w, op)
    w.depth -= 1


def _program(w: Writer) -> None:
    """The number of the program, in front of its loops."""
    if not w.open and not w.numbered:
        w.hold("p", "tl.program_id(0).to(tl.int64)" if w.wide else "tl.program_id(0)", "program")


def _cooperative(w: Writer, op: loop.For) -> None:
    """A loop whose iterations are programs of one row."""
    _program(w)
    name = w.hold("i", f"program % {op['stop']}") if w.open else "program"
    w.bound[op["var"].name] = (name, frozenset([op["var"].name]))
    w.open.append(OpenLoop(op, name))
    _block(w, op.block_body)
    w.open.pop()


def _in_groups(w: Writer, op: loop.For, inner: Dim) -> str:
    """The block of a loop whose programs take a few of its blocks with each one of the loop inside; that one's is put into `w.places`."""
    within = next((each for each in op.block_body.ops if isinstance(each, loop.For)), None)
    if not op.get("group") or within is None or within["kind"] != "parallel" or not known_equal(inner, blocks(within)):
        return ""
    count, size = blocks(op), dim(op["group"] * blocks(within))
    here = "program" if not w.open else w.hold("p", f"program % {w.factor(dim(count * inner))}")
    first = w.hold("p", f"{here} // {w.factor(size)} * {op['group']}")
    tall = w.hold("p", f"tl.minimum({w.factor(count)} - {first}, {op['group']})")
    place = w.hold("p", f"{here} % {w.factor(size)}")
    w.places[within] = f"{place} // {tall}"
    return f"{first} + {place} % {tall}"


def _walk(w: Writer, op: loop.For, base: str) -> None:
    """The body of a loop whose variable is one tensor from `base` on, or the number `base` itself."""
    var, block = op["var"].name, op.get("block", 1)
    text = base
    if op in w.axes:
        text = f"tl.arange(0, {block}){w.shape(w.axes[op])}"
        text = f"{base} + {text}" if base else text
        if op.get("apart"):
            text = f"tl.max_contiguous({text}, [{', '.join(['1'] * w.rank)}])"
    name = w.hold("i", text) if op in w.axes or op["kind"] == "parallel" else text
    size = dim(sympy.sympify(op["stop"]) - op.get("start", 0))
    outer, place = dict(w.known), w.place
    w.bound[var] = (name, frozenset([var]))
    if _is_in_two(w, op, size):
        for line in (f"if {base} + {block} <= {w.index(op['stop'])}:", "else:"):
            w.known, w.place = dict(outer), place
            w.line(line)
            w.depth += 1
            _inside(w, op, name, masked=line == "else:")
            w.depth -= 1
        w.known = outer
    else:
        _inside(w, op, name, masked=op in w.axes and not (isinstance(size, int) and size % block == 0))
        if op["kind"] != "parallel" and not is_one_block(op):
            w.known = outer
    w.place = place


def _inside(w: Writer, op: loop.For, name: str, masked: bool) -> None:
    """The body of a loop whose variable is `name`."""
    mask = w.hold("m", f"{name} < {w.index(_bound(op))}") if masked else ""
    w.open.append(OpenLoop(op, name, mask))
    joins = joined(op)
    _block(w, op.block_body)
    for local in joins:
        finish_join(w, op, local)
    w.open.pop()


def _bound(op: loop.For) -> Dim:
    """What a block must stay below: of the ends of a part of a row, the end of the block says nothing."""
    stop, end = op["stop"], dim(op.get("start", 0) + op.get("block", 1))
    if not isinstance(stop, sympy.Min):
        return stop
    ends = [each for each in stop.args if not known_equal(dim(each), end)]
    return dim(sympy.Min(*ends)) if ends else stop


def _is_in_two(w: Writer, op: loop.For, size: Dim) -> bool:
    """Whether the last block of many has a text of its own: its mask would end within what a thread loads at once, and keep all loads small."""
    if op["kind"] != "parallel" or op not in w.axes or w.rank != 1 or w.numbered:
        return False
    if isinstance(size, int) and (size < LARGE or size % 16 == 0 or size % op["block"] == 0):
        return False
    return not any(isinstance(each, loop.For | loop.Bind) for each in op.block_body.walk())


def _looped(w: Writer, op: loop.For) -> None:
    """A loop that a program walks, block by block or one by one."""
    var, block = op["var"].name, op.get("block", 1)
    joins = joined(op)
    outer = dict(w.known)
    for local in joins:
        start_join(w, op, local)
    at = w.fresh("at")
    start, step = op.get("start", 0), f", {block}" if block > 1 else ""
    before = "" if start == 0 else w.hold("i", w.index(start)) + " + "
    whole = whole_blocks(op)
    w.line(f"for {at} in range(0, {w.index(longest(op) if whole is None else whole)}{step}):")
    w.depth += 1
    if block > 1:
        _body(w, op, w.hold("r", f"{before}{at} + tl.arange(0, {block}){w.shape(w.axes[op])}"), whole is None)
    else:
        _body(w, op, f"({before}{at})" if before else at)
    w.depth -= 1
    if whole is not None and not known_equal(whole, longest(op)):
        w.known = dict(outer)
        _body(w, op, w.hold("r", f"{before}{_place(w, whole)} + tl.arange(0, {block}){w.shape(w.axes[op])}"))
    w.known = outer
    for local in joins:
        finish_join(w, op, local)
    w.bound.pop(var, None)


def _body(w: Writer, op: loop.For, name: str, masked: bool = True) -> None:
    size, most, block = dim(sympy.sympify(op["stop"]) - op.get("start", 0)), longest(op), op.get("block", 1)
    mask = ""
    if masked and (not known_equal(size, most) or (block > 1 and not (isinstance(size, int) and size % block == 0))):
        mask = w.hold("m", f"{name} < {w.index(op['stop'])}")
    w.bound[op["var"].name] = (name, frozenset([op["var"].name]))
    w.open.append(OpenLoop(op, name, mask))
    place = w.place
    _block(w, op.block_body)
    w.place = place
    w.open.pop()


def _local(w: Writer, op: Op) -> None:
    """A register, or what one block of a loop within the row stores: a tensor, too."""
    assert isinstance(op, loop.Local)
    if op["size"] != 1 and not all(isinstance(use.operation, loop.Load | loop.Store) for use in op.results[0].uses):
        raise TypeError(f"no Triton text for scratch of {op['size']} elements")
    w.locals[op.results[0]] = op


def _load(w: Writer, op: Op) -> None:
    memory = op.operands[0]
    if memory in w.locals:
        rows = frozenset(each.op["var"].name for each in w.open if each.op["kind"] == "parallel")
        w.names[op.results[0]] = w.names[memory]
        w.spans[op.results[0]] = w.spans.get(memory, rows) | w.index_spans(op["index"])
        return
    ref, result = memory.type, op.results[0].type
    assert isinstance(ref, RefType) and isinstance(result, ScalarType)
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans) + w.conditions(op)
    address = _address(w, memory, op["index"])
    whole = spans | _rows_beside(w, spans)
    if whole != spans or masks and w.axes_of(spans) != w.axes_of(w.index_spans(op["index"])):
        address = f"tl.broadcast_to({address}, {w.shape_of(whole)})"  # a mask is not larger than the addresses

    def text(other: object) -> str:
        mask = f", mask={' & '.join(masks)}, other={constant_text(other, ref.dtype, exact=False)}" if masks else ""
        loaded = f"tl.load({address}{mask})"
        return converted(loaded, ref.dtype, result.dtype) if ref.dtype != result.dtype and op not in w.raw else loaded

    others = [op["other"]] if op.get("mask") else fills(op, ref.dtype)
    other = next((o for o in others if text(o) in w.known), others[0])  # what was read before is not read again
    w.fills[op.results[0]] = other
    w.value(op, text(other), whole)


def _rows_beside(w: Writer, spans: frozenset[str]) -> frozenset[str]:
    """The rows of a program, for a load that is the same for all of them (a weight): loaded once for each, it lies among the threads as they do.

    Loaded once, it would lie otherwise, and Triton would move it, or what it meets, through shared memory.
    """
    if len(w.open) != 2 or w.rank != 2 or w.open[0].op["kind"] != "parallel" or w.open[1].op["kind"] == "parallel":
        return frozenset()
    rows, line = (each.op for each in w.open)
    held = rows in w.axes and line in w.axes and is_one_block(line) and spans == {line["var"].name}
    return frozenset([rows["var"].name]) if held else frozenset()


def _address(w: Writer, memory: SSAValue, index: Dim) -> str:
    """Where an element lies. Places that are a number apart share what is computed, and the number becomes part of the instruction."""
    if index == 0:
        return w.names[memory]
    apart, rest = sympy.sympify(index).as_coeff_Add()
    if (memory, rest) not in w.shared:
        return f"{w.names[memory]} + {_place(w, index)}"
    first = w.hold("p", f"{w.names[memory]} + {_place(w, dim(rest))}")
    return f"{first} {'-' if apart < 0 else '+'} {abs(apart)}" if apart else first


MOST_SHARED = 3  # places


def _shared(ops: Iterable[Operation]) -> frozenset[tuple[SSAValue, sympy.Expr]]:
    """Memories, and places in them up to a number, that many loads or stores have."""
    found: Counter[tuple[SSAValue, sympy.Expr]] = Counter()
    for op in (each for outer in ops for each in outer.walk()):
        if isinstance(op, loop.Load | loop.Store):
            rest = sympy.sympify(op["index"]).as_coeff_Add()[1]
            if rest != 0:
                found[op.operands[op.memory], rest] += 1
    return frozenset(place for place, count in found.items() if count > MOST_SHARED)


def _place(w: Writer, index: Dim) -> str:
    text = w.index(index)
    return f"({text})" if any(c in text for c in " ") else text


def _store(w: Writer, op: Op) -> None:
    value, memory = op.operands
    ref = memory.type
    assert isinstance(ref, RefType)
    if memory in w.locals:
        _keep(w, value, memory, op["index"])
        return
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans | w.spans.get(value, frozenset())) + w.conditions(op)
    address = _address(w, memory, op["index"])
    text = w.names[value]
    if dtype_of(value) != ref.dtype:
        text = converted(as_tensor(value, text), dtype_of(value), ref.dtype)
    if w.rank:  # addresses and values have the same shape
        text = w.spread(as_tensor(value, text), w.spans.get(value, frozenset()))
        address = w.spread(address, spans)
    w.line(f"tl.store({address}, {text}{', mask=' + ' & '.join(masks) if masks else ''})")


def _keep(w: Writer, value: SSAValue, memory: SSAValue, index: Dim) -> None:
    """Scratch of the elements of one block: other loops over as many read them by their own variables."""
    around = w.open[-1].op if w.open else None
    if around is None or index != around["var"] or around not in w.axes or not is_one_block(around):
        raise TypeError("no Triton text for scratch that is not stored by one block of a loop")
    w.names[memory] = as_tensor(value, w.names[value])
    w.spans[memory] = w.spans.get(value, frozenset()) - {around["var"].name}


def _atomic(w: Writer, op: Op) -> None:
    value, memory = op.operands
    spans = w.index_spans(op["index"]) | w.spans.get(value, frozenset())
    masks = w.masks(spans)
    address = _address(w, memory, op["index"])
    text = as_tensor(value, w.names[value])
    if w.rank:
        text, address = w.spread(text, w.spans.get(value, frozenset())), w.spread(address, w.index_spans(op["index"]))
    if op["kind"] != "sum":
        raise TypeError(f"no Triton text for atomics of kind {op['kind']}")
    w.line(f'tl.atomic_add({address}, {text}{", mask=" + " & ".join(masks) if masks else ""}, sem="relaxed")')


def _bind(w: Writer, op: Op) -> None:
    var, size = op["var"].name, w.index(op["size"])
    text = w.names[op.operands[0]]
    if op.get("wrap"):
        text = w.hold("t", f"tl.where({text} < 0, {text} + {size}, {text})")
    spans = w.spans.get(op.operands[0], frozenset())
    if op.get("inside"):
        narrow = not w.wide and dtype_of(op.operands[0]).bytes > 4
        w.bound[var] = (w.hold("t", f"{text}.to(tl.int32)") if narrow else text, spans)
        return
    inside = f"({text} >= 0) & ({text} < {size})"
    allowed = [f"({c} == 0)" for c in [*w.masks(spans), *w.conditions(op)]]
    w.line(f'tl.device_assert({" | ".join([f"({inside})", *allowed])}, "index out of range")')
    w.bound[var] = (w.hold("t", f"tl.where({inside}, {text}, 0)"), spans)


def _prefetch(w: Writer, op: Op) -> None:
    """Blocks are prefetched by the hardware's other programs."""


def _index(w: Writer, op: Op) -> None:
    if op.results[0].uses and all(_is_condition(use.operation) for use in op.results[0].uses):
        return
    spans = w.index_spans(op["value"])
    far = not w.wide and dtype_of(op.results[0]).bytes == 8 and not _fits(w, op["value"])
    text = w.far_index(op["value"]) if far else w.index(op["value"])
    if not spans:
        w.value(op, full("[]", text, dtype_of(op.results[0])), spans)
    else:
        w.value(op, f"({text}).to(tl.{triton_type(dtype_of(op.results[0]))})", spans)


def _fits(w: Writer, value: Dim) -> bool:
    """Whether a number that is no place in memory is known to fit into 32 bits."""
    low, high = bounds(value, {each.op["var"]: (0, dim(each.op["stop"] - 1)) for each in w.open})
    return isinstance(low, int) and isinstance(high, int) and low >= -INT32_MAX and high <= INT32_MAX


def _is_condition(op: Operation) -> bool:
    """Whether an operation asks that an index expression that varies is not negative."""
    if not isinstance(op, loop.ScalarOp) or op.row.name != "ge":
        return False
    index, zero = (v.owner for v in op.operands)
    varies = isinstance(index, loop.Index) and isinstance(index["value"], sympy.Expr)
    return varies and isinstance(zero, loop.Constant) and zero["value"] == 0


def _constant(w: Writer, op: Op) -> None:
    dtype = dtype_of(op.results[0])
    value = op["value"]
    if isinstance(value, sympy.Expr) and not value.is_number:
        text = full("[]", w.index(value), dtype)
    else:
        text = constant_text(value, dtype)
    w.names[op.results[0]] = text
    w.spans[op.results[0]] = frozenset()


def _cast(w: Writer, op: Op) -> None:
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    for use in op.results[0].uses:
        target = sum_dtype(use.operation) if isinstance(use.operation, loop.Accumulate) else target
    text = as_tensor(op.operands[0], w.names[op.operands[0]])
    if source == target:
        expression = text
    elif target.kind == "bool":
        expression = f"{text} != 0"
    else:
        expression = converted(text, source, target)
    w.value(op, expression, w.operand_spans(op))


def _scalar(w: Writer, op: Op) -> None:
    assert isinstance(op, loop.ScalarOp)
    if _is_condition(op):
        value = op.operands[0].owner["value"]  # type: ignore[index]
        w.value(op, w.condition(value), w.index_spans(value))
        return
    if op.row.name in _WITH_ONE and op.results[0].uses and all(_one_plus(u.operation) for u in op.results[0].uses):
        return
    function = _one_plus(op)
    if function is not None:
        argument = function.operands[0]
        w.value(op, f"one_plus_{function.row.name}({w.names[argument]})", w.spans.get(argument, frozenset()))
        return
    names = [w.names[v] for v in op.operands]
    if op.row.name in _OF_TENSORS or all(isinstance(v.owner, loop.Constant) for v in op.operands):
        names = [as_tensor(v, n) for v, n in zip(op.operands, names, strict=True)]
    dtype = dtype_of(op.operands[-1])
    if op.row.name == "exp" and any(_is_kept(w, use.operation) for use in op.results[0].uses):
        w.value(op, f"exp_of_sum({names[0]})", w.operand_spans(op))
        return
    exact = op.row.name == "div" and dtype.name == "f32" and not (w.contract and not _is_rounded(op.results[0]))
    text = _exact_quotient(w, op, names) if exact else scalar_text(op.row.name, names, dtype)
    w.value(op, text, w.operand_spans(op))


SHARED_DIVISOR = 16  # elements for each of the divisor's from which on its reciprocal pays


def _exact_quotient(w: Writer, op: Op, names: Sequence[str]) -> str:
    """The quotient of float32 that eager gives on a GPU, where numbers are divided by through their reciprocals."""
    divisor = op.operands[1].owner
    if isinstance(divisor, loop.Constant) and isinstance(divisor["value"], int | float) and divisor["value"] != 0:
        inverse = torch.tensor(float(divisor["value"])).reciprocal().item()
        return scalar_text("mul", [names[0], constant_text(inverse, F32)], F32)
    counts = [math.prod(w.axes_of(w.spans.get(v, frozenset())).values()) for v in op.operands]
    function = "quotient" if counts[0] >= SHARED_DIVISOR * counts[1] else "tl.div_rn"
    return f"{function}({', '.join(names)})"


def _is_kept(w: Writer, op: Operation) -> bool:
    """Whether an operation stores to scratch of a row. Exponentials there are weights of a mean: subnormal ones may be 0, in half the instructions."""
    return isinstance(op, loop.Store) and op.operands[op.memory] in w.locals


_ROUNDS = ("round", "floor", "ceil", "trunc", "floordiv", "mod", "fmod")


def _is_rounded(value: SSAValue) -> bool:
    """Whether a number is made a whole one: its last place then decides, as where a tensor is quantized."""
    seen: set[SSAValue] = set()
    stack = [value]
    while stack:
        for use in stack.pop().uses:
            op = use.operation
            if isinstance(op, loop.ScalarOp) and op.row.name in _ROUNDS:
                return True
            if (
                isinstance(op, loop.ScalarCast)
                and dtype_of(op.results[0]).is_integer
                and dtype_of(op.results[0]) != BOOL
            ):
                return True
            if isinstance(op, loop.ScalarOp | loop.ScalarCast) and op.results[0] not in seen:
                seen.add(op.results[0])
                stack.append(op.results[0])
    return False


_WITH_ONE = ("erf", "tanh")  # the sum with 1, which the gelus need, costs a third of the function


def _one_plus(op: Operation) -> loop.ScalarOp | None:
    """The function of float32 of which an operation is the sum with 1."""
    if not isinstance(op, loop.ScalarOp) or op.row.name != "add" or dtype_of(op.operands[0]).name != "f32":
        return None
    for one, other in (op.operands, reversed(op.operands)):
        found = other.owner
        if isinstance(one.owner, loop.Constant) and one.owner["value"] == 1 and isinstance(found, loop.ScalarOp):
            return (
                found
                if found.row.name in _WITH_ONE and not isinstance(found.operands[0].owner, loop.Constant)
                else None
            )
    return None


# Their functions ask operands for their dtypes.
_OF_TENSORS = ("floordiv", "mod", "sigmoid", "sign", "sqrt", "pow", "shl", "shr", "philox")


_EMIT: dict[str, Callable[[Writer, Op], None]] = {
    "loop.for": _for,
    "loop.local": _local,
    "loop.load": _load,
    "loop.store": _store,
    "loop.accumulate": accumulate,
    "loop.exchange": exchange,
    "loop.atomic": _atomic,
    "loop.bind": _bind,
    "loop.prefetch": _prefetch,
    "loop.index": _index,
    "scalar.constant": _constant,
    "scalar.cast": _cast,
    **{f"scalar.{name}": _scalar for name in loop.SCALAR_OPS},
}
