"""`--emit linalg`: text for MLIR, in the dialects func, linalg, tensor, arith and math, of a module at the level `aten`, `prim` or `kernel`.

Each operation becomes a `linalg.generic`: loops and fusion are then MLIR's own. Library calls are written out as far as they can be (`spelled`).
A size that is a symbol is `?`, and `tensor.dim` of an argument that has it. At the level `kernel` each fused kernel is a function of its own.
What is taken is stated in `_statement`; all else is refused by name. Tried with xdsl-opt 0.74 and mlir-opt 16 and 19.

A maximum or minimum of floats is written out, because its name changed between releases of MLIR; NaN wins, as in ours. Sums are added in the
order of the iteration space, and functions are those of `math`: results are ours up to rounding. An index outside of a dimension, an
IndexError in ours, is not looked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ...exchange.spelled import spelled
from ...exchange.spelled_out import is_written_out
from ...ir.dialects import kernel, prim
from ...ir.dialects.aten import AtenOp
from ...ir.dialects.prim import tensor
from ...ir.scalars import REDUCES
from ...ir.symbols import FloorDiv, Mod
from ...ir.syntax import Op, line_of
from ...ir.types import TensorType
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
    **{"and": "arith.andi", "or": "arith.ori", "xor": "arith.xori", "abs": "math.absi"},
}
_FLOAT_ORDER = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INTEGER_ORDER = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_START = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def linalg(module: ModuleOp) -> str:
    """The module as MLIR's text.

    Raises:
        InputError: an operation, a dtype or a size that is not written.
    """
    calls = [op for op in module.walk() if isinstance(op, kernel.Extern | AtenOp) or is_written_out(op)]
    if calls and not any(isinstance(op, kernel.Fused) for op in module.walk()):
        module = spelled(module, out=True)
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
        if any(not isinstance(arg.type, TensorType) for arg in block.args):
            raise InputError("--emit linalg: an argument that is a number is not written")
        given = ", ".join(f"{self._name(arg)}: {_type(arg)}" for arg in block.args)
        self.sizes: dict[Any, str] = {}
        self.outside: list[str] = []  # lines in front of the statement that is being written
        self._symbols(block)
        lines: list[str] = []
        results = ""
        for op in block.ops:
            if not op.results:
                results = ", ".join(map(_type, op.operands))
                lines.append(f"return {', '.join(self.names[v] for v in op.operands)} : {results}")
            else:
                assert isinstance(op, Op)
                statement = self._statement(op)
                lines += [*self.outside, *statement]
                self.outside.clear()
        head = f"  func.func @{re.sub('[^A-Za-z0-9_]', '_', name)}({given}) -> ({results}) {{\n"
        self.text = head + "".join(f"    {line}\n" for line in lines) + "  }\n"

    def _name(self, value: SSAValue | None = None) -> str:
        name, self.count = f"%v{self.count}", self.count + 1
        if value is not None:
            self.names[value] = name
        return name

    def _symbols(self, block: Block) -> None:
        """Each symbol that is the size of an argument is read in front of all else."""
        for arg in block.args:
            for k, size in enumerate(tensor(arg).shape):
                if not isinstance(size, int) and size.is_Symbol and size not in self.sizes:
                    place = self._outside(f"arith.constant {k} : index")
                    self.sizes[size] = self._outside(f"tensor.dim {self.names[arg]}, {place} : {_type(arg)}")

    def _outside(self, text: str) -> str:
        name = self._name()
        self.outside.append(f"{name} = {text}")
        return name

    def size(self, value: Any) -> str:
        """A size as a value of type index, computed in front of the statement."""
        if value in self.sizes:
            return self.sizes[value]
        if _is_number(value):
            return self._outside(f"arith.constant {int(value)} : index")
        words = {sympy.Add: "addi", sympy.Mul: "muli", FloorDiv: "divsi", Mod: "remsi"}
        word = next((w for kind, w in words.items() if isinstance(value, kind)), None)
        if word is None:
            raise InputError(f"--emit linalg: the size {value} is the size of no argument, and not written")
        made, *rest = [self.size(part) for part in value.args]
        for part in rest:
            made = self._outside(f"arith.{word} {made}, {part} : index")
        self.sizes[value] = made
        return made

    def _empty(self, value: SSAValue) -> str:
        given = ", ".join(self.size(n) for n in _shape(value) if not isinstance(n, int))
        return self._outside(f"tensor.empty({given}) : {_type(value)}")

    def _statement(self, op: Op) -> list[str]:
        """The lines of an operation: full, iota, casts, elementwise ones with a word in the tables above, broadcast, permute, slice, flip,
        reshape, pad, concat, take, gather, reductions (argmax and argmin are written out before) and contractions without padding."""
        result = op.results[0]
        element, own = _element(result), _places(result)
        if isinstance(op, prim.Full):
            return self._parallel(op, "\n".join([*self._numbered("%c", op["value"], element), "linalg.yield %c"]))
        if isinstance(op, prim.Iota):
            return self._parallel(op, self._iota(op, element))
        if isinstance(op, prim.Cast):
            return self._parallel(op, self._cast(_element(op.operands[0]), element), [own])
        if isinstance(op, prim.Elementwise):
            return self._parallel(op, self._scalar(op), [own] * len(op.operands))
        if isinstance(op, prim.Broadcast):
            dims: Any = op["dims"]
            sizes, shape = _shape(op.operands[0]), _shape(result)
            read = ["0" if size == 1 and shape[d] != 1 else own[d] for d, size in zip(dims, sizes, strict=True)]
            return self._parallel(op, "linalg.yield %a0", [read])
        if isinstance(op, prim.Permute):
            perm: Any = op["perm"]
            return self._parallel(op, "linalg.yield %a0", [[own[perm.index(d)] for d in range(len(perm))]])
        if isinstance(op, prim.After):
            self.names[result] = self.names[op.operands[0]]
            return []
        if isinstance(op, prim.Slice | prim.Flip | prim.Reshape | prim.Pad | prim.Concat):
            return self._parallel(op, _Body(self).moved(op))
        if isinstance(op, prim.Take | prim.Gather):
            first = op["dim"] if isinstance(op, prim.Take) else 0
            index = own[first : first + len(_shape(op.operands[1]))]  # type: ignore[operator, misc]
            return self._generic(op, op.operands[1:], [index], own, ["parallel"] * len(own), _Body(self).gathered(op))
        if isinstance(op, prim.Reduce) and op["kind"] in REDUCES and REDUCES[str(op["kind"])].combine:
            return self._reduce(op)
        if isinstance(op, prim.Contract) and not op.get("padded", False):
            return self._contract(op)
        what = f"{op.name}<{op['target']}>" if isinstance(op, kernel.Extern) else op.name
        raise InputError(f"--emit linalg: {what}{_from(op)} is not written")

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
        empty = self._empty(result)
        made = self._name()
        lines: list[str] = []
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

    def _numbered(self, name: str, value: Any, element: str) -> list[str]:
        """A number, or an expression over sizes, as `name`."""
        if isinstance(value, int | float):
            return [f"{name} = arith.constant {_literal(value, element)} : {element}"]
        if _is_float(element):
            whole = f"{name}_i = arith.index_cast {self.size(value)} : index to i64"
            return [whole, f"{name} = arith.sitofp {name}_i : i64 to {element}"]
        return [f"{name} = arith.index_cast {self.size(value)} : index to {element}"]

    def _iota(self, op: Op, element: str) -> str:
        lines = [f"%i = linalg.index {op['dim']} : index"]
        if _is_float(element):
            lines += ["%n = arith.index_cast %i : index to i64", f"%x = arith.sitofp %n : i64 to {element}"]
        else:
            lines += [f"%x = arith.index_cast %i : index to {element}"]
        times, plus = ("arith.mulf", "arith.addf") if _is_float(element) else ("arith.muli", "arith.addi")
        return "\n".join(
            [
                *lines,
                *self._numbered("%s", op["step"], element),
                *self._numbered("%b", op["start"], element),
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
            order = _INTEGER_ORDER[name].replace("s", "u", element == "i1")  # true is -1 to an order with signs
            test = f"arith.cmpf {_FLOAT_ORDER[name]}" if real else f"arith.cmpi {order}"
            return f"%r = {test}, {given} : {element}\nlinalg.yield %r"
        if element == "i1" and name in ("max", "min"):
            return f"%r = arith.{'ori' if name == 'max' else 'andi'} {given} : i1\nlinalg.yield %r"
        if real and name in ("max", "min"):
            return f"{_extremum(name, '%a0', '%a1', element)}\nlinalg.yield %r"
        if name == "neg" and not real and element != "i1":
            return f"%z = arith.constant 0 : {element}\n%r = arith.subi %z, %a0 : {element}\nlinalg.yield %r"
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
            raise InputError(
                f"--emit linalg: {op.name} of {tensor(op.operands[0]).dtype.name}{_from(op)} is not written"
            )
        return f"%r = {(_FLOAT if real else _INTEGER)[name]} {given} : {element}\nlinalg.yield %r"

    def _reduce(self, op: Op) -> list[str]:
        operand, element, kind = op.operands[0], _element(op.results[0]), str(op["kind"])
        gone: Any = op["dims"]
        rank = len(_shape(operand))
        if element == "i1" and kind in ("max", "min"):
            kind = "any" if kind == "max" else "all"
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
        reads = [[_affine(sympy.sympify(expr), count) for expr in one] for one in maps]  # type: ignore[union-attr, misc]
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


class _Body:
    """What the region of a linalg.generic does that reads an operand anywhere; names are of type index."""

    def __init__(self, function: _Function) -> None:
        self.function = function
        self.lines: list[str] = []

    def add(self, text: str) -> str:
        name = f"%k{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def number(self, value: Any) -> str:
        if _is_number(value):
            return self.add(f"arith.constant {int(value)} : index")
        return self.function.size(value)

    def both(self, word: str, a: str, b: str) -> str:
        return self.add(f"arith.{word} {a}, {b} : index")

    def places(self, value: SSAValue) -> list[str]:
        """Where the element stands that is computed."""
        return [self.add(f"linalg.index {k} : index") for k in range(len(_shape(value)))]

    def read(self, operand: SSAValue, places: Sequence[str]) -> str:
        return self.add(f"tensor.extract {self.function.names[operand]}[{', '.join(places)}] : {_type(operand)}")

    def finished(self, name: str) -> str:
        return "\n".join([*self.lines, f"linalg.yield {name}"])

    def moved(self, op: Op) -> str:
        """The element of an operand that stands at a place of the result of a slice, flip, reshape, pad or concat."""
        own, operand = self.places(op.results[0]), op.operands[0]
        if isinstance(op, prim.Slice):
            rows: Any = zip(own, op["starts"], op["steps"], strict=True)  # type: ignore[arg-type]
            at = [self.both("addi", self.number(a), self.both("muli", i, self.number(s))) for i, a, s in rows]
            return self.finished(self.read(operand, at))
        if isinstance(op, prim.Flip):
            turned: Any = op["dims"]
            last = [self.both("subi", self.number(n), self.number(1)) for n in _shape(operand)]
            at = [self.both("subi", last[k], i) if k in turned else i for k, i in enumerate(own)]
            return self.finished(self.read(operand, at))
        if isinstance(op, prim.Reshape):
            return self.finished(self.read(operand, self._unravelled(op, own)))
        if isinstance(op, prim.Pad):
            element = _element(op.results[0])
            self.lines += self.function._numbered("%other", op["value"], element)
            moved: Any = zip(own, op["low"], strict=True)  # type: ignore[arg-type]
            at = [self.both("subi", i, self.number(low)) for i, low in moved]
            return self.finished(self._or_else(operand, at, range(len(at)), "%other"))
        return self.finished(self._joined(op, own))

    def _unravelled(self, op: Op, own: Sequence[str]) -> list[str]:
        line = self.number(0)
        for i, size in zip(own, _shape(op.results[0]), strict=True):
            line = self.both("addi", self.both("muli", line, self.number(size)), i)
        at: list[str] = []
        for size in reversed(_shape(op.operands[0])):
            at.insert(0, self.both("remsi", line, self.number(size)))
            line = self.both("divsi", line, self.number(size))
        return at

    def _joined(self, op: Op, own: Sequence[str]) -> str:
        d: Any = op["dim"]
        parts = [v for v in op.operands if _shape(v)[d] != 0]
        first: Any = 0
        made = ""
        for part in parts:
            at = list(own)
            at[d] = self.both("subi", own[d], self.number(first))
            first = first + _shape(part)[d]
            made = self._or_else(part, at, [d], made) if made else self.read(part, self._inside(part, at, [d]))
        return made

    def _inside(self, operand: SSAValue, at: Sequence[str], dims: Sequence[int]) -> list[str]:
        """The places, moved to the nearest element of the operand along `dims`."""
        found = list(at)
        for k in dims:
            last = self.both("subi", self.number(_shape(operand)[k]), self.number(1))
            found[k] = self.both("maxsi", self.both("minsi", at[k], last), self.number(0))
        return found

    def _or_else(self, operand: SSAValue, at: Sequence[str], dims: Sequence[int], other: str) -> str:
        """The operand's element where there is one at these places, else another value."""
        if any(n == 0 for n in _shape(operand)):
            return other
        near = self._inside(operand, at, dims)
        made = self.read(operand, near)
        for k in dims:
            here = self.add(f"arith.cmpi eq, {at[k]}, {near[k]} : index")
            made = self.add(f"arith.select {here}, {made}, {other} : {_element(operand)}")
        return made

    def gathered(self, op: Op) -> str:
        """The operand's element at the index that stands in %a0."""
        x, d = op.operands[0], op["dim"]
        at, index = self.places(op.results[0]), _element(op.operands[1])
        found = self.add(f"arith.index_cast %a0 : {index} to index")
        if op.get("wrap", False):
            moved = self.both("addi", found, self.number(_shape(x)[d]))  # type: ignore[index]
            below = self.add(f"arith.cmpi slt, {found}, {self.number(0)} : index")
            found = self.add(f"arith.select {below}, {moved}, {found} : index")
        rank = len(_shape(op.operands[1])) if isinstance(op, prim.Take) else 1
        return self.finished(self.read(x, [*at[:d], found, *at[d + rank :]]))  # type: ignore[misc, operator]


def _affine(expr: Any, count: int) -> str:
    """An index expression over d0, d1 ... as MLIR's affine text."""
    if isinstance(expr, sympy.Add):
        return " + ".join(_affine(a, count) for a in expr.args)
    if isinstance(expr, sympy.Mul):
        return " * ".join(f"({_affine(a, count)})" for a in sorted(expr.args, key=lambda a: a.is_number))
    if isinstance(expr, FloorDiv | Mod) and _is_number(expr.args[1]):
        word = "floordiv" if isinstance(expr, FloorDiv) else "mod"
        return f"({_affine(expr.args[0], count)}) {word} {expr.args[1]}"
    if expr.is_Integer or str(expr) in {f"d{k}" for k in range(count)}:
        return str(expr)
    raise InputError(f"--emit linalg: the index {expr} is not written")


def _from(op: Op) -> str:
    line = line_of(op)
    return f" from {line}" if line else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or bool(getattr(value, "is_Integer", False))


def _shape(value: SSAValue) -> tuple[Any, ...]:
    """Sizes: integers, or expressions over symbols."""
    return tuple(int(n) if _is_number(n) else n for n in tensor(value).shape)


def _places(value: SSAValue) -> list[str]:
    """The dimensions of the value as names of an affine map."""
    return [f"d{k}" for k in range(len(_shape(value)))]


def _element(value: SSAValue) -> str:
    name = tensor(value).dtype.name
    if name not in _TYPES:
        raise InputError(f"--emit linalg: the dtype {name} is not written")
    return _TYPES[name]


def _type(value: SSAValue) -> str:
    return f"tensor<{''.join(f'{n}x' if isinstance(n, int) else '?x' for n in _shape(value))}{_element(value)}>"


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
