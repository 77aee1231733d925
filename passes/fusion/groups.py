"""Groups of computations that become kernels, and the rules by which two groups become one.

A group iterates over parallel axes `rows` and, when it reduces or scans, over `columns` within each row. Its members are values
of the whole domain, of the rows, or ("inner" members) values recomputed where they are read, which are never stored. Two
groups merge when no other group has to run between them, their domains fit, and the cost model gains. The unit of cost is a byte moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.types import TensorType
from ..analysis.cost import (
    ADDRESS_COST,
    ALONE,
    CONTRACT_TILE,
    FEW_ELEMENTS,
    FEWEST_MEMBERS,
    GPU_LAUNCH,
    HELD_COLUMN,
    LAUNCH,
    LINE,
    MOST_AGAIN,
    MOST_LOADS,
    PER_OPERATION,
    SERIAL_ELEMENTS,
)
from ..analysis.sizes import hint
from ..core.context import CompileContext
from .graph import CONTRACT, EXTERN, POINTWISE, REDUCE, SCAN, Access, Graph, Node, elements, is_border, size_in_bytes
from .orders import Orders
from .places import is_made_again, loads_of, places_of, walks, written_out

Matching = dict[int, int]  # axes of one group to axes of the other


@dataclass(eq=False, slots=True)
class Group:
    """Computations that run together.

    `preds`: what it reads from each other group; `reads`: all it reads from memory; `clones`: other groups' computations that it repeats;
    `level`: greater than that of each group that has to run before.
    """

    index: int
    kind: str
    nodes: list[Node]
    rows: list[int]
    columns: list[int]
    work: float
    device: str = ""
    grid: bool = False  # its kernel is a grid of programs
    scatters: bool = False  # it stores elements at indices from memory, and does nothing else then
    preds: dict[int, list[Access]] = field(default_factory=dict)
    succs: set[int] = field(default_factory=set)
    reads: dict[SSAValue, list[Access]] = field(default_factory=dict)
    stored: set[Node] = field(default_factory=set)
    clones: set[Node] = field(default_factory=set)
    first: int = 0
    last: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two groups stay apart; `numbers`: what the cost model weighed, in bytes, where it decided."""

    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """A merge that is legal: axes to join, and bytes gained and lost."""

    joins: list[tuple[int, int]]
    kind: str
    rows: list[int]
    columns: list[int]
    extra: float = 0.0
    saved: float = 0.0


Worth: TypeAlias = Callable[[Plan, Group, Group], float]


def launch_bytes(group: Group) -> int:
    """What one more kernel costs."""
    return GPU_LAUNCH if group.grid else LAUNCH


def _only_addresses(group: Group) -> bool:
    """Whether a group does no more than say where to read: elements at computed places, and a little arithmetic on positions.

    Its reader computes addresses anyway, one for a whole row or column of a tile.
    """
    work = 0.0
    for node in group.nodes:
        if isinstance(node.op, prim.Pad) or isinstance(node.op, prim.Take) and node.op.get("inside"):
            continue
        if not node.is_position:
            return False
        work += node.cost
    return work <= ADDRESS_COST


class Groups:
    """The partition of a graph's nodes, one group a node at first."""

    def __init__(self, ctx: CompileContext, graph: Graph, max_ops: int, max_values: int, worth: Worth) -> None:
        self.machine, self.worth = ctx.machine, worth
        self.graph = graph
        self.axes, self.orders = graph.axes, Orders(graph)
        self.max_ops, self.max_values = max_ops, max_values
        self.group_of: list[Group] = []
        for node in graph.nodes:
            self.group_of.append(self._single(node))
        for node in graph.nodes:
            group = self.group_of[node.index]
            for access in node.accesses:
                group.reads.setdefault(access.base, []).append(access)
                if access.producer is not None:
                    source = self.group_of[access.producer.index]
                    group.preds.setdefault(source.index, []).append(access)
                    source.succs.add(group.index)
                    group.level = max(group.level, source.level + 1)
            for before in node.waits:
                self._follow(self.group_of[before.index], group)

    def _single(self, node: Node) -> Group:
        axes, columns = self.axes, list[int]()
        rows = axes.flat(node.loops)
        if node.kind in (REDUCE, CONTRACT):
            kept = set(axes.flat(node.dims))
            rows, columns = [a for a in rows if a in kept], [a for a in rows if a not in kept]
        elif node.kind == SCAN:
            inside = set(axes.leaves(node.loops[node.op["dim"]]))
            rows, columns = [a for a in rows if a not in inside], [a for a in rows if a in inside]
        group = Group(node.index, node.kind, [node], rows, columns, node.cost * node.iterations)
        group.first = group.last = node.index
        if node.kind != EXTERN:
            group.device, group.scatters = cast(TensorType, node.value.type).device, type(node.op) is prim.Scatter
            group.grid = self.machine.at(group.device).is_grid
        if node.is_sink or node.readers:
            group.stored.add(node)
        return group

    def link_effects(self, nodes: Iterable[Node]) -> None:
        """Make these nodes run in the order given."""
        previous: Node | None = None
        for node in nodes:
            if previous is not None:
                self._follow(self.group_of[previous.index], self.group_of[node.index])
            previous = node

    def _follow(self, first: Group, second: Group) -> None:
        """Let the second group run after the first."""
        second.preds.setdefault(first.index, [])
        first.succs.add(second.index)
        self._lift(first)

    def _lift(self, group: Group) -> None:
        """Bring the levels of all that follows above the group's."""
        stack = [group]
        while stack:
            found = stack.pop()
            for i in found.succs:
                following = self.group_of[i]
                if following.level <= found.level:
                    following.level = found.level + 1
                    stack.append(following)

    def all(self) -> list[Group]:
        """The groups, in the order of their first computation."""
        return [g for i, g in enumerate(self.group_of) if g.first == i]

    # what holds two groups apart

    def producer_plan(self, a: Group, b: Group) -> Plan | Refusal:
        """How the producer `a` could join its consumer `b`."""
        if EXTERN in (a.kind, b.kind):
            return Refusal("a library call is not fused")
        if CONTRACT in (a.kind, b.kind) and POINTWISE not in (a.kind, b.kind):
            return Refusal("nothing else is reduced in the kernel of a contraction")
        if a.scatters or b.scatters and (a.kind != POINTWISE or self._stored(a, b) & a.stored):
            return Refusal(
                "elements at indices from memory are stored when all of what they are computed from is known"
            )
        accesses = b.preds[a.index]
        gathered = self._gathered(a, b, [x for x in accesses if x.indirect])
        if gathered:
            return gathered
        limit = self._limits(a, b)
        if limit:
            return limit
        matching = self._match(((x.producer, x) for x in accesses), b)
        found = (
            self._pointwise_producer(a, b, matching, accesses)
            if a.kind == POINTWISE
            else self._reduction(a, b, matching)
        )
        if isinstance(found, Plan):
            if self._between(a, b):
                return Refusal("another kernel has to run between them")
            self._gain(found, a, b, accesses)
            if self.worth(found, a, b) <= 0:
                return Refusal(
                    f"recomputation costs {found.extra:.0f} bytes' worth, only {found.saved:.0f} bytes are saved",
                    {"saved": found.saved, "again": found.extra},
                )
        return found

    def sibling_plan(self, a: Group, b: Group) -> Plan | Refusal:
        """How two groups that read the same memory could run together."""
        if EXTERN in (a.kind, b.kind):
            return Refusal("a library call is not fused")
        if CONTRACT in (a.kind, b.kind):
            return Refusal("a contraction shares its kernel with what it reads and what reads it")
        if a.scatters or b.scatters:
            return Refusal("elements are stored at indices from memory")
        if b.index in a.succs or a.index in b.succs:
            return Refusal("one reads the other")
        shared = [v for v in a.reads if v in b.reads]
        saved = sum(size_in_bytes(v) for v in shared if self._is_read_whole(a, v) and self._is_read_whole(b, v))
        if not saved:
            return Refusal("no large input is shared")
        limit = self._limits(a, b)
        if limit:
            return limit
        matching = self._match_siblings(a, b, shared)
        if matching is None:
            return Refusal("the shared input is read in different orders")
        if a.kind == POINTWISE:
            found = self._same_domain(a, b, matching)
        elif b.kind == POINTWISE:
            found = self._same_domain(b, a, {y: x for x, y in matching.items()})
        else:
            found = self._reduction(a, b, matching)
        if isinstance(found, Plan):
            if self._between(a, b) or self._between(b, a):
                return Refusal("another kernel has to run between them")
            found.saved = saved + launch_bytes(a)
            if self.worth(found, a, b) <= 0:
                return Refusal(f"it is not worth it: {found.saved:.0f} bytes are saved")
        return found

    def _gathered(self, a: Group, b: Group, accesses: list[Access]) -> Refusal | None:
        """Values read at indices from memory are computed element by element: fine when fewer are read than there are.

        A GPU's arithmetic is cheap: there the cost model weighs what is computed again.
        """
        for access in accesses:
            if a.kind == SCAN or cast(Node, access.producer) in self._stored(a, b):
                return Refusal("the value is stored, and gathered from memory")
            if access.evaluations > elements(access.base) and not a.grid:
                return Refusal("each gathered element would be computed again")
        return None

    def _limits(self, a: Group, b: Group) -> Refusal | None:
        if a.device != b.device:
            return Refusal("they run on different devices")
        if len(a.nodes) + len(b.nodes) > self.max_ops:
            return Refusal(f"more than {self.max_ops} operations in one kernel")
        values = len(a.reads) + len(b.reads) + len(a.stored) + len(b.stored)
        if values > self.max_values:
            exact = len(a.reads.keys() | b.reads.keys()) + len(self._stored(a, b))
            if exact > self.max_values:
                return Refusal(f"more than {self.max_values} inputs and outputs")
        return None

    def _between(self, a: Group, b: Group) -> bool:
        """Whether some third group lies on a path from a to b. All on such a path are of levels between those of a and b."""
        if b.level <= a.level + 1:
            return False
        group_of = self.group_of
        seen = {b.index, a.index}
        stack = [i for i in a.succs if i not in seen]
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            group = group_of[i]
            if group.level >= b.level:
                continue
            if b.index in group.succs:
                return True
            stack += [j for j in group.succs if j not in seen]
        return False

    def _stored(self, a: Group, b: Group) -> set[Node]:
        """What a merged group would still store."""
        ids = (a.index, b.index)
        of = self.group_of
        return {
            n for n in a.stored | b.stored if n.is_sink or any(of[x.reader.index].index not in ids for x in n.readers)
        }

    # how axes correspond

    def domain(self, group: Group) -> list[int]:
        """All axes over which the group iterates."""
        return self.axes.leaves(group.rows + group.columns)

    def _numel(self, axes: Iterable[int]) -> int:
        return math.prod(hint(self.axes.sizes[a]) for a in axes)

    def _match(self, pairs: Iterable[tuple[Node | None, Access]], b: Group) -> Matching | None:
        """Which axes of the producers are which axes of `b`'s domain; None when one would be two at once."""
        raw, splits = [], self.axes.splits
        for producer, access in pairs:
            for given, taken in zip(cast(Node, producer).dims, access.dims, strict=True):
                aligned = self.axes.align(given, taken)
                if aligned is None:
                    return None
                raw += aligned
        return self._bijection(raw, splits, b)

    def _match_siblings(self, a: Group, b: Group, shared: Sequence[SSAValue]) -> Matching | None:
        raw, splits = [], self.axes.splits
        for value in shared:
            x, y = a.reads[value][0], b.reads[value][0]
            if x.indirect or y.indirect:
                continue
            for given, taken in zip(x.dims, y.dims, strict=True):
                aligned = self.axes.align(given, taken)
                if aligned is None:
                    return None
                raw += aligned
        found = self._bijection(raw, splits, b)
        inside = set(self.domain(a))
        return None if found is None else {x: y for x, y in found.items() if x in inside}

    def _bijection(self, raw: list[tuple[int, int]], splits: int, b: Group) -> Matching | None:
        """The pairs as a map of axes into the domain of `b`; `splits`: how many axes were split before they were aligned."""
        while splits != self.axes.splits:  # a later alignment may have split an axis of an earlier pair
            splits = self.axes.splits
            raw = [p for x, y in raw for p in self.axes.align([x], [y]) or ()]
        domain = set(self.domain(b))
        matching: Matching = {}
        back: Matching = {}
        for x, y in raw:
            if y in domain and (matching.setdefault(x, y) != y or back.setdefault(y, x) != x):
                return None
        return matching

    # domains that fit

    def _pointwise_producer(
        self, a: Group, b: Group, matching: Matching | None, accesses: list[Access]
    ) -> Plan | Refusal:
        stored = any(n in a.stored for n in self._stored(a, b))
        domain_a, domain_b = self.domain(a), self.domain(b)
        if matching is not None and all(x in matching for x in domain_a):
            fits = self._same_domain(a, b, matching, stored)
            if isinstance(fits, Plan):
                return fits
            if stored:
                return fits
            images = {matching[x] for x in domain_a}
            evaluations = self._hoisted(self.orders.of(b.reads, domain_b), images)
            if b.kind == CONTRACT:  # once for each tile that reads it
                apart = [axis for axis in self.axes.leaves(b.rows) if axis not in images]
                evaluations = self._numel(domain_a) * -(-self._numel(apart) // CONTRACT_TILE)
            joins = list(matching.items())
        else:
            if stored:
                return Refusal("the intermediate is stored as well, and read in another order or part")
            evaluations = sum(x.evaluations for x in accesses)
            joins = []
        if b.kind == SCAN and not self._enough_rows(b.rows, b.columns):
            return Refusal("a scan over few rows would serialise it")
        plan = Plan(joins, b.kind, b.rows, b.columns)
        again = max(0, evaluations - self._numel(domain_a))
        gaps = any(isinstance(v, prim.Slice) and v["steps"][-1:] not in ((), (1,)) for x in accesses for v in x.views)
        if again and not b.grid and gaps and any(isinstance(n.op, prim.Pad) for n in a.nodes):
            return Refusal("loads under a condition that leave elements out do not become vectors")
        if again and b.grid and not _only_addresses(a):
            loads = places_of(accesses) * loads_of(a.nodes)
            if loads > MOST_LOADS:
                return Refusal(f"{loads} loads would be written out, and most of them at new places")
        if b.grid and any(x.views for x in accesses):
            written = written_out(a.nodes + b.nodes) - len(a.nodes) - len(b.nodes)
            if written > MOST_AGAIN:
                return Refusal(f"{written} operations would be written once more, at other places")
        plan.extra = self._recomputation(a, again)
        return plan

    def _same_domain(self, a: Group, b: Group, matching: Matching, stored: bool = True) -> Plan | Refusal:
        """Pointwise `a` over the whole domain of `b`, or over its rows."""
        domain_a = self.domain(a)
        images = {matching[x] for x in domain_a if x in matching}
        rows, columns = self.axes.leaves(b.rows), self.axes.leaves(b.columns)
        fits = len(images) == len(domain_a) and images in (set(rows + columns), set(rows))
        if not fits:
            return Refusal("the intermediate is stored as well, over another domain")
        if b.kind == CONTRACT and images != set(rows):
            return Refusal("what a contraction reads is stored as well")
        is_serial = b.kind != POINTWISE and images != set(rows) and (stored or b.kind == SCAN)
        if is_serial and not self._enough_rows(rows, columns):
            return Refusal("too few rows to spread over threads")
        if b.grid and b.kind == REDUCE and stored and images != set(rows) and self._goes_down(a, b, matching):
            return Refusal("columns are added up by a launch of its own, which reads what is stored")
        return Plan(list(matching.items()), b.kind, b.rows, b.columns)

    def _goes_down(self, a: Group, b: Group, matching: Matching) -> bool:
        """Whether `b` reduces along other axes than that along which what `a` stores is contiguous."""
        stored = [n for n in a.stored if n.iterations == self._numel(self.domain(a))]
        last = [self.axes.leaves(n.dims[-1])[-1:] for n in stored if n.dims]
        columns = set(self.axes.leaves(b.columns))
        return bool(stored) and not any(matching.get(x, x) in columns for axes in last for x in axes)

    def _reduction(self, a: Group, b: Group, matching: Matching | None) -> Plan | Refusal:
        """`a` reduces or scans; `b` uses its result, row by row."""
        if self._is_longer(a, b):
            return Plan([], a.kind, a.rows, a.columns)
        if matching is None:
            return Refusal("the reduction's result is read in two orders")
        rows_a, columns_a = self.axes.leaves(a.rows), self.axes.leaves(a.columns)
        if not all(x in matching for x in rows_a):
            return Refusal("the consumer does not run over the rows of the reduction")
        images = {matching[x] for x in rows_a}
        rest = [y for y in self.domain(b) if y not in images]
        joins = list(matching.items())
        if b.kind != POINTWISE and images != set(self.axes.leaves(b.rows)):
            return Refusal("reductions over different axes")
        if rest:
            mapped = {matching[x] for x in columns_a if x in matching}
            if mapped:
                if mapped != set(rest) or not all(x in matching for x in columns_a):
                    return Refusal("the consumer runs over other columns than the reduction")
            else:
                pairs = self.axes.align(columns_a, sorted(rest, key=self.domain(b).index))
                if pairs is None:
                    return Refusal("the consumer runs over other columns than the reduction")
                joins += pairs
            refusal = self._whole_domain_consumer(a, b)
            if refusal is not None:
                return refusal
        if rest and a.kind == CONTRACT:
            return Refusal("what is computed from a contraction is computed of its elements")
        kind = CONTRACT if a.kind == CONTRACT else SCAN if SCAN in (a.kind, b.kind) else REDUCE
        return Plan(joins, kind, a.rows, a.columns)

    def _is_longer(self, a: Group, b: Group) -> bool:
        """Whether `b` is what `a` computes with zeros behind it, for library calls: rows that begin at multiples of 16 bytes.

        `a` writes its elements to where they lie then, and something else the zeros (`Planner`).
        """
        if not b.grid or a.kind != REDUCE or len(b.nodes) != 1 or b.clones:
            return False
        node = b.nodes[0]
        if not is_border(node):
            return False
        (access,) = node.accesses
        return (
            not access.views
            and access.producer in a.nodes
            and access.producer.iterations == self._numel(self.domain(a))
        )

    def _enough_rows(self, rows: Sequence[int], columns: Sequence[int]) -> bool:
        n = self._numel(self.axes.leaves(rows))
        return n >= self.machine.cpu.threads or n * self._numel(self.axes.leaves(columns)) <= SERIAL_ELEMENTS

    def _whole_domain_consumer(self, a: Group, b: Group) -> Refusal | None:
        """A second pass over each row must leave the rows parallel, and find the row in the cache."""
        if not self._enough_rows(a.rows, a.columns):
            return Refusal("a whole-domain consumer of a reduction with too few rows would run serially")
        columns = self.axes.leaves(a.columns)
        few = a.grid and self._numel(self.axes.leaves(a.rows)) < 2 * self.machine.gpu.multiprocessors
        if few and self._numel(columns) > ALONE and walks(a.nodes + b.nodes) > 1:
            return Refusal("programs that share a long row wait for each other once")
        values = [x for x in a.reads.values() if not x[0].indirect]
        full = [x[0] for x in values if elements(x[0].base) >= self._numel(self.domain(a))]
        if full and self.orders.innermost(full[0]) not in columns:
            count = self._numel(columns)
            if a.grid:  # chunks of columns have a mean of their own each, and are joined: memory is read once for a mean and a variance
                alone = count <= HELD_COLUMN or self._numel(self.domain(a)) <= FEW_ELEMENTS
                reduces = b.kind == REDUCE and not self._stores_elements(a, b)
                return (
                    None if alone or reduces else Refusal(f"a column of {count} elements is more than a program holds")
                )
            tile = count * LINE * max(1, len(full))
            if tile > self.machine.cpu.l2_bytes:
                return Refusal(
                    f"a column's tile of {tile} bytes does not stay in the L2 cache of {self.machine.cpu.l2_bytes}"
                )
        return None

    def _stores_elements(self, a: Group, b: Group) -> bool:
        """Whether the two would store a value of the whole domain that `recompute` does not take back."""
        size = self._numel(self.domain(a))
        large = [n for n in self._stored(a, b) if elements(n.value) >= size]
        return not all(is_made_again(n, lambda x: self.group_of[x.index] in (a, b)) for n in large)

    # bytes

    def _hoisted(self, domain: Sequence[int], present: set[int]) -> int:
        """How often a value over some of the axes is computed, when it is lifted out of the inner loops that it does not need."""
        last = max((i for i, axis in enumerate(domain) if axis in present), default=-1)
        return self._numel(domain[: last + 1])

    def _recomputation(self, a: Group, evaluations: float) -> float:
        """What `evaluations` more elements of the group cost."""
        if a.grid and _only_addresses(a):
            return 0.0
        per_element = a.work / max(1, self._numel(self.domain(a)))
        return evaluations * (per_element + len(a.reads)) * PER_OPERATION

    def _is_read_whole(self, group: Group, value: SSAValue) -> bool:
        return 2 * elements(value) >= self._numel(self.domain(group)) and not group.reads[value][0].indirect

    def _gain(self, plan: Plan, a: Group, b: Group, accesses: list[Access]) -> None:
        kept = self._stored(a, b)
        for node in {cast(Node, x.producer) for x in accesses}:
            plan.saved += size_in_bytes(node.value) * (1 if node in kept else 2)
        plan.saved += sum(size_in_bytes(v) for v in a.reads if v in b.reads) + launch_bytes(a)

    # merging

    def merge_small(self) -> int:
        """Put together what is small and needs only arguments: statistics of norms, masks, scaled weights.

        Such groups share no domain, but one call is cheaper than many; on a GPU each would be a launch. Gives the number of groups that vanished.
        Groups that compute the same of many tensors stay alone: `lower` makes one launch of them, with those that are large.
        """
        kept: Group | None = None
        vanished = 0
        alike = Counter(map(_computes, self.all()))
        for group in self.all():
            if (computes := _computes(group)) and alike[computes] >= FEWEST_MEMBERS:
                continue
            size = sum(elements(n.value) for n in group.stored)
            if group.kind != POINTWISE or group.preds or not 0 < size <= SERIAL_ELEMENTS or group.grid:
                continue
            if kept is None or self._limits(kept, group):
                kept = group
                continue
            kept = self.merge(kept, group, Plan([], POINTWISE, kept.rows, []))
            vanished += 1
        return vanished

    def merge(self, a: Group, b: Group, plan: Plan) -> Group:
        """Make one group of two."""
        for x, y in plan.joins:
            self.axes.union(x, y)
        stored = self._stored(a, b)
        keep, gone = (a, b) if a.index < b.index else (b, a)
        for i in gone.preds:
            succs = self.group_of[i].succs
            succs.discard(gone.index)
            succs.add(keep.index)
        for i in gone.succs:
            preds = self.group_of[i].preds
            preds.setdefault(keep.index, []).extend(preds.pop(gone.index))
        for i, accesses in gone.preds.items():
            keep.preds.setdefault(i, []).extend(accesses)
        keep.succs |= gone.succs
        for ids in (keep.succs, keep.preds):
            for i in (keep.index, gone.index):
                ids.discard(i) if isinstance(ids, set) else ids.pop(i, None)
        for value, found in gone.reads.items():
            keep.reads.setdefault(value, []).extend(found)
        keep.nodes += gone.nodes
        for node in gone.nodes:
            self.group_of[node.index] = keep
        inside = [v for v in keep.reads if self._belongs(v, keep)]
        for value in inside:
            del keep.reads[value]
        keep.kind, keep.rows, keep.columns = plan.kind, plan.rows, plan.columns
        keep.clones |= gone.clones
        keep.scatters |= gone.scatters
        keep.work += gone.work + plan.extra / PER_OPERATION
        keep.stored = stored
        keep.first, keep.last = min(keep.first, gone.first), max(keep.last, gone.last)
        keep.level = max(keep.level, gone.level)
        self._lift(keep)
        return keep

    def _belongs(self, value: SSAValue, group: Group) -> bool:
        node = self.graph.node_of.get(value)
        return node is not None and self.group_of[node.index] is group


def _computes(group: Group) -> tuple[tuple[str, int], ...]:
    """How many of which operations a group of single elements has, whatever its sizes are."""
    if not all(isinstance(n.op, prim.Elementwise | prim.Cast) for n in group.nodes):
        return ()
    return tuple(sorted(Counter(n.op.name for n in group.nodes).items()))
