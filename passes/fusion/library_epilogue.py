"""library-epilogue: a convolution or linear layer by a parameter takes over the batch norm and the activation that follow it.

The library packs the weight anyway: batch norm in inference is folded into the packed copy, and oneDNN applies the activation while the
result is in registers. Only activations that keep eager's nan are taken over: oneDNN's relu, hardtanh and hardsigmoid turn nan into numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.aten import AtenOp
from ...ir.dtypes import F32
from ...ir.epilogue import PREFIX
from ..analysis.strides import channels_last, same_layout
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import is_static

BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
ACTIVATIONS: dict[str, Callable[[AtenOp], tuple[Any, ...]]] = {
    "aten.gelu.default": lambda op: ("gelu", op.get("approximate", "none")),
    "aten.leaky_relu.default": lambda op: ("leaky_relu", op.get("negative_slope", 0.01)),
    "aten.silu.default": lambda op: ("silu",),
    "aten.hardswish.default": lambda op: ("hardswish",),
    "aten.sigmoid.default": lambda op: ("sigmoid",),
    "aten.tanh.default": lambda op: ("tanh",),
}


@dataclass(frozen=True)
class LibraryEpilogue(Pass):
    """Let library calls with a parameter's weight carry out the batch norm and the activation that follow.

    Options:
        batch_norm: take over batch norm after convolutions.
        activations: take over activations.
        min_channels: leave convolutions with fewer output channels as they are; `channels-last` leaves them too.
    """

    name: ClassVar[str] = "library-epilogue"
    level: ClassVar[str] = "aten"
    before: ClassVar[tuple[str, ...]] = ("decompose",)

    batch_norm: bool = True
    activations: bool = True
    min_channels: int = 8

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if not ctx.machine.onednn:
            return
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            for op in list(func.block_body.ops):
                if isinstance(op, AtenOp) and op.parent is not None and self._takes(op, func):
                    chain = self._chain(op, func)
                    if chain.absorbed:
                        replace_call(op, chain)
                        ctx.diagnostics.count(self.name, "operations taken over", len(chain.absorbed))

    def _takes(self, op: AtenOp, func: prim.Func) -> bool:
        """A call that `targets.library` gives to oneDNN."""
        names = list(op["operands"])
        if op.name not in ("aten.convolution.default", "aten.linear.default") or names[:2] != ["input", "weight"]:
            return False
        values = (*op.operands, *op.results)
        if any(prim.tensor(v).dtype != F32 or prim.tensor(v).device != "cpu" for v in values):
            return False
        result, weight = prim.tensor(op.results[0]), op.operands[1]
        if not is_static(weight, func) or op.get("effect") or 0 in (*result.shape, *prim.tensor(weight).shape):
            return False
        if op.name == "aten.linear.default":
            return prim.tensor(weight).rank == 2 and _strides(op) is None
        channels = result.shape[1] if result.rank == 4 else None
        if op.get("transposed") is True or not isinstance(channels, int) or channels < self.min_channels:
            return False
        given = [*op.get("operand_strides", ()), *op.get("strides", ())]
        found = _strides(op)
        if found is None:
            return all(strides is None for strides in given)
        wanted = channels_last(result.shape)
        return wanted is not None and same_layout(result.shape, found, wanted)

    def _chain(self, op: AtenOp, func: prim.Func) -> Chain:
        """What follows the call and may be taken over, in order."""
        chain = Chain(op)
        user = _only_user(chain.last)
        if self.batch_norm and user is not None and folds(user, op, func):
            chain.take_batch_norm(user)
            user = _only_user(user)
        if self.activations and user is not None and user.name in ACTIVATIONS and same_kind(user, op):
            chain.steps.append(ACTIVATIONS[user.name](user))
            chain.absorbed.append(user)
        return chain


@dataclass
class Chain:
    """The operations that a call takes over."""

    call: AtenOp
    absorbed: list[AtenOp] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    extras: list[SSAValue] = field(default_factory=list)

    @property
    def last(self) -> AtenOp:
        """The operation whose result the whole gives."""
        return self.absorbed[-1] if self.absorbed else self.call

    def take_batch_norm(self, op: AtenOp) -> None:
        """Append a batch norm in inference."""
        numbers: list[int | None] = []
        names = list(op["operands"])
        for name in ("running_mean", "running_var", "weight", "bias"):
            if name in names:
                numbers.append(len(self.extras))
                self.extras.append(op.operands[names.index(name)])
            else:
                numbers.append(None)
        self.steps.append(("batch_norm", op["eps"], *numbers))
        self.absorbed.append(op)


def _only_user(op: AtenOp) -> AtenOp | None:
    """The one operation that reads result 0, once; None when there are more, or when another result is read."""
    uses = list(op.results[0].uses)
    if len(uses) != 1 or any(r.first_use is not None for r in op.results[1:]):
        return None
    user = uses[0].operation
    return user if isinstance(user, AtenOp) and uses[0].index == 0 and not user.get("effect") else None


def folds(user: AtenOp, call: AtenOp, func: prim.Func) -> bool:
    """A batch norm by parameters and buffers over the call's channels; its bias, if any, is a parameter too."""
    if user.name != BATCH_NORM or call.name != "aten.convolution.default" or not same_kind(user, call):
        return False
    names, channels = list(user["operands"]), prim.tensor(call.results[0]).shape[1]
    if names[0] != "input" or not {"running_mean", "running_var"} <= set(names):
        return False
    if any(r.first_use is not None for r in user.results[1:]):
        return False
    strides = user.get("operand_strides") or (None,) * len(names)
    folded = [*user.operands[1:], *call.operands[2:]]
    kinds = [prim.tensor(v) for v in folded]
    return (
        all(is_static(v, func) for v in folded)
        and all(s is None for s in strides[1:])
        and all(k.shape == (channels,) and k.dtype == F32 and k.device == "cpu" for k in kinds)
    )


def same_kind(user: AtenOp, call: AtenOp) -> bool:
    """The operation gives what the call gives: sizes, dtype and eager's strides."""
    return user.results[0].type == call.results[0].type and _strides(user) == _strides(call)


def _strides(op: AtenOp) -> Any:
    recorded = op.get("strides")
    return recorded[0] if recorded else None


def replace_call(call: AtenOp, chain: Chain) -> None:
    """One library call in the place of the last operation taken over."""
    last, literals = chain.last, dict(call.literals)
    names = [f"{PREFIX}{k}" for k in range(len(chain.extras))]
    literals["operands"] = (*call["operands"], *names)
    if call.get("operand_strides"):
        literals["operand_strides"] = (*call["operand_strides"], *(None for _ in names))
    attrs = {"target": call.target, **literals, "epilogue": tuple(chain.steps)}
    made = kernel.Extern.make([*call.operands, *chain.extras], [last.results[0].type], attrs, loc=call.location)
    made.results[0].name_hint = last.results[0].name_hint
    block = last.parent
    assert block is not None
    block.insert_ops_before([made], last)
    last.results[0].replace_all_uses_with(made.results[0])
    for op in reversed([call, *chain.absorbed]):
        op.detach()
        op.erase()
