"""`prim.func`: a program, its arguments and what it gives back."""

from __future__ import annotations

from collections.abc import Set

from xdsl.ir import Operation, OpTraits
from xdsl.traits import IsolatedFromAbove, IsTerminator
from xdsl.utils.exceptions import VerifyException

from ..binding import check_bound, late_names
from ..literals import print_literal
from ..syntax import Op
from ..types import IndexType, TensorType


class Func(Op):
    """The program: `prim.func @main() {...} ({ ^bb0(%x: type, ...): ... prim.return(...) })`.

    Attributes, all lists over the arguments or the returned values:
        arg_names: what the user would call each argument; arg_strides: eager's strides in elements (none: contiguous);
        arg_static: true for parameters and buffers, whose identity is guarded;
        result_strides: eager's strides of each returned value;
        symbols: [name, argument, dimension (-1 when the argument itself is the integer, -2 - d: the stride of dimension d),
        lower, upper or none]; size_hints: [name, what it was in the call that was captured, roughly];
        results: how each of the user's results is made, in order: ["value", k] returned value k; ["input", i] argument i
            itself; ["alias", i, sizes, strides, offset] a view of argument i; ["alias_output", k, sizes, strides, offset]
            a view of returned value k; ["output", j] the very object that result j is; ["size", expression] a Python int;
            ["constant", literal] that literal; ["none"];
        mutations: [argument, k] pairs: returned value k is to be copied into the argument;
        owned: [argument, k] pairs of what a loop's body is carried: the argument may be written to on the way to returned value k; behind
            `plan-buffers` these are the ones that are, and the loop is given memory that nobody else sees;
        numbers: the arguments that are floats of the caller's, given as tensors of no dimension;
        writes_early: at the `buffer` level, something that can fail comes after a write to an argument;
        parameters, of `@constants` only: which arguments of `@main` it takes. What it returns are the last arguments of `@main`.
    """

    name = "prim.func"
    has_body = True
    at = "sym_name"
    arity = 0
    outputs = 0
    required = ("sym_name",)
    traits = OpTraits(lambda: (IsolatedFromAbove(),))

    def check(self) -> None:
        block = self.block_body
        args, last = list(block.args), block.last_op
        if last is None or not last.has_trait(IsTerminator):
            return  # the verifier of blocks says so, at the operation
        if not isinstance(last, Return):
            raise VerifyException(f"prim.func: ends in {last.name}, not in prim.return")
        for name, values, what in (
            ("arg_names", args, "arguments"),
            ("arg_strides", args, "arguments"),
            ("arg_static", args, "arguments"),
            ("result_strides", last.operands, "returned values"),
        ):
            if name in self.attributes and len(self[name]) != len(values):
                raise VerifyException(f"prim.func: {name} has {len(self[name])} entries for {len(values)} {what}")
        for name, values in (("arg_strides", args), ("result_strides", last.operands)):
            for strides, value in zip(self.get(name, ()), values, strict=False):
                if strides is not None and isinstance(value.type, TensorType) and len(strides) != value.type.rank:
                    raise VerifyException(f"prim.func: {name} has {print_literal(strides)} for {value.type}")
        for row in self.get("symbols", ()):
            self._check_symbol(row)
        for row in self.get("results", ()):
            limit = _RESULT_KINDS.get(row[0])
            if limit is None:
                raise VerifyException(f"prim.func: results: unknown kind '{row[0]}'; known: {', '.join(_RESULT_KINDS)}")
            self._check_number(row[1] if limit else 0, limit, "results")
        for row in self.get("mutations", ()):
            self._check_number(row[0], "argument", "mutations")
            self._check_number(row[1], "returned value", "mutations")
        for row in self.get("owned", ()):
            self._check_number(row[0], "argument", "owned")
            self._check_number(row[1], "returned value", "owned")
        for number in self.get("numbers", ()):
            self._check_number(number, "argument", "numbers")
        late: set[str] = set()
        for op in block.ops:
            late.update(late_names(op))  # from here on
            for inner in op.walk():
                self.check_names(inner, late)
        self.check_names(self, late)

    def check_names(self, op: Operation, late: Set[str] = frozenset()) -> None:
        """Check that an operation of this function uses bound symbols only; `late`: those that library calls in front of it bind.

        Raises:
            VerifyException: names the symbol.
        """
        names = {str(row[0]) for row in self.get("symbols", ())} | late
        check_bound(op, names, "argument (see `symbols` of prim.func)")

    def _check_symbol(self, row: tuple[object, ...]) -> None:
        if len(row) != 5:
            raise VerifyException(
                f"prim.func: symbols: {print_literal(row)} is not [name, argument, dimension, lower, upper]"
            )
        name, argument, dimension = row[:3]
        self._check_number(argument, "argument", "symbols")
        kind = self.block_body.args[argument].type  # type: ignore[call-overload]
        rank = len(getattr(kind, "shape", ()))
        given = isinstance(dimension, int) and -2 - rank < dimension < rank and dimension != -1  # -2 - d: stride d
        if not (dimension == -1 if isinstance(kind, IndexType) else given):
            raise VerifyException(f"prim.func: symbols: {name} is dimension {dimension} of argument {argument}, {kind}")

    def _check_number(self, number: object, what: str, where: str) -> None:
        last = self.block_body.last_op
        assert last is not None
        limits = {"argument": len(self.block_body.args), "returned value": len(last.operands)}
        if what in limits and not (isinstance(number, int) and 0 <= number < limits[what]):
            raise VerifyException(f"prim.func: {where}: there is no {what} {number}")


# kind of a result -> what its number counts
_RESULT_KINDS = {
    "value": "returned value",
    "input": "argument",
    "alias": "argument",
    "alias_output": "returned value",
    "output": "result",
    "size": "",
    "constant": "",
    "none": "",
}


class Return(Op):
    """Ends the program; its operands are the returned values."""

    name = "prim.return"
    outputs = 0
    is_pure = False
    traits = OpTraits(lambda: (IsTerminator(),))
