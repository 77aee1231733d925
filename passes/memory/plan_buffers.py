"""plan-buffers: where each value lives. The function becomes the host program: allocate, view, launch, call, copy, free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.binding import all_late_names
from ...ir.dialects import buffer, kernel, loop, prim
from ...ir.symbols import Dim, FloorDiv, contiguous_strides, dim, free_symbols, known_equal
from ...ir.types import RefType, TensorType, ref_type
from ..analysis.aliases import Aliases
from ..analysis.alignment import note_unaligned
from ..analysis.cost import ALIGNMENT, LENT, LENT_PART, WORTH_LENDING
from ..analysis.strides import is_dense, is_view, memory_strides, same_layout, view_of
from ..core.base import Pass, PassError
from ..core.context import CompileContext
from .launches import Launches, read_where_written
from .written_arguments import Writes, give_own_memory, in_place_writes, write_in_place


@dataclass(frozen=True)
class PlanBuffers(Pass):
    """Give every value its memory: lifetimes, in-place results, one arena with reuse.

    Options:
        in_place: let a kernel's result take the memory of an input that dies there.
        reuse: let values whose lifetimes do not meet share a place in the arena.
    """

    name: ClassVar[str] = "plan-buffers"
    level: ClassVar[str] = "loop"
    gives: ClassVar[str | None] = "buffer"
    requires: ClassVar[tuple[str, ...]] = ("choose-forms",)
    after: ClassVar[tuple[str, ...]] = ("choose-forms",)

    in_place: bool = True
    reuse: bool = True

    def pack(self, places: list[Place]) -> int:
        """Give places of known sizes their offsets in the arena; the arena's bytes. A planner of others overrides this.

        Two places whose times overlap must not overlap in memory, and offsets are multiples of 64: both are checked.
        """
        return pack_largest_first(places, self.reuse)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
        functions = [op for op in module.body.block.ops if isinstance(op, prim.Func)]
        for func in functions:
            planner = _Planner(self, ctx, func, Launches(kernels))
            planner.plan()
            planner.rewrite()
        give_own_memory(functions)
        launches: dict[str, list[buffer.Launch]] = {}
        for op in [op for func in functions for op in func.block_body.ops if isinstance(op, buffer.Launch)]:
            launches.setdefault(op["kernel"], []).append(op)
        for name, found in launches.items():
            if "members" in kernels[name].attributes:
                read_where_written(kernels[name], found)
        for func in functions:
            note_unaligned(func.block_body.ops, kernels, ctx.machine)


@dataclass
class Place:
    """One value's memory: bytes, and the steps between which it is in use."""

    size: Dim
    first: int
    last: int
    offset: Dim = 0
    merged: SSAValue | None = None  # in place: lives where this value lived


@dataclass
class _Planner:
    options: PlanBuffers
    ctx: CompileContext
    func: prim.Func
    launches: Launches
    places: dict[SSAValue, Place] = field(default_factory=dict)  # arena values
    outputs: dict[SSAValue, RefType] = field(default_factory=dict)  # values that the user receives
    on_device: set[SSAValue] = field(default_factory=set)  # values with memory of their own: all on a GPU, few on a CPU
    last_use: dict[SSAValue, int] = field(default_factory=dict)  # by root
    aliases: Aliases = field(default_factory=Aliases)
    allocated: dict[SSAValue, SSAValue] = field(default_factory=dict)  # outputs as the user receives them
    late: frozenset[str] = frozenset()  # names of sizes that library calls bind: the arena is made before
    writing: Operation | None = None  # the first kernel that writes to an argument
    arena_bytes: Dim = 0
    writes: Writes = field(default_factory=lambda: Writes({}, frozenset()))
    block: Block = field(default_factory=Block)  # the host program
    new: dict[SSAValue, SSAValue] = field(default_factory=dict)  # memory by value

    # -- decisions

    def plan(self) -> None:
        """Fill in `outputs` and `places`."""
        steps = list(self.func.block_body.ops)
        self.late = all_late_names(steps)
        for op in steps:
            self.aliases.add(op)
            for result in op.results:
                self._join_updated(op, result)
        self.last_use = self.aliases.last_uses(self.func.block_body)
        self._find_outputs(steps[-1])
        if self.options.in_place:
            self.writes = in_place_writes(self.func, self.aliases, self.launches, self._is_asynchronous)
            self.ctx.diagnostics.count("plan-buffers", "arguments written in place", len(self.writes.mutations))
        for number, op in enumerate(steps):
            if _is_planned(op):
                for result in op.results:
                    if result in self.writes.target or self.root(result) is not result:
                        continue
                    own = result in self.aliases.counted or not self._names(result).isdisjoint(self.late)
                    if result not in self.outputs and (own or self._is_asynchronous(result)):
                        self.on_device.add(result)
                    elif result not in self.outputs:
                        last = self.last_use.get(result, number)
                        self.places[result] = Place(_bytes(result), number, last)
                if self.options.in_place and isinstance(op, loop.Launch):
                    self._in_place(number, op)
                    self._take_over(number, op)
        self._pack()
        self._lend(steps)
        stats = self.ctx.diagnostics
        stats.count("plan-buffers", "arena values", len(self.places))
        if isinstance(self.arena_bytes, int):
            stats.count("plan-buffers", "arena bytes", self.arena_bytes)
            sizes = [p.size for p in self.places.values() if isinstance(p.size, int)]
            stats.count("plan-buffers", "bytes without reuse", sum(sizes))

    def _is_asynchronous(self, value: SSAValue) -> bool:
        """Whether a value lies in memory of a GPU."""
        return self.ctx.machine.at(prim.tensor(value).device).is_asynchronous

    @staticmethod
    def _names(value: SSAValue) -> set[str]:
        """The names in a value's sizes, strides included: they are products of sizes."""
        return set(map(str, free_symbols(value.type.shape)))  # type: ignore[attr-defined]

    def _take_over(self, number: int, op: loop.Launch) -> None:
        """On a GPU: let the only result of a pointwise kernel have the memory of an operand that is used here for the last time.

        A kernel with more results, or that reduces, may have several threads read what one of them overwrites.
        """
        if len(op.results) != 1 or op.results[0] not in self.on_device or not self.launches.is_pointwise(op):
            return
        if self.launches.updated(op) is not None:  # what it changes is copied there first, over the other operand
            return
        result, readers = op.results[0], self.aliases.counts(op.operands)
        for i, operand in enumerate(op.operands):
            made = _is_product(operand.owner) and self._is_asynchronous(operand)
            taken = operand in self.outputs or operand in self.writes.target
            free = not taken and self.root(operand) is operand
            alone = readers[operand] == 1
            if not ((made or operand in self.on_device) and free and alone) or self.last_use[operand] != number:
                continue
            if not self.launches.pairs(op, i, 0) or not known_equal(_bytes(operand), _bytes(result)):
                continue
            self.on_device.discard(result)
            self.on_device.add(operand)  # it is given back after the result's last use
            self.aliases.join(result, operand)
            self.last_use[operand] = self.last_use.pop(result, number)
            self.ctx.diagnostics.count("plan-buffers", "in-place results")
            return

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose memory this value is, or is a view of."""
        return self.aliases.root(value)

    def _join_updated(self, op: Operation, result: SSAValue) -> None:
        """A kernel that changes some elements of a value that nobody else reads writes where it is, and so does a library's sum."""
        before = self.launches.updated_unread(op)
        made = before is not None and isinstance(before.owner, loop.Launch)
        if self.options.in_place and isinstance(op, kernel.Extern) and op["target"] in SUMS:
            before = op.operands[0]
            made = isinstance(before.owner, loop.Launch) or _is_product(before.owner) or self._is_sum_in_place(before)
        if before is not None and made and len(list(before.uses)) == 1:
            same = prim.tensor(before) == prim.tensor(result)
            if same and same_layout(prim.tensor(result).shape, memory_strides(before), memory_strides(result)):
                self.aliases.join(result, self.root(before))

    def _is_sum_in_place(self, value: SSAValue) -> bool:
        """Whether a value is a library's sum that writes to memory that the program has made, not a view of anything."""
        op = value.owner
        return isinstance(op, kernel.Extern) and op["target"] in SUMS and self.root(value) is not value

    def _find_outputs(self, terminator: Operation) -> None:
        """Kernel results that leave the function are allocated in the very shape in which they leave."""
        received = self._received(terminator)
        for k, value in enumerate(terminator.operands):
            root = self.root(value)
            if k not in received or not _is_planned(root.owner):
                continue
            view = view_of(value)
            t = prim.tensor(value)
            whole = view is not None and view.base is root and view.offset == 0 and is_dense(view.shape, view.strides)
            whole = whole and t.dtype == prim.tensor(root).dtype  # not a view that reads the memory as another type
            if whole and known_equal(t.numel, prim.tensor(root).numel) and root not in self.outputs:
                assert view is not None
                self.outputs[root] = ref_type(t.shape, self._visible(k, view.shape, view.strides), t.dtype, t.device)
            else:
                self.outputs.setdefault(root, _memory(root))

    def _received(self, terminator: Operation) -> set[int]:
        """The returned values that the user sees; the others are copied into arguments."""
        if "results" not in self.func.attributes:
            return set(range(len(terminator.operands)))
        return {spec[1] for spec in self.func["results"] if spec[0] in ("value", "alias_output")}

    def _visible(self, k: int, shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Eager's strides of returned value k where ours differ in dimensions of size 1 only: the user sees those too."""
        recorded = self.func.get("result_strides")
        wanted = recorded[k] if recorded else None
        wanted = contiguous_strides(shape) if wanted is None else wanted
        return wanted if recorded and same_layout(shape, strides, wanted) else strides

    def _in_place(self, number: int, op: loop.Launch) -> None:
        """Let a result take over the memory of an input that is used here for the last time."""
        readers = self.aliases.counts(op.operands)
        donors = {
            i: place
            for i, operand in enumerate(op.operands)
            if (place := self.places.get(operand)) is not None
            and place.last == number
            and readers[operand] == 1  # no view of it is read beside it
        }
        for position, result in enumerate(op.results):
            place = self.places.get(result)
            if place is None:
                continue
            for i, donor in donors.items():
                if known_equal(donor.size, place.size) and self.launches.pairs(op, i, position):
                    place.merged = op.operands[i]
                    del donors[i]
                    self.ctx.diagnostics.count("plan-buffers", "in-place results")
                    break

    def _pack(self) -> None:
        """Offsets for all places: the largest first, each at the lowest free offset."""
        owners: dict[SSAValue, SSAValue] = {}
        for value, place in self.places.items():
            owner = owners.get(place.merged, place.merged) if place.merged is not None else value
            owners[value] = owner
            if owner is not value:
                self.places[owner].last = max(self.places[owner].last, place.last)
        own = [(v, p) for v, p in self.places.items() if owners[v] is v]
        if all(isinstance(p.size, int) for _, p in own):
            self.arena_bytes = self.options.pack([p for _, p in own])
            if type(self.options).pack is not PlanBuffers.pack:  # ours is right
                check_packed([p for _, p in own], self.arena_bytes)
        else:
            self.arena_bytes = _pack_symbolic([p for _, p in own], self.options.reuse)
        for value, owner in owners.items():
            self.places[value].offset = self.places[owner].offset

    def _lend(self, steps: list[Operation]) -> None:
        """On a CPU, in a step that updates what it is given: let large values have memory of their own while they live, where the arena,
        which is held for the whole call, and what libraries hold beside it would take much more: what forward saves is gone when
        libraries give the gradients. Elsewhere the arena is kept, because fresh memory costs time.
        """
        if not self.writes.target:
            return
        libraries = [0] * len(steps)
        for number, op in enumerate(steps):
            for result in op.results if isinstance(op, kernel.Extern) and not _is_planned(op) else ():
                size = _bytes(result) if self.root(result) is result and isinstance(result.type, TensorType) else 0
                if not isinstance(size, int):
                    return
                _add(libraries, number, self.last_use.get(result, number), size)
        if not isinstance(self.arena_bytes, int) or self.arena_bytes + max(libraries, default=0) < WORTH_LENDING:
            return
        merged = {place.merged for place in self.places.values()}
        large = {
            value: place
            for value, place in self.places.items()
            if place.merged is None and value not in merged and int(place.size) >= LENT
        }
        before, after = self.arena_bytes + max(libraries), list(libraries)
        for place in large.values():
            _add(after, place.first, place.last, int(place.size))
        rest = [replace(p) for v, p in self.places.items() if v not in large and p.merged is None]
        if before - pack_largest_first(rest, self.options.reuse) - max(after) < max(WORTH_LENDING, LENT_PART * before):
            return
        self.places = {v: p for v, p in self.places.items() if v not in large}
        self.on_device.update(large)
        self._pack()
        self.ctx.diagnostics.count("plan-buffers", "values with memory of their own", len(large))

    # -- the new function

    def rewrite(self) -> None:
        """Replace the function's body by the host program."""
        old, freed = self.func.block_body, set[SSAValue]()
        types = [_memory(arg) if isinstance(arg.type, TensorType) else arg.type for arg in old.args]
        self.block = Block(arg_types=types)
        for before, after in zip(old.args, self.block.args, strict=True):
            after.name_hint = before.name_hint
            self.new[before] = after
        for number, op in enumerate(old.ops):
            self._step(op)
            if not isinstance(op, prim.Return):
                self._free(number, op, freed)
        if self.writing is not None and not self.writes.early:
            self._allocate_first(self.writing)
        region = self.func.regions[0]
        region.detach_block(0)
        region.add_block(self.block)
        self.func["arena_bytes"] = self.arena_bytes
        if self.writes.early:
            self.func["writes_early"] = True
        if "owned" in self.func.attributes:
            self.func["owned"] = tuple(row for row in self.func["owned"] if row in self.writes.mutations)
        old.erase()

    def _allocate_first(self, writing: Operation) -> None:
        """Take the memory of later results in front of the first write to an argument: nothing that comes after it may fail."""
        steps = list(self.block.ops)
        for op in steps[steps.index(writing) :]:
            known = self.late.isdisjoint(self._names(op.results[0])) if isinstance(op, buffer.Alloc) else False
            if isinstance(op, buffer.Alloc) and op["pool"] != "arena" and known:
                op.detach()
                self.block.insert_op_before(op, writing)

    def _step(self, op: Operation) -> None:
        if isinstance(op, loop.Launch | kernel.Contract | kernel.Extern) and _is_planned(op):
            self._launch(op)
        elif isinstance(op, kernel.Extern) and op.results and op.results[0] in self.writes.target:
            self.block.add_ops(write_in_place(op, self._moved(op.operands), _call_literals(op)))
            self.new[op.results[0]] = self.new[self.writes.target[op.results[0]]]
        elif isinstance(op, kernel.Extern):
            self._extern(op)
        elif is_view(op):
            self._view(op.results[0])
        elif isinstance(op, prim.Return):
            self._return(op)
        else:
            raise PassError(f"plan-buffers: {op.name} is not expected here; run 'schedule' first")

    def _moved(self, values: Iterable[SSAValue]) -> list[SSAValue]:
        """The memory of values."""
        return [self.new[v] for v in values]

    def _seen_as(self, memory: SSAValue, ref: RefType, offset: Dim = 0) -> SSAValue:
        """Memory under other sizes, strides or another dtype."""
        view = buffer.View.make([memory], [ref], {"offset": offset})
        self.block.add_op(view)
        return view.results[0]

    def _launch(self, op: loop.Launch | kernel.Contract | kernel.Extern) -> None:
        outputs = [self._place_of(result, op) for result in op.results]
        operands, before = self._moved(op.operands), self.launches.updated(op)
        written = before is not None and self.writes.target.get(op.results[0]) is before
        if before is not None and not written and self.root(op.results[0]) is not self.root(before):
            self._copy(self.new[before], outputs[0], op.results[0])
        if isinstance(op, loop.Launch):
            self.block.add_op(buffer.Launch.make([*operands, *outputs], [], {"kernel": op["kernel"]}, loc=op.location))
            if self.writing is None and any(result in self.writes.target for result in op.results):
                self.writing = self.block.last_op
        else:
            # The kernel is made for the value itself, not for what the user receives.
            wanted = list(map(_memory, op.results))
            outputs = [m if m.type == ref else self._seen_as(m, ref) for m, ref in zip(outputs, wanted, strict=True)]
            attrs, regions = _call_literals(op), [region.clone() for region in op.regions]
            if isinstance(op, kernel.Contract):
                call: Operation = buffer.Contract.make([*operands, *outputs], [], attrs, regions, op.location)
            else:
                call = buffer.Extern.make([*operands, *outputs], [], {**attrs, "out": True}, regions, op.location)
            self.block.add_op(call)
        for result in op.results:
            final, memory = self.outputs.get(result), _memory(result)
            readers = (use.operation for use in result.uses)
            itself = any(isinstance(op, kernel.Contract | kernel.Extern | prim.Return) for op in readers)
            if final is not None and itself and (final.shape, final.strides) != (memory.shape, memory.strides):
                # library calls see the value itself, not the view of it that the user receives
                self.allocated[result] = self.new[result]
                self.new[result] = self._seen_as(self.new[result], memory)

    def _place_of(self, result: SSAValue, op: Operation) -> SSAValue:
        """The memory that a kernel writes a result to: that of another value, or new memory."""
        shared, target = self.root(result), self.writes.target.get(result)
        if target is not None or shared is not result:
            memory, ref = self.new[shared if target is None else target], _memory(result)
            same = memory.type == ref if target is None else prim.tensor(result).shape == prim.tensor(target).shape
            self.new[result] = memory if same else self._seen_as(memory, ref)
            return self.new[result]
        place, attrs = self.places.get(result), dict[str, object](pool="device")
        if place is not None:
            attrs = {"pool": "arena", "offset": place.offset} | ({} if place.merged is None else {"in_place": True})
        elif result not in self.on_device:
            attrs = {"pool": "output"}
        ref = self.outputs[result] if attrs["pool"] == "output" else _memory(result)
        alloc = buffer.Alloc.make([], [ref], attrs, loc=op.location)
        alloc.results[0].name_hint = result.name_hint
        self.block.add_op(alloc)
        self.new[result] = alloc.results[0]
        return alloc.results[0]

    def _copy(self, source: SSAValue, target: SSAValue, value: SSAValue) -> None:
        """All elements of a value, under its shape, into other memory."""
        ref = _memory(value)
        ends = [m if m.type.shape == ref.shape else self._seen_as(m, ref) for m in (source, target)]  # type: ignore[attr-defined]
        self.block.add_op(buffer.Copy.make(ends, [], {}))

    def _extern(self, op: kernel.Extern) -> None:
        if op["target"] in SUMS and self.root(op.results[0]) is not op.results[0]:
            attrs = {**_call_literals(op), "target": SUMS[op["target"]]}
            self.block.add_op(buffer.Extern.make(self._moved(op.operands), [], attrs, loc=op.location))
            self.new[op.results[0]] = self.new[op.operands[0]]
        elif (start := self.aliases.start(op)) is not None:
            base, offset = start
            self.new[op.results[0]] = self._seen_as(self.new[base], _memory(op.results[0]), offset)
        else:
            types = [_memory(r) for r in op.results]
            call = buffer.Extern.make(self._moved(op.operands), types, _call_literals(op), loc=op.location)
            self.block.add_op(call)
            self.new |= dict(zip(op.results, call.results, strict=True))
        for result in op.results:
            self.new[result].name_hint = result.name_hint

    def _view(self, value: SSAValue) -> None:
        view, t = view_of(value), prim.tensor(value)
        if view is None:
            raise PassError(f"plan-buffers: {value.owner} is not a view of memory; run 'layout' first")
        ref = ref_type(t.shape, view.strides, t.dtype, t.device)
        self.new[value] = self._seen_as(self.new[view.base], ref, view.offset)
        self.new[value].name_hint = value.name_hint

    def _return(self, op: prim.Return) -> None:
        """Copies into mutated arguments, then the return. An output allocated in its final shape is returned as it is."""
        returned = []
        recorded, received = self.func.get("result_strides"), self._received(op)
        for k, value in enumerate(op.operands):
            root = self.root(value)
            view = view_of(value)
            final = self.outputs.get(root)
            direct = (
                final is not None
                and view is not None
                and final.dtype == prim.tensor(value).dtype
                and view.offset == 0
                and final.shape == view.shape
                and same_layout(view.shape, final.strides, view.strides)
            )
            memory = self.allocated.get(root, self.new[root]) if direct else self.new[value]
            ref = memory.type
            if k in received and recorded and isinstance(ref, RefType):
                seen = self._visible(k, ref.shape, ref.strides)
                if seen != ref.strides:
                    memory = self._seen_as(memory, ref_type(ref.shape, seen, ref.dtype, ref.device))
            returned.append(memory)
        for argument, k in self.func.get("mutations", ()):
            target = self.func.block_body.args[argument]
            if (argument, k) not in self.writes.mutations and not _is_itself(op.operands[k], target):
                self.block.add_op(buffer.Copy.make([returned[k], self.new[target]], [], {}, loc=op.location))
        self.block.add_op(prim.Return.make(returned, [], op.literals, loc=op.location))

    def _free(self, number: int, op: Operation, freed: set[SSAValue]) -> None:
        """Give back memory of libraries and of GPUs after its last use."""
        for value in dict.fromkeys(root for v in (*op.operands, *op.results) for root in self.aliases.roots(v)):
            if self.last_use.get(value, number) != number or value in freed or value in self.writes.target:
                continue
            library_owned = isinstance(value.owner, kernel.Extern) and not _is_planned(value.owner)
            if library_owned or value in self.on_device:
                freed.add(value)
                self.block.add_op(buffer.Free.make([self.new[value]], []))


def _add(live: list[int], first: int, last: int, size: int) -> None:
    """A value of that size lives from one step to another."""
    for number in range(first, min(last, len(live) - 1) + 1):
        live[number] += size


def _is_itself(value: SSAValue, argument: SSAValue) -> bool:
    """Whether a value is all of an argument, though perhaps with other strides of dimensions of size 1."""
    view, memory = view_of(value), _memory(argument)
    if view is None or view.base is not argument or view.offset != 0 or view.shape != memory.shape:
        return False
    return same_layout(view.shape, view.strides, memory.strides)


def _is_planned(op: object) -> bool:
    """Whether the operation's results are memory that is planned here: kernels, and library calls that are kernels of our own."""
    is_own = isinstance(op, kernel.Extern) and bool(op.get("own"))
    return is_own or isinstance(op, loop.Launch | kernel.Contract)


def _call_literals(op: kernel.Contract | kernel.Extern) -> dict[str, object]:
    return {k: v for k, v in op.literals.items() if k not in ("operand_strides", "strides")}


def _memory(value: SSAValue) -> RefType:
    t = prim.tensor(value)
    return ref_type(t.shape, memory_strides(value), t.dtype, t.device)


def _bytes(value: SSAValue) -> Dim:
    """Size in bytes, rounded up to the alignment."""
    ref = _memory(value)
    extent: Dim = 1
    for size, stride in zip(ref.shape, ref.strides, strict=True):
        if size == 0:
            return 0
        extent = extent + (size - 1) * stride
    needed = dim(extent * ref.dtype.bytes)
    if isinstance(needed, int):
        return -(-needed // ALIGNMENT) * ALIGNMENT
    return dim(needed + ALIGNMENT)


SUMS = {"aten.add.Tensor": "aten.add_.Tensor"}  # calls that may write to their first operand, with what does so
_PRODUCTS = frozenset(f"aten.{name}.default" for name in ("addmm", "baddbmm", "bmm", "convolution", "linear", "mm"))


def _is_product(op: object) -> bool:
    """Whether a library call gives memory of its own: some give an operand back, which their schemas do not say."""
    return isinstance(op, kernel.Extern) and op["target"] in _PRODUCTS


def pack_largest_first(places: list[Place], reuse: bool) -> int:
    """Greedy by size: each place at the lowest offset that no place alive at the same time covers."""
    done: list[Place] = []
    total = 0
    for place in sorted(places, key=lambda p: (-int(p.size), p.first)):
        offset = 0
        if reuse:
            rivals = [d for d in done if not (d.last < place.first or place.last < d.first)]
            for rival in sorted(rivals, key=lambda d: int(d.offset)):
                if offset + int(place.size) <= int(rival.offset):
                    break
                offset = max(offset, int(rival.offset) + int(rival.size))
        else:
            offset = total
        place.offset = offset
        total = max(total, offset + int(place.size))
        done.append(place)
    return total


def check_packed(places: list[Place], total: int) -> None:
    """Check offsets in an arena.

    Raises:
        PassError: two places share memory while both are in use, or one lies outside of the arena or in no place where buffers begin.
    """
    live: list[Place] = []
    if wrong := [n for n in (total, *(p.offset for p in places)) if not isinstance(n, int)]:
        raise PassError(f"pack gives {wrong[0]!r:.60} as an offset or a size, which is no integer")
    for place in sorted((p for p in places if p.size), key=lambda p: p.first):
        start, end = int(place.offset), int(place.offset) + int(place.size)
        if start < 0 or start % ALIGNMENT or end > total:
            raise PassError(f"memory from {start} to {end} is no place in an arena of {total} bytes")
        live = [p for p in live if p.last >= place.first]
        for other in live:
            if start < int(other.offset) + int(other.size) and int(other.offset) < end:
                raise PassError(f"two values have the memory at {max(start, int(other.offset))} at once")
        live.append(place)


def _pack_symbolic(places: list[Place], reuse: bool) -> Dim:
    """With sizes that are expressions, a place takes over a slot of the same size, or opens a new one at the end."""
    slots: list[tuple[Dim, Dim, int]] = []  # size, offset, free after this step
    total: Dim = 0
    for place in sorted(places, key=lambda p: p.first):
        for i, (size, offset, busy) in enumerate(slots):
            if reuse and busy < place.first and known_equal(size, place.size):
                place.offset = offset
                slots[i] = (size, offset, place.last)
                break
        else:
            place.offset = total
            slots.append((place.size, total, place.last))
            total = _align(dim(total + place.size))
    return total


def _align(value: Dim) -> Dim:
    if isinstance(value, int):
        return -(-value // ALIGNMENT) * ALIGNMENT
    return dim(FloorDiv(value + ALIGNMENT - 1, ALIGNMENT) * ALIGNMENT)
