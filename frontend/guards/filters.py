"""`options={"guard_filter_fn": function}`: the user's choice among the guards, as torch.compile asks for it.

The function is given an entry for each guard on a Python value and answers which are kept. Checks of tensors, sizes, functions,
classes and the thread's state are no matter of choice: kernels rely on them, and they cost a step or two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .guards import Guard
from .source import Arg, Const, Source

__all__ = ["FilterError", "GuardFilter", "GuardFilterEntry", "kept"]


class FilterError(Exception):
    """The user's function does not answer as it should."""


@dataclass(frozen=True)
class _Origin:
    """Where a value came from, in torch's words."""

    values: tuple[Any, ...]  # those on the way to it

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it is a module, or a part of one."""
        return any(isinstance(value, nn.Module) for value in self.values)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether this is one of torch's classes."""
        modules = [value for value in self.values if isinstance(value, nn.Module)]
        return bool(modules) and type(modules[-1]).__module__.startswith(("torch.nn.", "torch.ao."))


@dataclass(frozen=True)
class _Original:
    source: _Origin


@dataclass(frozen=True)
class GuardFilterEntry:
    """What the function is told of one guard; the fields are those of torch.compile."""

    name: str
    has_value: bool
    value: Any
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: _Original


GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]

_TYPES = {
    "is": "ID_MATCH",
    "equals": "EQUALS_MATCH",
    "type": "TYPE_MATCH",
    "length": "SEQUENCE_LENGTH",
    "keys": "DICT_KEYS_MATCH",
    "missing": "DICT_NOT_CONTAINS",
    "contains": "DICT_CONTAINS",
    "empty": "BOOL_MATCH",
    "no attribute": "NOT_PRESENT_IN_GENERIC_DICT",
    "alias": "DUPLICATE_INPUT",
    "other": "NOT_DUPLICATE_INPUT",
}


def kept(choose: GuardFilter, values: Mapping[str, Any], guards: Sequence[Guard]) -> list[bool]:
    """Which of the guards the function keeps.

    Raises:
        FilterError: it raises, or gives something else than a truth for each.
    """
    entries = [_entry(guard, values) for guard in guards]
    try:
        answer = list(choose(entries))
    except Exception as error:
        raise FilterError(f"guard_filter_fn raised {type(error).__name__}: {error}") from error
    if len(answer) != len(guards) or not all(type(one) is bool for one in answer):
        raise FilterError(
            f"guard_filter_fn gave {answer!r:.80} for {len(guards)} guards: it has to give a list of as many True and False"
        )
    return answer


def _entry(guard: Guard, values: Mapping[str, Any]) -> GuardFilterEntry:
    way = [_fetched(source, values) for source in _way(guard.source)]
    has_value, value = way[-1]
    root = guard.source.root()
    is_global = not isinstance(root, Arg) and not (isinstance(root, Const) and isinstance(root.value, nn.Module))
    origin = _Original(_Origin(tuple(v for known, v in way if known)))
    kind = _TYPES.get(guard.kind, guard.kind.upper().replace(" ", "_"))
    return GuardFilterEntry(guard.source.name(), has_value, value, kind, (), is_global, origin)


def _way(source: Source) -> list[Source]:
    """The steps to a value, the root first."""
    way: list[Source] = []
    step: Source | None = source
    while step is not None:
        way.insert(0, step)
        step = getattr(step, "base", None)
    return way


def _fetched(source: Source, values: Mapping[str, Any]) -> tuple[bool, Any]:
    try:
        return True, source.fetch(values)
    except Exception:  # whatever the user's own attributes raise
        return False, None
