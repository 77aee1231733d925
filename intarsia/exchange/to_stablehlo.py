"""`--emit stablehlo`: a module at the levels `aten`, `prim` or `kernel` as a module of StableHLO, in the text form that JAX prints.

Each function becomes one, each fused kernel a function that it calls. Library calls are written out before (`spelled`). What is taken are the
tables below; all else is refused by name. Functions that StableHLO has no operation for (erf, sinh, ...) are those of CHLO, its companion.
An index outside of a dimension, an IndexError in ours, has no error there: StableHLO moves it inside, or writes nothing.
"""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation

from ..ir.dialects import kernel, prim
from ..ir.syntax import Op
from .spelled import spelled
from .stablehlo_rules import CALLS, PRIMS
from .stablehlo_scalars import of_scalars
from .stablehlo_text import Rule, Value, Writer, tensor_text


def stablehlo(module: ModuleOp, locations: bool = True) -> str:
    """The module as text.

    Raises:
        ExchangeError: an operation, a dtype or a symbolic size that is not written; it names the user's line.
    """
    module = spelled(module)
    functions: list[str] = []
    for func in (op for op in module.body.block.ops if isinstance(op, prim.Func)):
        _Function(re.sub("[^A-Za-z0-9_]", "_", str(func["sym_name"])), func.block_body, functions, locations, True)
    return "module {\n" + "".join(functions) + "}\n"


class _Function(Writer):
    """One function: values are named as they are met, each operation is a few lines."""

    def __init__(self, name: str, block: Block, functions: list[str], locations: bool, public: bool) -> None:
        super().__init__(locations)
        self.functions = functions
        place = len(functions)
        functions.append("")
        for k, arg in enumerate(block.args):
            self.known[arg] = Value(f"%arg{k}", *self.kind(arg))
        results: list[Value] = []
        for op in block.ops:
            self.at = op
            if isinstance(op, prim.Return | kernel.Yield):
                results = self.operands(op)
            else:
                self._operation(op)
        types = ", ".join(v.type for v in results)
        self.lines.append(f"return {', '.join(v.name for v in results)} : {types}" if results else "return")
        given = ", ".join(f"{self.known[a].name}: {self.known[a].type}" for a in block.args)
        head = f"  func.func {'public' if public else 'private'} @{name}({given}) -> ({types}) {{\n"
        functions[place] = head + "".join(f"    {line}\n" for line in self.lines) + "  }\n"

    def _operation(self, op: Operation) -> None:
        assert isinstance(op, Op)
        if isinstance(op, kernel.Fused):
            self._kernel(op)
            return
        rule: Rule | None
        if isinstance(op, kernel.Extern):
            rule = None if op.get("binds") else CALLS.get(str(op["target"]))
        else:
            rule = of_scalars if isinstance(op, prim.Elementwise) else PRIMS.get(type(op))
        if rule is None:
            raise self.refused("this library call" if isinstance(op, kernel.Extern) else "this operation")
        made = rule(self, op)
        for value, found in zip(op.results, made if isinstance(made, list) else [made], strict=True):
            shape, element = self.kind(value)
            if (found.shape, found.element) != (shape, element):
                raise self.refused(f"a result of {found.type} in the place of {tensor_text(shape, element)}")
            self.known[value] = found

    def _kernel(self, op: kernel.Fused) -> None:
        """A call of a function of its own."""
        name = f"kernel_{sum(text.startswith('  func.func private') for text in self.functions)}"
        _Function(name, op.block_body, self.functions, self.locations, public=False)
        kinds, given = [self.kind(r) for r in op.results], self.operands(op)
        types = ", ".join(tensor_text(*kind) for kind in kinds)
        call = f"call @{name}({', '.join(v.name for v in given)}) : ({', '.join(v.type for v in given)}) -> ({types})"
        for value, made in zip(op.results, self.several(call, kinds), strict=True):
            self.known[value] = made
