"""Random numbers of Python's that an entry draws in front of its graph, in the program's order, once its other guards hold.

What is decided by such numbers is a check behind the draws. Where it does not hold, the generators are set back first, so that the
next entry, or eager, draws the same numbers.
"""

from __future__ import annotations

import _random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InternalError
from .emitter import Emitter
from .recompile_reason import Miss
from .source import Computed, Const, Number, SizeExpression, Source

__all__ = ["Drawn", "DrawnCheck", "StateIs", "Undrawn", "is_drawn", "put_state", "state_of"]


class Undrawn(Exception):
    """A number is asked for that only a call draws."""


def state_of(generator: _random.Random) -> tuple[Any, ...]:
    """All that the next numbers of a generator follow from, past methods of its class."""
    return _random.Random.getstate(generator), getattr(generator, "__dict__", {}).get("gauss_next")


def put_state(generator: _random.Random, state: tuple[Any, ...]) -> None:
    """Set a generator to such a state."""
    _random.Random.setstate(generator, state[0])
    vars(generator)["gauss_next"] = state[1]


class StateIs:
    """Whether a generator is where it was at capture: what a graph relies on that was made for one state."""

    def __init__(self, state: tuple[Any, ...]) -> None:
        self.state, self.__name__ = state, "is_where_it_was_at_capture"

    def __call__(self, generator: _random.Random) -> bool:
        return state_of(generator) == self.state


def _states(*generators: _random.Random) -> list[tuple[Any, Any]]:
    return [(generator, state_of(generator)) for generator in generators]


def _undo(states: list[tuple[Any, Any]] | None) -> None:
    """Set generators back to what `_states` gave; nothing was drawn yet where it is None."""
    for generator, state in states or ():
        put_state(generator, state)


class Drawn(Source):
    """`function(*operands)`, done once in a call: what a generator gives, or what is done to it. No two are equal."""

    __slots__ = ("function", "keywords", "label", "operands")

    def __init__(self, function: Any, operands: Sequence[Any], keywords: Mapping[str, Any], label: str) -> None:
        self.function, self.operands, self.keywords, self.label = function, operands, keywords, label

    def name(self) -> str:
        return self.label

    def reconstruct(self, emit: Emitter) -> str:
        if not getattr(emit, "draws", False):
            raise InternalError("a random number is fetched in front of the draws")
        given = [_text(emit, o) for o in self.operands] + [f"{k}={_text(emit, o)}" for k, o in self.keywords.items()]
        return f"{emit.constant(self.function, self.function.__name__)}({', '.join(given)})"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        raise Undrawn(self.label)


def _text(emit: Emitter, operand: Any) -> str:
    """An operand: a source, or a list of operands."""
    if isinstance(operand, list):
        return f"[{', '.join(_text(emit, o) for o in operand)}]"
    return emit.inline(operand) if isinstance(operand, Number | Const) else emit.fetch(operand)


def is_drawn(source: Source) -> bool:
    """Whether a value follows from what a call draws."""
    if isinstance(source, Drawn):
        return True
    if isinstance(source, SizeExpression):
        return any(is_drawn(of) for _, of, _, _ in source.symbols)
    operands: Iterable[Source] = source.operands if isinstance(source, Computed) else ()
    base = getattr(source, "base", None)
    return any(map(is_drawn, operands)) or base is not None and is_drawn(base)


@dataclass
class DrawnCheck:
    """The draws of an entry. `generators` are the caller's that it draws from: their states are kept until the graph has run."""

    steps: Sequence[Drawn]
    generators: Sequence[Source]
    first = False

    def lines(self, emit: Emitter) -> None:
        """Keep the states, then draw; `Entry` sets them back."""
        given = ", ".join(map(emit.fetch, self.generators))
        emit.namespace["undo"] = _undo
        emit.lines.append(f"before = {emit.constant(_states, 'states')}({given})")
        emit.draws = True  # type: ignore[attr-defined]
        for step in self.steps:
            emit.fetch(step)

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """Nothing is asked here."""
        return None

    def __str__(self) -> str:
        return "\n".join(f"drawn: {step.name()}" for step in self.steps)
