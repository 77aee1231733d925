"""The loop nests of a kernel as data: what `read` makes of a plain `loop.kernel`, and what its text is written from.

A nest has row loops and, for each row, stages in order: reductions (those of one stage share their loops), then stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import sympy

from ...ir.literals import Literal
from ...ir.symbols import Dim, Range, dim, is_nonnegative, symbols_of
from ..analysis.sizes import hint
from .expressions import Expressions, Memory, Node


@dataclass
class Loop:
    """`var` from `start` below `stop`, and how it is walked (`loop.for` says what each of these means)."""

    var: sympy.Symbol
    stop: Dim
    start: Dim = 0
    step: Dim = 1
    kind: str = ""  # default: what the stage says; of rows `parallel` in a plain nest, else `serial`
    block: int = 0
    apart: bool = False
    group: int = 0
    persistent: int = 0
    cooperative: bool = False
    within: Range | None = None  # what is known of the variable; default start .. stop - 1

    @property
    def size(self) -> Dim:
        """The number of iterations."""
        return dim(self.stop - self.start)


@dataclass
class Join:
    """One reduction: `args` joined over the loops of its stage, known to later nodes as `target`."""

    target: Node
    kind: str
    args: tuple[Node, ...]
    beside: tuple[Node | None, ...] = ()  # of kinds that give several values: the first ones, `target` is the last
    attrs: Mapping[str, Literal] = field(default_factory=dict)  # those of `loop.accumulate` that its kind does not say


@dataclass
class Store:
    """`node` written to `memory` at the flat index `flat`; a scan joins it to what came before along the stage's last loop.

    What follows a scan in the same body has its value as `result`, and reads no memory; `passes` says that nobody else does.
    """

    memory: Memory
    flat: Dim
    node: Node
    scan: str = ""
    result: Node | None = None
    passes: bool = False
    follows: Memory | None = None  # of the scan in whose body this is stored
    bind: Node | None = None  # the integer from memory that `flat` is made of, where this scatters
    atomic: str = ""  # the kind of reduction by which it is joined with what is there


@dataclass
class Segment:
    """Loops around the body of a stage, for a part of its range. `env` expresses the stage's variables in those of the loops."""

    loops: list[Loop]
    env: dict[sympy.Symbol, Dim] = field(default_factory=dict)


@dataclass
class Stage:
    """Loops with one body: reductions (`joins`) or stores. `segments`: the loops that are chosen instead, one after another."""

    loops: list[Loop]
    joins: list[Join] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    numbers: tuple[Node, ...] = ()  # integers from memory: over how many elements the loops go, and where these begin
    segments: list[Segment] = field(default_factory=list)
    scratch: list[tuple[Node, Dim]] = field(default_factory=list)  # values kept for later stages, and where
    inside: list[Stage] = field(default_factory=list)  # instead of the body: stages that accumulate on their own
    running: dict[Node, Node] = field(default_factory=dict)  # what a reduction has come to before an iteration
    declared: bool = False  # the accumulators are those of the stage around
    # of programs that share a row: where each puts what it has accumulated, and a counter for each row
    exchange: list[Memory] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The kind of its loops."""
        return "reduce" if self.joins else "scan" if any(s.scan for s in self.stores) else "serial"

    @property
    def nodes(self) -> list[Node]:
        """The values computed in the body."""
        places = [s.bind for s in self.stores if s.bind is not None]
        return [a for j in self.joins for a in j.args] + [s.node for s in self.stores] + places


@dataclass
class Nest:
    """Row loops around stages, plain or with loops that are chosen.

    `env` expresses the variables that are no loop's any more in those of the rows; `lanes` is the size of accumulator arrays, `lane` the element
    of them that belongs to a row.
    """

    rows: list[Loop]
    stages: list[Stage]
    env: dict[sympy.Symbol, Dim] = field(default_factory=dict)
    lanes: int = 1
    lane: Dim = 0
    scratch: dict[Node, Dim] = field(default_factory=dict)  # values kept for a row, and how many elements of each
    lent: dict[Node, Memory] = field(
        default_factory=dict
    )  # values kept in the memory of a result that is written later
    warps: int = 0  # of a GPU, for one block; 0 where no blocks are chosen
    pipeline: int = 0  # blocks of a product's operands that are on their way at once, on a GPU


@dataclass
class Nests:
    """The nests of a kernel in order, with its memory: arguments, then the scratch that nests pass on to later ones."""

    nests: list[Nest]
    expressions: Expressions
    arguments: list[Memory]
    scratch: list[Memory]


def tile_end(start: sympy.Symbol, length: int, stop: Dim, size: Dim) -> Dim:
    """Where the tile at `start` ends, of a loop of `size` iterations below `stop`."""
    end = dim(start + length)
    if isinstance(size, int) and size % length == 0:
        return end
    return stop if is_nonnegative(dim(end - stop), {}) else sympy.Min(stop, end, evaluate=False)  # sympy takes 1 ms


def coefficient(expr: Dim, var: sympy.Symbol) -> Dim | None:
    """c when expr == c*var + terms without var, else None."""
    if not isinstance(expr, sympy.Expr) or var not in symbols_of(expr):
        return 0
    return _coefficient(expr, var)


@lru_cache(maxsize=1 << 14)
def _coefficient(expr: sympy.Expr, var: sympy.Symbol) -> Dim | None:
    total: Dim = 0
    for term in sympy.Add.make_args(expr):
        if var not in symbols_of(term):
            continue
        factor, rest = term.as_independent(var, as_Add=False)
        if rest != var:
            return None
        total = total + factor
    return dim(total)


def unit_stride(node: Node) -> set[sympy.Symbol]:
    """The variables along which a load runs through neighbouring elements."""
    flat = node.data[1]
    if not isinstance(flat, sympy.Expr):
        return set()
    terms = sympy.Add.make_args(flat)
    return {t for t in terms if t.is_Symbol and t in node.free}


def column_votes(loads: set[Node], rows: set[sympy.Symbol], sizes: Mapping[sympy.Symbol, int] | None = None) -> int:
    """More than 0 when most loads are contiguous along a row variable rather than along an inner one.

    With the sizes of the loops, a load votes with the elements that it reads: those of one value a row say little.
    """
    votes = 0
    for load in loads:
        along, read = unit_stride(load), math.prod((sizes or {}).get(v, 1) for v in load.free)
        votes += read if along & rows else -read if along else 0
    return votes


def contiguous_row(nest: Nest) -> Loop | None:
    """The row variable along which neighbours in memory lie, when that is no inner variable."""
    loads = {n for s in nest.stages for top in s.nodes for n in top.walk() if n.kind == "load"}
    rows = {r.var for r in nest.rows}
    sizes = {
        each.var: max(1, hint(each.size)) for each in [*nest.rows, *(each for s in nest.stages for each in s.loops)]
    }
    if not rows or column_votes(loads, rows, sizes) <= 0:
        return None
    best = max(nest.rows, key=lambda r: sum(1 for n in loads if column_votes({n}, {r.var}) > 0))
    return best if hint(best.size) >= 8 and best.start == 0 else None


def by_stride(loops: Sequence[Loop], stores: Sequence[Store], loads: Sequence[Node]) -> list[Loop]:
    """Loops ordered so that the memory written, or else most memory read, is walked in its order."""

    def key(loop: Loop) -> tuple[int, ...]:
        steps = [coefficient(s.flat, loop.var) for s in stores]
        steps += [coefficient(n.data[1], loop.var) for n in loads]
        known = [abs(hint(s)) for s in steps if s is not None and s != 0]
        written = [abs(hint(s)) for s in steps[: len(stores)] if s is not None and s != 0]
        return (-(max(written) if written else max(known, default=0)),)

    return sorted(loops, key=key)
