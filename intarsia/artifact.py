"""The name under which the program of a captured graph is kept, so that a later process needs neither trace nor passes nor compiler.

Capture runs in every process: what it relied on cannot go stale. All that follows is a function of the graph, the shapes of its inputs,
torch's settings and our own code, and this module writes these down. A graph with anything in it that a text cannot name for good
(a function of the user's, a tensor of the graph's own, a size that is a symbol) has no name, and takes the whole road.
"""

from __future__ import annotations

import hashlib
import operator
import os
import types
from collections.abc import Mapping, Sequence
from json import dumps  # as they were at import: programs patch modules
from typing import Any

import torch
from torch import Tensor, fx

from .frontend.gradients.nodes import NODES
from .frontend.graph.recompute import RECOMPUTE, Choice
from .frontend.torch_private.dispatch import functional_builtins, storage_key
from .frontend.torch_private.dtensor import DTensorCall
from .frontend.torch_private.fake import is_fake, is_leaf
from .frontend.torch_private.functions import OpOverload
from .frontend.torch_private.guards import tracing_state
from .passes.core.manager import has_registered_passes
from .passes.core.plugins import has_installed
from .targets.build.cache import package_fingerprint
from .targets.build.versions import versions

__all__ = ["graph_key"]

_PLAIN = {int, bool, float, str, type(None), type(Ellipsis), complex, torch.dtype, torch.device}
_PLAIN |= {torch.layout, torch.memory_format}
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NAMESPACES = ("aten", "prims", "prim", "_c10d_functional", "_c10d_functional_autograd")


class _Unnamed(Exception):
    """Something in the graph that a text cannot name."""


def graph_key(gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Mapping[str, Any]) -> str | None:
    """sha256 (hex) of all that decides what program the graph becomes, or None where that cannot be said.

    Args:
        gm: a captured graph.
        example_inputs: one for each placeholder.
        settings: JSON-able: configuration, compiler, processor.
    """
    try:
        parts = {
            "nodes": _nodes(gm.graph),
            "inputs": _inputs(example_inputs),
            "state": _state(),
            "settings": settings,
            "code": package_fingerprint((".",)),
            "versions": versions(),
        }
    except _Unnamed:
        return None
    return hashlib.sha256(dumps(parts, sort_keys=True).encode()).hexdigest()


def _nodes(graph: fx.Graph) -> list[list[Any]]:
    numbers: dict[fx.Node, int] = {}
    functions: dict[Any, str] = {}  # looked at anew for each graph: a program may replace them at any time
    lines = []
    for node in graph.nodes:
        meta = node.meta
        line = [node.op, node.name, meta.get("stack_trace")]
        if node.op == "placeholder":
            source = meta.get("source")
            line += [bool(meta.get("static_input")), "" if source is None else source.name()]
            line.append(bool(meta.get("differentiated")))
        elif node.op == "output":
            results = node.args[0]
            if not isinstance(results, tuple) or not all(isinstance(r, fx.Node) for r in results):
                raise _Unnamed
            line.append([numbers[r] for r in results])
        elif node.op in ("call_function", "call_method"):
            target = node.target if isinstance(node.target, str) else functions.get(node.target)
            if target is None:
                target = functions[node.target] = _function(node.target)
            line += [target, _literal(node.args, numbers), _literal(node.kwargs, numbers)]
        else:
            raise _Unnamed
        mark = meta.get(RECOMPUTE)
        if isinstance(mark, Choice):
            raise _Unnamed
        line += [] if mark is None else [RECOMPUTE]
        numbers[node] = len(numbers)
        lines.append(line)
    return lines


def _literal(value: Any, numbers: Mapping[fx.Node, int]) -> Any:
    kind = type(value)
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if kind in _PLAIN:
        return [kind.__name__, repr(value)]
    if kind in (list, tuple, torch.Size) or isinstance(value, list | tuple):  # FX has lists of its own
        kept = "list" if isinstance(value, list) else "tuple"
        return [kept, *(_literal(v, numbers) for v in value)]
    if isinstance(value, dict) and all(type(k) is str for k in value):
        return ["dict", *([k, _literal(v, numbers)] for k, v in value.items())]
    if kind is slice:
        return ["slice", *(_literal(v, numbers) for v in (value.start, value.stop, value.step))]
    raise _Unnamed


def _function(function: Any) -> str:
    """A function of torch's or of the module `operator` by its name; raises for one that anybody else may have changed."""
    if isinstance(function, OpOverload):
        if function.namespace not in _NAMESPACES:
            raise _Unnamed
        return str(function)
    if isinstance(function, DTensorCall):
        return function.key()
    if function in NODES:
        return f"gradients.{function.__name__}"
    if not _is_torchs(function):
        raise _Unnamed
    if isinstance(function, types.FunctionType):
        inner = [c.cell_contents for c in function.__closure__ or () if callable(c.cell_contents)]
        if not all(map(_is_torchs, inner)):
            raise _Unnamed
        for name in function.__code__.co_names:  # what it calls is torch's, too
            found = [vars(space)[name] for space in _spaces() if name in vars(space)]
            found += [function.__globals__[name]] if name in function.__globals__ else []
            if not all(_is_torchs(f) for f in found if isinstance(f, types.FunctionType | types.BuiltinFunctionType)):
                raise _Unnamed
    owner = getattr(function, "__self__", None)
    place = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", "")
    return f"{getattr(function, '__module__', None)}.{place}.{getattr(function, '__qualname__', '')}"


def _spaces() -> tuple[Any, ...]:
    return torch, torch.nn.functional, functional_builtins()


def _is_torchs(function: Any) -> bool:
    """A built-in, or a Python function whose code lies in torch's own folder (or in Python's, for those that torch imports)."""
    if isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        return True
    if isinstance(function, types.FunctionType):
        code = function.__code__.co_filename
        path = os.path.abspath(code)
        if path.startswith(_TORCH) or code.startswith("<frozen"):
            return True
        # Packages may change, and keep their version.
        return path.startswith(_STANDARD) and not path.startswith(_PACKAGES)
    return function in _OPERATORS


_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = tuple(_STANDARD + name + os.sep for name in ("site-packages", "dist-packages"))
_OPERATORS = frozenset(f for f in vars(operator).values() if callable(f))


def _inputs(examples: Sequence[Any]) -> list[Any]:
    """What tracing sees of each input: its geometry, its type, and which inputs share memory or are one object."""
    objects: dict[int, int] = {}
    memory: dict[int, int] = {}
    out: list[Any] = []
    for index, example in enumerate(examples):
        if type(example) in (int, bool):
            out.append(["number", type(example).__name__, example])
            continue
        if not isinstance(example, Tensor) or not is_fake(example) or example.layout is not torch.strided:
            raise _Unnamed
        nbytes = example.untyped_storage().nbytes()  # of a view this may be all that is symbolic
        sizes = [*example.shape, *example.stride(), example.storage_offset(), nbytes]
        if not all(type(n) is int for n in sizes) or example.is_neg() or (example.is_complex() and example.is_conj()):
            raise _Unnamed
        facts = [example.dim(), sizes, str(example.dtype), str(example.fake_device)]  # type: ignore[attr-defined]
        facts += [example.requires_grad, is_leaf(example), example._is_view()]
        facts += [objects.setdefault(id(example), index)]
        facts += [memory.setdefault(storage_key(example), index)]
        out.append(facts)
    return out


def _state() -> list[Any]:
    """torch's settings and the extensions to torch and to us that tracing and passes may depend on."""
    if has_registered_passes() or has_installed():
        raise _Unnamed
    return [*tracing_state()]
