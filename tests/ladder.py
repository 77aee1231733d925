"""The passes that bring kernels to loops and choose these, for tests that want no others."""

from __future__ import annotations

from functools import cache

from xdsl.dialects.builtin import ModuleOp

from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline, is_for_gpu


@cache
def ladder(gpu: bool = False) -> tuple[Pass, ...]:
    """`lower` and all that choose the loops of its kernels, in order."""
    passes = tuple(default_pipeline(gpu=gpu, until="choose-forms"))
    return passes[next(k for k, item in enumerate(passes) if item.name == "lower") :]


def schedule(module: ModuleOp, ctx: CompileContext | None = None) -> None:
    """Bring a module from `kernel` to `loop`, with all loops chosen."""
    for item in ladder(is_for_gpu(module)):
        item.apply(ctx or CompileContext(), module)
