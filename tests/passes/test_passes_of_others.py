"""Passes of others: how they are given, where they run, what the cache knows of them, and what happens when one is at fault."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

import intarsia
from intarsia.ir.text import parse_module
from intarsia.passes.core import limit, plugins
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.fingerprint import pass_fingerprint
from intarsia.passes.core.load import passes_given
from intarsia.passes.core.manager import registered
from intarsia.passes.core.run import PassFailure, run_pipeline
from intarsia.passes.core.syntax import PipelineError
from intarsia.passes.pipeline import CPU, default_pipeline, registry

CPU_NAMES = [name for name, _ in CPU]
MODULE = """
prim.func @main() {symbols = []} ({
^bb0(%x: !prim.tensor<[4], f32>):
  %0 = prim.exp(%x) : !prim.tensor<[4], f32>
  prim.return(%0)
})
"""


@dataclass(frozen=True)
class Double(Pass):
    """Turn sums into sums of twice the first operand: a pass with an effect that can be seen."""

    name: ClassVar[str] = "double"
    after: ClassVar[tuple[str, ...]] = ("dce",)
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in module.walk():
            if op.name == "prim.add":
                op.operands = [op.operands[0], op.operands[0]]


DOUBLE = '''
from dataclasses import dataclass
from intarsia.passes.core.base import Pass

@dataclass(frozen=True)
class Double(Pass):
    """Turn sums into sums of twice the first operand."""
    name = "double"
    after = ("dce",)
    before = ("fuse",)

    def apply(self, ctx, module):
        for op in module.walk():
            if op.name == "prim.add":
                op.operands = [op.operands[0], op.operands[0]]
'''


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


X, Y = torch.arange(4.0), torch.ones(4)


def names(passes: list[Pass]) -> list[str]:
    return [p.name for p in passes]


def kind(name: str, apply: Callable[..., None] | None = None, **attributes: Any) -> type[Pass]:
    """A class of passes, as a package would define it."""
    body = {"name": name, "apply": apply or (lambda self, ctx, module: None), "__module__": "theirs", **attributes}
    return dataclass(frozen=True)(type(name.title(), (Pass,), body))


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    intarsia.reset()
    plugins.forget_warnings()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let entry points give these: classes of passes, or functions that import one."""

    class Point:
        def __init__(self, given: Any) -> None:
            self.name = self.value = getattr(given, "name", None) or given.__name__
            self.load = (lambda: given) if isinstance(given, type) else given

    def go(*given: Any) -> None:
        points = [Point(x) for x in given]
        monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == "intarsia.passes" else [])

    return go


def test_packages_are_read_again_when_one_comes_or_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = plugins.entry_points
    monkeypatch.setattr(plugins, "entry_points", lambda group: reads.append(group) or read(group=group))

    def names() -> list[str]:
        return [name for name in registry().plugins if name == "double"]

    def install(folder: Path) -> Path:
        info = folder / "mine-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[intarsia.passes]\ndouble = {__name__}:Double\n")
        return info

    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.syspath_prepend(place)
    assert not names() and not names() and len(reads) == 1
    os.utime(place, ns=(1, 1))  # an installation within the clock's tick is seen too
    info = install(place)
    assert names() and names() and len(reads) == 2
    os.utime(place, ns=(1, 1))
    info.rename(tmp_path / "gone")
    assert not names() and len(reads) == 3
    install(tmp_path / "other")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert names() and plugins.has_installed() and len(reads) == 4
    assert plugins._changed(str(tmp_path / "nowhere")) == plugins._changed("\0") == 0


# ---- how they are given


def test_objects_classes_and_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(DOUBLE)
    for given in (Double(), Double, str(file), file):
        assert torch.equal(intarsia.compile(plain, passes=[given])(X, Y), X + X)
        low = intarsia.lower(plain, X, Y, passes=[given])
        assert "prim.add(%0, %0)" in low.stages["double"] and torch.equal(low.compile()(X, Y), X + X)
    assert torch.equal(intarsia.compile(plain)(X, Y), X + Y)


def test_a_file_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DOUBLE)
    (tmp_path / "none.py").write_text(DOUBLE.replace('"double"', '"other"') + "    default = False\n")
    setting = f"{tmp_path / 'mine.py'}:{tmp_path / 'none.py'}"
    assert torch.equal(intarsia.compile(plain, options={"passes": setting})(X, Y), X + X)
    assert torch.equal(intarsia.compile(plain, options={"passes": str(tmp_path / "none.py")})(X, Y), X + Y)
    named = {"passes": str(tmp_path / "none.py"), "pipeline": "default{before=fuse: other}"}
    assert torch.equal(intarsia.compile(plain, options=named)(X, Y), X + X)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text(DOUBLE)
    assert torch.equal(intarsia.compile(plain, passes=[file])(X, Y), X + X)
    file.write_text(DOUBLE.replace("[op.operands[0], op.operands[0]]", "[op.operands[1], op.operands[1]] # changed"))
    assert torch.equal(intarsia.compile(plain, passes=[file])(X, Y), Y + Y)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            [3],
            TypeError,
            "passes takes objects of classes that derive from Pass, or files with such classes, not int: 3",
        ),
        ("mine.py", TypeError, "passes takes a list, not 'mine.py'"),
        (Double(), TypeError, "passes takes a list, not Double"),
        (["nowhere.py"], PipelineError, "passes of nowhere.py: is no file"),
    ],
)
def test_what_is_no_pass(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        intarsia.compile(plain, passes=given)


def test_an_argument_called_passes_is_the_functions_own() -> None:
    def count(x: torch.Tensor, passes: int) -> torch.Tensor:
        return x * passes

    assert "prim.mul" in intarsia.lower(count, X, passes=3).ir("prim")


def test_the_context_manager_holds_for_what_is_compiled_inside() -> None:
    with registered(Double):
        assert torch.equal(intarsia.compile(plain)(X, Y), X + X)
    assert torch.equal(intarsia.compile(plain)(X, Y), X + Y)


# ---- where they run


def test_devices_and_scopes() -> None:
    cpu, gpu = kind("on-cpu", devices=("cpu",)), kind("on-gpu", devices=("gpu",))
    backward = kind("of-backward", scopes=("backward",))
    for is_gpu in (False, True):
        for scope in ("inference", "backward"):
            found = set(names(default_pipeline([cpu, gpu, backward], gpu=is_gpu, scope=scope)))
            assert found & {"on-cpu", "on-gpu"} == ({"on-gpu"} if is_gpu else {"on-cpu"})
            assert ("of-backward" in found) == (scope == "backward")
    for wrong, text in (({"devices": ("gpus",)}, "did you mean 'gpu'"), ({"scopes": "forward"}, "is a tuple of names")):
        with pytest.raises(PipelineError, match=text):
            registry([kind("wrong", **wrong)])


def test_scopes_are_those_of_a_training_step() -> None:
    seen: list[str] = []
    every = [
        kind(f"in-{scope}", lambda self, ctx, module: seen.append(self.name), scopes=(scope,))
        for scope in ("inference", "forward", "backward", "step")
    ]
    w = torch.ones(4, requires_grad=True)
    intarsia.compile(plain, passes=every)(X, w).sum().backward()
    assert seen == ["in-forward", "in-backward"]
    seen.clear()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = plain(x, w).square().sum()
        loss.backward()
        return loss.detach()

    intarsia.compile(step, passes=every)(X)
    with torch.no_grad():
        intarsia.compile(plain, passes=every)(X, Y)
    assert seen == ["in-step", "in-inference"]


def test_a_name_with_a_question_mark_holds_where_the_pass_is_there() -> None:
    first, second = kind("first", after=("second?",)), kind("second")
    assert "first" in names(default_pipeline([first]))
    found = names(default_pipeline([first, second]))
    assert found.index("second") < found.index("first")


def test_a_pass_in_the_place_of_ours() -> None:
    mine = kind("my-cse", replaces="cse")
    found = names(default_pipeline([mine, kind("behind", after=("cse",), before=("dce",))]))
    assert found[:6] == ["decompose", "canonicalize", "constant-fold", "my-cse", "behind", "dce"] and "cse" not in found
    with pytest.raises(PipelineError, match="'my-cse' and 'yours' both replace 'cse'"):
        default_pipeline([mine, kind("yours", replaces="cse")])
    with pytest.raises(PipelineError, match="'replaces' names 'cs', which is no pass; did you mean 'cse'"):
        default_pipeline([kind("wrong", replaces="cs")])


# ---- what is at fault


def test_two_packages_with_an_order_between_them(install: Callable[..., None]) -> None:
    install(kind("second", after=("first",), before=("fuse",)), kind("first", after=("dce",)))
    found = names(default_pipeline())
    assert found.index("dce") < found.index("first") < found.index("second") < found.index("fuse")
    assert [n for n in found if n not in ("first", "second")] == CPU_NAMES


def _broken_import() -> None:
    import nothing_of_this_name  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([_broken_import], "'_broken_import' (_broken_import) is left out: it cannot be imported: ModuleNotFoundError"),
        ([int], "'int' (int) is left out: it is no class that derives from Pass"),
        ([kind("cse")], "'cse' (cse) is left out: two passes are called 'cse'"),
        ([kind("double")], "'double' (double) is left out: two passes are called 'double'"),
        ([kind("a", after=("b",)), kind("b", after=("a",))], "the order of passes has a cycle"),
        ([kind("early", after=("fuse",))], "'early' (early) is left out: the order of passes has a cycle"),
        ([kind("lost", after=("nowhere",))], "'lost' (lost) is left out: pass 'lost': 'after' names 'nowhere'"),
        ([kind("one"), kind("chain", after=("lost",)), kind("lost", after=("nowhere",))], "'after' names 'lost'"),
        ([kind("a", replaces="cse"), kind("b", replaces="cse")], "'b' (b) is left out: the passes 'a' and 'b' both"),
        ([kind("odd", level="prom")], "a level is one of aten, prim"),
        ([kind("odd", after=7)], "'odd' (odd) is left out: TypeError"),
    ],
    ids=["import", "no pass", "ours", "clash", "cycle", "level", "reference", "chain", "place", "kind", "type"],
)
def test_an_installed_pass_that_cannot_be_used_is_named_and_nothing_else_changes(
    others: list[Any], text: str, install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    install(Double, *others)
    for _ in range(2):
        assert torch.equal(intarsia.compile(plain)(X, Y), X + X)
    told = [r.getMessage() for r in caplog.records]
    assert any(text in message for message in told) and len(set(told)) == len(told)
    with registered(kind("asked-for")):
        found = names(default_pipeline())
    assert {"double", "asked-for"} <= set(found) and [n for n in CPU_NAMES if n not in found] in ([], ["cse"])


def _raises(self: Pass, ctx: CompileContext, module: ModuleOp) -> None:
    list(module.body.block.ops)[0].detach()  # and leaves nothing behind
    raise KeyError("out of luck")


def _corrupts(self: Pass, ctx: CompileContext, module: ModuleOp) -> None:
    for op in module.walk():
        if op.name == "prim.add":
            op.operands = []


def _never_ends(self: Pass, ctx: CompileContext, module: ModuleOp) -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


FAULTS = [(_raises, "KeyError: 'out of luck'"), (_corrupts, "prim.add"), (_never_ends, "it did not end within 1 s")]


@pytest.mark.parametrize("how", ["installed", "given", "registered"])
@pytest.mark.parametrize(("fault", "text"), FAULTS, ids=["raises", "corrupts", "never ends"])
def test_a_pass_that_fails_is_named_and_left_out(
    fault: Any, text: str, how: str, install: Callable[..., None], caplog: pytest.LogCaptureFixture, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if fault is _never_ends and how != "given":
        pytest.skip("once is enough: it takes its time")
    bad = kind("bad", fault, before=("double",))
    settings: dict[str, Any] = {"options": {"pass_seconds": 1, "debug": str(tmp_path)}}
    monkeypatch.setattr(limit, "SAID_AFTER", 0.5)
    if how == "given":
        settings["passes"] = [bad, Double]
        install()
    else:
        install(Double, *([bad] if how == "installed" else []))
    with registered(*([bad] if how == "registered" else [])):
        result = intarsia.compile(plain, **settings)(X, Y)
    assert torch.equal(result, X + X)  # the other one runs
    assert intarsia.counters()["fallbacks"] == 0
    (told,) = [r.getMessage() for r in caplog.records if "has been running" not in r.getMessage()]
    assert "pass 'bad' (theirs.Bad, which is not Intarsia's own) failed" in told and text in told
    assert __file__ in told.splitlines()[0] and "compiled without this pass" in told
    reproducer = next(Path(word) for word in told.split() if word.endswith(".ir"))
    assert "prim.add(%0, %1)" in reproducer.read_text()
    if fault is _never_ends:
        assert any("pass 'bad' (theirs.Bad) has been running for 0.5 s" in r.getMessage() for r in caplog.records)
        assert "test_passes_of_others.py" in told


def test_with_verify_each_it_is_raised() -> None:
    with pytest.raises(PassFailure, match="pass 'bad'"):
        intarsia.compile(plain, passes=[kind("bad", _raises)()], options={"verify_each": True})(X, Y)


def test_what_fails_behind_it_is_compiled_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """A module that verifies, and that a later pass of ours does not take."""

    def too_deep(self: Pass, ctx: CompileContext, module: ModuleOp) -> None:
        for op in module.walk():
            if op.name == "prim.func":
                op["symbols"] = (("s0", "no number", 0, 2, None),)  # type: ignore[index]

    assert torch.equal(intarsia.compile(plain, passes=[kind("odd", too_deep)()])(X, Y), X + Y)
    (told,) = [r.getMessage() for r in caplog.records]
    assert "'odd'" in told and ("compiled without" in told)
    assert intarsia.counters()["fallbacks"] == 0


def test_the_cache_does_not_hide_a_pass_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        caplog.clear()
        intarsia.reset()
        intarsia.compile(plain, passes=[kind("bad", _raises)()])(X, Y)
        assert "pass 'bad'" in caplog.text


# ---- the time limit


def test_what_ends_in_time_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit.log, "disabled", True)
    stopped = 0
    for number in range(300):  # ends about when the time is over
        try:
            limit.run_within(1e-3, "quick", lambda n=number: time.sleep(n * 1e-5))  # type: ignore[misc]
        except limit.TooLong:
            stopped += 1
    with pytest.raises(limit.TooLong):
        limit.run_within(0.02, "slow", partial(_never_ends, None, None, None))  # type: ignore[arg-type]
    end = time.perf_counter() + 1.5 * limit.AGAIN
    while time.perf_counter() < end:  # nothing arrives later
        sum(range(1000))
    assert 0 < stopped < 300
    assert not any(t.name == "intarsia pass watch" for t in threading.enumerate())


def test_one_that_catches_everything_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "AGAIN", 0.3)
    caught = []

    def stubborn() -> None:
        while len(caught) < 3:
            with contextlib.suppress(limit.TooLong):  # one that arrives where it is being caught
                try:
                    while True:
                        time.sleep(0.001)
                except BaseException as error:
                    caught.append(type(error))

    with contextlib.suppress(limit.TooLong):  # the next one, between two rounds
        limit.run_within(0.1, "stubborn", stubborn)
    assert set(caught) == {limit.TooLong}
    assert len(caught) >= 2


def test_in_a_debugger_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    limit.run_within(0.01, "looked at", lambda: time.sleep(0.1))


def test_our_own_passes_have_no_limit() -> None:
    slow = type(
        "Slow", (Double,), {"name": "slow", "__module__": "intarsia.passes.slow", "apply": lambda *_: time.sleep(0.1)}
    )
    run_pipeline(CompileContext(), parse_module(MODULE), [slow()], limit=0.01)


# ---- the key of the cache


FACTOR = 1


def helper(x: int) -> int:
    return x * FACTOR


def less(bound: int) -> Callable[[int], int]:
    return lambda x: x - bound


@dataclass(frozen=True)
class Uses(Pass):
    """Computes by a helper and an option that is a function."""

    name: ClassVar[str] = "uses"
    cost: Any = None

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        helper(3)


def test_the_key_follows_all_that_a_pass_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {pass_fingerprint([Uses()]), pass_fingerprint([Uses()])}
    assert len(keys) == 1
    for cost in (lambda x: x, lambda x: x + 1, partial(helper, 1), partial(helper, 2), [lambda x: x - 1]):
        assert pass_fingerprint([Uses(cost)]) == pass_fingerprint([Uses(cost)])
        keys.add(pass_fingerprint([Uses(cost)]))
    for bound in (1, 2):
        keys.add(pass_fingerprint([Uses(lambda x, bound=bound: x * bound)]))
        keys.add(pass_fingerprint([Uses(less(bound))]))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2)
    keys.add(pass_fingerprint([Uses()]))
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: x)
    keys.add(pass_fingerprint([Uses()]))
    assert len(keys) == 12


def test_what_no_text_says_is_in_no_key() -> None:
    lock = threading.Lock()
    assert pass_fingerprint([Uses(lock)]) != pass_fingerprint([Uses(lock)])
    many = torch.arange(10_000)
    assert pass_fingerprint([Uses(many)]) != pass_fingerprint([Uses(many)])


def test_a_helper_in_another_file_of_the_package_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_passes"
    package.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (package / "__init__.py").write_text("")
    mine = DOUBLE.replace("Double(", "Mine(").replace("[op.operands[0], op.operands[0]]", "helper.operands(op)")
    (package / "mine.py").write_text("from . import helper\n" + mine)
    found = []
    for number in (0, 0, 1):
        (package / "helper.py").write_text(f"def operands(op):\n    return [op.operands[{number}]] * 2\n")
        for name in [name for name in sys.modules if name.startswith("package_of_passes")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        found.append(pass_fingerprint([importlib.import_module("package_of_passes.mine").Mine()]))
    assert found[0] == found[1] != found[2]


def test_the_next_process_finds_what_was_compiled() -> None:
    """The same pass from a new class, as another process makes it: from the cache; the other way round would be a wrong program."""
    hits = []
    for body in (DOUBLE, DOUBLE, DOUBLE.replace("op.operands[0]]", "op.operands[1]]")):
        space: dict[str, Any] = {"__name__": "typed_in"}
        exec(body, space)
        intarsia.reset()
        intarsia.compile(plain, passes=[space["Double"]()])(X, Y)
        hits.append(intarsia.counters()["cache_hits"])
    assert hits == [0, 1, 0]


def test_given_is_read_once() -> None:
    assert passes_given([Double()]) == (Double(),)
