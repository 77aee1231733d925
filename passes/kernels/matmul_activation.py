"""Matrix products whose library has the operation behind them as an epilogue: cuBLASLt adds a bias and computes gelu in its tanh form.

Programs write that gelu out in many ways. What a kernel computes of one element is recognised by its values: an expression of a few smooth
operations that agrees with gelu at thousands of numbers between -40 and 40, dense near 0, is gelu.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.scalars import SCALARS
from ...ir.syntax import Op
from ..analysis.strides import view_of

SMOOTH = ("add", "sub", "mul", "div", "neg", "tanh", "exp", "sigmoid", "pow")
NEAR = 1e-6  # relative to the argument: the constants of gelu are written with seven digits or more
BOUND = 40.0
STEP = 7  # every seventh number of bfloat16 is looked at


def is_tanh_gelu(fused: kernel.Fused) -> bool:
    """Whether a kernel of one input and one result computes gelu in its tanh form of each element."""
    block = fused.block_body
    if len(fused.operands) != 1 or len(fused.results) != 1:
        return False
    numbers = torch.arange(-(1 << 15), 1 << 15, STEP, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    x = numbers[numbers.abs() <= BOUND]
    values: dict[SSAValue, torch.Tensor] = {block.args[0]: x}
    for op in block.ops:
        if isinstance(op, kernel.Yield):
            return _agree(values.get(op.operands[0]), x)
        assert isinstance(op, Op)
        found = _value(op, values)
        if found is None:
            return False
        values[op.results[0]] = found
    return False


def _value(op: Op, values: dict[SSAValue, torch.Tensor]) -> torch.Tensor | None:
    """The operation on the samples, in float64: rounding in between is not part of what is computed."""
    operands = [values.get(v) for v in op.operands]
    given = [v for v in operands if v is not None]
    if len(given) < len(operands):
        return None
    if isinstance(op, prim.Full) and op.type.dtype.is_float:
        return torch.tensor(float(op["value"]), dtype=torch.float64)
    if isinstance(op, prim.Reshape) or (isinstance(op, prim.Cast) and op.type.dtype.is_float):
        return given[0]
    if isinstance(op, prim.Elementwise) and op.row.name in SMOOTH:
        found: torch.Tensor = SCALARS[op.row.name].torch(*given)
        return found
    return None


def _agree(found: torch.Tensor | None, x: torch.Tensor) -> bool:
    if found is None or found.shape != x.shape:
        return False
    gelu = F.gelu(x, approximate="tanh")
    return bool(((found - gelu).abs() <= NEAR * x.abs()).all())


def with_gelu(
    op: kernel.Extern, a: SSAValue, b: SSAValue, bias: SSAValue, transposed: bool, behind: kernel.Fused
) -> None:
    """Put one call of the library in the place of a product with a bias and the kernel behind it."""
    block = behind.parent
    assert block is not None
    if transposed:
        turned = prim.permute(b, (1, 0))
        block.insert_op_before(turned, behind)
        b = turned.results[0]
    result = op.results[0]
    attrs: dict[str, object] = {
        "target": "aten._addmm_activation.default",
        "operands": ("self", "mat1", "mat2"),
        "use_gelu": True,
        "choice": "library",
        "why": "it adds the bias and computes gelu, too",
    }
    strides = [_strides(v) for v in (bias, a, b)]
    if any(s is not None for s in strides):
        attrs["operand_strides"] = tuple(strides)
    call = kernel.Extern.make([bias, a, b], [result.type], attrs, loc=op.location)
    view = prim.reshape(call.results[0], prim.tensor(behind.results[0]).shape)
    block.insert_ops_before([call, view], behind)
    behind.results[0].replace_all_uses_with(view.results[0])
    behind.detach()
    behind.erase()


def _strides(value: SSAValue) -> tuple[object, ...] | None:
    view = view_of(value)
    return None if view is None else tuple(view.strides)
