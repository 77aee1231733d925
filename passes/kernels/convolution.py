"""Which convolutions a kernel of our own carries out, and how: what the passes `contraction-epilogue` and `own-convolution` agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from ...ir.dialects import prim
from ...ir.dialects.kernel import PREFIX
from ...ir.dtypes import BF16, F32
from ...ir.packing import BLOCK
from ...ir.symbols import Dim, FloorDiv, dim
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.machine import Machine, Processor
from ..analysis.strides import channels_last
from ..core.clauses import Call, Clauses, broken
from ..core.rewriter import is_kept
from .microkernel import has_room, is_short

FEW_CHANNELS = 8  # the kernel reads fewer input channels from any layout
LEAST_PIXELS = 48  # of all images, for Winograd
MOST_PIXELS = 8  # each takes an address register
LATENCY = 4  # products of whole vectors of AVX-512 that must be under way for one to end in every cycle; twice as many of half of it
GRADIENTS = "aten.convolution_backward.default"
MOST_COLUMNS = 7  # of a window of a depthwise convolution: a row of it lies in registers


def takes_convolution(op: Op, machine: Machine) -> Clauses:
    """What the kernels of targets/cpp/include/intarsia_convolution.h take of `aten.convolution`, before and after the weight is packed."""
    call = Call.of(op)
    yield has_room(machine.cpu), "a CPU with registers for a tile of sums"
    yield call.names in (("input", "weight"), ("input", "weight", "bias")), "an image, a weight and perhaps a bias"
    yield not op.get("effect"), "no effect"
    ranks = {len(call.shape("input")), len(_window(op)), len(call.shape("result"))}
    yield ranks == {4}, "two-dimensional images"
    yield call.two_numbers("stride", "padding", "dilation"), "two numbers each for stride, padding and dilation"
    yield op.get("transposed") is not True, "not transposed"
    yield call.are(F32), "float32"
    yield call.on_cpu, "memory of the host"
    yield not call.empty, "nothing empty"
    yield all(isinstance(n, int) for n in _window(op)), "a weight of known size"
    yield is_short(op), "as many tensors behind the sums as there is room for"
    yield op["groups"] == 1 or is_depthwise(op), "one group, or one filter a channel as the depthwise kernel takes it"
    packed = "packed" in op.literals and len(call.shape("weight"))
    yield packed != 3 or is_depthwise(op), "a weight packed for one filter a channel belongs to such a window"
    yield (
        packed != 4 or broken(takes_winograd(op)) is None,
        "a weight packed for Winograd's products belongs to such a window",
    )
    if packed:
        names = tuple(name for name in call.tensors if name not in ("input", "result") and not name.startswith(PREFIX))
        yield call.lies_in_order(*names), "weight and bias without gaps"
        behind = [name for name in call.tensors if name.startswith(PREFIX)]
        images = ["result", *(name for name in behind if call.shape(name) == call.shape("result"))]
        yield all(call.lies(name, channels_last(call.shape(name))) for name in images), "results channels-last"
        yield call.lies_in_order(*(name for name in behind if name not in images)), "factors of channels without gaps"
        yield packed == 5 and _window(op)[1] < FEW_CHANNELS or _channels_follow(call), "channels side by side"


def takes_winograd(op: Op) -> Clauses:
    """What Winograd's F(4x4, 3x3) takes beyond (targets/cpp/include/intarsia_winograd.h)."""
    _, inputs, *window = _window(op)
    yield window == [3, 3], "windows of 3x3"
    yield tuple(op["stride"]) == tuple(op["dilation"]) == (1, 1), "steps of 1"
    yield op["groups"] == 1, "one group"
    yield isinstance(inputs, int) and inputs >= BLOCK, "channels that fill a vector"


def takes_depthwise(op: Op) -> Clauses:
    """What the kernel for one filter a channel takes beyond."""
    outputs, _, _, columns = _window(op)
    channels = Call.of(op).shape("input")[1]
    yield channels == outputs == op["groups"], "one filter a channel"
    yield isinstance(channels, int) and channels >= BLOCK, "channels that fill a vector"
    yield isinstance(columns, int) and columns <= MOST_COLUMNS, "a row of the window in registers"
    yield op["stride"][1] in (1, 2), "steps of 1 or 2 along a row"
    yield tuple(op["dilation"]) == (1, 1), "no dilation"


def gradients_of(op: Op) -> tuple[int, ...]:
    """Which gradients the results of a `convolution_backward` are: of the image, the weight, the bias."""
    return tuple(op.get("returned", (0, 1, 2)))


def takes_planes(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_planes.h takes of `aten.convolution` and its gradients: one filter a channel, images as eager has them."""
    yield from _takes_eager_images(op)
    call = Call.of(op)
    yield "bias" not in call.names and (op["target"] != GRADIENTS or 2 not in gradients_of(op)), "no bias"
    yield tuple(op["dilation"]) == (1, 1), "no dilation"
    outputs, _, *window = call.shape("weight")
    yield call.shape("input")[1] == outputs == op["groups"], "one filter a channel"
    yield all(isinstance(n, int) and n <= MOST_COLUMNS for n in window), "small windows"
    yield (
        all(0 <= p < n for p, n in zip(op["padding"], window, strict=True)),
        "zeros around the image that a window reaches over",
    )


def takes_points(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_planes.h takes of `aten.convolution` and its gradients: windows of one pixel, images as eager has them."""
    yield from _takes_eager_images(op)
    call = Call.of(op)
    window = (*call.shape("weight")[2:], *op["stride"], *op["padding"])
    yield window == (1, 1, 1, 1, 0, 0), "windows of one pixel with steps of 1, no padding"
    yield op["groups"] == 1, "one group"
    if "bias" in call.names:
        yield call.are(F32, names=("bias",)) and len(call.shape("bias")) == 1, "a bias in float32"


def _takes_eager_images(op: Op) -> Clauses:
    """What `takes_planes` and `takes_points` have in common."""
    call, gradients = Call.of(op), op["target"] == GRADIENTS
    yield gradients or op["target"] == "aten.convolution.default", "a convolution or its gradients"
    names = ("input", "weight")
    known = (("grad_output", *names),) if gradients else (names, (*names, "bias"))
    yield call.names in known, "an image, a weight, and a gradient where gradients are wanted"
    yield not op.get("effect") and "packed" not in op.literals, "no effect, and a weight as it is"
    results = tuple(name for name in call.tensors if name.startswith("result"))
    yield (
        call.on_cpu and call.are(F32, names=(*(known[0]), *results)) and not call.empty,
        "float32 in the host's memory, not empty",
    )
    yield all(len(call.shape(name)) == 4 for name in known[0]), "two-dimensional images"
    if gradients:
        yield len(gradients_of(op)) == len(results), "gradients that are wanted, and no others"
    yield call.two_numbers("stride", "padding", "dilation"), "two numbers each for stride, padding and dilation"
    yield op.get("transposed") is not True, "not transposed"
    yield (
        all(s is None for name in ("operand_strides", "strides") for s in op.get(name, ())),
        "images as eager has them",
    )
    yield call.lies_in_order(*call.tensors), "memory without gaps"


def takes_max_pool(op: Op, machine: Machine) -> Clauses:
    """What `max_pool` of targets/cpp/include/intarsia_convolution.h takes of `aten.max_pool2d`, with or without indices that nobody reads."""
    call = Call.of(op)
    yield all(r.first_use is None for r in op.results[1:]), "indices that nobody reads"
    yield len(call.shape("self")) == 4, "two-dimensional images"
    yield call.are(F32, BF16, names=("self", "result")), "float32 or bfloat16"
    yield call.on_cpu, "memory of the host"
    yield not call.empty, "nothing empty"
    sizes = [op.get(name, ()) for name in ("kernel_size", "stride", "padding", "dilation")]
    lists = [found if isinstance(found, tuple | list) else (found,) for found in sizes]
    yield all(len(n) <= 2 and all(isinstance(k, int) for k in n) for n in lists), "two numbers, or one for both"
    images = ("self", "result") if op.name.startswith("buffer.") else ()
    yield all(call.lies(name, channels_last(call.shape(name))) for name in images), "channels-last memory"


def _window(op: Op) -> tuple[Dim, ...]:
    """The sizes of the weight, as they were before it was packed."""
    found = op.get("packed")
    return tuple(found) if found else Call.of(op).shape("weight")


def _channels_follow(call: Call) -> bool:
    kind = call.tensors["input"]
    return not isinstance(kind, RefType) or kind.shape[1] == 1 or kind.strides[1] == 1


def is_ours(op: Op, func: prim.Func, machine: Machine) -> bool:
    """Whether `targets/cpp/include/intarsia_convolution.h` does this `aten.convolution`: it takes it, the weight can be packed once, and it is worth it.

    3x3 windows with steps of 1 take 0.3 to 0.75 of oneDNN's time (`is_winograd`). Alone, others take 0.9 to 1.25 times that, windows of one channel 0.4
    to 1.2, first layers 1.1 to 1.5; what they gain beside that is what follows in registers, and no call through the dispatcher.
    In code for AVX2 on the same processor, with batch norm and activation: 3x3 0.33, depthwise 0.65, one pixel 1.0, others 1.15 to 1.45.
    """
    if broken(takes_convolution(op, machine)):
        return False
    if not all(is_kept(v, func) for v in op.operands[1 : len(Call.of(op).names)]):
        return False
    if is_depthwise(op) or is_winograd(op):
        return True
    return is_pointwise(op) if machine.cpu.lanes(F32) < BLOCK else not _is_mostly_edge(op)


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
    """A window of 3x3 with steps of 1 on enough pixels and channels for Winograd's F(4x4, 3x3) (targets/cpp/include/intarsia_winograd.h).

    On two Zen 4 cores it takes 0.3 to 0.75 of the time of the plain sum and of oneDNN's, for 16 to 1024 channels. Below some 48 pixels reading the
    weights, which are four times as large, is what takes the time: with 512 channels 0.83 ms against 0.31 at 3x3, 1.08 against 1.03 at 7x7.
    """
    images, _, *size = prim.tensor(op.results[0]).shape
    known = [n for n in (images, *size) if isinstance(n, int)]
    worth = all(not isinstance(n, int) or n > 2 for n in size) and (len(known) < 3 or math.prod(known) >= LEAST_PIXELS)
    return worth and broken(takes_winograd(op)) is None


def winograd_tiles(shape: Sequence[Dim]) -> Dim:
    """Tiles of 4x4 pixels in a result of that shape (images, channels, rows, columns)."""
    images, _, rows, columns = shape
    tiles = images * FloorDiv(rows + 3, 4) * FloorDiv(columns + 3, 4)
    return dim(tiles)


def is_depthwise(op: Op) -> bool:
    """Whether the kernel for one filter a channel does this convolution."""
    return broken(takes_depthwise(op)) is None


def convolution_tile(op: Op, winograd: bool, cpu: Processor) -> tuple[int, ...]:
    """Pixels, and but for one filter a channel blocks of output channels, whose sums are held in registers at a time."""
    outputs, inputs, _, columns = (cast(int, n) for n in _window(op))
    shape = Call.of(op).shape("result")
    if is_depthwise(op):
        return (depthwise_pixels(shape[3], columns, op["stride"][1], cpu),)
    width = winograd_tiles(shape) if winograd else shape[3]
    if is_pointwise(op) and inputs >= FEW_CHANNELS:  # pixels of all rows and images are one row
        width = dim(shape[0] * shape[2] * shape[3])
    return dense_tile(width, outputs, cpu)


def is_pointwise(op: Op) -> bool:
    """A window of one pixel with steps of 1 and no padding: a product with a row for each pixel."""
    return (*_window(op)[2:], *op["stride"], *op["padding"]) == (1, 1, 1, 1, 0, 0)


def dense_tile(width: Dim, outputs: int, cpu: Processor) -> tuple[int, int]:
    """Pixels of a row and blocks of output channels whose sums are held in registers at a time: the fewest cycles for a row.

    Args:
        width: pixels of a row of output, or of all rows where the window is one pixel.
        outputs: output channels.
    """
    blocks, vectors = -(-outputs // BLOCK), BLOCK // cpu.lanes(F32)
    room = cpu.vector_registers - (vectors > 1)  # the others have no product with one number of memory
    sizes = [(p, b) for b in range(1, min(blocks, 4) + 1) for p in range(1, MOST_PIXELS + 1)]
    choices = [(p, b) for p, b in sizes if (p + 1) * b * vectors <= room]
    return min(choices, key=lambda choice: (_cycles(width, blocks, vectors, *choice), -choice[0] * choice[1]))


def _cycles(width: Dim, blocks: int, vectors: int, pixels: int, together: int) -> float:
    """Cycles of a row of output for each tap: one product or 1.3 loads a cycle, and some for getting a group of pixels going."""
    panels = [together] * (blocks // together) + ([blocks % together] if blocks % together else [])
    one = sum(
        max(pixels * v, 0.75 * (pixels + v), LATENCY * (1 + (vectors > 1))) + 0.5 for v in (b * vectors for b in panels)
    )
    return one * -(-width // pixels) if isinstance(width, int) else one / pixels


def depthwise_pixels(width: Dim, columns: int, step: int, cpu: Processor) -> int:
    """Pixels of a row whose sums are held in registers at a time, beside the row of the window."""
    fitting = [p for p in range(1, 15) if p + (p - 1) * step + columns <= cpu.vector_registers - 2] or [1]
    if not isinstance(width, int):
        return min(7, max(fitting))
    return min(fitting, key=lambda p: (-(-width // p) * (p + 2), -p))
