"""depthwise-kernels: convolutions with one filter a channel, on a GPU, as loops of our own.

A program has a few columns of pixels and some channels, and walks down a strip of rows: an element of the image is read once for each column of the window, and
added to all rows of the strip whose windows hold it. cuDNN's kernels read it once for each element of the window.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, cast

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.dtypes import BF16, F16, F32
from ...ir.symbols import Dim, FloorDiv, dim, free_symbols, symbol
from ...ir.syntax import Op
from ...ir.types import RefType, ref_type
from ..analysis.machine import Machine
from ..analysis.strides import memory_strides, view_of
from ..core.base import Pass
from ..core.clauses import Call, Clauses
from ..core.context import CompileContext
from .own_loops import LoopWriter, launch_own

OWN = "depthwise"
LARGEST = 7  # rows or columns of a window
LEAST_CHANNELS = 16
LONGEST = 14  # rows of a strip


def takes_depthwise_on_gpu(op: Op, machine: Machine) -> Clauses:
    """What the loops here take: a two-dimensional `aten.convolution` with one small filter a channel, for images of any size."""
    call = Call.of(op)
    yield (
        op["target"] == "aten.convolution.default" and tuple(op["operands"]) == ("input", "weight"),
        "an image and a weight",
    )
    shapes = [call.shape(name) for name in ("input", "weight", "result")]
    yield all(len(shape) == 4 for shape in shapes), "two-dimensional images"
    yield machine.at(call.tensors["result"].device).is_grid, "a GPU"
    yield call.are(F16, BF16, F32), "one floating type"
    yield call.two_numbers("stride", "padding", "dilation"), "two numbers each for stride, padding and dilation"
    yield op.get("transposed") is not True, "a plain convolution"
    yield tuple(op["dilation"]) == (1, 1), "no dilation"
    yield (
        all(isinstance(n, int) for n in (shapes[0][1], *shapes[1])) and not call.empty,
        "windows of known size, nothing empty",
    )
    yield (
        all(cast(int, n) <= LARGEST for n in shapes[1][2:]) and all(s in (1, 2) for s in op["stride"]),
        "small windows and steps",
    )
    channels = cast(int, shapes[0][1])
    yield (
        channels >= LEAST_CHANNELS and op["groups"] == channels == shapes[1][0] == shapes[2][1],
        "one filter a channel",
    )


@dataclass(frozen=True)
class DepthwiseKernels(Pass):
    """Make loops of the convolutions that `channels-last` gave to a kernel of our own."""

    name: ClassVar[str] = "depthwise-kernels"
    level: ClassVar[str] = "loop"
    requires: ClassVar[tuple[str, ...]] = ("schedule",)
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if count := launch_own(module, OWN, _Plan.of, ctx.machine):
            ctx.diagnostics.count(self.name, "launches", count)


@dataclass(frozen=True)
class _Tile:
    """What one program computes.

    On one H200 in bfloat16, 32 images, us for cuDNN and for the loops: 7x7, 96 channels, 56x56 pixels 72, 38; 384, 14x14 24, 11; 768, 7x7 18, 7; 3x3, 16, 112x112
    14, 8; with steps of 2, 64, 112x112 26, 22; 5x5, 72, 28x28 10.7, 9.5; 960, 7x7 9.4, 5.6.
    """

    rows: int
    columns: int
    channels: int

    @classmethod
    def of(cls, plan: _Plan) -> _Tile:
        """Long strips read less twice; with steps of 2 there is little to share. Images of unknown size may be small."""
        _, channels, rows, _ = plan.shape
        stepping = 2 in plan.step
        height = longest = LONGEST // 2 if stepping or not isinstance(rows, int) else LONGEST
        if isinstance(rows, int):
            strips = -(-rows // longest)
            height = -(-rows // strips)  # as even as they come
        if channels < 32:
            return cls(height, 16, 16)
        return cls(height, 8, 64 if stepping and channels % 64 == 0 else 32)

    @property
    def warps(self) -> int:
        return self.columns * self.channels // 128


@dataclass
class _Plan:
    """One convolution: its memories, how they are addressed, and its numbers."""

    bases: list[SSAValue]
    memories: list[RefType]  # image, weight, result
    strides: list[tuple[Dim, ...]]
    offsets: list[Dim]
    size: tuple[Dim, Dim]  # rows and columns of the image
    window: tuple[int, int]
    shape: tuple[Dim, int, Dim, Dim]  # of the result
    step: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(cls, op: kernel.Extern) -> _Plan:
        views = [view_of(v) for v in op.operands]
        assert all(v is not None for v in views), "layout gives every operand of a call strides"
        memories, strides, offsets = [], [], []
        for view in views:
            assert view is not None
            base = prim.tensor(view.base)
            memories.append(ref_type(view.shape, view.strides, base.dtype, base.device))
            strides.append(view.strides)
            offsets.append(view.offset)
        result = prim.tensor(op.results[0])
        memories.append(ref_type(result.shape, memory_strides(op.results[0]), result.dtype, result.device))
        strides.append(memory_strides(op.results[0]))
        offsets.append(0)
        size, window = prim.tensor(op.operands[0]).shape[2:], prim.tensor(op.operands[1]).shape[2:]
        bases = [view.base for view in views if view is not None]
        numbers = (tuple(op["stride"]), tuple(op["padding"]))
        return cls(bases, memories, strides, offsets, size, window, result.shape, *numbers)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """Equal names, equal kernels."""
        facts = [[m.text for m in self.memories], self.strides, self.offsets, self.size, self.window, self.shape]
        text = repr([*facts, self.step, self.padding])
        return f"depthwise_convolution_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def kernel(self) -> loop.Kernel:
        """The loops."""
        block = Block(arg_types=self.memories)
        _Loops(self, block).write()
        sizes = [e for m in self.memories for e in (*m.shape, *m.strides)]
        symbols = sorted(map(str, free_symbols(sizes)))
        attrs: dict[str, object] = {
            "sym_name": self.name,
            "inputs": 2,
            "warps": _Tile.of(self).warps,
            "symbols": tuple(symbols),
        }
        return loop.Kernel.make([], [], attrs | {"lines": ()}, [Region(block)])


class _Loops(LoopWriter):
    """Writes the loops of one convolution."""

    def __init__(self, plan: _Plan, block: Block) -> None:
        super().__init__(block)
        self.plan, self.tile = plan, _Tile.of(plan)
        self.x, self.w, self.y = self.memories
        self.strip = self.tile.rows

    def write(self) -> None:
        n, channels, rows, columns = self.plan.shape
        image, strip, column, channel = (symbol(name) for name in ("o0", "o1", "o2", "o3"))
        strips = dim(FloorDiv(sympy.sympify(rows + self.strip - 1), sympy.Integer(self.strip)))
        tiles = [(column, columns, self.tile.columns), (channel, channels, self.tile.channels)]
        with self.nest([(image, n, 1), (strip, strips, 1), *tiles]):
            sums = [self.local() for _ in range(self.strip)]
            tap = symbol("r0")
            with self.loop("reduce", tap, self.plan.window[1]):
                self.taps(image, strip, column, channel, tap, sums)
            at = self.plan.strides[2]
            for o, total in enumerate(sums):
                value, row = self.read(total), dim(strip * self.strip + o)
                whole = isinstance(rows, int) and rows % self.strip == 0
                index = image * at[0] + channel * at[1] + row * at[2] + column * at[3]
                self.store(value, self.y, index, () if whole else [dim(rows - 1 - row)])

    def taps(self, image: Dim, strip: Dim, column: Dim, channel: Dim, tap: Dim, sums: list[SSAValue]) -> None:
        """One column of the window, for all rows of the strip."""
        plan, (high, _), (down, right), (above, left) = self.plan, self.plan.window, self.plan.step, self.plan.padding
        at, place = plan.strides[1], plan.offsets[1]
        weights = [self.load(self.w, place + channel * at[0] + a * at[2] + tap * at[3]) for a in range(high)]
        at, place = plan.strides[0], plan.offsets[0]
        across = dim(column * right + tap - left)
        for r in range((self.strip - 1) * down + high):
            row = dim(strip * (self.strip * down) + (r - above))
            mask = [
                *self.inside(row, plan.size[0]),
                *self.inside(across, plan.size[1]),
            ]
            value = self.load(self.x, place + image * at[0] + channel * at[1] + row * at[2] + across * at[3], mask)
            for o in range(self.strip):
                if 0 <= r - o * down < high:
                    self.accumulate("sum", self.scalar("mul", value, weights[r - o * down]), sums[o])

    @staticmethod
    def inside(place: Dim, size: Dim) -> list[Dim]:
        """What must not be negative for a place to lie in the image."""
        return [place, dim(size - 1 - place)]
