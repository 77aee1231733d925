"""decompose: every `aten` operation becomes prims by a rule, or a call of the library by `kernel.extern`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.aten import AtenOp
from ...ir.dtypes import I64
from ...ir.fx.random_state import changes_default
from ...ir.syntax import Op, line_of
from ...ir.types import TensorType, tensor_type
from ..analysis.strides import is_view
from ..core.base import Pass, PassError
from ..core.context import CompileContext
from ..core.rewriter import replace
from .aten_rules import (  # noqa: F401  (they register their rules)
    backward,
    elementwise,
    embedding_bags,
    formulas,
    index,
    library,
    linear_cross_entropy,
    random,
    reduce,
    resample,
    scatter,
    search,
    shape,
    windows,
)
from .aten_rules.builder import CPU_RULES, RANDOM, RULES, Builder, NotCovered, Rule
from .coverage import left_to_library


@dataclass(frozen=True)
class Decompose(Pass):
    """Replace ATen operations by primitives; what no rule covers becomes a library call.

    Options:
        random: where random numbers are made: "philox" in kernels, "eager" by the library, which gives eager's numbers; "auto": in kernels on a GPU.
    """

    name: ClassVar[str] = "decompose"
    level: ClassVar[str] = "aten"
    gives: ClassVar[str | None] = "prim"

    random: str = "auto"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if self.random not in ("auto", "philox", "eager"):
            raise PassError(f"decompose: random is auto, philox or eager, not {self.random}")
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            streams = _Streams(func)
            # Streams have one seed, drawn at the call's begin: a program that sets seeds or states draws by the library.
            seeded = any(isinstance(op, AtenOp) and changes_default(op.target) for op in func.block_body.ops)
            for op in list(func.block_body.ops):
                if isinstance(op, AtenOp):
                    builder = Builder(op, ctx.machine)
                    if not seeded and (self.random == "philox" or self.random == "auto" and builder.on_gpu):
                        builder.stream = streams
                    _replace(ctx, op, builder)


@dataclass
class _Streams:
    """The streams of random bits of one program: one seed for each device, drawn at each call, and numbers that are added to it."""

    func: prim.Func
    seeds: dict[str, SSAValue] = field(default_factory=dict)
    count: int = 0

    def __call__(self, builder: Builder) -> SSAValue:
        device = builder.type.device
        if device not in self.seeds:
            self.seeds[device] = self._draw(device, builder.op)
        seed, number = self.seeds[device], self.count
        self.count += 1
        return builder.ew("add", seed, number) if number else seed

    def _draw(self, device: str, op: AtenOp) -> SSAValue:
        """A library call, so that torch's generator counts the draw; in front of all others, as in front of a CUDA graph that is played back."""
        attrs = {"target": "aten.randint.low", "operands": (), "low": -(2**63), "high": 2**63 - 1, "size": ()}
        attrs |= {
            "dtype": torch.int64,
            "device": torch.device(device),
            "pin_memory": False,
            "effect": True,
            "seed": True,
        }
        call = kernel.Extern.make([], [tensor_type((), I64, device)], attrs, loc=op.location)
        block = op.parent
        assert block is not None
        assert block.first_op is not None
        block.insert_op_before(call, block.first_op)
        return call.results[0]


def replace_by(op: AtenOp, builder: Builder, rule: Rule) -> str:
    """Put what a rule makes in the place of the operation, whatever effects it has; or the reason why it stays."""
    values, reason = _values_of(op, builder, rule)
    if reason:
        _give_up(builder)
        return reason
    for i, new in enumerate(values):
        if new is not None:
            _keep_strides(op, i, new, builder)
    replace(op, values, builder.ops)
    return ""


def _give_up(builder: Builder) -> None:
    """What a rule made before it gave up must not stay a user of its operands."""
    for made in reversed(builder.ops):
        made.erase()
    builder.ops.clear()


def _replace(ctx: CompileContext, op: AtenOp, builder: Builder) -> None:
    values, reason = _by_rule(op, builder)
    if reason:
        _give_up(builder)
        call = _extern(op)
        builder.ops, values = [call], list(call.results)
        ctx.diagnostics.count("decompose", "library calls")
        ctx.diagnostics.remark("decompose", "extern", lambda: f"{op.target} is a library call: {reason}", line_of(op))
    elif builder.note:
        ctx.diagnostics.remark("decompose", "written out", lambda: builder.note, line_of(op))
    for i, new in enumerate(values):
        if new is not None and not reason:
            _keep_strides(op, i, new, builder)
    replace(op, values, builder.ops)


def _by_rule(op: AtenOp, builder: Builder) -> tuple[list[SSAValue | None], str]:
    """The replacing values, or the reason why there are none."""
    rule = RULES.get(op.target) if builder.on_gpu else CPU_RULES.get(op.target) or RULES.get(op.target)
    if op.get("effect"):
        rule = RANDOM.get(op.target)
        if rule is None or builder.stream is None:
            return [], "it has an effect"
    if rule is None:
        return [], "no rule decomposes it"
    if kept := left_to_library(builder):
        return [], f"its rule does not cover {kept}"
    return _values_of(op, builder, rule)


def _values_of(op: AtenOp, builder: Builder, rule: Rule) -> tuple[list[SSAValue | None], str]:
    """What a rule gives for the results, or the reason why it cannot be taken."""
    try:
        result = rule(builder)
    except NotCovered as why:
        return [], f"its rule does not cover {why}"
    values: list[SSAValue | None] = [result] if isinstance(result, SSAValue) else list(result)
    if "returned" in op.literals:
        values = [values[i] for i in op["returned"]]
    for old, new in zip(op.results, values, strict=True):
        if new is not None and new.type != old.type:
            return [], f"its rule gives {new.type} for {old.type}"
    if any(_computes_complex(made) for made in builder.ops):
        return [], "its rule does not cover complex numbers"
    if any(len(_devices(made)) > 1 for made in builder.ops):
        return [], "its rule does not cover tensors on several devices"
    return values, ""


def _devices(op: Operation) -> set[str]:
    """Where the tensors of an operation are: a kernel reaches the memory of one device, a library copies what lies elsewhere."""
    return {v.type.device for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)}


def _computes_complex(op: Operation) -> bool:
    """Whether an operation would need a loop over complex numbers, which there are none of; views need no loop."""
    if is_view(op):
        return False
    types = (v.type for v in (*op.operands, *op.results))
    return any(isinstance(t, TensorType) and t.dtype.kind == "complex" for t in types)


def _extern(op: AtenOp) -> kernel.Extern:
    call = kernel.Extern.make(
        op.operands, [r.type for r in op.results], {"target": op.target, **op.literals}, loc=op.location
    )
    for old, new in zip(op.results, call.results, strict=True):
        new.name_hint = old.name_hint
    return call


def _keep_strides(op: AtenOp, which: int, value: SSAValue, builder: Builder) -> None:
    """Eager's layout of the result is recorded on the prim that makes it."""
    strides = op.get("strides")
    owner = value.owner
    if not strides or strides[which] is None or not isinstance(owner, Op) or owner not in builder.ops:
        return
    if "strides" not in owner.attributes:
        owner["strides"] = tuple(strides[which] if r is value else None for r in owner.results)
