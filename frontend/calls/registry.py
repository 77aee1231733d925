"""How capture treats calls of functions that it does not interpret: one row a function, found by the function itself.

A row holds its target, so that no other object can come to have its address, and is found by `is`. A method of a C type is found
by what its class holds, whether it is called on the class or on an instance. `dispatch` lists the files whose rows these are.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import GraphBreak
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE

__all__ = [
    "ANY",
    "C_DESCRIPTORS",
    "Row",
    "Rows",
    "Then",
    "asks_overrides",
    "called_row",
    "check_refused",
    "complete",
    "fill",
    "is_misfit",
    "is_never_run",
    "refuse_misfit",
    "row_of",
    "rule_of",
    "twin_of",
]

ANY: Any = None  # as `calls`: any argument may be called back
C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


@dataclass(frozen=True, slots=True)
class Row:
    """One function.

    `apply(vm, *args, **kwargs)` interprets the call in its place. Otherwise it runs as it is, on arguments of which it may call back
    those at the places `calls` and looks at what `sees` names: "nothing" (it moves them about), "first" (its first argument alone),
    "key" (that as a key), "keys" (all, or their items, as keys), "values", "floats" (numbers, which it asks for their floats). With
    `iterates` it takes the items of its arguments, with `maps` it reads mappings by their keys, with `writes` it puts values into text.
    `reads` says what the result depends on beside the arguments: "" (nothing), "thread" (what the check of global state covers), "state"
    (anything else: a guard asks again), or the name of a rule in `answers` that guards it more cheaply. `refused` is why the graph breaks
    at a call.
    """

    target: Any
    apply: Callable[..., Any] | None = None
    calls: tuple[int, ...] | None = ()
    sees: str = "values"
    iterates: bool = False
    maps: bool = False
    writes: bool = False
    reads: str = ""
    refused: str = ""


class Then:
    """What interpreting a call comes to, where it is another call: frames below can be suspended in it, as its result is theirs.

    With `body`, the function's own code is interpreted, whatever is known of it.
    """

    __slots__ = ("args", "body", "function", "kwargs")

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], body: bool = False) -> None:
        self.function, self.args, self.kwargs, self.body = function, args, kwargs, body


_ROWS: dict[int, Row] = {}
_LATE: list[Callable[[Rows], Any]] = []  # of `complete`


def _raw(target: Any) -> Any:
    """What lasts of a target: a class method is bound anew each time that it is read."""
    owner = getattr(target, "__self__", None)
    if isinstance(target, types.BuiltinFunctionType) and isinstance(owner, type):
        return next((c.__dict__[target.__name__] for c in owner.__mro__ if target.__name__ in c.__dict__), target)
    if isinstance(target, types.MethodType) and isinstance(owner, type):
        return target.__func__
    return target


class Rows:
    """What one file knows of functions; `fill` puts it into the registry."""

    def __init__(self) -> None:
        self.facts: list[tuple[Any, dict[str, Any]]] = []
        self.later: list[Callable[[Rows], Any]] = []

    def describe(self, *targets: Any, **facts: Any) -> None:
        """Add facts of functions."""
        self.facts += [(target, facts) for target in targets]

    def rule(self, *targets: Any) -> Callable[[Any], Any]:
        """Add a function `(vm, *args, **kwargs)` as the meaning of calling `targets`."""

        def add(function: Any) -> Any:
            self.describe(*targets, apply=function)
            return function

        return add

    def late(self, known: Callable[[Rows], Any]) -> Callable[[Rows], Any]:
        """Add what `known` adds to its argument once `complete` calls it: rows of functions whose package takes seconds to import."""
        self.later.append(known)
        return known


def fill(*files: Rows) -> None:
    """Add rows, or more facts to rows that exist."""
    _LATE.extend(known for rows in files for known in rows.later)
    for target, facts in (known for rows in files for known in rows.facts):
        target = _raw(target)
        row = row_of(target)
        _ROWS[id(target)] = Row(target, **facts) if row is None else replace(row, **facts)


@functools.cache
def complete() -> None:
    """Add the rows of `Rows.late`, before anything is captured: what only reads IR, as passes-opt does, never needs them."""
    for known in _LATE:
        rows = Rows()
        known(rows)
        fill(rows)


def row_of(target: Any) -> Row | None:
    """The row of exactly this object."""
    row = _ROWS.get(id(target))
    return row if row is not None and row.target is target else None


def rule_of(target: Any) -> Callable[..., Any] | None:
    """What interprets a call of exactly this object."""
    row = row_of(target)
    return None if row is None else row.apply


_KNOWS_LAYOUT = sys.platform.startswith("linux") and ctypes.sizeof(ctypes.c_void_p) == 8


def twin_of(target: Any) -> Any:
    """The function, method or class of C's whose module was imported twice that `target` is, as the module's first copy has it, or None.

    That both are the same is known by what CPython calls: one definition in C of a function, of each method of a class.
    """
    if not _KNOWS_LAYOUT:
        return None
    if isinstance(target, type):
        return _twin_of_class(target)
    if type(target) in (types.BuiltinFunctionType, types.MethodDescriptorType):
        owner = target.__self__ if type(target) is types.BuiltinFunctionType else _twin_of_class(target.__objclass__)
        module = sys.modules.get(owner.__name__) if isinstance(owner, types.ModuleType) else owner
        known = getattr(module, target.__name__, None)
        if type(known) is type(target) and known is not target and _in_c(known) == _in_c(target):
            return known
    return None


def _in_c(function: Any) -> int:
    """The address of the definition of a C function or method (`m_ml`, `d_method`; CPython 3.11 to 3.14)."""
    at = 16 if type(function) is types.BuiltinFunctionType else 40
    return ctypes.c_uint64.from_address(id(function) + at).value


@functools.lru_cache(maxsize=64)
def _twin_of_class(cls: type) -> Any:
    known = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
    python = cls.__flags__ & HEAP_TYPE and not cls.__flags__ & IMMUTABLE_TYPE
    if known is cls or not isinstance(known, type) or python or {*vars(known)} != {*vars(cls)}:
        return None
    methods = [name for name, raw in vars(cls).items() if type(raw) is types.MethodDescriptorType]
    same = all(_in_c(vars(known)[name]) == _in_c(vars(cls)[name]) for name in methods)
    return known if methods and same and known.__flags__ & IMMUTABLE_TYPE else None


_CONVENTIONS = types.BuiltinFunctionType, types.MethodDescriptorType, types.ClassMethodDescriptorType
_WITH_KEYWORDS, _WITHOUT_ARGUMENTS, _WITH_ONE = 0x2, 0x4, 0x8  # METH_KEYWORDS, METH_NOARGS, METH_O


def is_never_run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether CPython refuses the call itself: a function of C's is declared to take no keywords, no argument or one, and is not run with others.

    A method of a class that is read from the class takes its object as well; which one it may be, CPython asks before all else.
    """
    if type(function) not in _CONVENTIONS or not _KNOWS_LAYOUT:
        return False
    unbound = type(function) is not types.BuiltinFunctionType
    if unbound and not args:
        return True
    flags, count = ctypes.c_int.from_address(_in_c(function) + 16).value, len(args) - unbound
    misfit = flags & _WITHOUT_ARGUMENTS and count or flags & _WITH_ONE and count != 1
    return bool(misfit or kwargs and not flags & _WITH_KEYWORDS)


_OF_BOOL = inspect.Signature(
    [inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY, default=False)]
)  # 3.11 has none


def is_misfit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a C function does not take that many arguments, or these keywords."""
    if not isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType) and function is not bool:
        return False
    try:
        signature = inspect.signature(function) if function is not bool else _OF_BOOL
    except ValueError:
        return False
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return True
    return False


def refuse_misfit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what a function of C's says where it does not take that many arguments, or these keywords.

    One without a signature is called with objects that nothing can be done with, so that it comes to nothing else.
    """
    if is_misfit(function, args, kwargs):
        function(*args, **kwargs)  # says so before it does anything
    given: list[Any] = [object() for _ in args]
    if type(function) is types.MethodDescriptorType:
        known = function.__objclass__ in _MADE_OF_NOTHING
        if known and args:
            given[0] = function.__objclass__() if issubclass(type(args[0]), function.__objclass__) else args[0]
    else:
        kinds = (type, types.BuiltinFunctionType)
        known = isinstance(function, kinds) and function.__module__ in _WITHOUT_SIGNATURES
    try:
        function(*given, **dict.fromkeys(kwargs, object())) if known else None
    except TypeError as error:
        if _SAYS_NUMBER.search(str(error)):
            raise error.with_traceback(None) from None
    except Exception:
        return


_WITHOUT_SIGNATURES = tuple("builtins functools _functools operator _operator itertools math cmath collections".split())  # noqa: SIM905
_MADE_OF_NOTHING = (list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, collections.deque)
_SAYS_NUMBER = re.compile(
    r"takes (no|at most|at least|exactly|from|\d+) .*argument|expected (at most |at least |exactly |)\d+ arguments?, got|must have at least"
    r"|missing (a )?required|unexpected keyword|invalid keyword argument for|takes no arguments|needs an argument|^descriptor '"
)


def check_refused(row: Row | None) -> None:
    """Break the graph before a call that a row refuses."""
    if row is not None and row.refused:
        raise GraphBreak(row.refused)


def called_row(function: Any) -> Row | None:
    """The row of a function, or of the method behind a bound one, or of the C class that a class derives from."""
    row = row_of(function)
    if row is not None:
        return row
    if isinstance(function, type):
        return _row_of_class(function)
    if isinstance(function, types.BuiltinFunctionType | types.MethodWrapperType):
        owner, name = function.__self__, function.__name__
        if owner is None or isinstance(owner, types.ModuleType) and type(function) is types.BuiltinFunctionType:
            return None
        orders: list[Any] = [owner.__mro__, type(owner).__mro__] if isinstance(owner, type) else [type(owner).__mro__]
        found = (c.__dict__[name] for order in orders for c in order if name in c.__dict__)
        return next((row_of(raw) for raw in found if not isinstance(raw, _PYTHON)), None)
    return None


_PYTHON = (types.FunctionType, classmethod, staticmethod)  # which `super()` passes


def _row_of_class(cls: type) -> Row | None:
    for base in cls.__mro__:
        row = row_of(base)
        if row is not None:
            return row
        if base is not cls and (twin := _twin_of_class(base)) is not None:
            return row_of(twin)
        if not base.__flags__ & HEAP_TYPE or base.__flags__ & IMMUTABLE_TYPE:
            return None  # a C class that is not known, whatever it derives from
    return None


def asks_overrides(function: types.FunctionType) -> bool:
    """Whether a function of torch's that a row interprets asks `__torch_function__` itself, in Python."""
    if row_of(function) is None:
        return False
    plain = inspect.unwrap(function)
    return isinstance(plain, types.FunctionType) and "handle_torch_function" in plain.__code__.co_names
