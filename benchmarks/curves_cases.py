"""The training runs whose loss curves benchmarks/curves.py compares: tiny models, data that are a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = torch.tensor(list(Path(__file__).read_bytes()))
LETTERS, LENGTH, WIDTH, HEADS = 128, 32, 64, 4

Wrap = Callable[[Any], Any]
Batch = tuple[Tensor, ...]


def same(fn: Any) -> Any:
    return fn


@dataclass(frozen=True)
class System:
    """How a run is executed: what is put around the models, the updates, and the whole step."""

    model: Wrap = same
    update: Wrap = same
    step: Wrap = same


@dataclass(frozen=True)
class Where:
    """The device of a run, and whether autocast is on."""

    device: str
    amp: bool

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.amp)


@dataclass(frozen=True)
class Case:
    """One training run.

    Attributes:
        make: a function of the step's tensors that trains and returns its loss, as `System` executes it.
        batches: the batches, without end; samples are the first dimension of each tensor.
        micro: the number of micro-batches of a step.
        halves: the optimizer computes in bfloat16, whatever the model does.
    """

    make: Callable[[Where, System], Callable[..., Tensor]]
    batches: Callable[[], Iterator[Batch]]
    micro: int = 1
    halves: bool = False


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A language model of letters; the last product has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.last = nn.Sequential(Block(True), Block(True)), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.letters.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.last(self.blocks(self.letters(x) + self.places.weight)), self.letters.weight)


class LowRank(nn.Module):
    """A linear layer that stays, and what is learned beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions with batch norms beside a way around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.around(x))


def resnet() -> nn.Module:
    first = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    blocks = Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2)
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class ViT(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(16, WIDTH) * 0.02)
        self.blocks, self.last = nn.Sequential(Block(False), Block(False)), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.patches(x).flatten(2).mT + self.places).mean(1))  # type: ignore[no-any-return]


class Lion(torch.optim.Optimizer):
    """A custom optimizer as people write them: the sign of a momentum."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(torch.sign(state["m"] * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                state["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


def text(batch: int = 8) -> Iterator[Batch]:
    starts = torch.Generator().manual_seed(1)
    while True:
        at = torch.randint(len(TEXT) - LENGTH - 1, (batch, 1), generator=starts) + torch.arange(LENGTH + 1)
        yield TEXT[at][:, :-1], TEXT[at][:, 1:]


def images(batch: int = 16) -> Iterator[Batch]:
    """Ten classes: waves of a direction each, of any phase, under noise."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(16.0)
    while True:
        target = torch.randint(10, (batch,), generator=generator)
        phase = torch.rand(batch, 3, 1, 1, generator=generator) * 6.3
        angle = target[:, None, None, None] * 0.31
        waves = torch.sin(rows[:, None] * torch.cos(angle) + rows * torch.sin(angle) + phase)
        yield waves + torch.randn(batch, 3, 16, 16, generator=generator), target


def points(batch: int = 32) -> Iterator[Batch]:
    """Pairs of normally distributed points, the second of which is drawn from four clusters; and noise for a generator."""
    generator = torch.Generator().manual_seed(1)
    while True:
        corner = torch.randint(2, (batch, 2), generator=generator) * 2.0 - 1
        yield corner + 0.1 * torch.randn(batch, 2, generator=generator), torch.randn(batch, 8, generator=generator)


def rows(batch: int = 16) -> Iterator[Batch]:
    """Rows of numbers and the class that a fixed network gives them."""
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(12, 5, generator=generator)
    while True:
        x = torch.randn(batch, 12, generator=generator)
        yield x, (torch.tanh(x) @ teacher).argmax(1)


def classifier(model: Callable[[], nn.Module], optimizer: Callable[[Any], torch.optim.Optimizer]) -> Any:
    """The loop that most programs have: a loss of logits, backward, update."""

    def make(where: Where, system: System) -> Callable[..., Tensor]:
        made = model().to(where.device)
        update = optimizer([p for p in made.parameters() if p.requires_grad])
        forward, step = system.model(made), system.update(update.step)

        def train(x: Tensor, target: Tensor) -> Tensor:
            with where.autocast():
                loss = F.cross_entropy(forward(x).flatten(0, -2), target.flatten())
            loss.backward()
            step()
            update.zero_grad()
            return loss.detach()

        return system.step(train)  # type: ignore[no-any-return]

    return make


def low_rank() -> nn.Module:
    model = GPT().requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.qkv, block.up = LowRank(block.qkv), LowRank(block.up)  # type: ignore[assignment]
    return model


def adversaries(where: Where, system: System) -> Callable[..., Tensor]:
    """A generator and a discriminator, an optimizer each; the loss is the sum of both."""
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(where.device)
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(where.device)
    updates = [torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999)) for m in (generator, critic)]
    make, judge = system.model(generator), system.model(critic)
    step_generator, step_critic = (system.update(u.step) for u in updates)
    loss_of = F.binary_cross_entropy_with_logits

    def train(real: Tensor, noise: Tensor) -> Tensor:
        ones, zeros = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
        with where.autocast():
            made = make(noise)
            loss_critic = loss_of(judge(real), ones) + loss_of(judge(made.detach()), zeros)
        loss_critic.backward()
        step_critic()
        with where.autocast():
            loss_generator = loss_of(judge(made), ones)
        updates[0].zero_grad()
        loss_generator.backward()
        step_generator()
        for update in updates:
            update.zero_grad()
        return (loss_critic + loss_generator).detach()

    return system.step(train)  # type: ignore[no-any-return]


MICRO = 4


def accumulation(where: Where, system: System) -> Callable[..., Tensor]:
    """Gradients of several micro-batches, clipped; a schedule; a moving average of the weights."""
    model = GPT().to(where.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    average = [p.detach().clone() for p in model.parameters()]
    forward, step = system.model(model), system.update(optimizer.step)

    def train(*batches: Tensor) -> Tensor:
        total = torch.zeros((), device=where.device)
        for x, target in zip(batches[::2], batches[1::2], strict=True):
            with where.autocast():
                loss = F.cross_entropy(forward(x).flatten(0, 1), target.flatten()) / MICRO
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.lerp_(p, 0.01)
        return total

    whole = system.step(train)

    def with_schedule(*batches: Tensor) -> Tensor:
        loss = whole(*batches)
        schedule.step()
        return loss  # type: ignore[no-any-return]

    return with_schedule


def closure(where: Where, system: System) -> Callable[..., Tensor]:
    """LBFGS, which calls the loss itself."""
    model = small().to(where.device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.02, max_iter=2, history_size=5)
    forward, step = system.model(model), system.update(optimizer.step)

    def train(x: Tensor, target: Tensor) -> Tensor:
        def loss_of() -> Tensor:
            optimizer.zero_grad()
            with where.autocast():
                loss = F.cross_entropy(forward(x), target)
            loss.backward()
            return loss

        return step(loss_of).detach()  # type: ignore[no-any-return]

    return system.step(train)  # type: ignore[no-any-return]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 5))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(LETTERS, LETTERS, sparse=True))


def matrices() -> nn.Module:
    """Muon updates matrices alone."""
    return nn.Sequential(nn.Linear(12, 24, bias=False), nn.Tanh(), nn.Linear(24, 5, bias=False))


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3)


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=1e-4)


def _optimizers() -> dict[str, Case]:
    of = torch.optim
    made: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "SGD": lambda p: of.SGD(p, lr=0.1),
        "SGD nesterov": lambda p: of.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        "Adam": lambda p: of.Adam(p, lr=1e-2),
        "Adam amsgrad": lambda p: of.Adam(p, lr=1e-2, amsgrad=True, weight_decay=1e-3),
        "Adam fused": lambda p: of.Adam(p, lr=1e-2, fused=True),
        "AdamW": lambda p: of.AdamW(p, lr=1e-2),
        "RMSprop": lambda p: of.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
        "Adagrad": lambda p: of.Adagrad(p, lr=5e-2),
        "Adadelta": lambda p: of.Adadelta(p, lr=1.0),
        "Adafactor": lambda p: of.Adafactor(p, lr=1e-2),
        "Adamax": lambda p: of.Adamax(p, lr=1e-2),
        "NAdam": lambda p: of.NAdam(p, lr=5e-3),
        "RAdam": lambda p: of.RAdam(p, lr=5e-3),
        "ASGD": lambda p: of.ASGD(p, lr=0.1),
        "Rprop": lambda p: of.Rprop(p, lr=1e-3, step_sizes=(1e-6, 1e-2)),
        "Lion": lambda p: Lion(p, lr=1e-3),
    }
    cases = {name: Case(classifier(small, optimizer), rows) for name, optimizer in made.items()}
    if hasattr(of, "Muon"):
        cases["Muon"] = Case(classifier(matrices, lambda p: of.Muon(p, lr=1e-2)), rows, halves=True)
    cases["SparseAdam"] = Case(classifier(words, lambda p: of.SparseAdam(p, lr=1e-2)), text)
    cases["LBFGS"] = Case(closure, rows)
    return cases


MODELS: dict[str, Case] = {
    "gpt": Case(classifier(GPT, adamw), text),
    "resnet": Case(classifier(resnet, momentum), images),
    "vit": Case(classifier(ViT, adamw), images),
    "lora": Case(classifier(low_rank, adamw), text),
    "gan": Case(adversaries, points),
    "accumulation": Case(accumulation, text, MICRO),
}
OPTIMIZERS = _optimizers()
