"""What a round of a loop changes beside its frame's variables: items of containers, attributes, variables of functions around."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from ..entry.effects import DELETED
from ..errors import UserRaise
from ..state import Interpreter
from ..values.kinds import isinstance
from .sides import Prevented

__all__ = ["Contents", "Place"]


class Place:
    """One that a value is written to: `holder[key]`, a cell, or an attribute of an object of the caller's."""

    def __init__(self, name: str, holder: Any, key: Any = None, owner: Any = None) -> None:
        self.name, self.holder, self.key, self.owner = name, holder, key, owner

    def __str__(self) -> str:
        return self.name

    def get(self) -> Any:
        """What is there."""
        if type(self.holder) is types.CellType:
            return self.holder.cell_contents
        found = self.holder[self.key]
        return found if self.owner is None else found[1]

    def put(self, value: Any) -> None:
        """Write it there."""
        if type(self.holder) is types.CellType:
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value if self.owner is None else (self.owner, value)


class Contents:
    """What containers that capture made hold, and which attributes have been written, in front of a loop."""

    def __init__(self, vm: Interpreter, containers: list[Any]) -> None:
        self.vm = vm
        self.kept = [(value, _copy(value)) for value in containers]
        self.attrs = self.first = dict(vm.effects.attrs)

    def restore(self) -> None:
        """Put all back."""
        for value, kept in self.kept:
            now = _copy(value)
            if len(now) == len(kept) and all(a is b for a, b in zip(_parts(now), _parts(kept), strict=True)):
                continue
            if type(value) is list:
                value[:] = kept
            elif type(value) is dict:
                value.clear()
                value.update(kept)
            elif kept:
                value.cell_contents = kept[0]
        self.vm.effects.attrs.clear()
        self.vm.effects.attrs.update(self.attrs)

    def give_back(self) -> None:
        """There is no loop: attributes that were to be carried have not been written."""
        self.attrs = self.first
        self.restore()

    def changed(self, grown: list[tuple[list[Any], list[Any]]] | None = None) -> list[Place]:
        """The places that hold something else. Raises Prevented where a container grows or shrinks.

        `grown`: lists that have new items at their ends, and these, are put there.
        """
        found = list[Place]()
        for value, kept in self.kept:
            now = _copy(value)
            if type(value) is types.CellType:
                if len(now) != len(kept):
                    raise Prevented("a variable of a function around is bound in the loop")
                found += [Place("a variable of a function around", value)] if kept and now[0] is not kept[0] else []
                continue
            longer = grown is not None and type(value) is list and len(now) > len(kept)
            if longer and all(a is b for a, b in zip(now, kept, strict=False)):
                grown.append((value, now[len(kept) :]))  # type: ignore[union-attr]
                continue
            if len(now) != len(kept) or type(value) is dict and list(now) != list(kept):
                raise Prevented(f"a {type(value).__name__} grows or shrinks in the loop")
            keys = list(now) if type(value) is dict else range(len(now))
            found += [Place(f"[{key!r}]", value, key) for key in keys if now[key] is not kept[key]]
        for key, (owner, value) in self.vm.effects.attrs.items():
            before = self.attrs.get(key)
            if before is None or before[1] is not value:
                if isinstance(owner, Tensor | type) or value is DELETED or before is not None and before[1] is DELETED:
                    raise Prevented(f"the loop changes {key[1]} of a {type(owner).__name__}")
                found.append(Place(f".{key[1]}", self.vm.effects.attrs, key, owner))
        return found

    def begin(self, place: Place) -> None:
        """Note what is at a place in front of the loop, whose contents are put back."""
        if place.owner is None or place.key in self.attrs:
            return
        try:
            value = self.vm.load_attr(place.owner, place.key[1])
        except UserRaise:
            raise Prevented(f"{place} is bound in the loop") from None
        self.attrs = {**self.attrs, place.key: (place.owner, value)}
        self.vm.effects.attrs[place.key] = place.owner, value


def _parts(value: Any) -> list[Any]:
    return [*value, *value.values()] if type(value) is dict else value  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if type(value) is not types.CellType:
        return value.copy()
    try:
        return [value.cell_contents]
    except ValueError:
        return []
