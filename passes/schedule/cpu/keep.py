"""loop → loop: which values that several loops of a row compute are kept between them, in scratch or where a result will be written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import sympy

from ....ir.dialects import loop
from ....ir.symbols import dim, known_equal, product
from ...analysis.cost import WORTH_KEEPING
from ...analysis.machine import Processor
from ...analysis.views import row_major
from ...core.context import CompileContext
from ..expressions import Expressions, Node
from ..kernels import CpuLoopPass, cost, loops_in, replace_nests
from ..nests import Nest, Stage, Store, coefficient
from ..read import read
from .lanes import lane_rows


@dataclass(frozen=True)
class Keep(CpuLoopPass):
    """Keep costly values that several loops of a row compute: in scratch of the row, or in the memory of a result."""

    name: ClassVar[str] = "keep"
    after: ClassVar[tuple[str, ...]] = ("split-reductions",)
    before: ClassVar[tuple[str, ...]] = ("schedule",)
    requires: ClassVar[tuple[str, ...]] = ("lower",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Kernels in which no two loops of a row have costly bodies are not read."""
        if not kernel.get("plain") or not any(_computes_again(op) for op in kernel.walk()):
            return
        found = read(kernel)
        for nest in found.nests:
            _keep(found.expressions, nest, ctx.machine.cpu)
        if any(nest.scratch or nest.lent for nest in found.nests):
            replace_nests(kernel, found, found.nests)


def _computes_again(op: object) -> bool:
    """Whether two loops of a row have bodies of which a value may be worth keeping."""
    if not isinstance(op, loop.For) or op["kind"] != "parallel":
        return False
    bodies = [[o for o in inner.walk() if not isinstance(o, loop.For)] for inner in loops_in(op.block_body)]
    least, loads = WORTH_KEEPING
    busy = [b for b in bodies if sum(map(cost, b)) >= least or sum(isinstance(o, loop.Load) for o in b) >= loads]
    return len(busy) > 1


def _keep(lowering: Expressions, nest: Nest, processor: Processor) -> None:
    """Let the first stage that computes a value store it: later ones read it."""
    first: dict[Node, int] = {}
    rows = {r.var for r in nest.rows}
    lanes = lane_rows(lowering, nest, processor)[2] if sum(bool(s.loops) for s in nest.stages) > 1 else 1
    for number, stage in enumerate(nest.stages):
        inner = {each.var for each in stage.loops}
        sizes = [each.size for each in stage.loops]
        count = product(sizes)
        if not inner or stage.kind == "scan":
            continue
        seen: set[Node] = set()
        stack = list(stage.nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            earlier = first.get(node)
            fits = isinstance(count, int) and count * lanes * node.dtype.bytes <= 2 * processor.l1_bytes
            room = None if fits or earlier is None else _room(nest, stage, node)
            if (
                earlier is not None
                and (fits or room is not None)
                and node.kind in ("op", "cast", "select", "load")
                and inner <= node.free
                and [each.var for each in nest.stages[earlier].loops] == [each.var for each in stage.loops]
                and _is_worth_keeping(node, rows, {*nest.scratch, *nest.lent})
            ):
                if node in nest.scratch or node in nest.lent:
                    continue
                if room is not None:
                    nest.stages[earlier].scratch.append((node, room.flat))
                    nest.lent[node] = room.memory
                    continue
                place = row_major([each.var for each in stage.loops], sizes)
                nest.stages[earlier].scratch.append((node, place))
                nest.scratch[node] = count
                continue
            stack += node.args
        for node in seen:
            first.setdefault(node, number)


def _room(nest: Nest, stage: Stage, node: Node) -> Store | None:
    """A result of the last stage, not yet lent, whose memory can hold a value until the result itself is written there."""
    last = nest.stages[-1]
    if [each.var for each in last.loops] != [each.var for each in stage.loops]:
        return None
    for store in last.stores:
        memory, steps = store.memory, [coefficient(store.flat, each.var) for each in stage.loops]
        whole = known_equal(memory.ref.numel, dim(product(r.size for r in (*nest.rows, *stage.loops))))
        once = sum(s.memory is memory for each in nest.stages for s in each.stores) == 1
        read = any(
            n.kind == "load" and n.data[0] is memory for each in nest.stages for t in each.nodes for n in t.walk()
        )
        lent = memory in nest.lent.values()
        if memory.ref.dtype == node.dtype and whole and once and not read and all(steps) and not lent:
            return store
    return None


def _is_worth_keeping(node: Node, rows: set[sympy.Symbol], kept: Collection[Node]) -> bool:
    """Whether computing a value again costs clearly more than reading it back from the nearest cache."""
    if node in kept:
        return True
    total = loads = 0
    seen: set[Node] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        if top in seen or top.free <= rows:
            continue
        seen.add(top)
        if top.kind == "load" or top in kept:
            loads += 1
            continue
        total += top.cost
        stack += top.args
    return total >= WORTH_KEEPING[0] or loads >= WORTH_KEEPING[1]
