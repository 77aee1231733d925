"""kernel → loop on a GPU: the nests of a fused kernel as kernels of their own, because blocks of one launch do not all wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import loop, prim
from ...ir.syntax import Op
from ...ir.types import ref_type
from ..analysis.machine import Processor
from .blocks import Blocker
from .emit_loops import LoopEmitter, NestSpec
from .lower import Lowering, Memory
from .nests import Nest


@dataclass
class Part:
    """One launch: its kernel, and the memories that are its operands and its results, in order."""

    kernel: loop.Kernel
    reads: list[Memory]
    writes: list[Memory]


def block_parts(
    gpu: Processor, lowering: Lowering, nests: list[Nest], memories: list[Memory], scratch: list[Memory], op: Op
) -> list[Part]:
    """The launches of one fused kernel, in order. Their kernels have no names yet.

    Args:
        memories: the arguments of the fused kernel, results last; `scratch`: what its nests pass on to later ones.
    """
    specs = Blocker(gpu, lowering, scratch).nests(nests)
    device = memories[-1].ref.device
    for memory in scratch:
        memory.ref = ref_type(memory.ref.shape, memory.ref.strides, memory.ref.dtype, device)
    return [_part(spec, lowering, [*memories, *scratch], op) for spec in specs]


def _part(spec: NestSpec, lowering: Lowering, memories: list[Memory], op: Op) -> Part:
    stored = {s.memory for stage in spec.stages for s in stage.stores}
    stored |= {m for stage in spec.stages for m in stage.exchange[:-1]}
    ordered = [m for m in memories if m not in stored] + [m for m in memories if m in stored]
    block = Block(arg_types=[m.ref for m in ordered])
    places: dict[Memory, SSAValue] = dict(zip(ordered, block.args, strict=True))
    LoopEmitter(block, places, lowering.ranges, in_order=True).nest(spec)
    drop_unused(block)
    before = _scattered_into(op, memories)
    used = [m for m in ordered if places[m].uses or m is before]
    for memory in ordered:
        if memory not in used:
            block.erase_arg(places[memory])  # type: ignore[arg-type]  # the places are the block's arguments
    reads, writes = [m for m in used if m not in stored], [m for m in used if m in stored]
    attrs: dict[str, object] = {"sym_name": "", "inputs": len(reads), "warps": spec.warps}
    if before is not None:
        attrs["updates"] = reads.index(before)
    if spec.pipeline:
        attrs["stages"] = spec.pipeline
    return Part(loop.Kernel.make([], [], attrs, [Region(block)], op.location), reads, writes)


def _scattered_into(op: Op, memories: list[Memory]) -> Memory | None:
    """The memory whose elements stay where a scatter writes none, which is all that its fused kernel does."""
    for inner in op.block_body.ops:
        if isinstance(inner, prim.Scatter):
            value = inner.operands[0]
            while not isinstance(value.owner, Block):
                value = value.owner.operands[0]
            return memories[value.index]  # type: ignore[attr-defined]  # an argument of the block
    return None


def drop_unused(block: Block) -> None:
    """Remove scalars that nothing uses."""
    for op in reversed(list(block.walk(reverse=False))):
        if isinstance(op, Op) and op.results and not any(r.uses for r in op.results) and op.parent is not None:
            op.detach()
            op.erase()
