"""What other packages have to be told of this compiler, when and if a program imports them; one module a package."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

__all__ = ["when_imported"]


def when_imported(name: str, tell: Callable[[ModuleType], None]) -> None:
    """`tell(module)`: at once where the module `name` has been imported, else at the end of its import."""
    module = sys.modules.get(name)
    if module is not None:
        tell(module)
    else:
        sys.meta_path.insert(0, _Waiting(name, tell))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing itself: what the other finders find for one module gets a loader that tells of the module."""

    def __init__(self, name: str, tell: Callable[[ModuleType], None]) -> None:
        self.name, self.tell = name, tell

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Telling(self, spec.loader)
        return spec


class _Telling(SourceFileLoader):
    def __init__(self, waiting: _Waiting, found: SourceFileLoader) -> None:
        super().__init__(found.name, found.path)
        self.waiting = waiting

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self.waiting in sys.meta_path:
            sys.meta_path.remove(self.waiting)
        self.waiting.tell(module)
