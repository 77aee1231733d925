"""Random programs full of graph breaks: results, output, mutations and exceptions are eager's.

`INTARSIA_FUZZ=2000` sets how many programs are made; a failure prints the program and its seed.
"""

import contextlib
import io
import linecache
import os
import random

import pytest
import torch

import intarsia

COUNT = int(os.environ.get("INTARSIA_FUZZ", "0")) or 24
PRELUDE = """
import contextlib

import torch


def helper(t, k):
    u = t * 2 if k else t + 1
    if k == 3:
        print("three", u.shape)
    return u.tanh()


def halved(f, t):
    return f(t) * 0.5


class Noting:
    def __init__(self, notes):
        self.notes = notes

    def __enter__(self):
        self.notes.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.notes.append("out" if kind is None else kind.__name__)
        return False


@contextlib.contextmanager
def entering(k):
    print("enter", k)
    try:
        yield
    finally:
        print("exit")

"""
SCALARS = ["2", "0.5", "k", "d['scale']"]
LOOPS = ["range(3)", "[1, 2]", "enumerate([x, y])", "zip([1, 2], [x, y])", "(t for t in (1, 2))"]
CONTEXTS = ["torch.no_grad()", "Noting(out)", "contextlib.suppress(KeyError)", "entering(k)"]


class Program:
    """The text of one random function `program(x, y, k, d, out)`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["x", "y"]
        self.made = 0
        self.lines = ["def program(x, y, k, d, out):"]
        for _ in range(self.random.randint(4, 9)):
            self.statement(1)
        self.lines.append(f"    return {', '.join(self.names[:5])}, k")

    def name(self) -> str:
        return self.random.choice(self.names)

    def fresh(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def expression(self) -> str:
        a, b, pick = self.name(), self.name(), self.random.choice
        return pick(
            [
                f"{a} + {b}",
                f"{a} * {pick(SCALARS)}",
                f"torch.relu({a})",
                f"{a}.sin()",
                f"{a} - {b}.mean()",
                f"helper({a}, k)",
                f"{a}.clone().add_(1)",
                f"({a} if k > 2 else {b})",
                f"halved(lambda t: t + k, {a})",
            ]
        )

    def block(self, depth: int) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        kinds = (
            [self.assign] * 7
            + [self.simple] * 6
            + [self.branch, self.loop, self.attempt, self.context] * (2 if depth < 4 else 0)
        )
        self.random.choice(kinds)(depth, "    " * depth)

    def assign(self, depth: int, pad: str) -> None:
        name = self.fresh() if self.random.random() < 0.5 else self.name()
        self.lines.append(f"{pad}{name} = {self.expression()}")
        if name not in self.names and depth == 1:
            self.names.append(name)

    def simple(self, depth: int, pad: str) -> None:
        a = self.name()
        self.lines.append(
            pad
            + self.random.choice(
                [
                    f"print('p', k, float({a}.sum().round()))",
                    f"out.append({a})",
                    "d['n'] = d.get('n', 0) + 1",
                    f"k = k + int({a}.sum().item() > 0)",
                    f"x = [helper(t, {self.random.randint(0, 3)}) for t in (x, y)][{self.random.randint(0, 1)}]",
                    "assert len(out) < 50",
                    "x, y = y, x",
                ]
            )
        )

    def branch(self, depth: int, pad: str) -> None:
        self.lines.append(f"{pad}if {self.name()}.sum() > {self.random.randint(-3, 3)}:")
        self.block(depth + 1)
        if self.random.random() < 0.6:
            self.lines.append(f"{pad}else:")
            self.block(depth + 1)

    def loop(self, depth: int, pad: str) -> None:
        self.lines.append(f"{pad}for {self.fresh()} in {self.random.choice(LOOPS)}:")
        self.block(depth + 1)
        if self.random.random() < 0.3:
            self.lines.append(f"{pad}    if {self.name()}.mean() > 2:")
            self.lines.append(f"{pad}        {self.random.choice(['break', 'continue'])}")

    def attempt(self, depth: int, pad: str) -> None:
        self.lines.append(f"{pad}try:")
        self.block(depth + 1)
        if self.random.random() < 0.5:
            self.lines += [f"{pad}    if {self.name()}.sum() > 0:", f"{pad}        raise ValueError('e' + str(k))"]
        self.lines += [f"{pad}except ValueError as error:", f"{pad}    print('caught', error)"]
        self.block(depth + 1)
        if self.random.random() < 0.4:
            self.lines += [f"{pad}finally:", f"{pad}    out.append(k)"]

    def context(self, depth: int, pad: str) -> None:
        self.lines.append(f"{pad}with {self.random.choice(CONTEXTS)}:")
        self.block(depth + 1)


def build(seed):
    """The function, and its own text."""
    text = "\n".join(Program(seed).lines)
    source, name = PRELUDE + text, f"<program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"__name__": "program"}
    exec(compile(source, name, "exec"), namespace)
    return namespace["program"], text


def observe(function, variant):
    generator = torch.Generator().manual_seed(variant)
    x, y = torch.randn(3, generator=generator), torch.randn(3, generator=generator)
    d, notes, out = {"scale": variant % 3 + 1}, [], io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = function(x, y, variant % 4, d, notes)
        except Exception as error:
            result = (type(error).__name__, str(error)[:80])
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return result, out.getvalue(), d, notes, x, y, mode


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.allclose(a, b, atol=1e-4, rtol=1e-4, equal_nan=True)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


@pytest.mark.filterwarnings("ignore")
def test_random_programs_with_breaks():
    breaks = 0
    for seed in range(COUNT):
        function, text = build(seed)
        intarsia.reset()
        fast = intarsia.compile(function, backend="eager")
        for variant in (0, 1, 2, 5, 3):
            expected, found = observe(function, variant), observe(fast, variant)
            assert same(expected, found), f"seed {seed}, variant {variant}\n{expected}\n{found}\n{text}"
        breaks += intarsia.counters()["breaks"]
        assert intarsia.counters()["fallbacks"] == 0, f"seed {seed}\n{text}"
    assert breaks > 5 * COUNT


@pytest.mark.filterwarnings("ignore")
def test_random_programs_through_the_whole_compiler():
    for seed in range(10_000, 10_000 + max(COUNT // 12, 2)):
        function, text = build(seed)
        fast = intarsia.compile(function)
        for variant in (0, 1, 5):
            expected, found = observe(function, variant), observe(fast, variant)
            assert same(expected, found), f"seed {seed}, variant {variant}\n{expected}\n{found}\n{text}"
