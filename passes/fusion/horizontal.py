"""horizontal-fusion: independent small kernels that a GPU would be given one after another are one launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ...ir.dialects import loop, prim
from ...ir.literals import Literal
from ...ir.scalars import DOT
from ...ir.symbols import Dim, free_symbols, product, substitute, symbol
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.cost import STAGED_BESIDE
from ..analysis.machine import Machine
from ..analysis.sizes import hint
from ..analysis.strides import is_view
from ..core.base import Pass
from ..core.context import CompileContext


@dataclass(frozen=True)
class HorizontalFusion(Pass):
    """Launch independent small kernels of a GPU together: one grid, a part of it for each.

    Launches between which only views stand are joined where none needs another's results, as in the steps of optimizers over lists of tensors.

    Tiny ones that nobody waits for (the last step of a bias's gradient, in each layer of a backward pass) run late, so that they follow one another.

    Options:
        max_values: the most inputs and outputs of one kernel.
        max_late: kernels that move more than this run where they are, as long as what they read is in a cache.
        max_bytes: kernels that move more than this take so long that a launch of their own is nothing.
    """

    name: ClassVar[str] = "horizontal-fusion"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    least: ClassVar[Mapping[str, float]] = MappingProxyType({"max_values": 1, "max_bytes": 0, "max_late": 0})
    max_values: int = 120
    max_bytes: int = 32 << 20
    max_late: int = 1 << 20

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
        small = {name for name, kernel in kernels.items() if self._is_small(kernel, ctx.machine)}
        tiny = {name for name in small if _bytes(kernels[name]) <= self.max_late}
        joiner = _Joiner(module, kernels)
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            _delay(func.block_body, tiny)
            for run in list(_runs(func.block_body, small)):
                launches = [op for op in run if isinstance(op, loop.Launch)]
                for group in list(self._groups(launches, kernels, ctx.machine.gpu.shared_bytes)):
                    joiner.join(run, group)
                    ctx.diagnostics.count(self.name, "launches saved", len(group) - 1)
                _sort(run)
        joiner.erase_unlaunched()

    def _is_small(self, kernel: loop.Kernel, machine: Machine) -> bool:
        """A grid, with one parallel loop nest or the loops of one program, and little memory."""
        refs = [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]
        kinds = [op["kind"] for op in kernel.block_body.ops if isinstance(op, loop.For)]
        names = {op.name for op in kernel.block_body.walk()}
        if (
            "loop.exchange" in names or "loop.store" not in names
        ):  # programs that wait for each other; memory without elements
            return False
        if "updates" in kernel.attributes:  # what it does not write has to be there before
            return False
        if "members" in kernel.attributes:  # it is a launch for many already
            return False
        if any(op.get("persistent") for op in kernel.block_body.ops if isinstance(op, loop.For)):
            return False
        if not refs or not all(machine.at(r.device).is_grid for r in refs) or ("parallel" in kinds and len(kinds) > 1):
            return False
        return _bytes(kernel) <= self.max_bytes

    def _groups(
        self, run: Sequence[loop.Launch], kernels: Mapping[str, loop.Kernel], shared: int
    ) -> Iterator[list[loop.Launch]]:
        """Launches that are joined: of the same depth in the run, with the same number of warps and stages, not too many values.

        Triton gives each matrix product in a kernel shared memory of its own, equal ones the same: in all no more than a program may use.
        """
        levels: dict[tuple[int, int, int, str], list[loop.Launch]] = {}
        depth: dict[Operation, int] = {}
        for op in run:
            depth[op] = max((depth[d] + 1 for d in _needed(op) if d in depth), default=0)
            device = prim.tensor(op.results[0]).device if op.results else ""
            kernel = kernels[op["kernel"]]
            levels.setdefault((depth[op], kernel["warps"], kernel.get("stages", 0), device), []).append(op)
        for _, found in sorted(levels.items(), key=lambda item: item[0]):
            sizes = {op["kernel"]: staged_bytes(kernels[op["kernel"]]) for op in found}
            yield from _chunks(found, self.max_values, sizes, shared)


def _chunks(
    found: Sequence[loop.Launch], most: int, sizes: Mapping[str, int], shared: int
) -> Iterator[list[loop.Launch]]:
    group: list[loop.Launch] = []
    for op in found:
        wider = [*group, op]
        values = {v for each in wider for v in (*each.operands, *each.results)}
        staged = sum(sizes[name] for name in {each["kernel"] for each in wider})
        if group and (len(values) > most or staged + STAGED_BESIDE > shared):
            if len(group) > 1:
                yield group
            wider = [op]
        group = wider
    if len(group) > 1:
        yield group


def staged_bytes(kernel: loop.Kernel) -> int:
    """Bytes of shared memory that the operands of a kernel's matrix products take: their tiles, once for each stage of the walk."""
    size: int = 0
    for op in kernel.block_body.walk():
        if isinstance(op, loop.Accumulate) and op["kind"] == DOT:
            blocks = _blocks_around(op)
            for load in [v.owner for v in op.operands[:2] if isinstance(v.owner, loop.Load)]:
                tile = product([blocks.get(s, 1) for s in free_symbols([load["index"]])])
                size += hint(tile) * load.ref.dtype.bytes
    return size * max(1, int(kernel.get("stages", 0)))


def _blocks_around(op: Operation) -> dict[sympy.Symbol, Dim]:
    """How many neighbours of each loop around an operation are taken together, by the loop's variable."""
    found: dict[sympy.Symbol, Dim] = {}
    around = op.parent_op()
    while around is not None:
        if isinstance(around, loop.For):
            found[around["var"]] = around.get("block", 1)
        around = around.parent_op()
    return found


def _bytes(kernel: loop.Kernel) -> int:
    """The memory that a kernel touches, symbols guessed."""
    refs = [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]
    return sum(hint(product(r.shape)) * r.dtype.bytes for r in refs)


def _delay(block: Block, tiny: set[str]) -> None:
    """Put launches of tiny kernels in front of the first operation that needs them; what only needs arguments stays at the beginning."""
    ops = list(block.ops)
    late: dict[Operation, int] = {}  # with the place of each in the program
    for place, op in enumerate(ops):
        small = isinstance(op, loop.Launch) and op["kernel"] in tiny and any(_needed_at_all(op))
        if small or (is_view(op) and op.operands[0].owner in late):
            late[op] = place

    def needed(op: Operation) -> set[Operation]:
        found, stack = set[Operation](), [op]
        while stack:
            more = {v.owner for v in stack.pop().operands if v.owner in late} - found
            found |= more  # type: ignore[arg-type]
            stack += more  # type: ignore[arg-type]
        return found

    ordered: list[Operation] = []
    for op in ops:
        if op not in late:
            waiting = sorted(needed(op) if op is not ops[-1] else late, key=late.__getitem__)
            for before in waiting:
                del late[before]
            ordered += [*waiting, op]
    if ordered != ops:
        for op in ops:
            op.detach()
        block.add_ops(ordered)


def _needed_at_all(op: Operation) -> Iterator[Operation]:
    """The calls and launches whose results an operation reads, also through views."""
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, Operation):
            yield from _needed_at_all(owner) if is_view(owner) else (owner,)


def _runs(block: Block, small: set[str]) -> Iterator[list[Operation]]:
    """Launches of small kernels that follow one another, with the views between them."""
    run: list[Operation] = []
    for op in block.ops:
        if (isinstance(op, loop.Launch) and op["kernel"] in small) or is_view(op):
            run.append(op)
        else:
            if len(run) > 1:
                yield run
            run = []


def _needed(op: Operation) -> Iterator[Operation]:
    """The launches whose results an operation reads, also through views."""
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, loop.Launch):
            yield owner
        elif isinstance(owner, Operation) and is_view(owner):
            yield from _needed(owner)


class _Joiner:
    """Replaces launches by one; equal groups share a kernel."""

    def __init__(self, module: ModuleOp, kernels: dict[str, loop.Kernel]) -> None:
        self.module, self.kernels = module, kernels
        self.made: dict[str, loop.Kernel] = {}

    def join(self, run: list[Operation], group: Sequence[loop.Launch]) -> None:
        """One launch in place of these, in the run, too; `_sort` puts what reads it behind it."""
        reads = list(dict.fromkeys(v for op in group for v in op.operands))
        number = {v: k for k, v in enumerate(reads)}
        pattern = ";".join(f"{op['kernel']}({','.join(str(number[v]) for v in op.operands)})" for op in group)
        kernel = self.made.get(pattern)
        if kernel is None:
            kernel = self.made[pattern] = self._kernel(group, number, pattern)
            self.module.body.block.add_op(kernel)
        launch = loop.Launch.make(
            reads, [r.type for op in group for r in op.results], {"kernel": kernel["sym_name"]}, loc=group[0].location
        )
        strides = tuple(s for op in group for s in op.get("strides") or (None,) * len(op.results))
        if any(strides):
            launch["strides"] = strides
        block = group[0].parent
        assert block is not None
        block.insert_op_before(launch, group[0])
        run[run.index(group[0])] = launch
        results = iter(launch.results)
        for op in group:
            for old in op.results:
                new = next(results)
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
        for op in group:
            if op in run:
                run.remove(op)
            op.detach()
            op.erase()

    def _kernel(self, group: Sequence[loop.Launch], number: Mapping[SSAValue, int], pattern: str) -> loop.Kernel:
        members = [self.kernels[op["kernel"]] for op in group]
        block = Block()
        reads: dict[int, SSAValue] = {}
        writes: list[SSAValue] = []
        places: list[dict[SSAValue, SSAValue]] = [{} for _ in members]
        for op, member, place in zip(group, members, places, strict=True):
            for argument, value in zip(member.block_body.args, op.operands, strict=False):
                k = number[value]
                if k not in reads:
                    reads[k] = block.insert_arg(argument.type, len(reads))
                place[argument] = reads[k]
        for member, place in zip(members, places, strict=True):
            for argument in member.block_body.args[member["inputs"] :]:
                place[argument] = block.insert_arg(argument.type, len(block.args))
                writes.append(place[argument])
        for count, (member, place) in enumerate(zip(members, places, strict=True)):
            _copy(member, block, place, count)
        first = members[0]["sym_name"].rpartition("_")[0]
        name = f"{first}_{len(group)}x_{hashlib.sha256(pattern.encode()).hexdigest()[:8]}"
        symbols = sorted({s for m in members for s in m.get("symbols", ())})
        lines = tuple(dict.fromkeys(line for m in members for line in m.get("lines", ())))
        attrs = {
            "sym_name": name,
            "inputs": len(reads),
            "warps": members[0]["warps"],
            **({"stages": members[0]["stages"]} if "stages" in members[0].attributes else {}),
            "symbols": symbols,
            "lines": lines,
        }
        if members[0].get("contract") is False:
            attrs["contract"] = False
        return loop.Kernel.make([], [], attrs, [Region(block)], group[0].location)

    def erase_unlaunched(self) -> None:
        """Kernels that nobody launches any more go."""
        launched = {op["kernel"] for op in self.module.walk() if isinstance(op, loop.Launch)}
        for name, kernel in self.kernels.items():
            if name not in launched:
                kernel.detach()
                kernel.erase()


def _sort(run: Sequence[Operation]) -> None:
    """Put the operations of a run in an order in which each follows what it reads, else in that of the list."""
    block, inside, placed = run[0].parent, set(run), set[Operation]()
    assert block is not None

    def place(op: Operation) -> None:
        placed.add(op)
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Operation) and owner in inside and owner not in placed:
                place(owner)
        ordered.append(op)

    ordered: list[Operation] = []
    after = next(op for op in reversed(list(block.ops)) if op in inside).next_op
    for op in run:
        if op not in placed:
            place(op)
    for op in ordered:
        op.detach()
    assert after is not None  # the function's return, at the latest
    block.insert_ops_before(ordered, after)


def _copy(member: loop.Kernel, block: Block, place: dict[SSAValue, SSAValue], count: int) -> None:
    """The member's loops with its memory at other arguments and variables of their own; what is in no parallel loop gets one of one iteration."""
    mapping: dict[sympy.Symbol, Dim] = {}
    for op in member.block_body.walk():
        if isinstance(op, loop.For | loop.Bind):
            mapping[op["var"]] = symbol(f"{op['var']}_{count}")
    ops = [op.clone(place) for op in member.block_body.ops]
    for op in ops:
        for inner in op.walk():
            assert isinstance(inner, Op)
            for name, value in inner.literals.items():
                inner[name] = _renamed(value, mapping)
    nest = next((op for op in ops if isinstance(op, loop.For) and op["kind"] == "parallel"), None)
    if nest is None:  # the loops of one program
        attrs = {"kind": "parallel", "var": symbol(f"i_{count}"), "stop": 1}
        nest = loop.For.make([], [], attrs, [Region(Block(ops))])
    elif len(ops) > 1:  # what every program does first
        body = nest.block_body
        first = body.first_op
        assert first is not None
        body.insert_ops_before([op for op in ops if op is not nest], first)
    nest["part"] = member["sym_name"]
    block.add_op(nest)


def _renamed(value: Literal, mapping: Mapping[sympy.Symbol, Dim]) -> Literal:
    if isinstance(value, tuple):
        return tuple(_renamed(v, mapping) for v in value)
    return substitute(value, mapping) if isinstance(value, sympy.Expr) else value
