"""`--emit linalg`: text for MLIR, in the dialects func, linalg, tensor, arith and math, of a module at the level `prim` or `kernel`.

Each operation becomes a `linalg.generic` over tensors of known sizes: loops and fusion are then MLIR's own. At the level `kernel` each fused
kernel is a function of its own. What is taken is stated in `_statement`; all else is refused by name. Tried with xdsl-opt 0.74 and mlir-opt 16.

A maximum or minimum of floats is written out, because its name changed between releases of MLIR; NaN wins, as in ours. Sums are added in the
order of the iteration space, and functions are those of `math`: results are ours up to rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.prim import tensor
from ...ir.scalars import REDUCES
from ...ir.symbols import FloorDiv, Mod
from ...ir.syntax import Op
from .errors import InputError

_TYPES = {
    "f64": "f64",
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
}
_TYPES |= {"bool": "i1"}
_FLOAT = {
    **{name: f"arith.{name}f" for name in ("add", "sub", "mul", "div", "neg")},
    "abs": "math.absf",
    "fmod": "arith.remf",
    "pow": "math.powf",
    **{
        n: f"math.{n}"
        for n in ("floor", "ceil", "trunc", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt")
    },
    **{n: f"math.{n}" for n in ("rsqrt", "erf", "sin", "cos", "tan", "atan", "tanh", "atan2", "copysign")},
    "round": "math.roundeven",
}
_INTEGER = {
    **{"add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "max": "arith.maxsi", "min": "arith.minsi"},
    **{"and": "arith.andi", "or": "arith.ori", "xor": "arith.xori"},
}
_FLOAT_ORDER = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INTEGER_ORDER = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_START = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def linalg(module: ModuleOp) -> str:
    """The module as MLIR's text.

    Raises:
        InputError: an operation, a dtype or a symbolic size that is not written.
    """
    functions = []
    for func in (op for op in module.body.block.ops if isinstance(op, prim.Func)):
        fused = [op for op in func.block_body.ops if isinstance(op, kernel.Fused)]
        for number, op in enumerate(fused):
            functions.append(_Function(f"kernel_{number}", op.regions[0].block).text)
        if not fused:
            functions.append(_Function(str(func["sym_name"]), func.block_body).text)
    return "module {\n" + "".join(functions) + "}\n"


class _Function:
    """One function: values are named as they are met, each statement is a few lines."""

    def __init__(self, name: str, block: Block) -> None:
        self.names: dict[SSAValue, str] = {}
        self.count = 0
        given = ", ".join(f"{self._name(arg)}: {_type(arg)}" for arg in block.args)
        lines: list[str] = []
        results = ""
        for op in block.ops:
            if not op.results:
                results = ", ".join(map(_type, op.operands))
                lines.append(f"return {', '.join(self.names[v] for v in op.operands)} : {results}")
            else:
                assert isinstance(op, Op)
                lines += self._statement(op)
        head = f"  func.func @{re.sub('[^A-Za-z0-9_]', '_', name)}({given}) -> ({results}) {{\n"
        self.text = head + "".join(f"    {line}\n" for line in lines) + "  }\n"

    def _name(self, value: SSAValue | None = None) -> str:
        name, self.count = f"%v{self.count}", self.count + 1
        if value is not None:
            self.names[value] = name
        return name

    def _statement(self, op: Op) -> list[str]:
        """The lines of an operation: full, iota, casts, elementwise ones with a word in the tables above, broadcast, permute, slice, flip,
        reshape, reductions but argmax and argmin, and contractions without padding."""
        result = op.results[0]
        element, own = _element(result), _places(result)
        if isinstance(op, prim.Full):
            return self._parallel(op, self._number(op["value"], element))
        if isinstance(op, prim.Iota):
            return self._parallel(op, self._iota(op, element))
        if isinstance(op, prim.Cast):
            return self._parallel(op, self._cast(_element(op.operands[0]), element), [own])
        if isinstance(op, prim.Elementwise):
            return self._parallel(op, self._scalar(op), [own] * len(op.operands))
        if isinstance(op, prim.Broadcast):
            dims: Any = op["dims"]
            sizes, shape = _shape(op.operands[0]), _shape(result)
            read = [own[d] if size == shape[d] else "0" for d, size in zip(dims, sizes, strict=True)]
            return self._parallel(op, "linalg.yield %a0", [read])
        if isinstance(op, prim.Permute):
            perm: Any = op["perm"]
            return self._parallel(op, "linalg.yield %a0", [[own[perm.index(d)] for d in range(len(perm))]])
        if isinstance(op, prim.Slice | prim.Flip | prim.Reshape):
            return self._parallel(op, self._taken(op))
        if isinstance(op, prim.Reduce) and op["kind"] in REDUCES and REDUCES[str(op["kind"])].combine:
            return self._reduce(op)
        if isinstance(op, prim.Contract) and not op.get("padded", False):
            return self._contract(op)
        raise InputError(f"--emit linalg: {op.name} is not written")

    def _parallel(self, op: Op, body: str, reads: Sequence[Sequence[str]] = ()) -> list[str]:
        """linalg.generic over the places of the result; without `reads` an element is computed from its place alone."""
        own = _places(op.results[0])
        return self._generic(op, op.operands if reads else (), reads, own, ["parallel"] * len(own), body)

    def _generic(
        self,
        op: Op,
        operands: Sequence[SSAValue],
        reads: Sequence[Sequence[str]],
        writes: Sequence[str],
        kinds: Sequence[str],
        body: str,
        start: Any = None,
    ) -> list[str]:
        """linalg.generic with these maps; `body` names the operands' elements %a0, %a1 ... and the result's %acc."""
        result = op.results[0]
        made, empty = self._name(), self._name()
        lines = [f"{empty} = tensor.empty() : {_type(result)}"]
        if start is not None:
            number, filled = self._name(), self._name()
            lines.append(f"{number} = arith.constant {_literal(start, _element(result))} : {_element(result)}")
            lines.append(
                f"{filled} = linalg.fill ins({number} : {_element(result)}) outs({empty} : {_type(result)}) -> {_type(result)}"
            )
            empty = filled
        space = ", ".join(f"d{k}" for k in range(len(kinds)))
        maps = [f"affine_map<({space}) -> ({', '.join(read)})>" for read in (*reads, writes)]
        ins = (
            f" ins({', '.join(self.names[v] for v in operands)} : {', '.join(map(_type, operands))})"
            if operands
            else ""
        )
        words = ", ".join(f'"{kind}"' for kind in kinds)
        elements = [f"%a{k}: {_element(v)}" for k, v in enumerate(operands)] + [f"%acc: {_element(result)}"]
        self.names[result] = made
        return [
            *lines,
            f"{made} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{words}]}}{ins} "
            f"outs({empty} : {_type(result)}) {{",
            f"^bb0({', '.join(elements)}):",
            *(f"  {_typed_yield(line, _element(result))}" for line in body.splitlines()),
            f"}} -> {_type(result)}",
        ]

    def _number(self, value: Any, element: str) -> str:
        return f"%c = arith.constant {_literal(value, element)} : {element}\nlinalg.yield %c"

    def _iota(self, op: Op, element: str) -> str:
        step, start = op["step"], op["start"]
        lines = [f"%i = linalg.index {op['dim']} : index"]
        if _is_float(element):
            lines += ["%n = arith.index_cast %i : index to i64", f"%x = arith.sitofp %n : i64 to {element}"]
        else:
            lines += [f"%x = arith.index_cast %i : index to {element}"]
        times, plus = ("arith.mulf", "arith.addf") if _is_float(element) else ("arith.muli", "arith.addi")
        return "\n".join(
            [
                *lines,
                f"%s = arith.constant {_literal(step, element)} : {element}",
                f"%b = arith.constant {_literal(start, element)} : {element}",
                f"%m = {times} %x, %s : {element}",
                f"%r = {plus} %m, %b : {element}",
                "linalg.yield %r",
            ]
        )

    def _cast(self, old: str, new: str) -> str:
        if old == new:
            return "linalg.yield %a0"
        if new == "i1":
            zero = f"%z = arith.constant {_literal(0, old)} : {old}\n"
            test = "arith.cmpf une" if _is_float(old) else "arith.cmpi ne"
            return f"{zero}%r = {test}, %a0, %z : {old}\nlinalg.yield %r"
        if _is_float(old) and _is_float(new):
            if _bits(old) == _bits(new):  # between f16 and bf16
                return f"%w = arith.extf %a0 : {old} to f32\n%r = arith.truncf %w : f32 to {new}\nlinalg.yield %r"
            word = "arith.extf" if _bits(old) < _bits(new) else "arith.truncf"
        elif _is_float(old):
            word = "arith.fptosi"
        elif _is_float(new):
            word = "arith.uitofp" if old == "i1" else "arith.sitofp"
        elif _bits(old) < _bits(new):
            word = "arith.extui" if old == "i1" else "arith.extsi"
        else:
            word = "arith.trunci"
        return f"%r = {word} %a0 : {old} to {new}\nlinalg.yield %r"

    def _scalar(self, op: Op) -> str:
        name, element = op.name.partition(".")[2], _element(op.operands[0])
        real = _is_float(element)
        given = ", ".join(f"%a{k}" for k in range(len(op.operands)))
        if name == "where":
            return f"%r = arith.select {given} : {_element(op.results[0])}\nlinalg.yield %r"
        if name in _FLOAT_ORDER:
            test = f"arith.cmpf {_FLOAT_ORDER[name]}" if real else f"arith.cmpi {_INTEGER_ORDER[name]}"
            return f"%r = {test}, {given} : {element}\nlinalg.yield %r"
        if real and name in ("max", "min"):
            return f"{_extremum(name, '%a0', '%a1', element)}\nlinalg.yield %r"
        if name == "isnan":
            return f"%r = arith.cmpf uno, %a0, %a0 : {element}\nlinalg.yield %r"
        if name == "sigmoid":
            one = f"%o = arith.constant {_literal(1, element)} : {element}\n"
            return (
                f"{one}%n = arith.negf %a0 : {element}\n%e = math.exp %n : {element}\n%p = arith.addf %o, %e : {element}\n"
                f"%r = arith.divf %o, %p : {element}\nlinalg.yield %r"
            )
        if name == "not":
            full = f"%o = arith.constant {'true' if element == 'i1' else '-1'} : {element}\n".replace(
                " : i1", "", element == "i1"
            )
            return f"{full}%r = arith.xori %a0, %o : {element}\nlinalg.yield %r"
        if name in ("shl", "shr", "floordiv", "mod") or name not in (_FLOAT if real else _INTEGER):
            raise InputError(f"--emit linalg: {op.name} of {tensor(op.operands[0]).dtype.name} is not written")
        return f"%r = {(_FLOAT if real else _INTEGER)[name]} {given} : {element}\nlinalg.yield %r"

    def _taken(self, op: Op) -> str:
        """The element of the operand that stands at a place of the result."""
        operand = op.operands[0]
        shape, found = _shape(op.results[0]), _shape(operand)
        lines = [f"%i{k} = linalg.index {k} : index" for k in range(len(shape))]
        places: list[str] = []

        def number(value: int) -> str:
            lines.append(f"%k{len(lines)} = arith.constant {value} : index")
            return f"%k{len(lines) - 1}"

        def both(word: str, a: str, b: str) -> str:
            lines.append(f"%k{len(lines)} = arith.{word} {a}, {b} : index")
            return f"%k{len(lines) - 1}"

        if isinstance(op, prim.Slice):
            rows: Any = zip(op["starts"], op["steps"], strict=True)  # type: ignore[arg-type]
            for k, (start, step) in enumerate(rows):
                places.append(both("addi", number(_size(start)), both("muli", f"%i{k}", number(_size(step)))))
        elif isinstance(op, prim.Flip):
            turned: Any = op["dims"]
            places = [both("subi", number(n - 1), f"%i{k}") if k in turned else f"%i{k}" for k, n in enumerate(found)]
        else:
            line = number(0)
            for k, size in enumerate(shape):
                line = both("addi", both("muli", line, number(size)), f"%i{k}")
            for size in reversed(found):
                places.insert(0, both("remsi", line, number(max(size, 1))))
                line = both("divsi", line, number(max(size, 1)))
        lines.append(f"%r = tensor.extract {self.names[operand]}[{', '.join(places)}] : {_type(operand)}")
        return "\n".join([*lines, "linalg.yield %r"])

    def _reduce(self, op: Op) -> list[str]:
        operand, element, kind = op.operands[0], _element(op.results[0]), str(op["kind"])
        gone: Any = op["dims"]
        rank = len(_shape(operand))
        if kind in ("max", "min"):
            start = _extreme(element, kind == "max")
        else:
            start = _START[kind]
        if _element(operand) != element:
            raise InputError(f"--emit linalg: {op.name} that changes its dtype is not written")
        if _is_float(element) and kind in ("max", "min"):
            joined = _extremum(kind, "%acc", "%a0", element)
        else:
            words = _FLOAT if _is_float(element) else _INTEGER
            joined = f"%r = {words[REDUCES[kind].combine or '']} %acc, %a0 : {element}"
        body = f"{joined}\nlinalg.yield %r"
        every = [f"d{k}" for k in range(rank)]
        stay = [name for k, name in enumerate(every) if k not in gone]
        kinds = ["reduction" if k in gone else "parallel" for k in range(rank)]
        return self._generic(op, [operand], [every], stay, kinds, body, start)

    def _contract(self, op: Op) -> list[str]:
        element, old = _element(op.results[0]), _element(op.operands[0])
        rank, reduced, maps = len(_shape(op.results[0])), op["reduced"], op["maps"]
        count = rank + len(reduced)  # type: ignore[arg-type]
        reads = [[_affine(sympy.sympify(expr)) for expr in one] for one in maps]  # type: ignore[union-attr, misc]
        widen = [f"%w{k} = arith.extf %a{k} : {old} to {element}" for k in range(2)] if old != element else []
        a, b = ("%w0", "%w1") if widen else ("%a0", "%a1")
        body = [
            *widen,
            f"%m = arith.mulf {a}, {b} : {element}",
            f"%r = arith.addf %acc, %m : {element}",
            "linalg.yield %r",
        ]
        kinds = ["parallel"] * rank + ["reduction"] * (count - rank)
        return self._generic(op, op.operands, reads, _places(op.results[0]), kinds, "\n".join(body), 0)


def _affine(expr: Any) -> str:
    """An index expression as MLIR's affine text."""
    if isinstance(expr, sympy.Add):
        return " + ".join(_affine(a) for a in expr.args)
    if isinstance(expr, sympy.Mul):
        return " * ".join(f"({_affine(a)})" for a in sorted(expr.args, key=lambda a: a.is_number))
    if isinstance(expr, FloorDiv):
        return f"({_affine(expr.args[0])}) floordiv {expr.args[1]}"
    if isinstance(expr, Mod):
        return f"({_affine(expr.args[0])}) mod {expr.args[1]}"
    if expr.is_Symbol or expr.is_Integer:
        return str(expr)
    raise InputError(f"--emit linalg: the index {expr} is not written")


def _size(value: Any) -> int:
    if isinstance(value, int) or getattr(value, "is_Integer", False):
        return int(value)
    raise InputError(f"--emit linalg: the size {value} is a symbol: give the module sizes that are numbers")


def _shape(value: SSAValue) -> tuple[int, ...]:
    return tuple(_size(n) for n in tensor(value).shape)


def _places(value: SSAValue) -> list[str]:
    """The dimensions of the value as names of an affine map."""
    return [f"d{k}" for k in range(len(_shape(value)))]


def _element(value: SSAValue) -> str:
    name = tensor(value).dtype.name
    if name not in _TYPES:
        raise InputError(f"--emit linalg: the dtype {name} is not written")
    return _TYPES[name]


def _type(value: SSAValue) -> str:
    return f"tensor<{''.join(f'{n}x' for n in _shape(value))}{_element(value)}>"


def _is_float(element: str) -> bool:
    return element.startswith(("f", "bf"))


def _bits(element: str) -> int:
    return int(element.lstrip("bfi"))


def _extremum(kind: str, a: str, b: str, element: str) -> str:
    """The larger or smaller of two floats, or the one that is NaN, as %r."""
    order = "ogt" if kind == "max" else "olt"
    return (
        f"%p = arith.cmpf {order}, {a}, {b} : {element}\n%q = arith.cmpf uno, {a}, {a} : {element}\n"
        f"%first = arith.ori %p, %q : i1\n%r = arith.select %first, {a}, {b} : {element}"
    )


def _extreme(element: str, lowest: bool) -> float | int:
    """What a maximum (`lowest`) or a minimum begins with."""
    if _is_float(element):
        return -math.inf if lowest else math.inf
    bits = _bits(element)
    return -(1 << (bits - 1)) if lowest else (1 << (bits - 1)) - 1


_INFINITE = {"f64": ("7FF0", "FFF0", "7FF8", 12), "f32": ("7F80", "FF80", "7FC0", 4)}
_INFINITE |= {"f16": ("7C00", "FC00", "7E00", 0), "bf16": ("7F80", "FF80", "7FC0", 0)}


def _literal(value: Any, element: str) -> str:
    """A constant's text; what is not finite is written by its bits."""
    if element == "i1":
        return "1" if value else "0"
    if not _is_float(element):
        return str(int(value))
    number = float(value)
    if math.isfinite(number):
        return f"{number:.17e}" if element == "f64" else f"{number:.9e}"
    high, low, nan, zeros = _INFINITE[element]
    return "0x" + (nan if math.isnan(number) else high if number > 0 else low) + "0" * zeros


def _typed_yield(line: str, element: str) -> str:
    return f"{line} : {element}" if line.startswith("linalg.yield") else line
