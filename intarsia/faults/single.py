"""One step of a program as a program of its own: a kernel, or a library call, to be run, timed or compared by itself."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ..ir.dialects import buffer, loop, prim
from ..ir.interpreter.loops import main_function
from ..ir.symbols import free_symbols
from ..ir.syntax import Op, single_block
from ..ir.types import IndexType, RefType
from ..passes.analysis.aliases import written_operands
from ..targets.host.kernels import is_step


def steps(module: ModuleOp) -> list[Op]:
    """The operations of `@main`, at the `buffer` level, that do work on memory."""
    return [op for op in main_function(module).block_body.ops if isinstance(op, Op) and is_step(op)]


def written(op: Op, module: ModuleOp) -> list[SSAValue]:
    """The memory that a step writes: operands of a kernel, or of a call that gives nothing new."""
    if isinstance(op, buffer.Launch):
        return list(op.operands[_kernel(op, module).operand_count :])
    if isinstance(op, buffer.Contract | buffer.Copy):
        return [op.operands[-1]]
    assert isinstance(op, buffer.Extern)
    return written_operands(op)


def _kernel(op: buffer.Launch, module: ModuleOp) -> loop.Kernel:
    return next(k for k in module.body.block.ops if isinstance(k, loop.Kernel) and k["sym_name"] == op["kernel"])


def single(op: Op, module: ModuleOp) -> tuple[ModuleOp, list[SSAValue]]:
    """A module whose `@main` takes what a step reads, and the sizes, does that step, and gives what it writes; and the values that it reads.

    What a step writes is new memory, but for a kernel that leaves parts of its result as they were: it is given that memory.
    """
    kernel = _kernel(op, module).clone() if isinstance(op, buffer.Launch) else None
    outs = written(op, module)
    updates = kernel is not None and "updates" in kernel.attributes or isinstance(op, buffer.Extern) and bool(outs)
    reads = list(op.operands) if updates else [v for v in op.operands if v not in outs]
    if not updates and kernel is not None:  # a value that a kernel overwrites in place is read, too
        reads = list(op.operands[: kernel.operand_count])
    given = list(dict.fromkeys(reads))
    main = main_function(module)
    rows = {str(row[0]): row for row in main.get("symbols", ())}
    used = {str(s) for v in [*op.operands, *op.results] for s in _symbols(v)} | set(kernel.sizes if kernel else ())
    used |= {str(s) for value in op.literals.values() for s in free_symbols([value])}
    names = [name for name in rows if name in used]
    region = single_block((), [*(v.type for v in given), *(IndexType.get_type() for _ in names)])
    block = region.block
    known: dict[SSAValue, SSAValue] = dict(zip(given, block.args, strict=False))
    if not updates:
        for value in dict.fromkeys(outs):
            made = buffer.Alloc.make((), [value.type], {"pool": "output"}, loc=op.location)
            block.add_op(made)
            known[value] = made.results[0]
    count = len(op.operands) if kernel is None else kernel.operand_count
    before = dict(zip(given, block.args, strict=False))
    operands = [before[v] if k < count and v in before else known[v] for k, v in enumerate(op.operands)]
    step = op.clone()
    step.operands = operands
    block.add_op(step)
    results = [*(known[v] for v in dict.fromkeys(outs)), *step.results]
    block.add_op(prim.Return.make(results))
    attributes = {
        "sym_name": "main",
        "symbols": tuple((n, len(given) + k, -1, *rows[n][3:]) for k, n in enumerate(names)),
        "size_hints": tuple((n, h) for n, h in main.get("size_hints", ()) if n in names),
        "results": tuple(("value", k) for k in range(len(results))),
        "mutations": tuple((given.index(v), k) for k, v in enumerate(dict.fromkeys(outs))) if updates else (),
        "arena_bytes": 0,
    }
    func = prim.Func.make((), (), attributes, [region])
    return ModuleOp([func, *([kernel] if kernel else []), *_bodies(op, module)]), given


def _bodies(op: Op, module: ModuleOp) -> list[Operation]:
    """The functions that a step calls, with the kernels that these may launch."""
    others = [
        o for o in module.body.block.ops if isinstance(o, prim.Func) and o["sym_name"] not in ("main", "constants")
    ]
    if not any(o["sym_name"] == value for o in others for value in op.literals.values()):
        return []
    return [o.clone() for o in (*others, *(k for k in module.body.block.ops if isinstance(k, loop.Kernel)))]


def _symbols(value: SSAValue) -> set[object]:
    assert isinstance(value.type, RefType)
    return set(free_symbols([*value.type.shape, *value.type.strides]))
