"""The runtime of a compiled callable: its entries (one for each set of guards), how new ones come, and its ways back to eager.

No thread waits here for another. One thread at a time captures and compiles a callable, or a piece of one; another that meanwhile
finds no entry for its call runs it in eager. So user code, which capture runs in places and entries consist of, is never run
under a lock of ours.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from ..breaks.breaks import Break
from ..breaks.pieces import Piece, leave_contexts
from ..entry.capture import Capture, ProgramRaised, capture_bound
from ..entry.generate import MISS, Default, compiled_function, eager_entry, owner_of
from ..entry.inlined import inlined_entry
from ..entry.parameters import UNGIVEN, Parameters
from ..errors import Busy, CaptureError, InternalError
from ..graph.dynamic import Marks
from ..guards.checks import HeldModules
from ..guards.filters import GuardFilter
from ..guards.guards import Guard, GuardSet
from ..guards.recompile_reason import reason
from ..guards.source import Source
from ..torch_private.autograd import own_saving
from ..torch_private.graphs import write_code
from ..torch_private.guards import unseen_by_modes
from ..torch_private.symbols import has_symbols
from .collector import GARBAGE, collector_paused
from .fallback import Reporter, fallback_text
from .hidden_frames import unseen
from .stance import STANCE

__all__ = ["Backend", "Family", "Observer", "Options", "Recompiled", "Runtime"]

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


class Observer(Protocol):
    """What a caller may want to be told; every method is optional. Captures of several threads may be under way at once."""

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
    keep: GuardFilter | None = None  # which guards


class Recompiled(RuntimeError):
    """A call does not fit what was compiled, where that was asked to be an error."""


_Kind = inspect.Parameter
_MOST_PIECES = 512  # a callable that breaks in more places than this is not worth more captures
_MOST_RAISING = 8  # remembered kinds of calls in which the program raises


class Family:
    """One compiled callable: its own runtime and those of the pieces after its graph breaks. The runtime keeps it alive."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.functions: dict[Piece, Callable[..., Any]] = {}
        self.reporter = Reporter(options.observer)
        self._vain = self._left = 0  # looks at who keeps modules alive that found nothing; captures until the next

    def looks(self) -> bool:
        """Whether this capture looks for modules that nobody needs."""
        self._left -= 1
        return self._left < 0

    def looked(self, found: bool) -> None:
        """What the look gave: after a vain one the next comes later."""
        self._vain = 0 if found else self._vain + 1
        self._left = min(2**self._vain // 8, 64)

    def compile(self, target: Any) -> Callable[..., Any]:
        """The compiled function of the callable itself; its runtime is `_intarsia_runtime`."""
        original = functools.partial(_forward, target) if isinstance(target, torch.nn.Module) else target
        runtime = Runtime(target, original, self, root=True)
        return runtime.made()

    def piece(self, piece: Piece) -> Callable[..., Any]:
        """The function of a piece; its captures are shared by all places that lead to it."""
        if piece.native:
            return piece.run_native
        known = self.functions.get(piece)
        if known is not None:
            return known
        if len(self.functions) >= _MOST_PIECES:
            return piece.run_native
        return self.functions.setdefault(piece, Runtime(piece, piece.run_native, self).made())

    @property
    def pieces(self) -> dict[Piece, Runtime]:
        """The runtimes of the pieces."""
        return {piece: function._intarsia_runtime for piece, function in list(self.functions.items())}  # type: ignore[attr-defined]


@unseen
class Runtime:
    """Entries of one compiled callable or piece. Calls read `entries` without a lock: it is changed in single steps.

    The compiled function keeps its runtime alive, and everything that was compiled with it: what a runtime keeps leads
    back neither to the function nor to the runtime, so that all of it goes with the function, without a collection.
    """

    def __init__(self, target: Any, original: Callable[..., Any], family: Family, root: bool = False) -> None:
        self.target, self.original, self.options = target, original, family.options
        self._family, self._root = weakref.ref(family), family if root else None
        # A piece is entered with other locals in each round of a loop, so that it may need more variants.
        self.limit = self.options.recompile_limit * (8 if isinstance(target, Piece) else 1)
        self.parameters = Parameters.of(target)
        self.entries: list[Callable[..., Any]] = []
        self.captures: list[Capture | None] = []
        self.guards: list[GuardSet] = []
        self.parked: list[Callable[..., Any]] = []
        self.marks = Marks()
        self.raising: list[Callable[..., Any]] = []
        self.off = self.inlined = self.waited = False
        self.checks = True  # whether the side of an `if` that raises may be left out of the graph
        self.changes = 0  # how often an entry was added, or all were dropped
        self.busy = threading.Lock()  # never waited for
        self._function: weakref.ref[types.FunctionType] | None = None
        STANCE.join(self)

    def __del__(self) -> None:
        GARBAGE.dead += 1

    @property
    def family(self) -> Family:
        """What the callable belongs to; a new one where that is gone and a part of it still runs."""
        return self._family() or Family(self.options)

    @property
    def pieces(self) -> dict[Piece, Runtime]:
        """The runtimes of the pieces that follow graph breaks, of this callable and of what it inlined."""
        return self.family.pieces

    def made(self) -> Callable[..., Any]:
        """The compiled function, bound where the target is."""
        function = compiled_function(self.target, self.parameters, self.entries, self)
        self._function = weakref.ref(function)
        function._intarsia_runtime = self  # type: ignore[attr-defined]
        if isinstance(self.target, Piece):
            return function
        source = self.target.forward if isinstance(self.target, torch.nn.Module) else self.target
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(source, name):
                setattr(function, name, getattr(source, name))
        if not hasattr(source, "__qualname__"):  # an object: errors of wrong calls name its method
            function.__qualname__ = getattr(type(source).__call__, "__qualname__", "compiled")
        function.__wrapped__ = source  # type: ignore[attr-defined]
        if owner_of(self.target) is not None:
            itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
            shown = self.parameters.signature
            with suppress(TypeError, ValueError):
                # A decorated method shows the one below: Trainer takes columns by these names.
                shown = inspect.signature(source)
            others = [p for p in shown.parameters.values() if p.name != "self"]
            function.__signature__ = inspect.Signature([itself, *others])  # type: ignore[attr-defined]
        function._intarsia_target = self.target  # type: ignore[attr-defined]
        return self._bound(function)

    def is_made(self, function: Any) -> bool:
        """Whether this is the compiled function itself, and no function around it that has its attributes."""
        return self._function is not None and self._function() is function

    def _bound(self, function: types.FunctionType) -> Callable[..., Any]:
        owner = owner_of(self.target)
        return function if owner is None else types.MethodType(function, owner)

    def prefer(self, entry: Callable[..., Any]) -> None:
        """Try this entry first from now on. Another thread that misses one meanwhile looks again before it captures."""
        with STANCE.changing:
            if entry in self.entries:
                self.entries[:] = [entry, *(e for e in self.entries if e is not entry)]

    # ---- the slow path ----

    def miss(self, values: dict[str, Any]) -> Any:
        """No entry matched: capture and compile another, or run in eager."""
        values = self.parameters.complete(values)
        if any(value is UNGIVEN for value in values.values()):
            return self.eager(values)  # raises, in Python's words
        if self.off or (STANCE.now() != "default" and self._held(values)) or torch.compiler.is_compiling():
            return self.eager(values)
        while True:
            seen = self.changes
            for entry in list(self.entries):  # one that came meanwhile, or that `prefer` moved
                result = entry(*values.values())
                if result is not MISS:
                    return result
            if not self.busy.acquire(blocking=False):
                return self.eager(values)
            if self.changes == seen:
                break
            self.busy.release()
        GARBAGE.take_away()
        try:
            with own_saving(), collector_paused(), unseen_by_modes():
                entry_made = self._new_entry(values)
        except Exception as error:
            if isinstance(self.target, Piece):
                leave_contexts(self.target, [*values.values()], error)
            raise
        finally:
            self.busy.release()
        if isinstance(entry_made, ProgramRaised):
            return self._raising(values, entry_made)
        if entry_made is None:
            return self.eager(values)
        start = time.perf_counter()
        result = entry_made(*values.values())
        self._tell("on_phase", "first run", time.perf_counter() - start)
        if result is not MISS:
            return result
        miss = entry_made.guards.explain(values)  # type: ignore[attr-defined]
        self._warn(("own guards",), f"a fresh capture fails its own guards ({miss}); this call runs in eager")
        return self.eager(values)

    def _held(self, values: dict[str, Any]) -> bool:
        """Whether the stance makes a call that fits nothing run in eager."""
        if STANCE.now() == "eager_then_compile":
            first, self.waited = not (self.waited or self.captures), True
            return first and not isinstance(self.target, Piece)
        if STANCE.now() == "fail_on_recompile":
            raise Recompiled(
                f"{self.name()} would be compiled while the stance is 'fail_on_recompile': {self.why(values)}"
            )
        return True

    def forget(self) -> None:
        """Back to the state before the first call. A capture that is under way on another thread is not kept."""
        with STANCE.changing:
            self.changes += 1
            for kept in (self.entries, self.parked, self.captures, self.guards, self.raising):
                kept.clear()  # type: ignore[attr-defined]
            self.marks, self.off, self.waited = Marks(), False, False
            self.family.functions.clear()

    def eager(self, values: dict[str, Any]) -> Any:
        """The original, untouched."""
        args, kwargs = self.parameters.spread(values)
        return self.original(*args, **kwargs)

    def wrong(self, values: dict[str, Any], more: tuple[Any, ...], others: dict[str, Any]) -> Any:
        """A call with arguments that the target does not take: eager says so."""
        kinds = {name: p.kind for name, p in self.parameters.signature.parameters.items()}
        given = {n: v for n, v in values.items() if v is not UNGIVEN and not isinstance(v, Default)}
        args = [v for n, v in given.items() if kinds[n] in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)]
        named = {n: v for n, v in given.items() if kinds[n] is _Kind.KEYWORD_ONLY}
        packed: dict[str, Any] = next((v for n, v in given.items() if kinds[n] is _Kind.VAR_KEYWORD), {})
        return self.original(*args, *more, **named, **packed, **others)

    def _publish(
        self, entry: Callable[..., Any], guards: GuardSet, capture: Capture | None, seen: int, raising: bool = False
    ) -> None:
        """Add an entry, unless everything was dropped since `seen`."""
        entry.guards = guards  # type: ignore[attr-defined]
        with STANCE.changing:
            if self.changes != seen:
                return
            self.changes += 1
            self.guards.append(guards)
            self.captures.append(capture)
            (self.parked if STANCE.name == "force_eager" else self.entries).append(entry)
            if raising:
                self.raising.append(entry)
                if len(self.raising) > _MOST_RAISING:
                    self._drop(self.raising[0].guards)  # type: ignore[attr-defined]

    def _drop(self, guards: GuardSet) -> None:
        """Forget the entry with these guards."""
        with STANCE.changing:
            for entries in (self.raising, self.entries, self.parked):
                entries[:] = [e for e in entries if e.guards is not guards]  # type: ignore[attr-defined]
            for place, found in enumerate(self.guards):
                if found is guards:
                    del self.guards[place], self.captures[place]
                    break

    def _new_entry(self, values: dict[str, Any]) -> Callable[..., Any] | ProgramRaised | None:
        seen = self.changes
        self._tell("on_start", self, self.guards[-1].explain(values) if self.entries and self.guards else None)
        compiled = len(self.entries) - len(self.raising)
        if compiled:
            why = self.why(values)
            self._tell("on_recompile", why)
            if self.options.on_recompile == "error":
                raise Recompiled(f"{self.name()} would be compiled again (on_recompile='error'): {why}")
            if self.options.on_recompile == "eager":
                self._warn(
                    ("recompile", self.target, why),
                    f"{self.name()}: {why}; such calls run in eager (on_recompile='eager')",
                )
                return None
        if compiled >= self.limit:
            self.off = True
            self._warn(
                ("limit", self.target),
                f"{self.name()} was compiled {self.limit} times (recompile_limit); other "
                f"calls run in eager. Last reason: {self.why(values)}",
            )
            return None
        start = time.perf_counter()
        family = self.family
        try:
            made = capture_bound(
                self.target,
                self.parameters,
                values,
                dynamic=bool(self.options.dynamic),
                marks=self._marks(values),
                family=None if self.options.fullgraph else family,
                checks=self.checks,
                keep=self.options.keep,
            )
        except ProgramRaised as raised:
            raised.forget()
            return raised
        except CaptureError as error:
            self._fallback(error, values, seen)
            error.forget()
            return None
        self._tell("on_capture", time.perf_counter() - start, made)
        try:
            graph = self._compile(made, values) if made.operations else made.graph_module.forward
        except Busy:  # of torch's tracing, for very long: another call may have more luck
            return None
        if made.broken is not None:
            family.reporter.broke(made.broken)
        start = time.perf_counter()
        # Where nothing was changed when a graph raises, eager shows what the program does up to the line that raises.
        repeatable = made.repeatable or made.entry.draws
        untouched = repeatable and (not made.writes or getattr(graph, "writes_last", False))
        checks = bool(made.entry.failing)
        again = self._again(checks or untouched, made) if checks or repeatable else None
        entry = made.compile_entry(graph, MISS, again)
        function = self._function() if self._function is not None else None
        stays = not any(
            g.is_replaceable() or g.is_of_state() for g in made.guards.parts.values()
        )  # what is inlined is never dropped
        if not self.inlined and not isinstance(self.target, Piece) and function is not None and stays:
            self.inlined = True  # once: other threads may be inside
            inlined_entry(function, made.entry, entry.__globals__, entry)
        self._tell("on_phase", "entry", time.perf_counter() - start)
        self._let_go(values)
        self._publish(entry, made.guards, made, seen)
        return entry

    def _let_go(self, values: dict[str, Any]) -> None:
        """Drop the entries for modules that were replaced, and that nobody but compiled callables keeps alive.

        To ask who keeps one alive is to look at every object of the process: once for all candidates, and ever more seldom while
        all are in use, as those of functions are that one layer after the other calls.
        """
        candidates = {}  # ids: a list of them would be one who refers to them
        for entry in list(self.entries):
            guards: GuardSet = entry.guards  # type: ignore[attr-defined]
            replaced = {id(g.expected) for g in list(guards.parts.values()) if g.replaced(values)}
            if replaced:
                candidates[id(guards)] = guards, replaced
        if not candidates or not self.family.looks():
            return
        wanted = set().union(*(modules for _, modules in candidates.values()))
        held = (g.expected for guards, _ in candidates.values() for g in list(guards.parts.values()))
        needed = _needed({id(value): value for value in held if id(value) in wanted})
        gone = [guards for guards, modules in candidates.values() if not modules <= needed]
        self.family.looked(bool(gone))
        for guards in gone:
            self._drop(guards)

    def _compile(self, made: Capture, values: dict[str, Any]) -> Callable[..., Any]:
        start = time.perf_counter()
        training = torch.is_grad_enabled()
        inputs = made.example_inputs
        made.graph_module.meta["function"] = self.name()
        if getattr(self.options.backend, "real_inputs", False) and not has_symbols(inputs):
            inputs = [source.fetch(values) for source in made.inputs]
        if not getattr(self.options.backend, "takes_floats", False):
            write_code(made.graph_module)  # another's backend may look at it in any way
        with torch.inference_mode(False), torch.set_grad_enabled(training):
            graph = self.options.backend(made.graph_module, inputs)
        forget = getattr(self.options.backend, "forget", None)
        if forget is not None:
            weakref.finalize(made, forget, made.graph_module).atexit = False
        self._tell("on_compile", time.perf_counter() - start)
        return graph

    def _again(self, always: bool, made: Capture) -> Callable[[Exception | None, tuple[Any, ...]], Any]:
        """What an entry does where its graph raises before anything was changed: eager raises where the program does,
        after its effects so far. Without `always`, where the error says that nothing was written. Where the error is None, a check
        of the program's has failed."""
        reference, guards, made_entry = weakref.ref(self), made.guards, made.entry

        def again(error: Exception | None, values: tuple[Any, ...]) -> Any:
            runtime = reference()
            if error is None:
                assert runtime is not None  # the compiled function is being called
                return runtime._unchecked(dict(zip(runtime.parameters.names, values, strict=True)), guards, made_entry)
            kept = not always and not hasattr(error, "unwritten")
            if runtime is None or kept or hasattr(error, "blames_backend") or hasattr(error, "of_program"):
                raise error
            try:
                result = runtime.eager(dict(zip(runtime.parameters.names, values, strict=True)))
            except BaseException as raised:
                _without_context(raised, error)
                raise
            runtime._warn(
                ("graph", runtime.target),
                f"a graph of {runtime.name()} raised {type(error).__name__}: {error}; eager does not",
            )
            return result

        return again

    def _unchecked(self, values: dict[str, Any], guards: GuardSet, entry: Any) -> Any:
        """A call in which a check fails. Where eager does not raise, as the program catches it, it is no check from now on, unless it is
        `lasting`. Where sides that warn were left out, they are so no more."""
        result = self.eager(values)
        passed_over = entry.passes_over and self.marks.passes_over
        if not self.options.fullgraph and (passed_over or not entry.lasting):
            self.marks.passes_over = self.marks.passes_over and not passed_over
            self.checks = self.checks and passed_over
            self._drop(guards)
        return result

    def _marks(self, values: dict[str, Any]) -> Marks:
        """What has changed since the calls that the entries were made for."""
        for past in [known for known in self.guards if known.is_past(values)]:
            self._drop(past)
        marks, guards = self.marks, list(self.guards)
        marks.gradients = getattr(self.options.backend, "takes_gradients", False)
        if self.options.dynamic is not False:
            marks.floats = getattr(self.options.backend, "takes_floats", False)
            marks.learn(guards, values)
        if isinstance(self.target, Piece):
            marks.learn_varying(guards, values, self.options.recompile_limit)
        return marks

    def _raising(self, values: dict[str, Any], raised: ProgramRaised) -> Any:
        """The program raises: eager shows how, now and in later calls of the kind. Where eager does not, capture was wrong."""
        seen = self.changes
        try:
            result = self.eager(values)
        except BaseException:
            # Such calls go to eager at once as long as they raise; what else decides that, the guards need not know.
            self._publish_eager(raised.guards, seen, raising=True)
            raise
        self._fallback(raised.unsupported(), values, seen)
        return result

    def _publish_eager(self, guards: GuardSet, seen: int, raising: bool = False) -> None:
        """Add an entry that runs in eager; with `raising`, until a call does not raise."""
        reference: weakref.ref[Any] = weakref.ref(self)

        def eager(values: dict[str, Any]) -> Any:
            runtime = reference()
            assert runtime is not None  # the compiled function is being called
            result = runtime.eager(values)
            if raising:
                runtime._drop(guards)
            return result

        self._publish(eager_entry(guards, self.parameters, eager), guards, None, seen, raising)

    def _fallback(self, error: CaptureError, values: dict[str, Any], seen: int) -> None:
        """This call and those like it run in eager; say so."""
        place = error.place
        if isinstance(error, InternalError) and (self.options.fullgraph or self.options.on_error == "raise"):
            raise error
        if self.options.fullgraph or error.asked:
            how = "fullgraph=False" if self.options.fullgraph else "torch._dynamo.error_on_graph_break(False)"
            error.advice += f", or let the graph break here ({how})"
            raise error.with_traceback(None)  # where capture was inside itself tells the user nothing
        self._tell("on_fallback", place.filename, place.lineno, place.text, error.reason)
        self._warn((place.filename, place.lineno), fallback_text(error, self.target, self.name(), values))
        guards = getattr(error, "guards", None)
        if guards is not None:
            self._publish_eager(guards, seen)

    # ---- telling ----

    def why(self, values: dict[str, Any]) -> str:
        """Why the most general entry does not match: the newest one with symbols, else the newest."""
        return reason(self.guards, values)

    def name(self) -> str:
        """What reports call the callable."""
        if isinstance(self.target, Piece):
            return f"{self.target.code.co_qualname} from line {self.target.line} on"
        return getattr(self.target, "__qualname__", None) or type(self.target).__name__

    def _tell(self, event: str, *args: Any) -> None:
        self.family.reporter.tell(event, *args)

    def _warn(self, key: tuple[Any, ...], message: str) -> None:
        self.family.reporter.warn(key, message)


def _needed(modules: dict[int, torch.nn.Module]) -> set[int]:
    """The ids of those that something other than guards, and what entries refer to, refers to; running functions too."""
    known = dict.fromkeys(modules, 1)  # the references of ours; the first is `modules`
    needed: set[int] = set()
    for holder in gc.get_referrers(*modules.values()):
        if holder is modules:
            continue
        if isinstance(holder, dict) and holder.get("MISS") is MISS:
            found = list(holder.values())
        elif isinstance(holder, HeldModules):
            found = list(holder)
        elif isinstance(holder, Guard | Source):
            found = gc.get_referents(holder)
        else:
            needed.update(known.keys() & set(map(id, gc.get_referents(holder))))
            continue
        for value in found:
            if id(value) in known:
                known[id(value)] += 1
        found, value = [], None
    return needed.union(key for key in modules if _references(modules[key]) > known[key] + _UNSEEN)


def _without_context(raised: BaseException, error: Exception) -> None:
    """What eager raises knows nothing of what a graph raised."""
    last, seen = raised, {id(raised)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        if last.__context__ is error:
            last.__context__ = None
            return
        last = last.__context__
        seen.add(id(last))


def _references(value: Any) -> int:
    return sys.getrefcount(value)


_UNSEEN = _references(object())  # of a value that nothing refers to


@unseen
def _forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What of a module is compiled: hooks are the business of `CompiledModule.__call__`."""
    return module.forward(*args, **kwargs)


def _after_fork() -> None:
    """In a child there is only the thread that forked: nobody captures."""
    for runtime in STANCE.runtimes():
        runtime.busy = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
