"""The runtime: a compiled callable, its entries (one per set of guards), and its ways back to eager."""

from __future__ import annotations

import copy
import gc
import logging
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx, nn

from . import torch_private
from .breaks import Break
from .capture import Capture, Parameters, ProgramRaised, capture_bound
from .dynamic import Marks
from .errors import CaptureError, InternalError
from .guards import Emitter, GuardSet
from .inlined import inlined_entry
from .pieces import Piece
from .report import write_reproducer
from .stance import STANCE

__all__ = ["Backend", "CompiledModule", "Observer", "compile_callable"]

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]
_log = logging.getLogger("intarsia")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Observer(Protocol):
    """What a caller may want to be told; every method is optional."""

    def on_start(self, runtime: Any, miss: Any) -> None:
        """A callable or piece is about to be captured; `miss`: what the newest entry had against the call, or None."""

    def on_capture(self, seconds: float, capture: Capture) -> None:
        """A call was captured in so many seconds."""

    def on_recompile(self, reason: str) -> None:
        """No entry matched; `reason` names the guard of the newest entry that failed."""

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager: the user's line and why."""

    def on_break(self, broken: Break) -> None:
        """A graph broke; the call goes on in pieces."""

    def on_compile(self, seconds: float) -> None:
        """The backend compiled a graph in so many seconds."""

    def on_phase(self, name: str, seconds: float) -> None:
        """Something else of the first call took so many seconds: "entry", its function; "first run"."""


@dataclass(frozen=True)
class Options:
    """What `compile_callable` was asked for; pieces after graph breaks inherit it."""

    backend: Backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    observer: Any = None
    on_recompile: str = "compile"
    on_error: str = "warn"


def _callers_level() -> int:
    """The `stacklevel` with which the caller of this function warns at the program's line that made the call."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, "<intarsia")):
        level, frame = level + 1, frame.f_back
    return level


class Recompiled(RuntimeError):
    """A call does not fit what was compiled, where that was asked to be an error."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collections meanwhile: a capture or compile makes many small objects and hardly any cycles; half of its time was theirs."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS = _Miss()
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def load_rules() -> None:
    """Import what capture needs of torch: more than half a second, unless the program has done it."""
    if f"{__package__}.rules" in sys.modules:
        return
    with collector_paused():  # collections took a third of it
        from . import rules  # noqa: F401

        if gc.get_freeze_count() == 0:  # else the program has frozen objects of its own
            gc.freeze()  # what was imported stays: it is old at once, and no collection of young objects looks at it
            gc.unfreeze()


def compile_callable(
    target: Callable[..., Any] | nn.Module,
    *,
    backend: Backend,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    observer: Any = None,
    on_recompile: str = "compile",
    on_error: str = "warn",
) -> Callable[..., Any]:
    """A callable that behaves like `target` and runs it as graphs compiled by `backend`.

    A module gives a `CompiledModule`, a function a function with the same signature. What cannot be captured splits the
    call: the pieces around it are compiled, with one log line for each such place. With `fullgraph=True` it raises the
    capture's error instead.
    """
    load_rules()
    options = Options(backend, fullgraph, dynamic, recompile_limit, observer, on_recompile, on_error)
    if isinstance(target, nn.Module):
        return CompiledModule(target, options)
    return _Family(options).root(target).function


def forget(compiled: Any) -> None:
    """Drop everything that a compiled callable has captured; its next call captures anew."""
    runtime = getattr(compiled, "_intarsia_runtime", None) or compiled._runtime
    runtime.forget()


class CompiledModule(nn.Module):
    """A module whose call is compiled; everything else is the original's, reachable as `_orig_mod`.

    It has no state of its own: parameters, buffers, submodules, hooks and mode are the original's under the original's
    names, so that a state dict fits both. A pickle of it is a pickle of the original.
    """

    def __init__(self, module: nn.Module, options: Options) -> None:
        # nn.Module's own constructor would make a second, empty state.
        own_call = type(module).__call__ is not nn.Module.__call__  # with parameters other than `forward`'s, perhaps
        runtime = _Family(options).root(_caller(module) if own_call else module)
        self.__dict__.update(_orig_mod=module, _runtime=runtime, _call=runtime.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._orig_mod
        if module._forward_hooks or module._forward_pre_hooks or _global_hooks[0] or _global_hooks[1]:
            return self._as_called(*args, **kwargs)
        return self._call(*args, **kwargs)

    def _as_called(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call that tells positional arguments, keywords and defaults apart: hooks are shown them."""
        made = self.__dict__.get("_exact_call")
        if made is None:
            made = self.__dict__["_exact_call"] = _Family(self._runtime.options).root(_caller(self._orig_mod)).function
        return made(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call."""
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":  # not there yet: a copy in the making
            raise AttributeError(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.add_module(*args, **kwargs)

    def extra_repr(self) -> str:
        """The original's."""
        return str(self._orig_mod.extra_repr())

    def __copy__(self) -> CompiledModule:
        return CompiledModule(copy.copy(self._orig_mod), self._runtime.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self._orig_mod, memo), self._runtime.options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickled, (self._orig_mod,)


_global_hooks = torch_private.global_module_hooks()


def _caller(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.__module__, call.__qualname__ = type(module).__module__, type(module).__qualname__
    return call


def _unpickled(module: nn.Module) -> nn.Module:
    return module


# One capture at a time in the process: fake tensors and torch's global modes are shared by all threads.
_lock = threading.RLock()


_MOST_PIECES = 512  # a callable that breaks in more places than this is not worth more captures


class _Family:
    """One compiled callable: its own runtime and those of the pieces after its graph breaks."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.pieces: dict[Piece, _Runtime] = {}
        self.warned: set[Any] = set()

    def root(self, target: Any) -> _Runtime:
        """The runtime of the callable itself."""
        return _Runtime(target, target, self)

    def piece(self, piece: Piece) -> Callable[..., Any]:
        """The function of a piece; its captures are shared by all places that lead to it."""
        if piece.native:
            return piece.run_native
        with _lock:
            runtime = self.pieces.get(piece)
            if runtime is None and len(self.pieces) >= _MOST_PIECES:
                return piece.run_native
            if runtime is None:
                runtime = self.pieces[piece] = _Runtime(piece, piece.run_native, self)
        return runtime.function


class _Runtime:
    """Entries of one compiled callable or piece. `entries` only grows, so that calls need no lock."""

    def __init__(self, target: Any, original: Callable[..., Any], family: _Family) -> None:
        self.target, self.original, self.family, self.options = target, original, family, family.options
        # A piece is entered with other locals in each round of a loop, so that it may need more variants.
        self.limit = self.options.recompile_limit * (8 if isinstance(target, Piece) else 1)
        self.parameters = Parameters.of(target)
        self.entries: list[Callable[..., Any]] = []
        self.captures: list[Capture | None] = []
        self.guards: list[GuardSet] = []
        self.marks = Marks()
        self.raised = 0
        self.off = self.inlined = False
        self.parked: list[Callable[..., Any]] = []
        self.function = self._make_function()
        STANCE.join(self)

    def _make_function(self) -> Callable[..., Any]:
        """`def compiled(x, y=default): ...` with the target's own parameters, so that a hit costs one call."""
        # The parameters have the user's names: what else the function mentions begins with two underscores.
        namespace: dict[str, Any] = {"__entries": self.entries, "__MISS": MISS, "__runtime": self}
        heads, star = [], False
        parameters = self.parameters.signature.parameters
        for i, (name, parameter) in enumerate(parameters.items()):
            default = ""
            if parameter.default is not parameter.empty:
                namespace[f"__default_{i}"] = parameter.default
                default = f"=__default_{i}"
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                star = True
                heads.append("*")
            prefix = _STARS.get(parameter.kind.name, "")
            star = star or prefix == "*"
            heads.append(f"{prefix}{name}{default}")
            following = list(parameters.values())[i + 1 :]
            if parameter.kind is parameter.POSITIONAL_ONLY and not any(p.kind is p.POSITIONAL_ONLY for p in following):
                heads.append("/")
        names = ", ".join(parameters)
        owner = self.target if isinstance(self.target, nn.Module) else getattr(self.target, "__self__", None)
        bound = owner is not None and isinstance(self.target, nn.Module | types.MethodType)
        heads = ["__self", *heads] if bound else heads  # so that errors of wrong calls count it, as the user's own do
        pairs = ", ".join(f"{n!r}: {n}" for n in parameters)
        text = (
            f"def compiled({', '.join(heads)}):\n"
            "    __missed = None\n"
            "    for __entry in __entries:\n"
            f"        __result = __entry({names})\n"
            "        if __result is not __MISS:\n"
            "            if __missed is not None:\n"
            "                __runtime.prefer(__entry)\n"
            "            return __result\n"
            "        __missed = __entry\n"
            f"    return __runtime.miss({{{pairs}}})\n"
        )
        namespace["__text"] = text
        exec(compile(text, "<intarsia entry>", "exec"), namespace)
        function = namespace.pop("compiled")
        if isinstance(self.target, Piece):
            return function  # type: ignore[no-any-return]
        source = self.target.forward if isinstance(self.target, nn.Module) else self.target
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(source, name):
                setattr(function, name, getattr(source, name))
        function.__wrapped__ = source
        function._intarsia_target = self.target
        function._intarsia_runtime = self
        if bound:
            return types.MethodType(function, owner)
        return function  # type: ignore[no-any-return]

    def prefer(self, entry: Callable[..., Any]) -> None:
        """Try this entry first from now on. Another thread that misses one meanwhile looks again, under the lock."""
        if _lock.acquire(blocking=False):
            try:
                if entry in self.entries:
                    self.entries[:] = [entry, *(e for e in self.entries if e is not entry)]
            finally:
                _lock.release()

    # ---- the slow path ----

    def miss(self, values: dict[str, Any]) -> Any:
        """No entry matched: capture and compile another, or run in eager."""
        if self.off or (STANCE.now() != "default" and self._held(values)) or torch.compiler.is_compiling():
            return self.eager(values)
        with _lock:
            for entry in list(self.entries):
                result = entry(*values.values())
                if result is not MISS:
                    return result
            with torch_private.own_saving(), collector_paused():
                entry_made = self._new_entry(values)
        if isinstance(entry_made, ProgramRaised):
            return self._raising(values, entry_made)
        if entry_made is None:
            return self.eager(values)
        start = time.perf_counter()
        result = entry_made(*values.values())
        self._tell("on_phase", "first run", time.perf_counter() - start)
        if result is not MISS:
            return result
        miss = self.guards[-1].explain(values)
        self._warn(("own guards",), f"a fresh capture fails its own guards ({miss}); this call runs in eager")
        return self.eager(values)

    def _held(self, values: dict[str, Any]) -> bool:
        """Whether the stance makes a call that fits nothing run in eager."""
        if STANCE.now() == "fail_on_recompile":
            raise Recompiled(
                f"{self._name()} would be compiled while the stance is 'fail_on_recompile': {self.why(values)}"
            )
        return True

    def forget(self) -> None:
        """Back to the state before the first call."""
        with _lock:
            for kept in (self.entries, self.captures, self.guards, self.marks, self.family.pieces):
                kept.clear()  # type: ignore[attr-defined]
            self.raised, self.off = 0, False

    def eager(self, values: dict[str, Any]) -> Any:
        """The original, untouched."""
        args, kwargs = self.parameters.spread(values)
        return self.original(*args, **kwargs)

    def _new_entry(self, values: dict[str, Any]) -> Callable[..., Any] | ProgramRaised | None:
        self._tell("on_start", self, self.guards[-1].explain(values) if self.entries and self.guards else None)
        if self.entries:
            why = self.why(values)
            self._tell("on_recompile", why)
            if self.options.on_recompile == "error":
                raise Recompiled(f"{self._name()} would be compiled again (on_recompile='error'): {why}")
            if self.options.on_recompile == "eager":
                self._warn(
                    ("recompile", self.target, why),
                    f"{self._name()}: {why}; such calls run in eager (on_recompile='eager')",
                )
                return None
        if len(self.entries) >= self.limit:
            self.off = True
            self._warn(
                ("limit", self.target),
                f"{self._name()} was compiled {self.limit} times (recompile_limit); other "
                f"calls run in eager. Last reason: {self.why(values)}",
            )
            return None
        start = time.perf_counter()
        try:
            made = capture_bound(
                self.target,
                self.parameters,
                values,
                dynamic=bool(self.options.dynamic),
                marks=self._marks(values),
                family=None if self.options.fullgraph else self.family,
            )
        except ProgramRaised as raised:
            return raised
        except CaptureError as error:
            return self._fallback(error, values)
        self._tell("on_capture", time.perf_counter() - start, made)
        graph = self._compile(made, values) if made.operations else made.graph_module.forward
        if made.broken is not None:
            self._broke(made.broken)
        start = time.perf_counter()
        entry = made.compile_entry(graph, MISS, self._again if made.repeatable else None)
        if not self.inlined and not isinstance(self.target, Piece):
            self.inlined = True  # once: other threads may be inside
            function: Any = getattr(self.function, "__func__", self.function)
            inlined_entry(function, made.residual, entry.__globals__, self.parameters.names, entry)
        self._tell("on_phase", "entry", time.perf_counter() - start)
        self.guards.append(made.guards)
        self.captures.append(made)
        self.entries.append(entry)
        return entry

    def _compile(self, made: Capture, values: dict[str, Any]) -> Callable[..., Any]:
        start = time.perf_counter()
        training = torch.is_grad_enabled()
        inputs = made.example_inputs
        if getattr(self.options.backend, "real_inputs", False) and not torch_private.has_symbols(inputs):
            inputs = [source.fetch(values) for source in made.inputs]
        if not getattr(self.options.backend, "takes_floats", False):
            torch_private.write_code(made.graph_module)  # another's backend may look at it in any way
        with torch.inference_mode(False), torch.set_grad_enabled(training):
            graph = self.options.backend(made.graph_module, inputs)
        self._tell("on_compile", time.perf_counter() - start)
        return graph

    def _again(self, error: Exception, values: tuple[Any, ...]) -> Any:
        """A graph raised before anything was changed: eager raises where the program does, after its effects so far."""
        if getattr(error, "blames_backend", False):
            raise error
        result = self.eager(dict(zip(self.parameters.names, values, strict=True)))
        self._warn(
            ("graph", self.target), f"a graph of {self._name()} raised {type(error).__name__}: {error}; eager does not"
        )
        return result

    def _marks(self, values: dict[str, Any]) -> Marks:
        """What has changed since the calls that the entries were made for."""
        if self.options.dynamic is not False:
            self.marks.floats = getattr(self.options.backend, "takes_floats", False)
            self.marks.learn(self.guards, values)
        if isinstance(self.target, Piece):
            self.marks.learn_varying(self.guards, values, self.options.recompile_limit)
        return self.marks

    def _raising(self, values: dict[str, Any], raised: ProgramRaised) -> Any:
        """The program raises: eager shows how. Where eager does not, capture was wrong, and says so."""
        self.raised += 1
        if self.raised >= 3 * self.limit:
            self.off = True
        result = self.eager(values)
        with _lock:
            self._fallback(raised.unsupported(), values)
        return result

    def _fallback(self, error: CaptureError, values: dict[str, Any]) -> Callable[..., Any] | None:
        place = error.place
        if isinstance(error, InternalError) and (self.options.fullgraph or self.options.on_error == "raise"):
            raise error
        if self.options.fullgraph:
            error.advice += ", or let the graph break here (fullgraph=False)"
            raise error.with_traceback(None)  # where capture was inside itself tells the user nothing
        self._tell("on_fallback", place.filename, place.lineno, place.text, error.reason)
        where = f"{place.filename}:{place.lineno}: {place.text}\n  " if error.frames else ""
        kind = "graph break: " if error.heading == "graph break" else ""
        internal = ""
        if isinstance(error, InternalError):
            path = write_reproducer(error, self.target, values)
            internal = f" (an error inside intarsia; please report it{f' with {path}' if path else ''})"
        self._warn(
            (place.filename, place.lineno),
            f"{where}{kind}{error.reason}{internal}; {self._name()} runs in eager. What to do: {error.advice}",
        )
        guards = getattr(error, "guards", None)
        if guards is None:
            return None
        entry = self._eager_entry(guards)
        self.guards.append(guards)
        self.captures.append(None)
        self.entries.append(entry)
        return None

    def _eager_entry(self, guards: GuardSet) -> Callable[..., Any]:
        """An entry that remembers, under the same guards, that these calls run in eager."""
        emit = Emitter()
        guards.lines(emit)
        values = ", ".join(f"{n!r}: {n}_" for n in self.parameters.names)
        lines = [f"def entry({', '.join(f'{n}_' for n in self.parameters.names)}):", "    try:"]
        lines += [f"        {line}" for line in emit.lines] or ["        pass"]
        lines += ["    except Exception:", "        return MISS"]
        lines += [f"    return eager({{{values}}})"]
        namespace = {**emit.namespace, "MISS": MISS, "eager": self.eager}
        exec(compile("\n".join(lines), "<intarsia eager entry>", "exec"), namespace)
        return namespace["entry"]  # type: ignore[no-any-return]

    # ---- telling ----

    def why(self, values: dict[str, Any]) -> str:
        """Why the most general entry does not match: the newest one with symbols, else the newest."""
        newest = list(reversed(self.guards))
        misses = (g.explain(values) for g in sorted(newest, key=lambda g: not g.has_symbols))
        miss = next((m for m in misses if m is not None), None)
        return str(miss) if miss is not None else "no guard names a reason"

    def _name(self) -> str:
        if isinstance(self.target, Piece):
            return f"{self.target.code.co_qualname} from line {self.target.line} on"
        return getattr(self.target, "__qualname__", None) or type(self.target).__name__

    @property
    def pieces(self) -> dict[Piece, _Runtime]:
        """The runtimes of the pieces that follow graph breaks, of this callable and of what it inlined."""
        return self.family.pieces

    def _broke(self, broken: Break) -> None:
        """One log line for each place at which a graph broke."""
        self._tell("on_break", broken)
        key = (broken.place, broken.reason)
        if key not in self.family.warned:
            self.family.warned.add(key)
            place = broken.place
            text = f"\n    {place.text}" if place.text else ""
            _log.warning("graph break at %s:%d: %s%s", place.filename, place.lineno, broken.reason, text)

    def _tell(self, event: str, *args: Any) -> None:
        method = getattr(self.options.observer, event, None)
        if method is not None:
            method(*args)

    def _warn(self, key: tuple[Any, ...], message: str) -> None:
        """One warning per line of the user's."""
        if key in self.family.warned:
            return
        self.family.warned.add(key)
        _log.info("%s", message)
        warnings.warn(f"intarsia: {message}", RuntimeWarning, stacklevel=_callers_level())
