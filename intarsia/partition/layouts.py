"""Which saved values lie channels-last: convolutions on a GPU's matrix units work on such memory, and so does what reads them in backward.

The halves of a joint graph are compiled apart: a value that one gives in eager's layout to the other would be turned twice.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from ..targets.torch_private import convolutions_in_tf32

__all__ = ["lying_last"]

aten = torch.ops.aten
_POOLS = (aten.max_pool2d_with_indices.default,)
_NORMS = (
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
)
_SAME = (aten.alias.default, aten.detach.default, aten._to_copy.default, aten.clone.default)


def lying_last(graph: fx.Graph) -> set[fx.Node]:
    """Images that `channels-last` moves: results of convolutions, and what is computed of such images alone, element by element."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_image(node) and (_is_convolution(node) or _follows(node, found)):
            found.add(node)
    return found


def _is_image(node: fx.Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.device.type != "cuda":
        return False
    return all(isinstance(n, int) for n in value.shape) and value.is_contiguous()


def _is_convolution(node: fx.Node) -> bool:
    if node.target is not aten.convolution.default or node.args[6]:  # transposed
        return False
    dtype = node.meta["val"].dtype
    return dtype in (torch.float16, torch.bfloat16) or (dtype == torch.float32 and convolutions_in_tf32())


def _follows(node: fx.Node, found: set[fx.Node]) -> bool:
    target = node.target
    if target is operator.getitem or target in _POOLS or target in _NORMS:
        return node.args[0] in found
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    if torch.Tag.pointwise not in tags and target not in _SAME:
        return False
    shape = node.meta["val"].shape
    images = [n for n in node.all_input_nodes if getattr(n.meta.get("val"), "shape", None) == shape]
    return bool(images) and all(n in found for n in images)
