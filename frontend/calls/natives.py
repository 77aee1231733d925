"""The table of native functions: C functions, and Python's own functions that run as they are instead of being interpreted.

What has no row here breaks the graph. The columns are those of `registry.Row`.
"""

from __future__ import annotations

import _bisect
import _codecs
import _collections
import _heapq
import _io
import _sre
import _stat
import _string
import _struct
import _thread
import _typing
import abc
import array
import binascii
import builtins
import cmath
import collections
import contextvars
import datetime
import decimal
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import linecache
import marshal
import math
import operator
import os
import posixpath
import re
import string
import sys
import types
import typing
import unicodedata
import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.sameness import is_numpy_number
from ..state import Interpreter
from ..values.kinds import isinstance
from . import tables
from .registry import ANY, Rows

__all__ = ["call_other", "takes_numbers"]

ROWS = Rows()


def _of(owner: Any, names: str) -> list[Any]:
    """The functions of an owner by their names; those that this version of Python does not have are left out."""
    if isinstance(owner, type):
        return [owner.__dict__[n] for n in names.split() if n in owner.__dict__]
    return [getattr(owner, n) for n in names.split() if hasattr(owner, n)]


def _each(owners: Iterable[Any], names: str, **facts: Any) -> None:
    for owner in owners:
        ROWS.describe(*_of(owner, names), **facts)


def _all(*owners: Any, but: str = "") -> None:
    """Every C function of a class or module computes from its arguments alone."""
    for owner in owners:
        names = {*vars(owner)} - {*but.split()}
        if isinstance(owner, type):
            ROWS.describe(owner)
        ROWS.describe(*(_plain(v) for n, v in vars(owner).items() if n in names and _is_c(_plain(v))))


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _is_c(value: Any) -> bool:
    return isinstance(value, _C_KINDS) or isinstance(value, type) and value.__module__ != "builtins"


_C_KINDS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


# ---- what computes from its arguments alone ----

_SCALARS = (object, type, int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), slice)
_ORDERED = collections.OrderedDict
_CONTAINERS = (list, tuple, dict, set, frozenset, range, bytearray, memoryview, collections.deque, _ORDERED)
_DICTS: tuple[Any, ...] = ({}, _ORDERED())
_VIEWS = tuple(type(v) for d in _DICTS for v in (d.keys(), d.values(), d.items()))
_ITERABLE: tuple[Any, ...] = ([], (), {}, set(), range(1), range(1 << 70), "", "é", b"", bytearray(), reversed([]))
_ITERABLE += (reversed({}), {}.values(), {}.items(), collections.deque(), _ORDERED())
_ITERATORS: tuple[Any, ...] = tuple(type(iter(v)) for v in _ITERABLE)
_ITERTOOLS = tuple(v for v in vars(itertools).values() if isinstance(v, type))
_WRAPPERS = (map, filter, zip, enumerate, reversed, property, staticmethod, classmethod, super)
_CODE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType, types.CodeType),
    *(types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType, types.CellType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.GenericAlias, types.UnionType, types.ModuleType),
    *(types.MappingProxyType, types.SimpleNamespace, types.GeneratorType, types.TracebackType),
)
_LIBRARY = (
    *(collections.defaultdict, functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(re.Pattern, re.Match, _struct.Struct, array.array, weakref.ref, contextvars.ContextVar),
    _collections._tuplegetter,
)
_TIMES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone, datetime.tzinfo)
_ERRORS = tuple(v for v in vars(builtins).values() if isinstance(v, type) and issubclass(v, BaseException))

_all(*_SCALARS, *_CONTAINERS, *_VIEWS, *_ITERATORS, *_ITERTOOLS, *_WRAPPERS, *_CODE, *_LIBRARY, *_ERRORS)
_all(*_TIMES, decimal.Decimal, torch.Size, torch.finfo, torch.iinfo, torch.dtype)
_all(torch.device, but="__enter__ __exit__ __call__")
_all(builtins, but=" ".join([*tables.REFUSED_BUILTINS, "id", "aiter", "anext"]))
_all(math, cmath, operator, itertools, functools, unicodedata, binascii, zlib)
ROWS.describe(marshal.dumps, marshal.loads)
_all(_bisect, _heapq, _sre, _stat, _string, _struct, _typing, _collections)
ROWS.describe(*(getattr(collections, "namedtuple", None),), type(operator))
ROWS.describe(sys.intern, sys.getsizeof)
ROWS.describe(_codecs.encode, _codecs.decode)  # as the methods of str and bytes
ROWS.describe(*_of(os, "fspath"))

# Files in memory: what capture makes holds what was written to it; what lends its memory is another matter.
_all(io.StringIO, io.BytesIO, but="getbuffer readinto readinto1 detach __getstate__ __setstate__ __del__")
_each((_io._IOBase,), "__enter__ __exit__ __iter__ __next__ close flush readlines")
_each((io.StringIO, io.BytesIO, _io._IOBase), "writelines", iterates=True)

# ---- what looks at less than all values, iterates, calls back ----

_EVERY = (*_SCALARS, *_CONTAINERS, *_VIEWS, *_ITERATORS, *_ITERTOOLS, *_WRAPPERS, *_LIBRARY, *_CODE, *_ERRORS)
_each(
    _EVERY,
    """
    append appendleft insert extend extendleft pop popleft popitem clear reverse copy rotate items values keys __new__
    __init__ __setattr__ __getattribute__ __delattr__ __init_subclass__ __iter__ __next__ __get__ __class_getitem__
    __reversed__ __length_hint__ send throw close from_iterable __reduce__ __setstate__
    """,
    sees="nothing",
)
_each((list, collections.deque), "insert pop rotate", sees="first")
ROWS.describe(
    *_ITERTOOLS, *_WRAPPERS, *_ERRORS, list, tuple, collections.deque, weakref.ref, functools.partial, sees="nothing"
)
ROWS.describe(
    *(itertools.accumulate, itertools.groupby, itertools.count, itertools.islice, itertools.repeat, itertools.starmap),
    sees="values",
)
ROWS.describe(builtins.isinstance, issubclass, callable, iter, next, sees="nothing")
ROWS.describe(operator.is_, operator.is_not, sees="nothing")
ROWS.describe(operator.itemgetter, operator.attrgetter, operator.methodcaller, functools.reduce, sees="nothing")
_each(_EVERY, "get setdefault __getitem__ __setitem__ __delitem__ __contains__ add discard move_to_end", sees="key")
_each(
    (dict, set, frozenset, _ORDERED, collections.defaultdict),
    """
    fromkeys update union intersection difference symmetric_difference issubset issuperset isdisjoint intersection_update
    difference_update symmetric_difference_update
    """,
    sees="keys",
)
ROWS.describe(dict, set, frozenset, _ORDERED, collections.defaultdict, sees="keys")
ROWS.describe(dict.pop, _ORDERED.pop, sees="key")
_FLOATS = """
acos acosh asin asinh atan atan2 atanh cbrt copysign cos cosh degrees erf erfc exp exp2 expm1 fabs fmod frexp gamma hypot isclose
isfinite isinf isnan lgamma log log10 log1p log2 modf nextafter pow radians remainder sin sinh tan tanh ulp
"""
_each((math,), _FLOATS, sees="floats")

ROWS.describe(map, filter, functools.reduce, itertools.starmap, itertools.takewhile, calls=(0,))
ROWS.describe(itertools.dropwhile, itertools.filterfalse, iter, calls=(0,))
ROWS.describe(itertools.accumulate, itertools.groupby, calls=(1,))
ROWS.describe(sorted, min, max, list.sort, re.Pattern.sub, re.Pattern.subn, calls=ANY)

ROWS.describe(
    list, tuple, set, frozenset, dict, zip, enumerate, sum, any, all, sorted, map, filter, reversed, iterates=True
)
ROWS.describe(functools.reduce, collections.deque, _ORDERED, collections.defaultdict, iterates=True)
ROWS.describe(*_ITERTOOLS, itertools.chain.from_iterable, str.join, bytes.join, iterates=True)
ROWS.describe(itertools.count, itertools.repeat, iterates=False)
_each((list, dict, set, collections.deque, _ORDERED), "extend extendleft update fromkeys", iterates=True)
_each(
    (set, frozenset), "union intersection difference symmetric_difference issubset issuperset isdisjoint", iterates=True
)
_each((set,), "intersection_update difference_update symmetric_difference_update", iterates=True)
ROWS.describe(dict, _ORDERED, collections.defaultdict, maps=True)
_each((dict, _ORDERED, collections.defaultdict), "update __init__ __ior__ __or__", maps=True)
ROWS.describe(str.format, str.format_map, writes=True)

# ---- what reads the state of the process: a guard asks again, or the graph breaks where the answer differs each time ----

ROWS.describe(
    sys.getrecursionlimit, sys.getswitchinterval, sys.getdefaultencoding, sys.getfilesystemencoding, reads="state"
)
ROWS.describe(*_of(sys, "get_int_max_str_digits gettrace getprofile is_finalizing"), reads="state")
ROWS.describe(gc.get_threshold, gc.get_debug, reads="state")
ROWS.describe(os.getpid, os.getppid, os.cpu_count, os.getcwd, reads="state")
ROWS.describe(decimal.Decimal, *(v for v in vars(decimal.Decimal).values() if _is_c(v)), reads="decimal")
ROWS.describe(_thread.get_ident, refused="the thread is asked for")
_each((datetime.datetime, datetime.date), "now utcnow today", refused="the clock is read")
_each(
    (datetime.datetime, datetime.date),
    "fromtimestamp astimezone timestamp strftime __format__ ctime",
    refused="the time zone or language of the process is read",
)
ROWS.describe(datetime.time.strftime, refused="the time zone or language of the process is read")

# ---- Python's own functions that run as they are: they look at types, signatures and text only ----

_each((typing,), "cast get_origin get_args get_type_hints is_typeddict", sees="nothing")
ROWS.describe(*(v for v in vars(re).values() if isinstance(v, types.FunctionType) and v.__module__ == "re"))
ROWS.describe(re.sub, re.subn, calls=ANY)
ROWS.describe(*(v for v in vars(string).values() if isinstance(v, types.FunctionType)))
_each((posixpath,), "join split splitext splitdrive basename dirname normpath normcase isabs commonpath commonprefix")
_each(
    (inspect,),
    """
    isfunction ismethod isclass ismodule isbuiltin isroutine isabstract isgeneratorfunction isgenerator iscoroutine
    iscoroutinefunction isawaitable isdatadescriptor isgetsetdescriptor ismemberdescriptor ismethoddescriptor iscode
    isframe istraceback cleandoc getmro unwrap
    """,
    sees="nothing",
)
_each((inspect,), "getdoc getmodule", reads="state")
_each((inspect,), "signature getfullargspec", reads="signature")
ROWS.describe(importlib.import_module, importlib.util.resolve_name)
ROWS.describe(importlib.util.find_spec, importlib.metadata.version, reads="state")
ROWS.describe(abc.get_cache_token, reads="state")
# Lines of files, as tracebacks show them: what is kept of a file that has changed meanwhile is nobody's business.
ROWS.describe(linecache.getline, linecache.getlines, reads="state")
for _function in (linecache.checkcache, linecache.lazycache):
    ROWS.rule(_function)(lambda vm, *_: False)

# ---- NumPy's functions and classes of numbers ----

_OF_SEVERAL = frozenset("prod sum mean max min amax amin std var median any all argmax argmin".split())  # noqa: SIM905


def call_other(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of what nothing else knows. A function of NumPy's on numbers of this capture computes on them, and nothing else.

    Where NumPy would warn, its settings decide what it does: the graph breaks.
    """
    name = _display(function)
    if not takes_numbers(function) or not args or not all(_is_number(vm, v) for v in (*args, *kwargs.values())):
        if function.__class__ is type:
            raise GraphBreak(tables.REFUSED_MODULES["numpy"])
        raise Unsupported(f"{name} is called")
    try:
        with sys.modules["numpy"].errstate(all="raise"):
            made = vm.native(function, *args, **kwargs)
    except UserRaise as raised:
        if isinstance(raised.value, FloatingPointError):
            raise GraphBreak(f"{name} has no finite or no exact result, of which NumPy may warn") from None
        raise
    if not is_numpy_number(made):
        raise Unsupported(f"{name} is called, which makes an array")
    return made


def _display(function: Any) -> str:
    """What a foreign callable is called by its users; by its type where it has no name of its own."""
    try:
        module, name = function.__module__, function.__name__
    except Exception:  # attributes of foreign objects may do anything
        module = name = None
    if isinstance(module, str) and isinstance(name, str):
        return f"{module}.{name}"
    kind = type(function)
    return f"an object of type {kind.__module__}.{kind.__qualname__}"


def takes_numbers(function: Any) -> bool:
    """Whether a function or class of NumPy's gives a number for numbers, whatever else happens in the process."""
    kind = type(function)
    if kind is type:
        return is_numpy_number(_made_of_nothing(function))
    if kind.__module__ != "numpy":
        return False
    return kind.__name__ == "ufunc" or kind.__name__ == "_ArrayFunctionDispatcher" and function.__name__ in _OF_SEVERAL


def _made_of_nothing(cls: type) -> Any:
    """A zero of a class of NumPy's numbers; None of other classes."""
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    try:
        return cls() if generic is not None and issubclass(cls, generic) and cls.__module__ == "numpy" else None
    except TypeError:  # one that is there for others to derive from
        return None


def _is_number(vm: Interpreter, value: Any) -> bool:
    """Whether a value is a number, or several, that capture knows: no symbol, and no list that it has not read."""
    kind = type(value)
    if kind in (tuple, torch.Size) or kind is list and vm.user.items_of(value) is None:
        return len(value) > 0 and all(_is_number(vm, item) for item in value)
    return kind in (bool, int, float) or is_numpy_number(value)
