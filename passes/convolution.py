"""Which convolutions a kernel of our own carries out, and how: what the passes `convolution-epilogue` and `own-convolution` agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from ..ir.dialects import prim
from ..ir.dtypes import F32
from ..ir.packing import BLOCK
from ..ir.symbols import Dim, FloorDiv, dim
from ..ir.syntax import Op
from .context import Target
from .rules import is_static

FEW_CHANNELS = 8  # the kernel reads fewer input channels from any layout
LEAST_PIXELS = 48  # of all images, for Winograd
MOST_PIXELS = 8  # each takes an address register
REGISTERS = 28  # sums that are held at a time, of the 32 registers of AVX-512
LATENCY = 4  # products that must be under way for one to end in every cycle
MOST_COLUMNS = 7  # of a window of a depthwise convolution: a row of it lies in registers


def is_ours(op: Op, func: prim.Func, target: Target) -> bool:
    """Whether `targets/cpp/intarsia_convolution.h` does this `aten.convolution`.

    3x3 windows with steps of 1 take 0.3 to 0.75 of oneDNN's time (`is_winograd`). Alone, others take 0.9 to 1.25 times that, windows of one channel 0.4
    to 1.2, first layers 1.1 to 1.5; what they gain beside that is what follows in registers, and no call through the dispatcher.

    A two-dimensional float32 convolution by a parameter, for a processor with AVX-512, where that was measured; ordinary ones
    and those with one filter a channel.
    """
    if target.name != "cpp" or target.isa != "avx512" or op.get("effect") or op.get("transposed") is True:
        return False
    names = tuple(name for name in op["operands"] if not name.startswith("epilogue."))
    if names[:2] != ("input", "weight") or names[2:] not in ((), ("bias",)):
        return False
    types = [prim.tensor(v) for v in (*op.operands[: len(names)], *op.results)]
    if (
        any(t.dtype != F32 or t.device != "cpu" or 0 in t.shape for t in types)
        or types[-1].rank != 4
        or types[0].rank != 4
    ):
        return False
    if not all(is_parameter(v, func) for v in op.operands[1 : len(names)]):
        return False
    return is_depthwise(op) or (op["groups"] == 1 and (is_winograd(op) or not _is_mostly_edge(op)))


def _is_mostly_edge(op: Op) -> bool:
    """Large windows on images so small that oneDNN, which leaves out products with padding, wins: 8.3 ms against 10.8.

    Measured with 16 images of 4x4 pixels and 512 channels. With 7x7 pixels ours is as fast, and with one image what it saves beside it.
    """
    width, taps = prim.tensor(op.results[0]).shape[3], prim.tensor(op.operands[1]).shape[2:]
    images, inputs = prim.tensor(op.operands[0]).shape[0], prim.tensor(op.operands[1]).shape[1]
    if not isinstance(width, int) or not isinstance(images, int) or not isinstance(inputs, int):
        return False
    return width <= 4 and images > 1 and inputs >= 64 and tuple(taps) != (1, 1) and any(op["padding"])


def is_winograd(op: Op) -> bool:
    """A window of 3x3 with steps of 1 on enough pixels and channels for Winograd's F(4x4, 3x3) (targets/cpp/intarsia_winograd.h).

    On two Zen 4 cores it takes 0.3 to 0.75 of the time of the plain sum and of oneDNN's, for 16 to 1024 channels. Below some 48 pixels reading the
    weights, which are four times as large, is what takes the time: with 512 channels 0.83 ms against 0.31 at 3x3, 1.08 against 1.03 at 7x7.
    """
    inputs, window = prim.tensor(op.operands[1]).shape[1], prim.tensor(op.operands[1]).shape[2:]
    images, _, *size = prim.tensor(op.results[0]).shape
    known = [n for n in (images, *size) if isinstance(n, int)]
    return (
        tuple(window) == (3, 3)
        and tuple(op["stride"]) == tuple(op["dilation"]) == (1, 1)
        and op["groups"] == 1
        and isinstance(inputs, int)
        and inputs >= BLOCK
        and all(not isinstance(n, int) or n > 2 for n in size)
        and (len(known) < 3 or math.prod(known) >= LEAST_PIXELS)
    )


def winograd_tiles(shape: Sequence[Dim]) -> Dim:
    """Tiles of 4x4 pixels in a result of that shape (images, channels, rows, columns)."""
    images, _, rows, columns = shape
    tiles = images * FloorDiv(rows + 3, 4) * FloorDiv(columns + 3, 4)
    return dim(tiles)


def is_depthwise(op: Op) -> bool:
    """One filter for each channel, of a size that the kernel holds in registers."""
    outputs, _, _, columns = prim.tensor(op.operands[1]).shape
    channels = prim.tensor(op.operands[0]).shape[1]
    return (
        channels == outputs == op["groups"]
        and isinstance(channels, int)
        and channels >= BLOCK
        and isinstance(columns, int)
        and columns <= MOST_COLUMNS
        and op["stride"][1] in (1, 2)
        and tuple(op["dilation"]) == (1, 1)
    )


def is_parameter(value: SSAValue, func: prim.Func) -> bool:
    """An argument that is a parameter or buffer and that this call does not overwrite."""
    written = [func.block_body.args[argument] for argument, _ in func.get("mutations", ())]
    return is_static(value, func) and value not in written


def dense_tile(width: Dim, outputs: int) -> tuple[int, int]:
    """Pixels of a row and blocks of output channels whose sums are held in registers at a time: the fewest cycles for a row.

    Args:
        width: pixels of a row of output, or of all rows where the window is one pixel.
        outputs: output channels.
    """
    blocks = -(-outputs // BLOCK)
    choices = [(p, b) for b in range(1, min(blocks, 4) + 1) for p in range(1, MOST_PIXELS + 1) if p * b <= REGISTERS]
    return min(choices, key=lambda choice: (_cycles(width, blocks, *choice), -choice[0] * choice[1]))


def _cycles(width: Dim, blocks: int, pixels: int, together: int) -> float:
    """Cycles of a row of output for each tap: one product or 1.3 loads a cycle, and some for getting a group of pixels going."""
    panels = [together] * (blocks // together) + ([blocks % together] if blocks % together else [])
    one = sum(max(pixels * b, 0.75 * (pixels + b), LATENCY) + 0.5 for b in panels)
    return one * -(-width // pixels) if isinstance(width, int) else one / pixels


def depthwise_pixels(width: Dim, columns: int, step: int) -> int:
    """Pixels of a row whose sums are held in registers at a time, beside the row of the window."""
    fitting = [p for p in range(1, 15) if p + (p - 1) * step + columns <= 30] or [1]
    if not isinstance(width, int):
        return min(7, max(fitting))
    return min(fitting, key=lambda p: (-(-width // p) * (p + 2), -p))
