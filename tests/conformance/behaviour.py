"""What one call of a function does, as text: result, arguments, globals, output, warnings, exception and its lines.

A case is a function with builders of its arguments. It is called in eager and compiled, with the first arguments twice
and then with the others; after each call everything visible is written down, and the two accounts must be equal. How
each case ran is recorded: `graphs` says what is expected at least.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import io
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.frontend.bytecode.symbolic_interpreter import SymbolicInterpreter
from intarsia.frontend.runtime.callable import compile_callable

__all__ = ["LOG", "Suite", "t"]

# What cases append to, to show the order of things; cleared before each call and compared after it.
LOG: list[Any] = []
EXPECTED = ("one graph", "breaks", "eager")


def t(*values: float) -> Tensor:
    """A float32 vector."""
    return torch.tensor(values or (1.0, -2.0, 3.0))


class Account:
    """Writes values down: structure, types, which objects are the same, which tensors share memory."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        self.alive: list[Any] = []

    def of(self, value: Any) -> str:
        """One value. Iterators are written down last of all, since that uses them up."""
        kind = type(value)
        if value is None or kind in (bool, int, str, bytes, range) or isinstance(value, torch.dtype | torch.device):
            return repr(value)
        if kind in (float, complex):
            return f"{kind.__name__} {value:.6g}"
        if isinstance(value, type):
            return f"class {value.__qualname__}"
        if isinstance(value, enum.Enum) or kind in (tuple, frozenset) and _plain(value):
            return repr(value)
        known = self.numbers.get(id(value))
        if known is not None:
            return f"#{known}"
        number = self.numbers[id(value)] = len(self.numbers)
        self.alive.append(value)
        return f"#{number}={self._new(value, kind)}"

    def _new(self, value: Any, kind: type) -> str:
        name = kind.__qualname__
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return f"method {self.of(value.__func__)} of {self.of(value.__self__)}"
        if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
            return re.sub(" at 0x[0-9a-f]+", "", repr(value))
        if isinstance(value, functools.partial):
            return f"partial {self.of(value.func)} {self.of(value.args)} {self.of(value.keywords)}"
        if isinstance(value, types.CoroutineType | types.AsyncGeneratorType):
            getattr(value, "close", lambda: None)()
            return f"{name} {value.__qualname__}"
        if isinstance(value, BaseException):
            parts = [self.of(e) for e in value.exceptions] if isinstance(value, BaseExceptionGroup) else []
            return f"{name}{self.of(value.args)}{parts}{self._rest(value)}"
        if isinstance(value, property | staticmethod | classmethod | types.CellType | types.CodeType):
            return name
        if isinstance(value, collections.defaultdict):
            return f"{name}({value.default_factory}, {self._pairs(value)}){self._rest(value)}"
        if isinstance(value, dict):
            return f"{name}({self._pairs(value)}){self._rest(value)}"
        if isinstance(value, types.MappingProxyType | collections.ChainMap):
            return f"{name}({', '.join(f'{self.of(k)}: {self.of(value[k])}' for k in value)})"
        if isinstance(value, set | frozenset):
            return f"{name}{sorted(map(self.of, value))}{self._rest(value)}"
        if isinstance(value, list | tuple | collections.deque):
            base = next(c for c in kind.__mro__ if c in (list, tuple, collections.deque))
            more = f" maxlen {value.maxlen}" if base is collections.deque else ""
            return f"{name}[{', '.join(map(self.of, base.__iter__(value)))}]{more}{self._rest(value)}"
        if isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
            return f"{name}{[self.of(v) for v in value]}"
        if isinstance(value, slice):
            return f"slice({self.of(value.start)}, {self.of(value.stop)}, {self.of(value.step)})"
        if isinstance(value, int | float | str | bytes):
            return f"{name}({kind.__mro__[-2].__repr__(value)}){self._rest(value)}"
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            return f"{name} {self._drain(value)}"
        return f"{name}{self._rest(value)}"

    def _pairs(self, value: Any) -> str:
        items = collections.OrderedDict.items if isinstance(value, collections.OrderedDict) else dict.items
        return ", ".join(f"{self.of(k)}: {self.of(v)}" for k, v in items(value))

    def _rest(self, value: Any) -> str:
        """Instance attributes and slots."""
        found = {k: v for k, v in getattr(value, "__dict__", {}).items() if k != "__orig_class__"}
        for cls in type(value).__mro__:
            for name, raw in cls.__dict__.items():
                if isinstance(raw, types.MemberDescriptorType) and not cls.__module__ == "builtins":
                    with contextlib.suppress(AttributeError):
                        found[name] = raw.__get__(value)
        return "".join(f" .{k}={self.of(v)}" for k, v in found.items())

    def _tensor(self, value: Tensor) -> str:
        memory = self.memory.setdefault(value.untyped_storage()._cdata, len(self.memory))
        numbers = [float(f"{v:.5g}") if isinstance(v, float) else v for v in value.detach().flatten().tolist()]
        grad = " requires_grad" if value.requires_grad else ""
        facts = f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()} in memory {memory}{grad}"
        return f"{facts} {numbers}{self._rest(value)}"

    def _function(self, value: types.FunctionType) -> str:
        cells = []
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                cells.append(f"{name}={self.of(cell.cell_contents)}")
        facts = (value.__name__, value.__qualname__, value.__module__, value.__doc__)
        parts = f"{self.of(value.__defaults__)} {self.of(value.__kwdefaults__)} {self.of(value.__annotations__)}"
        return f"function {facts} {parts} {cells}{self._rest(value)}"

    def _drain(self, value: Iterator[Any]) -> list[str]:
        out: list[str] = []
        try:
            while len(out) < 20:
                out.append(self.of(next(value)))
        except StopIteration as stop:
            out.append(f"end {self.of(stop.value)}")
        except Exception as error:
            out.append(self.of(error))
        return out


def _plain(value: Any) -> bool:
    """Whether a tuple has no identity that a program could rely on: constants all the way down."""
    if type(value) in (tuple, frozenset):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, str, bytes)


class Told:
    """What the runtime reports."""

    def __init__(self) -> None:
        self.captures, self.reasons, self.eager = 0, [], []

    def on_capture(self, seconds: float, capture: Any) -> None:
        """A graph."""
        self.captures += 1

    def on_break(self, broken: Any) -> None:
        """A split."""
        self.reasons.append(broken.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call in eager; a program that raises is run there on purpose."""
        if not reason.startswith("the program raises"):
            self.eager.append(reason)

    @property
    def kind(self) -> str:
        """How the case ran."""
        return "eager" if self.eager else "breaks" if self.reasons else "one graph"

    def __str__(self) -> str:
        return f"{self.kind}: {self.captures} graphs, breaks {self.reasons}, eager {self.eager}"


@dataclasses.dataclass
class Case:
    """One function, the builders of its arguments, the globals that it may change, and how it has to run."""

    function: Callable[..., Any]
    builders: tuple[Callable[[], tuple[Any, ...]], ...]
    graphs: str
    watch: tuple[str, ...]
    whole: bool
    lines: bool

    def run(self, compile: Callable[[Any], Any]) -> list[str]:
        """The accounts of all calls."""
        namespace = self.function.__globals__
        before = {name: copy.deepcopy(namespace[name]) for name in self.watch if name in namespace}
        try:
            target = compile(self.function)
            return [self._call(target, build) for build in (self.builders[0], *self.builders)]
        finally:
            for name in self.watch:
                namespace.pop(name, None)
            namespace.update(before)

    def _call(self, target: Any, build: Any) -> str:
        LOG.clear()
        torch.manual_seed(0)
        args = build()
        said = io.StringIO()
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(said), torch.no_grad():
            warnings.simplefilter("always")
            outcome: tuple[str, Any] = ("raised", None)
            try:
                outcome = "returned", target(*args)
            except BaseException as error:
                outcome = "raised", error
            mode = torch.is_grad_enabled()
        account = Account()
        out = [f"{outcome[0]} {account.of(outcome[1])}"]
        if outcome[0] == "raised":
            out += self._chain(outcome[1])
        namespace = self.function.__globals__
        out.append(f"log {account.of(LOG)}")
        out.append(f"arguments {account.of(args)}")
        out += [f"global {n} {account.of(namespace.get(n, 'missing'))}" for n in self.watch]
        out.append(f"said {said.getvalue()!r}")
        own = [w for w in caught if not str(w.message).startswith("intarsia: ")]
        out.append(f"warnings {[(w.category.__name__, str(w.message)) for w in own]} grad {mode}")
        internal = [str(w.message) for w in caught if "error inside intarsia" in str(w.message)]
        internal += [str(w.message) for w in caught if "own guards" in str(w.message)]
        assert not internal, internal[0]
        return "\n".join(re.sub("0x[0-9a-f]{6,}", "0x", line) for line in out)

    def _chain(self, error: BaseException | None) -> list[str]:
        """Message and the user's own lines of an exception and of those behind it."""
        out: list[str] = []
        while error is not None and len(out) < 8:
            own, trace = [], error.__traceback__
            while trace is not None:
                code = trace.tb_frame.f_code
                if code.co_filename == self.function.__code__.co_filename:
                    own.append(f"{code.co_name}:{trace.tb_lineno}")
                trace = trace.tb_next
            shown = own if self.lines else own[-1:]
            out.append(f"  {type(error).__qualname__}: {error} at {shown} suppress {error.__suppress_context__}")
            error = error.__cause__ or error.__context__
        return out

    def check(self) -> Told:
        """Eager against compiled; raises AssertionError where they differ."""
        told = Told()
        want = self.run(lambda function: function)
        with _nothing_runs(self.function.__code__.co_filename):
            got = self.run(lambda function: compile_callable(function, backend=_graph, observer=told))
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert a == b, f"call {i + 1} differs ({told})\n--- compiled\n{a}\n--- eager\n{b}"
        return told


@contextlib.contextmanager
def _nothing_runs(file: str) -> Iterator[None]:
    """Fails where capture lets real code call the program's own: its effects would happen once too often."""
    found: list[str] = []
    inside: list[Any] = []

    def see(frame: Any, event: str, _: Any) -> None:
        # `_call` is capture's own, in whose place eager's kernels warn of the program's line.
        own = frame.f_code.co_name not in ("__del__", "_call")
        if event == "call" and frame.f_code.co_filename == file and own:
            found.append(f"{frame.f_code.co_qualname} by {getattr(inside[-1], '__name__', inside[-1])}")

    def native(vm: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        before = sys.getprofile()
        inside.append(function)
        sys.setprofile(see)
        try:
            return original(vm, function, *args, **kwargs)
        finally:
            sys.setprofile(before)
            inside.pop()

    original = SymbolicInterpreter.native
    SymbolicInterpreter.native = native  # type: ignore[method-assign]
    try:
        yield
    finally:
        SymbolicInterpreter.native = original  # type: ignore[method-assign]
    assert not found, f"capture ran {found[0]}"


def _graph(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return module.forward


class Suite:
    """The cases of one file: a decorator for its functions, and the tests over them."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def __call__(
        self,
        *builders: Callable[[], tuple[Any, ...]],
        graphs: str = "one graph",
        watch: str = "",
        whole: bool = False,
        lines: bool = False,
    ) -> Callable[[Any], Any]:
        """A case. `graphs`: how it must run at least; `watch`: names of globals; `whole`: also through the compiler.

        `lines` compares all of the user's lines in a traceback, not only the innermost.
        """
        assert graphs in EXPECTED
        made = builders or (lambda: (t(),), lambda: (t(4.0, 5.0),))

        def add(function: Any) -> Any:
            self.cases.append(Case(function, made, graphs, tuple(watch.split()), whole, lines))
            return function

        return add

    def tests(self) -> Any:
        """One test for each case."""
        names = [c.function.__name__ for c in self.cases]
        assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]

        @pytest.mark.parametrize("case", self.cases, ids=names)
        def test_case(case: Case) -> None:
            told = case.check()
            worse = EXPECTED.index(told.kind) > EXPECTED.index(case.graphs)
            assert not worse, f"expected {case.graphs}, ran as {told}"

        return test_case

    def whole(self) -> Any:
        """The cases marked so, through the whole compiler."""
        import intarsia

        chosen = [c for c in self.cases if c.whole]

        @pytest.mark.parametrize("case", chosen, ids=[c.function.__name__ for c in chosen])
        def test_whole(case: Case) -> None:
            assert case.run(intarsia.compile) == case.run(lambda function: function)

        return test_whole

    def table(self) -> list[tuple[str, str, str]]:
        """(name, expectation, how it ran) of each case."""
        out = []
        for case in self.cases:
            try:
                told = str(case.check())
            except AssertionError as error:
                told = f"WRONG {error}"
            out.append((case.function.__name__, case.graphs, told))
        return out
