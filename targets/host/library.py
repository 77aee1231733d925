"""The seam to the libraries behind ATen: which call carries out an extern operation.

The default is the operator itself. Where a library offers a faster way to do the same, a chooser returns a `Step` that describes it in
plain data (it is kept in the cache); the host program calls the step with the operation's tensors.

A packed copy belongs to one tensor, address and version: a parameter that was changed in place, loaded or replaced is packed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...ir.dialects import prim
from ...ir.dialects.kernel import ATTENTION
from ...ir.dtypes import BF16, F32
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.strides import channels_last
from ...passes.core.clauses import Call, Clauses, broken
from ..measure.choices import Choices
from ..torch_private import NO_ACTIVATION, onednn_bfloat16, onednn_convolution, onednn_linear, onednn_pack_convolution
from .library_attention import Attention, choose_attention
from .library_product import LYING, PACKED, PackedPanels, PackedProduct, Product, choose_addmm, choose_linear, choose_mm
from .steps import WEIGHTS_SOURCE, Fingerprint, PackedWeight, Step, is_static

__all__ = ["WEIGHTS_SOURCE", "Fingerprint", "Library", "PackedConvolution", "Step"]


@dataclass
class Library:
    """The choice of library calls. `packing=0` keeps every call the operator's own.

    Attributes:
        packing: the most MiB that packed copies of weights may take; -1: as many as they want.
        choices: the table of measurements; None: the same choice everywhere.
        fingerprint: the compiled WEIGHTS_SOURCE, set before steps are built.
        record: whether programs on a GPU are recorded as CUDA graphs.
        record_custom: also those with operators of a user's library.
    """

    packing: int = -1
    choices: Choices | None = None
    fingerprint: Fingerprint | None = None
    record: bool = True
    record_custom: bool = False

    def choose(self, op: Op, func: prim.Func) -> Step | None:
        """A faster way to do this `buffer.extern`, or None for the operator itself."""
        chooser = CHOOSERS.get(op["target"])
        step = chooser(op, func) if chooser is not None and self.packing else None
        if step is not None and step.builder in (PACKED, LYING) and self.choices is not None:
            x, weight = (op.operands[step.options[name]].type for name in ("x", "weight"))
            assert isinstance(x, RefType) and isinstance(weight, RefType)
            inner, outer = weight.shape if step.options["transposed"] else weight.shape[::-1]
            if isinstance(inner, int) and isinstance(outer, int):
                turned = x.strides[-1] != 1
                return self.choices.product(step, step.options["rows"], inner, outer, weight.dtype.torch, turned)
        return step

    def build(self, step: Step) -> Callable[..., Any]:
        """The callable of a step."""
        limit = self.packing << 20 if self.packing > 0 else self.packing
        return BUILDERS[step.builder](**step.options, fingerprint=self.fingerprint, limit=limit)


# -- convolutions by a parameter


class PackedConvolution:
    """A convolution through oneDNN with a packed copy of the weight; the result lies channels-last.

    Args:
        padding, stride, dilation, groups: as for the operator.
        size: the size of x at compile time, for which packing prepares.
    """

    def __init__(
        self,
        padding: Any,
        stride: Any,
        dilation: Any,
        groups: int,
        size: Any,
        fingerprint: Fingerprint,
        limit: int = -1,
    ) -> None:
        self.how = (list(padding), list(stride), list(dilation), groups)
        self.packed = PackedWeight(
            lambda w: onednn_pack_convolution(w.contiguous(), *self.how, list(size)), fingerprint, limit=limit
        )

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        padding, stride, dilation, groups = self.how
        packed = None if weight.is_inference() else self.packed(weight)  # without a version a change is not noticed
        if packed is None:
            return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return onednn_convolution(x, packed, bias, padding, stride, dilation, groups, *NO_ACTIVATION)


SMALL_PRODUCT = 20_000_000  # floating point operations: about 0.1 ms on one thread


def _is_small_product(weight: RefType, result: RefType) -> bool:
    """A 1x1 convolution so small that the 20 us by which oneDNN's call with a packed weight is dearer are more than it saves.

    Measured on a Zen 4 core, packed against the operator: 0.026 and 0.006 ms at 1x1 pixels, 0.045 and 0.030 at 48x120 channels and
    14x14 pixels, 0.112 and 0.102 at 16x72 and 56x56; from 0.25 ms on packed wins (0.257 and 0.278), as it does for depthwise ones.
    In bfloat16 packed always wins (0.025 and 0.047 ms at 1x1 pixels, 0.054 and 0.065 at 128x64 channels and 28x28 pixels).
    """
    if weight.dtype != F32:
        return False
    outputs, inputs, *kernel = weight.shape
    n, _, *pixels = result.shape
    if kernel != [1, 1] or inputs == 1 or not all(isinstance(s, int) for s in (n, *pixels)):
        return False
    work = 2
    for size in (n, *pixels, outputs, inputs):
        work *= int(size)
    return work < SMALL_PRODUCT


def takes_packed_convolution(op: Op) -> Clauses:
    """What oneDNN's convolution with a packed weight takes: those that `channels-last` moved, whose result lies as oneDNN gives it.

    It reads a bias as if it had no gaps.
    """
    call = Call.of(op)
    yield onednn_convolution is not None, "a torch with oneDNN"
    yield call.names in (("input", "weight"), ("input", "weight", "bias")), "an image, a weight and perhaps a bias"
    yield op.get("transposed") is not True, "not transposed"
    yield (
        call.on_cpu and (call.are(F32) or (onednn_bfloat16 and call.are(BF16))),
        "float32, or bfloat16 where oneDNN has it",
    )
    yield (
        len(call.shape("input")) == len(call.shape("weight")) == 4 and not call.empty,
        "two-dimensional images, nothing empty",
    )
    yield call.two_numbers("stride", "padding", "dilation"), "two numbers each for stride, padding and dilation"
    result = call.tensors["result"]
    yield isinstance(result, RefType) and result.strides == channels_last(result.shape), "a result channels-last"
    yield "bias" not in call.names or call.lies_in_order("bias"), "a bias without gaps"


def _convolution(op: Op, func: prim.Func) -> Step | None:
    if broken(takes_packed_convolution(op)) or not is_static(op.operands[1], func):
        return None
    x, weight, result = op.operands[0].type, op.operands[1].type, op.results[0].type
    assert isinstance(x, RefType) and isinstance(weight, RefType) and isinstance(result, RefType)
    if _is_small_product(weight, result):
        return None
    options = {name: list(op[name]) for name in ("padding", "stride", "dilation")}
    size = [s if isinstance(s, int) else 16 for s in x.shape]
    return Step("packed-convolution", options | {"groups": op["groups"], "size": size})


# -- gradients of convolutions

GRADIENT = "convolution-gradient"  # the step
OPERANDS = ("grad_output", "input", "weight")
LARGE_WEIGHT = 1 << 19  # elements: of smaller ones oneDNN's gradient is as fast, or faster


class ConvolutionGradient:
    """`aten.convolution_backward`, the weight's gradient as one product: grad_output (outputs, pixels) by windows (inputs and taps, pixels).

    oneDNN's own way writes that gradient in its order and turns it afterwards. One core of a Zen 5, caches cold: 13.3 ms, against 2.4 as
    a product, for 4x512x4x4 pixels and 512x512x3x3; 39 and 25 for 16x512x7x7; as long for 4x256x8x8 and a quarter of that weight.

    Args:
        stride, padding, dilation: as for the operator.
        mask: which of the gradients are computed: input, weight, bias.
    """

    def __init__(
        self,
        stride: Any,
        padding: Any,
        dilation: Any,
        mask: Any,
        fingerprint: Fingerprint | None = None,
        limit: int = -1,
    ) -> None:
        self.stride, self.padding, self.dilation, self.mask = list(stride), list(padding), list(dilation), list(mask)

    def __call__(
        self, gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        of_input = None
        if self.mask[0]:
            how = (self.stride, self.padding, self.dilation, False, [0, 0], 1, [True, False, False])
            of_input = torch.ops.aten.convolution_backward.default(gradient, x, weight, None, *how)[0]
        of_bias = gradient.sum((0, 2, 3)) if self.mask[2] else None
        pixels = gradient.transpose(0, 1).reshape(gradient.shape[1], -1)
        of_weight = onednn_linear(pixels, self.windows(x, weight.shape, gradient.shape), None, *NO_ACTIVATION)
        return of_input, of_weight.view(weight.shape), of_bias

    def windows(self, x: torch.Tensor, weight: torch.Size, result: torch.Size) -> torch.Tensor:
        """(inputs and taps, pixels of the result): what each tap sees."""
        rows, columns = self.padding
        x = F.pad(x, (columns, columns, rows, rows)) if rows or columns else x
        image, channel, row, column = x.stride()
        taps = (channel, row * self.dilation[0], column * self.dilation[1])
        seen = x.as_strided(
            (*weight[1:], result[0], *result[2:]), (*taps, image, row * self.stride[0], column * self.stride[1])
        )
        return seen.reshape(weight[1] * weight[2] * weight[3], -1)


def takes_gradient(op: Op) -> Clauses:
    """What `ConvolutionGradient` takes of `aten.convolution_backward`."""
    call = Call.of(op)
    yield onednn_linear is not None, "a torch with oneDNN"
    yield call.names == OPERANDS, "a gradient, an image and a weight"
    yield call.on_cpu and call.are(F32, names=OPERANDS), "float32 in the host's memory"
    yield all(len(call.shape(name)) == 4 for name in OPERANDS) and not call.empty, "two-dimensional images, not empty"
    yield call.two_numbers("stride", "padding", "dilation"), "two numbers each for stride, padding and dilation"
    yield all(n >= 0 for n in op["padding"]), "padding that adds"
    yield op.get("transposed") is not True and op["groups"] == 1, "one group, not transposed"
    yield bool(op["output_mask"][1]), "a weight whose gradient is wanted"


def choose_gradient(op: Op, func: prim.Func) -> Step | None:
    """Where the weight is large, and larger than what it is multiplied with."""
    if broken(takes_gradient(op)):
        return None
    call = Call.of(op)
    counts = []
    for name in OPERANDS:
        count = 1
        for size in call.shape(name):
            if not isinstance(size, int):
                return None
            count *= size
        counts.append(count)
    if counts[2] < max(LARGE_WEIGHT, counts[0] + counts[1]):
        return None
    options = {name: list(op[name]) for name in ("stride", "padding", "dilation")}
    return Step(GRADIENT, options | {"mask": list(op["output_mask"])})


CHOOSERS: dict[str, Callable[[Op, prim.Func], Step | None]] = {
    "aten.linear.default": choose_linear,
    "aten.addmm.default": choose_addmm,
    "aten.mm.default": choose_mm,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": choose_gradient,
    ATTENTION: choose_attention,
}
BUILDERS: dict[str, Callable[..., Callable[..., Any]]] = {
    "packed-panels": PackedPanels,
    PACKED: PackedProduct,
    LYING: Product,
    "packed-convolution": PackedConvolution,
    GRADIENT: ConvolutionGradient,
    "attention": Attention,
}
