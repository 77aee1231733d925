"""The plan of a kernel: which loop nests it has, and what each of their stages does.

A nest has row loops and, for each row, stages in order: reductions (those of one stage share their loops), then stores. A reduction is
computed inside the nest of its consumer when its index uses exactly the row variables; otherwise it gets a nest of its own and is
kept in scratch memory. So softmax and layer norm are one nest, a mean over the batch with its consumer are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import sympy
from xdsl.ir import Block, Operation, SSAValue

from ....ir.dialects import prim
from ....ir.literals import Literal
from ....ir.symbols import (
    Dim,
    FloorDiv,
    Mod,
    dim,
    free_symbols,
    known_equal,
    product,
    simplify_index,
    substitute,
)
from ....ir.syntax import Op
from ....ir.types import ref_type
from ...analysis.cost import MIN_UNITS, MIN_WORK, SHORT
from ...analysis.views import Index, stored_behind
from ..expressions import Memory, Node
from ..nests import Join, Loop, Nest, Stage, Store, coefficient, column_votes
from .elements import Lowering


@dataclass(eq=False)
class Root:
    """A value that is written to memory, with its own index variables."""

    value: SSAValue
    memories: list[Memory]
    index: Index
    stored: frozenset[SSAValue]  # what it reads from memory rather than computes
    node: Node | None  # None: nothing is reduced or scanned on the way to it, so that its loops are known without it
    uses: list[Node]
    rows: list[sympy.Symbol]
    variables: list[sympy.Symbol]  # of the index, in order; a dimension of size 1 has none, one that is split has two

    @property
    def is_free(self) -> bool:
        """Whether it fits into any nest over its elements; nothing ever waits for such a root."""
        return not self.uses and not isinstance(self.value.owner, prim.Scan)


@dataclass
class Group:
    """Roots that share their rows; `maps` gives each root's variables in terms of the group's."""

    rows: list[sympy.Symbol]
    roots: list[Root]
    maps: list[dict[sympy.Symbol, Dim]]
    followers: dict[Root, Root] = field(default_factory=dict)  # what is stored in the body of a scan, and that scan


@dataclass
class Planner:
    """Plans one kernel: `plan()` gives its nests in order, `scratch` the memory that they need beside the arguments."""

    block: Block
    lowering: Lowering
    outputs: list[tuple[SSAValue, Memory]]
    scratch: list[Memory] = field(default_factory=list)
    only_followed: set[Memory] = field(default_factory=set)  # scratch of scans that only their followers read

    def plan(self) -> list[Nest]:
        """The nests of the kernel, in the order in which they run."""
        position = self.position
        borders = self._put_borders_apart()
        scans = frozenset(op.results[0] for op in position if isinstance(op, prim.Scan))
        roots: dict[SSAValue, Root] = {}
        wanted: list[SSAValue] = [v for v, _ in reversed(self.outputs)]
        while wanted:
            value = wanted.pop()
            if value not in roots:
                roots[value] = self._root(value, scans - {value})
                wanted += [v for v in self._needs(roots[value]) if v not in roots]
        ordered = sorted(
            roots.values(),
            key=lambda r: (r.is_free, position.get(r.value.owner, -1) if isinstance(r.value.owner, Operation) else -1),
        )
        groups = self._groups(ordered)
        groups += [Group([], [root], [{v: v for v in root.variables}]) for root in borders]
        followed = {root: scan for group in groups for root, scan in group.followers.items()}
        waiting = {
            self.lowering.memories[v] for r in ordered for v in self._needs(r) if v is not _value(followed.get(r))
        }
        self.only_followed = {scan.memories[0] for scan in followed.values()} & set(self.scratch) - waiting
        self.scratch = [m for m in self.scratch if m not in self.only_followed]
        return [self._nest(group) for group in groups]

    def _put_borders_apart(self) -> list[Root]:
        """What is put behind a value that a grid's rows compute is stored on its own: the rows stay those of the value."""
        borders: list[Root] = []
        for k, (value, memory) in enumerate(self.outputs):
            pad = value.owner
            if not isinstance(pad, prim.Pad) or not self.lowering.remainders or not stored_behind(pad):
                continue
            if not self.lowering.reduces(value):
                continue
            self.outputs[k] = (pad.operands[0], memory)
            shape = prim.tensor(pad.operands[0]).shape
            sizes = [more or size for size, more in zip(shape, pad["high"], strict=True)]
            variables = [self.lowering.variable("o", s) for s in sizes]
            starts = [size if more else 0 for size, more in zip(shape, pad["high"], strict=True)]
            index = tuple(dim(v + start) for v, start in zip(variables, starts, strict=True))
            fill = prim.Full.make([], [prim.tensor(value)], {"value": pad["value"]})
            borders.append(Root(fill.results[0], [memory], index, frozenset(), None, [], [], variables))
        return borders

    def _memory(self, value: SSAValue) -> list[Memory]:
        found = [memory for v, memory in self.outputs if v is value]
        if not found:
            t = prim.tensor(value)
            found = [Memory(f"tmp{len(self.scratch)}", ref_type(t.shape, None, t.dtype), "scratch")]
            self.scratch += found
        return found

    def _needs(self, root: Root) -> list[SSAValue]:
        """Values that the root reads from memory which the kernel itself has written."""
        if root.node is None or not root.stored:
            return []
        memories = {n.data[0] for n in self._all_nodes(root, root.node) if n.kind == "load"}
        return [v for v in self._in_order(root.stored) if self.lowering.memories.get(v) in memories]

    @cached_property
    def position(self) -> dict[Operation, int]:
        """The places of the operations in the kernel."""
        return {op: k for k, op in enumerate(self.block.ops)}

    def _in_order(self, values: Iterable[SSAValue]) -> list[SSAValue]:
        """As they stand in the kernel: the order of a set differs from one process to the next."""
        return sorted(values, key=lambda v: self.position[cast(Operation, v.owner)])

    def _all_nodes(self, root: Root, node: Node) -> list[Node]:
        found = list(node.walk())
        for use in root.uses:
            body = self.lowering.bodies[use]
            found += [n for a in (*body.args, *body.numbers) for n in a.walk()]
        return found

    def _root(self, value: SSAValue, stored: frozenset[SSAValue]) -> Root:
        lowering, shape = self.lowering, prim.tensor(_elements(value)).shape
        index = tuple(0 if s == 1 else lowering.variable("o", s) for s in shape)
        variables = [v for v in index if isinstance(v, sympy.Symbol)]
        given = stored
        root = Root(value, [], index, stored, None, [], [], variables)
        while lowering.reduces(value):
            for v in self._in_order(stored):
                if v not in lowering.memories:
                    lowering.memories[v] = self._memory(v)[0]
            node = self.element(value, index, stored)
            uses = lowering.reached(node)
            root = Root(value, [], index, stored, node, uses, [], variables)
            refused = self._refused(root)
            if not refused - stored:
                break
            finer = None if isinstance(value.owner, (*prim.JOINS, prim.Scan)) else self._finer(root)
            if finer is None:
                stored = stored | refused
            else:
                index = tuple(substitute(i, finer) for i in index)
                (old, value_of) = next(iter(finer.items()))
                place = variables.index(old)
                variables[place : place + 1] = sorted(value_of.free_symbols, key=lambda v: lowering.made(v))
                stored = given
        if value in lowering.memories:
            outs = [m for v, m in self.outputs if v is value]
            root.memories = outs or [lowering.memories[value]]
        else:
            root.memories = self._memory(value)
            if isinstance(value.owner, (*prim.JOINS, prim.Scan)):
                lowering.memories[value] = root.memories[0]
        return root

    def _finer(self, root: Root) -> dict[sympy.Symbol, sympy.Expr] | None:
        """A variable to be split in two, so that a division in the index of a reduction (of groups, say) becomes a row variable."""
        for use in root.uses:
            for entry in use.data[1]:
                for node in entry.atoms(FloorDiv) if isinstance(entry, sympy.Expr) else ():
                    base, divisor = node.args
                    for v in root.variables:
                        a = coefficient(base, v)
                        quotient = None if not a else sympy.cancel(divisor / sympy.sympify(a))
                        size = dim(self.lowering.ranges[v][1] + 1)
                        if quotient is None or not quotient.is_Integer or not isinstance(size, int):
                            continue
                        inner = int(quotient)
                        if 1 < inner < size and size % inner == 0:
                            high = self.lowering.variable("o", size // inner)
                            return {v: inner * high + self.lowering.variable("o", inner)}
        return None

    def element(self, value: SSAValue, index: Index, stored: frozenset[SSAValue]) -> Node:
        """The node for one element of a root; a root that is a reduction or a scan is not read from its own memory."""
        self.lowering.stored = stored - {value}
        if isinstance(value.owner, prim.Scan):
            return self.lowering.scan_body(value.owner, index)
        return self.lowering.lower(_elements(value), index)

    def _refused(self, root: Root) -> frozenset[SSAValue]:
        """Reductions that cannot be computed inside the root's rows; sets `root.rows`."""
        own = root.value.owner
        variables = set(root.variables)
        tuples: dict[SSAValue, set[Index]] = {}
        refused: set[SSAValue] = set()
        for use in root.uses:
            op, index, mask = use.data[:3]
            tuples.setdefault(op.results[0], set()).add(index)
            symbols = {s for s in free_symbols(index) if s in self.lowering.ranges}
            if not symbols <= variables or mask:
                refused.add(op.results[0])
        refused |= {v for v, found in tuples.items() if len(found) > 1}
        fine = [u for u in root.uses if u.data[0].results[0] not in refused]
        rows = self._choose_rows(root, fine)
        root.rows = [v for v in root.variables if v in rows]
        for use in fine:
            op, index = use.data[:2]
            if free_symbols(index) & variables != rows or not self._once(index, op, root.rows):
                refused.add(op.results[0])
        fine = [u for u in fine if u.data[0].results[0] not in refused]
        if self._too_few_rows(root, fine):
            refused |= {u.data[0].results[0] for u in fine}
        kept = {own.results[0]} if isinstance(own, Operation) and own in root.uses else set()
        return frozenset(refused - {root.value} - kept)

    def _choose_rows(self, root: Root, uses: Sequence[Node]) -> set[sympy.Symbol]:
        variables = set(root.variables)
        if isinstance(root.value.owner, prim.Scan):
            along = root.index[root.value.owner["dim"]]
            return {v for v in variables if v != along}
        if isinstance(root.value.owner, prim.JOINS):
            return variables
        candidates = [free_symbols(u.data[1]) & variables for u in uses]
        return max(candidates, key=lambda c: (len(c), candidates.count(c)), default=set())

    def _once(self, index: Index, op: prim.Reduce | prim.Bag | prim.Contract, rows: Sequence[sympy.Symbol]) -> bool:
        """Whether different rows mean different elements of the reduction, so that nothing is computed twice."""
        if _plain(index) is not None:
            return True
        ranges = self.lowering.ranges
        return known_equal(product(dim(ranges[r][1] + 1) for r in rows), op.type.numel)

    def _too_few_rows(self, root: Root, uses: Sequence[Node]) -> bool:
        """Few rows with much work each: the reductions are better spread over threads in a nest of their own."""
        if not uses or isinstance(root.value.owner, prim.Scan):
            return False
        if all(u.data[0].results[0] is root.value for u in uses):
            return False
        known = all(isinstance(n, int) for u in uses for n in self.lowering.bodies[u].sizes)
        if self.lowering.remainders and known and set(root.variables) == set(root.rows) and _in_one_reading(uses):
            return False  # `chunk-reductions` spreads them over a GPU, with what is computed of a row behind them
        count = product(dim(self.lowering.ranges[r][1] + 1) for r in root.rows)
        if not isinstance(count, int):
            return False
        if self._by_columns(uses, root.rows):
            count = count // 64
        bodies = [self.lowering.bodies[u] for u in uses]
        work = max(
            w if isinstance(w, int) else MIN_WORK for w in (1 if b.numbers else product(b.sizes) for b in bodies)
        )
        return count < MIN_UNITS and max(1, count) * work >= MIN_WORK

    def _by_columns(self, uses: Sequence[Node], rows: Sequence[sympy.Symbol]) -> bool:
        """Whether neighbours in memory belong to different rows, for most loads of the reductions' bodies."""
        loads = {n for u in uses for a in self.lowering.bodies[u].args for n in a.walk() if n.kind == "load"}
        return column_votes(loads, set(rows)) > 0

    # Groups.

    def _groups(self, roots: Sequence[Root]) -> list[Group]:
        groups: list[Group] = []
        home: dict[Memory, int] = {}
        for root in roots:
            needed = {self.lowering.memories[v] for v in self._needs(root)}
            first = max((home[m] + 1 for m in needed if m in home), default=0)
            for k in range(max(0, first - 1), len(groups)):
                if k < first and self._follow(groups[k], root, [m for m in needed if home.get(m) == k]):
                    break
                if k >= first and self._join(groups[k], root):
                    break
            else:
                k = len(groups)
                groups.append(Group(list(root.rows), [root], [{v: v for v in root.variables}]))
            home.update(dict.fromkeys(root.memories, k))
            if root.uses and self._gather(groups, k, root):
                home = {m: at for at, group in enumerate(groups) for r in group.roots for m in r.memories}
        return groups

    def _gather(self, groups: list[Group], k: int, root: Root) -> bool:
        """Bring what else has reductions of the root, which group `k` has just taken, into that group: else they are computed twice."""
        reductions, found = {u.data[0] for u in root.uses}, len(groups)
        for other in groups[k + 1 :]:
            shares = any(u.data[0] in reductions for r in other.roots for u in r.uses)
            if not shares or other.followers or any(self._needs(r) for r in other.roots):
                continue
            whole = replace(
                groups[k], rows=list(groups[k].rows), roots=list(groups[k].roots), maps=list(groups[k].maps)
            )
            whole.maps = [dict(each) for each in whole.maps]
            if all(self._join(whole, r) for r in other.roots):
                groups[k] = whole
                groups.remove(other)
        return len(groups) < found

    def _follow(self, group: Group, root: Root, needed: Sequence[Memory]) -> bool:
        """Put a root into the body of the scan whose value it needs, if it needs no more than the element that the scan is at."""
        if root.uses or len(needed) != 1 or isinstance(root.value.owner, prim.Scan):
            return False
        for scan, mapping in zip(group.roots, group.maps, strict=True):
            memory = scan.memories[0]
            if memory is not needed[0] or not isinstance(scan.value.owner, prim.Scan):
                continue
            if memory.ref.dtype != memory.ref.dtype.compute or self._sizes(scan.variables) != self._sizes(
                root.variables
            ):
                return False
            same = dict(zip(scan.variables, root.variables, strict=True))
            element = self.lowering.load(memory, tuple(substitute(i, same) for i in scan.index), ())
            walked = root.node.walk() if root.node is not None else ()
            if any(n.kind == "load" and n.data[0] is memory and n is not element for n in walked):
                return False
            group.followers[root] = scan
            return self._add(group, root, {w: mapping[v] for v, w in same.items()})
        return False

    def _sizes(self, variables: Iterable[sympy.Symbol]) -> list[Dim]:
        return [dim(self.lowering.ranges[v][1] + 1) for v in variables]

    def _join(self, group: Group, root: Root) -> bool:
        """Put the root into the group if their rows are the same; says whether it did."""
        for other, mapping in zip(group.roots, group.maps, strict=True):
            if not root.rows and not other.rows and root.uses:
                continue
            if not root.uses and self._sizes(root.variables) == self._sizes(other.variables):
                places = [[r.variables.index(v) for v in r.rows] for r in (root, other)]
                if not root.rows or places[0] == places[1]:
                    found = {v: mapping[w] for v, w in zip(root.variables, other.variables, strict=True)}
                    return self._add(group, root, found)
            shared = {u.data[0]: u.data[1] for u in other.uses}
            for use in root.uses:
                if use.data[0] in shared and self._unify(group, root, use.data[1], mapping, shared[use.data[0]]):
                    return True
        plain = all(m[v] == v for r, m in zip(group.roots, group.maps, strict=True) for v in r.rows)
        if root.rows and plain and self._sizes(root.rows) == self._sizes(group.rows):
            found = dict(zip(root.rows, group.rows, strict=True))
            return self._add(group, root, {v: found.get(v, v) for v in root.variables})
        if group.rows and not root.rows and not root.uses and self._sizes(root.variables) == self._sizes(group.rows):
            return self._add(group, root, dict(zip(root.variables, group.rows, strict=True)))
        if group.rows and not root.rows and not root.uses and (over := self._reshaped(group, root)) is not None:
            return self._add(group, root, over)
        return False

    def _reshaped(self, group: Group, root: Root) -> dict[sympy.Symbol, Dim] | None:
        """A root's variables in terms of the group's rows, where its first ones are these in another shape, and the others those within a row."""
        sizes, rows = self._sizes(root.variables), self._sizes(group.rows)
        if not all(isinstance(n, int) for n in (*sizes, *rows)):
            return None
        inside = {
            tuple(self._sizes(v for v in r.variables if not self._is_row(m[v], group.rows)))
            for r, m in zip(group.roots, group.maps, strict=True)
        }
        count = next((k for k in range(1, len(sizes)) if product(sizes[:k]) == product(rows)), None)
        if count is None or tuple(sizes[count:]) not in inside:
            return None
        row: Dim = 0
        for variable, size in zip(group.rows, rows, strict=True):
            row = dim(row * size + variable)
        found: dict[sympy.Symbol, Dim] = {v: v for v in root.variables}
        below: Dim = 1
        for k in reversed(range(count)):
            part = dim(FloorDiv(sympy.sympify(row), sympy.sympify(below)))
            found[root.variables[k]] = simplify_index(
                dim(Mod(sympy.sympify(part), sympy.sympify(sizes[k]))) if k else part, self.lowering.ranges
            )
            below = dim(below * sizes[k])
        return found

    def _unify(self, group: Group, root: Root, mine: Index, mapping: dict[sympy.Symbol, Dim], theirs: Index) -> bool:
        """Make the two accesses to one reduction equal by expressing one side's rows in the other's."""
        target = [substitute(i, mapping) for i in theirs]
        plain = _plain(mine)
        if plain is not None and len(plain) == len(root.rows):
            found = {v: t for v, t in zip(mine, target, strict=True) if v in plain}
            return self._add(group, root, {v: found.get(v, v) for v in root.variables})
        plain = _plain(tuple(target))
        if plain is None or plain != set(group.rows) or len(plain) != len(group.rows):
            return False
        change = {t: m for t, m in zip(target, mine, strict=True) if t in plain}
        for other in group.maps:
            for v in other:
                other[v] = simplify_index(substitute(other[v], change), self.lowering.ranges)
        group.rows = list(root.rows)
        return self._add(group, root, {v: v for v in root.variables})

    def _add(self, group: Group, root: Root, mapping: dict[sympy.Symbol, Dim]) -> bool:
        group.roots.append(root)
        group.maps.append(mapping)
        return True

    # Nests.

    def _nest(self, group: Group) -> Nest:
        """The nest of a group; a grid's row variable along which memory is contiguous in pieces becomes two, of pieces and within them."""
        nest = self._made(group)
        while (found := self._piece(nest)) is not None:
            row, length = found
            pieces = dim(self.lowering.ranges[row][1] + 1) // length
            high, low = self.lowering.variable("o", pieces), self.lowering.variable("o", length)
            place = group.rows.index(row)
            group.rows[place : place + 1] = [high, low]
            for each in group.maps:
                for v in each:
                    whole = substitute(each[v], {row: dim(length * high + low)})
                    each[v] = simplify_index(whole, self.lowering.ranges)
            nest = self._made(group)
        return nest

    def _piece(self, nest: Nest) -> tuple[sympy.Symbol, int] | None:
        """A row variable and the length of its pieces: what is reduced is read of memory that is contiguous along its remainders."""
        if not self.lowering.remainders:
            return None
        rows = {each.var: each.size for each in nest.rows if isinstance(each.size, int)}
        joined = [n for s in nest.stages for j in s.joins for arg in j.args for n in arg.walk() if n.kind == "load"]
        for flat in [n.data[1] for n in joined if isinstance(n.data[1], sympy.Expr)]:
            for rest in sorted(flat.atoms(Mod), key=str):
                row, length = rest.args
                if row not in rows or not length.is_Integer or flat.coeff(rest) != 1:
                    continue
                if SHORT <= length < rows[row] and rows[row] % int(length) == 0:
                    return row, int(length)
        return None

    def _made(self, group: Group) -> Nest:
        rows = [Loop(v, dim(self.lowering.ranges[v][1] + 1)) for v in group.rows]
        stores: dict[tuple[sympy.Symbol, ...], Stage] = {}
        uses: dict[Node, None] = {}
        for root, mapping in zip(group.roots, group.maps, strict=True):
            inner = [v for v in root.variables if not self._is_row(mapping[v], group.rows)]
            sizes = tuple(self._sizes(inner))
            renamed = self.lowering.inner_variables([(0, s) for s in sizes])
            mapping = mapping | dict(zip(inner, renamed, strict=True))
            index = tuple(
                simplify_index(substitute(i, mapping), self.lowering.ranges) if isinstance(i, sympy.Expr) else i
                for i in root.index
            )
            node = self.element(root.value, index, root.stored)
            uses |= dict.fromkeys(self.lowering.reached(node))
            stage = stores.setdefault(renamed, Stage([Loop(v, s) for v, s in zip(renamed, sizes, strict=True)]))
            scan = root.value.owner["kind"] if isinstance(root.value.owner, prim.Scan) else ""
            for memory in root.memories:
                store = Store(memory, memory.position(index), node, scan)
                if isinstance(root.value.owner, prim.Scatter):
                    store = self._scattered(root.value.owner, memory, index, node)
                if root in group.followers:
                    store.follows = group.followers[root].memories[0]
                elif memory in self.only_followed:
                    store.passes = True
                if scan:
                    store.result = self.lowering.load(memory, index, ())
                stage.stores.append(store)
        return Nest(rows, [*self._reductions(list(uses)), *_separate_scans(stores.values())])

    def _scattered(self, op: prim.Scatter, memory: Memory, index: Index, node: Node) -> Store:
        """The store of one element of a scatter's source."""
        d = op["dim"]
        at = self.lowering.bound(op, op.type.shape[d], index, ())
        flat = memory.position((*index[:d], at, *index[d + 1 :]))
        bind = self.lowering.binds.get(at) if isinstance(at, sympy.Symbol) else None
        return Store(memory, flat, node, bind=bind, atomic="" if op["kind"] == "set" else op["kind"])

    @staticmethod
    def _is_row(value: Dim, rows: Sequence[sympy.Symbol]) -> bool:
        return not isinstance(value, sympy.Expr) or value.free_symbols & set(rows) != set()

    def _reductions(self, uses: Sequence[Node]) -> list[Stage]:
        """The stages of reductions: by how many others come before, then by their loops."""
        levels: dict[Node, int] = {}

        def level(node: Node) -> int:
            if node not in levels:
                args = self.lowering.bodies[node].args
                args = (*args, *self.lowering.bodies[node].numbers)
                inner = {n for a in args for n in a.walk() if n.kind == "reduced"}
                levels[node] = 1 + max((level(n) for n in inner), default=-1)
            return levels[node]

        stages: dict[tuple[int, tuple[sympy.Symbol, ...]], Stage] = {}
        for use in sorted(uses, key=lambda u: (level(u), u.number)):
            body = self.lowering.bodies[use]
            loops = [Loop(v, s) for v, s in zip(body.variables, body.sizes, strict=True)]
            stage = stages.setdefault((level(use), body.variables), Stage(loops))
            stage.joins.append(Join(use, body.kind, body.args, attrs=_attributes(body.op)))
            stage.numbers = tuple(dict.fromkeys((*stage.numbers, *body.numbers)))
        return list(stages.values())


def _attributes(op: prim.Reduce | prim.Bag | prim.Contract | prim.Scan) -> dict[str, Literal]:
    """What a product is rounded to before and which tile it asks for; that numbers in memory choose what a bag joins."""
    if isinstance(op, prim.Bag):
        return {"bag": True}
    if not isinstance(op, prim.Contract):
        return {}
    found: dict[str, Literal] = {"dtype": prim.tensor(op.operands[0]).dtype.name}
    kernel = op.parent_op()
    choice = kernel.get("choice") if isinstance(kernel, Op) else None
    found |= {"tf32": True} if op.get("tf32") else {}
    return found | ({"tile": choice.removeprefix("tile ")} if choice else {})


def _separate_scans(stages: Iterable[Stage]) -> list[Stage]:
    """Scans run in order along their loop: they share it only with what follows them."""
    found: list[Stage] = []
    for stage in stages:
        plain = [s for s in stage.stores if not s.scan and s.follows is None]
        for scan in [s for s in stage.stores if s.scan]:
            found.append(Stage(stage.loops, stores=[scan, *(s for s in stage.stores if s.follows is scan.memory)]))
        if plain:
            found.append(Stage(stage.loops, stores=plain))
    return found


def _elements(value: SSAValue) -> SSAValue:
    """What a root computes element by element: itself, but the source of a scatter."""
    return value.owner.operands[2] if isinstance(value.owner, prim.Scatter) else value


def _value(root: Root | None) -> SSAValue | None:
    return None if root is None else root.value


def _plain(index: Index) -> set[sympy.Symbol] | None:
    """The variables of an index made of different variables and constants only, else None."""
    variables = [i for i in index if isinstance(i, sympy.Expr)]
    if not all(v.is_Symbol for v in variables) or len(set(variables)) != len(variables):
        return None
    return set(variables)


def _in_one_reading(uses: Sequence[Node]) -> bool:
    """Whether the reductions need one walk over memory: none is of what another gives, or they are a mean and the squares around it."""
    found = list(dict.fromkeys(u.data[0] for u in uses))
    if not all(isinstance(op, prim.Reduce) for op in found):
        return False
    later = [op for op in found if _reads(op.operands[0], set(found) - {op})]
    if not later or len(found) != 2:
        return not later
    (square,), (first,) = [op.operands[0].owner for op in later], [op for op in found if op not in later]
    if not isinstance(square, prim.Elementwise) or square.name != "prim.mul" or len(set(square.operands)) != 1:
        return False
    distance = square.operands[0].owner
    around = isinstance(distance, prim.Elementwise) and distance.name == "prim.sub"
    return around and distance.operands[0] is first.operands[0]  # type: ignore[union-attr]


def _reads(value: SSAValue, reductions: set[Op]) -> bool:
    """Whether a value is computed from the result of one of the reductions."""
    seen, stack = set[SSAValue](), [value]
    while stack:
        found = stack.pop()
        if found in seen or not isinstance(found.owner, Operation):
            continue
        seen.add(found)
        if found.owner in reductions:
            return True
        stack += found.owner.operands
    return False
