"""Methods of the program's objects that C code runs: look-ups, searches, sorts, conversions, as CPython does them, interpreted."""

from __future__ import annotations

import bisect
import collections
import ctypes
import functools
import heapq
import itertools
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor

X = torch.ones(2)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the exception that it raises."""
    try:
        return function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def agree(program: Callable[..., Any], *calls: tuple[Any, ...], breaks: int = 0) -> Any:
    """Compare calls eager and compiled, the same arguments for both; returns the log."""
    fast, log = compiled(program)
    for args in calls or ((), ()):
        want, got = outcome(program, X, *args), outcome(fast, X, *args)
        assert same(got, want), f"compiled {got!r}, eager {want!r}"
    assert not log.fallbacks, log.fallbacks
    assert len({(b.place.lineno, b.reason) for b in log.breaks}) == breaks, [b.reason for b in log.breaks]
    return log


class Key:
    """Equal by value, and ordered."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Key) -> bool:
        return bool(self.value < other.value)

    def __repr__(self) -> str:
        return f"Key({self.value})"


class Plain:
    """Equal to itself alone."""


def function_of(n: int) -> Callable[[], int]:
    return lambda: n


# ---- what runs them ----


def look_ups(x: Tensor) -> Any:
    table: dict[Any, int] = {Key(1): 2}
    table[Key(3)] = 4
    found = table[Key(1)] + table.get(Key(3), 0) + table.setdefault(Key(1), 9) + table.pop(Key(3))
    items = {Key(1), Key(1), Key(2)}
    more = items | {Key(3)}
    both = sorted(k.value for k in more & {Key(3), Key(1)})
    numbers = [[2, 1], [2, 5], [1, 3]]
    counted = collections.Counter(Key(i % 2) for i in range(5))
    made = {Key(a): b for a, b in numbers}, set(map(Key, (1, 2, 1))), dict([[Key(1), 2], [Key(1), 3]])
    return x + found, Key(1) in table, len(more), both, list(counted.values()), list(map(len, made))


def searches(x: Tensor) -> Any:
    items = [Key(3), Key(1)]
    heap: list[Key] = []
    for value in (3, 1, 2):
        heapq.heappush(heap, Key(value))
    found = bisect.bisect(sorted(items), Key(2)), deque(items).index(Key(1)), deque(items).count(Key(3))
    compared = (Key(1), Key(2)) == (Key(1), Key(2)), [Key(1)] < [Key(2)], deque(items) == deque(items)
    return x + heapq.heappop(heap).value, [k.value for k in heap], found, compared, max(items).value


def iterators(x: Tensor) -> Any:
    class Sum:
        def __init__(self, value: int) -> None:
            self.value = value

        def __add__(self, other: Sum) -> Sum:
            return Sum(self.value + other.value + 1)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Sum) and self.value // 2 == other.value // 2

    sums = [s.value for s in itertools.accumulate([Sum(1), Sum(2), Sum(3)])]
    groups = [(k.value, len(list(g))) for k, g in itertools.groupby([Sum(1), Sum(0), Sum(2), Sum(3)])]
    return x + sum(sums), groups


def places(x: Tensor) -> Any:
    class Place:
        def __index__(self) -> int:
            return 2

    ends = slice(Place(), None).indices(Place())
    return x, [1, 2, 3][Place()], ends, list(range(Place())), [1, 2, 2].index(2, Place()), operator.index(Place())


def subclasses_of_builtins(x: Tensor) -> Any:
    class Items(list):  # type: ignore[type-arg]
        def __eq__(self, other: object) -> bool:
            return isinstance(other, list) and len(self) == len(other)

        def __iter__(self) -> Any:
            return iter([9, 9])

    class Table(dict):  # type: ignore[type-arg]
        def __missing__(self, key: Key) -> int:
            self[key] = key.value
            return 7

    table = Table()
    table[Key(1)] = 2
    read = table[Key(1)], table[Key(4)], table[Key(4)], len(table)
    compared = [Items([1])] == [Items([2])], [Items([1])].count(Items([3])), {1: Items([1])} == {1: Items([4])}
    return x, read, compared, sorted(Items([1])), Items([1]).count(1), set(Items([2]))


# ---- how often, in which order, and what happens meanwhile ----


def kept_hashes(x: Tensor) -> Any:
    calls = []

    class Noted:
        def __init__(self, value: int) -> None:
            self.value = value

        def __hash__(self) -> int:
            calls.append(("hash", self.value))
            return 1

        def __eq__(self, other: object) -> bool:
            assert isinstance(other, Noted)
            calls.append((self.value, other.value))
            return self.value == other.value

    first = Noted(1)
    table = {first: 1, Noted(2): 2}
    table[first], table[Noted(2)] = 3, 4  # found by identity, and by comparing twice
    copies = dict(table), table | {}, set(table), list(table), {**table}
    return x + len(calls), calls, [len(c) for c in copies], Noted(2) in copies[2]


def changed_meanwhile(x: Tensor) -> Any:
    table: dict[Any, int] = {}

    class Clears:
        def __eq__(self, other: object) -> bool:
            table.clear()
            return True

        def __hash__(self) -> int:
            return 1

    class Grows:
        def __init__(self, items: Any) -> None:
            self.items = items

        def __eq__(self, other: object) -> bool:
            self.items.append(1)
            return False

        def __lt__(self, other: object) -> bool:
            self.items.append(1)
            return True

    table[Clears()] = 1
    table[Clears()] = 2
    items: list[Any] = []
    items += [Grows(items), Grows(items)]
    queue: deque[Any] = deque()
    queue += [Grows(queue), Grows(queue)]
    said = []
    for call in (items.sort, lambda: heapq.heapify(items), lambda: queue.remove(2), lambda: queue.index(3)):
        try:
            call()
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return x + len(table), said, len(items), len(queue)


def raising(x: Tensor) -> Any:
    class Fails:
        def __hash__(self) -> int:
            raise TypeError("no hash")

        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError("no equality")

        def __len__(self) -> int:
            return -1

        def __index__(self) -> int:
            return "1"  # type: ignore[return-value]

    class Same:
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError("no equality")

    one: dict[Any, Any] = {}
    said = []
    for call in (
        lambda: {Fails()},
        lambda: {Fails(): 1},
        lambda: Fails() in one,
        lambda: one.get(Fails()),
        lambda: dict.fromkeys([Fails()]),
        lambda: {Same(): 1, Same(): 2},
        lambda: {7: 1}[Same()],
        lambda: {Same(): 1}.get(7),
        lambda: [Fails()] == [Fails()],
        lambda: (Fails(),).index(3),
        lambda: deque([Fails()]).remove(1),
        lambda: bytes(Fails()),
        lambda: [1][Fails()],
    ):
        try:
            said.append(repr(call()))
        except (TypeError, ZeroDivisionError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return x, said


def other_answers(x: Tensor) -> Any:
    asked = []

    class Truth:
        def __init__(self, value: bool) -> None:
            self.value = value

        def __bool__(self) -> bool:
            asked.append(self.value)
            return self.value

    class Ordered:
        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other: Ordered) -> Any:
            return Truth(self.value < other.value)

        def __eq__(self, other: object) -> Any:
            return NotImplemented

        def __hash__(self) -> int:
            return id(self)

    heap = [Ordered(3), Ordered(1), Ordered(2)]
    heapq.heapify(heap)
    ordered = sorted([Ordered(3), Ordered(1)])
    first = Ordered(1)
    table = {first: 1, Ordered(2): 2}
    return x, [o.value for o in heap], [o.value for o in ordered], asked, table[first], table.get(Ordered(2))


def nested(x: Tensor) -> Any:
    class Inner:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return {Key(self.value): 1}.get(Key(other.value), 0) == 1  # type: ignore[attr-defined]

        def __hash__(self) -> int:
            return len({Key(1), Key(2)})

    return x + len({Inner(1), Inner(2), Inner(1)}), Inner(1) in [Inner(3), Inner(1)], Inner(1) in {Inner(3)}


def tensors_in_objects(x: Tensor) -> Any:
    class Doubles:
        def __init__(self, tensor: Tensor, value: int) -> None:
            self.tensor, self.value = tensor, value

        def __lt__(self, other: Doubles) -> bool:
            self.tensor = self.tensor * 2
            return self.value < other.value

    items = [Doubles(x, 3), Doubles(x + 1, 1), Doubles(x + 2, 2)]
    heapq.heapify(items)
    pairs = [(1, x), (0, x + 1)]
    heapq.heapify(pairs)
    return [item.tensor for item in items], pairs[0][1]


def results_of_methods(x: Tensor) -> Any:
    class Text(str):
        pass

    def made(**results: Any) -> Any:
        class Answers:
            pass

        for name, result in results.items():
            setattr(Answers, f"__{name}__", (lambda given: lambda *_: given)(result))
        return Answers()

    said = []
    for call in (
        *(
            lambda: int(made(int="a")),
            lambda: int(made(index=3)),
            lambda: float(made(index=3)),
            lambda: float(made(float=1)),
        ),
        *(
            lambda: complex(made(float=2.0)),
            lambda: len(made(len=-1)),
            lambda: len(made(len=1.0)),
            lambda: len(made(len=True)),
        ),
        *(
            lambda: len(made(len=2**70)),
            lambda: len(made(len=made(index=4))),
            lambda: bool(made(bool=1)),
            lambda: not made(len=-1),
        ),
        *(
            lambda: hash(made(hash="a")),
            lambda: hash(made(hash=-1)),
            lambda: hash(made(hash=2**64)),
            lambda: str(made(str=1)),
        ),
        *(
            lambda: repr(made(repr=None)),
            lambda: str(made(str=Text("a"))),
            lambda: f"{made(format=2)}",
            lambda: format(made(format=1)),
        ),
        *(
            lambda: [1][made(index=None)],
            lambda: [1] * made(index=1.5),
            lambda: [1, 2, 3][made(index=1) : made(index="x")],
        ),
        *(
            lambda: range(made(index="a")),
            lambda: [1].index(1, made(index="q")),
            lambda: {1: 2, -2: 3}.get(made(hash=-1)),
        ),
        *(
            lambda: sorted([made(lt=made(bool=3))] * 2),
            lambda: 1 in made(contains=made(bool=2)),
            lambda: 1 in made(contains=5),
        ),
        *(lambda: operator.length_hint(made(length_hint="a")), lambda: operator.length_hint(made(length_hint=-1))),
        *(
            lambda: list(made(iter=5)),
            lambda: bytes(made(bytes=1)),
            lambda: "%s" % made(str=4),
        ),
    ):
        try:
            result = call()
            said.append((type(result).__name__, repr(result)))
        except Exception as error:
            said.append((type(error).__name__, str(error)))
    return x, said


PROGRAMS = (
    *(look_ups, searches, iterators, places, subclasses_of_builtins, kept_hashes, changed_meanwhile, raising),
    *(other_answers, nested, tensors_in_objects, results_of_methods),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program: Callable[..., Any]) -> None:
    agree(program)


# ---- objects of the caller's ----


def test_attributes_that_change_between_calls() -> None:
    def program(x: Tensor, a: Key, b: Key) -> Any:
        return x + {a: 1}.get(b, 5), a in [b], heapq.nsmallest(1, [a, b])[0].value

    a, b = Key(1), Key(2)
    fast, _ = compiled(program)
    for value in (2, 1, 3, 1):
        b.value = value
        assert same(fast(X, a, b), program(X, a, b))
    assert same(fast(X, a, a), program(X, a, a))


def test_methods_that_change_their_object() -> None:
    class Counts:
        def __init__(self) -> None:
            self.count = 0

        def __hash__(self) -> int:
            self.count += 1
            return 5

        def __eq__(self, other: object) -> bool:
            self.count += 10
            return True

    def program(x: Tensor, c: Counts) -> Any:
        table = {c: 1}
        table[Counts()] = 3
        return x + len(table) + c.count, table[c]

    fast, log = compiled(program)
    for _ in range(3):
        mine, theirs = Counts(), Counts()
        assert same(fast(X, mine), program(X, theirs)) and mine.count == theirs.count == 12
    assert len(log.captures) == 1 and not log.breaks


def test_which_keys_are_one_object() -> None:
    def program(x: Tensor, a: Any, b: Any) -> Any:
        table = {a: 1}
        table[b] = 2
        found = table[a], {a: 3}.get(b), b in {a}, (1, b) in {(1, a)}, len({v for v in (a, b)}), {a: 1} == {b: 1}
        return x, found, deque([a]).count(b), deque([a]) == deque([b]), {a} == {b}, frozenset([a]) == frozenset([b])

    for made in (Plain, functools.partial(Key, 1), lambda: function_of(2)):
        a, b = made(), made()
        agree(program, (a, b), (a, a), (b, a), (b, b))


def test_which_keys_of_a_container_are_an_argument() -> None:
    def program(x: Tensor, items: Any, key: Any) -> Any:
        return x, key in items, len(items)

    a, b = Plain(), Plain()
    for items in ({a: 1, b: 2}, {a, b}, [a, b]):
        agree(program, (items, Plain()), (items, b), (items, a))
    agree(lambda x, a, b, c: (x, a is b, a is c), (a, b, Plain()), (a, b, a), (a, a, b))


def test_keys_that_are_looked_up_in_a_dict_of_the_caller_s() -> None:
    def program(x: Tensor, table: dict[Any, int], key: Key) -> Any:
        return x, table[key], table.get(Key(9))

    key = Key(5)
    table = {key: 1, Key(2): 7}
    agree(program, (table, key), (table, Key(2)), ({Key(1): 9}, Key(1)), (table, Key(8)))
    fast, _ = compiled(program)
    assert same(fast(X, table, key), program(X, table, key))
    key.value = 6  # the entry is where it was, and is found no more
    assert outcome(fast, X, table, Key(5)) == outcome(program, X, table, Key(5))


# ---- breaks ----


def test_a_key_that_outlives_the_graph() -> None:
    def program(x: Tensor, holder: Any) -> Any:
        y = x + 1
        holder.table = {Key(1): y}
        return {Key(2)}, y * 2

    fast, log = compiled(program)
    for _ in range(2):
        holder = Plain()
        items, y = fast(X, holder)
        assert Key(2) in items and torch.equal(y, X * 4) and torch.equal(holder.table[Key(1)], X + 1)
    assert {b.reason for b in log.breaks} == {
        "a Key, which has its own __eq__ or __hash__, is a key of what outlives the graph"
    }


def test_methods_that_break_the_graph(capsys: Any) -> None:
    class Printed(Key):
        def __eq__(self, other: object) -> bool:
            print("compared", end=" ")
            return super().__eq__(other)

        __hash__ = Key.__hash__

    def program(x: Tensor) -> Any:
        y = x + 1
        return y * {Printed(1): 2}[Printed(1)]

    fast, log = compiled(program)
    for _ in range(2):
        assert torch.equal(fast(X), X * 4)
    assert capsys.readouterr().out == "compared compared "
    assert log.breaks[-1].reason.endswith("that may do more than look at them"), log.breaks


def test_an_order_that_tensors_decide_breaks() -> None:
    def program(x: Tensor) -> Any:
        heap = [Key(x.sum()), Key(x.sum() * 0), Key(x.sum() * 3)]
        heapq.heapify(heap)
        return heap[0].value

    fast, log = compiled(program)
    for x in (X, -X):
        assert torch.equal(fast(x), program(x))
    assert log.breaks


# ---- classes ----


def test_classes_are_as_they_were() -> None:
    seen = []

    class Looks(Key):
        def __eq__(self, other: object) -> bool:
            seen.append(Looks.__dict__["__eq__"] is method and Looks.__eq__ is method)
            return True

        __hash__ = Key.__hash__

    method, order = Looks.__dict__["__eq__"], list(Looks.__dict__)

    def program(x: Tensor) -> Any:
        return x + {Looks(1): 1}.get(Looks(1), 2)

    agree(program)
    assert seen and all(seen)
    assert Looks.__dict__["__eq__"] is method and list(Looks.__dict__) == order


def test_metaclasses() -> None:
    class Closed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("closed")

    class Ordered(Key, metaclass=Closed):
        def __lt__(self, other: Key) -> bool:
            return bool(self.value > other.value)

    class Structure(ctypes.Structure):
        _fields_ = (("value", ctypes.c_int),)

        def __lt__(self, other: Structure) -> bool:
            return bool(self.value < other.value)

    def program(x: Tensor) -> Any:
        return x + sorted([Ordered(1), Ordered(3)])[0].value, heapq.nlargest(1, [Ordered(1), Ordered(3)])[0].value

    def in_c(x: Tensor) -> Any:
        heap = [Structure(3), Structure(1)]
        heapq.heapify(heap)
        return x + heap[0].value

    agree(program)
    fast, log = compiled(in_c)
    assert torch.equal(fast(X), in_c(X)) and log.breaks


def test_numbers_that_change() -> None:
    class Sized(Key):
        __hash__ = Key.__hash__

        def __len__(self) -> int:
            return int(self.value)

        def __index__(self) -> int:
            return int(self.value)

    class Unhashable:
        calls = 0

        def __hash__(self) -> int:
            Unhashable.calls += 1
            raise TypeError("no hash")

    def program(x: Tensor, n: int) -> Any:
        table = {Sized(n): 5, Sized(n + 1): 6, Sized(n): 7}
        return x + len(table), table[Sized(n)], list(range(Sized(n)))[:2], [1, 2, 3, 4, 5][Sized(2) :]

    def once(x: Tensor, n: int) -> Any:
        class Unhashable:
            calls = 0

            def __hash__(self) -> int:
                Unhashable.calls += 1
                raise TypeError("no hash")

        table: dict[Any, Any] = {1: n}
        try:
            table[Unhashable()]
        except TypeError as error:
            return x + n, Unhashable.calls, str(error)

    for each in (program, once):
        agree(each, (2,), (3,), (4,), (5,))
