"""Small products of equal shape that do not read one another become one batched product, whatever they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.extend import Pass, kernel, prim, replace, sort_block


@dataclass(frozen=True)
class BatchedProducts(Pass):
    """x a^T, y b^T ... -> [x, y ...] [a, b ...]^T: one call for small products of equal shape (DyNet, Neubig et al., 2017)."""

    name = "batched-products"
    level = "prim"
    after = ("dce", "wide-products?")
    before = ("attention?", "own-kernels?", "hoist?", "fuse")
    scopes = ("inference",)  # stacked weights are made once: they are parameters
    fewest: int = 4
    largest: int = 1 << 20  # multiplications of one product; larger ones fill the machine alone

    def apply(self, ctx, module) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            depth, groups = {}, {}
            # `depth`: how many of our products lie on the way to an operation; equal numbers are independent.
            for op in func.block_body.ops:
                depth[op] = max((depth.get(v.owner, 0) for inner in op.walk() for v in inner.operands), default=0)
                if op.name == "kernel.extern" and op["target"] == "aten.linear.default" and self.takes(op, func):
                    key = depth[op], str(op.literals), *(str(v.type) for v in op.operands)
                    groups.setdefault(key, []).append(op)
                    depth[op] += 1
            for ops in [ops for ops in groups.values() if len(ops) >= self.fewest]:
                self.join(ops)
                ctx.diagnostics.count(self.name, "products batched", len(ops))
            sort_block(func.block_body)

    def takes(self, op, func) -> bool:
        """A small product of a matrix by a parameter, of sizes that are known."""
        x, result, known = op.operands[0].type, op.results[0].type, op.operands[1:]
        sizes = all(isinstance(n, int) for v in op.operands for n in v.type.shape) and len(x.shape) == 2
        static = all(v.owner is func.block_body and func["arg_static"][v.index] for v in known)
        return sizes and static and not op.regions and result.numel * x.shape[1] <= self.largest

    def join(self, ops) -> None:
        made = []

        def add(op):
            made.append(op)
            return op.results[0]

        def stacked(k):
            t = ops[0].operands[k].type
            rows = t.with_(shape=(len(ops) * t.shape[0], t.shape[1]))
            together = add(prim.Concat.make([op.operands[k] for op in ops], [rows], {"dim": 0}))
            return add(prim.reshape(together, (len(ops), *t.shape)))

        x, weights, t = stacked(0), stacked(1), ops[0].results[0].type
        columns, inner = weights.type.shape[1:]
        attributes = {"target": "aten.bmm.default", "operands": ("self", "mat2")}
        attributes["operand_strides"] = (None, (columns * inner, 1, inner))  # read transposed, where they are
        turned = add(prim.permute(weights, (0, 2, 1)))
        whole = add(kernel.Extern.make([x, turned], [t.with_(shape=(len(ops), *t.shape))], attributes))
        for k, op in enumerate(ops):
            at = {"starts": (k, 0, 0), "steps": (1, 1, 1)}
            value = add(prim.reshape(add(prim.Slice.make([whole], [t.with_(shape=(1, *t.shape))], at)), t.shape))
            for bias in op.operands[2:]:
                value = add(prim.elementwise("add", value, add(prim.broadcast(bias, t.shape, (1,)))))
            replace(op, [value], made)
            made.clear()


class Ensemble(nn.Module):
    """Ten critics of one state and an action of each (REDQ, Chen et al., 2021): small nets side by side."""

    def __init__(self, nets: int = 10, width: int = 24, hidden: int = 64) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
            )
            for _ in range(nets)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([net(part) for net, part in zip(self.nets, x.unbind(0), strict=True)], -1).amin(-1)


class Fields(nn.Module):
    """A row of a table, each of 32 fields through a layer of its own (FT-Transformer's tokens, Gorishniy et al., 2021), twice."""

    def __init__(self, fields: int = 32, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(nn.Linear(width, width) for _ in range(fields)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        each = zip(self.first, self.second, x.unbind(1), strict=True)
        return torch.stack([b(torch.tanh(a(part))) for a, b, part in each], 1)


class Mixture(nn.Module):
    """A mixture of sixteen experts of two layers, all of which are asked (Jacobs et al., 1991)."""

    def __init__(self, width: int = 64, hidden: int = 32, experts: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        known = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.gate(x).softmax(-1)[..., None] * known).sum(1)


MODELS: dict[str, Any] = {
    "ensemble": (Ensemble, (10, 32, 24)),
    "fields": (Fields, (16, 32, 16)),
    "mixture": (Mixture, (32, 64)),
}
