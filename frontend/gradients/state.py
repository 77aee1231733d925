"""What the program has changed so far, as far as it can see it itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..state import Interpreter
from ..values.constant import is_constant
from ..values.held import held_in_c
from ..values.kinds import isinstance

__all__ = ["VisibleState"]


class VisibleState:
    """What a piece of a program could change: attributes, variables, containers, tensors of the caller's, calls that are replayed.

    Asked before and after a piece that eager runs at another time, or twice.
    """

    def __init__(self, vm: Interpreter, made: Any = None) -> None:
        self.vm, self.made = vm, made
        self.shadows = list(vm.user.shadows)
        self.before = self._now()

    def _now(self) -> Any:
        journal, vm = self.vm.effects, self.vm
        overlays = journal.attrs, journal.globals, journal.cells
        written = [{key: id(entry[1]) for key, entry in overlay.items()} for overlay in overlays]
        containers = [_contents(shadow.copy) for shadow in self.shadows]
        return (
            written,
            len(journal.calls) + len(vm.random.python.steps),
            containers,
            len(vm.user.appended),
            self._tensors(),
            _contents(getattr(self.made, "__dict__", None)),
        )

    def _tensors(self) -> list[tuple[int, bool]]:
        """The caller's tensors that were written to."""
        out = self.vm.out
        return [(out.version(info), True) for info in out.inputs.values() if out.is_written(info)]

    def is_changed(self) -> bool:
        """Whether anything is not as it was."""
        new = self.vm.user.shadows[len(self.shadows) :]
        return self._now() != self.before or any(shadow.changed() for shadow in new)


def _contents(value: Any, depth: int = 4) -> Any:
    """A value by identity, containers by what they hold."""
    if depth and type(value) in (list, tuple, dict, set):
        items = [*value, *value.values()] if type(value) is dict else list(value)
        return id(value), [_contents(item, depth - 1) for item in items]
    if depth and not isinstance(value, Tensor) and not is_constant(value):
        return id(value), [_contents(item, depth - 1) for item in held_in_c(value) or ()]
    return id(value)
