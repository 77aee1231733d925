"""Models written from papers, as people write them: name -> (module, args, kwargs). Modules that train are called with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
PAPERS: dict[str, Callable[[], Built]] = {}


def given(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def paper(name: str, *args: Any, training: bool = True) -> Callable[[Any], Any]:
    """Register a class of modules that is made without arguments."""

    def register(cls: Any) -> Any:
        def build() -> Built:
            torch.manual_seed(0)
            return cls().train(training), args, {}

        PAPERS[name] = build
        return cls

    return register


EDGES = torch.tensor([[0, 1, 2, 3, 4, 4, 2, 0, 5], [1, 2, 0, 4, 3, 0, 5, 2, 1]])


@paper("sage", given(7, 8), EDGES)
class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.others, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        total = torch.zeros_like(x).index_add_(0, target, x[source])
        degree = torch.bincount(target, minlength=x.shape[0]).clamp(min=1)
        h = F.relu(self.own(x) + self.others(total / degree[:, None]))
        alone = degree == 1
        if alone.any():
            h = torch.where(alone[:, None], h * 0.5, h)
        return F.cross_entropy(self.head(h), torch.arange(7) % 3)


@paper("gat", given(7, 8), EDGES)
class Gat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(8, 2 * 6, bias=False), nn.Parameter(torch.randn(2, 12) * 0.1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(x.size(0)).repeat(2, 1)
        keep = edges[0] != edges[1]
        source, target = torch.cat([edges[:, keep], loops], 1)
        h = self.project(x).view(-1, 2, 6)
        e = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.score).sum(-1), 0.2)
        index = target[:, None].expand_as(e)
        top = torch.full((x.size(0), 2), -math.inf).scatter_reduce(0, index, e.detach(), "amax")
        e = (e - top[target]).exp()
        e = e / torch.zeros(x.size(0), 2).scatter_add(0, index, e)[target]
        out = torch.zeros_like(h).index_add(0, target, h[source] * e[..., None])
        return out.flatten(1).pow(2).mean()


class _Expert(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))


@paper("moe-where", given(10, 8))
class MoeWhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(_Expert() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == e)
            if token.numel() == 0:
                continue
            out[token] += expert(x[token]) * weights[token, slot, None]
        load = F.one_hot(chosen, 4).float().mean((0, 1))
        return (out - x).pow(2).mean() + 0.01 * (load * self.gate(x).softmax(-1).mean(0)).sum() * 4


@paper("moe-hit", given(10, 8))
class MoeHit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(_Expert() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(1, -1)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        hit = (mask.sum((-1, -2)) > 0).nonzero()
        out = torch.zeros_like(x)
        for e in hit:
            slot, token = torch.where(mask[e].squeeze(0))
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, slot, None])
        return out.pow(2).mean()


@paper("moe-capacity", given(12, 8))
class MoeCapacity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(_Expert() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).softmax(-1)
        weight, chosen = p.max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=3).tolist()
        parts = x[order].split(counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        out = torch.empty_like(x).index_copy(0, order, made) * weight[:, None]
        return out.pow(2).mean()


@paper("ntm", given(5, 3, 4))
class Ntm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.key, self.add = nn.GRUCell(4 + 6, 12), nn.Linear(12, 7), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        memory, h, read = torch.zeros(3, 8, 6), torch.zeros(3, 12), torch.zeros(3, 6)
        outs = []
        for step in x:
            h = self.cell(torch.cat([step, read], -1), h)
            key, beta = self.key(h).split([6, 1], -1)
            w = (F.cosine_similarity(memory + 1e-6, key[:, None], dim=-1) * F.softplus(beta)).softmax(-1)
            erase, add = self.add(h).chunk(2, -1)
            memory = memory * (1 - w[..., None] * erase.sigmoid()[:, None]) + w[..., None] * add[:, None]
            read = torch.einsum("bn,bnd->bd", w, memory)
            outs.append(read)
        return torch.stack(outs).pow(2).mean()


@paper("ode-adaptive", given(4, 3), training=False)
class OdeAdaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, y: Tensor) -> Tensor:
        t, h, end, steps = 0.0, 0.1, 1.0, 0
        while t < end and steps < 100:
            h = min(h, end - t)
            k1 = self.net(y)
            k2 = self.net(y + h / 2 * k1)
            k3 = self.net(y + 0.75 * h * k2)
            new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
            k4 = self.net(new)
            error = (h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)).abs().max().item()
            if error < 1e-4:
                t, y = t + h, new
            h = h * min(2.0, max(0.3, 0.9 * (1e-4 / (error + 1e-12)) ** (1 / 3)))
            steps += 1
        return y


@paper("ode-rk4", given(4, 3))
class OdeRk4(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, y: Tensor) -> Tensor:
        times = torch.linspace(0, 1, 5)
        out = [y]
        for t0, t1 in zip(times[:-1], times[1:], strict=True):
            h = t1 - t0
            k1 = self.net(y)
            k2 = self.net(y + h / 2 * k1)
            k3 = self.net(y + h / 2 * k2)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + self.net(y + h * k3))
            out.append(y)
        return torch.stack(out).pow(2).sum()


@paper("realnvp", given(6, 4))
class RealNvp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))
        self.register_buffer("masks", torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]))
        self.prior = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        log_det = x.new_zeros(len(x))
        for net, mask in zip(self.nets, self.masks, strict=True):
            s, t = net(x * mask).chunk(2, -1)
            s = s.tanh() * (1 - mask)
            x = x * mask + (1 - mask) * (x * s.exp() + t)
            log_det = log_det + s.sum(-1)
        return -(self.prior.log_prob(x) + log_det).mean()


@paper("spline-flow", given(20) * 2)
class SplineFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.h, self.d = (nn.Parameter(torch.randn(n) * 0.3) for n in (5, 5, 6))

    def forward(self, x: Tensor) -> Tensor:
        inside = (x >= -2) & (x <= 2)
        out, log_det = torch.zeros_like(x), torch.zeros_like(x)
        out[~inside] = x[~inside]
        xs = F.pad(self.w.softmax(0).cumsum(0), (1, 0)) * 4 - 2
        ys = F.pad(self.h.softmax(0).cumsum(0), (1, 0)) * 4 - 2
        d = F.softplus(self.d)
        v = x[inside]
        k = torch.searchsorted(xs.detach(), v, right=True).sub(1).clamp(0, 4)
        width, height = xs[k + 1] - xs[k], ys[k + 1] - ys[k]
        s, u = height / width, (v - xs[k]) / width
        low = s + (d[k + 1] + d[k] - 2 * s) * u * (1 - u)
        out[inside] = ys[k] + height * (s * u**2 + d[k] * u * (1 - u)) / low
        log_det[inside] = (s**2 * (d[k + 1] * u**2 + 2 * s * u * (1 - u) + d[k] * (1 - u) ** 2)).log() - 2 * low.log()
        return 0.5 * out.pow(2).mean() - log_det.mean()


@paper("ppo", given(16, 5), torch.arange(16) % 3, given(16, seed=1), given(16, seed=2))
class Ppo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x: Tensor, action: Tensor, advantage: Tensor, returns: Tensor) -> Tensor:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        d = torch.distributions.Categorical(logits=self.policy(x))
        logp = d.log_prob(action)
        old = (logp + 0.1 * torch.randn_like(logp)).detach()
        ratio = (logp - old).exp()
        with torch.no_grad():
            kl = ((ratio - 1) - (logp - old)).mean()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = loss + 0.5 * F.mse_loss(self.value(x).squeeze(-1), returns) - 0.01 * d.entropy().mean()
        if kl > 0.5:
            loss = loss * 0
        return loss


@paper("dqn", given(8, 4), torch.arange(8) % 2, given(8, seed=3), given(8, 4, seed=4))
class Dqn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)

    def forward(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor) -> Tensor:
        q = self.online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.online(s2).argmax(1, keepdim=True)
            goal = r + 0.99 * self.target(s2).gather(1, best).squeeze(1)
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.mul_(0.995).add_(theirs, alpha=0.005)
        return F.smooth_l1_loss(q, goal)


@paper("sac", given(8, 4))
class Sac(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = nn.Linear(4, 4), nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        mean, log_std = self.actor(x).chunk(2, -1)
        d = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        u = d.rsample()
        action = u.tanh()
        logp = (d.log_prob(u) - (1 - action.pow(2) + 1e-6).log()).sum(-1)
        q = torch.min(*(c(torch.cat([x, action], -1)).squeeze(-1) for c in self.critics))
        alpha = self.log_alpha.exp()
        return (alpha.detach() * logp - q).mean() - (alpha * (logp.detach() - 2)).mean()


@paper("gae", given(9, 4), given(8, seed=5), torch.tensor([0, 0, 1, 0, 0, 0, 1, 0]).bool())
class Gae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(4, 1)

    def forward(self, s: Tensor, r: Tensor, done: Tensor) -> Tensor:
        v = self.value(s).squeeze(-1)
        advantages, last = torch.zeros_like(r), 0
        with torch.no_grad():
            for t in reversed(range(len(r))):
                more = 1.0 - done[t].float()
                delta = r[t] + 0.99 * v[t + 1] * more - v[t]
                last = delta + 0.99 * 0.95 * more * last
                advantages[t] = last
        return (v[:-1] - (advantages + v[:-1]).detach()).pow(2).mean()
