"""loop → loop on a GPU: the nests of a kernel as kernels of their own, because blocks of one launch do not all wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Attribute, Block, Region, SSAValue

from ...ir.dialects import loop
from ...ir.types import RefType, ref_type, tensor_type
from ..analysis.machine import Processor
from ..analysis.size_names import names_of, replace_sizes, replaced_type
from .blocks import Blocker
from .emit_loops import LoopEmitter, NestSpec, drop_unused, kernel_symbols
from .expressions import Expressions, Memory
from .read import read


@dataclass
class Part:
    """One launch: its kernel, and the memories that are its operands and its results, in order."""

    kernel: loop.Kernel
    reads: list[Memory]
    writes: list[Memory]


def divide(gpu: Processor, kernel: loop.Kernel, calls: Sequence[loop.Launch]) -> list[loop.Kernel]:
    """The kernel as one for each of its nests, and its launches `calls` as launches of all of these, in order."""
    refs = [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]
    stops = [op["stop"] for op in kernel.walk() if isinstance(op, loop.For)]
    names = names_of([*(d for ref in refs for d in ref.shape), *stops])
    if names.sizes:  # sizes that are expressions have names while they are planned
        replace_sizes(kernel, names.divisions)
    found = read(kernel)
    memories, scratch = found.arguments, found.scratch
    specs = Blocker(gpu, found.expressions, scratch).nests(found.nests)
    device = memories[-1].ref.device
    for memory in scratch:
        memory.ref = ref_type(memory.ref.shape, memory.ref.strides, memory.ref.dtype, device)
    parts = [_part(kernel, spec, found.expressions, [*memories, *scratch]) for spec in specs]
    _write_empty(kernel, memories, parts)
    for number, part in enumerate(parts):
        part.kernel["sym_name"] = kernel["sym_name"] if len(parts) == 1 else f"{kernel['sym_name']}_{number}"
        if names.sizes:
            replace_sizes(part.kernel, names.sizes)
        part.kernel["symbols"] = kernel_symbols(part.kernel, memory=True)
        part.kernel["lines"] = kernel["lines"]
        if "contract" in kernel.attributes:
            part.kernel["contract"] = kernel["contract"]
        block = kernel.parent
        assert block is not None
        block.insert_op_before(part.kernel, kernel)
    types: dict[str, Attribute] = {
        m.name: replaced_type(tensor_type(m.ref.shape, m.ref.dtype, m.ref.device), names.sizes) for m in scratch
    }
    for call in calls:
        _launch(call, parts, types)
    kernel.detach()
    kernel.erase()
    return [part.kernel for part in parts]


def _launch(call: loop.Launch, parts: Sequence[Part], types: dict[str, Attribute]) -> None:
    """Put launches of the parts where the whole kernel is launched."""
    values: dict[str, SSAValue] = {f"in{k}": v for k, v in enumerate(call.operands)}
    types = types | {f"out{k}": r.type for k, r in enumerate(call.results)}
    strides = call.get("strides")
    for part in parts:
        writes = [m.name for m in part.writes]
        given = [strides[int(n[3:])] if strides and n.startswith("out") else None for n in writes]
        attrs = {"kernel": part.kernel["sym_name"], **({"strides": tuple(given)} if any(given) else {})}
        launch = loop.Launch.make(
            [values[m.name] for m in part.reads], [types[n] for n in writes], attrs, loc=call.location
        )
        block = call.parent
        assert block is not None
        block.insert_op_before(launch, call)
        values.update(zip(writes, launch.results, strict=True))
    for k, old in enumerate(call.results):
        new = values[f"out{k}"]
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    call.detach()
    call.erase()


def _write_empty(kernel: loop.Kernel, memories: Sequence[Memory], parts: list[Part]) -> None:
    """Results without elements, which nothing writes, are given by the last part."""
    if not parts:
        attrs = {"sym_name": "", "inputs": 0, "warps": 1}
        parts.append(Part(loop.Kernel.make([], [], attrs, [Region(Block())], kernel.location), [], []))
    written = {memory for part in parts for memory in part.writes}
    for memory in memories[kernel["inputs"] :]:
        if memory not in written:
            parts[-1].writes.append(memory)
            body = parts[-1].kernel.block_body
            body.insert_arg(memory.ref, len(body.args))


def _part(kernel: loop.Kernel, spec: NestSpec, expressions: Expressions, memories: list[Memory]) -> Part:
    stored = {s.memory for stage in spec.stages for s in stage.stores}
    stored |= {m for stage in spec.stages for m in stage.exchange[:-1]}
    ordered = [m for m in memories if m not in stored] + [m for m in memories if m in stored]
    block = Block(arg_types=[m.ref for m in ordered])
    places: dict[Memory, SSAValue] = dict(zip(ordered, block.args, strict=True))
    LoopEmitter(block, places, expressions.ranges, in_order=True).nest(spec)
    drop_unused(block)
    updates = kernel.get("updates")
    before = None if updates is None else memories[updates]
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
    return Part(loop.Kernel.make([], [], attrs, [Region(block)], kernel.location), reads, writes)
