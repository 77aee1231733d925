"""What operators rely on of sizes that only the running program knows.

Torch decides by rules of its own what it cannot know: such a size is not 1, so that nothing is broadcast or squeezed along it, and reductions
that have no identity reduce something. What it does not ask for itself is asked for here: the program checks it, and where it does not hold
the call runs in eager, which may raise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..torch_private.functions import OpOverload
from ..torch_private.symbols import hint_of

__all__ = ["rely_on_sizes"]


def rely_on_sizes(func: Any, args: Any) -> None:
    """Note what an operator takes for granted of the sizes of its first argument."""
    if not args or not isinstance(args[0], Tensor):
        return
    if func is torch.ops.aten.select.int and _is_unknown(args[2]):
        torch._check(args[2] >= 0)
        torch._check(args[2] < args[0].shape[args[1]])
    unknown = [n for n in args[0].shape if _is_unknown(n)]
    unlike = _unlike(func) if unknown and isinstance(func, OpOverload) else None
    if unlike == 0 and len(args) > 1 and _reduces(func):
        dims = [args[1]] if type(args[1]) is int else args[1] or range(args[0].dim())
        unknown = [n for n in (args[0].shape[d] for d in dims) if _is_unknown(n)]
    for size in unknown if unlike is not None else ():
        torch._check(size != unlike)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and hint_of(value) is None


@cache
def _unlike(func: OpOverload) -> int | None:
    """The size that an operator takes no unknown size for."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "aten":
        return None
    if name == "squeeze":
        return 1
    return 0 if name in _REDUCTIONS or name.removeprefix("_").startswith(_SPATIAL) else None


@cache
def _reduces(func: OpOverload) -> bool:
    """Whether an operator's second argument is the dimensions that it reduces."""
    return func._schema.arguments[1].name == "dim"


# They raise where there is nothing to look at, or divide by how much there is.
_REDUCTIONS = frozenset(
    ["max", "min", "median", "nanmedian", "mode", "kthvalue", "amax", "amin", "aminmax", "argmax", "argmin"]
)
_SPATIAL = (
    *("adaptive_", "avg_pool", "max_pool", "fractional_", "upsample_", "reflection_pad", "replication_pad"),
    *("convolution", "grid_sampler", "im2col", "col2im", "pixel_", "var", "std", "native_batch", "native_group"),
    *("cudnn_", "batch_norm", "channel_shuffle", "histc", "multinomial", "random", "randint", "cdist", "pdist"),
)
