"""The runtime: a compiled callable, its entries (one per set of guards), and its ways back to eager."""

from __future__ import annotations

import copy
import logging
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx, nn

from .capture import Capture, Parameters, ProgramRaised, capture_bound
from .errors import CaptureError, InternalError
from .guards import Emitter, GuardSet

__all__ = ["Backend", "CompiledModule", "Observer", "compile_callable"]

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]
_log = logging.getLogger("intarsia")


class Observer(Protocol):
    """What a caller may want to be told; every method is optional."""

    def on_capture(self, seconds: float, capture: Capture) -> None:
        """A call was captured in so many seconds."""

    def on_recompile(self, reason: str) -> None:
        """No entry matched; `reason` names the guard of the newest entry that failed."""

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager: the user's line and why."""

    def on_compile(self, seconds: float) -> None:
        """The backend compiled a graph in so many seconds."""


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS = _Miss()
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def compile_callable(
    target: Callable[..., Any] | nn.Module,
    *,
    backend: Backend,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    observer: Any = None,
) -> Callable[..., Any]:
    """A callable that behaves like `target` and runs it as graphs compiled by `backend`.

    A module gives a `CompiledModule`, a function a function with the same signature. Calls that cannot be captured
    run in eager, with one warning a line; with `fullgraph=True` they raise the capture's error instead.
    """
    # FakeTensorMode imports torch._dynamo (about a second): pay that here, not in the first call.
    from . import rules  # noqa: F401

    if isinstance(target, nn.Module):
        return CompiledModule(target, backend, fullgraph, dynamic, recompile_limit, observer)
    runtime = _Runtime(target, target, backend, fullgraph, dynamic, recompile_limit, observer)
    return runtime.function


def forget(compiled: Any) -> None:
    """Drop everything that a compiled callable has captured; its next call captures anew."""
    runtime = getattr(compiled, "_intarsia_runtime", None) or compiled._runtime
    runtime.forget()


class CompiledModule(nn.Module):
    """A module whose call is compiled; everything else is the original's, reachable as `_orig_mod`."""

    def __init__(
        self,
        module: nn.Module,
        backend: Backend,
        fullgraph: bool,
        dynamic: bool | None,
        recompile_limit: int,
        observer: Any,
    ) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        runtime = _Runtime(module, module, backend, fullgraph, dynamic, recompile_limit, observer)
        self.__dict__["_runtime"] = runtime
        self.__dict__["_call"] = runtime.function
        self.__dict__["training"] = module.training

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        """On the original, whose call is what is compiled; so for the other kinds of hooks."""
        return self._modules["_orig_mod"].register_forward_hook(*args, **kwargs)  # type: ignore[union-attr]

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self._modules["_orig_mod"].register_forward_pre_hook(*args, **kwargs)  # type: ignore[union-attr]

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self._modules["_orig_mod"].register_full_backward_hook(*args, **kwargs)  # type: ignore[union-attr]

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self._modules["_orig_mod"].register_full_backward_pre_hook(*args, **kwargs)  # type: ignore[union-attr]

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        run = self._runtime
        options = (run.backend, run.fullgraph, run.dynamic, run.recompile_limit, run.observer)
        return CompiledModule(copy.deepcopy(self._modules["_orig_mod"], memo), *options)  # type: ignore[arg-type]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call."""
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        if name == "_orig_mod":
            return modules["_orig_mod"]
        return getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training":
            self.__dict__["training"] = value
        elif "_orig_mod" in self.__dict__.get("_modules", {}):
            setattr(self._modules["_orig_mod"], name, value)
        else:
            super().__setattr__(name, value)


class _Runtime:
    """Entries of one compiled callable. `entries` only grows, so that calls need no lock."""

    def __init__(
        self,
        target: Any,
        original: Callable[..., Any],
        backend: Backend,
        fullgraph: bool,
        dynamic: bool | None,
        recompile_limit: int,
        observer: Any,
    ) -> None:
        self.target, self.original, self.backend = target, original, backend
        self.fullgraph, self.dynamic, self.recompile_limit = fullgraph, dynamic, recompile_limit
        self.observer = observer
        self.parameters = Parameters.of(target)
        self.entries: list[Callable[..., Any]] = []
        self.captures: list[Capture | None] = []
        self.guards: list[GuardSet] = []
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.marks: dict[str, frozenset[int]] = {}
        self.raised = 0
        self.off = False
        self._warned: set[Any] = set()
        self._lock = threading.RLock()
        self.function = self._make_function()

    def _make_function(self) -> Callable[..., Any]:
        """`def compiled(x, y=default): ...` with the target's own parameters, so that a hit costs one call."""
        namespace: dict[str, Any] = {"entries": self.entries, "MISS": MISS, "runtime": self}
        heads, star = [], False
        parameters = self.parameters.signature.parameters
        for i, (name, parameter) in enumerate(parameters.items()):
            default = ""
            if parameter.default is not parameter.empty:
                namespace[f"default_{i}"] = parameter.default
                default = f"=default_{i}"
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
        pairs = ", ".join(f"{n!r}: {n}" for n in parameters)
        text = (
            f"def compiled({', '.join(heads)}):\n"
            "    for entry in entries:\n"
            f"        result = entry({names})\n"
            "        if result is not MISS:\n"
            "            return result\n"
            f"    return runtime.miss({{{pairs}}})\n"
        )
        exec(compile(text, "<intarsia entry>", "exec"), namespace)
        function = namespace["compiled"]
        source = self.target.forward if isinstance(self.target, nn.Module) else self.target
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(source, name):
                setattr(function, name, getattr(source, name))
        function.__wrapped__ = source
        function._intarsia_target = self.target
        function._intarsia_runtime = self
        return function  # type: ignore[no-any-return]

    # ---- the slow path ----

    def miss(self, values: dict[str, Any]) -> Any:
        """No entry matched: capture and compile another, or run in eager."""
        if self.off or torch.compiler.is_compiling():
            return self.eager(values)
        with self._lock:
            for entry in list(self.entries):
                result = entry(*values.values())
                if result is not MISS:
                    return result
            entry_made = self._new_entry(values)
        if isinstance(entry_made, ProgramRaised):
            return self._raising(values, entry_made)
        if entry_made is None:
            return self.eager(values)
        result = entry_made(*values.values())
        if result is not MISS:
            return result
        miss = self.guards[-1].explain(values)
        self._warn(("own guards",), f"a fresh capture fails its own guards ({miss}); this call runs in eager")
        return self.eager(values)

    def forget(self) -> None:
        """Back to the state before the first call."""
        with self._lock:
            for kept in (self.entries, self.captures, self.guards, self.sizes, self.marks):
                kept.clear()  # type: ignore[attr-defined]
            self.raised, self.off = 0, False

    def eager(self, values: dict[str, Any]) -> Any:
        """The original, untouched."""
        args, kwargs = self.parameters.spread(values)
        return self.original(*args, **kwargs)

    def _new_entry(self, values: dict[str, Any]) -> Callable[..., Any] | ProgramRaised | None:
        if self.entries:
            self._tell("on_recompile", self.why(values))
        if len(self.entries) >= self.recompile_limit:
            self.off = True
            self._warn(
                ("limit",),
                f"{self._name()} was compiled {self.recompile_limit} times (recompile_limit); other "
                f"calls run in eager. Last reason: {self.why(values)}",
            )
            return None
        start = time.perf_counter()
        try:
            made = capture_bound(
                self.target, self.parameters, values, dynamic=bool(self.dynamic), marks=self._marks(values)
            )
        except ProgramRaised as raised:
            return raised
        except CaptureError as error:
            return self._fallback(error)
        self._tell("on_capture", time.perf_counter() - start, made)
        start = time.perf_counter()
        training = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(training):
            graph = self.backend(made.graph_module, made.example_inputs)
        self._tell("on_compile", time.perf_counter() - start)
        entry = made.compile_entry(graph, MISS)
        self.guards.append(made.guards)
        self.captures.append(made)
        self.entries.append(entry)
        return entry

    def _marks(self, values: dict[str, Any]) -> dict[str, frozenset[int]]:
        return self.marks

    def _raising(self, values: dict[str, Any], raised: ProgramRaised) -> Any:
        """The program raises: eager shows how. Where eager does not, capture was wrong, and says so."""
        self.raised += 1
        if self.raised >= 3 * self.recompile_limit:
            self.off = True
        result = self.eager(values)
        with self._lock:
            self._fallback(raised.unsupported())
        return result

    def _fallback(self, error: CaptureError) -> Callable[..., Any] | None:
        place = error.place
        self._tell("on_fallback", place.filename, place.lineno, place.text, error.reason)
        if self.fullgraph:
            raise error
        where = f"{place.filename}:{place.lineno}: {place.text}\n  " if error.frames else ""
        kind = "graph break: " if error.heading == "graph break" else ""
        internal = " (an error inside intarsia; please report it)" if isinstance(error, InternalError) else ""
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
        values = ", ".join(f"{n!r}: {n}" for n in self.parameters.names)
        lines = [f"def entry({', '.join(self.parameters.names)}):", "    try:"]
        lines += [f"        {line}" for line in emit.lines] or ["        pass"]
        lines += ["    except Exception:", "        return MISS"]
        lines += [f"    return eager({{{values}}})"]
        namespace = {**emit.namespace, "MISS": MISS, "eager": self.eager}
        exec(compile("\n".join(lines), "<intarsia eager entry>", "exec"), namespace)
        return namespace["entry"]  # type: ignore[no-any-return]

    # ---- telling ----

    def why(self, values: dict[str, Any]) -> str:
        """Why the newest entry does not match."""
        miss = self.guards[-1].explain(values) if self.guards else None
        return str(miss) if miss is not None else "no guard names a reason"

    def _name(self) -> str:
        return getattr(self.target, "__qualname__", None) or type(self.target).__name__

    def _tell(self, event: str, *args: Any) -> None:
        method = getattr(self.observer, event, None)
        if method is not None:
            method(*args)

    def _warn(self, key: tuple[Any, ...], message: str) -> None:
        """One warning per line of the user's."""
        if key in self._warned:
            return
        self._warned.add(key)
        _log.info("%s", message)
        warnings.warn(f"intarsia: {message}", RuntimeWarning, stacklevel=2)
