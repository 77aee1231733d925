"""Published ideas as passes of others, and what they do to models: `python -m benchmarks.ideas` prints a table.

Written against docs/extend.md alone. The models are small, so that the effect of each idea is seen beside products that all have.
`python -m benchmarks.ideas 10 product-order` measures benchmarks/product_order.py on the models that multiply several matrices,
`... batched-products` measures benchmarks/batched_products.py on small nets side by side.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import intarsia
from benchmarks import batched_products, torchvision_stub
from benchmarks.product_order import ProductOrder
from intarsia.extend import (
    BF16,
    F32,
    Access,
    CompileContext,
    Fuse,
    Group,
    ModuleOp,
    Pass,
    Plan,
    bytes_read,
    kernel,
    prim,
)
from intarsia.extend import replace as replace_op


@dataclass(frozen=True)
class GreedyByProducer(Fuse):
    """Fuse each operation with what it reads, in the program's order, wherever one kernel can hold both; bytes do not count."""

    name = "greedy-by-producer"
    replaces = "fuse"

    def worth(self, plan: Plan, a: Group, b: Group) -> float:
        return 1.0

    def turn(self, access: Access) -> float:
        return access.reader.index


@dataclass(frozen=True)
class SearchedFusion(Fuse):
    """Fuse in many orders, and keep the one whose kernels move the fewest bytes (a random search, as autotuners of XLA's fusion do it)."""

    name = "searched-fusion"
    replaces = "fuse"
    tries: int = 24
    seed: int = 0  # 0: the order of the default pass

    def turn(self, access: Access) -> float:
        noise = Random(f"{self.seed} {access.reader.index} {access.producer.index}").random() if self.seed else 0.5
        return -bytes_read(access) * 16 ** (2 * noise - 1)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        found = {seed: self._bytes(seed, ctx, module) for seed in range(self.tries)}
        best = min(found, key=lambda seed: found[seed])
        super(SearchedFusion, replace(self, seed=best)).apply(ctx, module)
        ctx.diagnostics.count(self.name, "bytes in the default order", found[0])
        ctx.diagnostics.count(self.name, "bytes in the order that was found", found[best])

    def _bytes(self, seed: int, ctx: CompileContext, module: ModuleOp) -> int:
        trial = CompileContext(ctx.machine)
        super(SearchedFusion, replace(self, seed=seed)).apply(trial, module.clone())
        return trial.diagnostics.statistics["fuse"]["bytes"]


@dataclass(frozen=True)
class WideProducts(Pass):
    """x a^T, x b^T ... -> x [a b ...]^T: small products of one input become a wide one (TASO, Jia et al., 2019; DyNet batches so, too)."""

    name = "wide-products"
    level = "prim"
    after = ("dce",)
    before = ("attention?", "own-kernels?", "hoist?", "fuse")
    fewest: int = 3
    widest: int = 64  # columns of one product; wider ones fill the registers alone
    rows: int = 8  # fewer rows are a product with a vector, which reads each weight once in any case

    def apply(self, ctx, module) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            place = {op: n for n, op in enumerate(func.block_body.ops)}
            groups: dict[Any, list] = {}
            for op in place:
                if op.name == "kernel.extern" and op["target"] == "aten.linear.default" and self._is_small(op):
                    groups.setdefault((op.operands[0], str(op.literals), op.results[0].type.dtype), []).append(op)
            for found in groups.values():
                first = place[found[0]]  # what the others read has to be known where the first of them stands
                ready = [op for op in found if all(place.get(v.owner, -1) < first for v in op.operands)]
                if len(ready) >= self.fewest:
                    self._join(ready)
                    ctx.diagnostics.count(self.name, "products joined", len(ready))

    def _is_small(self, op) -> bool:
        x, weight, result = op.operands[0].type, op.operands[1].type, op.results[0].type
        known = all(isinstance(n, int) for n in (*x.shape, *weight.shape))
        return known and weight.shape[0] <= self.widest and result.numel >= self.rows * weight.shape[0]

    def _join(self, ops) -> None:
        made = []

        def add(op):
            op.location = ops[0].location
            made.append(op)
            return op.results[0]

        parameters = []
        for k in range(1, len(ops[0].operands)):  # weights, then biases
            values = [op.operands[k] for op in ops]
            shape = sum(v.type.shape[0] for v in values), *values[0].type.shape[1:]
            parameters.append(add(prim.Concat.make(values, [values[0].type.with_(shape=shape)], {"dim": 0})))
        t, start = ops[0].results[0].type, 0
        wide = t.with_(shape=(*t.shape[:-1], parameters[0].type.shape[0]))
        whole = add(kernel.Extern.make([ops[0].operands[0], *parameters], [wide], ops[0].literals))
        for op in ops:
            part, zeros = op.results[0].type, (0,) * (len(t.shape) - 1)
            at = {"starts": (*zeros, start), "steps": (1,) * len(t.shape)}
            op.results[0].replace_all_uses_with(add(prim.Slice.make([whole], [part], at)))
            start += part.shape[-1]
        ops[0].parent.insert_ops_before(made, ops[0])
        for op in ops:
            op.parent.erase_op(op)


PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.linear.default")


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Products of matrices in bfloat16, all else in float32 (Micikevicius et al., 2018), as a rewrite of the IR.

    The library adds products of bfloat16 in float32.

    Options:
        allow: operators that may be narrowed.
        deny: parts of names of parameters, between commas: a product that reads such a one stays in float32.
        multiplications: smaller products stay in float32, too.
    """

    name = "mixed-precision"
    level = "prim"
    after = ("dce", "wide-products?", "batched-products?")
    before = ("own-kernels?", "hoist?", "fuse")
    allow: str = ",".join(PRODUCTS)
    deny: str = ""
    multiplications: int = 0

    def apply(self, ctx, module) -> None:
        denied = {
            value
            for func in module.walk()
            if isinstance(func, prim.Func)
            for value, name in zip(func.block_body.args, func.get("arg_names") or (), strict=False)
            if any(part in str(name) for part in self.deny.split(",") if part)
        }
        for op in [op for op in module.walk() if op.name == "kernel.extern" and op["target"] in self.allow.split(",")]:
            single = all(v.type.dtype == F32 for v in (*op.operands, *op.results))
            if single and not denied & {*op.operands} and self._multiplications(op) >= self.multiplications:
                self._narrow(op)
                ctx.diagnostics.count(self.name, "products in bfloat16")

    def _multiplications(self, op) -> float:
        """Of a product; a size that is a symbol may be large."""
        matrix = op.operands[1 if op["target"].startswith("aten.addmm") else 0]
        count = op.results[0].type.numel * matrix.type.shape[-1]
        return count if isinstance(count, int) else float("inf")

    def _narrow(self, op) -> None:
        halves = [prim.cast(v, BF16) for v in op.operands]
        attrs = {k: v for k, v in op.literals.items() if k != "operand_strides"}
        call = kernel.Extern.make([h.results[0] for h in halves], [op.results[0].type.with_(dtype=BF16)], attrs)
        back = prim.cast(call.results[0], F32)
        replace_op(op, [back.results[0]], [*halves, call, back])


class Tasks(nn.Module):
    """Forty questions about one input (faces and their attributes, Liu et al., 2015): a trunk, and a small head for each."""

    def __init__(self, width: int = 512, tasks: int = 40) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        return torch.stack([head(x).softmax(-1) for head in self.heads], 1)


class Adapted(nn.Module):
    """Linear layers of one input with adapters of low rank (LoRA, Hu et al., 2022), not merged."""

    def __init__(self, width: int = 512, rank: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.base, self.down, self.up = (
            nn.ModuleList(nn.Linear(a, b, bias=bias) for _ in range(layers))
            for a, b, bias in ((width, width, True), (width, rank, False), (rank, width, False))
        )

    def forward(self, x: Tensor) -> Tensor:
        each = zip(self.base, self.down, self.up, strict=True)
        return torch.cat([base(x) + 2.0 * up(down(x)) for base, down, up in each], -1)


class Experts(nn.Module):
    """A mixture of experts with a gate for each task (Ma et al., 2018): all read the same input."""

    def __init__(self, width: int = 128, experts: int = 16, hidden: int = 32, tasks: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, hidden) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Linear(hidden, 1) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        known = torch.stack([expert(x).relu() for expert in self.experts], 1)
        mixed = [(gate(x).softmax(-1)[..., None] * known).sum(1) for gate in self.gates]
        return torch.cat([tower(m) for tower, m in zip(self.towers, mixed, strict=True)], -1)


class Block(nn.Module):
    """A transformer's layer, heads written out."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5).tanh().softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def mlp(layers: int = 6, width: int = 512) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU())))


class NonLocal(nn.Module):
    """A bottleneck of a ResNet and a non-local block in its dot-product form (Wang et al., 2018), as published."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.narrow, self.middle, self.wide = (
            nn.Sequential(nn.Conv2d(a, b, n, padding=n // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b, n in ((width, width // 4, 1), (width // 4, width // 4, 3), (width // 4, width, 1))
        )
        self.theta, self.phi, self.g = (nn.Conv2d(width, width // 2, 1) for _ in range(3))
        self.out = nn.Conv2d(width // 2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.wide(self.middle(self.narrow(x)))
        batch, channels = x.size(0), self.g.out_channels
        g = self.g(x).view(batch, channels, -1).permute(0, 2, 1)
        theta = self.theta(x).view(batch, channels, -1).permute(0, 2, 1)
        phi = self.phi(x).view(batch, channels, -1)
        f = torch.matmul(theta, phi)
        y = torch.matmul(f / f.size(-1), g)
        return x + self.out(y.permute(0, 2, 1).contiguous().view(batch, channels, *x.shape[2:]))


class GraphLayer(nn.Module):
    """A layer of a graph network (Morris et al., 2019): neighbours are added up, then made narrow."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours, self.root = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, adjacent: Tensor) -> Tensor:
        return self.neighbours(torch.matmul(adjacent, x)) + self.root(x)


class Graph(nn.Module):
    """Two layers with the sizes of the data set Cora: 2,708 papers, 1,433 words, 7 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphLayer(1433, 16), GraphLayer(16, 7)
        self.register_buffer("adjacent", (torch.rand(2708, 2708) < 0.002).float())

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.second(self.first(x, self.adjacent).relu(), self.adjacent), -1)


def nystromformer() -> nn.Module:
    """Two layers of the model of the transformers library (Xiong et al., 2021), which is as it is installed."""
    torchvision_stub.install()
    from transformers import NystromformerConfig, NystromformerModel

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 2}
    model = NystromformerModel(NystromformerConfig(**sizes, max_position_embeddings=1024, segment_means_seq_len=1024))

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(inputs_embeds=x)[0]

    return Layers()


Models = dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]
MODELS: Models = {
    "transformer": (lambda: nn.Sequential(*(Block() for _ in range(4))), (4, 64, 256)),
    "mlp": (mlp, (256, 512)),
    "tasks": (Tasks, (32, 512)),
    "adapters": (Adapted, (64, 512)),
    "experts": (Experts, (512, 128)),
}
CHAINS: Models = {
    "non-local": (NonLocal, (2, 256, 28, 28)),
    "graph": (Graph, (2708, 1433)),
    "nystromformer": (nystromformer, (1, 1024, 256)),
    "transformer": MODELS["transformer"],
}
IDEAS: dict[str, list[Pass]] = {
    "as it is": [],
    "greedy fusion": [GreedyByProducer()],
    "searched fusion": [SearchedFusion()],
    "wide products": [WideProducts()],
    "mixed precision": [MixedPrecision()],
}


def milliseconds(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least processor time of each call, taken in turn, on one thread: what else the machine does counts little."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for k, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[k] = min(best[k], 1000 * (time.thread_time() - start))
    return best


def main(rounds: int = 200, models: Models = MODELS, ideas: dict[str, list[Pass]] = IDEAS) -> None:
    torch.set_num_threads(1)
    print(f"{'model':12} {'pass':17} {'kernels':>7} {'calls':>5} {'ms':>8} {'beside':>6} {'error':>8}")
    for name, (make, shape) in models.items():
        torch.manual_seed(0)
        model, x, calls, rows = make().eval(), torch.randn(shape), [], []
        with torch.no_grad():
            expected = model(x)
            for idea, passes in ideas.items():
                intarsia.reset()
                compiled = intarsia.compile(model, passes=passes, options={"on_error": "raise"})
                error = ((compiled(x) - expected).abs().max() / expected.abs().max()).item()
                counted = intarsia.counters()
                rows.append((idea, counted["kernels"], counted["externs"], error))
                calls.append(partial(compiled, x))
            for call in calls:  # warm
                call()
            taken = milliseconds(calls, rounds)
        for (idea, kernels, externs, error), ms in zip(rows, taken, strict=True):
            print(f"{name:12} {idea:17} {kernels:7} {externs:5} {ms:8.3f} {ms / taken[0]:6.2f} {error:8.1e}")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if sys.argv[2:] == ["product-order"]:
        main(count, CHAINS, {"as it is": [], "product order": [ProductOrder()]})
    elif sys.argv[2:] == ["batched-products"]:
        main(count, batched_products.MODELS, {"as it is": [], "batched products": [batched_products.BatchedProducts()]})
    else:
        main(count)
