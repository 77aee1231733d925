"""Kernels on a CPU as ranges of torch's profiler, while one is active; on a GPU the profiler sees them by itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..torch_private import profiler_is_active

__all__ = ["note", "show_kernels"]

# Programs that are loaded: the function in whose globals a program finds its kernels, and their names.
_PROGRAMS: weakref.WeakKeyDictionary[Callable[..., Any], tuple[str, ...]] = weakref.WeakKeyDictionary()


class _Ranged:
    """A kernel that shows itself; it gives its place back to the kernel when no profiler is active any more."""

    def __init__(self, names: dict[str, Any], name: str, kernel: Callable[..., Any]) -> None:
        self.names, self.name, self.kernel = names, name, kernel

    def __call__(self, *args: Any) -> Any:
        if not profiler_is_active():
            self.names[self.name] = self.kernel
            return self.kernel(*args)
        with torch.autograd.profiler.record_function(f"intarsia kernel {self.name}"):
            return self.kernel(*args)


def note(make: Callable[..., Any], kernels: Iterable[str]) -> None:
    """A program was loaded; `make` is a function of its text."""
    _PROGRAMS[make] = tuple(kernels)


def show_kernels() -> None:
    """Have the kernels of all programs show themselves."""
    for make, kernels in list(_PROGRAMS.items()):
        names: dict[str, Any] = make.__globals__  # type: ignore[attr-defined]
        for name in kernels:
            if type(names[name]) is not _Ranged:
                names[name] = _Ranged(names, name, names[name])
