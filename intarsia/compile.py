"""`intarsia.compile`: the whole road on one page.

    frame --frontend--> fx.GraphModule + guards --functionalize--> ATen graph --import_fx--> IR --passes--> IR --targets--> callable

This file ties the first arrow (capture, guards, fallback) to the others (`graph_compiler.compile_graph`).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from .backends import is_this_compiler, resolve_backend
from .config import Config, suggestion
from .counters import COUNTERS
from .explaining.history import History
from .frontend.guards.filters import GuardFilter
from .frontend.runtime.callable import compile_callable, forget_all
from .graph_compiler import backend_for, forget_warnings
from .passes.core.base import Pass
from .passes.core.load import passes_given
from .targets.host.pool import forget_results
from .targets.recordings.graphs import STATISTICS
from .targets.recordings.recording_memory import POOLS

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    fn: Any = None,
    *,
    backend: str | Callable[..., Any] = "auto",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    passes: Sequence[Pass | type[Pass] | str | os.PathLike[str]] = (),
    disable: bool = False,
) -> Any:
    """Make a function or module faster. Also a decorator, with and without arguments.

    Args:
        fn: a function or an `nn.Module`, or what `torch.export.load` gives (its module is compiled). The original is not changed.
        backend: "auto" or "intarsia" (this compiler), a name of `list_backends()`, or a callable
            `(fx.GraphModule, example_inputs) -> callable`.
        mode: as for torch.compile: None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs". On a CPU they are the
            same. On a GPU all but the last record programs as CUDA graphs where that is safe (`explain` says why one is not), and the last
            two measure which kernels of matrix products are the fastest.
        fullgraph: raise an error where the graph would break, instead of splitting the call there.
        dynamic: None: a size or number that changes between calls becomes a symbol; True: from the start; False: never.
        options: settings by name, see `intarsia.config.Config`; for another backend, that backend's own options. And "guard_filter_fn",
            as for torch.compile: a function that says for each guard on a Python value whether it is kept (`frontend/guards/filters.py`).
        passes: passes of your own, put in place by their `after` and `before`: objects, classes, or files that define some. One that
            fails is named in a warning, and left out.
        disable: give `fn` back as it is.

    Returns:
        A function with the same signature, or a module-like object that shares the original's parameters and attributes.

    Raises:
        TypeError: `fn` cannot be called, or is a class or a generator or async function; a setting of the wrong kind.
        ValueError: an unknown backend, mode or option, with a suggestion.
    """
    if fn is None:
        arguments: dict[str, Any] = {"backend": backend, "mode": mode, "fullgraph": fullgraph, "dynamic": dynamic}
        return partial(compile, **arguments, options=options, passes=passes, disable=disable)
    given, fn = fn, callable_of(fn)
    check_function(fn)
    _check_settings(dynamic, fullgraph, options)
    given_passes = passes_given(passes)
    if disable:
        return given
    options, keep = _without_filter(options)
    ours = is_this_compiler(backend)
    if ours or isinstance(backend, str):  # a function may have modes of its own
        check_mode(mode)
    if given_passes and not ours:
        raise ValueError(f"passes are those of this compiler: they cannot be used with backend={backend!r:.80}")
    config, extra = config_of(options if ours else None, mode if ours else None), None if ours else options
    return compile_callable(
        fn,
        backend=resolve_backend(backend, partial(backend_for, config, given_passes), mode, extra),
        fullgraph=fullgraph,
        dynamic=dynamic,
        recompile_limit=config.recompile_limit,
        observer=History(),
        on_recompile=config.on_recompile,
        on_error="raise" if config.strict else "warn",
        keep=keep,
    )


def _without_filter(options: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, GuardFilter | None]:
    """The options without the one that concerns capture, and that."""
    if options is None or "guard_filter_fn" not in options:
        return options, None
    keep = options["guard_filter_fn"]
    if not callable(keep):
        raise TypeError(f"guard_filter_fn takes a function, not {type(keep).__name__}: {keep!r:.80}")
    return {k: v for k, v in options.items() if k != "guard_filter_fn"} or None, keep


def compile_in_place(module: nn.Module, **settings: Any) -> nn.Module:
    """What `module.compile()` is for torch.compile: calls of the module itself are compiled from now on, its hooks included.

    Args:
        module: stays what it is; a state dict, a copy or a pickle of it knows nothing of this.
        settings: those of `compile`.

    Returns:
        The module.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"intarsia.compile_in_place takes an nn.Module, not {type(module).__name__}: {module!r:.80}")
    module._compiled_call_impl = compile(module._call_impl, **settings)
    return module


def reset() -> None:
    """Forget everything that was compiled in this process, and set the counters to zero. The cache on disk stays."""
    forget_all()
    forget_warnings()
    forget_results()
    COUNTERS.clear()
    STATISTICS.clear()
    POOLS.drop()


def callable_of(fn: Any) -> Any:
    """The module of an `ExportedProgram`, with its weights and the checks of its inputs; anything else as it is."""
    return fn.module() if isinstance(fn, torch.export.ExportedProgram) else fn


def check_function(fn: Any, what: str = "compile") -> None:
    """Raise TypeError for what cannot be called, for classes, and for functions whose call does not run their body."""
    if not callable(fn):
        raise TypeError(f"intarsia.{what} takes a function or an nn.Module, not {type(fn).__name__}: {fn!r:.80}")
    if isinstance(fn, type):
        module = issubclass(fn, nn.Module)
        then = f"{what} an object of it: intarsia.{what}({fn.__name__}(...))" if module else f"{what} its methods"
        raise TypeError(f"{fn.__qualname__} is a class: a call of it makes an object.\n  What to do: {then}")
    code = _runs(fn)
    kinds = (
        (inspect.isasyncgenfunction, "an async generator function"),
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isgeneratorfunction, "a generator function"),
    )
    for is_kind, name in kinds:
        if is_kind(fn) or is_kind(code):
            where = getattr(code, "__code__", None)
            place = f"{where.co_filename}:{where.co_firstlineno}: " if where else ""
            raise TypeError(
                f"{place}{getattr(code, '__qualname__', code)} is {name}: a call of it runs none of its code, so there is nothing to "
                "compile.\n  Compile the functions that it calls, or the function that consumes it."
            )


def _runs(fn: Any) -> Any:
    """The function that a call of `fn` runs. Not what it wraps: a decorator may consume what that gives, as contextlib's do."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, nn.Module):
        fn = fn.forward
    elif not inspect.isroutine(fn):
        fn = type(fn).__call__
    return getattr(fn, "__func__", fn)


def _check_settings(dynamic: Any, fullgraph: Any, options: Any) -> None:
    """Raise TypeError for settings of the wrong kind."""
    if dynamic not in (None, True, False):
        raise TypeError(f"dynamic takes None, True or False, not {dynamic!r:.80}")
    if fullgraph not in (True, False):
        raise TypeError(f"fullgraph takes True or False, not {fullgraph!r:.80}")
    if not (options is None or isinstance(options, Mapping)):
        raise TypeError(f"options takes a dict of settings, not {type(options).__name__}: {options!r:.80}")


def config_of(options: Mapping[str, Any] | None, mode: str | None) -> Config:
    """The settings of a call. Raises ValueError for what does not exist."""
    check_mode(mode)
    config = Config.from_environment(options)
    if mode is not None and mode.endswith("no-cudagraphs"):
        config = replace(config, cuda_graphs=False)
    if mode in ("reduce-overhead", "max-autotune"):  # the modes in which torch.compile records
        config = replace(config, record_custom=True)
    if mode is not None and mode.startswith("max-autotune"):
        config = replace(config, max_autotune=True)
    return config


def check_mode(mode: str | None) -> None:
    """Raise ValueError for a mode that torch.compile does not have either."""
    if mode is None or mode in MODES:
        return
    raise ValueError(f"unknown mode {mode!r}{suggestion(mode, MODES)}; known: {', '.join(MODES)}")
