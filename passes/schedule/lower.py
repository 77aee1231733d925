"""kernel → loop: every fused kernel becomes the plain loop nests that compute it, and a launch; equal kernels are one."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.syntax import Op, line_of
from ...ir.types import LiteralAttr, RefType, ref_type
from ..analysis.size_names import named_kernel, replace_sizes, replaced_type
from ..core.base import Pass, PassError
from ..core.context import CompileContext
from ..core.rewriter import replace
from .emit_loops import kernel_symbols, write
from .expressions import Memory
from .members import Group, groups_of, row_ref
from .nests import Nests
from .plain.elements import Lowering
from .plain.plan import Planner

_SILENT = {"cast", "where"}
_LAYOUT = {"strides", "operand_strides"}


@dataclass(frozen=True)
class Lower(Pass):
    """Turn every fused kernel into plain loops: for each row its reductions and stores, in order.

    Options:
        contract: whether a GPU's kernels may round a product and a sum at once, and divide with an error of two units in the last place.
    """

    name: ClassVar[str] = "lower"
    level: ClassVar[str] = "kernel"
    gives: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("fuse", "layout")
    requires: ClassVar[tuple[str, ...]] = ("fuse", "layout")

    contract: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Replace kernels by launches.

        Raises:
            PassError: an operand of a kernel is a view (`layout` makes it memory), or a dtype has no loops.
        """
        made: dict[str, loop.Kernel] = {}
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            refs = _References(func)
            groups = list(groups_of(func, refs.of, lambda device: ctx.machine.at(device).is_grid))
            for group in groups:
                self._join(ctx, module, group, made)
            for op in [op for op in func.block_body.ops if isinstance(op, kernel.Fused)]:
                if isinstance(op, kernel.Contract) and op.in_registers:
                    continue
                inputs = [refs.of(v) for v in op.operands]
                outputs = [refs.of(v) for v in op.results]
                body_text = region_text(op.block_body, [*inputs, *outputs]) + op.get("choice", "")
                found = made.get(body_text)
                if found is None:
                    grid = any(ctx.machine.at(ref.device).is_grid for ref in outputs)
                    found = made[body_text] = _build(op, inputs, outputs, body_text, grid)
                    if not self.contract and grid:
                        found["contract"] = False
                    module.body.block.add_op(found)
                else:
                    found["lines"] = _merge_lines(found["lines"], _lines(op))
                strides = op.get("strides")
                attrs = {"kernel": found["sym_name"]} | ({"strides": strides} if strides and any(strides) else {})
                launch = loop.Launch.make(list(op.operands), [r.type for r in op.results], attrs, loc=op.location)
                replace(op, launch.results, [launch])

    def _join(self, ctx: CompileContext, module: ModuleOp, group: Group, made: dict[str, loop.Kernel]) -> None:
        """One launch in place of a group's kernels, where the last of them stands."""
        template = group.template()
        inputs, outputs = [list(map(row_ref, values)) for values in (template.block_body.args, template.results)]
        text = f"{region_text(template.block_body, [*inputs, *outputs])}\n{group.sizes} {group.shared}"
        found = made.get(text)
        if found is None:
            grid = ctx.machine.at(outputs[0].device).is_grid
            found = made[text] = _build(template, inputs, outputs, text, grid)
            found["sym_name"] = f"{found['sym_name']}_{len(group.ops)}x"
            found["members"], found["shared"] = group.sizes, len(group.shared)
            if not self.contract and grid:
                found["contract"] = False
            module.body.block.add_op(found)
        template.erase()
        for op in group.ops:
            found["lines"] = _merge_lines(found["lines"], _lines(op))
        results = [r for op in group.ops for r in op.results]
        strides = tuple(s for op in group.ops for s in op.get("strides") or (None,) * len(op.results))
        attrs = {"kernel": found["sym_name"]} | ({"strides": strides} if any(strides) else {})
        last = group.ops[-1]
        launch = loop.Launch.make(group.operands(), [r.type for r in results], attrs, loc=last.location)
        block, given = last.parent, iter(launch.results)
        assert block is not None
        block.insert_op_before(launch, last)
        for op in group.ops:
            replace(op, [next(given) for _ in op.results])
        ctx.diagnostics.count(self.name, "launches saved", len(group.ops) - 1)


class _References:
    """The memory type of each value of a function: its shape with the strides that its producer gives it."""

    def __init__(self, func: prim.Func) -> None:
        self.arg_strides = func.get("arg_strides") or ()

    def of(self, value: SSAValue) -> RefType:
        t, owner = prim.tensor(value), value.owner
        if isinstance(owner, Block):
            given = self.arg_strides[value.index] if value.index < len(self.arg_strides) else None  # type: ignore[attr-defined]
        elif isinstance(owner, prim.PrimOp):
            raise PassError(f"schedule: a kernel reads the view {owner.name}; 'layout' makes such operands memory")
        else:
            assert isinstance(owner, Op)
            strides = owner.get("strides")
            given = strides[value.index] if strides else None  # type: ignore[attr-defined]
        return ref_type(t.shape, given, t.dtype, t.device)


def region_text(block: Block, refs: list[RefType]) -> str:
    """What a kernel computes, on which memory, without names and places: equal texts, equal kernels."""
    numbers: dict[SSAValue, int] = {a: k for k, a in enumerate(block.args)}
    lines = [r.text for r in refs]
    for op in block.ops:
        for result in op.results:
            numbers[result] = len(numbers)
        attrs = ",".join(
            f"{k}={v.text}" for k, v in op.attributes.items() if k not in _LAYOUT and isinstance(v, LiteralAttr)
        )
        types = ",".join(r.type.text for r in op.results if hasattr(r.type, "text"))
        lines.append(f"{op.name}({','.join(str(numbers[v]) for v in op.operands)}){{{attrs}}}:{types}")
    return "\n".join(lines)


def _build(op: kernel.Fused, inputs: list[RefType], outputs: list[RefType], text: str, grid: bool) -> loop.Kernel:
    """The loops of a fused kernel; those of a grid have names for sizes that are expressions while they are planned."""
    known = named_kernel(op) if grid else None
    if known is None:
        return _plain_kernel(op, inputs, outputs, text, grid)
    copy, names = known
    inputs, outputs = ([replaced_type(ref, names.divisions) for ref in part] for part in (inputs, outputs))
    found = _plain_kernel(copy, inputs, outputs, text, grid)
    copy.erase()
    replace_sizes(found, names.sizes)
    found["symbols"] = kernel_symbols(found, memory=True)
    return found


def _plain_kernel(
    op: kernel.Fused, inputs: list[RefType], outputs: list[RefType], text: str, grid: bool
) -> loop.Kernel:
    """The loops of one fused kernel: nests with rows, and for each row stages that reduce or store.

    Raises:
        PassError: a dtype that loops cannot compute with.
    """
    source = op.block_body
    for ref in (*inputs, *outputs):
        if ref.dtype.kind == "complex":
            raise PassError(f"lower: loops over {ref.dtype.name} are not supported; 'fuse' leaves them to the library")
    ins = [Memory(f"in{k}", r, "in") for k, r in enumerate(inputs)]
    outs = [Memory(f"out{k}", r, "out") for k, r in enumerate(outputs)]
    last = source.last_op
    assert isinstance(last, kernel.Yield)
    lowering = Lowering(memories=dict(zip(source.args, ins, strict=True)), remainders=grid)
    wanted = [
        (v, out) for v, out in zip(last.operands, outs, strict=True) if 0 not in out.ref.shape
    ]  # others hold nothing
    planner = Planner(source, lowering, wanted)
    with deep_recursion():  # a chain of operations is walked down to memory, a few frames an operation
        nests = planner.plan()
    block = write(Nests(nests, lowering, [*ins, *outs], planner.scratch))
    name = f"{kernel_words(source)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    updated = _scattered_into(op) if grid else None
    attrs = {"sym_name": name, "inputs": len(ins)} | ({} if updated is None else {"updates": updated})
    made = loop.Kernel.make([], [], attrs, [Region(block)], op.location)
    made["symbols"] = kernel_symbols(made, memory=grid)
    made["lines"], made["plain"] = _lines(op), True
    return made


def _scattered_into(op: Op) -> int | None:
    """The input whose elements stay where a scatter writes none, which is all that its fused kernel does."""
    for inner in op.block_body.ops:
        if isinstance(inner, prim.Scatter):
            value = inner.operands[0]
            while not isinstance(value.owner, Block):
                value = value.owner.operands[0]
            found: int = value.index  # type: ignore[attr-defined]  # an argument of the block
            return found
    return None


@dataclass
class _Depth:
    """The process's limit of recursion while threads are in `deep_recursion`: the last of them puts the first one's back."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: int = 0
    before: int = 0
    raised: int = 0


_DEPTH = _Depth()


@contextlib.contextmanager
def deep_recursion(frames: int = 50_000) -> Iterator[None]:
    """Allow at least so many Python frames (they take no C stack)."""
    with _DEPTH.lock:
        if not _DEPTH.threads:
            _DEPTH.before = sys.getrecursionlimit()
        _DEPTH.threads += 1
        _DEPTH.raised = max(sys.getrecursionlimit(), frames)
        sys.setrecursionlimit(_DEPTH.raised)
    try:
        yield
    finally:
        with _DEPTH.lock:
            _DEPTH.threads -= 1
            if not _DEPTH.threads and sys.getrecursionlimit() == _DEPTH.raised:  # else the program has set another
                sys.setrecursionlimit(_DEPTH.before)


def kernel_words(block: Block) -> str:
    """Readable words for what a kernel does: its costly operations and its reductions, in order."""
    words: list[tuple[str, int]] = []
    for op in block.ops:
        if isinstance(op, prim.Contract):
            words.append(("dot", 6))
        elif isinstance(op, prim.Bag):
            words.append((f"bag_{op['kind']}", 5))
        elif isinstance(op, prim.Reduce | prim.Scan):
            words.append((op["kind"] if isinstance(op, prim.Reduce) else f"cum{op['kind']}", 5))
        elif isinstance(op, prim.Elementwise):
            words.append((op.row.name, 0 if op.row.name in _SILENT else min(4, op.row.cost)))
        elif not isinstance(op, kernel.Yield | prim.Full | prim.Broadcast | prim.Reshape | prim.After):
            words.append((op.name.removeprefix("prim."), -1 if isinstance(op, prim.Cast | prim.Slice) else 0))
    keep = 4
    ranked = sorted(range(len(words)), key=lambda k: (-words[k][1], k))
    chosen: list[str] = []
    for k in sorted(ranked[: keep + 2]):
        if words[k][0] not in chosen:
            chosen.append(words[k][0])
    return "_".join(chosen[:keep]) or "copy"


def _lines(op: kernel.Fused) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(line_of, [*op.block_body.ops, op]))))


def _merge_lines(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*a, *b)))
