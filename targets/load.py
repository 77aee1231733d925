"""Compiled libraries as Python callables, by the cheapest road through ctypes.

Measured, ns a call of an empty kernel with three pointers (Python 3.11): c_void_p arguments 244, any integer argtype 430, because
c_void_p takes a plain Python int without going through a conversion method. So every argument, sizes too, is declared c_void_p and given as
an int (one machine word, negative values included). PyDLL, which keeps the GIL, saves another 30 ns; CDLL lets other Python
threads run meanwhile. One pointer to a table of arguments costs 107, and 31 for each entry that has to be filled.
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
        if not keep and _CLOSE is not None:
            weakref.finalize(self, _CLOSE, self._library._handle).atexit = False

    def function(self, name: str, arity: int, *, release_gil: bool = True) -> NativeFunction:
        """`extern "C" void name(...)` with `arity` arguments, each a pointer or an int64_t. The callable takes that many ints.

        `release_gil=False` for kernels of a few microseconds. Raises AttributeError when the library has no such function.
        """
        try:
            address = (
                _FIND(self._library._handle, name) if _FIND else ctypes.cast(self._library[name], c_void_p).value or 0
            )
        except (OSError, AttributeError):
            raise AttributeError(f"{self.path} has no function {name!r}") from None
        # By its address: a function that a library object gives refers to itself, and the library would never be closed.
        kind = (ctypes.CFUNCTYPE if release_gil else ctypes.PYFUNCTYPE)(None, *(c_void_p,) * arity)
        function: Any = kind(address)
        function.library = self
        return function  # type: ignore[no-any-return]


_CLOSE: Any = getattr(_ctypes, "dlclose", None)  # on Windows libraries stay
_FIND: Any = getattr(_ctypes, "dlsym", None)
