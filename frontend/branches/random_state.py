"""The state of torch's own random generators in front of a graph, for a call that is run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..entry.nature import may_draw
from ..graph.read_sizes import READS

__all__ = ["devices_of", "keeper", "rewound"]


def devices_of(graph: fx.Graph) -> tuple[int, ...]:
    """The GPUs that a graph's values lie on."""
    values = (n.meta.get("example_value") for n in graph.nodes)
    found = {v.device.index or 0 for v in values if isinstance(v, Tensor) and v.device.type == "cuda"}
    return tuple(sorted(found))


def keeper(devices: tuple[int, ...]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Two functions: the states of the generators of the CPU and of these GPUs; what sets them back to these."""

    def drawn() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]

    def rewind(states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

    return drawn, rewind


def rewound(function: Callable[..., Any], gm: fx.GraphModule, kind: type[Exception]) -> Callable[..., Any]:
    """What runs a graph that reads numbers: where an error of this kind ends a call, random generators are set back, as eager draws again."""
    if READS not in gm.meta or not any(n.op.startswith("call") and may_draw(n) for n in gm.graph.nodes):
        return function
    drawn, rewind = keeper(devices_of(gm.graph))

    def run(*args: Any) -> Any:
        states = drawn()
        try:
            return function(*args)
        except kind:
            rewind(states)
            raise

    return run
