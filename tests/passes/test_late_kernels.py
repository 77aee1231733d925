"""horizontal-fusion moves tiny kernels in front of their first readers: whatever reads what, each stands behind what it reads."""

import random

import pytest

from intarsia.ir.dialects import loop, prim
from intarsia.ir.text import parse_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import registry

KIND = '!prim.tensor<[8, 8], f32, "cuda:0">'
PASSES = "layout,lower,chunk-reductions,split-launches,cooperate,tile-products,online,block,horizontal-fusion"


def program(chance: random.Random) -> str:
    """A function of products, tiny kernels and views that read one another."""
    lines = []
    for number in range(14):
        values = ["%a", *(f"%{k}" for k in range(number))]
        kind, one, other = chance.choice(["mm", "tiny", "tiny", "view"]), chance.choice(values), chance.choice(values)
        if kind == "mm":
            text = f'kernel.extern<aten.mm.default>({one}, {other}) {{operands = ["self", "mat2"]}} : {KIND}'
        elif kind == "view":
            text = f"prim.permute({one}) {{perm = [1, 0]}} : {KIND}"
        else:
            body = f"^bb0(%x: {KIND}, %y: {KIND}):\n %z = prim.add(%x, %y) : {KIND}\n kernel.yield(%z)"
            given = other if other != one else "%b"
            text = f"kernel.fused({one}, {given}) ({{\n{body}\n}}) : {KIND}"
        lines.append(f"%{number} = {text}")
    returned = ", ".join(f"%{k}" for k in sorted(chance.sample(range(14), 5)))
    body = "\n".join(lines)
    return (
        f"prim.func @main() {{symbols = []}} ({{\n^bb0(%a: {KIND}, %b: {KIND}):\n{body}\nprim.return({returned})\n}})"
    )


@pytest.mark.parametrize("seed", range(40))
def test_order(seed: int) -> None:
    module = parse_module(program(random.Random(seed)))
    run_pipeline(CompileContext(), module, registry().parse(PASSES))
    (func,) = [op for op in module.ops if isinstance(op, prim.Func)]
    ops = list(func.block_body.ops)
    place = {op: k for k, op in enumerate(ops)}
    assert any(isinstance(op, loop.Launch) for op in ops) or seed
    for op in ops:
        assert all(place.get(value.owner, -1) < place[op] for value in op.operands), str(module)
