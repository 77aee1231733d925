"""The state of torch's own random generators in front of a graph, for a call that is run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["devices_of", "keeper"]


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
