"""The capture in progress, as the rules for values, calls and guards see it: what is known so far, and what can be asked of it.

`bytecode.symbolic_interpreter.SymbolicInterpreter` is this state at work. Nothing here imports the files that are written against it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from .bytecode.frame import Frame
from .entry.effects import Effects
from .errors import CaptureError, SourceLine
from .graph.output import OutputGraph
from .guards.definitions import Definitions
from .guards.guards import GuardSet
from .guards.source import Source

__all__ = ["Generator", "Interpreter", "Tracked"]


@dataclass
class Tracked:
    """A value of the user's: the real object, what stands for it on the stack, where it was first seen."""

    real: Any
    value: Any
    source: Source


class Generator(Protocol):
    """A generator that capture runs."""

    vm: Interpreter
    frame: Frame
    started: bool
    finished: bool
    running: bool
    places: list[tuple[Frame, int]]
    managed: bool


class Known(Protocol):
    """What capture knows of the objects that existed before it."""

    by_real: dict[int, Tracked]
    by_value: dict[int, Tracked]
    shadows: list[Any]
    appended: list[Any]
    constants: dict[int, tuple[Any, Source | None]]
    same_tables: set[int]
    opaque: dict[int, str]

    def track(self, real: Any, value: Any, source: Source) -> None:
        """Remember that `value` stands for `real`."""

    def source_of(self, value: Any) -> Source | None:
        """Where a value on the stack came from, for values of the user's."""

    def note_unread(self, unread: Any) -> None:
        """A list is appended to before it is read."""

    def forget_unread(self, unread: Any) -> None:
        """The list is read now."""

    def held(self, value: Any, source: Source | None = None) -> Any:
        """`value`; a constant that was there before the capture is that object in each call."""

    def is_iterator(self, value: Any) -> bool:
        """Whether taking an item from `value` would consume an iterator that capture did not make."""

    def items_of(self, value: Any) -> list[Any] | None:
        """The items of an object of the caller's that derives from list, each guarded; for reading only."""

    def wrap(self, value: Any, source: Source) -> Any:
        """Bring a value of the user's onto the stack, with the guards that pin down what it is."""


class Interpreter(Protocol):
    """One capture: frames, the graph, guards, what is known of the user's objects, effects."""

    out: OutputGraph
    guards: GuardSet
    definitions: Definitions
    effects: Effects
    frames: list[Frame]
    codes: dict[int, CodeType]
    globals_read: dict[tuple[int, str], Any]
    generators: weakref.WeakSet[Any]
    fake_mode: Any
    dynamic: Any  # `graph.dynamic.Dynamic`
    shape_env: Any
    splits: bool
    unread: bool
    recording: bool
    tail: bool
    step: int
    out_size: int
    ranges: list[tuple[str, str | None]]
    recipes: dict[int, tuple[Any, ...]]
    scopes: list[Any]
    open_scopes: list[Any]
    inference: bool
    device: torch.device | None
    parameters: dict[int, bool]
    caches: dict[int, dict[Any, Any]]
    current_error: BaseException | None
    outer_error: BaseException | None
    carried: Any  # what an exception says of its origin, while C code carries it
    delayed_break: CaptureError | None

    @property
    def user(self) -> Known:
        """What is known of the objects that existed before the capture."""

    @property
    def is_native(self) -> bool:
        """Whether capture stands where CPython is to run the rest of the innermost frame."""

    # ---- calling ----

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Call anything the program can call, and do something with the result: no frame below can be suspended."""

    def tail_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """`call` whose result is returned as it is; from a CALL instruction down, frames can be suspended."""

    def inline(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Interpret a Python function."""

    def resume(self, frame: Frame, error: BaseException | None, /) -> tuple[bool, Any]:
        """Run a suspended frame on: (True, what it returns) or (False, what it yields)."""

    def native(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call real Python code; its exceptions become the program's."""

    def native_recorded(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`native` for C code that may operate on tensors."""

    def call_tensor_method(self, tensor: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """`tensor.name(*args)`."""

    # ---- reading the user's world ----

    def is_created(self, obj: Any, /) -> bool:
        """Whether capture itself made the object."""

    def create(self, obj: Any, /) -> Any:
        """Note that capture made the object."""

    def type_of(self, value: Any, /) -> Any:
        """`type(value)` as the program sees it."""

    def is_frontend_class(self, kind: type, /) -> bool:
        """Whether `kind` is one of the frontend's own helper classes."""

    def is_library(self, module: str | None, /) -> bool:
        """Whether a module is torch's or Python's, and so not expected to change between calls."""

    def argument(self, value: Any, source: Source, /) -> Any:
        """Bring an argument of the call onto the stack."""

    def need_symbols(self) -> None:
        """From here on, sizes and numbers may be symbolic."""

    def places(self) -> list[SourceLine]:
        """The lines that capture is in, outermost first."""

    # ---- operators ----

    def load_attr(self, obj: Any, name: str, /) -> Any:
        """`obj.name`."""

    def truth(self, value: Any, /) -> bool:
        """`bool(value)`."""

    def iterate(self, value: Any, /) -> Any:
        """`iter(value)`."""

    def advance(self, iterator: Any, /) -> tuple[bool, Any]:
        """(True, next value), or (False, None) at the end."""

    def listed(self, value: Any, /) -> list[Any]:
        """`list(value)`."""

    def materialize(self, value: Any, /) -> Any:
        """A value that real Python code may look into: views of the user's mappings become plain dicts."""

    def refuse_iterator(self, value: Any, /) -> None:
        """Break the graph where C code would take items from an iterator that existed before the capture."""

    def tracked_mapping(self, value: Any, /) -> Any:
        """The reading view of a user's object that derives from dict."""

    def tracked_contents(self, value: Any, /) -> Any:
        """What a user's object that derives from dict or list holds, for reading."""
