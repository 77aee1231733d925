"""Guards over several values at once: facts of all tensors, symbolic sizes, the thread's global state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from . import torch_private
from .guards import Emitter, Miss
from .output import GraphInput
from .source import Source

__all__ = ["Distinct", "SizeCheck", "StateCheck", "TensorCheck"]

_FACTS = ("dtype", "device", "requires_grad")


@dataclass
class TensorCheck:
    """Type, dtype, device, requires_grad, dispatch keys, sizes and strides of every tensor, in one C++ call."""

    inputs: list[GraphInput]
    inference: bool = False  # whether the check runs in inference mode, which is part of the dispatch keys

    def __post_init__(self) -> None:
        sizes, strides = [], []
        for info in self.inputs:
            symbolic = has_symbols(info.fake)
            sizes.append([None if isinstance(s, torch.SymInt) else int(s) for s in info.fake.shape])
            strides.append([None if symbolic else int(s) for s in info.real.stride()])
        with torch.inference_mode(self.inference):
            self._guard = torch_private.tensor_guards([info.real for info in self.inputs], sizes, strides)
        self._sizes, self._strides = sizes, strides

    def lines(self, emit: Emitter) -> None:
        """One call over all tensors; those held by identity are constants of the generated code."""
        names = [emit.constant(i.real, i.source.name()) if i.static else emit.fetch(i.source) for i in self.inputs]
        check = emit.constant(self._guard.check, "tensors_ok")
        for info, name in zip(self.inputs, names, strict=True):
            if not info.static:
                emit.lines.append(f"# {name}: {self._show(info)}")
        emit.lines.append(f"if not {check}({', '.join(names)}): return MISS")

    def _show(self, info: GraphInput) -> str:
        at = self.inputs.index(info)
        dtype = str(info.real.dtype).removeprefix("torch.")
        return f"{dtype}{self._sizes[at]}, strides {self._strides[at]}, {info.real.device}".replace("None", "any")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first fact of the first tensor that differs."""
        for index, info in enumerate(self.inputs):
            value = info.source.fetch(args)
            name = info.source.name()
            if type(value) is not type(info.real):
                return Miss(f"type({name})", type(info.real).__name__, type(value).__name__)
            for fact in _FACTS:
                # The capture-time twin keeps the facts of a tensor that was changed in place since.
                expected = getattr(info.fake, fact) if fact != "device" else info.fake.fake_device
                if getattr(value, fact) != expected:
                    return Miss(f"{name}.{fact}", str(expected), str(getattr(value, fact)))
            for label, got, want in (
                ("shape", value.shape, self._sizes[index]),
                ("stride()", value.stride(), self._strides[index]),
            ):
                if len(got) != len(want) or any(w is not None and g != w for g, w in zip(got, want, strict=True)):
                    return Miss(f"{name}.{label}", str(tuple(want)).replace("None", "any"), str(tuple(got)))
        values = [info.source.fetch(args) for info in self.inputs]
        if not self._guard.check(*values):
            return Miss("tensor dispatch keys", "as at capture", "another combination (a transform, a subclass)")
        return None

    def __str__(self) -> str:
        return "\n".join(f"{i.source.name()}: {self._show(i)}" for i in self.inputs)


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether any size of a fake tensor is symbolic."""
    return any(isinstance(s, torch.SymInt) for s in tensor.shape)


@dataclass
class StateCheck:
    """Grad mode, autocast, default dtype, determinism, modes and transforms of the calling thread."""

    guard: Any = field(default_factory=torch_private.global_state_guard)
    modes: int = field(default_factory=torch_private.function_mode_count)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)

    def lines(self, emit: Emitter) -> None:
        """Two C calls, and the number of active function modes."""
        check = emit.constant(self.guard.check, "state_ok")
        count = emit.constant(torch_private.function_mode_count_raw(), "function_modes")
        infer = emit.constant(torch.is_inference_mode_enabled, "inference_mode")
        emit.lines.append(
            f"if not {check}() or {count}() != {self.modes} or {infer}() is not {self.inference}: return MISS"
        )

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """What changed, in torch's words."""
        if not self.guard.check():
            return Miss(
                "global state (grad mode, autocast, default dtype, determinism)", "as at capture", self.guard.reason()
            )
        if torch_private.function_mode_count() != self.modes:
            return Miss("torch function modes", str(self.modes), str(torch_private.function_mode_count()))
        if torch.is_inference_mode_enabled() is not self.inference:
            return Miss("inference mode", str(self.inference), str(not self.inference))
        return None

    def __str__(self) -> str:
        return "global state: grad mode, autocast, default dtype, determinism as at capture"


@dataclass
class Distinct:
    """Tensors that were different objects (and, where one is written to, different memory) at capture."""

    sources: list[Source]
    storages: list[Source] = field(default_factory=list)

    def lines(self, emit: Emitter) -> None:
        """Compare identities as a set."""
        names = [emit.fetch(s) for s in self.sources]
        if len(names) == 2:
            emit.lines.append(f"if {names[0]} is {names[1]}: return MISS")
        elif len(names) > 2:
            emit.lines.append(f"if len({{{', '.join(f'id({n})' for n in names)}}}) != {len(names)}: return MISS")
        if len(self.storages) > 1:
            key = emit.constant(torch_private.storage_key, "storage")
            keys = ", ".join(f"{key}({emit.fetch(s)})" for s in self.storages)
            emit.lines.append(f"if len({{{keys}}}) != {len(self.storages)}: return MISS")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """Name the group."""
        values = [s.fetch(args) for s in self.sources]
        names = ", ".join(s.name() for s in self.sources)
        if len({id(v) for v in values}) != len(values):
            return Miss(names, "different tensors", "the same tensor more than once")
        keys = [torch_private.storage_key(s.fetch(args)) for s in self.storages]
        if len(set(keys)) != len(keys):
            return Miss(names, "tensors in different memory", "tensors that share memory, one of which is written")
        return None

    def __str__(self) -> str:
        return f"different tensors: {', '.join(s.name() for s in self.sources)}"


def _symbolic_facts(fake: Any) -> list[tuple[str, Any]]:
    """Sizes, then strides, of a fake tensor with symbols (or the number itself), each with how to read it."""
    if not isinstance(fake, torch.Tensor):
        return [("", fake)]
    if not has_symbols(fake):
        return []
    sizes = [(f".shape[{dim}]", s) for dim, s in enumerate(fake.shape) if isinstance(s, torch.SymInt)]
    return sizes + [(f".stride()[{dim}]", s) for dim, s in enumerate(fake.stride())]


class SizeCheck:
    """Relations between symbolic sizes, as Python expressions over the inputs' shapes."""

    def __init__(self, inputs: list[GraphInput], shape_env: Any) -> None:
        self.bindings: list[tuple[sympy.Symbol, GraphInput, str]] = []
        self.equations: list[tuple[GraphInput, str, sympy.Expr]] = []
        bound: set[sympy.Symbol] = set()
        for info in inputs:
            for place, value in _symbolic_facts(info.fake):
                expr = value.node._expr if isinstance(value, torch.SymInt) else sympy.Integer(value)
                if isinstance(expr, sympy.Symbol) and expr not in bound:
                    bound.add(expr)
                    self.bindings.append((expr, info, place))
                else:
                    self.equations.append((info, place, expr))
        self.relations: list[str] = []
        self._names = {symbol: f"s{n}" for n, (symbol, _, _) in enumerate(self.bindings)}
        for symbol in self._names:  # first: what follows divides by sizes that are not 0
            self._range(symbol, shape_env)
        for guard in shape_env.guards:
            self.relations.append(self._text(guard.expr))
        self.relations = list(dict.fromkeys(r for r in self.relations if r != "True"))

    def _range(self, symbol: sympy.Symbol, shape_env: Any) -> None:
        limits = shape_env.var_to_range.get(symbol)
        if limits is None:
            return
        name = self._names[symbol]
        if limits.lower.is_Integer:
            self.relations.append(f"{int(limits.lower)} <= {name}")
        if limits.upper.is_Integer and int(limits.upper) < 1 << 40:
            self.relations.append(f"{name} <= {int(limits.upper)}")

    def _text(self, expr: Any) -> str:
        from torch.utils._sympy.printers import PythonPrinter

        missing = [s for s in getattr(expr, "free_symbols", ()) if s not in self._names]
        if missing:
            from .errors import Unsupported

            raise Unsupported(f"a size relation uses a symbol that no input binds: {expr}")
        named = expr.xreplace({s: sympy.Symbol(n, integer=True, positive=True) for s, n in self._names.items()})
        return str(PythonPrinter().doprint(named))

    def lines(self, emit: Emitter) -> None:
        """Bind each symbol, then test equations and relations."""
        import math

        emit.namespace.setdefault("math", math)
        for symbol, info, place in self.bindings:
            emit.lines.append(f"{self._names[symbol]} = {emit.fetch(info.source)}{place}")
        tests = [f"{emit.fetch(i.source)}{place} == {self._text(expr)}" for i, place, expr in self.equations]
        for test in [*tests, *(f"({r})" for r in self.relations)]:
            emit.lines.append(f"if not {test}: return MISS")

    def symbol_text(self, expr: Any) -> str:
        """An expression over the bound names."""
        return self._text(expr)

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first relation that does not hold."""
        import math

        names: dict[str, Any] = {"math": math}
        for symbol, info, place in self.bindings:
            names[self._names[symbol]] = eval(f"value{place}", {"value": info.source.fetch(args)})
        shown = {k: v for k, v in names.items() if k != "math"}
        for info, place, expr in self.equations:
            fact = eval(f"value{place}", {"value": info.source.fetch(args)})
            if fact != eval(self._text(expr), dict(names)):
                return Miss(f"{info.source.name()}{place}", self._text(expr), f"{fact} with {shown}")
        for relation in self.relations:
            try:
                holds = eval(relation, dict(names))
            except ZeroDivisionError:
                holds = False
            if not holds:
                return Miss("sizes", relation, str(shown))
        return None

    def __str__(self) -> str:
        bound = [
            f"{self._names[s]} = {i.source.name()}" + ("" if d is None else f".shape[{d}]") for s, i, d in self.bindings
        ]
        return "\n".join([*bound, *(f"sizes: {r}" for r in self.relations)])
