"""Operators on the state of torch's random generators of the CPU: what a program does to generators stands in its graph, in order.

The default generator is what it is in eager: it is seeded, asked for its state and given one. Any other generator is the state that it has, a
tensor; an operator that draws from one takes the state and gives the new one beside its result.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import torch
from torch import Tensor

__all__ = ["NAMESPACE", "changes_default", "drawing_operator", "operator_named", "state_size"]

NAMESPACE = "intarsia_random"
_LIBRARY: list[torch.library.Library] = []  # a Library takes its operators away when it is collected
_LOCK = threading.RLock()
_BETWEEN = "__of__"
_TAGS = tuple(
    t for t in (torch.Tag.nondeterministic_seeded, getattr(torch.Tag, "cudagraph_unsafe", None)) if t is not None
)


@functools.cache
def state_size() -> int:
    """How many bytes the state of a generator of the CPU has."""
    return torch.Generator().get_state().numel()


def _no_state(*_: Any) -> Tensor:
    return torch.empty(state_size(), dtype=torch.uint8, device="cpu")


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _seed_gpu(seed: int) -> None:
    torch.cuda.manual_seed(seed)


def _seed_gpus(seed: int) -> None:
    torch.cuda.manual_seed_all(seed)


def _of_seed(seed: int) -> Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def _checked(state: Tensor) -> Tensor:
    return _generator(state).get_state()


def _generator(state: Tensor) -> torch.Generator:
    made = torch.Generator()
    made.set_state(state)
    return made


# Name: schema, what it does, whether it concerns the default generators.
_OPERATORS: dict[str, tuple[str, Any, bool]] = {
    "seed": ("(SymInt number) -> ()", _seed, True),
    "seed_gpu": ("(SymInt number) -> ()", _seed_gpu, True),
    "seed_gpus": ("(SymInt number) -> ()", _seed_gpus, True),
    "get_state": ("() -> Tensor", lambda: torch.get_rng_state(), True),
    "set_state": ("(Tensor state) -> ()", lambda state: torch.set_rng_state(state), True),
    "of_seed": ("(SymInt number) -> Tensor", _of_seed, False),
    "checked": ("(Tensor state) -> Tensor", _checked, False),
}


def changes_default(target: str) -> bool:
    """Whether an operator of the IR (`aten.ops.intarsia_random.seed.default`) concerns the default generators."""
    parts = target.split(".")
    return parts[:3] == ["aten", "ops", NAMESPACE] and parts[3] in _OPERATORS and _OPERATORS[parts[3]][2]


def operator_named(name: str) -> Any:
    """The operator of a name; it is registered when it is first asked for."""
    with _LOCK:
        packet = getattr(getattr(torch.ops, NAMESPACE), name, None)
        if packet is None:
            base, between, overload = name.partition(_BETWEEN)
            if between:
                _register_drawing(getattr(getattr(torch.ops.aten, base), overload), name)
            else:
                schema, function, _ = _OPERATORS[name]
                _register(name, schema, function, _no_state if schema.endswith("Tensor") else lambda *_: None)
            packet = getattr(getattr(torch.ops, NAMESPACE), name)
    return packet.default


def drawing_operator(func: Any) -> Any | None:
    """The operator that draws as `func` does, from a state of its own: `(state, arguments) -> (result, new state)`; None where there is none.

    What `func` writes to is copied first: the result is what it writes.

    Args:
        func: an overload of ATen's with one result and an argument `generator`.
    """
    schema = func._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    drawn = any(a.name == "generator" for a in schema.arguments) and [str(r.type) for r in schema.returns] == ["Tensor"]
    if func.namespace != "aten" or not drawn or written not in ([], [schema.arguments[0].name]):
        return None
    return operator_named(f"{schema.name.split('::')[1]}{_BETWEEN}{schema.overload_name or 'default'}")


def _register_drawing(func: Any, name: str) -> None:
    schema = func._schema
    text = str(schema).partition("(")[2].rpartition(") -> ")[0]
    parts = [p.strip() for p in re.sub(r"(?<=Tensor)\(\w+!?\)", "", text).split(", ")]
    parts = [p for p in parts if not p.startswith("Generator?")]
    if parts[-1] == "*":
        parts.pop()
    names = [a.name for a in schema.arguments if a.name != "generator"]
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}

    def draw(args: Any, kwargs: Any, generator: torch.Generator | None) -> Tensor:
        given = defaults | dict(zip(names, args, strict=False)) | kwargs | {"generator": generator}
        if schema.is_mutable:
            given[names[0]] = given[names[0]].clone()
        positional = [given.pop(a.name) for a in schema.arguments if not a.kwarg_only]
        made: Tensor = func(*positional, **given)
        return made

    def run(state: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        generator = _generator(state)
        return draw(args, kwargs, generator), generator.get_state()

    def fake(state: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return draw(args, kwargs, None), _no_state()

    _register(name, f"({', '.join(['Tensor state', *parts])}) -> (Tensor, Tensor)", run, fake)


def _register(name: str, schema: str, function: Any, fake: Any) -> None:
    """Called under the lock."""
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library(NAMESPACE, "DEF"))
    library = _LIBRARY[0]
    library.define(f"{name}{schema}", tags=_TAGS)
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
