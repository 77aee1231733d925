"""Library calls as text: which function, on which arguments, and what was planned of each result."""

from __future__ import annotations

import functools
import json
import operator
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .parts import argument, constant, is_foreign, parts_of, structure_of, with_numbers

__all__ = ["Unlike", "called", "function_of", "handle_of", "plan_of", "planned_in", "read"]

_LOCK = threading.RLock()
_MODULES = ("torch", "torch.sparse", "torch._C._nn", "torch._C._sparse", "torch._C._VariableFunctions", "operator")


class Unlike(RuntimeError):
    """A library call gave a tensor of another layout, or of another number of parts, than was planned."""


# ---- objects of C++ ----

_OBJECTS: dict[int, tuple[Any, Tensor]] = {}


def handle_of(value: Any) -> Tensor:
    """An object that only C++ looks into, as an argument of a graph: a number by which `call` finds it while it lives."""
    with _LOCK:
        known = _OBJECTS.get(id(value))
        if known is None or known[0]() is not value:
            key = id(value)
            reference = weakref.ref(value, lambda gone: _forget(key, gone))
            known = _OBJECTS[key] = reference, torch.tensor(key)
        return known[1]


def _forget(key: int, gone: Any) -> None:
    known = _OBJECTS.get(key)
    if known is not None and known[0] is gone:
        del _OBJECTS[key]


# ---- functions and arguments ----


def function_of(target: Any) -> str | None:
    """The name of a function, operator or method (a string); None where it has none that `call` understands."""
    if isinstance(target, str):
        return f"method {target}"
    if isinstance(target, torch._ops.OpOverload):
        return f"operator {str(target)}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"operator {str(target)}"
    return _names().get(target)


@functools.cache
def _names() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for module in _MODULES:
        where = operator if module == "operator" else functools.reduce(getattr, module.split(".")[1:], torch)
        for name in dir(where):
            value = getattr(where, name)
            if isinstance(value, types.BuiltinFunctionType) and not name.startswith("__"):
                found.setdefault(value, f"function {module}.{name}")
    return found


class _Plan:
    """What a call does, read of its text once."""

    def __init__(self, what: str) -> None:
        read = json.loads(what)
        self.name, self.results = read["call"], read["results"]
        self.args = list(map(_reader, read["args"]))
        self.kwargs = {k: _reader(v) for k, v in read["kwargs"].items()}

    def call(self, tensors: list[Tensor], sizes: list[Any]) -> Any:
        args = [get(tensors, sizes) for get in self.args]
        if not self.kwargs:
            return self.function(*args)
        return self.function(*args, **{k: get(tensors, sizes) for k, get in self.kwargs.items()})

    def is_plain(self, value: Any) -> bool:
        """Whether a result is a plain tensor, as planned."""
        plain = self.results[0] == "tensor" and type(value) is Tensor and value.layout is torch.strided
        return plain and not value.is_quantized

    def arguments(self, tensors: list[Tensor], sizes: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [get(tensors, sizes) for get in self.args]
        return args, {k: get(tensors, sizes) for k, get in self.kwargs.items()}

    def apply(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """What takes the arguments."""
        kind, _, path = self.name.partition(" ")
        if kind == "method":
            return lambda first, *args, **kwargs: getattr(first, path)(*args, **kwargs)
        if kind == "attribute":
            return operator.attrgetter(path)
        where: Any = torch.ops
        if kind == "function":
            first, _, path = path.partition(".")
            where = operator if first == "operator" else torch
        return functools.reduce(getattr, path.split("."), where)  # type: ignore[no-any-return]

    def taken(self, value: Any, tensors: list[Tensor], sizes: list[Any]) -> list[tuple[Tensor, Any, Tensor]]:
        """The results' parts in order, each with what was planned of it and the tensor that it is a part of."""
        if self.is_plain(value):
            return [(value, self.results, value)]
        return list(_taken(value, self.results, sizes))


plan_of = functools.lru_cache(maxsize=4096)(_Plan)


def called(what: str, tensors: list[Tensor], sizes: list[int]) -> tuple[Any, list[Tensor]]:
    """What the function itself gives, and the foreign tensors that it was given."""
    plan = _Plan(what)
    args, kwargs = plan.arguments(tensors, sizes)
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor) and is_foreign(v)]
    return plan.apply(args, kwargs), given


def read(given: Any, tensors: list[Any], sizes: list[Any]) -> Any:
    """An argument of its text: a plain value, or a list of a word and what belongs to it."""
    return _reader(given)(tensors, sizes) if isinstance(given, list) else given


def _reader(given: Any) -> Callable[[list[Any], list[Any]], Any]:
    """`read` of one text, as a function of tensors and sizes."""
    if not isinstance(given, list):
        return lambda tensors, sizes: given
    word, *rest = given
    if word == "foreign":
        structure, size, parts = rest
        numbers = list(map(_reader, size))
        return lambda tensors, sizes: argument(
            structure, tuple(n(tensors, sizes) for n in numbers), [tensors[k] for k in parts]
        )
    if word in _ITEMS:
        items, make = list(map(_reader, rest)), _ITEMS[word]
        return lambda tensors, sizes: make([get(tensors, sizes) for get in items])
    if word == "constant":
        value = constant(rest[0])
        return lambda tensors, sizes: value
    if word == "ellipsis":
        return lambda tensors, sizes: ...
    place = rest[0]
    if word == "tensor":
        return lambda tensors, sizes: tensors[place]
    if word == "size":
        return lambda tensors, sizes: sizes[place]
    if word == "number":
        return lambda tensors, sizes: tensors[place].item()
    return lambda tensors, sizes: _object(tensors[place])


_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": lambda items: items,
    "slice": lambda items: slice(*items),
}


def _object(handle: Tensor) -> Any:
    found = _OBJECTS.get(int(handle))
    value = None if found is None else found[0]()
    if value is None:
        raise Unlike("an object of the call is gone")
    return value


def _taken(value: Any, planned: Any, sizes: list[Any]) -> Iterator[tuple[Tensor, Any, Tensor]]:
    word, *rest = planned
    if word == "tensor":
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
            raise Unlike("a call of the library gives something else than a plain tensor")
        yield value, planned, value
    elif word == "foreign":
        structure, size, parts = rest
        numbers = structure[0] == "quantized" and structure[3] is not None
        found = with_numbers if numbers else structure_of
        if not isinstance(value, Tensor) or not is_foreign(value) or _listed(found(value)) != structure:
            raise Unlike(f"a call of the library gives something else than {structure}")
        if tuple(value.shape) != tuple(read(n, [], sizes) for n in size):
            raise Unlike(f"a call of the library gives a tensor of shape {tuple(value.shape)}")
        for part, each in zip(parts_of(value, structure), parts, strict=True):
            if each is not None:
                yield part, each, value
    else:
        if not isinstance(value, tuple | list) or len(value) != len(rest):
            raise Unlike("a call of the library gives another number of results")
        for item, each in zip(value, rest, strict=True):
            yield from _taken(item, each, sizes)


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, tuple | list) else value


def planned_in(results: Any) -> Iterator[Any]:
    """What was planned of each plain tensor that the operator gives, in order."""
    word, *rest = results
    if word == "tensor":
        yield results
    elif word == "foreign":
        yield from (each for each in rest[2] if each is not None)
    else:
        for each in rest:
            yield from planned_in(each)
