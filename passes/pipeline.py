"""The road through the passes: one table of what there is, and the default order that follows from it.

aten  --decompose-->  prim  --canonicalize, constant-fold, cse, dce-->  prim  --fuse-->  kernel  --layout-->  kernel
--schedule-->  loop  --plan-buffers-->  buffer
"""

from __future__ import annotations

from collections.abc import Iterable

from .core.base import Pass
from .core.manager import Registry

# Where the passes' edges leave a choice, the one that stands first runs first; those of others stand behind ours.
OWN = {
    "convolution-epilogue": "fusion.convolution_epilogue:ConvolutionEpilogue",
    "linear-epilogue": "fusion.linear_epilogue:LinearEpilogue",
    "library-epilogue": "fusion.library_epilogue:LibraryEpilogue",
    "decompose": "graph.decompose:Decompose",
    "canonicalize": "graph.canonicalize:Canonicalize",
    "constant-fold": "graph.constant_fold:ConstantFold",
    "cse": "graph.cse:CSE",
    "attention-mask": "graph.attention_mask:AttentionMask",
    "dce": "graph.dce:DCE",
    "own-convolution": "kernels.own_convolution:OwnConvolution",
    "written-attention": "graph.written_attention:WrittenAttention",
    "gpu-attention": "graph.gpu_attention:GpuAttention",
    "narrow-weights": "graph.narrow_weights:NarrowWeights",
    "hoist": "graph.hoist:Hoist",
    "channels-last": "layout.channels_last:ChannelsLast",
    "own-kernels": "kernels.own_kernels:OwnKernels",
    "fuse": "fusion.fuse:Fuse",
    "matmul-kernels": "kernels.matmul_kernels:MatmulKernels",
    "layout": "layout.layout:Layout",
    "schedule": "schedule.schedule:Schedule",
    "attention-kernels": "kernels.short_attention:AttentionKernels",
    "depthwise-kernels": "kernels.depthwise_kernels:DepthwiseKernels",
    "horizontal-fusion": "fusion.horizontal:HorizontalFusion",
    "plan-buffers": "memory.plan_buffers:PlanBuffers",
}


def registry(extra: Iterable[Pass | type[Pass]] = ()) -> Registry:
    """Our passes, those of installed packages, those registered around this call, and `extra`.

    Raises:
        PipelineError: two passes share a name.
    """
    return Registry.collect(OWN, extra)


def default_pipeline(extra: Iterable[Pass | type[Pass]] = (), *, until: str | None = None) -> list[Pass]:
    """What `intarsia.compile` runs, in order. `until` names the last pass or the level to stop at.

    Raises:
        PipelineError: the passes' edges form a cycle, or `until` names nothing.
    """
    passes = registry(extra)
    return passes.upto(passes.default_order(), until)
