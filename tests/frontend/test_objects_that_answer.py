"""Objects that say themselves what a method or their class is, and items that change what they are compared in: capture asks as CPython does."""

from __future__ import annotations

import copy
import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor

from intarsia.frontend.runtime.callable import compile_callable


class Told:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_break(self, broken: Any) -> None:
        self.reasons.append(broken.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        self.reasons.append(reason)


def as_it_is(gm: Any, _: Any) -> Any:
    return gm.forward


def agrees(body: Callable[[], Any]) -> list[str]:
    """The reasons of breaks; what the body gives or raises is eager's, in two calls."""

    def around(x: Tensor) -> tuple[Tensor, Any]:
        y = x + 1
        try:
            found = body()
        except Exception as error:
            found = type(error), str(error)
        return y * 2, found

    told = Told()
    compiled = compile_callable(around, backend=as_it_is, observer=told)
    for n in (1, 2):
        x = torch.arange(4.0) * n
        got, want = compiled(x), around(x)
        assert torch.equal(got[0], want[0])
        assert got[1] == want[1]
    return told.reasons


class Forward:
    """Finds all it lacks in another object."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Proxy:
    """Is seen as another object."""

    def __init__(self, inner: Any) -> None:
        self._proxy_inner = inner

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_proxy"):
            return object.__getattribute__(self, name)
        return getattr(self._proxy_inner, name)


class Refuses:
    """Has no `__reduce__` of any kind."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__reduce"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)


class Copied:
    def __deepcopy__(self, memo: Any) -> str:
        return "copied"


class Base:
    def name(self) -> str:
        return "base"


class Derived(Base):
    def name(self) -> str:
        return super(Derived, self).name() + " derived"  # noqa: UP008


class Number(int):
    def __new__(cls, *, of: int) -> Number:
        made = int.__new__(cls, of * 2)
        made.of = of
        return made

    def __getnewargs_ex__(self) -> Any:
        return (), {"of": self.of}


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_deep_copies_ask_the_object() -> None:
    def own(answer: Any) -> Any:
        held = Held(3)
        held.__deepcopy__ = lambda memo: answer
        return copy.deepcopy(held)

    assert agrees(lambda: copy.deepcopy(Forward(Copied()))) == []
    assert agrees(lambda: copy.deepcopy([Forward(Copied()), Held([1])])[0]) == []
    assert agrees(lambda: own("its own")) == []
    assert agrees(lambda: copy.deepcopy(Held([1, 2])).value) == []
    assert agrees(lambda: copy.deepcopy(Refuses())) == []
    assert agrees(lambda: copy.copy(Forward([1])).inner) == []


def test_shallow_copies_ask_the_class() -> None:
    def own() -> Any:
        held = Held(3)
        held.__copy__ = lambda: "its own"
        return type(copy.copy(held)) is Held

    assert agrees(own) == []
    assert agrees(lambda: copy.copy(Refuses())) == []  # refused


def test_numbers_and_code_are_copied() -> None:
    def number() -> Any:
        x = Number(of=4)
        deep, flat = copy.deepcopy(x), copy.copy(x)
        return deep == x, deep.of, flat.of, deep is x, type(deep) is Number

    assert agrees(number) == []
    assert agrees(lambda: copy.deepcopy(number.__code__) is number.__code__) == []
    assert agrees(lambda: copy.copy(number.__code__) is number.__code__) == []


def test_classes_that_objects_show() -> None:
    assert agrees(lambda: Proxy(Derived()).__class__.__name__) == []
    assert agrees(lambda: Held(1).__class__.__name__) == []
    assert agrees(lambda: Derived.__dict__["name"](Proxy(Derived()))) == []
    assert agrees(lambda: super(Derived, Proxy(Derived())).name()) == []
    assert agrees(lambda: super(Derived, Proxy(Base())).name()) == []  # refused
    assert agrees(lambda: super(Derived, Held(1)).name()) == []  # refused

    def again() -> Any:
        found = super(float, 1.0)
        super.__init__(found, int, 3)
        return found.__thisclass__.__name__, found.__self__

    assert agrees(again) == []


def test_the_text_of_a_property() -> None:
    def written(text: Any) -> Any:
        def value(self: Any) -> int:
            "of the function"
            return 3

        made = property(value)
        made.__doc__ = text

        class Has:
            found = made

        return Has.found.__doc__, Has().found

    for text in ("other", None, "of the function"):
        assert agrees(lambda text=text: written(text)) == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_protocols(protocol: int) -> None:
    makers = (
        *(lambda: defaultdict(int, {1: 2}), lambda: ImportError("no"), lambda: range(3), lambda: {1, 2}),
        *(lambda: OSError(2, "gone"), lambda: 3 + 4j),
    )
    for make in makers:
        assert agrees(lambda make=make: repr(pickle.loads(pickle.dumps(make(), protocol)))) == []
    if protocol < 3:  # eager finds no module of that name
        agrees(lambda: repr(pickle.loads(pickle.dumps(defaultdict(int), protocol), fix_imports=False)))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
}


def compared(kind: type, symbol: str, mine: list[int], other: list[int], cut: int) -> Any:
    """What a comparison gives, and which items it has asked; the `cut`th question changes the lists."""
    asked: list[tuple[str, int]] = []
    sides: list[Any] = []

    class Item:
        def __init__(self, n: int) -> None:
            self.n = n

        def __eq__(self, other: Any) -> Any:
            asked.append(("==", self.n))
            if len(asked) == cut and kind is list:
                sides[cut % 2].pop()
            return self.n == other.n

        def __lt__(self, other: Any) -> bool:
            asked.append(("<", self.n))
            return self.n < other.n

        def __ge__(self, other: Any) -> bool:
            asked.append((">=", self.n))
            return self.n >= other.n

        __hash__ = None  # type: ignore[assignment]

    sides += [kind(map(Item, mine)), kind(map(Item, other))]
    return OPERATORS[symbol](*sides), asked, [[item.n for item in side] for side in sides]


def test_comparisons_of_sequences() -> None:
    draw = random.Random(5)
    for _ in range(40):
        kind, symbol = draw.choice((list, tuple)), draw.choice([*OPERATORS])
        mine = [draw.randrange(2) for _ in range(draw.randrange(4))]
        other = mine + [1] * draw.randrange(2) if draw.random() < 0.6 else [draw.randrange(2) for _ in range(3)]
        cut = draw.randrange(5)
        assert agrees(lambda given=(kind, symbol, mine, other, cut): compared(*given)) == []


def test_arguments_that_do_not_fit() -> None:
    for call in (
        lambda: [1].count(1, 2),
        lambda: [1].count(),
        lambda: (1,).index(),
        lambda: [1].index(1, 2, 3, 4),
        lambda: [1].remove(1, 2),
        lambda: [1].count(value=1),
        lambda: [1, 1].count(1),
    ):
        assert agrees(call) == []


class Settings:
    """As settings of models are: names that stand for others are resolved by `__getattribute__`, which also counts."""

    names = {"width": "hidden"}

    def __init__(self) -> None:
        self.hidden, self.layers, self.asked = 8, [1, 2], 0

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in ("__reduce__", "__reduce_ex__", "__getstate__", "__deepcopy__"):
            own("__dict__")["asked"] += 1
        return own(own("names").get(name, name))


class SettingsWithState(Settings):
    def __getstate__(self) -> dict[str, Any]:
        return {"hidden": 5, "layers": self.layers, "asked": 0}


class ReducesElsewhere(Settings):
    def __getattribute__(self, name: str) -> Any:
        return (lambda: "names") if name == "__reduce__" else super().__getattribute__(name)


class StatesElsewhere(Settings):
    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return (lambda: {"hidden": 3, "layers": [], "asked": 0}) if name == "__getstate__" else found


class OfAnotherClass(Settings):
    __class__ = property(lambda self: dict)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "one_graph"),
    [
        (Settings, True),
        (SettingsWithState, True),
        (ReducesElsewhere, False),
        (StatesElsewhere, True),
        (OfAnotherClass, False),
    ],
)
def test_copies_of_what_finds_its_own_attributes(kind: type[Settings], one_graph: bool) -> None:
    def body() -> Any:
        settings = kind()
        deep, flat = copy.deepcopy(settings), copy.copy(settings)
        if type(deep) is not kind:
            return deep, flat, settings.asked
        deep.layers.append(deep.width)  # type: ignore[attr-defined]
        return deep.layers, flat.width, flat.layers is settings.layers, settings.asked, deep.asked  # type: ignore[attr-defined]

    assert (not agrees(body)) == one_graph


ASKED: list[str] = []


class Slots:
    __slots__ = ("a", "b")

    def __getattr__(self, name: str) -> Any:
        ASKED.append(name)
        raise AttributeError(name)


class SlotsThatAsk:
    __slots__ = ("a", "b")

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("kind", [Slots, SlotsThatAsk])
def test_guards_of_slots_ask_no_method_of_the_program_s(kind: type) -> None:
    def program(x: torch.Tensor, slots: Any) -> Any:
        del ASKED[:]
        try:
            return x + slots.b, list(ASKED)
        except AttributeError:
            return x + slots.a, list(ASKED)

    slots, fast = kind(), compiled(program)[0]
    for name, value in (("a", 1.5), ("a", 1.5), ("a", 2.5), ("b", 3.5), ("b", 3.5)):
        setattr(slots, name, value)
        got = fast(torch.ones(2), slots)
        asked = list(ASKED)
        want = program(torch.ones(2), slots)
        assert torch.equal(got[0], want[0]) and (got[1], asked) == (want[1], ASKED)
