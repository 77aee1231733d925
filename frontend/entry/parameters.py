"""How a target is called: its parameters, arguments by name, what calls leave out."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..breaks.pieces import Piece
from ..guards.emitter import Emitter, MissIf
from ..guards.guards import GuardSet
from ..guards.source import Arg
from ..values.kinds import isinstance

__all__ = ["UNGIVEN", "Parameters", "default_of"]


class _Ungiven:
    def __repr__(self) -> str:
        return "UNGIVEN"


UNGIVEN = _Ungiven()  # stands for the argument of a parameter that a call leaves out
_PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PINS = ("equals", "is", "type")  # guards that never hold for UNGIVEN


def default_of(function: types.FunctionType, name: str) -> Any:
    """The default that a parameter of a function has now, or UNGIVEN."""
    code, by_name, in_turn = function.__code__, function.__kwdefaults__ or {}, function.__defaults__ or ()
    if name in by_name:
        return by_name[name]
    names = code.co_varnames[: code.co_argcount]
    place = names.index(name) - len(names) if name in names else 0
    return in_turn[place] if -len(in_turn) <= place < 0 else UNGIVEN


@dataclass(frozen=True)
class Parameters:
    """How the target is called: its parameters by name and kind, `self` left out.

    `function` is the Python function whose defaults a call takes, where the signature is its own: these may come and go.
    """

    signature: inspect.Signature
    function: types.FunctionType | None = None
    ours: bool = False  # of a piece, which is always called rightly

    @staticmethod
    def of(target: Any) -> Parameters:
        """The parameters of a function, bound method or module (its `forward`)."""
        try:
            if isinstance(target, Piece):
                return Parameters(target.signature, ours=True)
            function: Any = target.forward if isinstance(target, nn.Module) else target
            signature = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):
            return Parameters(inspect.signature(lambda *args, **kwargs: None))
        function = function.__func__ if isinstance(function, types.MethodType) else function
        own = type(function) is types.FunctionType and not hasattr(function, "__signature__")
        return Parameters(signature, function if own else None)

    @property
    def names(self) -> list[str]:
        return list(self.signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults filled in; the same TypeError as the call would give."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    @property
    def named(self) -> list[str]:
        """Parameters that are UNGIVEN without an argument and a default: one may have come, else eager raises."""
        given = () if self.ours else self.signature.parameters.items()
        return [name for name, parameter in given if parameter.kind not in _PACKED]

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with those defaults that came since; what is still missing stays UNGIVEN."""
        function: Any = self.function
        if function is None:
            return values
        return {n: default_of(function, n) if v is UNGIVEN else v for n, v in values.items()}

    def given(self, emit: Emitter, guards: GuardSet) -> list[MissIf]:
        """The check that no parameter was left out that no guard pins down; none where all are pinned."""
        pinned = {g.source.arg for g in guards.parts.values() if g.kind in _PINS and isinstance(g.source, Arg)}
        tensors = {f.source.arg for c in guards.extra for f in getattr(c, "facts", ()) if isinstance(f.source, Arg)}
        names = [f"{n}_" for n in self.named if n not in pinned | tensors]
        tests = " or ".join(f"{name} is {emit.constant(UNGIVEN, 'UNGIVEN')}" for name in names)
        return [MissIf(tests)] if names else []

    def spread(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments again."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        missing = False
        for name, parameter in self.signature.parameters.items():
            if values[name] is UNGIVEN:
                missing = True
            elif missing and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                kwargs[name] = values[name]
            elif parameter.kind is parameter.VAR_POSITIONAL:
                args += values[name]
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(values[name])
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = values[name]
            else:
                args.append(values[name])
        return tuple(args), kwargs
