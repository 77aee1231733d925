"""The journal of what the program changes: kept aside during capture, replayed after the graph has run.

Attributes, cells and globals are overlays: reads see them, the user's objects do not. Containers are compared with
what they were (see `values.container`). Calls with an effect outside of the program (logging, warnings) are listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["DELETED", "Effects"]


class _Deleted:
    def __repr__(self) -> str:
        return "DELETED"


DELETED = _Deleted()


@dataclass
class Effects:
    """All changes. Each overlay maps (identity, name) to (object, value)."""

    attrs: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)
    cells: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = field(default_factory=dict)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    collections: int = 0  # calls of gc.collect()
    dead: dict[int, Any] = field(default_factory=dict)  # weak references and classes whose objects these have taken
    classes: bool = False  # whether an attribute of a class was written
    moved: set[tuple[int, str]] = field(default_factory=set)  # attributes deleted and then written: last in order
    namespaces: dict[int, Any] = field(default_factory=dict)  # the stand-in of each object's `__dict__`
    warned: Any = None  # blocks of `warnings.catch_warnings` that are open (`warned.Warned`)
    read: dict[tuple[str, int, str], Any] | None = (
        None  # what is read, while somebody asks: its kind and name, its owner
    )

    def check_closed(self) -> None:
        """Break where the graph would end inside of a block of `warnings.catch_warnings`."""
        if self.warned is not None:
            raise self.warned.refused("the graph ends inside of the block")

    def leave(self) -> None:
        """The capture ends."""
        if self.warned is not None:
            self.warned.close()

    def attr(self, obj: Any, name: str) -> tuple[bool, Any]:
        """(True, value) when the attribute was written; the value may be DELETED."""
        if self.read is not None:
            self.read["attribute", id(obj), name] = obj
        entry = self.attrs.get((id(obj), name))
        return (False, None) if entry is None else (True, entry[1])

    def write_attr(self, obj: Any, name: str, value: Any) -> None:
        """Note `obj.name = value`."""
        key = id(obj), name
        if value is not DELETED and self.attrs.get(key, (obj, None))[1] is DELETED:
            del self.attrs[key]
            self.moved.add(key)
        self.attrs[key] = (obj, value)

    def delete_attr(self, obj: Any, name: str) -> None:
        """Note `del obj.name`."""
        self.attrs[id(obj), name] = (obj, DELETED)

    def names(self, obj: Any, present: list[str]) -> dict[str, None]:
        """The attribute names of `obj` after the writes, in order."""
        names = dict.fromkeys(present)
        for (owner, name), (_, value) in self.attrs.items():
            if owner != id(obj):
                continue
            if value is DELETED or (owner, name) in self.moved:
                names.pop(name, None)
            if value is not DELETED:
                names[name] = None
        return names

    def touches(self, obj: Any) -> bool:
        """Whether any attribute of `obj` was written."""
        return any(owner == id(obj) for owner, _ in self.attrs)

    def __bool__(self) -> bool:
        return bool(self.attrs or self.cells or self.globals or self.calls)
