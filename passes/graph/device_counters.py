"""device-counters: the number that counts a loop's rounds stays on the GPU; operations take it from there.

    u = read(n); x.select(0, u)             ->  x.index_select(0, n).squeeze(0)
    u = read(n); x.select_scatter(y, 0, u)  ->  x.index_copy(0, n, y)
    u = read(n); x > u                      ->  x > n

Read by the host, it is waited for in each round, and the loop cannot be part of a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.binding import late_names, mentioned
from ...ir.dialects.aten import aten_op
from ...ir.dialects.prim import Func, tensor
from ...ir.interpreter.loops import find_function
from ...ir.symbols import Dim
from ...ir.syntax import Op, line_of
from ...ir.types import TensorType
from ..analysis.counters import Bounds, counters
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import InFrontOf

READ = "aten._local_scalar_dense.default"


@dataclass(frozen=True)
class DeviceCounters(Pass):
    """Take the number of a loop's round from the GPU's memory where the host would wait for it."""

    name: ClassVar[str] = "device-counters"
    level: ClassVar[str] = "aten"
    before: ClassVar[tuple[str, ...]] = ("decompose",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in list(module.walk()):
            for k, bounds in counters(op).items() if isinstance(op, Op) else ():
                body = find_function(module, str(op["body"]))  # type: ignore[index]
                assert body is not None
                for read in _reads(body, k):
                    counter = _Counter(body, read, bounds)
                    missing = broken(takes_read(counter))
                    if missing is None:
                        counter.rewrite()
                        ctx.diagnostics.count(self.name, "reads")
                    else:
                        ctx.diagnostics.remark(self.name, "missed", partial(_missed, missing), line_of(read))


def _missed(missing: str) -> str:
    return f"the host reads the number of a round, as this does not hold: {missing}"


def _reads(body: Func, k: int) -> list[Op]:
    """The operations that read a carried number, or a copy of it."""
    argument, found = body.block_body.args[k], []
    for op in body.block_body.ops:
        value = op.operands[0] if op.name == READ else None
        while value is not None and isinstance(value.owner, Op) and value.owner.name == "aten.clone.default":
            value = value.owner.operands[0]
        if value is argument:
            found.append(cast(Op, op))
    return found


def takes_read(counter: _Counter) -> Clauses:
    """What holds of a read that the GPU does instead of the host."""
    yield all(map(counter.holds, counter.read.get("assumes", ()))), "what the program relies on follows from the bounds"
    for op in counter.users:
        yield op.name in _FORMS and counter.is_index_of(op), f"{op.name} can take a tensor in its place"


class _Counter:
    """A number that counts rounds, and what uses it.

    Args:
        read: the operation that binds its name.
    """

    def __init__(self, body: Func, read: Op, bounds: Bounds) -> None:
        self.read, self.bounds, self.number = read, bounds, read.operands[0]
        (self.name,) = late_names(read)
        self.users = [cast(Op, op) for op in body.block_body.ops if op is not read and self.name in mentioned(op)]

    def least(self, expression: Any) -> int | None:
        """The least that a linear expression in the number alone is."""
        ends = self._ends(expression)
        return None if ends is None else min(ends)

    def most(self, expression: Any) -> int | None:
        """The greatest."""
        ends = self._ends(expression)
        return None if ends is None else max(ends)

    def _ends(self, expression: Any) -> tuple[int, int] | None:
        parts = linear(expression, self.name)
        if parts is None:
            return None
        factor, rest = parts
        return factor * self.bounds.least + rest, factor * self.bounds.most + rest

    def holds(self, row: Sequence[Any]) -> bool:
        """Whether what the program relies on follows from the bounds."""
        relation, a, b = row
        least, most = self.least(b - a), self.most(b - a)
        if least is None or most is None:
            return False
        return least >= 0 if relation == "le" else least == most == 0 if relation == "eq" else least > 0 or most < 0

    def is_index_of(self, op: Op) -> bool:
        """Whether the operation uses the number only where it can take a tensor, and it is inside of what it indexes."""
        place, taken = _FORMS[op.name][0], op.literals
        expression = taken.pop(place, None)
        elsewhere = any(self.name in map(str, sympy.sympify(e).free_symbols) for e in _symbolic(list(taken.values())))
        types = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)]
        sizes = [size for t in types for size in t.shape if self.name in _names(size)]
        if elsewhere or sizes or "binds" in op.attributes or linear(expression, self.name) is None:
            return False
        if place == "other":
            return len(op.operands) == 1 and op.get("alpha", 1) == 1 and self._is_exact(op)
        if len({tensor(v).dtype for v in op.operands}) > 1:
            return False
        size = tensor(op.operands[0]).shape[int(op.get("dim", 0))]
        least, most = self.least(expression), self.most(expression)
        return isinstance(size, int) and least is not None and most is not None and least >= 0 and most < size

    def _is_exact(self, op: Op) -> bool:
        """Whether a tensor with the number gives what the number gives: the same dtype, of values that it holds exactly."""
        given, expression = tensor(op.operands[0]), op["other"]
        if given.dtype.name not in ("i64", "f32", "f64"):
            return False
        low, high = given.dtype.exact
        return low <= cast(int, self.least(expression)) and cast(int, self.most(expression)) <= high

    def rewrite(self) -> None:
        """Let all users take the tensor."""
        for op in self.users:
            place, form = _FORMS[op.name]
            front = InFrontOf(op)
            made = form(front, op, self._tensor(front, op[place]))
            op.results[0].replace_all_uses_with(made)
            op.detach()
            op.erase()
        self.read.detach()
        self.read.erase()

    def _tensor(self, front: InFrontOf, expression: Any) -> SSAValue:
        """A linear expression as a tensor without dimensions."""
        factor, rest = cast(tuple[int, int], linear(expression, self.name))
        value, kind = self.number, tensor(self.number)
        for name, other, nothing in (("mul", factor, 1), ("add", rest, 0)):
            if other != nothing:
                alpha = {"alpha": 1} if name == "add" else {}
                attrs = {"operands": ["self"], "other": other, **alpha}
                value = front.add(aten_op(f"aten.{name}.Tensor").make([value], [kind], attrs))
        return value


def linear(expression: Any, name: str) -> tuple[int, int] | None:
    """(a, b) where the expression is `a*name + b` with integers; None: it is not."""
    found = sympy.sympify(expression)
    symbols = [s for s in found.free_symbols if str(s) == name]
    if len(symbols) != len(found.free_symbols):
        return None
    if not symbols:
        return (0, int(found)) if found.is_Integer else None
    factor, rest = found.coeff(symbols[0], 1), found.coeff(symbols[0], 0)
    whole = factor.is_Integer and rest.is_Integer and (factor * symbols[0] + rest - found).expand() == 0
    return (int(factor), int(rest)) if whole else None


def _names(size: Dim) -> set[str]:
    return set() if isinstance(size, int) else {str(s) for s in size.free_symbols}


def _symbolic(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [e for value in values for e in _symbolic(value)]
    return [values] if isinstance(values, sympy.Basic) else []


def _row(front: InFrontOf, number: SSAValue) -> SSAValue:
    """n -> [n]"""
    kind = tensor(number).with_(shape=(1,))
    return front.add(aten_op("aten.view.default").make([number], [kind], {"operands": ("self",), "size": (1,)}))


def _select(front: InFrontOf, op: Op, number: SSAValue) -> SSAValue:
    """x.select(d, n) -> x.index_select(d, [n]).squeeze(d)"""
    x, d = op.operands[0], int(op["dim"])
    t = tensor(x)
    attrs = {"operands": ("self", "index"), "dim": d}
    kind = t.with_(shape=(*t.shape[:d], 1, *t.shape[d + 1 :]))
    row = front.add(aten_op("aten.index_select.default").make([x, _row(front, number)], [kind], attrs))
    attrs = {"operands": ("self",), "dim": d}
    return front.add(aten_op("aten.squeeze.dim").make([row], [op.results[0].type], attrs))


def _select_scatter(front: InFrontOf, op: Op, number: SSAValue) -> SSAValue:
    """x.select_scatter(y, d, n) -> x.index_copy(d, [n], y.unsqueeze(d))"""
    (x, y), d = op.operands, int(op["dim"])
    t = tensor(y)
    kind = t.with_(shape=(*t.shape[:d], 1, *t.shape[d:]))
    row = front.add(aten_op("aten.unsqueeze.default").make([y], [kind], {"operands": ("self",), "dim": d}))
    attrs = {"operands": ("self", "index", "source"), "dim": d}
    return front.add(
        aten_op("aten.index_copy.default").make([x, _row(front, number), row], [op.results[0].type], attrs)
    )


def _with_tensor(front: InFrontOf, op: Op, number: SSAValue) -> SSAValue:
    """x + n -> x + [n]"""
    taken = {k: v for k, v in op.literals.items() if k not in ("other", "operands", "strides", "operand_strides")}
    name = op.name.replace(".Scalar", ".Tensor")
    attrs = {"operands": ("self", "other"), **taken}
    return front.add(aten_op(name).make([op.operands[0], number], [op.results[0].type], attrs))


_Form = Callable[[InFrontOf, Op, SSAValue], SSAValue]
# The operations that can take a tensor: the argument in whose place, and how.
_FORMS: dict[str, tuple[str, _Form]] = {
    "aten.select.int": ("index", _select),
    "aten.select_scatter.default": ("index", _select_scatter),
    **{f"aten.{name}.Scalar": ("other", _with_tensor) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"aten.{name}.Tensor": ("other", _with_tensor) for name in ("add", "sub", "mul")},
}
