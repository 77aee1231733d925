"""Generators that are dropped half-way: what they clean up runs where eager runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled

from intarsia import disable

PROGRAMS: list[Callable[..., Any]] = []


def _program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


def gen(n):
    try:
        for i in range(n):
            yield i
    finally:
        print("closed", n)


@_program
def a_loop_is_left(x):
    for v in gen(1):
        break
    for v in gen(0):
        pass
    return x


@_program
def never_used_again(x):
    g = gen(2)
    next(g)
    return x


@_program
def left_before_a_break(x):
    for v in gen(4):
        x = x + v
        if v == 1:
            break
    print("after")
    return x


@_program
def left_by_what_a_tensor_says(x):
    for v in gen(4):
        x = x + v
        if x.sum() > 3:
            break
    x = x + 1
    print("after")
    return x


@_program
def overwritten_and_deleted(x):
    g = gen(3)
    next(g)
    g = gen(4)
    next(g)
    del g
    print("end")
    return x


@_program
def in_a_list_that_is_cleared(x):
    kept = [gen(3), gen(4)]
    for g in kept:
        next(g)
    kept.clear()
    print("end")
    return x


@_program
def inside_of_zip(x):
    a, *b = zip(gen(3), gen(2))
    z = zip(gen(5), gen(6))
    next(z)
    return x


@_program
def in_a_dict(x):
    d = {"g": gen(7)}
    next(d["g"])
    return x + 1


@_program
def below_another_one(x):
    any(v for v in gen(8))
    return x + next(iter(gen(9)))


@_program
def left_by_an_exception(x):
    try:
        for v in gen(4):
            raise ValueError
    except ValueError:
        print("caught")
    return x


def inner(x):
    g = gen(3)
    next(g)
    return x


@_program
def in_a_function_that_returns(x):
    x = inner(x)
    print("back")
    return x


@_program
def alive_at_a_break(x):
    g = gen(3)
    next(g)
    print("mid")
    return x


@_program
def delegated_to(x):
    def h():
        yield from gen(4)

    for v in h():
        break
    print("mid")
    return x


@_program
def in_a_frame_that_raises(x):
    try:
        raiser(x)
    except ValueError:
        print("caught")
    return x


def raiser(x):
    g = gen(3)
    next(g)
    raise ValueError


@_program
def left_behind_a_break(x):
    out = []
    for v in gen(4):
        if v == 1:
            print("b")
        if v == 2:
            break
    out.append("after")
    print(out)
    return x


@contextlib.contextmanager
def ctx():
    print("in")
    try:
        yield 1
    finally:
        print("out")


@contextlib.contextmanager
def quiet():
    try:
        yield 1
    finally:
        pass


@_program
def context_managers(x):
    with ctx():
        x = x + 1
    with quiet():
        print("x")
        x = x + 1
    return x


@_program
def a_context_that_is_not_left(x):
    c = ctx()
    c.__enter__()
    return x


@_program
def left_by_return_behind_a_break(x):
    for v in gen(4):
        if v == 1:
            print("b")
        if v == 2:
            return x
    return x


@_program
def left_by_an_exception_behind_a_break(x):
    try:
        for v in gen(4):
            if v == 1:
                print("b")
            if v == 2:
                raise KeyError
    except KeyError:
        print("key")
    return x


def lst(n, out):
    try:
        for i in range(n):
            yield i
    finally:
        out.append("closed")


@_program
def closed_within_a_graph(x):
    out = []
    for v in lst(4, out):
        if v == 1:
            print(out)
        if v == 2:
            break
    out.append("after")
    print(out)
    g = lst(4, out)
    next(g)
    out.append("a")
    g = lst(5, out)
    next(g)
    out.append("b")
    print(out)
    kept = {"q": lst(3, out)}
    next(kept["q"])
    g = None
    out.append("c")
    kept = None
    out.append("d")
    print(out)
    return x


@_program
def in_a_function_of_the_graph(x):
    out = []

    def h():
        g = lst(3, out)
        next(g)
        out.append("h")

    h()
    out.append("back")
    print(out)
    return x


@_program
def a_loop_inside_of_a_generator(x):
    def h():
        for v in gen(3):
            yield v

    for v in h():
        if v == 1:
            print("b")
        if v == 2:
            break
    print("z")
    return x


class Holder:
    def __init__(s):
        s.g = gen(6)
        next(s.g)


@_program
def in_an_object(x):
    h = Holder()  # noqa: F841
    return x


@_program
def in_an_attribute_that_is_overwritten(x):
    h = Holder()
    h.g = None
    print("z")
    return x


@_program
def a_stack_of_contexts(x):
    with contextlib.ExitStack() as st:
        st.enter_context(ctx())
        print("q")
    for a, b in zip(gen(3), gen(3)):
        print(a, b)
        if a:
            break
    print("e")
    return x


@_program
def closed_by_the_program(x):
    def outer():
        try:
            yield from gen(3)
        finally:
            print("outer")

    o = outer()
    next(o)
    o.close()
    print("mid")
    o = outer()
    next(o)
    return x


@disable
def begun(*numbers):
    made = [gen(n) for n in numbers]
    for g in made:
        next(g)
    return made


@_program
def several_that_capture_has_not_seen(x):
    kept, (a, b) = begun(1, 2, 3), begun(4, 5)  # noqa: F841
    print("a")
    x = x + len(kept)
    print("b")
    kept = None
    print("c")
    a, b = tuple(begun(6, 7)), None  # noqa: F841
    print(float(x.sum()))
    return x


@_program
def several_that_a_loop_takes(x):
    for g in begun(2, 3, 4):
        x = x + next(g)
        print("round")
    print("end")
    return x


@pytest.mark.parametrize(
    "under", [lambda function: function, torch._dynamo.run], ids=["alone", "torch.compile looks on"]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_cleaned_up_in_the_same_place(program: Any, under: Any, capsys: Any) -> None:
    """Also where CPython keeps the arguments of calls for longer, as it does while torch.compile looks at them."""
    program(torch.ones(2))
    expected = capsys.readouterr().out
    fast, _ = compiled(program)
    for _ in range(2):
        under(lambda: fast(torch.ones(2)))()
        assert capsys.readouterr().out == expected
