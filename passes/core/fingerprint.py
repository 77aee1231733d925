"""What passes depend on, as a hash: part of the cache's key, so that nobody has to change a version number.

Of Intarsia's own passes the options count: its sources are in the key anyway. Of a pass of others all that its methods can reach counts:
their code, the functions, classes, numbers and files that it names, and what these name. Of other installed packages the files count that
are named; what no text says (an open file, a lock, memory) makes a key that no other compilation has.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...ir.scalars import added_rows
from .base import Pass
from .manager import is_own

_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_KNOWN = frozenset(("intarsia", "torch", "xdsl", "sympy", "networkx"))  # their versions, or sources, are in the key
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
_INSTALLED = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib", "stdlib"))
_SAY_NOTHING = frozenset(("__dict__", "__weakref__", "__doc__", "__dataclass_fields__", "_abc_impl"))
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def pass_fingerprint(passes: Iterable[Pass]) -> str:
    """A hash over the options of all passes, and over all that those of others are made of."""
    digest = hashlib.sha256()
    for item in passes:
        own = is_own(type(item))
        reached = _Reached(_package(type(item).__module__))
        digest.update(f"{item.name}\0".encode())
        for f in fields(item):
            digest.update(f.name.encode() + reached.hash_of(getattr(item, f.name)))
        digest.update(b"" if own else reached.hash_of(type(item)) + repr(added_rows()).encode())
    return digest.hexdigest()


def _package(module: str) -> str:
    return module.partition(".")[0]


class _Reached:
    """Hashes of values and of what they refer to; each object counts once. `package`: that of the pass, which is followed wherever it lies."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.objects: dict[int, tuple[int, Any]] = {}  # held, so that no other one gets their place in memory

    def hash_of(self, value: Any) -> bytes:
        digest = hashlib.sha256(type(value).__qualname__.encode())
        for part in self._parts(value):
            digest.update(part + b"\0")
        return digest.digest()

    def _all(self, values: Iterable[Any]) -> bytes:
        return b"".join(map(self.hash_of, values))

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, _PLAIN):
            yield repr(value).encode()
        elif id(value) in self.objects:
            yield str(self.objects[id(value)][0]).encode()
        else:
            self.objects[id(value)] = len(self.objects), value
            yield from self._of_object(value)

    def _of_object(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, list | tuple):
            yield self._all(value)
        elif isinstance(value, set | frozenset):
            yield b"".join(sorted(map(self.hash_of, value)))
        elif isinstance(value, Mapping):
            yield self._all(x for pair in list(value.items()) for x in pair)
        elif isinstance(value, types.CodeType):
            yield value.co_code + " ".join((*value.co_names, *value.co_freevars)).encode()
            yield self._all(value.co_consts)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, staticmethod | classmethod | types.MethodType):
            yield self._all([value.__func__, getattr(value, "__self__", None)])
        elif isinstance(value, property):
            yield self._all([value.fget, value.fset])
        elif isinstance(value, functools.partial):
            yield self._all([value.func, value.args, value.keywords])
        elif isinstance(value, _BUILT_IN):
            yield f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode()
        elif hasattr(value, "__wrapped__"):
            yield self.hash_of(value.__wrapped__)
        else:
            yield from self._instance(value)

    def _module(self, module: types.ModuleType) -> Iterator[bytes]:
        """Its file, and the modules that it imports."""
        yield module.__name__.encode()
        if self._is_known(module.__name__):
            return
        file = getattr(module, "__file__", None)
        try:
            yield Path(file).read_bytes() if file else b""
        except OSError:
            yield b""
        if self._is_followed(module.__name__):
            yield self._all(v for v in list(vars(module).values()) if isinstance(v, types.ModuleType))

    def _class(self, kind: type) -> Iterator[bytes]:
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        yield from self._file(kind)
        if self._is_followed(kind.__module__):
            yield self._all(kind.__bases__)
            for name, member in sorted(vars(kind).items()):
                yield b"" if name in _SAY_NOTHING else name.encode() + self.hash_of(member)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        yield f"{function.__module__}.{function.__qualname__}".encode()
        yield from self._file(function)
        if not self._is_followed(function.__module__ or ""):
            return
        yield self._all([function.__code__, function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                yield self.hash_of(cell.cell_contents)
            except ValueError:  # empty
                yield b"empty"
        found = function.__globals__
        for name in sorted(set(_names(function.__code__)) & found.keys()):
            yield name.encode() + self.hash_of(found[name])

    def _file(self, value: Any) -> Iterator[bytes]:
        """The file that a class or function stands in: helpers beside it count, too."""
        module = sys.modules.get(value.__module__ or "")
        yield b"" if module is None or self._is_known(module.__name__) else self.hash_of(module)

    def _instance(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        if not self._is_known(kind.__module__):
            slots = [n for base in kind.__mro__ for n in vars(base).get("__slots__", ()) if hasattr(value, n)]
            state = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
            yield self.hash_of(kind)
            if state or hasattr(value, "__dict__"):
                yield self.hash_of(state)
                return
        text = repr(value)
        yield uuid.uuid4().bytes if " at 0x" in text or "..." in text else text.encode()

    @staticmethod
    def _is_known(module: str) -> bool:
        return _package(module) in _KNOWN or _package(module) in _STANDARD

    def _is_followed(self, module: str) -> bool:
        """Whether what a module names counts as well: not of other installed packages."""
        if self._is_known(module):
            return False
        file = getattr(sys.modules.get(module), "__file__", None)
        return _package(module) == self.package or not file or not str(Path(file).resolve()).startswith(_INSTALLED)


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names of a function's code, and of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
