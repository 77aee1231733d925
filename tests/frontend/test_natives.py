"""Answers of native functions, patched functions, contexts with effects: what changes between two calls is seen by the second."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import decimal
import inspect
import io
import logging
import math
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from datetime import timedelta, timezone
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness import compiled, same
from torch import Tensor, nn
from torch.distributed.tensor import Shard
from torch.nn.utils import parametrizations, parametrize

from intarsia.frontend.entry import messages
from intarsia.frontend.entry.capture import capture

X = torch.arange(4.0)
log = logging.getLogger("tests.natives")
lock = threading.Lock()
linear = nn.Linear(4, 4)


def defaults(a: int, b: int = 1) -> None: ...


def put(owner: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """Set an attribute; gives what sets it back."""

    def change() -> Callable[[], None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)

    return change


def call(function: Any, now: Any, later: Any) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        function(now)
        return lambda: function(later)

    return change


def environ(name: str, value: str) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        os.environ[name] = value
        return lambda: os.environ.pop(name, None) and None

    return change


def shadow() -> Callable[[], None]:
    globals()["abs"] = lambda value: 7
    return lambda: globals().pop("abs") and None


def group() -> Callable[[], None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    return dist.destroy_process_group


cudnn, cuda, deterministic = torch.backends.cudnn, torch.backends.cuda, torch.utils.deterministic
hundred: Any = lambda *_, **__: torch.full((4,), 100.0)  # noqa: E731


def signed() -> Callable[[], None]:
    """A function says another signature of itself."""
    defaults.__signature__ = inspect.signature(lambda a, b=7: None)  # type: ignore[attr-defined]
    return lambda: delattr(defaults, "__signature__")


CHANGES: dict[str, tuple[Callable[[Tensor], Any], Callable[[], Callable[[], None]]]] = {
    "isEnabledFor": (lambda x: x + log.isEnabledFor(20), call(log.setLevel, 10, 0)),
    "getEffectiveLevel": (lambda x: x + log.getEffectiveLevel(), call(log.setLevel, 10, 0)),
    "matmul precision": (
        lambda x: (x + 1, torch.get_float32_matmul_precision()),
        call(torch.set_float32_matmul_precision, "high", "highest"),
    ),
    "cudnn.benchmark": (lambda x: x + torch.backends.cudnn.benchmark, put(cudnn, "benchmark", True)),
    "cudnn.enabled": (lambda x: x + torch.backends.cudnn.enabled, put(cudnn, "enabled", False)),
    "mkldnn.enabled": (lambda x: x + torch.backends.mkldnn.enabled, put(torch.backends.mkldnn, "enabled", False)),
    "allow_tf32": (lambda x: x + torch.backends.cuda.matmul.allow_tf32, put(cuda.matmul, "allow_tf32", True)),
    "flash_sdp_enabled": (
        lambda x: x + torch.backends.cuda.flash_sdp_enabled(),
        call(cuda.enable_flash_sdp, False, True),
    ),
    "default dtype": (lambda x: (x, torch.zeros(2)), call(torch.set_default_dtype, torch.float64, torch.float32)),
    "default device": (lambda x: (x, str(torch.zeros(2).device)), call(torch.set_default_device, "meta", None)),
    "autocast dtype": (
        lambda x: (x, torch.get_autocast_dtype("cpu")),
        lambda: call(lambda d: torch.set_autocast_dtype("cpu", d), torch.float16, torch.bfloat16)(),
    ),
    "fill memory": (
        lambda x: x + torch.utils.deterministic.fill_uninitialized_memory,
        put(deterministic, "fill_uninitialized_memory", False),
    ),
    "warn always": (lambda x: x + torch.is_warn_always_enabled(), call(torch.set_warn_always, True, False)),
    "determinism": (
        lambda x: x + torch.get_deterministic_debug_mode(),
        call(torch.use_deterministic_algorithms, True, False),
    ),
    "threads": (
        lambda x: x + torch.get_num_threads(),
        lambda: call(torch.set_num_threads, 3, torch.get_num_threads())(),
    ),
    "signature": (
        lambda x: x + inspect.signature(defaults).parameters["b"].default,
        put(defaults, "__defaults__", (5,)),
    ),
    "a signature of its own": (
        lambda x: x + inspect.signature(defaults).parameters["b"].default,
        signed,
    ),
    "getenv": (lambda x: (x, os.getenv("NATIVES_A", "none")), environ("NATIVES_A", "5")),
    "in environ": (lambda x: x + ("NATIVES_B" in os.environ), environ("NATIVES_B", "5")),
    "expanduser": (lambda x: (x, os.path.expanduser("~")), put(os, "environ", {"HOME": "/elsewhere"})),
    "recursion limit": (
        lambda x: x + sys.getrecursionlimit(),
        call(sys.setrecursionlimit, 1234, sys.getrecursionlimit()),
    ),
    "decimals": (
        lambda x: (x, decimal.Decimal(1) / decimal.Decimal(3)),
        lambda: put(decimal.getcontext(), "prec", 5)(),
    ),
    "filters": (lambda x: x + len(warnings.filters), lambda: put(warnings, "filters", [])()),
    "process group": (lambda x: x + (dist.get_world_size() if dist.is_initialized() else 5), group),
    "F.gelu": (lambda x: F.gelu(x), put(F, "gelu", hundred)),
    "F.linear in a module": (lambda x: linear(x), put(F, "linear", hundred)),
    "nn.functional.softmax": (lambda x: nn.functional.softmax(x, 0), put(F, "softmax", hundred)),
    "torch.relu": (lambda x: torch.relu(x), put(torch, "relu", hundred)),
    "Tensor.relu": (lambda x: x.relu(), put(Tensor, "relu", hundred)),
    "Tensor.__add__": (lambda x: x + 1, put(Tensor, "__add__", hundred)),
    "Tensor.__neg__": (lambda x: -x, put(Tensor, "__neg__", hundred)),
    "math.sqrt": (lambda x: x * math.sqrt(4), put(math, "sqrt", lambda _: 100)),
    "builtins.divmod": (lambda x: x * divmod(7, 2)[0], put(builtins, "divmod", lambda *_: (100, 0))),
    "a shadowed builtin": (lambda x: x * abs(-3), shadow),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_environment_is_seen(name: str) -> None:
    if name.startswith(("cudnn", "mkldnn")) and torch.backends.flags_frozen():
        pytest.skip("torch's own testing package, once imported, does not let these flags be set")
    function, change = CHANGES[name]
    fast, events = compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert same(fast(X), function(X))
        back = change()
        try:
            with contextlib.suppress(AttributeError):
                wanted, got = function(X), fast(X)
                assert same(got, wanted), (got, wanted)
        finally:
            back()
        assert len(events.captures) > 1 or events.fallbacks, "the change was not noticed"
        assert same(fast(X), function(X))


@pytest.mark.parametrize(
    "read",
    [
        lambda: datetime.datetime.now(),
        lambda: datetime.datetime.utcnow(),
        lambda: time.time(),
        lambda: time.perf_counter(),
        lambda: os.urandom(8),
        lambda: threading.get_ident(),
        lambda: datetime.datetime(2020, 1, 1).astimezone().isoformat(),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_differs_in_each_call_breaks_the_graph(read: Any) -> None:
    fast, events = compiled(lambda x: (x + 1, read()))
    fast(X)
    assert events.breaks


def test_the_process_is_asked_for_after_a_fork() -> None:
    fast, _ = compiled(lambda x: (x + 1, os.getpid()))
    assert fast(X)[1] == os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(fast(X)[1]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 99)) == child


def test_a_lock_is_held_while_its_block_runs() -> None:
    held: list[bool] = []

    def locked(x: Tensor) -> Tensor:
        with lock:
            held.append(lock.locked())
            return x + 1

    fast, _ = compiled(locked)
    fast(X), fast(X)
    assert held == [True, True]
    assert not lock.locked()


def test_a_lock_of_the_call_itself_stays_in_the_graph() -> None:
    def own(x: Tensor) -> Tensor:
        with threading.Lock():
            return x + 1

    fast, events = compiled(own, fullgraph=True)
    assert same(fast(X), X + 1) and len(events.captures) == 1


def test_a_mode_that_a_size_decides() -> None:
    def wide(x: Tensor) -> Any:
        with torch.autocast("cpu", enabled=x.shape[0] > 5), torch.set_grad_enabled(x.shape[0] > 6):
            return x * 2, {x.shape[0]}

    fast, events = compiled(wide, dynamic=True)
    for size in (4, 7, 9):
        assert same(fast(torch.ones(size)), wide(torch.ones(size)))
    assert not events.fallbacks


def test_modes_are_as_before_when_a_graph_raises() -> None:
    def half(x: Tensor, index: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return x[index] + 1

    fast, _ = compiled(half)
    fast(X, torch.tensor([1]))
    with pytest.raises(IndexError):
        fast(X, torch.tensor([9]))
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


def test_objects_of_c_are_made_in_each_call() -> None:
    fast, _ = compiled(lambda x: (x + 1, Shard(0)), fullgraph=True)
    first, second = fast(X)[1], fast(X)[1]
    assert first == second == Shard(0) and first is not second


def test_a_warning_that_is_an_error_is_raised_where_it_can_be_caught() -> None:
    def careful(x: Tensor) -> Tensor:
        try:
            warnings.warn("careful", UserWarning, stacklevel=1)
        except UserWarning:
            return x - 1
        return x + 1

    fast, _ = compiled(careful)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(fast(X), X + 1)
        warnings.simplefilter("error")
        assert same(fast(X), X - 1)


def test_warnings_and_messages_name_their_line() -> None:
    def tells(x: Tensor) -> Tensor:
        warnings.warn("told", UserWarning, stacklevel=1)
        log.warning("said %d", 3)
        return x + 1

    line = tells.__code__.co_firstlineno
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.setFormatter(logging.Formatter("%(message)s %(pathname)s %(lineno)d %(funcName)s"))
    fast, _ = compiled(tells, fullgraph=True)
    with warnings.catch_warnings(), contextlib.redirect_stderr(shown), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(warnings, "_showwarnmsg_impl", messages._SHOWS["_showwarnmsg_impl"])
        patch.setattr(log, "handlers", [handler])
        patch.setattr(log, "propagate", False)
        fast(X), fast(X)
    told = f"{__file__}:{line + 1}: UserWarning: told"
    said = f"said 3 {__file__} {line + 2} tells"
    assert [t for t in shown.getvalue().splitlines() if t in (told, said)] == [told, said] * 2


def test_a_warning_is_in_the_program_s_list_when_the_program_looks() -> None:
    def helper() -> None:
        warnings.warn("kept", stacklevel=2)

    def looks(x: Tensor) -> Any:
        with warnings.catch_warnings(record=True) as kept:
            warnings.simplefilter("always")
            helper()
            return x + len(kept), kept[0].lineno

    fast, _ = compiled(looks)
    for _ in range(2):
        assert same(fast(X), looks(X))


def test_filters_that_the_program_sets_hold_for_its_own_warnings() -> None:
    def quiet(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hush", UserWarning, stacklevel=1)
            return x + 1

    fast, _ = compiled(quiet)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fast(X), fast(X)
    assert not [w for w in told if "hush" in str(w.message)]


def test_equal_code_of_two_files_keeps_its_file() -> None:
    text = "def f(x):\n    def inner(): return x + 1\n    return inner(), inner.__code__.co_filename\n"
    for file in ("one.py", "other.py"):
        namespace: dict[str, Any] = {}
        exec(compile(text, file, "exec"), namespace)
        assert compiled(namespace["f"])[0](X)[1] == file


@pytest.mark.parametrize("under", [lambda program: program, torch._dynamo.run], ids=["alone", "torch.compile looks on"])
@pytest.mark.parametrize("named", [False, True])
def test_a_generator_is_closed_when_its_loop_is_left(named: bool, under: Any) -> None:
    """Also where CPython keeps the arguments of calls for longer, as it does while torch.compile looks at them."""
    events: list[str] = []

    def numbers(x: Tensor) -> Any:
        try:
            for i in range(5):
                yield x + i
        finally:
            events.append("closed")

    def unnamed_loop(x: Tensor) -> Tensor:
        for y in numbers(x):
            if y.sum() > 7:
                break
        events.append("after")
        return y

    def named_loop(x: Tensor) -> Tensor:
        found = numbers(x)
        for y in found:
            if y.sum() > 7:
                break
        del found
        events.append("after")
        return y

    fast, _ = compiled(named_loop if named else unnamed_loop)
    under(lambda: (fast(X), fast(X)))()
    assert events == ["closed", "after"] * 2


def test_cached_parametrizations_are_captured_whole() -> None:
    module = parametrizations.weight_norm(nn.Linear(4, 4))
    fast, events = compiled(module)
    with parametrize.cached(), torch.no_grad():
        assert same(fast(X), module(X)) and not events.breaks


def test_a_break_inside_of_another_library_is_one_break() -> None:
    import uuid

    def identified(x: Tensor) -> Any:
        return x + 1, str(uuid.uuid4())

    fast, events = compiled(identified)
    first, second = fast(X), fast(X)
    assert first[1] != second[1]
    assert [(b.place.filename, b.place.lineno) for b in events.breaks] == [
        (__file__, identified.__code__.co_firstlineno + 1)
    ]


def test_a_function_without_a_row_breaks() -> None:
    fast, events = compiled(lambda x: (x + 1, sys.getrefcount(None) > 0))
    fast(X)
    assert [b.reason for b in events.breaks] == ["a C function that capture does not know is called: sys.getrefcount"]


def test_rows_are_found_by_the_function_itself() -> None:
    from intarsia.frontend.calls.registry import called_row, row_of

    assert called_row([].append) is row_of(list.append) is not None
    assert called_row(datetime.datetime.now).refused
    mine = types.BuiltinFunctionType  # a class with no row
    assert row_of(lambda: mine) is None


def test_capture_leaves_the_random_generator_alone(monkeypatch: Any) -> None:
    """Nor does it put it back: another thread may draw meanwhile, and would draw the same again."""

    def draws(x: Tensor) -> Any:
        a = torch.rand(3) + torch.randn_like(x) + torch.nn.functional.dropout(x, 0.5)
        b = torch.tensor([1.0]).normal_() + torch.empty(2).uniform_() + torch.randperm(2) + torch.randint(3, (2,))
        return a, b, torch.bernoulli(torch.full((3,), 0.5)), torch.multinomial(torch.ones(4), 2)

    fast, _ = compiled(draws)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch, "set_rng_state", None)
    capture(draws, (X[:3],))
    assert torch.equal(torch.get_rng_state(), before)
    expected = draws(X[:3])
    torch.manual_seed(1)
    for a, b in zip(expected, fast(X[:3]), strict=True):
        assert torch.equal(a, b)


HALF, STAMP, NUMBER = Fraction(1, 2), datetime.datetime(2024, 1, 1), decimal.Decimal(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HALF * 2,
        lambda: STAMP + timedelta(1),
        lambda: NUMBER + 1,
        lambda: timezone(timedelta(hours=2)),
        lambda: timezone(timedelta(0)),
        lambda: HALF,
        lambda: np.float64(2.5),
    ],
)
def test_values_are_other_objects_in_each_call(make: Any) -> None:
    """Where eager makes one anew; what two names share stays shared."""

    def program(out: list[Any]) -> None:
        value = make()
        out += [value, value]

    fast, _ = compiled(program)
    kept: list[list[Any]] = [[], []]
    for function, out in zip((program, fast), kept, strict=True):
        for _ in range(3):
            function(out)
    patterns = [[next(i for i, w in enumerate(out) if w is v) for v in out] for out in kept]
    assert kept[0] == kept[1] and patterns[0] == patterns[1]
