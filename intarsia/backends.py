"""Backends by name: what runs the captured graphs.

A backend is called as torch.compile calls one, `backend(fx.GraphModule, example_inputs, **options)`, and returns a callable
of the inputs that gives the graph's results. Known are this compiler, two that show what capture alone does, those that were
registered here or through the entry-point group `intarsia.backends`, and all that torch itself lists.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import fx

from .config import suggestion
from .frontend.torch_private.dynamo import (
    inductor_options,
    specialize_floats,
    torch_backend,
    torch_backends,
    without_compile,
)
from .frontend.torch_private.graphs import plain_graph_module

_log = logging.getLogger("intarsia")
Backend = Callable[..., Any]
OWN = ("auto", "intarsia")
_HIDDEN = ("debug", "experimental")

# Those of torch's backends that need more than torch: the module that registers them (or "" where torch does), what to install.
_PACKAGES = {
    "onnxrt": ("", "onnxruntime and onnxscript, beside a torch that still has this backend"),
    "tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "torch_tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "tvm": ("", "apache-tvm, a version that has tvm.relay"),
    "ipex": ("intel_extension_for_pytorch", "intel-extension-for-pytorch"),
    "openxla": ("", "torch-xla"),
    "openxla_eval": ("", "torch-xla"),
}


class BackendError(RuntimeError):
    """A backend raised an error, or did not return what a backend returns; the uncompiled function stays usable."""

    blames_backend = True  # it is raised also where an error of a graph makes a call run in eager


class MissingBackend(ImportError, ValueError):
    """A known backend whose package is not installed."""


def eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as captured: shows what capture alone costs."""
    return gm.forward


eager.takes_floats = eager.takes_gradients = True  # type: ignore[attr-defined]


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph after torch's AOTAutograd, operator by operator: shows whether a fault lies before the passes."""
    return torch_backend("aot_eager")(gm, list(example_inputs))  # type: ignore[no-any-return]


_registered: dict[str, tuple[Backend, tuple[str, ...]]] = {
    "eager": (eager, ("debug",)),
    "aot_eager": (aot_eager, ("debug",)),
}


def register_backend(fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Make `backend="name"` call `fn`; also a decorator, with and without arguments.

    Args:
        fn: `(fx.GraphModule, example_inputs, **options) -> callable`. With an attribute `takes_floats` that is True, graphs may have
            symbolic floats among their inputs, and sizes and numbers that values decide; with `takes_gradients`, nodes that call
            `torch.autograd.grad`. Without them the graph ends there.
        name: its name; by default the function's own.
        tags: backends tagged "debug" or "experimental" are not listed by default.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: the name is taken by another function.
    """
    if fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(fn):
        raise TypeError(
            f"register_backend takes a function (fx.GraphModule, example_inputs) -> callable, not {fn!r:.80}"
        )
    if not isinstance(name, str | None):
        raise TypeError(f"the name of a backend is a string, not {type(name).__name__}: {name!r:.80}")
    name = str(name or getattr(fn, "__name__", type(fn).__name__))
    if name in OWN or (name in _registered and _registered[name][0] is not fn):
        raise ValueError(
            f"a backend named {name!r} exists already; give another one with register_backend(fn, name=...)"
        )
    _registered[name] = (fn, tuple(tags))
    return fn


def list_backends(exclude_tags: Sequence[str] | None = _HIDDEN) -> list[str]:
    """The names that `compile(fn, backend=name)` takes, sorted; `exclude_tags=()` or None lists all."""
    hidden = tuple(exclude_tags or ())
    own = ["intarsia", *(n for n, (_, tags) in _registered.items() if not set(tags) & set(hidden)), *_plugins()]
    return sorted({*own, *torch_backends(hidden)})


def is_this_compiler(backend: str | Backend) -> bool:
    """Whether this compiler is meant."""
    return isinstance(backend, str) and backend in OWN


def resolve_backend(
    backend: str | Backend,
    own: Callable[[], Backend],
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Backend:
    """The callable for a backend's name; `mode` and `options` go to a backend that is not this compiler, as torch.compile does it.

    Raises:
        ValueError: an unknown name, with a suggestion; a known one whose package is missing (`MissingBackend`).
    """
    if is_this_compiler(backend):
        return own()
    if not (callable(backend) or isinstance(backend, str)):
        raise TypeError(
            f"backend takes a name of list_backends() or a callable, not {type(backend).__name__}: {backend!r:.80}"
        )
    made = backend if callable(backend) else _named(backend)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    if name == "inductor":
        made = functools.partial(made, config_patches=inductor_options(mode, options))
        return _checked(made, name)
    given: dict[str, Any] = {} if mode in (None, "default") else {"mode": mode}
    given |= {"options": dict(options)} if options else {}
    if given and name in ("eager", "aot_eager"):
        _log.warning("the backend %r has no settings; left out: %s", name, ", ".join(given))
        given = {}
    return _checked(functools.partial(made, **given) if given else made, name)


def _named(name: str) -> Backend:
    if name in _registered:
        return _registered[name][0]
    plugin = _plugins().get(name)
    if plugin is not None:
        return plugin.load()  # type: ignore[no-any-return]
    module, needed = _PACKAGES.get(name, ("", f"the package that provides {name}"))
    known = torch_backends(())
    if name in known or name in _PACKAGES:
        try:
            if name not in known and module:
                importlib.import_module(module)  # makes the backend known to torch
            return torch_backend(name)
        except Exception as error:
            version = torch.__version__.partition("+")[0]
            raise MissingBackend(
                f"the backend {name!r} cannot be loaded with torch {version}: install {needed} ({_first_line(error)})"
            ) from None
    names = [*OWN, *_registered, *_plugins(), *known]
    hint = suggestion(name, names)
    shown = sorted({*list_backends(), *_registered})
    raise ValueError(f"unknown backend {name!r}{hint}; known: {', '.join(shown)}, or a callable")


def _plugins() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="intarsia.backends")}


def _checked(backend: Backend, name: str) -> Backend:
    """The backend with errors that name it."""

    def call(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            made = backend(plain_graph_module(gm) if name == "ts" else gm, list(example_inputs))
        except (MissingBackend, MemoryError):
            raise
        except ImportError as error:
            needed = _PACKAGES.get(name, ("", error.name or "what it imports"))[1]
            raise MissingBackend(
                f"the backend {name!r} needs a package that is not installed: {needed} ({error})"
            ) from error
        except Exception as error:
            raise BackendError(
                f"the backend {name!r} raised {type(error).__name__}: {_first_line(error)}\n"
                f"  on a graph of {sum(n.op.startswith('call') for n in gm.graph.nodes)} operations; the function itself can "
                "still be called uncompiled"
            ) from error
        if not callable(made):
            raise BackendError(
                f"the backend {name!r} returned {type(made).__name__}: {made!r:.80}\n"
                "  a backend returns a callable that takes the graph's inputs, such as gm.forward"
            )
        return _checked_results(made, name, gm)

    # Backends of torch's that trace through AOTAutograd find the symbols of sizes in fake tensors only.
    call.real_inputs = not (name in ("inductor", "cudagraphs") or name.startswith("aot_"))  # type: ignore[attr-defined]
    # A backend that runs graphs as they are says so: numbers as inputs, sizes that values decide, gradients as nodes of the graph
    # (AOTAutograd makes nothing of `frontend/gradients/nodes.py`).
    for name_of in ("takes_floats", "takes_gradients"):
        setattr(call, name_of, getattr(backend, name_of, False))
    return call


def _checked_results(made: Callable[..., Any], name: str, gm: fx.GraphModule) -> Callable[..., Any]:
    """The callable with a check that it gives as many results as the graph; of the first call, also of what kind."""
    wanted = gm.graph.find_nodes(op="output")[0].args[0]
    number, kinds_known = len(wanted), False

    def run(*inputs: Any) -> Any:
        nonlocal kinds_known
        results = made(*inputs)
        if not isinstance(results, tuple | list) or len(results) != number:
            got = f"{len(results)} results" if isinstance(results, tuple | list) else f"one {type(results).__name__}"
            raise BackendError(
                f"what the backend {name!r} compiled gives {got}, the graph {number}\n"
                "  it has to return a tuple or list with one item for each result, as gm.forward does"
            )
        if not kinds_known:
            for i, (node, result) in enumerate(zip(wanted, results, strict=True)):
                example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
                if isinstance(example, torch.Tensor) and not isinstance(result, torch.Tensor):
                    raise BackendError(
                        f"what the backend {name!r} compiled gives {type(result).__name__} as result {i}, the graph a tensor"
                    )
            kinds_known = True
        return results

    return run


def _first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return " ".join(str(error).split())[:300]


def torch_compile_backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """This compiler as a backend of torch.compile: `torch.compile(model, backend="intarsia")`.

    `options` are settings as for `intarsia.compile(..., options=...)`, `mode` is what it is there.
    """
    from .compile import config_of
    from .graph_compiler import backend_for

    settings, mode = options.pop("options", None) or {}, options.pop("mode", None)
    config = config_of({**settings, **options}, mode)
    specialize_floats(gm)
    # torch passes real tensors; their fake twins, which know what sizes are symbols, are in the graph.
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    inputs = [n.meta.get("example_value", x) for n, x in zip(placeholders, example_inputs, strict=True)]
    run = backend_for(config)(gm, inputs)

    def call(*args: Any) -> Any:
        return run(*args)

    return without_compile(call, "compiled by intarsia")
