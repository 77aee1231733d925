"""Answers of functions that read the state of the process: capture uses what they say now, and a guard asks them again."""

from __future__ import annotations

import decimal
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import GraphBreak, UserRaise
from ..state import Interpreter
from ..values.constant import is_constant, is_static
from ..values.kinds import isinstance
from .emitter import Emitter
from .source import Arg, Const, Fetch, Source

__all__ = ["KINDS", "Answer", "ask", "rely_on"]


@dataclass(frozen=True, slots=True)
class Answer(Source):
    """`function(*operands)` of a function that reads state, to be asked in every call."""

    function: Any
    operands: tuple[Source, ...] = ()
    names: tuple[str, ...] = ()  # of the last operands, which are given by name

    def name(self) -> str:
        return f"{_called(self.function)}({self._spelled([o.name() for o in self.operands])})"

    def _spelled(self, texts: list[str]) -> str:
        plain = len(texts) - len(self.names)
        return ", ".join([*texts[:plain], *(f"{n}={t}" for n, t in zip(self.names, texts[plain:], strict=True))])

    def root(self) -> Source:
        """Of an argument, where it asks about one: then it is asked before anything else."""
        roots = [o.root() for o in self.operands]
        return next((r for r in roots if isinstance(r, Arg)), self)

    def reconstruct(self, emit: Emitter) -> str:
        texts = [emit.literal(o.value) if isinstance(o, Const) else emit.fetch(o) for o in self.operands]
        return f"{emit.constant(self.function, self.function.__name__)}({self._spelled(texts)})"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        plain = len(self.operands) - len(self.names)
        values = [o.fetch(args) for o in self.operands]
        return self.function(*values[:plain], **dict(zip(self.names, values[plain:], strict=True)))


def _called(function: Any) -> str:
    module = getattr(function, "__module__", None)
    return f"{module}.{function.__name__}" if isinstance(module, str) else str(function.__name__)


class _Plain(Const):
    """A constant operand: equal ones are one question."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Plain) and type(other.value) is type(self.value)
        return same and repr(other.value) == repr(self.value)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(repr(self.value))


def _operand(vm: Interpreter, value: Any, function: Any) -> Source:
    if is_constant(value):
        return _Plain(value, repr(value))
    source = vm.user.source_of(value)
    if source is not None:
        return source
    if is_static(value) or callable(value) and not vm.is_created(value):
        return Const(value, getattr(value, "__name__", type(value).__name__))
    raise GraphBreak(f"{_called(function)} is asked about an object that this call makes")


def ask(vm: Interpreter, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function` says now, with the guards that ask again: the same question gives the same answer in every call that fits."""
    operands = tuple(_operand(vm, a, function) for a in (*args, *kwargs.values()))
    try:
        result = vm.native(function, *map(vm.materialize, args), **kwargs)
    except UserRaise as raised:
        raise GraphBreak(f"{_called(function)} raises {type(raised.value).__name__}") from None
    if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)):
        raise GraphBreak(f"{_called(function)} gives a tensor that capture has not seen being made")
    return vm.user.wrap(result, Answer(function, operands, tuple(kwargs)))


def rely_on(vm: Interpreter, reader: Callable[[], Any]) -> None:
    """Rely on what `reader()`, a function of our own, gives."""
    source = Answer(reader)
    if ("equals", source, None) not in vm.guards.parts:
        vm.guards.add("equals", source, reader())


def decimal_context() -> tuple[Any, ...]:
    """What arithmetic of decimals depends on."""
    now = decimal.getcontext()
    traps = tuple(signal.__name__ for signal, active in now.traps.items() if active)
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


def signature_facts(function: Any) -> tuple[Any, ...]:
    """What the signature of a Python function or method is made of."""
    facts: list[Any] = []
    while isinstance(function, types.MethodType):
        function = function.__func__
    while isinstance(function, types.FunctionType):
        names = function.__dict__
        keywords = tuple((function.__kwdefaults__ or {}).items())
        facts += [function.__code__, function.__defaults__, keywords, names.get("__signature__")]
        function = names.get("__wrapped__")
    return (*facts, function)


_SIGNED = ("__signature__", "__wrapped__")  # what stands in for a function's own signature


def _signature(vm: Interpreter, args: tuple[Any, ...]) -> None:
    function = args[0] if args else None
    if not isinstance(function, types.FunctionType | types.MethodType):
        raise GraphBreak("the signature of an object that is no Python function is read")
    if not vm.is_created(function) and not vm.is_created(getattr(function, "__func__", None)):
        function = getattr(function, "__func__", function)
        source = _operand(vm, function, signature_facts)
        if isinstance(source, Const) and type(function) is types.FunctionType and _is_plain_signature(function):
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                vm.definitions.note_function(function, part)
            for name in _SIGNED:
                vm.guards.add("missing", Fetch(vars, source), name)
        else:
            vm.guards.add("equals", Answer(signature_facts, (source,)), signature_facts(function))


def _is_plain_signature(function: types.FunctionType) -> bool:
    """Whether the function's code and defaults tell its signature, none of which can change in place."""
    return function.__kwdefaults__ is None and not any(name in function.__dict__ for name in _SIGNED)


KINDS: dict[str, Callable[[Interpreter, tuple[Any, ...]], None]] = {
    "decimal": lambda vm, _: rely_on(vm, decimal_context),
    "signature": _signature,
}
