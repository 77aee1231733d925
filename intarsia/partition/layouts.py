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
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_SAME = (aten.alias.default, aten.detach.default, aten._to_copy.default, aten.clone.default)


def lying_last(graph: fx.Graph) -> set[fx.Node]:
    """Images that `channels-last` moves: results of convolutions, and what is computed of such images alone, element by element.

    So are windows that are computed (weights under autocast), which both halves would turn.
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_image(node) and (_is_convolution(node) or _follows(node, found)):
            found.add(node)
    windows = [node.args[1] for node in graph.nodes if _is_image(node) and _is_convolution(node)]
    return found.union(weight for weight in windows if _is_computed_window(weight))


def _is_computed_window(weight: fx.Node) -> bool:
    """Whether a kernel of ours makes a convolution's weight, of more than a pixel, for convolutions alone."""
    if weight.op != "call_function" or not _is_image(weight) or weight.meta["val"].shape[2:].numel() == 1:
        return False
    ours = weight.target in _SAME or torch.Tag.pointwise in getattr(weight.target, "tags", ())
    return ours and all(user.target in _CONVOLUTIONS for user in weight.users)


def _is_image(node: fx.Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not _on_gpu(value):
        return False
    return all(isinstance(n, int) for n in value.shape) and value.is_contiguous()


def _on_gpu(value: torch.Tensor) -> bool:
    return value.device.type == "cuda"


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
