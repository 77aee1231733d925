"""Numbers that count the rounds of a loop: the least and the greatest they are whenever the loop's body runs.

    n = 0; while n < 64 and ...: n = n + 1        n is 0 to 63

Proved by induction over the rounds: a carried integer that begins with a known number and grows by a known one is never less than that
number. It is less than N where the condition says so, of itself or through a truth that is carried: one that each round computes of
the next number. Nothing else is known of any number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...ir.dialects.prim import Func
from ...ir.interpreter.loops import find_function
from ...ir.regions import WHILE_LOOP
from ...ir.syntax import Op
from ...ir.types import TensorType

__all__ = ["Bounds", "counters"]

# A comparison of a number with a constant that bounds it from above, and what is taken off the constant for the greatest number.
_ABOVE = {"aten.lt.Scalar": 1, "aten.le.Scalar": 0}
_NOT_ABOVE = {"aten.ge.Scalar": 1, "aten.gt.Scalar": 0}  # the same where it is not true
_SAME_TRUTH = ("aten.clone.default", "aten.alias.default")
_AND = ("aten.logical_and.default", "aten.bitwise_and.Tensor")


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest that a number is."""

    least: int
    most: int


def counters(loop: Op) -> dict[int, Bounds]:
    """The bounds of what an `aten` while_loop carries, by number, as far as they are known."""
    if loop.name != WHILE_LOOP:
        return {}
    module = cast(Operation, loop.parent_op()).parent_op()
    condition, body = (find_function(module, str(loop[name])) for name in ("condition", "body"))  # type: ignore[arg-type]
    assert condition is not None and body is not None
    names = list(loop["operands"])
    carried = [value for name, value in zip(names, loop.operands, strict=True) if str(name).startswith("carried.")]
    found: dict[int, Bounds] = {}
    for k, value in enumerate(carried):
        first, step = _constant(value), _step(body, k)
        if first is None or step is None:
            continue
        greatest = [most for most in _greatest(condition, body, k) if first <= most]
        if greatest:
            found[k] = Bounds(first, min(greatest))
    return found


def _constant(value: SSAValue) -> int | None:
    """The integer that a value without dimensions is."""
    value = _through(value, _SAME_TRUTH)
    t = value.type
    if not isinstance(value, OpResult) or value.op.name != "aten.full.default" or not isinstance(t, TensorType):
        return None
    fill = cast(Op, value.op).get("fill_value")
    return fill if type(fill) is int and t.shape == () and t.dtype.name == "i64" else None


def _step(body: Func, k: int) -> int | None:
    """By how much a round makes the carried number greater; None: not known, or less."""
    made = _added(_through(_returned(body)[k], _SAME_TRUTH), body.block_body.args[k])
    return made if made is not None and made >= 0 else None


def _added(value: SSAValue, argument: SSAValue) -> int | None:
    """The constant c where the value is `argument + c`."""
    if value is argument:
        return 0
    op = value.owner
    if not isinstance(op, Op) or op.name != "aten.add.Tensor" or len(op.operands) != 1 or op.get("alpha", 1) != 1:
        return None
    other = op.get("other")
    before = _added(_through(op.operands[0], _SAME_TRUTH), argument) if type(other) is int else None
    return None if before is None else before + cast(int, other)


def _greatest(condition: Func, body: Func, k: int) -> Iterator[int]:
    """What the number is not above whenever the body runs, as long as it was not above it at first."""
    number = condition.block_body.args[k]
    for truth in _conjuncts(_returned(condition)[0]):
        most = _most(truth, number, 0)
        if most is not None:
            yield most
        if isinstance(truth, BlockArgument):  # a truth that each round computes of the next number
            j, step = truth.index, _step(body, k)
            if j < len(_returned(body)) and step is not None:
                for each in _conjuncts(_returned(body)[j]):
                    most = _most(each, body.block_body.args[k], step)
                    if most is not None:
                        yield most


def _most(truth: SSAValue, argument: SSAValue, ahead: int) -> int | None:
    """The greatest that `argument + ahead` is where the value is true."""
    op, table = truth.owner, _ABOVE
    if isinstance(op, Op) and op.name == "aten.logical_not.default":
        op, table = _through_truth(op.operands[0]).owner, _NOT_ABOVE
    if not isinstance(op, Op) or op.name not in table or type(op.get("other")) is not int:
        return None
    if _added(_through(op.operands[0], _SAME_TRUTH), argument) != ahead:
        return None
    return cast(int, op["other"]) - table[op.name]


def _conjuncts(value: SSAValue) -> Iterator[SSAValue]:
    """What is true where a value is."""
    value = _through_truth(value)
    op = value.owner
    if isinstance(op, Op) and op.name in _AND and all(_is_truth(v) for v in op.operands):
        for operand in op.operands:
            yield from _conjuncts(operand)
    else:
        yield value


def _through_truth(value: SSAValue) -> SSAValue:
    """What is as true as a value: behind `x != 0` of a truth, and copies."""
    while True:
        value = _through(value, _SAME_TRUTH)
        op = value.owner
        if (
            not isinstance(op, Op)
            or op.name != "aten.ne.Scalar"
            or op.get("other") != 0
            or not _is_truth(op.operands[0])
        ):
            return value
        value = op.operands[0]


def _is_truth(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.name == "bool"


def _through(value: SSAValue, names: tuple[str, ...]) -> SSAValue:
    while isinstance(value.owner, Op) and value.owner.name in names:
        value = value.owner.operands[0]
    return value


def _returned(func: Func) -> list[SSAValue]:
    last = func.block_body.last_op
    assert last is not None
    return list(last.operands)
