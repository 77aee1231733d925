"""The pipeline of a program: the settings' choices in our own passes, and the passes of others among them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..config import Config
from ..partition.choose import Chosen
from ..partition.policy import PartitionPolicy, saved_by
from ..passes.core.base import Pass
from ..passes.core.load import passes_of_setting
from ..passes.core.manager import is_own
from ..passes.core.syntax import PipelineError
from ..passes.fusion.contraction_epilogue import ContractionEpilogue
from ..passes.fusion.fuse import Fuse
from ..passes.graph.attention.match import MatchAttention
from ..passes.graph.decompose import Decompose
from ..passes.graph.narrow_weights import NarrowWeights
from ..passes.kernels.choose_products import ChooseProducts
from ..passes.kernels.own_convolution import OwnConvolution
from ..passes.kernels.own_kernels import OwnKernels
from ..passes.kernels.pad_products import PadProducts
from ..passes.pipeline import default_pipeline, registry
from ..passes.schedule.lower import Lower

Passes: TypeAlias = Sequence[Pass | type[Pass]]  # of others, as `compile(passes=)` was given


def pipeline_of(
    config: Config,
    passes: Passes = (),
    *,
    gpu: bool = False,
    scope: str = "inference",
    without: Collection[str] = (),
) -> list[Pass]:
    """The passes that a program goes through: those of the settings, else the default, but for those of others named in `without`.

    Without `packing` nothing is kept between calls.
    """
    given = (*passes_of_setting(config.passes), *passes)
    left = {"hoist", "own-convolution"} if not config.packing else set()
    default = [
        _as_configured(item, config)
        for item in default_pipeline(given, gpu=gpu, scope=scope, without=without)
        if not left & {item.name, item.replaces}
    ]
    if not config.pipeline:
        return default
    named = registry(given).parse(config.pipeline, default)
    return [item for item in named if item.name not in without or is_own(type(item))]


def _as_configured(item: Pass, config: Config) -> Pass:
    if isinstance(item, Decompose):
        return replace(item, random=config.random)
    if isinstance(item, ContractionEpilogue):
        return replace(item, halves=config.numerics != "eager")
    if isinstance(item, Fuse):
        return replace(item, numerics=config.numerics)
    if isinstance(item, MatchAttention) and config.numerics == "eager":  # so does one call instead of two products
        return replace(item, products=False)
    if isinstance(item, ChooseProducts | PadProducts):  # tiles go on with a product that is not rounded yet
        return replace(item, tiles=config.numerics != "eager")
    if isinstance(item, Lower):
        return replace(item, contract=config.numerics != "eager")
    if isinstance(item, OwnConvolution) and not config.winograd:
        return replace(item, winograd=False)
    if isinstance(item, OwnKernels) and not config.packing:
        return replace(item, linear=False)
    if isinstance(item, NarrowWeights) and not config.packing:  # nothing is kept widened
        return replace(item, kept=0)
    return item


def policy_of(config: Config, passes: Passes = ()) -> Chosen | None:
    """What chooses where training graphs are cut in two, as `partition.choose.split` takes it; None: ours.

    Raises:
        PipelineError: several do.
    """
    policies = registry((*passes_of_setting(config.passes), *passes)).policies()
    if len(policies) > 1:
        raise PipelineError(f"several policies cut training graphs: {', '.join(item.name for item in policies)}")
    if not policies:
        return None
    (policy,) = policies
    if not isinstance(policy, PartitionPolicy):
        raise PipelineError(f"'{policy.name}' has the level 'joint', and is no PartitionPolicy")
    return lambda values, read: saved_by(policy, values, read, config.memory_budget, config.pass_seconds)
