"""Decoders, samplers, searches and losses written from papers: more of `zoo_papers.py`."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo_papers import given, paper


class _Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(12, 16), nn.GRUCell(16, 16), nn.Linear(16, 12)

    def step(self, token: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(self.embed(token), h)
        return self.head(h).log_softmax(-1), h


@paper("beam-search", torch.tensor([1, 2]), training=False)
class BeamSearch(_Language):
    def forward(self, start: Tensor) -> tuple[Tensor, Tensor]:
        beams, rows = 3, start.shape[0]
        tokens = start.repeat_interleave(beams)[:, None]
        scores = torch.tensor([0.0] + [-1e9] * (beams - 1)).repeat(rows)
        h = torch.zeros(rows * beams, 16)
        done = torch.zeros(rows * beams, dtype=torch.bool)
        for _ in range(8):
            logp, h = self.step(tokens[:, -1], h)
            logp = torch.where(done[:, None], torch.tensor([0.0] + [-1e9] * 11), logp)
            total = (scores[:, None] + logp).view(rows, -1)
            scores, picked = total.topk(beams, -1)
            parent = (picked // 12 + torch.arange(rows)[:, None] * beams).view(-1)
            token = (picked % 12).view(-1)
            tokens = torch.cat([tokens[parent], token[:, None]], -1)
            h, scores = h[parent], scores.view(-1)
            done = done[parent] | (token == 0)
            if done.all():
                break
        return tokens, scores


@paper("ctc-greedy", given(3, 15, 6), torch.tensor([15, 9, 12]), training=False)
class CtcGreedy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        best = self.head(x).argmax(-1)
        out = []
        for row, n in zip(best, lengths.tolist(), strict=True):
            row = torch.unique_consecutive(row[:n])
            out.append(row[row != 0])
        return out


@paper("rnnt-greedy", given(7, 16), training=False)
class RnntGreedy(_Language):
    def forward(self, frames: Tensor) -> Tensor:
        h, token, out = torch.zeros(1, 16), torch.zeros(1, dtype=torch.long), []
        for frame in frames:
            for _ in range(3):
                logp, new = self.step(token, h + frame)
                best = logp.argmax(-1)
                if best.item() == 0:
                    break
                token, h = best, new
                out.append(best)
        return torch.cat(out) if out else torch.zeros(0, dtype=torch.long)


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 4))
        self.register_buffer("alphas", torch.linspace(0.999, 0.9, 10).cumprod(0))

    def noise(self, x: Tensor, t: Any) -> Tensor:
        return self.net(torch.cat([x, torch.full((len(x), 1), float(t) / 10)], -1))


@paper("ddpm", given(3, 4), training=False)
class Ddpm(_Denoiser):
    def forward(self, x: Tensor) -> Tensor:
        for t in reversed(range(10)):
            a = self.alphas[t]
            before = self.alphas[t - 1] if t > 0 else torch.ones(())
            beta = 1 - a / before
            mean = (x - beta / (1 - a).sqrt() * self.noise(x, t)) / (1 - beta).sqrt()
            x = mean + (beta * (1 - before) / (1 - a)).sqrt() * torch.randn_like(x) if t > 0 else mean
        return x


@paper("ddim-threshold", given(3, 4), training=False)
class DdimThreshold(_Denoiser):
    def forward(self, x: Tensor) -> Tensor:
        for t in [9, 6, 3, 0]:
            a = self.alphas[t]
            before = self.alphas[t - 3] if t >= 3 else a.new_tensor(1.0)
            noise = 3 * self.noise(x, t) - 2 * self.noise(x * 0, t)
            clean = (x - (1 - a).sqrt() * noise) / a.sqrt()
            s = torch.quantile(clean.abs(), 0.9, dim=-1, keepdim=True).clamp(min=1)
            clean = clean.clamp(-s, s) / s
            x = before.sqrt() * clean + (1 - before).sqrt() * noise
        return x


@paper("diffusion-training", given(6, 4))
class DiffusionTraining(_Denoiser):
    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, 10, (len(x),))
        noise = torch.randn_like(x)
        a = self.alphas[t][:, None]
        seen = a.sqrt() * x + (1 - a).sqrt() * noise
        drop = torch.rand(len(x)) < 0.2
        seen = torch.where(drop[:, None], torch.zeros_like(seen), seen)
        weight = (a / (1 - a)).clamp(max=5)
        return (weight * (self.net(torch.cat([seen, t[:, None] / 10], -1)) - noise) ** 2).mean()


@paper("speculative", torch.tensor([[1, 4, 2]]), training=False)
class Speculative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = (nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12)) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        for _ in range(3):
            n, draft, probs = tokens.shape[1], tokens, []
            for _ in range(3):
                p = self.small(draft)[:, -1].softmax(-1)
                probs.append(p)
                draft = torch.cat([draft, torch.multinomial(p, 1)], 1)
            q = self.large(draft)[:, n - 1 :].softmax(-1)
            p = torch.stack(probs, 1)
            new = draft[:, n:]
            ratio = q[:, :-1].gather(-1, new[..., None]) / p.gather(-1, new[..., None])
            accepted = torch.rand_like(ratio) < ratio
            count = int(accepted.squeeze(-1).cumprod(-1).sum().item())
            if count == 3:
                extra = q[:, -1]
            else:
                extra = (q[:, count] - p[:, count]).clamp(min=0) + 1e-9
            tokens = torch.cat([draft[:, : n + count], torch.multinomial(extra, 1)], 1)
        return tokens


@paper("slots", given(2, 10, 8))
class Slots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mu, self.sigma = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.zeros(1, 1, 8))
        self.q, self.k, self.v, self.gru = *(nn.Linear(8, 8) for _ in range(3)), nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        slots = self.mu + self.sigma.exp() * torch.randn(x.shape[0], 3, 8)
        k, v = self.k(x), self.v(x)
        for _ in range(3):
            a = (torch.einsum("bnd,bsd->bns", k, self.q(slots)) / 8**0.5).softmax(-1) + 1e-8
            a = a / a.sum(1, keepdim=True)
            slots = self.gru(torch.einsum("bns,bnd->bsd", a, v).flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots.pow(2).mean()


@paper("sinkhorn", given(5, 2), given(6, 2, seed=1), training=False)
class Sinkhorn(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        c = torch.cdist(x, y) ** 2
        f, g, i, error = torch.zeros(5), torch.zeros(6), 0, torch.tensor(math.inf)
        while error > 1e-3 and i < 200:
            before = f
            f = -0.5 * ((g[None] - c) / 0.5 - math.log(6)).logsumexp(1)
            g = -0.5 * ((f[:, None] - c) / 0.5 - math.log(5)).logsumexp(0)
            error, i = (f - before).abs().sum(), i + 1
        return f, g, i


@paper("deq", given(4, 8))
class Deq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(8, 8), nn.Linear(8, 8)

    def f(self, z: Tensor, x: Tensor) -> Tensor:
        return (0.5 * self.w(z) + self.u(x)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(50):
                new = self.f(z, x)
                if (new - z).norm() < 1e-4:
                    break
                z = new
        z = self.f(z, x)
        for _ in range(2):
            z = 0.9 * self.f(z, x) + 0.1 * z
        return z.pow(2).sum()


@paper("crf", given(2, 6, 5), torch.arange(12).view(2, 6) % 5)
class Crf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(5, 5), nn.Parameter(torch.randn(5, 5) * 0.1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        e = self.emit(x)
        alpha = e[:, 0]
        for t in range(1, x.shape[1]):
            alpha = (alpha[:, :, None] + self.move + e[:, t, None]).logsumexp(1)
        gold = e.gather(2, y[..., None]).sum((1, 2)) + self.move[y[:, :-1], y[:, 1:]].sum(1)
        loss = (alpha.logsumexp(1) - gold).mean()
        with torch.no_grad():
            score, back = e[:, 0], []
            for t in range(1, x.shape[1]):
                score, best = (score[:, :, None] + self.move).max(1)
                score = score + e[:, t]
                back.append(best)
            path = [score.argmax(1)]
            for best in reversed(back):
                path.append(best.gather(1, path[-1][:, None]).squeeze(1))
        return loss, torch.stack(path[::-1], 1)


@paper("act", given(4, 8))
class Act(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.halt = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, total, out, n = x, torch.zeros(4), torch.zeros_like(x), 0
        while (total < 0.99).any() and n < 10:
            h = self.cell(h).tanh()
            p = self.halt(h).sigmoid().squeeze(-1)
            p = torch.where(total + p > 0.99, 1 - total, p)
            out = out + p[:, None] * h
            total = total + p
            n += 1
        return out.pow(2).sum() + 0.01 * n


@paper("mdn", given(9, 2), given(9, seed=1))
class Mdn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits, mean, log_std = self.net(x).chunk(3, -1)
        mix = torch.distributions.Categorical(logits=logits)
        parts = torch.distributions.Normal(mean, log_std.exp())
        loss = -torch.distributions.MixtureSameFamily(mix, parts).log_prob(y).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")
        return loss


@paper("pointer", given(2, 6, 4), training=False)
class Pointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.cell, self.query = nn.Linear(4, 8), nn.LSTMCell(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        e = self.encode(x)
        state = (e.mean(1), torch.zeros(2, 8))
        seen, tour, logp, last = torch.zeros(2, 6, dtype=torch.bool), [], 0.0, e.mean(1)
        for _ in range(6):
            state = self.cell(last, state)
            score = torch.einsum("bnd,bd->bn", e, self.query(state[0])).masked_fill(seen, -math.inf)
            p = score.softmax(-1)
            city = torch.multinomial(p, 1).squeeze(-1)
            logp = logp + p[torch.arange(2), city].log()
            seen = seen.scatter(1, city[:, None], True)
            last = e[torch.arange(2), city]
            tour.append(city)
        return torch.stack(tour, 1), logp


@paper("stochastic-depth", given(4, 8))
class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand(1) < 0.4:
                continue
            x = x + layer(x).relu()
        return x.pow(2).mean()


@paper("layer-drop", given(4, 8))
class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        random.seed(3)
        for layer in self.layers:
            skip = self.training and random.random() < 0.4
            if not skip:
                x = x + layer(x).relu()
        return x.pow(2).mean()


@paper("vq-ema", given(12, 4))
class VqEma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.register_buffer("codes", torch.randn(6, 4))
        self.register_buffer("count", torch.ones(6))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        index = torch.cdist(z, self.codes).argmin(-1)
        q = self.codes[index]
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(index, 6).to(z.dtype)
                self.count.lerp_(hot.sum(0), 0.1)
                self.total.lerp_(hot.T @ z, 0.1)
                self.codes.copy_(self.total / (self.count[:, None] + 1e-5))
                dead = self.count < 0.95
                if dead.any():
                    n = int(dead.sum())
                    self.codes[dead] = z[torch.randperm(len(z))[:n]]
        return F.mse_loss(z, q.detach()) + (z + (q - z).detach()).pow(2).mean()


@paper("triplets", given(12, 5), torch.arange(12) % 4)
class Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        d = torch.cdist(self.embed(x), self.embed(x))
        same = y[:, None] == y[None]
        losses = []
        for i in range(len(y)):
            positive = d[i][same[i] & (torch.arange(len(y)) != i)]
            negative = d[i][~same[i]]
            if len(positive) == 0 or len(negative) == 0:
                continue
            losses.append(F.relu(positive.max() - negative.min() + 0.5))
        return torch.stack(losses).mean()


@paper("nms", given(12, 4), given(12, seed=1), training=False)
class Nms(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor) -> Tensor:
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs() + 0.5], -1)
        order, kept = scores.argsort(descending=True), []
        while order.numel() > 0:
            i = order[0]
            kept.append(i)
            if order.numel() == 1:
                break
            rest = boxes[order[1:]]
            low, high = torch.max(boxes[i, :2], rest[:, :2]), torch.min(boxes[i, 2:], rest[:, 2:])
            both = (high - low).clamp(min=0).prod(-1)
            size = (boxes[i, 2:] - boxes[i, :2]).prod() + (rest[:, 2:] - rest[:, :2]).prod(-1) - both
            order = order[1:][both / size <= 0.3]
        return torch.stack(kept)


@paper("nucleus", torch.tensor([[3], [5]]), training=False)
class Nucleus(_Language):
    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.zeros(2, 16)
        for _ in range(5):
            logp, h = self.step(tokens[:, -1], h)
            value, index = logp.sort(-1, descending=True)
            drop = value.exp().cumsum(-1) > 0.8
            drop[:, 1:] = drop[:, :-1].clone()
            drop[:, 0] = False
            logp = logp.masked_fill(drop.scatter(1, index, drop), -math.inf)
            tokens = torch.cat([tokens, torch.multinomial(logp.softmax(-1), 1)], -1)
        return tokens


@paper("tree-lstm", given(7, 4), [[], [], [], [0, 1], [2, 3], [], [4, 5]])
class TreeLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.iou, self.u, self.f = nn.Linear(4, 18), nn.Linear(6, 18), nn.Linear(6, 6)

    def node(self, x: Tensor, children: list[list[int]], at: int) -> tuple[Tensor, Tensor]:
        below = [self.node(x, children, c) for c in children[at]]
        h = sum((h for h, _ in below), torch.zeros(6))
        i, o, u = (self.iou(x[at]) + self.u(h)).chunk(3)
        c = i.sigmoid() * u.tanh() + sum(self.f(hk).sigmoid() * ck for hk, ck in below)
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: Tensor, children: list[list[int]]) -> Tensor:
        return self.node(x, children, len(children) - 1)[0].pow(2).sum()


@paper("mixup", given(8, 5), torch.arange(8) % 3)
class MixUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.distributions.Beta(0.4, 0.4).sample()
        order = torch.randperm(len(x))
        logits = self.net(weight * x + (1 - weight) * x[order])
        return weight * F.cross_entropy(logits, y) + (1 - weight) * F.cross_entropy(logits, y[order])


@paper("gmm", given(30, 2), training=False)
class Gmm(nn.Module):
    def forward(self, x: Tensor) -> Any:
        mean, var, weight = x[:3].clone(), torch.ones(3, 2), torch.ones(3) / 3
        last, steps = -math.inf, 0
        for _ in range(50):
            logp = torch.distributions.Normal(mean, var.sqrt()).log_prob(x[:, None]).sum(-1) + weight.log()
            now = logp.logsumexp(-1).mean().item()
            r = logp.softmax(-1)
            n = r.sum(0)
            mean = r.T @ x / n[:, None]
            var = (r[..., None] * (x[:, None] - mean) ** 2).sum(0) / n[:, None] + 1e-4
            weight = n / len(x)
            steps += 1
            if abs(now - last) < 1e-3:
                break
            last = now
        return mean, var, weight, steps


@paper("ransac", given(20), training=False)
class Ransac(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = 2 * x + 1 + torch.where(torch.arange(20) % 4 == 0, torch.full((20,), 5.0), torch.zeros(20))
        best, line = 0, torch.zeros(2)
        for _ in range(8):
            i, j = torch.randperm(20)[:2]
            slope = (y[j] - y[i]) / (x[j] - x[i] + 1e-9)
            count = ((slope * (x - x[i]) + y[i] - y).abs() < 0.2).sum()
            if count > best:
                best, line = count, torch.stack([slope, y[i] - slope * x[i]])
        return best, line


@paper("greedy-matching", given(5, 4), given(3, 4, seed=1))
class GreedyMatching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        found = self.head(x)
        cost = torch.cdist(found, boxes).detach().clone()
        pairs = []
        for _ in range(len(boxes)):
            at = cost.argmin()
            i, j = at // cost.shape[1], at % cost.shape[1]
            pairs.append((i, j))
            cost[i, :] = math.inf
            cost[:, j] = math.inf
        rows, columns = (torch.stack(p) for p in zip(*pairs, strict=True))
        return F.l1_loss(found[rows], boxes[columns])


@paper("nerf", given(4, 3), given(4, 3, seed=1))
class Nerf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))

    def render(self, o: Tensor, d: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        raw = self.net(o[:, None] + d[:, None] * z[..., None])
        gap = torch.cat([z[:, 1:] - z[:, :-1], torch.full((len(z), 1), 1e10)], -1)
        alpha = 1 - (-raw[..., 3].relu() * gap).exp()
        w = alpha * torch.cumprod(torch.cat([torch.ones(len(z), 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return (w[..., None] * raw[..., :3].sigmoid()).sum(1), w

    def forward(self, o: Tensor, d: Tensor) -> Tensor:
        z = torch.linspace(0, 1, 8).expand(len(o), 8) + torch.rand(len(o), 8) / 8
        coarse, w = self.render(o, d, z)
        mid, pdf = (z[:, 1:] + z[:, :-1]) / 2, w[:, 1:-1] + 1e-5
        cdf = F.pad((pdf / pdf.sum(-1, keepdim=True)).cumsum(-1), (1, 0)).detach()
        u = torch.rand(len(o), 4)
        k = torch.searchsorted(cdf, u, right=True)
        low, high = (k - 1).clamp(min=0), k.clamp(max=cdf.shape[-1] - 1)
        c0, c1, z0, z1 = cdf.gather(1, low), cdf.gather(1, high), mid.gather(1, low), mid.gather(1, high)
        t = (u - c0) / torch.where(c1 - c0 < 1e-5, torch.ones_like(c0), c1 - c0)
        fine, _ = self.render(o, d, torch.cat([z, z0 + t * (z1 - z0)], -1).sort(-1)[0])
        return (coarse - 0.5).pow(2).mean() + (fine - 0.5).pow(2).mean()


@paper("kalman", torch.where(given(8) > 1, torch.full((8,), math.nan), given(8)))
class Kalman(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.r = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.5))

    def forward(self, z: Tensor) -> Tensor:
        m, p, loss = torch.zeros(()), torch.ones(()), torch.zeros(())
        for t in range(len(z)):
            p = p + self.q.exp()
            if not torch.isnan(z[t]):
                s = p + self.r.exp()
                k = p / s
                loss = loss + 0.5 * ((z[t] - m) ** 2 / s + s.log())
                m, p = m + k * (z[t] - m), (1 - k) * p
        return loss


@paper("soft-dtw", given(5, 3), given(6, 3, seed=1))
class SoftDtw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        d = torch.cdist(self.net(x), y) ** 2
        table = [[torch.tensor(math.inf)] * (len(y) + 1) for _ in range(len(x) + 1)]
        table[0][0] = torch.zeros(())
        for i in range(1, len(x) + 1):
            for j in range(1, len(y) + 1):
                near = torch.stack([table[i - 1][j], table[i][j - 1], table[i - 1][j - 1]])
                table[i][j] = d[i - 1, j - 1] - 0.1 * (-near / 0.1).logsumexp(0)
        return table[-1][-1]


@paper("puct", given(1, 4), training=False)
class Puct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prior, self.value, self.move = nn.Linear(4, 3), nn.Linear(4, 1), nn.Embedding(3, 4)

    def forward(self, root: Tensor) -> Tensor:
        visits, total = torch.zeros(3), torch.zeros(3)
        prior = self.prior(root).softmax(-1)[0]
        for _ in range(10):
            q = total / visits.clamp(min=1)
            a = (q + 1.5 * prior * visits.sum().add(1).sqrt() / (1 + visits)).argmax()
            v = self.value(root[0] + self.move(a)).tanh().squeeze()
            visits[a] += 1
            total[a] += v
        return visits / visits.sum()


@paper("clipped-step", given(6, 4), given(6, seed=1))
class ClippedStep(nn.Module):
    """A second derivative as a penalty, with a norm that decides."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = self.net(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        norm = g.norm(dim=-1)
        penalty = ((norm - 1) ** 2).mean()
        if penalty.item() > 100:
            penalty = penalty.clamp(max=100)
        return F.mse_loss(out.squeeze(-1), y) + 10 * penalty
