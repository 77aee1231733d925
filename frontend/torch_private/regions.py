"""torch's operators that take functions, and the Python functions that call them (tried with torch 2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._ops import HigherOrderOperator
from torch.nn.attention import flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..versions import minor

__all__ = [
    "AUX_OUTPUT",
    "AUX_REQUEST",
    "CALLS",
    "COND",
    "DRAWS_ONCE_A_ROUND",
    "FLEX_ATTENTION",
    "KEEPS_GRADIENTS",
    "MAP",
    "NO_MASK_BLOCK",
    "SAFE_SOFTMAX",
    "SCAN",
    "SLICED_MASK",
    "WHILE_LOOP",
    "HigherOrderOperator",
    "MOVES_RESULTS",
    "rounds",
]

# Nodes of graphs.
COND: Any = torch.ops.higher_order.cond
WHILE_LOOP: Any = torch.ops.higher_order.while_loop
SCAN: Any = torch.ops.higher_order.scan
MAP: Any = torch.ops.higher_order.map_impl

# Whether `scan(dim=1)` moves what the rounds gave back to that dimension: 2.13 does, 2.11 leaves it in the first.
MOVES_RESULTS = minor(torch.__version__) >= (2, 13)

# Whether `scan` calls its function once a round: 2.11 does so once more in front of all, for the sizes of what it gives.
DRAWS_ONCE_A_ROUND = minor(torch.__version__) >= (2, 13)

# Whether gradients of `scan` reach early rounds through what is carried where none are wanted of its start.
KEEPS_GRADIENTS = minor(torch.__version__) >= (2, 13)

# Whether `scan` takes the rounds of a loop that values end, with gradients: 2.13 does, 2.11 takes their tensors for one another.
TAKES_ROUNDS = minor(torch.__version__) >= (2, 13)

# What programs call.
CALLS: dict[str, Any] = {
    "while_loop": while_loop,
    "scan": scan,
    "map": mapped,
    "nested_compile_region": invoke_subgraph_placeholder,  # behind functions that are marked by it
}

FLEX_ATTENTION: Any = flex_attention.flex_attention
AUX_REQUEST: Any = flex_attention.AuxRequest
AUX_OUTPUT: Any = flex_attention.AuxOutput
NO_MASK_BLOCK: int = flex_attention._LARGE_SPARSE_BLOCK_SIZE  # a block of this size says nothing of lengths
SLICED_MASK: Any = getattr(flex_attention, "_sliced_mask_mod_error", None)
SAFE_SOFTMAX: Any = torch._safe_softmax  # type: ignore[attr-defined]


def rounds(
    body: Callable[..., Sequence[Tensor]],
    carried: Sequence[Tensor],
    items: Sequence[Tensor],
    operands: Sequence[Tensor],
) -> Sequence[Tensor]:
    """`scan` of a body that only carries on; run in eager a loop of Python, for no rows and gradients of gradients, too."""
    given = (*carried, *items, *operands)
    if _get_current_dispatch_mode() is not None or any(type(t) not in (Tensor, torch.nn.Parameter) for t in given):
        return SCAN(body, carried, items, operands)  # type: ignore[no-any-return]
    for k in range(items[0].shape[0]):
        carried = body(*carried, *(item[k] for item in items), *operands)
    return tuple(carried)
