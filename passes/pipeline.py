"""The pipeline: the passes in the order in which they run, once for programs on a CPU, once for those on a GPU.

aten  --decompose-->  prim  --fuse-->  kernel  --lower-->  loop  --plan-buffers-->  buffer

The manager checks each list against the passes' `after`, `before`, `requires` and levels. Passes of others are placed by
these edges. A pass that stands on one list only is not run on the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from xdsl.dialects.builtin import ModuleOp

from ..ir.dialects.prim import Func
from ..ir.syntax import defined_values
from ..ir.types import RefType, TensorType, is_gpu
from .core.base import Pass
from .core.manager import Registry, Road

# Loops over the host's memory, of a program on a CPU and of what a program on a GPU leaves there.
HOST_LOOPS: Road = (
    ("split-reductions", "schedule.split_reductions:SplitReductions"),  # reductions of few rows are cut into chunks
    ("keep", "schedule.cpu.keep:Keep"),  # costly values are kept between the loops of a row
    ("schedule", "schedule.cpu.schedule:Schedule"),  # loops are merged and ordered, columns tiled
    ("tile", "schedule.cpu.tile:Tile"),  # loops over single elements: squares of transposes, strips of long rows
    ("unroll-jam", "schedule.cpu.unroll_jam:UnrollJam"),  # reductions of columns take a few steps for each lane
    ("vectorize", "schedule.cpu.vectorize:Vectorize"),  # innermost loops run in vector lanes
    ("parallelize", "schedule.cpu.parallelize:Parallelize"),  # outer loops are spread over threads
    ("prefetch", "schedule.cpu.prefetch:Prefetch"),  # what loops read out of order is asked for early
    ("stream", "schedule.cpu.stream:Stream"),  # large results are written past the caches
    ("choose-forms", "schedule.cpu.forms:ChooseForms"),  # better forms: transposes, argmax, scans
)

CPU: Road = (
    ("decompose", "graph.decompose:Decompose"),  # ATen operations become primitives: aten -> prim
    ("canonicalize", "graph.canonicalize:Canonicalize"),  # equal programs get one form
    ("constant-fold", "graph.constant_fold:ConstantFold"),  # what depends on numbers alone is computed
    ("cse", "graph.cse:CSE"),  # equal values are computed once
    ("dce", "graph.dce:DCE"),  # what nobody reads goes
    ("own-convolution", "kernels.own_convolution:OwnConvolution"),  # convolutions whose weights are packed once
    ("match-attention", "graph.attention.match:MatchAttention"),  # products around a softmax are attention
    ("attention", "kernels.attention:Attention"),  # attention gets a kernel, in the form that it takes
    ("narrow-weights", "graph.narrow_weights:NarrowWeights"),  # weights are widened in the product's kernel
    ("hoist", "graph.hoist:Hoist"),  # what depends on parameters alone is computed once
    ("channels-last", "layout.channels_last:ChannelsLast"),  # convolutions run on channels-last memory
    ("own-kernels", "kernels.own_kernels:OwnKernels"),  # products get kernels of our own
    ("contraction-epilogue", "fusion.contraction_epilogue:ContractionEpilogue"),  # they take over what follows
    ("fuse", "fusion.fuse:Fuse"),  # primitives are grouped, by bytes moved: prim -> kernel
    ("layout", "layout.layout:Layout"),  # every stored value gets its strides
    ("lower", "schedule.lower:Lower"),  # plain loops: rows, reductions, stores: kernel -> loop
    *HOST_LOOPS,
    ("plan-buffers", "memory.plan_buffers:PlanBuffers"),  # every value gets its memory: loop -> buffer
)

GPU: Road = (
    ("device-counters", "graph.device_counters:DeviceCounters"),  # the number of a loop's round stays on the GPU
    ("decompose", "graph.decompose:Decompose"),  # ATen operations become primitives: aten -> prim
    ("canonicalize", "graph.canonicalize:Canonicalize"),  # equal programs get one form
    ("constant-fold", "graph.constant_fold:ConstantFold"),  # what depends on numbers alone is computed
    ("cse", "graph.cse:CSE"),  # equal values are computed once
    ("dce", "graph.dce:DCE"),  # what nobody reads goes
    ("match-attention", "graph.attention.match:MatchAttention"),  # products around a softmax are attention
    ("attention", "kernels.attention:Attention"),  # attention gets a kernel, in the form that it takes
    ("hoist", "graph.hoist:Hoist"),  # what depends on no input is computed once
    ("channels-last", "layout.channels_last:ChannelsLast"),  # convolutions run on channels-last memory
    ("sink-rolls", "graph.sink_rolls:SinkRolls"),  # a roll behind a norm goes in front of it, into addresses
    (
        "pad-products",
        "kernels.pad_products:PadProducts",
    ),  # factors and results whose rows begin anywhere get longer rows
    ("fuse", "fusion.fuse:Fuse"),  # primitives are grouped, by bytes moved: prim -> kernel
    ("choose-products", "kernels.choose_products:ChooseProducts"),  # a product and what is around it are one kernel
    ("layout", "layout.layout:Layout"),  # every stored value gets its strides
    ("lower", "schedule.lower:Lower"),  # plain loops: rows, reductions, stores: kernel -> loop
    ("chunk-reductions", "schedule.gpu.chunk_reductions:ChunkReductions"),  # reductions of few rows are cut into chunks
    ("split-launches", "schedule.gpu.launches:SplitLaunches"),  # every loop nest is a kernel of its own
    ("cooperate", "schedule.gpu.cooperative:Cooperate"),  # programs share rows that are long, or few
    ("tile-products", "schedule.gpu.product_tiles:TileProducts"),  # products are laid out in the tile chosen for each
    ("online", "schedule.gpu.online:Online"),  # rows that no program holds are reduced in one reading
    ("block", "schedule.gpu.blocks:BlockLoops"),  # all other loops: blocks of programs, blocks within a row, warps
    *HOST_LOOPS,
    ("attention-kernels", "kernels.short_attention:AttentionKernels"),  # loops of short attention
    ("depthwise-kernels", "kernels.depthwise_kernels:DepthwiseKernels"),  # loops of depthwise convolutions
    ("horizontal-fusion", "fusion.horizontal:HorizontalFusion"),  # independent small kernels are launched together
    ("plan-buffers", "memory.plan_buffers:PlanBuffers"),  # every value gets its memory: loop -> buffer
)


def registry(extra: Iterable[Pass | type[Pass]] = (), without: Collection[str] = ()) -> Registry:
    """Our passes, those registered around this call, `extra`, and those of installed packages, but for those of others named in `without`.

    Raises:
        PipelineError: two passes share a name.
    """
    return Registry.collect(dict([*CPU, *GPU]).items(), extra, without)


def default_pipeline(
    extra: Iterable[Pass | type[Pass]] = (),
    *,
    gpu: bool = False,
    until: str | None = None,
    scope: str = "",
    without: Collection[str] = (),
) -> list[Pass]:
    """What `intarsia.compile` runs, in order, for programs on a CPU or on a GPU.

    Args:
        extra: passes to place among them; an instance of a listed pass stands in its place.
        until: the last pass, or the level to stop at.
        scope: what the program is, one of `SCOPES`, for passes that run for some of them alone.
        without: names of passes of others that do not run.

    Raises:
        PipelineError: the passes' edges form a cycle, or `until` names nothing.
    """
    passes = registry(extra, without)
    return passes.upto(passes.along(GPU if gpu else CPU, "gpu" if gpu else "cpu", scope), until)


def is_for_gpu(module: ModuleOp) -> bool:
    """Whether a value of the program lies on a GPU: then it takes the GPU's road."""
    return any(
        isinstance(value.type, TensorType | RefType) and is_gpu(value.type.device)
        for func in module.body.block.ops
        if isinstance(func, Func)
        for op in (func, *func.block_body.ops)
        for value in defined_values(op)
    )
