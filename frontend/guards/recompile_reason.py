"""Why a call recompiles: the first guard that does not hold, what it expected, what came, the user's line, how to avoid it."""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import SourceLine
from ..values.kinds import isinstance
from .sameness import is_value_type

__all__ = ["Miss", "first_miss", "nothing", "reason", "show"]


@dataclass(frozen=True)
class Miss:
    """Why a check failed: the part, what it expected and what it found, the user's line that needs it, how to avoid it."""

    part: str
    expected: str
    got: str
    place: SourceLine | None = None
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.part}: expected {self.expected}, got {self.got}"
        if self.place is not None:
            text += f" (needed by {self.place.filename}:{self.place.lineno}: {self.place.text})"
        return text + (f"; to avoid it: {self.advice}" if self.advice else "")


def first_miss(parts: Iterable[Any], checks: Iterable[Any], args: Mapping[str, Any]) -> Miss | None:
    """The first of the guards, then of the checks over several values, that does not hold for these arguments."""
    for guard in parts:
        if (miss := guard.explain(args)) is not None:
            return miss
    for check in checks:
        try:
            miss = check.explain(args)
        except Exception as error:
            label = str(check).partition("\n")[0]
            miss = Miss(label, "as at capture", f"nothing ({type(error).__name__}: {error})")
        if miss is not None:
            return miss
    return None


def reason(entries: Iterable[Any], args: Mapping[str, Any]) -> str:
    """Why the most general entry does not fit a call, of those with these guards: the newest with symbols, else the newest."""
    newest = [*entries][::-1]
    misses = (guards.explain(args) for guards in sorted(newest, key=lambda guards: not guards.has_symbols))
    miss = next((m for m in misses if m is not None), None)
    if miss is not None:
        return str(miss)
    return "no guard names a reason" if newest else "it has not been compiled before"


def show(value: Any) -> str:
    """A short text of a value, in one line; nothing of the program's runs for it."""
    text = " ".join(_text(value).split())
    return text if len(text) < 100 else f"{text[:97]}..."


def _text(value: Any, depth: int = 0) -> str:
    """Like `repr`, but never runs a method of the program's: its objects, and what may hold some, show their type alone."""
    kind = type(value)
    if kind in _LEAVES or is_value_type(value):
        return repr(value)
    if kind in _BRACKETS and depth < 4:
        start, end = _BRACKETS[kind]
        shown = [*itertools.islice(iter(value), 50)]  # what is longer is cut off anyway
        parts = [_text(v, depth + 1) for v in shown]
        if kind is dict:
            parts = [f"{key}: {_text(value[v], depth + 1)}" for key, v in zip(parts, shown, strict=True)]
        comma = "," if kind is tuple and len(parts) == 1 else ""
        return f"{start}{', '.join(parts)}{comma}{end}" if parts or kind is not set else "set()"
    if isinstance(value, enum.Enum):
        return f"<{kind.__qualname__}.{value._name_}>"
    if isinstance(value, type):
        return type.__repr__(value)
    if kind is types.MethodType:
        return f"<bound method {getattr(value.__func__, '__qualname__', '?')} of {object.__repr__(value.__self__)}>"
    return object.__repr__(value)


# Types whose `repr` runs nothing of the program's.
_LEAVES = frozenset(
    [
        *(int, float, complex, bool, str, bytes, types.NoneType, types.EllipsisType, types.NotImplementedType, range),
        *(types.FunctionType, types.CodeType, types.ModuleType, torch.Tensor, torch.nn.Parameter),
        *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
    ]
)
_BRACKETS: dict[type, Any] = {list: "[]", tuple: "()", dict: "{}", set: "{}", frozenset: ("frozenset({", "})")}


def nothing(error: Exception) -> str:
    """That there is nothing, and why; the words of an error of the program's are its own code."""
    kind = type(error)
    plain = kind.__module__ == "builtins" and all(type(a) is str for a in error.args)
    return f"nothing ({kind.__name__}: {error})" if plain else f"nothing ({kind.__name__})"
