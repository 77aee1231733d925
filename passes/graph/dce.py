"""Dead code elimination: what nobody reads and has no effect is dropped, also results and operands of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation

from ...ir.dialects.kernel import Fused, Yield
from ...ir.syntax import Op
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import is_dead


@dataclass(frozen=True)
class DCE(Pass):
    """Drop what nobody reads: operations, results and operands of kernels, kernels never launched."""

    name: ClassVar[str] = "dce"
    accepts: ClassVar[tuple[str, ...]] = ("aten", "kernel", "loop")
    after: ClassVar[tuple[str, ...]] = ("cse",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        removed = sum(
            _sweep(top.block_body) for top in module.body.ops if isinstance(top, Op) and top.name == "prim.func"
        )
        removed += _sweep_kernels(module)
        ctx.diagnostics.count(self.name, "removed", removed)


def _sweep(block: Block) -> int:
    """One walk backwards: all readers of a value stand behind it."""
    removed = 0
    op: Operation | None = block.last_op
    while op is not None:
        previous = op.prev_op
        if is_dead(op):
            block.erase_op(op)
            removed += 1
        elif isinstance(op, Fused):
            removed += _shrink(op)
        op = previous
    return removed


def _shrink(op: Fused) -> int:
    """Drop the kernel's unread results, what then is dead inside it, and the operands that nothing inside reads."""
    read = [k for k, result in enumerate(op.results) if result.first_use is not None]
    body = op.block_body
    if len(read) < len(op.results):
        old = body.last_op
        assert isinstance(old, Yield)
        new = Yield.make([old.operands[k] for k in read], loc=old.location)
        body.erase_op(old)
        body.add_op(new)
    removed = _sweep(body)
    needed = [k for k, arg in enumerate(body.args) if arg.first_use is not None]
    if len(read) == len(op.results) and len(needed) == len(body.args):
        return removed
    for k in reversed(range(len(body.args))):
        if k not in needed:
            body.erase_arg(body.args[k])
    _rebuild(op, needed, read)
    return removed + 1


def _rebuild(op: Fused, operands: Sequence[int], results: Sequence[int]) -> None:
    region = op.detach_region(0)
    new = Fused.make(
        [op.operands[k] for k in operands], [op.results[k].type for k in results], op.literals, [region], op.location
    )
    if (strides := op.get("strides")) is not None:
        new["strides"] = tuple(strides[k] for k in results)
    block = op.parent
    assert block is not None
    block.insert_ops_before([new], op)
    for k, result in zip(results, new.results, strict=True):
        result.name_hint = op.results[k].name_hint
        op.results[k].replace_all_uses_with(result)
    block.erase_op(op)


def _sweep_kernels(module: ModuleOp) -> int:
    """Drop `loop.kernel`s that no launch names."""
    kernels = [op for op in module.body.ops if isinstance(op, Op) and op.name == "loop.kernel"]
    if not kernels:
        return 0
    launched = {op["kernel"] for op in module.walk() if isinstance(op, Op) and op.name == "loop.launch"}
    dead = [op for op in kernels if op["sym_name"] not in launched]
    for op in dead:
        module.body.block.erase_op(op)
    return len(dead)
