"""Pickling inside compiled functions: the same bytes and objects as in eager, in one graph; methods of the program's run once."""

from __future__ import annotations

import collections
import copy
import copyreg
import enum
import itertools
import marshal
import operator
import pickle
from typing import Any

import pytest
import torch
from harness import check, compiled
from torch import Tensor

X = torch.arange(4.0)
calls: list[str] = []


class Plain:
    def __init__(self, a: Any) -> None:
        self.a = a


class Stateful(Plain):
    __slots__ = ("b",)

    def __getstate__(self) -> Any:
        calls.append("get")
        return {"a": self.a + 1}

    def __setstate__(self, state: Any) -> None:
        calls.append("set")
        self.a, self.b = state["a"], 5


class Reduced(Plain):
    def __reduce__(self) -> Any:
        calls.append("reduce")
        return Reduced, (self.a * 2,)

    def __init__(self, a: Any) -> None:
        calls.append("init")
        self.a = a


class Items(list[int]):
    pass


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "a b")
VALUES: dict[str, Any] = {
    "plain": [
        1,
        2.5,
        "ab",
        b"cd",
        None,
        True,
        (1, 2, 3, 4),
        {"k": [1]},
        {3},
        1 << 70,
        1j,
        range(3),
        ...,
        bytearray(b"xy"),
    ],
    "iterators": lambda: [iter([1, 2]), iter((1,)), iter("abc"), iter(range(3)), reversed([1, 2]), enumerate([3])],
    "classes": [
        Plain,
        len,
        Colour.RED,
        collections.OrderedDict(a=1),
        collections.deque([1], 3),
        collections.Counter("aab"),
    ],
}


@pytest.mark.parametrize("protocol", range(6))
def test_the_same_bytes(protocol: int) -> None:
    def program(x: Tensor) -> Any:
        it = VALUES["iterators"]()
        texts = [
            pickle.dumps(it, protocol),
            pickle.dumps([1, 2.5, "ab", b"cd", None, (1, 2), {"k": [1]}, 1 << 70], protocol),
        ]
        texts.append(
            pickle.dumps([Plain, len, Colour.RED, Plain(3), Items([1, 2]), Point(1, "x"), ValueError("v")], protocol)
        )
        made = pickle.loads(
            pickle.dumps({"p": Plain((1, [2])), "i": Items([3]), "n": Point(4, 5), "e": Colour.RED}, protocol)
        )
        return (
            x + 1,
            texts,
            [list(i) for i in pickle.loads(texts[0])],
            made["p"].a,
            list(made["i"]),
            made["n"],
            made["e"],
        )

    check(program, X)


def test_all_kinds_of_plain_data() -> None:
    def program(x: Tensor, values: Any) -> Any:
        text = pickle.dumps(values)
        return x + 1, text, pickle.loads(text)

    check(program, X, VALUES["plain"])


def test_methods_of_the_program_s() -> None:
    def program(x: Tensor) -> Any:
        del calls[:]
        one, two = pickle.loads(pickle.dumps([Stateful(1), Reduced(2)]))
        shared = [1]
        twins = pickle.loads(pickle.dumps([shared, shared]))
        return x * one.a, one.a, one.b, two.a, list(calls), twins[0] is twins[1]

    check(program, X)
    assert calls == ["init", "get", "reduce", "set", "init"]


def test_state_of_the_caller_s_is_guarded() -> None:
    def program(x: Tensor, p: Plain) -> Any:
        return x + 1, pickle.loads(pickle.dumps(p)).a

    fast, log = compiled(program)
    p = Plain([1])
    assert fast(X, p)[1] == [1]
    p.a = [2, 3]
    assert fast(X, p)[1] == [2, 3] and not log.breaks


def test_names_and_registries_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Any:
        return x + 1, pickle.dumps(Plain(1))

    fast, _ = compiled(program)
    assert fast(X)[1] == program(X)[1]
    monkeypatch.setitem(copyreg.dispatch_table, Plain, lambda p: (Plain, (7,)))
    assert fast(X)[1] == program(X)[1]
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "Plain", type("Plain", (Plain,), {"__module__": "missing"}))
    with pytest.raises(pickle.PicklingError):
        fast(X)


def test_errors_are_eager_s() -> None:
    def program(x: Tensor) -> Any:
        try:
            pickle.dumps(lambda: 1)
        except Exception as error:
            return x + 1, type(error).__name__
        return x

    fast, _ = compiled(program)
    assert fast(X)[1] == program(X)[1]
    with pytest.raises(EOFError, match="Ran out of input"):
        compiled(lambda x: (x + 1, pickle.loads(b"")))[0](X)


class Slotted:
    __slots__ = ("a", "b")


def test_copies() -> None:
    def program(x: Tensor) -> Any:
        del calls[:]
        slotted, state = Slotted(), Stateful([1])
        slotted.a = [1, state]
        state.a = 1
        shallow, deep = copy.copy(slotted), copy.deepcopy(slotted)
        items = Items([1, 2])
        items.more = [3]  # type: ignore[attr-defined]
        twin = copy.copy(items)
        facts = [shallow.a is slotted.a, hasattr(shallow, "b"), deep.a[1] is state, deep.a[1].a, deep.a[1].b]
        facts += [list(twin), twin.more is items.more, copy.copy(Reduced(2)).a, copy.deepcopy(Reduced([1])).a]  # type: ignore[attr-defined]
        error = copy.copy(ValueError("v"))
        return x + 1, facts, error.args, list(calls), type(copy.deepcopy(items)) is Items

    check(program, X)


def test_copies_of_the_caller_s() -> None:
    def program(x: Tensor, s: Any) -> Any:
        made = copy.copy(s)
        return x + 1, made.a, made is s

    fast, _ = compiled(program)
    for value in ([1], "t", ("u", "v")):
        for kind in (Stateful, Slotted):
            s = kind.__new__(kind)
            s.a = 1 if kind is Stateful else value
            got, want = fast(X, s)[1:], program(X, s)[1:]
            assert got == want and (kind is Stateful or got[0] is value)


def test_slices_plain_data_and_what_is_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        said = ""
        try:
            pickle.dumps(i for i in ())
        except TypeError as error:
            said = str(error)
        old = [pickle.loads(pickle.dumps(slice(1, 2), protocol)) for protocol in range(5)]
        counted = pickle.loads(pickle.dumps(iter(int, 1)))
        return x + 1, said, old, next(counted), marshal.loads(marshal.dumps([1, ("a", None)]))

    assert check(function, X).breaks == []


class Registered:
    """Made of one argument, which only a registered function knows."""

    def __new__(cls, foo):
        made = object.__new__(cls)
        made.foo = foo
        return made


class RegisteredPlain:
    """One that could be copied without its function."""

    def __init__(self):
        self.foo = 1


def of_registered(obj):
    return Registered, (obj.foo + 1,)


def of_plain(obj):
    return RegisteredPlain, (), {"foo": obj.foo + 10}


def test_functions_that_are_registered_for_copies():
    def run(x):
        copyreg.pickle(Registered, of_registered)
        copyreg.pickle(RegisteredPlain, of_plain)
        found = [copy.copy(Registered(1)), copy.deepcopy(Registered(2)), copy.copy(RegisteredPlain())]
        found.append(pickle.loads(pickle.dumps(copy.deepcopy(RegisteredPlain()))))
        del copyreg.dispatch_table[Registered], copyreg.dispatch_table[RegisteredPlain]
        return x + 1, [f.foo for f in found]

    fast, log = compiled(run)
    for _ in range(2):
        assert fast(torch.ones(1))[1] == run(torch.ones(1))[1] == [2, 3, 11, 21]
    assert not log.fallbacks

    plain, log = compiled(lambda x: (x + 1, copy.copy(RegisteredPlain()).foo))
    assert plain(torch.ones(1))[1] == 1
    copyreg.pickle(RegisteredPlain, of_plain)
    try:
        assert plain(torch.ones(1))[1] == 11
    finally:
        del copyreg.dispatch_table[RegisteredPlain]
    assert plain(torch.ones(1))[1] == 1


def test_functions_of_iterators_are_copied():
    def run(x):
        steps = itertools.accumulate([None, None, None], operator.is_)
        next(steps)
        return x + 1, list(copy.deepcopy(steps)), list(copy.copy(steps)), list(steps)

    fast, log = compiled(run)
    assert fast(torch.ones(1))[1:] == run(torch.ones(1))[1:]
    assert not log.breaks and not log.fallbacks


class Chosen(frozenset[int]):
    pass


class Counted(set[int]):
    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.more = ["x"]

    def __iter__(self) -> Any:
        calls.append("iter")
        return iter(sorted(super().__iter__()))


class Row(collections.deque[int]):
    def __iter__(self) -> Any:
        calls.append("row")
        return iter([8, 9])


class Spare(Slotted):
    __slots__ = ("c", "__dict__")


class Given:
    def __getnewargs__(self) -> Any:
        return (1, "two")

    def __new__(cls, *args: Any) -> Any:
        made = super().__new__(cls)
        made.args = args
        return made


class GivenByName(Given):
    def __getnewargs_ex__(self) -> Any:
        return (3,), {}


class Kept:
    __slots__ = ("a",)

    def __getstate__(self) -> Any:
        calls.append("get")
        return {"a": self.a}

    def __setstate__(self, state: Any) -> None:
        self.a = state["a"] + 1


class Length(int):
    def __str__(self) -> str:
        return "long"

    def __int__(self) -> int:
        calls.append("int")
        return 7


@pytest.mark.parametrize("protocol", range(6))
def test_what_objects_say_of_themselves_in_each_protocol(protocol: int) -> None:
    def program(x: Tensor, chosen: Chosen) -> Any:
        del calls[:]
        counted = Counted((5, 6))
        spare, kept = Spare(), Kept()
        spare.a, spare.c, spare.d = [1], 2, 3  # type: ignore[attr-defined]
        kept.a = 4
        made = []
        for value in (chosen, counted, Chosen((1, 2)), Given(), GivenByName(), kept, Length(3), Row([1], 5)):
            made.append(pickle.loads(pickle.dumps(value, protocol)))
        facts = [sorted(made[0]), sorted(made[1]), made[1].more, sorted(made[2]), made[3].args, made[4].args, made[5].a]
        facts += [list(made[7]), made[7].maxlen]
        try:
            twin = pickle.loads(pickle.dumps(spare, protocol))
            facts += [twin.a, twin.c, twin.d, hasattr(twin, "b")]
        except TypeError as error:
            facts += [str(error)]
        return x + 1, facts, list(calls), repr(int(made[6])), pickle.dumps(kept, protocol)

    check(program, X, Chosen((3, 4)))


def test_states_are_the_attributes_themselves() -> None:
    def program(x: Tensor, caller: Plain) -> Any:
        plain, spare, empty = Plain(1), Spare(), object()
        state = plain.__getstate__()
        state["b"] = 2
        spare.a = 1
        caller.__getstate__()["seen"] = True
        found = spare.__getstate__()
        spare.d = 3  # type: ignore[attr-defined]
        return x + 1, vars(plain), found, spare.__getstate__(), empty.__getstate__(), caller.seen  # type: ignore[attr-defined]

    check(program, X, Plain([1]))


@pytest.mark.parametrize("given", [(), "ab", ((1,), "no dict"), ("no tuple", {}), [(1,), {}], ((1,), {}, 3), None])
def test_arguments_for_new_of_another_kind(given: Any) -> None:
    class Ex:
        def __getnewargs_ex__(self) -> Any:
            return given

    class Plainly:
        def __getnewargs__(self) -> Any:
            return given

    def program(x: Tensor) -> Any:
        said = []
        for kind in (Ex, Plainly):
            for call in (lambda value: value.__reduce_ex__(2), copy.copy):
                try:
                    said.append(repr(call(kind())[1:2] if call is not copy.copy else None))
                except (TypeError, ValueError) as error:
                    said.append(f"{type(error).__name__}: {error}")
        return x + 1, said

    check(program, X)


def test_protocols_that_are_no_numbers() -> None:
    def program(x: Tensor) -> Any:
        said = [repr(object().__reduce_ex__(True))]
        for given in ((), (None,), ("2",), (1, 2)):
            try:
                said.append(repr(object().__reduce_ex__(*given)))  # type: ignore[call-overload]
            except TypeError as error:
                said.append(str(error))
        return x + 1, said

    check(program, X)


def test_classes_and_functions_that_are_made_inside() -> None:
    def program(x: Tensor) -> Any:
        class Within:
            a = 1

        def local() -> int:
            return 3

        said = []
        for value in (Within, local, Within()):
            for protocol in (0, 2, 4):
                try:
                    said.append(pickle.dumps(value, protocol))
                except (AttributeError, pickle.PicklingError) as error:
                    said.append((type(error).__name__, str(error)))  # type: ignore[arg-type]
        return x + 1, said

    fast, log = compiled(program)
    assert fast(X)[1] == program(X)[1] and not log.breaks and not log.fallbacks


def test_classes_that_are_found_by_their_names_meanwhile() -> None:
    def program(x: Tensor) -> Any:
        global Passing

        class Passing:
            __qualname__ = "Passing"

            def __init__(self) -> None:
                self.a = [1]

        facts = []
        for protocol in range(6):
            facts.append(pickle.loads(pickle.dumps(Passing(), protocol)).a)
            facts.append(pickle.loads(pickle.dumps(Passing, protocol)) is Passing)
        del Passing
        return x + 1, facts

    fast, log = compiled(program)
    assert fast(X)[1] == program(X)[1] and not log.breaks and not log.fallbacks
    assert "Passing" not in globals()


class Queue(collections.deque[int]):
    pass


class Defaults(collections.defaultdict[str, int]):
    pass


class Slow(Queue):
    def __init__(self, *given: Any) -> None:
        calls.append("init")
        super().__init__(*given)


class Searching(list[int]):
    __slots__ = ("a",)

    def __getattr__(self, name: str) -> Any:
        calls.append(name)
        raise AttributeError(name)


def test_copies_by_c_code_leave_attributes_behind() -> None:
    def program(x: Tensor) -> Any:
        queue, defaults = Queue([1, 2], 5), Defaults(int)
        queue.a = defaults.a = defaults["b"] = 1  # type: ignore[attr-defined]
        made = [copy.copy(queue), copy.copy(defaults)]
        facts = [(type(one), vars(one)) for one in made]
        return x + 1, facts, list(made[0]), made[0].maxlen, made[1]["c"], dict(made[1])  # type: ignore[attr-defined]

    fast, log = compiled(program, on_error="warn")
    for _ in range(2):
        assert fast(X)[1:] == program(X)[1:]


def test_methods_of_the_program_s_are_asked_as_often_as_in_eager() -> None:
    def program(x: Tensor) -> Any:
        del calls[:]
        searching = Searching([1])
        searching.a = 2
        made = [copy.copy(Slow([1])), copy.copy(searching), copy.deepcopy(searching)]
        return x + 1, [list(one) for one in made], made[1].a, list(calls)

    fast, _ = compiled(program, on_error="warn")
    for _ in range(2):
        assert fast(X)[1:] == program(X)[1:]


def test_no_method_of_an_argument_s_is_asked_why_entries_miss() -> None:
    def program(x: Tensor) -> Any:
        del calls[:]

        class Backwards(dict[int, int]):
            def __iter__(self) -> Any:
                calls.append("iter")
                return iter([2, 1])

        made = Backwards({1: 2})
        torch._dynamo.graph_break()
        x = x + len(made)
        torch._dynamo.graph_break()
        return x, dict(made.items()), list(calls)

    fast, _ = compiled(program, on_error="warn")
    for _ in range(3):
        assert fast(X)[1:] == program(X)[1:]
