"""Compiled libraries as Python callables.

Kernels of a program are built-in functions of Python's (`Calls`): the library holds one function for each number of arguments, which
reads them and calls the kernel. Whatever else is called, and kernels of very many arguments, goes through ctypes by its cheapest road.

Measured, ns a call of an empty kernel with three pointers (Python 3.11): ctypes with c_void_p arguments 244, any integer argtype 430,
because c_void_p takes a plain Python int without going through a conversion method. So every argument, sizes too, is declared c_void_p
and given as an int (one machine word, negative values included). PyDLL, which keeps the GIL, saves another 30 ns; CDLL lets other Python
threads run meanwhile. On another machine: ctypes 182 and 166, `Calls` 49 and, keeping the GIL, 26.
"""

from __future__ import annotations

import _ctypes
import ctypes
import weakref
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path
from typing import Any

NativeFunction = Callable[..., None]  # takes ints: data pointers and int64 sizes


class Library:
    """A loaded shared library. Stays loaded, also when the file goes, until it and the last of its functions are gone.

    With `keep`, for the life of the process: others know addresses in it. Raises OSError with the path when it cannot be loaded.
    """

    def __init__(self, path: Path, keep: bool = False) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path.absolute()))  # a bare name would be looked for on the library path
        self.methods: list[_Method] = []  # of functions of Python's that run code of this library
        handle = None if keep else self._library._handle
        weakref.finalize(self, _close, handle, self.methods).atexit = False

    def address(self, name: str) -> int:
        """Where a function or a variable of the library is; 0 when it has no such name."""
        try:
            handle = self._library._handle
            return _FIND(handle, name) if _FIND else ctypes.cast(self._library[name], c_void_p).value or 0
        except (OSError, AttributeError):
            return 0

    def function(self, name: str, arity: int, *, release_gil: bool = True) -> NativeFunction:
        """`extern "C" void name(...)` with `arity` arguments, each a pointer or an int64_t. The callable takes that many ints.

        `release_gil=False` for kernels of a few microseconds. Raises AttributeError when the library has no such function.
        """
        address = self.address(name)
        if not address:
            raise AttributeError(f"{self.path} has no function {name!r}")
        # By its address: a function that a library object gives refers to itself, and the library would never be closed.
        kind = (ctypes.CFUNCTYPE if release_gil else ctypes.PYFUNCTYPE)(None, *(c_void_p,) * arity)
        function: Any = kind(address)
        function.library = self
        return function  # type: ignore[no-any-return]


def call_name(arity: int, quick: bool) -> str:
    """What calls kernels of so many arguments."""
    return f"intarsia_{'quick_' if quick else ''}call_{arity}"


class _Method(ctypes.Structure):
    """A PyMethodDef. Its memory is never given back: the collector still looks into functions whose library is closed."""

    _fields_ = (("name", ctypes.c_char_p), ("call", c_void_p), ("flags", ctypes.c_int), ("text", ctypes.c_char_p))


_FASTCALL = 0x0080  # METH_FASTCALL
_free: list[_Method] = []


def _close(handle: int | None, methods: list[_Method]) -> None:
    _free.extend(methods)
    if handle is not None and _CLOSE is not None:
        _CLOSE(handle)


class _Kernel(int):
    """The address of a kernel, which keeps the libraries that it needs."""

    libraries: tuple[Library, ...]


class Calls:
    """What a library holds to call kernels from Python, its own and those of others: the other side of `intarsia_call.h`."""

    def __init__(self, library: Library, table: int) -> None:
        self.library = library
        words = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in _PYTHON]
        (c_void_p * (len(words) + 1)).from_address(table)[:] = [*words, id(TypeError)]

    @staticmethod
    def of(library: Library) -> Calls | None:
        """The calls of a library that holds some."""
        table = library.address("intarsia_python")
        return Calls(library, table) if table and _NEW is not None else None

    def function(self, library: Library, name: str, arity: int, quick: bool) -> Callable[..., int] | None:
        """`extern "C" int name(...)` as a built-in function of so many ints; None where there is no call of this kind.

        A quick kernel keeps the interpreter waiting.
        """
        call = self.library.address(call_name(arity, quick))
        if not call:
            return None
        kernel = _Kernel(library.address(name))
        kernel.libraries = library, self.library
        slot = _free.pop() if _free else _Method()
        slot.name, slot.call, slot.flags = name.encode(), call, _FASTCALL
        self.library.methods.append(slot)
        return _NEW(ctypes.addressof(slot), kernel, None)  # type: ignore[no-any-return]


def _new_function() -> Any:
    """PyCFunction_NewEx; None in another Python than CPython."""
    try:
        new = ctypes.pythonapi.PyCFunction_NewEx
        kept = [getattr(ctypes.pythonapi, name) for name in _PYTHON]
    except AttributeError:
        return None
    new.restype, new.argtypes = ctypes.py_object, (c_void_p, ctypes.py_object, c_void_p)
    return new if kept else None


# In the order of the struct.
_PYTHON = ["PyLong_AsVoidPtr", "PyLong_FromLong", "PyErr_Occurred", "PyEval_SaveThread", "PyEval_RestoreThread"]
_PYTHON += ["PyErr_SetString"]
_NEW = _new_function()
_CLOSE: Any = getattr(_ctypes, "dlclose", None)  # on Windows libraries stay
_FIND: Any = getattr(_ctypes, "dlsym", None)
