"""The road through the passes: one table of what there is, and the default order that follows from it.

aten  --decompose-->  prim  --canonicalize, constant-fold, cse, dce-->  prim  --fuse-->  kernel  --layout-->  kernel
--schedule-->  loop  --plan-buffers-->  buffer
"""

from __future__ import annotations

from collections.abc import Iterable

from .base import Pass
from .manager import Registry

# Where the passes' edges leave a choice, the one that stands first runs first; those of others stand behind ours.
OWN = {
    "convolution-epilogue": "convolution_epilogue:ConvolutionEpilogue",
    "linear-epilogue": "linear_epilogue:LinearEpilogue",
    "library-epilogue": "library_epilogue:LibraryEpilogue",
    "decompose": "decompose:Decompose",
    "canonicalize": "canonicalize:Canonicalize",
    "constant-fold": "constant_fold:ConstantFold",
    "cse": "cse:CSE",
    "attention-mask": "attention_mask:AttentionMask",
    "dce": "dce:DCE",
    "own-convolution": "own_convolution:OwnConvolution",
    "written-attention": "written_attention:WrittenAttention",
    "gpu-attention": "gpu_attention:GpuAttention",
    "narrow-weights": "narrow_weights:NarrowWeights",
    "hoist": "hoist:Hoist",
    "channels-last": "channels_last:ChannelsLast",
    "own-kernels": "own_kernels:OwnKernels",
    "fuse": "fuse:Fuse",
    "matmul-kernels": "matmul_kernels:MatmulKernels",
    "layout": "layout:Layout",
    "schedule": "schedule:Schedule",
    "attention-kernels": "short_attention:AttentionKernels",
    "depthwise-kernels": "depthwise_kernels:DepthwiseKernels",
    "horizontal-fusion": "horizontal_fusion:HorizontalFusion",
    "plan-buffers": "plan_buffers:PlanBuffers",
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
