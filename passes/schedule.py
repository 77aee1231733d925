"""kernel → loop: every fused kernel becomes a `loop.kernel` and a launch of it; equal kernels are one."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ..ir.dialects import kernel, loop, prim
from ..ir.symbols import Dim, free_symbols
from ..ir.syntax import Op, location_of
from ..ir.types import LiteralAttr, RefType, ref_type
from .base import Pass, PassError
from .context import CompileContext
from .emit_loops import LoopEmitter
from .grain import set_grain
from .lower import Lowering, Memory
from .nests import Planner
from .streams import set_streams
from .tiling import Tiler

_SILENT = {"cast", "where"}
_LAYOUT = {"strides", "operand_strides"}


@dataclass(frozen=True)
class Schedule(Pass):
    """Turn every fused kernel into loops: order, tiles, vector lanes, threads."""

    name: ClassVar[str] = "schedule"
    level: ClassVar[str] = "kernel"
    gives: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("fuse", "layout")
    requires: ClassVar[tuple[str, ...]] = ("fuse", "layout")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Replace kernels by launches.

        Raises:
            PassError: an operand of a kernel is a view (`layout` makes it memory), or a dtype has no loops.
        """
        made: dict[str, loop.Kernel] = {}
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            refs = _References(func)
            for op in [op for op in func.block_body.ops if isinstance(op, kernel.Fused)]:
                inputs = [refs.of(v) for v in op.operands]
                outputs = [refs.of(v) for v in op.results]
                body_text = region_text(op.block_body, [*inputs, *outputs])
                found = made.get(body_text)
                if found is None:
                    found = made[body_text] = build_kernel(ctx, op, inputs, outputs, body_text)
                    module.body.block.add_op(found)
                else:
                    found["lines"] = _merge_lines(found["lines"], _lines(op))
                ctx.diagnostics.count(self.name, "launches")
                attrs = {k: v for k, v in op.literals.items() if k == "strides"}
                launch = loop.Launch.make(
                    list(op.operands),
                    [r.type for r in op.results],
                    {"kernel": found["sym_name"], **attrs},
                    loc=op.location,
                )
                func.block_body.insert_op_before(launch, op)
                for old, new in zip(op.results, launch.results, strict=True):
                    new.name_hint = old.name_hint
                    old.replace_all_uses_with(new)
                op.detach()
                op.erase()
        ctx.diagnostics.count(self.name, "kernels", len(made))


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


def build_kernel(
    ctx: CompileContext, op: kernel.Fused, inputs: list[RefType], outputs: list[RefType], text: str
) -> loop.Kernel:
    """The loops of one kernel.

    Raises:
        PassError: a dtype that loops cannot compute with.
    """
    source = op.block_body
    for ref in (*inputs, *outputs):
        if ref.dtype.kind == "complex":
            raise PassError(
                f"schedule: loops over {ref.dtype.name} are not supported; 'fuse' leaves them to the library"
            )
    block = Block(arg_types=[*inputs, *outputs])
    ins = [Memory(f"in{k}", r, "in") for k, r in enumerate(inputs)]
    outs = [Memory(f"out{k}", r, "out") for k, r in enumerate(outputs)]
    last = source.last_op
    assert isinstance(last, kernel.Yield)
    lowering = Lowering(dict(zip(source.args, ins, strict=True)))
    wanted = [
        (v, out) for v, out in zip(last.operands, outs, strict=True) if 0 not in out.ref.shape
    ]  # others hold nothing
    planner = Planner(source, lowering, wanted)
    with deep_recursion():  # a chain of operations is walked down to memory, a few frames an operation
        nests = planner.plan()
    specs = Tiler(ctx.target, lowering, planner.scratch).nests(nests)
    places: dict[Memory, SSAValue] = dict(zip([*ins, *outs], block.args, strict=True))
    for memory in planner.scratch:
        local = loop.Local.make([], [memory.ref], {"size": memory.ref.numel})
        block.add_op(local)
        places[memory] = local.results[0]
    emitter = LoopEmitter(block, places, lowering.ranges)
    for spec in specs:
        emitter.nest(spec)
    _drop_unused(block)
    set_grain(block)
    set_streams(block, block.args[len(inputs) :])
    words = kernel_words(source)
    name = f"{words}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    attrs = {
        "sym_name": name,
        "inputs": len(inputs),
        "symbols": [str(s) for s in _symbols(block)],
        "lines": _lines(op),
    }
    return loop.Kernel.make([], [], attrs, [Region(block)], op.location)


@contextlib.contextmanager
def deep_recursion(frames: int = 50_000) -> Iterator[None]:
    """Allow at least so many Python frames (they take no C stack)."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, frames))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def kernel_words(block: Block) -> str:
    """Readable words for what a kernel does: its costly operations and its reductions, in order."""
    words: list[tuple[str, int]] = []
    for op in block.ops:
        if isinstance(op, prim.Reduce | prim.Scan):
            words.append((op["kind"] if isinstance(op, prim.Reduce) else f"cum{op['kind']}", 5))
        elif isinstance(op, prim.Elementwise):
            words.append((op.row.name, 0 if op.row.name in _SILENT else min(4, op.row.cost)))
        elif not isinstance(op, kernel.Yield | prim.Full | prim.Broadcast | prim.Reshape):
            words.append((op.name.removeprefix("prim."), -1 if isinstance(op, prim.Cast | prim.Slice) else 0))
    keep = 4
    ranked = sorted(range(len(words)), key=lambda k: (-words[k][1], k))
    chosen: list[str] = []
    for k in sorted(ranked[: keep + 2]):
        if words[k][0] not in chosen:
            chosen.append(words[k][0])
    return "_".join(chosen[:keep]) or "copy"


def _lines(op: kernel.Fused) -> tuple[str, ...]:
    places = [location_of(inner) for inner in op.block_body.ops] + [location_of(op)]
    return tuple(dict.fromkeys(f"{p[0]}:{p[1]}" for p in places if p is not None))


def _merge_lines(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _symbols(block: Block) -> list[sympy.Symbol]:
    """The size symbols that a kernel's loops use, by name."""
    used: set[sympy.Symbol] = set()
    bound: set[sympy.Symbol] = set()
    for op in block.walk():
        if not isinstance(op, Op):
            continue
        for name, value in op.literals.items():
            if name == "var":
                bound.add(value)
            else:
                used |= free_symbols(_exprs(value))
        if isinstance(op, loop.Local):
            used |= free_symbols(op.results[0].type.shape)  # type: ignore[attr-defined]
    return sorted(used - bound, key=lambda s: s.name)


def _exprs(value: object) -> list[Dim]:
    if isinstance(value, tuple):
        return [e for v in value for e in _exprs(v)]
    return [value] if isinstance(value, sympy.Expr) else []


def _drop_unused(block: Block) -> None:
    """Remove scalars that nothing uses."""
    for op in reversed(list(block.walk(reverse=False))):
        if isinstance(op, Op) and op.results and not any(r.uses for r in op.results) and op.parent is not None:
            op.detach()
            op.erase()
