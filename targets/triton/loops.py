"""Loops as Triton text: programs of the grid, blocks that are tensors, walks over what is longer."""

from __future__ import annotations

import sympy

from ...ir.dialects import loop
from ...ir.symbols import Dim, dim, known_equal, symbol
from ...ir.syntax import Op
from .dot import dot_loop, product_in
from .grid import blocks, programs_of_a_row, tiles_of
from .reductions import finish_join, start_join
from .writer import OpenLoop, Writer, is_one_block, joined, longest, whole_blocks

LARGE = 1 << 20  # elements; the loads of a smaller kernel take no time


def loop_for(w: Writer, op: Op) -> None:
    """A loop."""
    assert isinstance(op, loop.For)
    product = product_in(op)
    if op.get("persistent"):
        _persistent(w, op)
    elif op["kind"] == "parallel":
        _parallel(w, op)
    elif op.get("cooperative"):
        _cooperative(w, op)
    elif product is not None:
        dot_loop(w, op, product)
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
    tiles = w.index(tiles_of(op))
    with w.scope(f"for {tile} in tl.range(tl.program_id(0), {tiles}, tl.num_programs(0), flatten=True):"):
        if w.wide:
            w.line("program = tile.to(tl.int64)")
        w.known["tl.program_id(0).to(tl.int64)" if w.wide else "tl.program_id(0)"] = "program"
        _parallel(w, op)


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
    w.operations(op.block_body.ops)
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
            with w.scope(line):
                _inside(w, op, name, masked=line == "else:")
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
    w.operations(op.block_body.ops)
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
    if op["kind"] != "parallel" or op not in w.axes or w.rank != 1:
        return False
    if w.numbered and size != symbol(loop.MEMBER):
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
    with w.scope(f"for {at} in range(0, {w.index(longest(op) if whole is None else whole)}{step}):"):
        if block > 1:
            _body(w, op, w.hold("r", f"{before}{at} + tl.arange(0, {block}){w.shape(w.axes[op])}"), whole is None)
        else:
            _body(w, op, f"({before}{at})" if before else at)
    if whole is not None and not known_equal(whole, longest(op)):
        w.known = dict(outer)
        _body(w, op, w.hold("r", f"{before}{w.term(whole)} + tl.arange(0, {block}){w.shape(w.axes[op])}"))
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
    w.operations(op.block_body.ops)
    w.place = place
    w.open.pop()
