"""Positions that a program computes from numbers of narrow dtypes: what wraps or is rounded does so in index expressions too."""

from __future__ import annotations

import random

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import prim
from intarsia.ir.dtypes import BY_NAME, I64, DType
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.symbols import FloorDiv, Mod, interval, symbol
from intarsia.ir.types import tensor_type
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.graph.attention.mask_kind import CAUSAL, FULL, mask_kind
from intarsia.passes.pipeline import registry

INTEGERS = ("i64", "i32", "i16", "i8", "u8", "u16", "u32")
STEPS = ("cast", "add", "sub", "mul", "neg", "abs", "max", "min", "floordiv", "mod")
NUMBERS = (1, 2, 3, 7, 100, 127, 200, 255, 257, 30000, 1 << 20, (1 << 31) - 1)
PLACES = 97


def steps(rng: random.Random, block: Block, value: SSAValue, dtypes: tuple[str, ...], length: int) -> SSAValue:
    """A chain of operations with numbers, the dtype changing on the way."""

    def add(op: prim.PrimOp) -> SSAValue:
        block.add_op(op)
        return op.results[0]

    for _ in range(length):
        kind: DType = prim.tensor(value).dtype
        name = rng.choice(STEPS if kind.is_integer else STEPS[:4])
        if name == "cast":
            value = add(prim.cast(value, BY_NAME[rng.choice(dtypes)]))
        elif name in ("neg", "abs"):
            value = add(prim.elementwise(name, value))
        else:
            number: int | float = rng.choice([n for n in NUMBERS if n <= kind.exact[1]])
            if kind.is_float:
                number = float(number)
            value = add(prim.elementwise(name, value, add(prim.full(number, prim.tensor(value)))))
    return value


def program(seed: int) -> ModuleOp:
    """Elements of an argument at computed places: by `take`, whose index wraps from the end, or by `gather`."""
    rng = random.Random(seed)
    x = tensor_type([PLACES], BY_NAME["f32"], "cpu")
    block = Block(arg_types=[x])
    size = rng.choice((5, 130, 300))
    start, step = rng.choice((0, 1, -3, 250)), rng.choice((1, 2, -1, 5))
    like = tensor_type([size], BY_NAME[rng.choice(INTEGERS)], "cpu")
    iota = prim.Iota.make([], [like], {"dim": 0, "start": start, "step": step})
    block.add_op(iota)
    value = steps(rng, block, iota.results[0], INTEGERS, rng.randint(1, 4))
    wide = prim.cast(value, I64)
    places = prim.full(PLACES, wide.type)
    at = prim.elementwise("mod", wide.results[0], places.results[0])
    kind = rng.choice((prim.Take, prim.Gather))
    found = kind.make([block.args[0], at.results[0]], [x.with_(shape=[size])], {"dim": 0})
    block.add_ops([wide, places, at, found, prim.Return.make([found.results[0], wide.results[0]])])
    attrs = {"sym_name": "main", "symbols": (), "arg_names": ("x",), "arg_strides": (None,)}
    return ModuleOp([prim.Func.make([], [], attrs, [Region(block)])])


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_random_places(device: str) -> None:
    passes = registry().parse("canonicalize,constant-fold,cse,dce,fuse,layout,lower,keep,schedule,plan-buffers")
    x = torch.randn(PLACES)
    for seed in range(40):
        module = program(seed)
        wanted = run(module, [x])
        retarget(module, device)
        run_pipeline(CompileContext(), module, passes)
        for a, b in zip(run(module, [x]), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, msg=f"seed {seed}")


def test_masks_of_narrow_numbers() -> None:
    """A mask is called full or a triangle only where it is: positions of all dtypes, compared after some arithmetic."""
    dtypes = (*INTEGERS, "f32", "f16", "bf16")
    kinds: list[str | None] = []
    for seed in range(60):
        rng = random.Random(seed)
        size = rng.choice((9, 140, 300))
        block, sides = Block(), []
        length = rng.randint(0, 2)
        for d in (0, 1):
            iota = prim.Iota.make([], [tensor_type([size, size], I64, "cpu")], {"dim": d, "start": 0, "step": 1})
            block.add_op(iota)
            rows = random.Random(seed + rng.choice((0, 0, 7)))  # often the same steps on both sides
            sides.append(steps(rows, block, iota.results[0], dtypes, length))
        common = BY_NAME[rng.choice(dtypes)] if sides[0].type != sides[1].type else None
        if common is not None:
            casts = [prim.cast(v, common) for v in sides]
            block.add_ops(casts)
            sides = [c.results[0] for c in casts]
        mask = prim.elementwise(rng.choice(("ge", "ge", "gt", "le", "ne")), *sides)
        block.add_ops([mask, prim.Return.make([mask.results[0]])])
        attrs = {"sym_name": "main", "symbols": (), "arg_names": ()}
        value = run(ModuleOp([prim.Func.make([], [], attrs, [Region(block)])]), [])[0]
        kind = mask_kind(mask.results[0])
        kinds.append(kind)
        if kind is not None:
            assert torch.equal(value, torch.ones_like(value) if kind == FULL else torch.ones_like(value).tril()), seed
    assert kinds.count(CAUSAL) > 2 and kinds.count(None) > 20


def test_intervals_hold() -> None:
    """What an expression is at random points lies within its interval."""
    rng = random.Random(1)
    i, j, s = symbol("i0"), symbol("j0"), symbol("s0")
    ranges = {i: (0, s - 1), j: (-5, 11)}
    for _ in range(200):
        value = rng.choice((i, j, s))
        for _ in range(rng.randint(1, 4)):
            other = rng.choice((i, j, s, 3, -2, 10))
            step = rng.choice(("add", "mul", "floordiv", "mod", "sub"))
            positive = abs(int(other)) if isinstance(other, int) else 4
            value = {
                "add": value + other,
                "sub": value - other,
                "mul": value * other,
                "floordiv": FloorDiv(value, positive),
                "mod": Mod(value, positive),
            }[step]
        found = interval(value, ranges)
        if found is None:  # powers of what may be negative
            continue
        for _ in range(5):
            size = rng.randint(1, 1000)
            point = {s: size, i: rng.randint(0, size - 1), j: rng.randint(-5, 11)}
            assert found[0] <= int(value.subs(point)) <= found[1], (value, point)
