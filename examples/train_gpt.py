"""A small GPT learns this program's text, letter by letter; the whole step is one compiled function.

python examples/train_gpt.py [--steps 100] [--systems eager,intarsia]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_table import table

TEXT = torch.tensor(list(Path(__file__).read_bytes()))
BATCH, LENGTH, WIDTH, HEADS, LAYERS = 8, 64, 128, 4, 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.last = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        for embedding in (self.letters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.letters(x) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.last(x) @ self.letters.weight.T  # tied to the embedding


def prepare(compiled: Callable[[Any], Any]) -> Callable[[int], Tensor]:
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    @compiled
    def train(x: Tensor, target: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    starts = torch.Generator().manual_seed(1)

    def step(n: int) -> Tensor:
        at = torch.randint(len(TEXT) - LENGTH - 1, (BATCH, 1), generator=starts) + torch.arange(LENGTH + 1)
        batch = TEXT[at].to(DEVICE)
        return train(batch[:, :-1], batch[:, 1:])

    return step


if __name__ == "__main__":
    table(prepare, __doc__)
