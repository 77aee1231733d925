"""What an exported graph checks of its arguments at every call: the facts that it was specialised to, as plain data."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..frontend.entry.capture import Capture
from ..frontend.guards.checks import SizeCheck, any_of, fits, labelled
from ..frontend.guards.guards import Guard
from ..frontend.guards.memory import Memory
from ..frontend.guards.source import Arg, Source

__all__ = ["ArgumentCheck", "check_arguments"]


@dataclass(frozen=True)
class _TensorFacts:
    source: Source
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    def problem(self, values: Mapping[str, Any]) -> str:
        value, name = self.source.fetch(values), self.source.name()
        if not isinstance(value, Tensor):
            return f"{name}: expected a tensor, got {type(value).__name__}"
        if value.dtype != self.dtype or value.device != self.device:
            return f"{name}: expected {self.dtype} on {self.device}, got {value.dtype} on {value.device}"
        shape = tuple(value.shape)
        if not fits(shape, self.sizes):
            return f"{name}.shape: expected {any_of(self.sizes)}, got {shape}; export with dynamic=True, or mark_dynamic the argument"
        strides = tuple(w if size == 1 else g for g, w, size in zip(value.stride(), self.strides, shape, strict=True))
        if value.numel() and not fits(strides, self.strides):
            return f"{name}.stride(): expected {any_of(self.strides)}, got {value.stride()}; pass a copy with these strides"
        return ""


@dataclass(frozen=True)
class ArgumentCheck:
    """Facts about the arguments.

    `guards` are what capture relied on beside tensors; `symbols`, `equations` and `relations` speak of sizes; `same` are pairs of arguments that were one tensor, `distinct` tensors of which one is written to.
    """

    tensors: tuple[_TensorFacts, ...] = ()
    guards: tuple[Guard, ...] = ()
    symbols: tuple[tuple[str, Source, str], ...] = ()
    equations: tuple[tuple[Source, str, str], ...] = ()
    relations: tuple[str, ...] = ()
    same: tuple[tuple[Source, Source], ...] = ()
    distinct: tuple[Source, ...] = field(default=())

    @staticmethod
    def of(made: Capture, places: Mapping[Source, int], sizes: SizeCheck | None) -> ArgumentCheck:
        """The facts of one capture."""
        facts = [
            f
            for c in made.guards.extra
            for f in getattr(c, "facts", ())
            if isinstance(f.source.root(), Arg) and f.source in places
        ]
        guards = [g for g in made.guards.parts.values() if isinstance(g.source.root(), Arg) and g.kind != "alias"]
        pairs = [
            (g.source, g.expected)
            for g in made.guards.parts.values()
            if g.kind == "alias" and isinstance(g.source.root(), Arg) and isinstance(g.expected.root(), Arg)
        ]
        memories = [c for c in made.guards.extra if isinstance(c, Memory)]
        return ArgumentCheck(
            tuple(
                _TensorFacts(f.source, f.dtype, torch.device(f.device), tuple(f.sizes), tuple(f.strides)) for f in facts
            ),
            tuple(guards),
            tuple((sizes.symbol_text(s), source, place) for s, source, place in sizes.bindings) if sizes else (),
            tuple((s, p, sizes.symbol_text(e)) for s, p, e in sizes.equations if "offset" not in p) if sizes else (),
            tuple(sizes.relations) if sizes else (),
            tuple(pairs),
            tuple(s for c in memories for s in (*c.written, *c.read) if isinstance(s.root(), Arg)),
        )

    def problem(self, values: Mapping[str, Any]) -> str:
        """What is wrong with these arguments; "" where nothing is."""
        for guard in self.guards:
            miss = guard.explain(values)
            if miss is not None:
                return str(miss)
        for facts in self.tensors:
            if wrong := facts.problem(values):
                return wrong
        if self.symbols and (wrong := self._sizes(values)):
            return wrong
        for a, b in self.same:
            if a.fetch(values) is not b.fetch(values):
                return f"{a.name()} and {b.name()}: expected one and the same object"
        if len({id(s.fetch(values)) for s in self.distinct}) != len(self.distinct):
            return f"{', '.join(s.name() for s in self.distinct)}: expected different tensors, as one is written to"
        return ""

    def _sizes(self, values: Mapping[str, Any]) -> str:
        names: dict[str, Any] = {"math": math, "torch": torch}
        labels = {n: f"{source.name()}{place}" for n, source, place in self.symbols}
        for name, source, place in self.symbols:
            names[name] = eval(f"value{place}", {"value": source.fetch(values)})
        for source, place, text in self.equations:
            got = eval(f"value{place}", {"value": source.fetch(values)})
            if got != eval(text, dict(names)):
                return f"{source.name()}{place}: expected {labelled(text, labels)}, got {got}"
        for text in self.relations:
            if not eval(text, dict(names)):
                shown = ", ".join(f"{labels[n]} = {names[n]}" for n in labels if re.search(rf"\b{n}\b", text))
                return f"expected {labelled(text, labels)}, got {shown}"
        return ""


@dataclass(frozen=True)
class check_arguments:
    """A forward pre-hook: raises ValueError for arguments that the graph was not made for."""

    check: ArgumentCheck
    signature: inspect.Signature

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # another capture has checks of its own
            return
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            wrong = self.check.problem(bound.arguments)
        except (KeyError, IndexError, AttributeError, TypeError):
            return  # nested in another way, which `forward` explains
        if wrong:
            raise ValueError(f"this graph was exported for other arguments: {wrong}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        kept = [p.replace(annotation=inspect.Parameter.empty) for p in self.signature.parameters.values()]
        # Objects held by identity are other ones where it is unpickled.
        guards = tuple(replace(g, place=None) for g in self.check.guards if g.kind != "is")
        return check_arguments, (replace(self.check, guards=guards), inspect.Signature(kept))
