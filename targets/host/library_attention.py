"""Attention on a GPU by the kernel that the pass `attention` names, else, where that refuses, by the operator itself."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.dialects import prim
from ...ir.syntax import Op
from ...passes.analysis.alignment import ALIGNMENT
from ..torch_private import cudnn_attention, efficient_attention, flash_attention, prefers_cudnn_attention
from .steps import Step

BACKENDS: dict[str, Any] = {
    "cudnn": lambda q, k, v, mask, causal, scale: cudnn_attention(q, k, v, mask, False, 0.0, causal, scale=scale)[0],
    "flash": lambda q, k, v, mask, causal, scale: flash_attention(q, k, v, 0.0, causal, scale=scale)[0],
    "efficient": lambda q, k, v, mask, causal, scale: efficient_attention(
        q, k, v, mask, False, 0.0, causal, scale=scale
    )[0],
}


def choose_attention(op: Op, func: prim.Func) -> Step | None:
    """A call that the pass has prepared for one kernel."""
    if op.get("backend") is None:
        return None
    options = {"backend": op["backend"], "causal": bool(op.get("is_causal")), "scale": op.get("scale")}
    return Step("attention", options | {"mask": "attn_mask" in op["operands"], "shared": bool(op.get("enable_gqa"))})


class Attention:
    """softmax(q k^T * scale + mask) v by one kernel.

    Args:
        backend: "cudnn", "flash", "efficient", or "any": the operator chooses.
        causal: a query sees no key behind its own place.
        scale: of the scores; None: one over the root of the head's size.
        mask: whether a fourth operand is added to the scores, of sizes that broadcast to theirs.
        shared: fewer heads of keys and values than of queries.
    """

    def __init__(self, backend: str, causal: bool, scale: float | None, mask: bool, shared: bool, **_: Any) -> None:
        self.backend, self.causal, self.scale, self.masked, self.shared = backend, causal, scale, mask, shared
        self.kernel: Any = BACKENDS.get(backend)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & (ALIGNMENT - 1):
            q, k, v = map(_aligned, (q, k, v))
        if mask is not None:
            mask = _aligned(mask).expand(q.size(0), q.size(1), q.size(2), k.size(2))
        if self.kernel is BACKENDS["cudnn"] and not prefers_cudnn_attention(q.device.index):
            self.kernel = None if self.masked else BACKENDS["flash"]
        if self.kernel is not None:
            try:
                return self.kernel(q, k, v, mask, self.causal, self.scale)  # type: ignore[no-any-return]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # a machine, or a build of torch, that lacks the kernel for this call
                self.kernel = None
        shared = self.shared
        if shared and self.masked:  # of the others only math takes both
            k, v, shared = *(x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v)), False
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, 0.0, self.causal, scale=self.scale, enable_gqa=shared
        )


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """A copy, as it lies, of what begins between two multiples of 16 bytes: the libraries' kernels ask for no address."""
    return x if x.data_ptr() % ALIGNMENT == 0 else torch.empty_like(x).copy_(x)
