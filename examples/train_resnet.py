"""A residual network learns to tell shapes in noisy images; the model is compiled, the loop is as it was.

python examples/train_resnet.py [--steps 100] [--systems eager,intarsia]
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_table import table

BATCH, SIZE, CLASSES = 16, 32, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.skip = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def network() -> nn.Module:
    blocks = Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), *blocks, *head)


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stripes along rows, columns or a diagonal, or a ring, in noise."""
    kinds = torch.randint(CLASSES, (BATCH,), generator=generator)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    ring = ((x - SIZE / 2) ** 2 + (y - SIZE / 2) ** 2).sqrt()
    shapes = torch.stack([y.float(), x.float(), (x + y).float(), ring]).div(3).sin()
    noise = torch.randn(BATCH, 1, SIZE, SIZE, generator=generator)
    return (shapes[kinds][:, None] + noise).to(DEVICE), kinds.to(DEVICE)


def prepare(compiled: Callable[[Any], Any]) -> Callable[[int], Tensor]:
    model = network().to(DEVICE).train()
    fast = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    update = compiled(optimizer.step)
    generator = torch.Generator().manual_seed(1)

    def step(n: int) -> Tensor:
        x, target = images(generator)
        loss = F.cross_entropy(fast(x), target)
        loss.backward()
        update()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    table(prepare, __doc__)
