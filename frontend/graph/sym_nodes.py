"""FX nodes for symbolic sizes: a sympy expression over the placeholders' symbols becomes a few operator nodes."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..errors import GraphBreak
from ..torch_private.symbols import exact_float, exact_of, hint_of, is_unknown, known_of, sym_sqrt, unknown_symbol
from ..values.kinds import isinstance

aten = torch.ops.aten
Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)


def to_expr(size: Any) -> Any:
    """An int, or the sympy expression of a symbolic size (an int again when that is a number)."""
    if not isinstance(size, Symbolic):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_Integer else expr


class SymNodes:
    """Makes each symbolic expression once; a symbol comes from the first input that shows it."""

    def __init__(self, graph: fx.Graph):
        self.graph = graph
        self.nodes: dict[Any, fx.Node] = {}
        self.sources: dict[Any, tuple[Any, ...]] = {}  # symbol -> call that reads it from a tensor's sizes
        self.unknown: dict[Any, tuple[Any, fx.Node, Any]] = {}  # symbol -> what shows it, and what was known of it then

    def bind(self, value: Any, node: fx.Node) -> None:
        """``node`` computes the SymInt ``value``; anything else is ignored."""
        if isinstance(value, Symbolic) and not value.node.expr.is_number:
            self.nodes.setdefault(value.node.expr, node)
            self._note(value, node)

    def bind_sizes(self, tensor: Tensor, node: fx.Node) -> None:
        """``node`` computes ``tensor``, whose sizes, strides and offset may show symbols."""
        for dim, size in enumerate(tensor.shape):
            self._offer(size, aten.sym_size.int, node, dim)
        for dim, stride in enumerate(tensor.stride()):
            self._offer(stride, aten.sym_stride.int, node, dim)
        self._offer(tensor.storage_offset(), aten.sym_storage_offset.default, node)

    def bind_unknown(self, view: Tensor, node: fx.Node) -> None:
        """``node`` computes a view, whose sizes may show symbols that nothing else does: `x[:n]` has at most n."""
        for dim, size in enumerate(view.shape):
            if isinstance(size, torch.SymInt) and unknown_symbol(size) is not None:
                self._offer(size, aten.sym_size.int, node, dim)

    def _offer(self, size: Any, *call: Any) -> None:
        if isinstance(size, Symbolic) and size.node.expr.is_Symbol:
            self.sources.setdefault(size.node.expr, (size, *call))
            self._note(size, call[1])

    def _note(self, size: Any, node: fx.Node) -> None:
        symbol = size.node._expr
        if node.op != "placeholder" and symbol.is_Symbol and is_unknown(symbol):
            self.unknown.setdefault(symbol, (size, node, known_of(size)))

    def rename(self, pairs: list[tuple[Any, Any]]) -> None:
        """Symbols have got the names that they had in an earlier trace."""
        for symbol, known in pairs:
            if symbol in self.nodes:
                self.nodes.setdefault(known, self.nodes[symbol])
            if symbol in self.sources:
                self.sources.setdefault(known, self.sources[symbol])

    def relied_on(self) -> list[fx.Node]:
        """The nodes that show a symbol without a hint of which something has been taken for granted since, read or not."""
        return [node for size, node, known in self.unknown.values() if known_of(size) != known]

    def node_for(self, value: Any) -> Any:
        """A node (or plain number) that computes the SymInt, SymFloat or SymBool ``value``."""
        expr = value.node.expr
        node = exact_of(value) if expr.is_Float or expr.is_zero else self._build(expr, value)
        if isinstance(node, fx.Node):
            node.meta["val"] = value
        return node

    def _build(self, expr: Any, value: Any = None) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr) if expr.is_Boolean is not True else bool(expr)
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if expr in self.nodes:
            return self.nodes[expr]
        if expr in self.sources:
            size, func, *args = self.sources[expr]
            node = self.graph.call_function(func, tuple(args))
            node.meta["val"] = size
        else:
            node = self._compute(expr)
        self.nodes[expr] = node
        return node

    def _compute(self, expr: Any) -> Any:
        function, _ = FUNCTIONS.get(type(expr).__name__, (None, None))
        if function is None:
            raise NotImplementedError(f"no operator for the size {expr}")
        return applied(function, [self._build(a) for a in expr.args], self._call)

    def _call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        node = self.graph.call_function(function, args)
        if all(not isinstance(a, fx.Node) or "val" in a.meta for a in args):
            node.meta["val"] = function(*[a.meta["val"] if isinstance(a, fx.Node) else a for a in args])
        return node


# Functions of torch's sizes by the names of their classes: of numbers; of 0-dim tensors, where floats are computed on these.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "Add": (operator.add, torch.add),
    "Mul": (operator.mul, torch.mul),
    "Pow": (pow, None),  # of `operator.pow` fx writes `-1 ** k`, which is `-(1 ** k)`
    "PowByNatural": (pow, None),
    "FloorDiv": (operator.floordiv, None),
    "CleanDiv": (operator.floordiv, None),
    "Mod": (operator.mod, None),
    "PythonMod": (operator.mod, None),
    "Max": (torch.sym_max, None),
    "Min": (torch.sym_min, None),
    "ToFloat": (torch.sym_float, lambda x: x),
    "IntTrueDiv": (operator.truediv, torch.div),
    "FloatTrueDiv": (operator.truediv, torch.div),
    "FloatPow": (pow, torch.pow),
    "TruncToInt": (math.trunc, None),
    "FloorToInt": (math.floor, None),
    "CeilToInt": (math.ceil, None),
    "OpaqueUnaryFn_sqrt": (sym_sqrt, torch.sqrt),
    "Equality": (operator.eq, None),
    "Unequality": (operator.ne, None),
    "StrictLessThan": (operator.lt, None),
    "LessThan": (operator.le, None),
    "StrictGreaterThan": (operator.gt, None),
    "GreaterThan": (operator.ge, None),
    "Not": (torch.sym_not, None),
    "And": (operator.and_, None),
    "Or": (operator.or_, None),
}


def applied(function: Callable[..., Any], operands: list[Any], call: Callable[..., Any]) -> Any:
    """`call(function, ...)` for an expression's operands: sums and products have many."""
    return call(function, *operands) if len(operands) == 1 else reduce(lambda a, b: call(function, a, b), operands)


def as_numbers(values: Any) -> Any:
    """`values` with 1 and 0 for True and False, which torch 2.11 would put into an expression as truths."""
    return type(values)(int(v) if isinstance(v, bool) else v for v in values)


def has_symbol(value: Any) -> bool:
    """Whether a symbolic number is among the items of containers."""
    if isinstance(value, list | tuple | set):
        return any(map(has_symbol, value))
    if isinstance(value, dict):
        return any(map(has_symbol, value.values()))
    return isinstance(value, Symbolic)


def check_relation(vm: Any, condition: Any) -> bool:
    """Note in the graph that a relation between numbers holds that only the running program knows; False of any other condition."""
    if not isinstance(condition, torch.SymBool) or not vm.out.read.is_read(condition):
        return False
    expr = to_expr(condition)  # as long as torch's environment does not take it for true
    try:
        torch._check(condition)
    except RuntimeError:  # it never holds: eager's own error
        raise GraphBreak("a check of numbers that are read of tensors does not hold") from None
    if expr not in (True, False):
        vm.out.check(expr)
    return True


# ---- symbols that reach Python's own code ----

NUMBERS: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: exact_float, torch.SymBool: bool}


def call_with_symbols(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], may_repeat: Any) -> Any:
    """Call real Python code. Where it takes no symbol, writes one down as text or refuses a number, the numbers become constants, guarded.

    `may_repeat(error)` says whether a call that has failed can be made once more.
    """
    if not has_symbol((args, kwargs)):
        return function(*args, **kwargs)
    if _writes_text(function, args):
        return function(*concrete(args), **concrete(kwargs))
    arithmetic = _operates(function) and all(isinstance(a, (int, float, *Symbolic)) for a in args)
    if function is sum and type(args[0]) in (list, tuple):
        args = (as_numbers(args[0]), *args[1:])
    elif arithmetic:
        args = as_numbers(args)
        if may_be_complex(function, args):
            return function(*concrete(args), **concrete(kwargs))
    try:
        return function(*args, **kwargs)
    except (*_REFUSED, TypeError, AttributeError, RuntimeError) as error:
        # A key that has no hash, C code that knows no symbols, methods of int's; a number that is refused, which the next call's may not be.
        if type(error) is RuntimeError and not arithmetic or not may_repeat(error):
            raise
        return function(*_concrete_but_owner(function, args), **concrete(kwargs))


def may_be_complex(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a power may be a complex number for other numbers, as Python's of a negative base and a fraction is. A guard says that it is not."""
    if function not in _POWERS or len(args) != 2 or not all(isinstance(a, (int, float, *Symbolic)) for a in args):
        return False
    base, exponent = as_numbers(args)
    if type(exponent) in (int, torch.SymInt) or type(exponent) is float and exponent.is_integer():
        return False
    if type(base) in Symbolic and base.node.hint is None:  # read of a tensor, which has a check of its own
        return False
    return not base >= 0


def of_hints(function: Any, args: tuple[Any, ...]) -> Any:
    """What a call gives for the numbers of this one, unguarded; None where they are refused."""
    try:
        return function(*map(hint_of, args))
    except _REFUSED:
        return None


def domain_of(function: Any, args: tuple[Any, ...]) -> Any:
    """What has to hold for Python not to refuse the numbers of an operator: an expression over symbols is computed unasked. None: nothing."""
    if function is sym_sqrt and type(args[0]) is torch.SymInt:
        return args[0] >= 0
    if len(args) != 2 or function not in _PARTIAL or not all(isinstance(a, (int, float, *Symbolic)) for a in args):
        return None
    left, right = as_numbers(args)
    if function in _QUOTIENTS:
        return right != 0
    return right >= 0 if function in _SHIFTS else right >= 0 or left != 0


def _operates(function: Any) -> bool:
    return function is pow or getattr(function, "__module__", None) == "_operator"


def _writes_text(function: Any, args: tuple[Any, ...]) -> bool:
    if any(function is f for f in (str, repr, ascii, format)):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str | bytes) or getattr(function, "__objclass__", None) in (str, bytes):
        return True
    return function in (operator.mod, operator.imod) and isinstance(args[0], str | bytes)


def _concrete_but_owner(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers for symbols, but not in the container that an operator or an unbound method works on: it may change it."""
    works_on_first = _operates(function) or hasattr(function, "__objclass__")
    if works_on_first and args and isinstance(args[0], list | dict | set | deque):
        return (args[0], *concrete(args[1:]))
    return concrete(args)  # type: ignore[no-any-return]


def concrete(value: Any) -> Any:
    """`value` with numbers for symbols; each becomes a guard."""
    kind = type(value)
    if kind in NUMBERS:
        return NUMBERS[kind](value)
    if kind in (list, tuple, set, torch.Size):
        return kind(map(concrete, value))
    if kind is dict:
        return {key: concrete(item) for key, item in value.items()}
    return value


_REFUSED = (ArithmeticError, ValueError)
_QUOTIENTS = {getattr(operator, f"{i}{name}") for i in ("", "i") for name in ("truediv", "floordiv", "mod")}
_SHIFTS = {operator.lshift, operator.rshift, operator.ilshift, operator.irshift}
_POWERS = {operator.pow, operator.ipow, pow}
_PARTIAL = _QUOTIENTS | _SHIFTS | _POWERS  # refuse some numbers
