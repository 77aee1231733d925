"""Random programs at the `prim` level, with arguments to run them on."""

from __future__ import annotations

import random

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.dtypes import BOOL, BY_TORCH, F32, I64
from intarsia.ir.symbols import contiguous_strides
from intarsia.ir.syntax import Op
from intarsia.ir.types import tensor_type

SIZES = (1, 2, 3, 4, 6)
UNARY = ("neg", "abs", "exp", "sigmoid", "tanh", "sin")
BINARY = ("add", "sub", "mul", "max", "min")


class RandomProgram:
    """A program of about `length` operations, the same for the same seed."""

    def __init__(self, seed: int, length: int = 20) -> None:
        self.rng = random.Random(seed)
        self.block = Block()
        self.args: list[torch.Tensor] = []
        self.arg_strides: list[tuple[int, ...] | None] = []
        self.values: list[SSAValue] = []
        torch.manual_seed(seed)
        for _ in range(self.rng.randint(1, 3)):
            self._argument()
        for _ in range(length):
            self._step()

    def module(self) -> ModuleOp:
        """The program, returning some of its values."""
        last = self.values[-1]
        returned = [last, *self.rng.sample(self.values, k=min(len(self.values), self.rng.randint(0, 3)))]
        self.block.add_op(prim.Return.make(returned))
        attrs = {
            "sym_name": "main",
            "arg_names": tuple(f"x{i}" for i in range(len(self.args))),
            "arg_strides": tuple(self.arg_strides),
            "results": tuple(("value", k) for k in range(len(returned))),
        }
        func = prim.Func.make([], [], attrs, [Region(self.block)])
        return ModuleOp([func])

    def _argument(self) -> None:
        shape = [self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 4))]
        x = torch.randn(shape)
        if self.rng.random() < 0.3:
            order = list(range(len(shape)))
            self.rng.shuffle(order)
            x = x.permute(order).contiguous().permute([order.index(i) for i in range(len(order))])
        strides = tuple(x.stride())
        self.args.append(x)
        self.arg_strides.append(None if strides == contiguous_strides(shape) else strides)
        block_arg = self.block.insert_arg(tensor_type(shape, BY_TORCH[x.dtype]), len(self.block.args))
        self.values.append(block_arg)

    def _add(self, op: Op) -> SSAValue:
        op.verify()
        self.block.add_op(op)
        return op.results[0]

    def _pick(self) -> SSAValue:
        recent = self.values[-6:]
        return self.rng.choice(recent if self.rng.random() < 0.7 else self.values)

    def _step(self) -> None:
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("_op_")]
        weights = [6 if k.__name__ in ("_op_binary", "_op_unary", "_op_reduce_and_spread") else 1 for k in kinds]
        made = self.rng.choices(kinds, weights)[0](self._pick())
        if made is not None:
            self.values.append(made)

    def _spread(self, x: SSAValue, shape: tuple[int, ...]) -> SSAValue | None:
        """The value broadcast to a shape, if it can be."""
        t = prim.tensor(x)
        if t.rank > len(shape):
            return None
        dims = tuple(range(len(shape) - t.rank, len(shape)))
        if any(s not in (1, shape[d]) for s, d in zip(t.shape, dims, strict=True)):
            return None
        return x if t.shape == shape else self._add(prim.broadcast(x, shape, dims))

    def _partner(self, x: SSAValue) -> SSAValue:
        """A value of the same shape."""
        shape = prim.tensor(x).shape
        for _ in range(4):
            y = self._spread(self._pick(), shape)
            if y is not None:
                return y
        return self._add(prim.full(self.rng.choice((0.5, 2.0)), prim.tensor(x)))

    def _op_unary(self, x: SSAValue) -> SSAValue:
        return self._add(prim.elementwise(self.rng.choice(UNARY), x))

    def _op_binary(self, x: SSAValue) -> SSAValue:
        pair = [x, self._partner(x)]
        self.rng.shuffle(pair)
        return self._add(prim.elementwise(self.rng.choice(BINARY), *pair))

    def _op_where(self, x: SSAValue) -> SSAValue:
        y = self._partner(x)
        condition = self._add(prim.elementwise("lt", x, y))
        return self._add(prim.elementwise("where", condition, x, y))

    def _op_cast(self, x: SSAValue) -> SSAValue:
        zero = self._add(prim.full(0.0, prim.tensor(x)))
        positive = self._add(prim.elementwise("gt", x, zero))
        assert prim.tensor(positive).dtype == BOOL
        return self._add(prim.cast(positive, F32))

    def _op_permute(self, x: SSAValue) -> SSAValue:
        perm = list(range(prim.tensor(x).rank))
        self.rng.shuffle(perm)
        return self._add(prim.permute(x, tuple(perm)))

    def _op_reshape(self, x: SSAValue) -> SSAValue:
        left = int(prim.tensor(x).numel)
        shape = []
        while left > 1 and len(shape) < 3:
            size = self.rng.choice([d for d in range(1, left + 1) if left % d == 0])
            shape.append(size)
            left //= size
        return self._add(prim.reshape(x, (*shape, left)))

    def _op_slice(self, x: SSAValue) -> SSAValue:
        starts, steps, shape = [], [], []
        for size in prim.tensor(x).shape:
            starts.append(self.rng.randrange(size) if self.rng.random() < 0.4 else 0)
            steps.append(self.rng.choice((1, 1, 2)))
            shape.append(self.rng.randint(1, (size - starts[-1] + steps[-1] - 1) // steps[-1]))
        t = prim.tensor(x).with_(shape=shape)
        return self._add(prim.Slice.make([x], [t], {"starts": starts, "steps": steps}))

    def _op_flip(self, x: SSAValue) -> SSAValue:
        dims = tuple(i for i in range(prim.tensor(x).rank) if self.rng.random() < 0.5)
        return self._add(prim.Flip.make([x], [x.type], {"dims": dims}))

    def _op_pad(self, x: SSAValue) -> SSAValue:
        shape = prim.tensor(x).shape
        low = [self.rng.choice((0, 0, 1)) for _ in shape]
        high = [self.rng.choice((0, 0, 2, -1)) if s > 1 else 0 for s in shape]
        t = prim.tensor(x).with_(shape=[a + s + b for a, s, b in zip(low, shape, high, strict=True)])
        return self._add(prim.Pad.make([x], [t], {"low": low, "high": high, "value": 0.25}))

    def _op_concat(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        if t.rank == 0:
            return None
        dim, parts = self.rng.randrange(t.rank), [x, self._partner(x)]
        shape = list(t.shape)
        shape[dim] *= 2
        return self._add(prim.Concat.make(parts, [t.with_(shape=shape)], {"dim": dim}))

    def _op_take(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        if t.rank == 0:
            return None
        dim, count = self.rng.randrange(t.rank), self.rng.choice(SIZES)
        start, step = (0, 1) if count <= t.shape[dim] else (0, 0)
        index = self._add(prim.Iota.make([], [tensor_type([count], I64)], {"dim": 0, "start": start, "step": step}))
        shape = (*t.shape[:dim], count, *t.shape[dim + 1 :])
        return self._add(prim.Take.make([x, index], [t.with_(shape=shape)], {"dim": dim}))

    def _op_gather(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        if t.rank == 0:
            return None
        dim = self.rng.randrange(t.rank)
        index = self._add(prim.Iota.make([], [t.with_(dtype=I64)], {"dim": dim, "start": 0, "step": 1}))
        return self._add(prim.Gather.make([x, index], [x.type], {"dim": dim}))

    def _op_reduce(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        dims = tuple(i for i in range(t.rank) if self.rng.random() < 0.5)
        return self._add(prim.reduce(self.rng.choice(("sum", "max", "min")), x, dims)) if dims else None

    def _op_reduce_and_spread(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        if t.rank == 0:
            return None
        dim = self.rng.choice((t.rank - 1, self.rng.randrange(t.rank)))
        row = self._add(prim.reduce(self.rng.choice(("sum", "max")), x, (dim,)))
        spread = self._add(prim.broadcast(row, t.shape, tuple(i for i in range(t.rank) if i != dim)))
        return self._add(prim.elementwise("sub", x, spread))

    def _op_scan(self, x: SSAValue) -> SSAValue | None:
        t = prim.tensor(x)
        if t.rank == 0:
            return None
        attrs = {"kind": self.rng.choice(("sum", "max")), "dim": self.rng.randrange(t.rank)}
        return self._add(prim.Scan.make([x], [x.type], attrs))

    def _op_library(self, x: SSAValue) -> SSAValue:
        """A call into ATen, whose operand has to lie in memory."""
        strides = contiguous_strides(prim.tensor(x).shape)
        if self.rng.random() < 0.3 and prim.tensor(x).rank == 2:
            strides = tuple(reversed(contiguous_strides(tuple(reversed(prim.tensor(x).shape)))))
        default = strides == contiguous_strides(prim.tensor(x).shape)
        attrs = {"target": "aten.atan.default", "operands": ("self",)}
        if not default:
            attrs |= {"operand_strides": (strides,), "strides": (strides,)}
        return self._add(kernel.Extern.make([x], [x.type], attrs))
