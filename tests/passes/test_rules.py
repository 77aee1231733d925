"""The rules of canonicalize and constant-fold, cse and dce: the same bits before and after, and fast on long programs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import prim
from intarsia.ir.dtypes import F32
from intarsia.ir.interpreter.run import run
from intarsia.ir.symbols import substitute, symbol
from intarsia.ir.text import parse_module
from intarsia.ir.types import TensorType, tensor_type
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.levels import module_levels
from intarsia.passes.graph.canonicalize import RULES as CANONICAL
from intarsia.passes.graph.constant_fold import RULES as FOLDS
from intarsia.passes.pipeline import registry

HERE = Path(__file__).parent
SMALL = ("canonicalize", "constant_fold", "cse", "dce")
FILES = sorted(f for folder in SMALL for f in (HERE / folder).glob("*.ir"))
ROUNDS = {"double_cast.ir"}  # the one rule that drops a rounding, as torch.compile does
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 2.5, 1e-40, 3e38]


def inputs(module: ModuleOp) -> list[Tensor]:
    """Values of every kind, infinities and signed zeros among them; size symbols are 3."""
    func = next(op for op in module.walk() if op.name == "prim.func")
    given = []
    for arg in func.regions[0].block.args:
        assert isinstance(arg.type, TensorType)
        shape = [int(substitute(d, {symbol("s0"): 3})) for d in arg.type.shape]
        count = torch.Size(shape).numel()
        dtype = arg.type.dtype.torch
        if dtype.is_floating_point:
            values = torch.tensor((SPECIAL * (count // len(SPECIAL) + 1))[:count], dtype=torch.float64)
        else:
            values = torch.arange(count) - count // 2
        given.append(values.to(dtype).reshape(shape))
    return given


def same_bits(a: Tensor, b: Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    signs = torch.equal(torch.signbit(a)[~a.isnan()], torch.signbit(b)[~b.isnan()])
    return signs and torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)) and torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_interpreter_gives_the_same_bits(path: Path) -> None:
    module = parse_module(path.read_text())
    if "effect" in path.read_text() or "division_by_zero" in path.name:
        pytest.skip("has no result to compare")
    given = inputs(module)
    before = run(module, given)
    for name in ("canonicalize", "constant-fold", "cse", "dce"):
        item = registry().make(name)
        if module_levels(module) & {item.level, *item.accepts}:
            item.apply(CompileContext(), module)
            module.verify()
    for a, b in zip(before, run(module, given), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert path.name in ROUNDS or same_bits(a, b), (a, b)


def test_every_rule_states_its_equation() -> None:
    for rules in (*CANONICAL.values(), *FOLDS.values()):
        for rule in rules:
            assert rule.__doc__ and "->" in rule.__doc__, rule


def long_program(count: int) -> ModuleOp:
    """A chain in which every pass finds work."""
    t = tensor_type([4, 8], F32)
    block = Block(arg_types=[t])
    value: SSAValue = block.args[0]
    while len(block.ops) < count:
        one = prim.full(1.0, t)
        scaled = prim.elementwise("mul", value, one.results[0])
        flat = prim.reshape(scaled.results[0], (32,))
        back = prim.reshape(flat.results[0], (4, 8))
        twins = [prim.elementwise("exp", back.results[0]) for _ in range(2)]
        total = prim.elementwise("add", twins[0].results[0], twins[1].results[0])
        signs = prim.elementwise("neg", total.results[0])
        again = prim.elementwise("neg", signs.results[0])
        dead = prim.elementwise("sin", again.results[0])
        block.add_ops([one, scaled, flat, back, *twins, total, signs, again, dead])
        value = again.results[0]
    block.add_op(prim.Return.make([value]))
    return ModuleOp([prim.Func.make([], [], {"sym_name": "main", "symbols": ()}, [Region(block)])])


def test_time_grows_with_the_length_of_the_program_only() -> None:
    """Ten times the operations take about ten times the time: a walk in a walk would take a hundred times."""
    seconds = []
    for count in (1000, 10000):
        module = long_program(count)
        start = time.process_time()
        for name in ("canonicalize", "constant-fold", "cse", "dce"):
            registry_pass = registry().make(name)
            registry_pass.apply(CompileContext(), module)
        seconds.append(time.process_time() - start)
        assert len(list(module.walk())) < count // 4
    assert seconds[1] < 40 * seconds[0] + 0.5
