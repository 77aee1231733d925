"""Calls of attention in training: what keeps torch from its fused kernels is put right before torch chooses one.

With gradients, torch decides at each call which kernel carries out `scaled_dot_product_attention`, by the strides of the operands
and by whether there is a mask; where none fits, the scores are written to memory in float32, forward and backward. Without
gradients nothing of this is needed: attention reaches the passes as one operation (`passes/graph/attention`).

- A mask that the graph computes of numbers alone is computed here, once. One that lets everything through is left out, and
  a triangle becomes `is_causal`.
- Queries, keys and values whose last dimension is not the one that lies side by side are copied so. A mask, too.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from .frontend.graph.output import MUTATES
from .frontend.torch_private.functions import ENTER_AUTOCAST

__all__ = ["prepare_attention"]

LARGEST = 1 << 26  # elements of a mask that is computed here


def _signature(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: Any = False,
) -> None:
    """How a call of attention is written."""


_SIGNATURE = inspect.signature(_signature)


def prepare_attention(gm: fx.GraphModule) -> None:
    """Rewrite the graph's calls of attention on GPUs that gradients are wanted of, in place."""
    for node in gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        given = _SIGNATURE.bind(*node.args, **node.kwargs)
        given.apply_defaults()
        operands = [given.arguments[name] for name in ("query", "key", "value")]
        if not all(map(_is_on_gpu, operands)) or not node.meta["example_value"].requires_grad:
            continue
        _leave_out_known_mask(given.arguments)
        with gm.graph.inserting_before(node):
            for name in ("query", "key", "value", "attn_mask"):
                operand = given.arguments[name]
                if isinstance(operand, fx.Node) and _across(operand.meta["example_value"]):
                    given.arguments[name] = _copied(gm.graph, operand)
        node.args, node.kwargs = given.args, given.kwargs


def _is_on_gpu(operand: Any) -> bool:
    value = operand.meta.get("example_value") if isinstance(operand, fx.Node) else None
    return isinstance(value, Tensor) and value.is_cuda


def _across(value: Tensor) -> bool:
    """Whether the last dimension does not lie side by side: no fused kernel takes such an operand."""
    return value.dim() > 0 and value.shape[-1] != 1 and value.stride(-1) != 1


def _copied(graph: fx.Graph, operand: fx.Node) -> fx.Node:
    value = operand.meta["example_value"]
    made = graph.call_method("clone", (operand,), {"memory_format": torch.contiguous_format})
    made.meta = {**operand.meta, "example_value": value.clone(memory_format=torch.contiguous_format)}
    return made


def _leave_out_known_mask(arguments: dict[str, Any]) -> None:
    mask = arguments["attn_mask"]
    if not isinstance(mask, fx.Node) or arguments["is_causal"] is not False:
        return
    known = _evaluate(mask)
    if known is None or known.dim() < 2:
        return
    through = known if known.dtype == torch.bool else known == 0
    if bool(through.all()):
        arguments["attn_mask"] = None
        return
    closed = known.logical_not() if known.dtype == torch.bool else known == -torch.inf
    triangle = torch.ones(known.shape[-2:], dtype=torch.bool).tril_()
    query, key = (arguments[name].meta["example_value"].shape[-2] for name in ("query", "key"))
    if tuple(known.shape[-2:]) == (query, key) and bool((through == triangle).all() and (closed != triangle).all()):
        arguments["attn_mask"], arguments["is_causal"] = None, True


def _evaluate(node: fx.Node) -> Tensor | None:
    """The value of a node that depends on numbers alone, on the CPU; None where it depends on anything else."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor) or not all(type(n) is int for n in value.shape) or value.numel() > LARGEST:
        return None
    order: list[fx.Node] = []
    if not _of_numbers(node, order, set()):
        return None
    found: dict[fx.Node, Any] = {}
    drawn = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for item in order:
            found[item] = _run(item, found)
    if not torch.equal(torch.get_rng_state(), drawn):  # the program's numbers, which this is not the place to draw
        torch.set_rng_state(drawn)
        return None
    result = found[node]
    same = isinstance(result, Tensor) and result.shape == value.shape and result.dtype == value.dtype
    return result if same else None


def _of_numbers(node: fx.Node, order: list[fx.Node], seen: set[fx.Node]) -> bool:
    """Whether a node depends on numbers alone, and nothing on the way is written to; these nodes are added to `order`."""
    if node in seen:
        return True
    seen.add(node)
    if node.op not in ("call_function", "call_method") or node.target in _ELSEWHERE:
        return False
    if any(item.meta.get(MUTATES) for item in (node, *node.users)):
        return False
    if not all(_of_numbers(source, order, seen) for source in node.all_input_nodes):
        return False
    order.append(node)
    return True


_ELSEWHERE = ("cuda", ENTER_AUTOCAST)  # methods and functions that cannot run on the CPU, or for themselves


def _run(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    """What a node gives, with the CPU in the place of a GPU."""

    def given(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return found[argument]
        gpu = isinstance(argument, torch.device) or (isinstance(argument, str) and argument.startswith("cuda"))
        return torch.device("cpu") if gpu else argument

    args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), given)  # type: ignore[misc]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
