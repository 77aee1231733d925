"""Python's generators of random numbers (`random.random()`, `random.Random(3)`).

A generator whose state is known, as it was made or seeded inside of the code with constants, is run at capture: its numbers are
constants. Of any other one the entry draws in front of the graph (`guards.drawn`), as the program does: the numbers are symbols. The
numbers of the call that is captured come from a copy of the generator, which stays as it is until the entry runs.

What Python decides by such a symbol is a guard, as long as a graph has at most `_WAYS` ways to go. Where that or anything else about the
draws would break the graph, capture starts again and takes the states of the caller's generators as they are, with a guard (`StateIs`): a
program that seeds before each call has one graph. The next capture for a call from another state draws in front of the graph, or breaks it.
"""

from __future__ import annotations

import _random
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch

from ..calls.registry import Rows, Then
from ..errors import GraphBreak, Refused, UserRaise
from ..graph.output import GraphInput
from ..guards.drawn import Drawn, DrawnCheck, StateIs, is_drawn, put_state, state_of
from ..guards.source import Attr, Computed, Const, Fetch, Item, Number, Source
from ..state import Interpreter
from ..torch_private.symbols import bound, int_bounds, symbolic_int, watch_relations
from ..values.constant import is_constant
from ..values.identity import PLAIN_KINDS
from ..values.kinds import SYMBOLIC, isinstance
from ..values.object import lookup

__all__ = ["ROWS", "Draws", "State"]

ROWS = Rows()
_WAYS = 4  # as many entries as decisions by drawn numbers may make of one graph
_MOST = 128  # draws of one graph
_LARGEST = 1 << 62
_DECIDES = "what follows depends on a random number of Python's"
_Standard, _InC = random.Random, _random.Random


class State:
    """What `getstate()` gives of a generator whose state only the running program knows: it can be set, kept and given out."""

    def __init__(self, value: Any, fixed: bool) -> None:
        self.__dict__.update(value=value, fixed=fixed)

    def __getattr__(self, name: str) -> Any:
        raise _looked_at()


def _looked_at() -> GraphBreak:
    return GraphBreak("the state of a generator of Python's is looked at")


def _refuse(*_: Any) -> Any:
    raise _looked_at()


for (
    _name
) in "eq ne lt le gt ge hash bool len iter getitem contains add mul radd rmul repr str format reduce_ex".split():  # noqa: SIM905
    setattr(State, f"__{_name}__", _refuse)
PLAIN_KINDS[State] = tuple


@dataclass
class _Held:
    """A generator: what draws in its place at capture, where it comes from (None: capture made it).

    `known`: its state follows from constants of the code. `fixed`: the entry draws the numbers that capture draws; else the system
    has seeded it. `standard`: its methods are Python's own. `changed`: the entry has to put its state.
    """

    generator: Any
    twin: Any
    source: Source | None
    known: bool = False
    fixed: bool = True
    standard: bool = True
    changed: bool = False


class Draws:
    """The generators that one capture knows, and what is done to them in front of the graph."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.steps: list[Drawn] = []
        self.held: dict[int, _Held] = {}
        self.ways = 1
        self.calls = 0  # of torch that are under way
        self.watches = False
        self.moves = 0  # draws and changes of states so far
        self.refused: str | None = (
            None  # why the graph cannot draw, where the states of the caller's generators are taken as they are
        )
        self._states = list(vm.dynamic.marks.states)  # for which graphs were made before

    # ---- generators ----

    def stop(self, error: GraphBreak) -> BaseException:
        """What ends the capture where the graph cannot draw: the next one relies on the states of generators, or breaks there."""
        held = [h.generator for h in self.held.values() if h.source is not None and not isinstance(h.source, Drawn)]
        taken = self.refused is None and not self.vm.exporting and self.vm.dynamic.marks.floats and bool(held)
        return Refused(error.reason, "draws") if taken and all(map(self._is_taken, held)) else error

    def _is_taken(self, generator: Any) -> bool:
        """Whether a graph may be made for the state of a generator: one of the first capture's, which has come again."""
        return not self._states or state_of(generator) in self._states

    def of(self, generator: Any) -> _Held:
        """What is known of a generator."""
        found = self.held.get(id(generator))
        if found is None:
            if not isinstance(generator, _InC):
                raise GraphBreak("a method of random.Random is called on something else")
            found = self.held[id(generator)] = self._first_seen(generator)
        return found

    def _first_seen(self, generator: Any) -> _Held:
        vm, standard = self.vm, _is_standard(type(generator))
        if vm.is_created(generator):
            return _Held(generator, generator, None, known=True, standard=standard)
        known = vm.user.by_value.get(id(generator))
        if known is None:  # by a bound method that a guard holds by identity
            vm.user.track(generator, generator, Const(generator, "random"))
            known = vm.user.by_value[id(generator)]
        if (id(generator), "gauss_next") in vm.effects.attrs:
            raise GraphBreak("an attribute of a generator of Python's is set")
        if standard:
            names = list(vars(generator))
            if names != ["gauss_next"]:
                raise GraphBreak("a generator of Python's has attributes of the program's")
            vm.guards.add("keys", Attr(known.source, "__dict__"), names)
        twin = _Standard(0)
        state = state_of(generator)
        put_state(twin, state)
        taken = self.refused is not None and self._is_taken(generator)
        if taken:
            vm.guards.add("equals", Fetch(StateIs(state), known.source), True)
            vm.dynamic.marks.states.append(state)
        return _Held(generator, twin, known.source, known=taken, standard=standard)

    def make(self, seed: Any) -> Any:
        """`random.Random(seed)` that only the entry can make."""
        fixed = seed is not None
        made = _Standard(_now(seed)) if fixed else _Standard()
        step = self._step(_Standard, [self._operand(seed)] if fixed else [], {}, "random.Random()")
        self.vm.user.track(made, made, step)
        self.held[id(made)] = _Held(made, made, step, fixed=fixed)
        return made

    def check_attribute(self, generator: Any) -> None:
        """Break where an attribute of a generator is asked for, or set, that draws change in front of the graph."""
        held = self.held.get(id(generator))
        if held is not None and held.source is not None and held.standard:
            raise GraphBreak("an attribute of a generator of Python's is read or set")

    # ---- draws ----

    def _step(self, function: Any, operands: list[Any], keywords: dict[str, Any], label: str) -> Drawn:
        vm = self.vm
        if vm.exporting or vm.side is not None or vm.out.inside:
            raise GraphBreak("random numbers of Python's are drawn in a part of the graph")
        if not vm.dynamic.marks.floats or len(self.steps) >= _MOST:
            raise self.stop(GraphBreak("Python's random module is called"))
        step = Drawn(function, operands, keywords, f"{label} #{len(self.steps)}")
        self.steps.append(step)
        self.moves += 1
        return step

    def draw(self, held: _Held, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call gives; a symbol for each number."""
        assert held.source is not None
        operands = [self._operand(a) for a in args]
        keywords = {k: self._operand(v) for k, v in kwargs.items()}
        limits = _limits(function, args, kwargs)
        step = self._step(function, [held.source, *operands], keywords, f"random.{function.__name__}()")
        try:
            value = self.vm.native(function, held.twin, *map(_now, args), **{k: _now(v) for k, v in kwargs.items()})
        except UserRaise:
            self.steps.pop()
            if any(map(_changes, (*args, *kwargs.values()))):
                raise GraphBreak("Python's random module is called with numbers that change, and raises") from None
            raise
        return self._symbols(value, step, limits, held.fixed)

    def _symbols(self, value: Any, source: Source, limits: tuple[Any, Any], fixed: bool) -> Any:
        kind = type(value)
        if kind is list:
            return [self._symbols(v, Item(source, k), limits, fixed) for k, v in enumerate(value)]
        if kind not in (int, float, bool):
            return value
        vm = self.vm
        vm.need_symbols()
        if not self.watches:
            self.watches = True
            vm.out.watch(self._around)
            watch_relations(vm.shape_env, self._decides)
        if not fixed:
            self.ways = _WAYS
        if kind is float:
            if value - value != 0.0:
                raise self.stop(GraphBreak("a random number of Python's is not finite"))
            return vm.dynamic.float_of(value, source)
        if kind is bool:
            return self._whole(int(value), Computed(int, (source,)), 0, 1) != 0
        return self._whole(value, source, *limits)

    def _whole(self, value: int, source: Source, low: int | None, high: int | None) -> Any:
        if low is None or high is not None and high >= _LARGEST or abs(low) >= _LARGEST:
            raise self.stop(GraphBreak("a random number of Python's has a range that changes, or more than 62 bits"))
        if low == high:
            return value
        vm, shift = self.vm, min(low, 0)
        base = source if not shift else Computed(_less, (source, Number(shift)))
        made = symbolic_int(vm.shape_env, value - shift, base.name())
        bound(made, low - shift, None if high is None else high - shift)
        vm.out.add_input(GraphInput(base, made, value - shift, False))
        return made + shift if shift else made

    def _operand(self, value: Any) -> Any:
        """An argument of a call in front of the graph."""
        kind = type(value)
        if kind in (int, float):
            return Number(value)
        if kind in (torch.SymInt, torch.SymFloat):
            if self.vm.out.read.is_read(value):
                raise GraphBreak("Python's random module is called with a tensor's value")
            return self.vm.dynamic.source_of(value)
        if kind in (list, tuple):
            return [self._operand(v) for v in value]
        if is_constant(value):
            return Const(value, kind.__name__)
        raise GraphBreak(f"Python's random module is called with a {self.vm.type_of(value).__name__}")

    # ---- decisions ----

    def _around(
        self, call: Any, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any
    ) -> Any:
        self.calls += 1
        try:
            return call(op, target, args, kwargs, function)
        finally:
            self.calls -= 1

    def _decides(self, relation: Any) -> None:
        """A relation becomes a guard: break the graph where other draws would have it otherwise too often."""
        symbols = self.vm.out.symbols
        drawn = [s for s in relation.free_symbols if s in symbols and is_drawn(symbols[s][0].source)]
        if not drawn:
            return
        number = 2
        if isinstance(relation, sympy.Eq):  # one of so many
            low, high = int_bounds(self.vm.shape_env.var_to_range[drawn[0]])
            number = high - low + 1 if len(drawn) == 1 and drawn[0].is_integer and high is not None else _WAYS + 1
        elif self.calls:  # what an operator asks of sizes mostly holds
            return
        if self.ways * number > _WAYS:
            raise self.stop(GraphBreak(_DECIDES))
        self.ways *= number

    # ---- the entry ----

    def check(self) -> DrawnCheck | None:
        """What the entry does in front of the graph; None: nothing. Generators that capture made are made again."""
        put: list[Drawn] = []
        for held in self.held.values():
            if held.known and held.changed and held.source is not None:
                state = Const(state_of(held.twin), "state")
                put.append(Drawn(put_state, [held.source, state], {}, "random.setstate()"))
            elif held.known and type(held.generator) is _Standard and self.vm.is_created(held.generator):
                self.vm.recipes[id(held.generator)] = (_maker(state_of(held.twin)), (), {})
        if self.vm.shape_env is not None:
            watch_relations(self.vm.shape_env, None)
        if not self.steps and not put:
            return None
        for key, guard in list(self.vm.guards.parts.items()):
            if is_drawn(guard.source):
                if guard.kind == "equals":
                    raise self.stop(GraphBreak(_DECIDES))
                del self.vm.guards.parts[key]  # of a generator that the entry makes
        sources = [held.source for held in self.held.values() if held.source is not None]
        return DrawnCheck([*self.steps, *put], [s for s in sources if not isinstance(s, Drawn)])


def _is_standard(kind: type) -> bool:
    """Whether a class draws as `random.Random` does, whatever else it has."""
    return issubclass(kind, _Standard) and all(lookup(kind, n)[0] is lookup(_Standard, n)[0] for n in _NAMES)


_NAMES = [n for n, v in (*vars(_Standard).items(), *vars(_InC).items()) if callable(v) and n not in ("__init__",)]
_NAMES = [n for n in _NAMES if not n.startswith("__") or n in ("__getattribute__", "__setattr__")]


def _maker(state: tuple[Any, ...]) -> Callable[[], Any]:
    def generator() -> Any:
        made = _Standard(0)
        put_state(made, state)
        return made

    return generator


def _less(a: int, b: int) -> int:
    return a - b


def _now(value: Any) -> Any:
    """A value with the numbers of the call that is captured."""
    if type(value) in (list, tuple):
        return [_now(v) for v in value]
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


def _changes(value: Any) -> bool:
    return any(map(_changes, value)) if type(value) in (list, tuple) else isinstance(value, SYMBOLIC)


def _is_plain(value: Any) -> bool:
    """Whether a generator that is run at capture can be given a value: it moves items, and asks nothing of them."""
    return (is_constant(value) or type(value) in (list, tuple)) and not _changes(value)


# The least and the largest integer that a method gives.


def _limits(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    rule = _LIMITS.get(function.__name__)
    try:
        return (None, None) if rule is None else rule(*args, **kwargs)
    except (TypeError, ValueError):  # which the method itself raises, too
        return None, None


def _of_range(start: Any, stop: Any = None, step: Any = 1) -> tuple[Any, Any]:
    if stop is None:
        start, stop = 0, start
    if type(start) is type(stop) is type(step) is int:
        items = range(start, stop, step)
        return min(items), max(items)
    return (start if type(start) is int and start >= 0 and type(step) is int and step > 0 else None), None


def _of_items(items: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    if type(items) is range:
        return min(items[0], items[-1]), max(items[0], items[-1])
    plain = [int(i) for i in items if type(i) in (int, bool)]
    return (min(plain), max(plain)) if len(plain) == len(items) and plain else (None, None)


def _below(n: Any, *_: Any) -> tuple[Any, Any]:
    return 0, n - 1 if type(n) is int else None


_LIMITS: dict[str, Any] = {
    "getrandbits": lambda k: (0, (1 << k) - 1 if type(k) is int else None),
    "randint": lambda a, b: _of_range(a, b + 1),
    "randrange": _of_range,
    "_randbelow_with_getrandbits": _below,
    "binomialvariate": lambda n=1, p=0.5: (0, n if type(n) is int else None),
    **dict.fromkeys(["choice", "choices", "sample", "shuffle"], _of_items),
}


# ---- methods ----


def _draws(vm: Interpreter) -> Draws:
    return vm.random.python  # type: ignore[no-any-return]


def _method(function: Any, vm: Interpreter, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that gives numbers."""
    draws = _draws(vm)
    held = draws.of(generator)
    in_python = function.__name__ in vars(_Standard)
    if in_python and not held.standard:
        return Then(function, (generator, *args), kwargs, body=True)
    if held.known:
        if in_python and not all(map(_is_plain, (*args, *kwargs.values()))):
            return Then(function, (generator, *args), kwargs, body=True)
        held.changed = True
        draws.moves += 1
        return vm.native(function, held.twin, *args, **kwargs)
    return draws.draw(held, function, args, kwargs)


def _are_numbers(value: Any) -> bool:
    """Whether a list or tuple holds numbers of one kind, and not many."""
    if type(value) not in (list, tuple) or len(value) > _MOST:
        return False
    kinds = {int if t is torch.SymInt else float if t is torch.SymFloat else t for t in map(type, value)}
    return kinds in ({int}, {float}, {bool})


def _among(function: Any, vm: Interpreter, generator: Any, population: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that takes items of a sequence: numbers alone, else their places decide."""
    held = _draws(vm).of(generator)
    if held.known or not held.standard:
        return _method(function, vm, generator, population, *args, **kwargs)
    if type(population) is range and len(population) or _are_numbers(population):
        return _draws(vm).draw(held, function, (population, *args), kwargs)
    if function is _Standard.choice:
        return Then(function, (generator, population), kwargs, body=True)
    raise _draws(vm).stop(GraphBreak("Python's random module orders or takes what is no number, or too many"))


def _shuffle(vm: Interpreter, generator: Any, x: Any, *args: Any) -> Any:
    held = _draws(vm).of(generator)
    if held.known or not held.standard or args:
        return _method(_Standard.shuffle, vm, generator, x, *args)
    if type(x) is list and len(x) < 2:
        return None  # nothing is drawn
    if type(x) is not list or not _are_numbers(x):
        raise _draws(vm).stop(GraphBreak("Python's random module orders or takes what is no number, or too many"))
    x[:] = _draws(vm).draw(held, _shuffled, (list(x),), {})
    return None


def _shuffled(generator: Any, items: list[Any]) -> list[Any]:
    _Standard.shuffle(generator, items)
    return items


_shuffled.__name__ = "shuffle"
_WITH_ITEMS = ("choice", "choices", "sample")
_NUMBERS = """
randrange randint uniform triangular normalvariate lognormvariate expovariate vonmisesvariate gammavariate gauss betavariate
paretovariate weibullvariate binomialvariate _randbelow_with_getrandbits
""".split()  # noqa: SIM905
for _name in _NUMBERS:
    if hasattr(_Standard, _name):
        ROWS.rule(getattr(_Standard, _name))(partial(_method, getattr(_Standard, _name)))
for _name in _WITH_ITEMS:
    ROWS.rule(getattr(_Standard, _name))(partial(_among, getattr(_Standard, _name)))
ROWS.rule(_Standard.shuffle)(_shuffle)
ROWS.rule(_InC.random)(partial(_method, _InC.random))
ROWS.rule(_InC.getrandbits)(partial(_method, _InC.getrandbits))


# ---- states ----


@ROWS.rule(_Standard)
def _make(vm: Interpreter, x: Any = None) -> Any:
    if x is None or type(x) in (torch.SymInt, torch.SymFloat):
        return _draws(vm).make(x)
    made = vm.create(vm.native(_Standard, x))
    _draws(vm).of(made)
    return made


def _seed(function: Any, vm: Interpreter, generator: Any, a: Any = None, *args: Any, **kwargs: Any) -> Any:
    draws = _draws(vm)
    held = draws.of(generator)
    in_python = function is _Standard.seed
    if in_python and not held.standard:
        return Then(function, (generator, a, *args), kwargs, body=True)
    if a is not None and is_constant(a) or type(a) is bytearray:
        made = vm.native(function, held.twin, a, *args, **kwargs)
        held.known = held.fixed = held.changed = True
        draws.moves += 1
        return made
    if a is None or type(a) in (torch.SymInt, torch.SymFloat):
        if held.source is None:
            raise GraphBreak(
                "a generator that was made inside of the code is seeded by the system, or by a number that changes"
            )
        given = [] if a is None else [draws._operand(a)]
        draws._step(function, [held.source, *given], {}, "random.seed()")
        function(held.twin, *map(_now, [] if a is None else [a]))
        held.known, held.fixed = False, a is not None
        return None
    if in_python:
        return Then(function, (generator, a, *args), kwargs, body=True)
    raise GraphBreak(f"a generator is seeded with a {vm.type_of(a).__name__}")


def _get_state(function: Any, vm: Interpreter, generator: Any) -> Any:
    draws = _draws(vm)
    held = draws.of(generator)
    if function is _Standard.getstate and not held.standard:
        return Then(function, (generator,), {}, body=True)
    if held.known:
        return vm.native(function, held.twin)
    step = draws._step(function, [held.source], {}, "random.getstate()")
    state = State(function(held.twin), held.fixed)
    vm.user.track(state, state, step)
    return state


def _set_state(function: Any, vm: Interpreter, generator: Any, state: Any) -> Any:
    draws = _draws(vm)
    held = draws.of(generator)
    if function is _Standard.setstate and not held.standard:
        return Then(function, (generator, state), {}, body=True)
    if type(state) is State:
        if held.source is None:
            raise GraphBreak("a generator that was made inside of the code gets another one's state")
        draws._step(function, [held.source, vm.user.source_of(state)], {}, "random.setstate()")
        function(held.twin, vars(state)["value"])
        held.known, held.fixed = False, vars(state)["fixed"]
        return None
    if not is_constant(state):
        raise GraphBreak("a state is set that is none of a generator of Python's")
    vm.native(function, held.twin, state)
    held.known = held.fixed = held.changed = True
    draws.moves += 1
    return None


for _owner in (_Standard, _InC):
    ROWS.rule(_owner.seed)(partial(_seed, _owner.seed))
    ROWS.rule(_owner.getstate)(partial(_get_state, _owner.getstate))
    ROWS.rule(_owner.setstate)(partial(_set_state, _owner.setstate))
