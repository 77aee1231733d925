"""The state of a Triton function that is being written: names, open loops, masks; and what its loops are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import loop
from ...ir.symbols import Dim, FloorDiv, dim, known_equal
from ...ir.syntax import Op
from ...passes.analysis.affine import begins_anywhere
from ...passes.analysis.size_names import SizeNames
from ...passes.schedule.gpu.blocks import most
from ...passes.schedule.nests import coefficient
from ..text.walk import Walk
from .text import index_text

if TYPE_CHECKING:
    from .descriptors import Descriptor


@dataclass
class OpenLoop:
    """An open loop."""

    op: loop.For
    name: str
    mask: str = ""


@dataclass(kw_only=True)
class Writer(Walk):
    """The function being written. `numbered`: its parameter `program` is the program's number."""

    indent: ClassVar[str] = "    "
    comment: ClassVar[str] = "#"
    wide: bool
    numbered: bool = False
    contract: bool = True  # whether quotients of float32 may be off by two units in the last place
    axes: dict[loop.For, int] = field(default_factory=dict)
    open: list[OpenLoop] = field(default_factory=list)
    spans: dict[SSAValue, frozenset[str]] = field(default_factory=dict)  # the loops that a value depends on
    # Index variables: text, loops they depend on.
    bound: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # expression -> the name that holds it
    locals: dict[SSAValue, loop.Local] = field(default_factory=dict)
    fills: dict[SSAValue, object] = field(default_factory=dict)  # what masked loads give outside
    # Scratch of a scan: the name of what came before the block.
    scanned: dict[SSAValue, str] = field(default_factory=dict)
    places: dict[loop.For, str] = field(default_factory=dict)  # the blocks of loops that are not simply counted
    # Memories and places that several loads or stores have, a number apart.
    shared: frozenset[tuple[SSAValue, sympy.Expr]] = frozenset()
    raw: set[Op] = field(default_factory=set)  # loads whose values stay in the dtype in which they lie in memory
    described: Mapping[Op, Descriptor] = field(default_factory=dict)  # loads of whole tiles through tensor maps
    sizes: SizeNames = field(default_factory=lambda: SizeNames({}, {}))  # names for sizes that are expressions
    bases: dict[loop.For, str] = field(default_factory=dict)  # where blocks begin that are read through these

    @property
    def rank(self) -> int:
        return max(self.axes.values(), default=-1) + 1

    def fold(self, op: loop.For) -> tuple[list[int], int]:
        """A row's block: the sizes of what threads share among them, and how many elements of it one thread loads at a time."""
        sizes = [e["block"] for e in sorted(self.axes, key=lambda e: self.axes[e]) if e["kind"] == "parallel"]
        if any(size > 1 for size in sizes):  # neighbours in memory are those of other rows
            return [*sizes, op["block"]], 1
        narrow = min((load.ref.dtype.bytes for load in _loads(op)), default=4)
        together = min(op["block"], max(1, 16 // narrow))
        return [*sizes, op["block"] // together], together

    def folded(self, op: loop.For, value: str) -> str:
        """A row's block in which the elements that one thread loads have the last axis: neighbours.

        Of rows that begin anywhere single elements are loaded: threads take neighbours of one another then.
        """
        sizes, together = self.fold(op)
        if len(sizes) == 1 and any(
            begins_anywhere(load["index"], op["var"], load.ref.dtype.bytes) for load in _loads(op)
        ):
            return f"tl.trans(tl.reshape({value}, [{together}, {sizes[0]}]))"
        return f"tl.reshape({value}, {[*sizes, together]})"

    def spread(self, text: str, spans: frozenset[str]) -> str:
        """A value in the shape of the loops that are open, where it depends on fewer of them."""
        here = {self.axes[each.op] for each in self.open if each.op in self.axes}
        depends = {axis for op, axis in self.axes.items() if op["var"].name in spans}
        if here <= depends and len(here) == self.rank:
            return text
        return f"tl.broadcast_to({text}, {self.row_shape(each.op for each in self.open)})"

    def hold(self, prefix: str, expression: str, name: str = "") -> str:
        """A name for an expression, `name` or one of our own; the same one for the same expression."""
        if expression.isidentifier():
            return expression
        if expression not in self.known:
            name = name or self.fresh(prefix)
            self.line(f"{name} = {expression}")
            self.known[expression] = name
        return self.known[expression]

    def value(self, op: Op, expression: str, spans: frozenset[str]) -> None:
        self.names[op.results[0]] = self.hold("t", expression)
        self.spans[op.results[0]] = spans

    def operand_spans(self, op: Op) -> frozenset[str]:
        return frozenset().union(*(self.spans.get(v, frozenset()) for v in op.operands))

    # -- indices and masks

    def index(self, value: Dim) -> str:
        """An index expression, with bound variables by their names."""
        return index_text(self.sizes.named(value), {name: text for name, (text, _) in self.bound.items()})

    def factor(self, value: Dim) -> str:
        """An index expression as an operand."""
        return str(value) if isinstance(value, int) else f"({self.index(value)})"

    def term(self, value: Dim) -> str:
        """An index expression behind a sign."""
        text = self.index(value)
        return f"({text})" if " " in text else text

    def far_index(self, value: Dim) -> str:
        """The same in 64 bits, for numbers that are no places in memory."""
        depends = value.free_symbols if isinstance(value, sympy.Expr) else ()
        wide = {s.name: f"{self.bound[s.name][0]}.to(tl.int64)" for s in depends if s.name in self.bound}
        return index_text(self.sizes.named(value), wide)

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
        return [self.condition(c) for c in op.get("mask", ())]

    def condition(self, value: Dim) -> str:
        """That a value is not negative, as a comparison of what varies with a number: Triton knows then how many neighbours agree."""
        number, rest = sympy.sympify(self.sizes.named(value)).as_coeff_Add()
        if rest.could_extract_minus_sign():
            return f"({self.index(dim(-rest))} < {number + 1})"
        return f"({self.index(dim(rest))} >= {-number})"

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


def is_one_block(op: loop.For) -> bool:
    """Whether a loop has no more iterations than one block."""
    size = longest(op)
    return isinstance(size, int) and size <= op.get("block", 1)


MANY_BLOCKS = 4  # of a row, which are worth a text of their own for the last one


def whole_blocks(op: loop.For) -> Dim | None:
    """The iterations in blocks that need no mask, where these are walked apart from the rest.

    Masks would cost `moments` most of its time. One that ends within what a thread loads at once makes all loads single elements.
    """
    size, block = dim(sympy.sympify(op["stop"]) - op.get("start", 0)), op.get("block", 1)
    if block == 1 or not known_equal(size, longest(op)) or not joined(op):
        return None
    many = isinstance(size, int) and size % 16 != 0 and size >= MANY_BLOCKS * block
    along = many and any(coefficient(load["index"], op["var"]) == 1 for load in _loads(op))
    if not along and not any(accumulates(op, memory)["kind"] == "moments" for memory in joined(op)):
        return None
    return size // block * block if isinstance(size, int) else dim(block * FloorDiv(size, sympy.Integer(block)))


def longest(op: loop.For) -> Dim:
    """The most iterations of a loop. What is too much for a chunk of a long one is masked."""
    return most(dim(op.get("start", 0)), op["stop"])


def joined(op: loop.For) -> list[SSAValue]:
    """The scratch that a loop within a row joins values into, each once."""
    found: dict[SSAValue, None] = {}
    if op["kind"] in ("reduce", "scan"):
        for inner in op.block_body.walk():
            if isinstance(inner, loop.Accumulate):
                found[inner.operands[-1]] = None
    return list(found)


def accumulates(op: loop.For, memory: SSAValue) -> loop.Accumulate:
    return next(a for a in op.block_body.walk() if isinstance(a, loop.Accumulate) and a.operands[-1] is memory)


def _loads(op: loop.For) -> list[loop.Load]:
    return [load for load in op.block_body.walk() if isinstance(load, loop.Load)]
