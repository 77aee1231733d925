"""A partition policy of your own: which values the forward half of a training graph saves for backward."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

import intarsia
from intarsia.extend import Kind, PartitionPolicy, Value


@dataclass(frozen=True)
class EveryNth(PartitionPolicy):
    """Save every n-th product, as checkpoints (Chen et al., 2016); all between two of them is computed again."""

    name = "every-nth"
    n: int = 1

    def saves(self, values: Mapping[fx.Node, Value], read: Sequence[fx.Node], budget: float) -> Iterable[fx.Node]:
        """Backward's other needs are computed again from these and from the inputs."""
        costly = [node for node, value in values.items() if value.kind is Kind.COSTLY and value.save is not None]
        return costly[:: self.n]


model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())))
x = torch.randn(256, 64)


def gradients(function) -> list[torch.Tensor]:
    model.zero_grad()
    function(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


expected = gradients(model)
for n in (1, 4):
    compiled = intarsia.compile(model, passes=[EveryNth(n=n)])
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients(compiled), expected, strict=True))
    saved = next(g.partition for g in intarsia.explain(compiled)(x).graphs if g.partition)
    print(f"every {n}: {len(saved.saved)} values of {saved.bytes >> 10} KiB saved, close: {close}")
