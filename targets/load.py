"""Compiled libraries as Python callables, by the cheapest road through ctypes.

Measured, ns a call of an empty kernel with three pointers (Python 3.11): c_void_p arguments 244, any integer argtype 430, because
c_void_p takes a plain Python int without going through a conversion method. So every argument, sizes too, is declared c_void_p and given as
an int (one machine word, negative values included). PyDLL, which keeps the GIL, saves another 30 ns; CDLL lets other Python
threads run meanwhile. One pointer to a table of arguments costs 107, and 31 for each entry that has to be filled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

NativeFunction = Callable[..., None]  # takes ints: data pointers and int64 sizes


class Library:
    """A loaded shared library. Stays loaded for the life of the process, also when the file goes.

    Raises OSError with the path when it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        place = str(path.absolute())  # a bare name would be looked for on the library path
        self._short, self._long = ctypes.PyDLL(place), ctypes.CDLL(place)

    def function(self, name: str, arity: int, *, release_gil: bool = True) -> NativeFunction:
        """`extern "C" void name(...)` with `arity` arguments, each a pointer or an int64_t. The callable takes that many ints.

        `release_gil=False` for kernels of a few microseconds. Raises AttributeError when the library has no such function.
        """
        library = self._long if release_gil else self._short
        try:
            function = library[name]  # a new object each time: argtypes are ours alone
        except AttributeError:
            raise AttributeError(f"{self.path} has no function {name!r}") from None
        function.argtypes = (ctypes.c_void_p,) * arity
        function.restype = None
        return function
