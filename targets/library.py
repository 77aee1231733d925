"""The seam to the libraries behind ATen: which call carries out an extern operation.

The default is the operator itself. Where a library offers a faster way to do the same, a chooser returns a `Step` that describes it in
plain data (it is kept in the cache); the host program calls the step with the operation's tensors.

oneDNN multiplies with a weight packed once in 1.0 to 2.3 times the speed of MKL's call on the raw weight, so products with a parameter go there.
A packed copy belongs to one tensor, address and version: a parameter that was changed in place, loaded or replaced is packed again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.ir import BlockArgument, SSAValue

from ..ir.dialects import buffer, prim
from ..ir.dtypes import F32
from ..ir.epilogue import apply_epilogue
from ..ir.syntax import Op
from ..ir.types import RefType
from ..passes.strides import channels_last
from .torch_private import onednn_convolution, onednn_linear, onednn_pack_convolution, onednn_pack_linear


@dataclass(frozen=True)
class Step:
    """A library call other than the operator itself: which builder in `BUILDERS`, with which options (plain data)."""

    builder: str
    options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the cache."""
        return {"builder": self.builder, "options": self.options}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Step:
        """The inverse of `as_json`."""
        return Step(data["builder"], data["options"])


# address, bytes, rows -> a number that changes with the contents.
# With rows = -1 the address is that of a table of (address, bytes, rows), which is `bytes` long.
Fingerprint = Callable[[int, int, int], int]

WEIGHTS_SOURCE = """\
#include <stdint.h>

// Small weights: all words. Others: one word of each row, at a column that moves with the row, so that any row or column counts.
static uint64_t fingerprint(const uint32_t* data, int64_t bytes, int64_t rows) {
  const int64_t width = bytes / 4 / (rows ? rows : 1);
  uint64_t sum = 0;
  if (width == 0 || bytes <= 1 << 16) {
    for (int64_t i = 0; i < bytes / 4; ++i) sum += data[i] * (2 * (uint64_t)i + 0x9E3779B97F4A7C15u);
    return sum;
  }
  const int64_t steps = rows > width ? rows : width;
  for (int64_t i = 0; i < steps; ++i) sum += data[i % rows * width + i % width] * (2 * (uint64_t)i + 0x9E3779B97F4A7C15u);
  return sum;
}

// With rows = -1, data is a table of (address, bytes, rows): one number for all of them.
extern "C" uint64_t intarsia_fingerprint(const void* data, int64_t bytes, int64_t rows) {
  if (rows != -1) return fingerprint((const uint32_t*)data, bytes, rows);
  const int64_t* table = (const int64_t*)data;
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes / 8; i += 3)
    sum = sum * 0x9E3779B97F4A7C15u + fingerprint((const uint32_t*)table[i], table[i + 1], table[i + 2]);
  return sum;
}
"""


@dataclass
class Library:
    """The choice of library calls. `packing=False` keeps every call the operator's own.

    `fingerprint` is the compiled WEIGHTS_SOURCE, set before steps are built.
    """

    packing: bool = True
    fingerprint: Fingerprint | None = None

    def choose(self, op: Op, func: prim.Func) -> Step | None:
        """A faster way to do this `buffer.extern`, or None for the operator itself."""
        chooser = CHOOSERS.get(op["target"])
        return chooser(op, func) if chooser is not None and self.packing else None

    def build(self, step: Step) -> Callable[..., Any]:
        """The callable of a step."""
        return BUILDERS[step.builder](**step.options, fingerprint=self.fingerprint)


# -- products with a parameter


class PackedWeight:
    """A packed copy of one weight at a time, made again when the weight is another tensor or was changed.

    A change through the tensor raises its version. A write through `.data` or NumPy does not: a fingerprint over all of a
    small weight (64 KiB), or over one word of every row, at another column in each, notices those that touch a row, a column or many elements.
    A write of single elements into a large weight by such a way is not noticed; the setting `packing` is for programs that do that.
    Two threads may pack the same weight twice; each sees a complete copy. Holding the storage that was packed keeps its address
    from being given to other data, so that equal address and version mean the same memory.
    """

    def __init__(self, pack: Callable[[torch.Tensor], torch.Tensor], fingerprint: Fingerprint) -> None:
        self.pack, self.fingerprint = pack, fingerprint
        self.known: tuple[int, int, int, torch.Tensor, Any] | None = (
            None  # address, version, fingerprint, copy, storage
        )

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """The packed copy of the weight as it is now."""
        known, address = self.known, weight.data_ptr()
        mark = self.fingerprint(address, weight.nbytes, weight.size(0))
        if known is not None and known[0] == address and known[1] == weight._version and known[2] == mark:
            return known[3]
        version = weight._version
        packed = self.pack(weight.detach())
        self.known = (address, version, mark, packed, weight.untyped_storage())
        return packed


class Folded:
    """A weight and bias that batch norm was folded into, packed; made again when any of the tensors is another or was changed.

    As `PackedWeight`, for several tensors whose fingerprint one call takes.
    """

    def __init__(self, fold: Callable[..., tuple[torch.Tensor, torch.Tensor]], fingerprint: Fingerprint) -> None:
        self.fold, self.fingerprint = fold, fingerprint
        # addresses and versions, table, fingerprint, results, storages
        self.known: tuple[list[int], Any, int, tuple[torch.Tensor, torch.Tensor], Any] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The packed weight and the bias for the tensors as they are now."""
        known = self.known
        key = [n for t in tensors for n in (t.data_ptr(), t._version)]
        if known is not None and known[0] == key:
            table = known[1]
            if known[2] == self.fingerprint(ctypes.addressof(table), ctypes.sizeof(table), -1):
                return known[3]
        rows = [n for t in tensors for n in (t.data_ptr(), t.nbytes, t.size(0))]
        table = (ctypes.c_int64 * len(rows))(*rows)
        mark = self.fingerprint(ctypes.addressof(table), ctypes.sizeof(table), -1)
        made = self.fold(*(t.detach() for t in tensors))
        self.known = (key, table, mark, made, [t.untyped_storage() for t in tensors])
        return made


def fold_batch_norm(
    weight: torch.Tensor, bias: torch.Tensor | None, step: Sequence[Any], extras: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the convolution that gives what batch norm gives after this one; computed in float64.

    Args:
        weight: (out, ...) float32.
        bias: (out,) or None.
        step: the step `batch_norm` of an epilogue, whose numbers refer to `extras`.
    """
    _, eps, *numbers = step
    mean, variance, scale, shift = (None if k is None else extras[k].double() for k in numbers)
    assert mean is not None and variance is not None
    factor = (variance + eps).rsqrt()
    if scale is not None:
        factor = factor * scale
    new = -mean * factor if bias is None else (bias.double() - mean) * factor
    if shift is not None:
        new = new + shift
    return (weight.double() * factor.reshape(-1, *[1] * (weight.dim() - 1))).float(), new.float()


# oneDNN's name of an activation, its numbers and its algorithm, from an epilogue's step. All of them keep nan.
ACTIVATIONS: dict[str, Callable[..., tuple[str, list[float], str]]] = {
    "gelu": lambda approximate: ("gelu", [], approximate),
    "leaky_relu": lambda slope: ("leaky_relu", [slope], ""),
    "silu": lambda: ("swish", [], ""),
    "hardswish": lambda: ("hardswish", [], ""),
    "sigmoid": lambda: ("sigmoid", [], ""),
    "tanh": lambda: ("tanh", [], ""),
}


def _split(epilogue: Sequence[Sequence[Any]]) -> tuple[Any, tuple[str, list[float], str], list[Any]]:
    """The batch norm to fold or None, the activation for oneDNN, and the steps left for torch."""
    steps = list(epilogue)
    norm = steps.pop(0) if steps and steps[0][0] == "batch_norm" else None
    activation: tuple[str, list[float], str] = ("none", [], "")
    if steps and steps[0][0] in ACTIVATIONS:
        name, *arguments = steps.pop(0)
        activation = ACTIVATIONS[name](*arguments)
    return norm, activation, steps


class PackedProduct:
    """x @ w (+ bias) through oneDNN with a packed copy of the weight.

    Args:
        x, weight, bias: positions of the operands; bias is None without one.
        transposed: the weight operand is (in, out), as for mm, and not (out, in), as for linear.
        rows: how many rows x had at compile time; packing prepares for that many.
        epilogue: steps on the result (ir/epilogue.py); none of them refers to tensors.
    """

    def __init__(
        self,
        x: int,
        weight: int,
        bias: int | None,
        transposed: bool,
        rows: int,
        fingerprint: Fingerprint,
        epilogue: Sequence[Sequence[Any]] = (),
    ) -> None:
        self.epilogue, (_, self.activation, _) = epilogue, _split(epilogue)
        self.x, self.weight, self.bias, self.transposed = x, weight, bias, transposed
        self.packed = PackedWeight(
            lambda w: onednn_pack_linear((w.t() if transposed else w).contiguous(), rows), fingerprint
        )

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        x, weight = operands[self.x], operands[self.weight]
        bias = None if self.bias is None else operands[self.bias]
        if weight.is_inference():  # has no version: a change could not be noticed
            plain = torch.nn.functional.linear(x, weight.t() if self.transposed else weight, bias)
            return apply_epilogue(plain, self.epilogue, ())
        return onednn_linear(x, self.packed(weight), bias, *self.activation)


class PackedConvolution:
    """A convolution through oneDNN with a packed copy of the weight; the result lies channels-last.

    Args:
        bias: whether there is a third operand.
        padding, stride, dilation, groups: as for the operator.
        size: the size of x at compile time, for which packing prepares.
        epilogue: steps on the result (ir/epilogue.py), whose tensors follow the other operands.
    """

    def __init__(
        self,
        bias: bool,
        padding: Any,
        stride: Any,
        dilation: Any,
        groups: int,
        size: Any,
        fingerprint: Fingerprint,
        epilogue: Sequence[Sequence[Any]] = (),
    ) -> None:
        self.epilogue = epilogue
        self.norm, self.activation, self.rest = _split(epilogue)
        self.bias, self.how = bias, (list(padding), list(stride), list(dilation), groups)
        self.packed = PackedWeight(
            lambda w: onednn_pack_convolution(w.contiguous(), *self.how, list(size)), fingerprint
        )
        self.folded = Folded(self._fold, fingerprint)

    def _fold(self, weight: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bias, extras = (others[0], others[1:]) if self.bias else (None, others)
        new_weight, new_bias = fold_batch_norm(weight, bias, self.norm, extras)
        return self.packed.pack(new_weight), new_bias

    def __call__(self, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        padding, stride, dilation, groups = self.how
        weight, bias = tensors[0], tensors[1] if self.bias else None
        if any(t.is_inference() for t in tensors):  # without a version; what is made of them could be stale
            plain = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
            return apply_epilogue(plain, self.epilogue, tensors[1 + self.bias :])
        packed, bias = (self.packed(weight), bias) if self.norm is None else self.folded(tensors)
        result = onednn_convolution(x, packed, bias, padding, stride, dilation, groups, *self.activation)
        return apply_epilogue(result, self.rest, tensors[1 + self.bias :]) if self.rest else result


def _is_static(value: SSAValue, func: prim.Func) -> bool:
    """Whether the value is a parameter or buffer, or a view of one."""
    while isinstance(value.owner, buffer.View):
        value = value.owner.operands[0]
    static = func.get("arg_static")
    return isinstance(value, BlockArgument) and bool(static and static[value.index])


def _choose_product(op: Op, func: prim.Func, x: str, weight: str, bias: str | None, transposed: bool) -> Step | None:
    if onednn_linear is None:
        return None
    names = list(op["operands"])
    wide, kept = op.operands[names.index(x)].type, op.operands[names.index(weight)].type
    assert isinstance(wide, RefType) and isinstance(kept, RefType)
    shapes = [v.type.shape for v in op.operands if isinstance(v.type, RefType)]
    if any(v.type.dtype != F32 or v.type.device != "cpu" for v in op.operands if isinstance(v.type, RefType)):
        return None
    if any(0 in shape for shape in shapes) or not wide.shape or len(kept.shape) != 2:
        return None
    if not _is_static(op.operands[names.index(weight)], func):
        return None
    position = names.index(bias) if bias is not None and bias in names else None
    if position is not None and len(shapes[position]) != 1:
        return None
    rows: Any = 1
    for size in wide.shape[:-1]:
        rows = rows * size
    steps = op.get("epilogue", ())
    if steps and (len(steps) > 1 or steps[0][0] not in ACTIVATIONS):
        return None
    options: dict[str, Any] = {"x": names.index(x), "weight": names.index(weight), "bias": position}
    options |= {"transposed": transposed, "epilogue": steps}
    return Step("packed-product", options | {"rows": rows if isinstance(rows, int) else 64})


def _linear(op: Op, func: prim.Func) -> Step | None:
    return _choose_product(op, func, "input", "weight", "bias", transposed=False)


def _addmm(op: Op, func: prim.Func) -> Step | None:
    if op.get("beta", 1) != 1 or op.get("alpha", 1) != 1:
        return None
    bias, result = op.operands[list(op["operands"]).index("self")].type, op.results[0].type
    assert isinstance(bias, RefType) and isinstance(result, RefType)
    if bias.shape != result.shape[1:]:
        return None
    return _choose_product(op, func, "mat1", "mat2", "self", transposed=True)


def _mm(op: Op, func: prim.Func) -> Step | None:
    return _choose_product(op, func, "self", "mat2", None, transposed=True)


SMALL_PRODUCT = 20_000_000  # floating point operations: about 0.1 ms on one thread


def _is_small_product(weight: RefType, result: RefType) -> bool:
    """A 1x1 convolution so small that the 20 us by which oneDNN's call with a packed weight is dearer are more than it saves.

    Measured on a Zen 4 core, packed against the operator: 0.026 and 0.006 ms at 1x1 pixels, 0.045 and 0.030 at 48x120 channels and
    14x14 pixels, 0.112 and 0.102 at 16x72 and 56x56; from 0.25 ms on packed wins (0.257 and 0.278), as it does for depthwise ones.
    """
    outputs, inputs, *kernel = weight.shape
    n, _, *pixels = result.shape
    if kernel != [1, 1] or inputs == 1 or not all(isinstance(s, int) for s in (n, *pixels)):
        return False
    work = 2
    for size in (n, *pixels, outputs, inputs):
        work *= int(size)
    return work < SMALL_PRODUCT


def _convolution(op: Op, func: prim.Func) -> Step | None:
    """Those that `channels-last` moved: their result is planned in the layout that oneDNN gives."""
    x, weight, result = op.operands[0].type, op.operands[1].type, op.results[0].type
    assert isinstance(x, RefType) and isinstance(weight, RefType) and isinstance(result, RefType)
    fits = (
        onednn_convolution is not None
        and tuple(op["operands"][:2]) == ("input", "weight")
        and op.get("transposed") is not True
        and x.dtype == weight.dtype == F32
        and x.device == "cpu"
        and len(x.shape) == 4
        and 0 not in (*x.shape, *result.shape)
        and result.strides == channels_last(result.shape)
        and _is_static(op.operands[1], func)
    )
    if not fits or (_is_small_product(weight, result) and not op.get("epilogue")):
        return None
    options = {name: list(op[name]) for name in ("padding", "stride", "dilation")}
    size = [s if isinstance(s, int) else 16 for s in x.shape]
    return Step(
        "packed-convolution",
        options
        | {"bias": "bias" in op["operands"], "groups": op["groups"], "size": size, "epilogue": op.get("epilogue", ())},
    )


CHOOSERS: dict[str, Callable[[Op, prim.Func], Step | None]] = {
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.mm.default": _mm,
    "aten.convolution.default": _convolution,
}
BUILDERS: dict[str, Callable[..., Callable[..., Any]]] = {
    "packed-product": PackedProduct,
    "packed-convolution": PackedConvolution,
}
