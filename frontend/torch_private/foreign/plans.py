"""Library calls as text: which function, on which arguments, and what was planned of each result."""

from __future__ import annotations

import functools
import json
import operator
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .parts import argument, constant, is_foreign, parts_of, structure_of, with_numbers

__all__ = ["Unlike", "called", "called_writing", "function_of", "handle_of", "plan_of", "planned_in", "read"]

_LOCK = threading.RLock()
_MODULES = ("torch", "torch.sparse", "torch._C._nn", "torch._C._sparse", "torch._C._VariableFunctions", "operator")


class Unlike(RuntimeError):
    """A library call gave a tensor of another layout, or of another number of parts, than was planned."""


# ---- objects of C++ ----

_OBJECTS: dict[int, tuple[Any, Tensor]] = {}


def handle_of(value: Any) -> Tensor:
    """An object of C++, or a whole foreign tensor, as an argument of a graph: a number by which `call` finds it while it lives."""
    known = _OBJECTS.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    with _LOCK, torch.inference_mode(False):
        key = id(value)
        reference = weakref.ref(value, lambda gone: _forget(key, gone))
        handle = torch.tensor(key)
        handle._intarsia_of = reference  # type: ignore[attr-defined]
        _OBJECTS[key] = reference, handle
        return handle


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
    """What a call does, read of its text once; `call(tensors, sizes)` is Python that is written for it."""

    def __init__(self, what: str) -> None:
        read = json.loads(what)
        self.results = read["results"]
        self.plain = self.results[0] == "tensor"
        text, function = _Text(), read["call"]
        args = [text.of(given) for given in read["args"]]
        named = {name: text.of(given) for name, given in read["kwargs"].items()}
        self.call = text.lambda_of("T, S", text.call(function, args, named))
        self.arguments = text.lambda_of("T, S", f"(({''.join(f'{a}, ' for a in args)}), {text.dictionary(named)})")
        args, named = [f"A[{k}]" for k in range(len(args))], {name: f"K[{name!r}]" for name in named}
        self.apply = text.lambda_of("A, K", text.call(function, args, named))

    def is_plain(self, value: Any) -> bool:
        """Whether a result is a plain tensor, as planned."""
        return self.plain and type(value) is Tensor and value.layout is _STRIDED and not value.is_quantized

    def taken(self, value: Any, tensors: list[Tensor], sizes: list[Any]) -> list[tuple[Tensor, Any, Tensor]]:
        """The results' parts in order, each with what was planned of it and the tensor that it is a part of."""
        if self.is_plain(value):
            return [(value, self.results, value)]
        return list(_taken(value, self.results, sizes))


_STRIDED = torch.strided
plan_of = functools.lru_cache(maxsize=4096)(_Plan)


class _Text:
    """Python for a call: what is no literal is a name in `namespace`, tensors and sizes are `T` and `S`."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}

    def lambda_of(self, parameters: str, expression: str) -> Any:
        """A function that gives the expression's value."""
        return eval(f"lambda {parameters}: {expression}", self.namespace)

    def named(self, value: Any) -> str:
        """A name for a value."""
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    @staticmethod
    def dictionary(named: dict[str, str]) -> str:
        """A dict of these expressions."""
        return "{" + ", ".join(f"{name!r}: {given}" for name, given in named.items()) + "}"

    def call(self, name: str, args: list[str], named: dict[str, str]) -> str:
        """A call of what `function_of` has named; methods and attributes are read of the first argument."""
        kind, _, path = name.partition(" ")
        if kind == "attribute":
            return f"{args[0]}.{path}"
        given = [*args, *([f"**{self.dictionary(named)}"] if named else [])]
        if kind == "method":
            return f"{given[0]}.{path}({', '.join(given[1:])})"
        where: Any = torch.ops
        if kind == "function":
            first, _, path = path.partition(".")
            where = operator if first == "operator" else torch
        function = self.named(functools.reduce(getattr, path.split("."), where))
        return f"{function}({', '.join(given)})"

    def of(self, given: Any) -> str:
        """An argument: a plain value, or a list of a word and what belongs to it."""
        if not isinstance(given, list):
            return self.named(given)
        word, *rest = given
        if word == "foreign":
            structure, size, parts = rest
            shape = "".join(f"{self.of(n)}, " for n in size)
            tensors = ", ".join(f"T[{k}]" for k in parts)
            return f"{self.named(argument)}({self.named(structure)}, ({shape}), [{tensors}])"
        if word == "tuple":
            return f"({''.join(f'{self.of(item)}, ' for item in rest)})"
        if word == "list":
            return f"[{', '.join(map(self.of, rest))}]"
        if word == "slice":
            return f"{self.named(slice)}({', '.join(map(self.of, rest))})"
        if word == "copy":
            return f"{self.of(rest[0])}.clone()"
        if word == "constant":
            return self.named(constant(rest[0]))
        if word == "ellipsis":
            return "..."
        return f"{self.named(_object)}(T[{rest[0]}])" if word in ("object", "held") else _OF_PLACE[word].format(rest[0])


_OF_PLACE = {"tensor": "T[{}]", "size": "S[{}]", "number": "T[{}].item()"}


def called(what: str, tensors: list[Tensor], sizes: list[int]) -> tuple[Any, list[Tensor]]:
    """What the function itself gives, and the foreign tensors that it was given."""
    plan = _Plan(what)
    args, kwargs = plan.arguments(tensors, sizes)
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor) and is_foreign(v)]
    return plan.apply(args, kwargs), given


def called_writing(
    what: str, tensors: list[Tensor], sizes: list[int]
) -> tuple[Any, list[Tensor], list[bool], list[bool]]:
    """What a function gives that writes to its first argument, the foreign tensors that it was given, and which parts of the first one
    are where they were, and as they were."""
    plan = _Plan(what)
    args, kwargs = plan.arguments(tensors, sizes)
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor) and is_foreign(v)]
    if not is_foreign(args[0]):
        return plan.apply(args, kwargs), given, [], []
    before = parts_of(args[0])
    copies = [part.clone() for part in before]
    result = plan.apply(args, kwargs)
    after = parts_of(args[0]) if is_foreign(args[0]) else []
    pairs = [(one, after[k] if k < len(after) else None) for k, one in enumerate(before)]
    kept = [other is not None and _is_there(one, other) for one, other in pairs]
    unchanged = [held and torch.equal(one, copy) for held, (one, _), copy in zip(kept, pairs, copies, strict=True)]
    return result, given, kept, unchanged


def _is_there(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and (one.shape, one.stride(), one.dtype) == (
        other.shape,
        other.stride(),
        other.dtype,
    )


def read(given: Any, sizes: list[Any]) -> Any:
    """A size of its text."""
    return sizes[given[1]] if isinstance(given, list) else given


def _object(handle: Tensor) -> Any:
    """What `handle_of` gave this handle for."""
    reference = getattr(handle, "_intarsia_of", None)
    if reference is None:  # another tensor with the same number
        found = _OBJECTS.get(int(handle))
        reference = None if found is None else found[0]
    value = None if reference is None else reference()
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
        if tuple(value.shape) != tuple(read(n, sizes) for n in size):
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
