"""A random program is a plain script: anyone can run its text, and the soak runs it statement by statement, in eager and compiled.

lin = nn.Linear(3, 4)                # whatever it needs
def f(x): return lin(x).relu()
f = intarsia.compile(f)              # left out in the eager run
x = torch.randn(2, 3)
f(x)                                 # a call: everything that is visible afterwards is compared
lin.weight.data.zero_()              # something changes
f(x)
"""

from __future__ import annotations

import ast
import contextlib
import decimal
import functools
import gc
import inspect
import io
import json
import linecache
import logging
import math
import operator
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F

import intarsia

HEADER = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
import intarsia
"""
PATCHED = (
    torch,
    F,
    math,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.Linear,
    random,
    inspect,
    json,
    operator,
    os,
    os.path,
    time,
)  # what programs may patch: put back after each
SETTINGS = (
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.mkldnn, "deterministic"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    (warnings, "showwarning"),
)  # what programs may set: put back after each
Compile = Callable[..., Any]
Hook = Callable[[dict[str, Any]], None]


class Invalid(Exception):
    """The script fails before it calls anything: nothing to compare."""


@dataclass
class Step:
    """What one statement after the compilation did: its text, the exception, what was printed, and all that is visible then."""

    text: str
    line: int
    error: BaseException | None = None
    printed: str = ""
    state: list[tuple[str, Any]] = field(default_factory=list)
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    modes: tuple[Any, ...] = ()


@functools.lru_cache(maxsize=4)
def _parts(text: str) -> tuple[list[tuple[str, str, int, CodeType]], str]:
    """(kind, text, line, code) of each top-level statement: "setup", "compile", "call" or "change"."""
    name = f"<soak {abs(hash(text)) % 10**8}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found, compiled = [], False
    for node in ast.parse(text).body:
        kind = "change" if compiled else "setup"
        if is_compile(node):
            kind, compiled = "compile", True
        elif compiled and is_call(node):
            kind = "call"
            if isinstance(node, ast.Expr):
                node = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], node.value), node)
        code = compile(ast.fix_missing_locations(ast.Module([node], [])), name, "exec")
        found.append((kind, ast.unparse(node), node.lineno, code))
    return found, name


def is_compile(node: ast.stmt) -> bool:
    """`name = intarsia.compile(...)`."""
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.Call) and bool(value.args) and ast.unparse(value.func) == "intarsia.compile"


def is_call(node: ast.stmt) -> bool:
    """A statement that contains a call of `f`."""
    return isinstance(node, ast.Expr | ast.Assign | ast.With) and any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "f" for n in ast.walk(node)
    )


def run(text: str, compiled: Compile | None, before_call: Hook | None = None, states: bool = True) -> list[Step]:
    """Run a script; `compiled` stands for `intarsia.compile`, None leaves functions as they are.

    Raises:
        Invalid: a statement before the compilation raises.
    """
    parts, name = _parts(text)
    scope: dict[str, Any] = {"__name__": "program", "__file__": name}
    steps: list[Step] = []
    with _put_back():
        torch.manual_seed(0)
        random.seed(0)
        for kind, source, line, code in parts:
            if kind == "compile":
                if compiled is not None:
                    shim = scope["intarsia"]
                    scope["intarsia"] = _Shim(compiled)
                    exec(code, scope)
                    scope["intarsia"] = shim
                else:
                    try:
                        exec(f"{source.partition('=')[0]} = {_argument(source)}", scope)
                    except NameError as error:
                        raise Invalid(str(error)) from error
                continue
            if kind == "setup":
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        exec(code, scope)
                except Exception as error:
                    raise Invalid(f"{source}: {type(error).__name__}: {error}") from error
                continue
            step = Step(source, line)
            if kind == "call" and before_call:
                before_call(scope)
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    exec(code, scope)
            except (Exception, GeneratorExit) as error:
                step.error = error
            step.printed = said.getvalue()
            step.modes = _modes()
            if states and kind == "call":
                seen = Snapshot()
                seen.add_scope(scope)
                step.state, step.tensors = seen.leaves, seen.tensors
            steps.append(step)
    return steps


def _argument(source: str) -> str:
    call = ast.parse(source).body[0].value  # type: ignore[attr-defined]
    return ast.unparse(call.args[0])


class _Shim:
    """What the name `intarsia` means while the compile statement runs."""

    def __init__(self, compiled: Compile) -> None:
        self.compile = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(intarsia, name)


def _modes() -> tuple[Any, ...]:
    """State of the thread that a call must leave as eager leaves it."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        hash(torch.get_rng_state().numpy().tobytes()),
    )


@contextlib.contextmanager
def _put_back() -> Iterator[None]:
    """Whatever a program changes outside of its own names is as before afterwards."""
    patched = [(owner, dict(vars(owner))) for owner in PATCHED]
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    logger = logging.getLogger("program")
    settings = [(owner, name, getattr(owner, name)) for owner, name in SETTINGS]
    environ, autocast = dict(os.environ), torch.get_autocast_dtype("cpu")
    handlers, level_name = list(logger.handlers), logging.getLevelName(20)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(precision)
        torch.set_autocast_enabled("cpu", False)
        logger.setLevel(logging.NOTSET)
        logger.handlers[:] = handlers
        logging.disable(logging.NOTSET)
        logging.addLevelName(20, level_name)
        for owner, name, value in settings:
            with contextlib.suppress(RuntimeError):  # torch's database of operators locks some
                setattr(owner, name, value)
        os.environ.clear()
        os.environ.update(environ)
        torch.set_autocast_dtype("cpu", autocast)
        torch.set_autocast_cache_enabled(True)
        torch.set_default_device(None)
        torch.set_warn_always(False)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.autograd.set_detect_anomaly(False)
        decimal.setcontext(decimal.Context())
        gc.enable()
        logger.disabled = False
        for owner, before in patched:
            now = dict(vars(owner))
            for name in now.keys() - before.keys():
                if not name.startswith("__") or isinstance(
                    owner, type
                ):  # operators of a class; modules keep their registries
                    delattr(owner, name)
            for name, value in before.items():
                if now.get(name) is not value:
                    with contextlib.suppress(AttributeError, TypeError, RuntimeError):
                        setattr(owner, name, value)


@dataclass
class Leaf:
    """A tensor as it is at this moment."""

    value: torch.Tensor
    facts: tuple[tuple[str, Any], ...]
    strides: tuple[int, ...] | None


class Snapshot:
    """Flattens whatever a program can see into (path, leaf); an object that was there before is named by its number."""

    def __init__(self) -> None:
        self.leaves: list[tuple[str, Any]] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []

    def add_scope(self, scope: dict[str, Any]) -> None:
        """All names of a program but modules, `f` and what is private; its classes and functions by their state."""
        names = [n for n in scope if not n.startswith("__") and n != "f"]
        for name in sorted(names, key=lambda n: n == "_"):
            value = scope[name]
            if not isinstance(value, type(torch)):
                self.add(name, value)

    def add(self, path: str, value: Any) -> None:
        if isinstance(value, str | int | float | complex | bytes | range | type(None) | torch.dtype | torch.device):
            self.leaves.append((path, value))
            return
        if id(value) in self.seen and not isinstance(value, tuple):  # equal tuples may be one
            self.leaves.append((path, ("object", self.seen[id(value)])))
            return
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            try:
                self._tensor(path, value)
            except RuntimeError as error:  # a view whose base was written to
                self.leaves.append((path, ("unreadable", str(error)[:80])))
        elif isinstance(value, dict):
            self.leaves.append((path, (type(value).__name__, len(value))))
            for number, (key, item) in enumerate(list(value.items())):
                self.add(f"{path}.key{number}", key)
                self.add(f"{path}[{number}]", item)
        elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ in ("deque", "odict_keys"):
            self.leaves.append((path, (type(value).__name__, len(value))))
            for number, item in enumerate(list(value)):
                self.add(f"{path}[{number}]", item)
        elif isinstance(value, type):
            self.leaves.append((path, ("class", value.__name__)))
            if value.__module__ == "program":
                for name, item in sorted(vars(value).items()):
                    if not callable(item) and not name.startswith("_") and not hasattr(item, "__get__"):
                        self.add(f"{path}.{name}", item)
        elif isinstance(value, BaseException):
            self.leaves.append((path, (type(value).__name__, str(value))))
        elif callable(value) and not isinstance(value, torch.nn.Module) and hasattr(value, "__name__"):
            self._function(path, value)
        elif hasattr(value, "__dict__") and (type(value).__module__ == "program" or isinstance(value, torch.nn.Module)):
            self.leaves.append((path, ("an object", type(value).__name__)))
            for name, item in sorted(vars(value).items()):
                if "hook" not in name and not name.startswith("__"):
                    self.add(f"{path}.{name}", item)
        else:
            known = isinstance(value, Decimal | Fraction | date | timedelta | PurePath | slice | bytearray)
            self.leaves.append((path, (type(value).__name__, repr(value) if known else "")))

    def _function(self, path: str, value: Any) -> None:
        self.leaves.append((path, ("function", value.__name__)))
        if getattr(value, "__module__", None) != "program":
            return
        for name, item in sorted(getattr(value, "__dict__", {}).items()):
            self.add(f"{path}.{name}", item)
        for number, cell in enumerate(getattr(value, "__closure__", None) or ()):
            with contextlib.suppress(ValueError):
                self.add(f"{path}.cell{number}", cell.cell_contents)

    def _tensor(self, path: str, value: torch.Tensor) -> None:
        facts = [
            ("class", type(value).__name__),
            ("dtype", value.dtype),
            ("shape", tuple(value.shape)),
            ("layout", value.layout),
            ("device", value.device.type),
            ("requires_grad", value.requires_grad),
            ("leaf", value.is_leaf),
            ("inference", value.is_inference()),
        ]
        strided = value.layout == torch.strided and value.device.type != "meta"
        with torch.no_grad():
            copied = value.detach().clone() if not value.is_inference() else value.clone()
        self.leaves.append((path, Leaf(copied, tuple(facts), value.stride() if strided else None)))
        if strided:
            self.tensors.append((path, value))
        if value.is_leaf and value.requires_grad and value.grad is not None:
            self.leaves.append(
                (path + ".grad", Leaf(value.grad.detach().clone(), (("dtype", value.grad.dtype),), None))
            )
