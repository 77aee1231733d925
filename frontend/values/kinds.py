"""`isinstance` that runs nothing of the program's.

Python's own reads `__class__` of an object whose type does not answer, which runs a `__getattribute__` or a property of the program's.
Files that look at the program's values import this one in its place.
"""

from __future__ import annotations

import builtins
import ctypes
import enum
import functools
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

__all__ = [
    "HEAP_TYPE",
    "IMMUTABLE_TYPE",
    "SYMBOLIC",
    "c_name",
    "is_honest",
    "is_library",
    "isinstance",
    "namespace_of",
    "namespace_reader",
    "tensors_in",
]

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by an extension in the same way
IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: its attributes cannot be set
# Symbolic numbers compute for themselves; their Python methods are not the program's.
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PACKAGE = __name__.partition(".")[0]

if TYPE_CHECKING:
    from builtins import isinstance as isinstance  # so that types are narrowed
else:

    def isinstance(value: Any, kinds: Any) -> bool:
        """Whether the value is an instance; by its type alone where its class decides what its attributes are, or nothing else can."""
        kind = type(value)
        if kind in _KNOWN:
            return _isinstance(value, kinds)
        of = type(kinds)
        if of is types.UnionType:
            plain = _METACLASSES.issuperset(map(type, kinds.__args__))
        else:
            plain = of in _METACLASSES or of is tuple and _METACLASSES.issuperset(map(type, kinds))
        return issubclass(kind, kinds) if plain or not is_honest(kind) else _isinstance(value, kinds)


_isinstance = builtins.isinstance
# Of classes that leave the question to `type`: an honest instance is what its type derives from.
_METACLASSES = frozenset((type, type(torch.Tensor), enum.EnumType))
# Types of C, of torch's and our own that were asked: a program may change any class of its own.
_KNOWN: set[type] = set()


def is_honest(kind: Any) -> bool:
    """Whether reading `__class__` of an instance runs nothing of the program's."""
    if kind in _KNOWN:
        return True
    if kind in (
        weakref.ProxyType,
        weakref.CallableProxyType,
    ):  # it says of itself what its object says, or that this is gone
        return False
    look = type.__getattribute__
    if not kind.__flags__ & HEAP_TYPE or str(look(kind, "__module__")).partition(".")[0] in ("torch", _PACKAGE):
        _KNOWN.add(kind)
        return True
    return (
        type(look(kind, "__getattribute__")) is types.WrapperDescriptorType
        and "__class__" not in look(kind, "__dict__")
        and not any("__class__" in vars(base) for base in look(kind, "__mro__")[1:-1])
    )


def c_name(kind: type) -> str:
    """What C code calls a type in its messages: a type of C's own by the name it was declared with, `collections.OrderedDict`."""
    if sys.platform.startswith("linux") and ctypes.sizeof(ctypes.c_void_p) == 8:
        return (ctypes.c_char_p.from_address(id(kind) + _TYPE_NAME).value or b"").decode()
    return kind.__name__


_TYPE_NAME = object.__basicsize__ + 8  # of `tp_name`, behind the head of an object with a size


def namespace_of(value: Any) -> dict[str, Any] | None:
    """`value.__dict__` as it is, past what the program's class says of it; a class of C's may have its own way (`threading.local`)."""
    for base in type.__getattribute__(type(value), "__mro__"):
        look = vars(base).get("__getattribute__")
        if type(look) is types.WrapperDescriptorType:
            break
    try:
        found = look(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def namespace_reader(kind: type) -> Any:
    """`namespace_of` for instances of one type: what `object.__getattribute__` comes to, a function of C's, where the type leaves it so."""
    look = type.__getattribute__
    for base in look(kind, "__mro__"):
        if type(found := vars(base).get("__getattribute__")) is types.WrapperDescriptorType:
            break
    own = next((vars(base)["__dict__"] for base in look(kind, "__mro__") if "__dict__" in vars(base)), None)
    if found is object.__getattribute__ and type(own) is types.GetSetDescriptorType:
        return own.__get__
    return namespace_of


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples and dicts, in turn."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


_LIBRARIES = frozenset({"torch", "numpy", "typing_extensions", _PACKAGE})


@functools.lru_cache(maxsize=1024)
def is_library(top: str) -> bool:
    """Whether a package or module is torch's or Python's: by file, not by name alone, as a program may well have a module called `code`."""
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names or top in ("__main__", "test"):  # Python's own tests are programs
        return False
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or (file.startswith(_STDLIB) and "site-packages" not in file)


_STDLIB = sysconfig.get_paths()["stdlib"]
