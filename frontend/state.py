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

__all__ = ["ASSERTED", "EITHER", "Generator", "Interpreter", "Told", "Tracked"]


ASSERTED, EITHER = -1, -2  # in place of a jump: what is false raises; the caller goes both ways


@dataclass
class Tracked:
    """A value of the user's: the real object, what stands for it on the stack, where it was first seen."""

    real: Any
    value: Any
    source: Source


@dataclass
class Told:
    """Whether the program has asked if it is compiled. It is told so, but where it raised then (`refused`), which eager may not do."""

    asked: bool = False
    refused: str | None = None


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
    """What capture knows of the objects that existed before it; `values.user.UserState` says what each method does."""

    by_real: dict[int, Tracked]
    by_value: dict[int, Tracked]
    shadows: list[Any]
    arg_tensors: list[Any]
    appended: list[Any]
    given: list[Any]
    appending: Any
    constants: dict[int, tuple[Any, Source | None]]
    places: dict[int, tuple[Any, dict[Source, None]]]
    same_tables: set[int]
    fixed: bool
    keys: dict[int, tuple[Any, bool]]
    opaque: dict[int, str]
    iterators: dict[int, Any]

    def track(self, real: Any, value: Any, source: Source) -> None: ...
    def of_library(self, source: Source) -> bool: ...
    def source_of(self, value: Any) -> Source | None: ...
    def note_unread(self, unread: Any) -> None: ...
    def forget_unread(self, unread: Any) -> None: ...
    def held(self, value: Any, source: Source | None = None) -> Any: ...
    def real(self, value: Any) -> Any: ...
    def sources(self, value: Any) -> list[Source]: ...
    def is_iterator(self, value: Any) -> bool: ...
    def tell_apart(self, key: Any, pinned: bool = False) -> None: ...
    def items_of(self, value: Any) -> list[Any] | None: ...
    def wrap(self, value: Any, source: Source) -> Any: ...


class Interpreter(Protocol):
    """One capture: frames, the graph, guards, what is known of the user's objects, effects.

    `bytecode.symbolic_interpreter.SymbolicInterpreter` says what each method does.
    """

    out: OutputGraph
    guards: GuardSet
    definitions: Definitions
    effects: Effects
    created: dict[int, Any]
    frames: list[Frame]
    codes: dict[int, CodeType]
    globals_read: dict[tuple[int, str], Any]
    plain: set[FunctionType]
    generators: weakref.WeakSet[Any]
    steppings: list[Any]
    fake_mode: Any
    dynamic: Any  # `graph.dynamic.Dynamic`
    shape_env: Any
    splits: bool
    unread: bool
    recording: bool
    strict: bool
    methods: Any  # `classes.special_methods.SpecialMethods`
    called_back: int
    under_way: int
    step: int
    out_size: int
    ranges: list[tuple[str, str | None]]
    gradients: Any  # `gradients.inside.Inside`
    checks: Any  # `branches.checks.Checks`
    foreign: Any  # `foreign.tensors.Foreigners`
    overrides: Any  # `subclasses.overrides.Overrides`
    branches: Any  # `branches.branches.Branches`
    side: Any  # `branches.sides.Side`, while one runs
    texts: Any  # `values.text.Texts`
    addresses: Any  # `values.identity.Addresses`
    told: Told
    steps_of: Any  # `bytecode.opcodes.steps_of`
    stop_at: int
    locks: list[Any]
    recipes: dict[int, tuple[Any, ...]]
    scopes: list[Any]
    open_scopes: list[Any]
    exporting: bool
    inference: bool
    inferred: Any  # `modes.inference.Inference`
    defaults: Any  # `modes.defaults.Defaults`
    random: Any  # `modes.randomness.Generators`
    device: torch.device | None
    parameters: dict[int, bool]
    caches: dict[int, Any]  # `modes.caches.Cache`, by the id of what stands for it
    current_error: BaseException | None
    outer_error: BaseException | None
    carried: Any  # what an exception says of its origin, while C code carries it
    delayed_break: CaptureError | None

    @property
    def user(self) -> Known: ...
    @property
    def is_native(self) -> bool: ...

    # ---- calling ----

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool = False, /) -> Any: ...
    def inline(
        self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool = False, /
    ) -> Any: ...
    def resume(self, frame: Frame, error: BaseException | None, /) -> tuple[bool, Any]: ...
    def native(self, function: Any, /, *args: Any, **kwargs: Any) -> Any: ...
    def native_recorded(self, function: Any, /, *args: Any, **kwargs: Any) -> Any: ...
    def call_tensor_method(
        self, tensor: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Any: ...

    # ---- reading the user's world ----

    def is_created(self, obj: Any, /) -> bool: ...
    def create(self, obj: Any, /) -> Any: ...
    def type_of(self, value: Any, /) -> Any: ...
    def is_frontend_class(self, kind: type, /) -> bool: ...
    def is_library(self, module: str | None, /) -> bool: ...
    def is_library_frame(self, frame: Frame, /) -> bool: ...
    def argument(self, value: Any, source: Source, /) -> Any: ...
    def need_symbols(self) -> None: ...
    def places(self) -> list[SourceLine]: ...
    def read_operands(self, frame: Frame, count: int, arg: Any, /) -> None: ...

    # ---- operators ----

    def load_attr(self, obj: Any, name: str, /) -> Any: ...
    def truth(self, value: Any, /) -> bool: ...
    def decision(self, value: Any, jump: int | None = None, /) -> bool | None: ...
    def iterate(self, value: Any, /) -> Any: ...
    def advance(self, iterator: Any, /) -> tuple[bool, Any]: ...
    def listed(self, value: Any, /) -> list[Any]: ...
    def materialize(self, value: Any, /) -> Any: ...
    def tracked_mapping(self, value: Any, /) -> Any: ...
    def tracked_contents(self, value: Any, /) -> Any: ...
