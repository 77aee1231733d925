"""Which calls stay with the library on a CPU although a rule covers them: its kernels are faster than loops of ours.

`decompose` asks this table before a rule. A row is a reason, the overloads that it holds for, and where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache

from ...ir.dtypes import BOOL
from .aten_rules.builder import RULES, Builder

Unless = Callable[[Builder], bool]


def _never(b: Builder) -> bool:
    return False


def _mixed_dtypes(b: Builder) -> bool:
    """Batch norm whose input and parameters have other dtypes, which the library's call does not take together."""
    return b.has("weight") and b.dtype_of(b.tensor("weight")) != b.dtype_of(b.tensor("input"))


def _with_a_mask(b: Builder) -> bool:
    """A write to what a mask takes, not to places by their numbers."""
    operands = zip(b.names, b.op.operands, strict=True)
    return any(name.startswith("indices") and b.dtype_of(v) == BOOL for name, v in operands)


_ROWS: tuple[tuple[str, tuple[str, ...], Unless], ...] = (
    (
        "a pooling on a CPU",
        (
            "avg_pool?d.*",
            "*adaptive_*_pool?d.*",
            "max_pool?d.*",
            "max_pool3d_with_indices.*",
            "max_pool2d_with*backward.*",
        ),
        _never,
    ),
    ("windows on a CPU", ("im2col.*", "col2im.*"), _never),
    ("an interpolation on a CPU", ("*upsample_*d.*", "re*_pad?d.*", "grid_sampler_2d.*", "_unsafe_index.*"), _never),
    ("a scatter on a CPU", ("scatter*", "index_add.*", "index_copy.*", "index_fill.*"), _never),
    ("a scatter on a CPU", ("*index_put.*",), _with_a_mask),
    ("a search on a CPU", ("bucketize.*", "searchsorted.*", "cummax.*", "cummin.*"), _never),
    ("attention on a CPU", ("_native_multi_head_attention.*", "_scaled_dot_product_*_attention.*"), _never),
    ("a CPU, whose library makes one pass for both sums", ("native_group_norm_backward.*",), _never),
    ("one dtype on a CPU: the library makes one pass for both sums", ("native_batch_norm_backward.*",), _mixed_dtypes),
)


@cache
def library_on_cpu() -> dict[str, tuple[str, Unless]]:
    """The table by overload, of those that have a rule."""
    table: dict[str, tuple[str, Unless]] = {}
    for reason, patterns, unless in _ROWS:
        for pattern in patterns:
            found = [name for name in RULES if fnmatchcase(name, f"aten.{pattern}")]
            assert found, f"no rule is called {pattern}"
            table |= dict.fromkeys(found, (reason, unless))
    return table


def left_to_library(b: Builder) -> str:
    """Why a call stays with the CPU's library, or "" where a rule may replace it."""
    reason, unless = library_on_cpu().get(b.op.target, ("", _never))
    return reason if reason and not b.on_gpu and not unless(b) else ""
