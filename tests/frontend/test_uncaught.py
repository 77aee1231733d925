"""Exceptions as CPython's own hook writes them, with what it suggests, and what an AttributeError says of the look-up that it ends."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor

X = torch.arange(4.0)
alike_in_module = 1
SUGGESTS_NAMES = sys.version_info < (3, 13)


class Asked:
    width = 3

    def __getattr__(self, name: str) -> Any:
        raise AttributeError


class Listing:
    def __dir__(self) -> list[str]:
        return ["listed_here"]


class Failing(Listing):
    def __dir__(self) -> Any:
        raise ValueError("no names")


class Named(Exception):
    pass


class Speaking(Exception):
    def __str__(self) -> str:
        return "spoken"


def written(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception:
        before, sys.stderr = sys.stderr, io.StringIO()
        try:
            sys.__excepthook__(*sys.exc_info())
            return sys.stderr.getvalue()
        finally:
            sys.stderr = before
    return ""


def own_name() -> None:
    lattice = 1
    lattise  # type: ignore[name-defined] # noqa: B018, F821
    del lattice


def of_cause() -> None:
    try:
        {}["k"]  # type: ignore[index]
    except KeyError as error:
        raise Named("behind it") from error


def of_context() -> None:
    try:
        Asked().widht  # noqa: B018
    except AttributeError:
        raise ExceptionGroup("some", [ValueError("v"), Named(1, 2)])  # noqa: B904


class Within:
    def __init__(self) -> None:
        self.height = 1

    def asks(self) -> int:
        return heigth  # type: ignore[name-defined,no-any-return] # noqa: F821


FAILING: dict[str, Callable[[], Any]] = {
    "value": lambda: int("x"),
    "no name": lambda: undefined_anywhere,  # type: ignore[name-defined] # noqa: F821
    "module": lambda: alike_in_modul,  # type: ignore[name-defined] # noqa: F821
    "builtin": lambda: ZeroDivisionErrrror,  # type: ignore[name-defined] # noqa: F821
    "own name": own_name,
    "attribute": lambda: Within().heigth,  # type: ignore[attr-defined]
    "of a class": lambda: Asked.widht,  # type: ignore[attr-defined]
    "by a method": lambda: Asked().widht,
    "listed": lambda: Listing().listed_her,  # type: ignore[attr-defined]
    "not listed": lambda: Failing().listed_her,  # type: ignore[attr-defined]
    "cause": of_cause,
    "context": of_context,
    "syntax": lambda: compile("a = (1,\n2 3)", "<text>", "exec"),
    "empty": lambda: (_ for _ in ()).throw(Named()),
}


@pytest.mark.parametrize("case", FAILING)
def test_the_same_text(case: str) -> None:
    if not SUGGESTS_NAMES and case in ("no name", "module", "builtin", "own name"):
        pytest.xfail("frames are asked for their variables, and those that stand for frames of capture have none")
    fast, log = compiled(lambda x: (x + 1, written(FAILING[case])))
    assert fast(X)[1] == fast(X)[1] == written(FAILING[case])
    assert not log.breaks and not log.fallbacks


def test_attributes_of_self_may_be_suggested() -> None:
    fast, log = compiled(lambda x: (x + 1, written(lambda: Within().asks())))
    assert "heigth" in fast(X)[1]
    assert (sys.version_info >= (3, 12)) == any("suggest another name" in b.reason for b in log.breaks)


@pytest.mark.skipif(not SUGGESTS_NAMES, reason="breaks the graph")
def test_names_of_the_module_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Any:
        return x + 1, written(lambda: alike_in_moduls)  # type: ignore[name-defined] # noqa: F821

    fast, log = compiled(program)
    assert "'alike_in_module'?" in fast(X)[1] and not log.breaks
    monkeypatch.delitem(globals(), "alike_in_module")
    assert "Did you mean" not in fast(X)[1]


def at_an_address() -> None:
    raise ValueError(object())


class Noted(Exception):
    __notes__ = ["a note"]


def to_the_process(x: Tensor) -> Tensor:
    try:
        int("x")
    except ValueError:
        sys.__excepthook__(*sys.exc_info())
    return x + 1


@pytest.mark.parametrize("raises", [Speaking("v"), Named("the caller's"), Noted(), at_an_address])
def test_what_breaks(raises: Any) -> None:
    def fails() -> None:
        if isinstance(raises, Exception):
            raise type(raises)(*raises.args) if not isinstance(raises, Named) else raises
        raises()

    def program(x: Tensor) -> Any:
        return x + 1, written(fails).partition(" at 0x")[0]

    fast, log = compiled(program, on_error="warn")
    got = fast(X)[1]
    assert got.splitlines()[-1] == program(X)[1].splitlines()[-1] and (log.breaks or log.fallbacks)


def test_a_stream_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    fast, log = compiled(to_the_process, on_error="warn")
    fast(X)
    assert "ValueError: invalid literal" in capsys.readouterr().err and (log.breaks or log.fallbacks)


class Marked(AttributeError):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, (value, "marked") if name == "name" else value)


class Computed:
    @property
    def fails(self) -> Any:
        raise AttributeError("inside")

    def __getattribute__(self, name: str) -> Any:
        if name == "marked":
            raise Marked("m")
        if name == "says":
            raise AttributeError("s", name="said", obj=1)
        return super().__getattribute__(name)


def test_what_was_looked_for(layer: Any = None) -> None:
    layer = torch.nn.Linear(2, 2)

    def program(x: Tensor) -> Any:
        asked, computed, said = Asked(), Computed(), []
        failing = [
            *(lambda: asked.a, lambda: getattr(asked, "b"), lambda: asked.called()),  # noqa: B009
            *(lambda: computed.fails, lambda: computed.marked, lambda: computed.says, lambda: layer.c),
            *(lambda: math.d, lambda: Asked.e, lambda: (1).f, lambda: x.g, lambda: [].h),  # type: ignore[attr-defined]
        ]
        for function in failing:
            try:
                function()
            except AttributeError as error:
                said.append((error.name, type(error.obj), str(error), error.obj is asked))
        return x + 1, said, getattr(asked, "a", 5), hasattr(asked, "a")

    fast, log = compiled(program)
    assert fast(X)[1:] == fast(X)[1:] == program(X)[1:] and not log.breaks and not log.fallbacks


def test_an_error_of_the_caller_s_is_changed_behind_the_graph() -> None:
    class Raises:
        def __getattr__(self, name: str) -> Any:
            raise ERRORS[0]

    ERRORS = [AttributeError("of the caller's")]  # noqa: N806
    obj = Raises()

    def program(x: Tensor) -> Any:
        try:
            obj.missing  # noqa: B018
        except AttributeError as error:
            return x + 1, error.name, error.obj is obj, error
        return x

    want = program(X)[1:3]
    ERRORS[0] = AttributeError("of the caller's")
    fast, _ = compiled(program, on_error="warn")
    got = fast(X)
    assert got[1:3] == want and got[3] is ERRORS[0] and ERRORS[0].name == "missing" and ERRORS[0].obj is obj


def test_errors_that_are_given_out() -> None:
    def program(x: Tensor, layer: Any) -> Any:
        found = []
        for function in (lambda: Asked().a, lambda: layer.b, lambda: x.c):  # type: ignore[attr-defined]
            try:
                function()
            except AttributeError as error:
                found.append(error)
        return x + 1, found

    layer = torch.nn.Linear(2, 2)
    fast, _ = compiled(program, on_error="warn")
    for _ in range(2):
        one, two, three = fast(X, layer)[1]
        assert type(one.obj) is Asked and one.name == "a"
        assert two.obj is layer and three.obj is X and (two.name, three.name) == ("b", "c")
