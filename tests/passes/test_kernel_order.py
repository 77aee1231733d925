"""The order of kernels: what updates an argument does not keep what it reads until the end of the program."""

from __future__ import annotations

from xdsl.ir import SSAValue

from intarsia.ir.dialects import prim
from intarsia.ir.syntax import Op
from intarsia.ir.text import parse_module
from intarsia.ir.types import TensorType
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import registry

STEPS = 8


def step(device: str) -> str:
    """A chain of products, each with a factor of its own that is computed of an argument; at the end sums of what they gave are added to arguments."""

    def kind(*shape: int) -> str:
        return f'!prim.tensor<{list(shape)}, f32, "{device}">'

    whole, side, row = kind(512, 512), kind(512, 192), kind(512)
    given = [f"%c{k}: {side}, %p{k}: {row}" for k in range(STEPS)]
    lines = []
    for k in range(STEPS):
        lines.append(f"%b{k} = prim.exp(%c{k}) : {side}")
        lines.append(f"%t{k} = prim.permute(%c{k}) {{perm = [1, 0]}} : {kind(192, 512)}")
        names = '["self", "mat1", "mat2"]'
        lines.append(
            f"%y{k} = kernel.extern<aten.addmm.default>(%y{k - 1}, %b{k}, %t{k}) {{operands = {names}}} : {whole}"
        )
    for k in range(STEPS):
        lines.append(f"%s{k} = prim.reduce<sum>(%y{k}) {{dims = [0]}} : {row}")
        lines.append(f"%u{k} = prim.add(%p{k}, %s{k}) : {row}")
    body, returned = "\n".join(lines), ", ".join(f"%u{k}" for k in range(STEPS))
    written = [[2 + 2 * k, k] for k in range(STEPS)]
    return (
        f"prim.func @main() {{symbols = [], mutations = {written}, results = []}} "
        f"({{\n^bb0(%y-1: {whole}, {', '.join(given)}):\n{body}\nprim.return({returned})\n}})"
    ).replace("%y-1", "%x")


def peak(ops: list[Op]) -> int:
    """The most bytes of results that are alive at once, but for those that are written where an argument is."""
    last: dict[SSAValue, int] = {}
    for number, op in enumerate(ops):
        for value in op.operands:
            while value.owner in ops and value.owner.name == "prim.permute":  # type: ignore[union-attr]
                value = value.owner.operands[0]  # type: ignore[union-attr]
            last[value] = number
    live = most = 0
    held: dict[SSAValue, int] = {}
    for number, op in enumerate(ops[:-1]):
        for result in op.results:
            if op.name != "prim.permute" and last.get(result, 0) < len(ops) - 1:
                assert isinstance(result.type, TensorType)
                held[result] = int(result.type.numel) * 4
        live = sum(held.values())
        most = max(most, live)
        held = {v: size for v, size in held.items() if last.get(v, 0) > number}
    return most


def test_updates_run_when_what_they_read_is_there() -> None:
    """The order of the program would keep all products to its end."""
    module = parse_module(step("cuda:0"))
    run_pipeline(CompileContext(), module, registry().parse("fuse"))
    (func,) = [op for op in module.ops if isinstance(op, prim.Func)]
    ops = [op for op in func.block_body.ops if isinstance(op, Op)]
    assert peak(ops) <= 3 * 512 * 512 * 4
