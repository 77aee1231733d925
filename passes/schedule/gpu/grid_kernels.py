"""Kernels of a GPU that are not laid out yet, and how a pass puts launches of others into the place of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from ....ir.dialects import loop, prim
from ....ir.types import RefType, ref_type, tensor_type
from ...analysis.machine import Machine
from ...analysis.size_names import SizeNames, names_of, replace_sizes, replaced_type
from ...core.rewriter import erase_dead
from ..emit_loops import LoopEmitter, kernel_symbols
from ..expressions import Expressions, Memory
from ..kernels import is_grid
from ..nests import Nest, Nests
from ..read import read

Calls: TypeAlias = list[loop.Launch]


@dataclass
class Part:
    """One launch: its kernel, and the memories that are its operands and its results, in order."""

    kernel: loop.Kernel
    reads: list[Memory]
    writes: list[Memory]


def grid_kernels(module: ModuleOp, machine: Machine) -> Iterator[tuple[loop.Kernel, Calls]]:
    """The plain kernels that will be grids of programs, each with its launches."""
    launches: dict[str, Calls] = {}
    for func in [op for op in module.ops if isinstance(op, prim.Func)]:
        for op in func.block_body.ops:
            if isinstance(op, loop.Launch):
                launches.setdefault(op["kernel"], []).append(op)
    for kernel in [op for op in module.ops if isinstance(op, loop.Kernel) and op.get("plain")]:
        if is_grid(kernel, machine):
            yield kernel, launches.get(kernel["sym_name"], [])


@contextmanager
def named_sizes(kernel: loop.Kernel) -> Iterator[SizeNames]:
    """Give sizes that are expressions names while a kernel's loops are planned."""
    refs = [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]
    stops = [op["stop"] for op in kernel.walk() if isinstance(op, loop.For)]
    names = names_of([*(d for ref in refs for d in ref.shape), *stops])
    if names.sizes:
        replace_sizes(kernel, names.divisions)
    yield names
    if names.sizes and kernel.parent is not None:
        replace_sizes(kernel, names.sizes)


def divide(kernel: loop.Kernel, calls: Calls, plan: Callable[[Nests], Sequence[Nest] | None]) -> list[loop.Kernel]:
    """Put kernels in the place of one, and their launches in the place of its `calls`.

    Args:
        plan: gives a nest for each kernel, with its loops chosen or plain, in order; None keeps the kernel as it is.
    """
    with named_sizes(kernel) as names:
        found = read(kernel)
        nests = plan(found)
        if nests is None:
            return [kernel]
        memories, scratch = found.arguments, found.scratch
        device = memories[-1].ref.device
        for memory in scratch:
            memory.ref = ref_type(memory.ref.shape, memory.ref.strides, memory.ref.dtype, device)
        parts = [_part(kernel, nest, found.expressions, [*memories, *scratch]) for nest in nests]
        _write_empty(kernel, memories, parts)
        _write_after(parts)
        block = kernel.parent
        assert block is not None
        for number, part in enumerate(parts):
            part.kernel["sym_name"] = kernel["sym_name"] if len(parts) == 1 else f"{kernel['sym_name']}_{number}"
            if names.sizes:
                replace_sizes(part.kernel, names.sizes)
            part.kernel["symbols"] = kernel_symbols(part.kernel, memory=True)
            part.kernel["lines"] = kernel["lines"]
            for name in ("contract", "members", "shared"):
                if name in kernel.attributes:
                    part.kernel[name] = kernel[name]
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
    if (
        "members" in parts[0].kernel.attributes
    ):  # one row of elements is one nest, which is given all that the kernel was
        call["kernel"] = parts[0].kernel["sym_name"]
        return
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


def _write_after(parts: Sequence[Part]) -> None:
    """A part that writes elsewhere in what an earlier part has written leaves that as it is."""
    written: set[Memory] = set()
    for part in parts:
        again = [memory for memory in part.writes if memory in written]
        written.update(part.writes)
        if not again or "updates" in part.kernel.attributes:
            continue
        assert len(part.writes) == 1, "a kernel that updates memory has one result"
        part.kernel.block_body.insert_arg(again[0].ref, len(part.reads))
        part.kernel["updates"] = len(part.reads)
        part.reads.append(again[0])
        part.kernel["inputs"] = len(part.reads)


def _part(kernel: loop.Kernel, nest: Nest, expressions: Expressions, memories: list[Memory]) -> Part:
    plain = nest.warps == 0
    stored = {s.memory for stage in nest.stages for s in stage.stores}
    stored |= {m for stage in nest.stages for m in stage.exchange[:-1]}
    ordered = [m for m in memories if m not in stored] + [m for m in memories if m in stored]
    block = Block(arg_types=[m.ref for m in ordered])
    places: dict[Memory, SSAValue] = dict(zip(ordered, block.args, strict=True))
    LoopEmitter(block, places, expressions.ranges, in_order=True, plain=plain).nest(nest)
    erase_dead(block)
    updates = kernel.get("updates")
    before = None if updates is None else memories[updates]
    used = [m for m in ordered if places[m].uses or m is before]
    for memory in ordered:
        if memory not in used:
            block.erase_arg(places[memory])  # type: ignore[arg-type]  # the places are the block's arguments
    reads, writes = [m for m in used if m not in stored], [m for m in used if m in stored]
    attrs: dict[str, object] = {"sym_name": "", "inputs": len(reads)} | (
        {"plain": True} if plain else {"warps": nest.warps}
    )
    if before is not None:
        attrs["updates"] = reads.index(before)
    if nest.pipeline:
        attrs["stages"] = nest.pipeline
    return Part(loop.Kernel.make([], [], attrs, [Region(block)], kernel.location), reads, writes)
