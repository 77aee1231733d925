"""A memory planner of your own: where each value lies in the arena. What overlaps is found, and the planner named."""

from dataclasses import dataclass

import torch

import intarsia
from intarsia.extend import Place, PlanBuffers


@dataclass(frozen=True)
class FirstFit(PlanBuffers):
    """Give each value, in the order of the program, the lowest memory that is free while it lives."""

    name = "first-fit"
    replaces = "plan-buffers"

    def pack(self, places: list[Place]) -> int:
        """Set the offsets; the arena's bytes. `first` and `last` are the steps between which a place is in use."""
        done: list[Place] = []
        for place in sorted(places, key=lambda p: p.first):
            live = sorted((p for p in done if p.last >= place.first), key=lambda p: p.offset)
            place.offset = 0
            for other in live:
                if place.offset + place.size <= other.offset:
                    break
                place.offset = max(place.offset, other.offset + other.size)
            done.append(place)
        return max((p.offset + p.size for p in done), default=0)


@dataclass(frozen=True)
class AllAtZero(PlanBuffers):
    """A planner with a mistake."""

    name = "all-at-zero"
    replaces = "plan-buffers"

    def pack(self, places: list[Place]) -> int:
        """Everything in one place."""
        for place in places:
            place.offset = 0
        return max((p.size for p in places), default=0)


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Products with something between them."""
    for k in range(4):
        x = torch.tanh((x @ w).softmax(-1) + (x * k).cumsum(-1))
    return x


with torch.no_grad():
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    for passes in ([], [FirstFit()], [AllAtZero()]):
        intarsia.reset()
        compiled = intarsia.compile(layers, passes=passes)
        print("close:", torch.allclose(compiled(x, w), layers(x, w), atol=1e-5))
        if passes and passes[0].name == "first-fit":
            low = intarsia.lower(layers, x, w, passes=passes)
            print("arena:", [part for part in low.ir().split(", ") if "arena_bytes" in part][0].split("}")[0])
