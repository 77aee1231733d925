"""kernel → loop: every fused kernel becomes a `loop.kernel` and a launch of it; equal kernels are one."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.symbols import Dim, free_symbols
from ...ir.syntax import Op, location_of
from ...ir.types import LiteralAttr, RefType, is_gpu, ref_type, tensor_type
from ..analysis.size_names import named_kernel, replace_sizes, replaced_type
from ..core.base import Pass, PassError
from ..core.context import CompileContext
from .emit_loops import LoopEmitter
from .lower import Lowering, Memory
from .nests import Nest, Planner
from .schedule_blocks import block_parts, drop_unused
from .streams import set_streams
from .thread_cost import set_grain
from .tiling import Tiler

_SILENT = {"cast", "where"}
_LAYOUT = {"strides", "operand_strides"}


@dataclass(frozen=True)
class Schedule(Pass):
    """Turn every fused kernel into loops: order, tiles, vector lanes, threads.

    Options:
        contract: whether a GPU's kernels may round a product and a sum at once, and divide with an error of two units in the last place.
    """

    name: ClassVar[str] = "schedule"
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
        made: dict[str, list[_Made]] = {}
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            refs = _References(func)
            for op in [op for op in func.block_body.ops if isinstance(op, kernel.Fused)]:
                inputs = [refs.of(v) for v in op.operands]
                outputs = [refs.of(v) for v in op.results]
                body_text = region_text(op.block_body, [*inputs, *outputs]) + op.get("choice", "")
                found = made.get(body_text)
                if found is None:
                    found = made[body_text] = _build(ctx, op, inputs, outputs, body_text)
                    for part in found:
                        if not self.contract and any(is_gpu(ref.device) for ref in outputs):
                            part.kernel["contract"] = False
                        module.body.block.add_op(part.kernel)
                else:
                    for part in found:
                        part.kernel["lines"] = _merge_lines(part.kernel["lines"], _lines(op))
                self._launch(ctx, func.block_body, op, found)
        ctx.diagnostics.count(self.name, "kernels", sum(map(len, made.values())))

    def _launch(self, ctx: CompileContext, block: Block, op: kernel.Fused, parts: list[_Made]) -> None:
        """Put the launches where the fused kernel is."""
        values: dict[str, SSAValue] = {f"in{k}": v for k, v in enumerate(op.operands)}
        strides = op.get("strides")
        for part in parts:
            ctx.diagnostics.count(self.name, "launches")
            given = [strides[int(n[3:])] if strides and n.startswith("out") else None for n in part.writes]
            launch = loop.Launch.make(
                [values[name] for name in part.reads],
                part.types,
                {"kernel": part.kernel["sym_name"], **({"strides": tuple(given)} if any(given) else {})},
                loc=op.location,
            )
            block.insert_op_before(launch, op)
            values.update(zip(part.writes, launch.results, strict=True))
        for k, old in enumerate(op.results):
            new = values[f"out{k}"]
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        op.detach()
        op.erase()


@dataclass
class _Made:
    """A kernel, and what a launch of it reads and writes, by name: in0, out0, and tmp0 for what kernels pass on."""

    kernel: loop.Kernel
    reads: list[str]
    writes: list[str]
    types: list[Attribute]


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


def _build(
    ctx: CompileContext, op: kernel.Fused, inputs: list[RefType], outputs: list[RefType], text: str
) -> list[_Made]:
    """The kernels of a fused one; on a GPU, sizes that are expressions have names while they are planned."""
    known = named_kernel(op) if any(is_gpu(ref.device) for ref in outputs) else None
    if known is None:
        return build_kernels(ctx, op, inputs, outputs, text)
    copy, names = known
    inputs, outputs = ([replaced_type(ref, names.divisions) for ref in part] for part in (inputs, outputs))
    found = build_kernels(ctx, copy, inputs, outputs, text)
    copy.erase()
    for part in found:
        replace_sizes(part.kernel, names.sizes)
        part.types = [replaced_type(t, names.sizes) for t in part.types]
        part.kernel["symbols"] = _kernel_symbols(part.kernel)
    return found


def build_kernels(
    ctx: CompileContext, op: kernel.Fused, inputs: list[RefType], outputs: list[RefType], text: str
) -> list[_Made]:
    """The loops of one fused kernel: one kernel on a CPU, one for each nest on a GPU.

    Raises:
        PassError: a dtype that loops cannot compute with.
    """
    source = op.block_body
    for ref in (*inputs, *outputs):
        if ref.dtype.kind == "complex":
            raise PassError(
                f"schedule: loops over {ref.dtype.name} are not supported; 'fuse' leaves them to the library"
            )
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
    name = f"{kernel_words(source)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if any(is_gpu(ref.device) for ref in outputs):
        made = _block_kernels(ctx, op, lowering, nests, [*ins, *outs], planner.scratch)
    else:
        made = [_loop_kernel(ctx, op, lowering, nests, ins, outs, planner.scratch)]
    for number, part in enumerate(made):
        part.kernel["sym_name"] = name if len(made) == 1 else f"{name}_{number}"
        part.kernel["symbols"] = _kernel_symbols(part.kernel, any(is_gpu(ref.device) for ref in outputs))
        part.kernel["lines"] = _lines(op)
    return made


def _kernel_symbols(kernel: loop.Kernel, memory: bool = True) -> list[str]:
    """The size symbols that a kernel is given.

    Args:
        memory: whether those of its memory are among them, if there are any: 32 bits count all memory of a GPU's kernel, which a launch checks.
    """
    symbols = _symbols(kernel.block_body)
    if symbols and memory:
        symbols |= _sizes(kernel.block_body)
    return sorted(map(str, symbols))


def _loop_kernel(
    ctx: CompileContext,
    op: kernel.Fused,
    lowering: Lowering,
    nests: list[Nest],
    ins: list[Memory],
    outs: list[Memory],
    scratch: list[Memory],
) -> _Made:
    block = Block(arg_types=[m.ref for m in (*ins, *outs)])
    specs = Tiler(ctx.machine.cpu, lowering, scratch).nests(nests)
    places: dict[Memory, SSAValue] = dict(zip([*ins, *outs], block.args, strict=True))
    for memory in scratch:
        local = loop.Local.make([], [memory.ref], {"size": memory.ref.numel})
        block.add_op(local)
        places[memory] = local.results[0]
    emitter = LoopEmitter(block, places, lowering.ranges)
    for spec in specs:
        emitter.nest(spec)
    drop_unused(block)
    set_grain(block)
    set_streams(block, block.args[len(ins) :])
    made = loop.Kernel.make([], [], {"sym_name": "", "inputs": len(ins)}, [Region(block)], op.location)
    return _Made(made, [m.name for m in ins], [m.name for m in outs], [r.type for r in op.results])


def _block_kernels(
    ctx: CompileContext,
    op: kernel.Fused,
    lowering: Lowering,
    nests: list[Nest],
    memories: list[Memory],
    scratch: list[Memory],
) -> list[_Made]:
    types: dict[str, Attribute] = {f"out{k}": r.type for k, r in enumerate(op.results)}
    parts = block_parts(ctx.machine.gpu, lowering, nests, memories, scratch, op)
    types |= {m.name: tensor_type(m.ref.shape, m.ref.dtype, m.ref.device) for m in scratch}
    made = [
        _Made(p.kernel, [m.name for m in p.reads], [m.name for m in p.writes], [types[m.name] for m in p.writes])
        for p in parts
    ]
    written = {name for part in made for name in part.writes}
    if not made:
        empty = loop.Kernel.make([], [], {"sym_name": "", "inputs": 0, "warps": 1}, [Region(Block())], op.location)
        made.append(_Made(empty, [], [], []))
    for k, result in enumerate(op.results):
        if f"out{k}" not in written:  # it has no elements: nothing writes it
            made[-1].writes.append(f"out{k}")
            made[-1].types.append(result.type)
            made[-1].kernel.block_body.insert_arg(
                memories[len(op.operands) + k].ref, len(made[-1].kernel.block_body.args)
            )
    return made


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


def _sizes(block: Block) -> set[sympy.Symbol]:
    """The size symbols of a kernel's memory."""
    refs = [a.type for a in block.args if isinstance(a.type, RefType)]
    return free_symbols([d for ref in refs for d in (*ref.shape, *ref.strides)])


def _symbols(block: Block) -> set[sympy.Symbol]:
    """The size symbols that a kernel's loops use."""
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
    return used - bound


def _exprs(value: object) -> list[Dim]:
    if isinstance(value, tuple):
        return [e for v in value for e in _exprs(v)]
    return [value] if isinstance(value, sympy.Expr) else []
