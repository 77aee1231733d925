"""Grows functions of nested statements, from tables of pieces: `branches`, `functions`, `training` and `state` have the tables.

In a piece `{t}` is a tensor, `{i}` a tensor of integers, `{n}` an integer, `{k}` a small constant, `{f}` a float, `{c}` a condition,
`{s}` a short text, `{F}` a function that was defined before.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .script import HEADER

HOLE = re.compile(r"\{([a-zA-Z])\}")
CONSTANTS = ["0", "1", "2", "3", "-1", "5"]
FLOATS = ["0.5", "2.0", "-1.0", "0.0", "1e-3", "3"]
FLOAT = ["float32"] * 6 + ["float64", "float16", "bfloat16"]


@dataclass(frozen=True)
class Tables:
    """What bodies of one kind are made of."""

    conditions: Sequence[str]
    values: Sequence[str]  # expressions that give a tensor
    numbers: Sequence[str] = ("{k}", "{t}.shape[0]", "len({t})")
    statements: Sequence[str] = ()
    setup: str = ""
    compound: Sequence[str] = ("if", "if", "else", "elif", "early", "raise", "assert", "for", "try", "with", "while")
    contexts: Sequence[str] = ("torch.no_grad()", "torch.enable_grad()")
    changes: Sequence[str] = ()
    train: float = 0.25  # how often a call takes gradients
    depth: int = 2


class Refused(Exception):
    """The program does not run as it should."""


@dataclass
class Body:
    """One program while it grows."""

    tables: Tables
    rng: random.Random
    names: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0
    inside: int = 0  # loops around

    def fill(self, piece: str) -> str:
        return HOLE.sub(lambda m: self.hole(m[1]), piece)

    def hole(self, kind: str, depth: int = 0) -> str:
        rng = self.rng
        if kind == "t":
            known = self.names["t"]
            return rng.choice(known[-3:] if rng.random() < 0.5 else known)
        if kind == "k":
            return rng.choice(CONSTANTS)
        if kind == "f":
            return rng.choice(FLOATS)
        if kind == "s":
            return rng.choice("abcd")
        if kind == "n" and self.names["n"] and rng.random() < 0.6:
            return rng.choice(self.names["n"])
        if kind == "n":
            return self.fill(rng.choice(self.tables.numbers))
        if kind == "c":
            return self.fill(rng.choice(self.tables.conditions))
        if kind in ("i", "F"):
            return rng.choice(self.names[kind])
        return "{" + kind + "}"

    def new(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # ---- statements -------------------------------------------------------------------------------------------------

    def block(self, depth: int, least: int = 1) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.choice([least, 1, 1, 2])):
            lines += self.statement(depth)
        return lines

    def scoped(self, depth: int) -> list[str]:
        """A block whose names are gone behind it."""
        kept = {k: list(v) for k, v in self.names.items()}
        lines = self.block(depth)
        self.names = kept
        return lines

    def assign(self, name: str | None = None) -> list[str]:
        rng = self.rng
        if name is None and rng.random() < 0.25:
            value = self.fill(rng.choice(self.tables.numbers))
            made = self.new("n")
            self.names["n"].append(made)
            return [f"{made} = {value}"]
        value = self.fill(rng.choice(self.tables.values))
        made = name or (rng.choice(self.names["t"]) if rng.random() < 0.2 else self.new("v"))
        if made not in self.names["t"]:
            self.names["t"].append(made)
        return [f"{made} = {value}"]

    def statement(self, depth: int) -> list[str]:
        rng, tables = self.rng, self.tables
        draw = rng.random()
        if draw < 0.35 or depth <= 0 and draw < 0.6:
            return self.assign()
        if draw < 0.6 and tables.statements or depth <= 0:
            return self.fill(rng.choice(tables.statements or ["{t} = {t} + 1"])).split("\n")
        kind = rng.choice(tables.compound)
        return getattr(self, "_" + kind)(depth - 1)  # type: ignore[no-any-return]

    def _if(self, depth: int) -> list[str]:
        return [f"if {self.hole('c')}:", *_in(self.scoped(depth))]

    def _else(self, depth: int) -> list[str]:
        condition = self.hole("c")
        name = self.rng.choice([self.new("v"), *self.names["t"]])
        first = [*(self.scoped(depth) if self.rng.random() < 0.3 else []), *self.quiet(name)]
        second = [*(self.scoped(depth) if self.rng.random() < 0.3 else []), *self.quiet(name)]
        if name not in self.names["t"]:
            self.names["t"].append(name)
        if len(first) == len(second) == 1 and self.rng.random() < 0.3:
            return [f"{name} = {first[0].split(' = ', 1)[1]} if {condition} else {second[0].split(' = ', 1)[1]}"]
        return [f"if {condition}:", *_in(first), "else:", *_in(second)]

    def quiet(self, name: str) -> list[str]:
        kept = {k: list(v) for k, v in self.names.items()}
        lines = self.assign(name)
        self.names = kept
        return lines

    def _elif(self, depth: int) -> list[str]:
        lines = [f"if {self.hole('c')}:", *_in(self.scoped(depth)), f"elif {self.hole('c')}:", *_in(self.scoped(depth))]
        return lines + (["else:", *_in(self.scoped(depth))] if self.rng.random() < 0.5 else [])

    def _early(self, depth: int) -> list[str]:
        return [f"if {self.hole('c')}:", *_in([*(self.scoped(depth) if self.rng.random() < 0.3 else []), self.end()])]

    def end(self) -> str:
        known = self.names["t"]
        results = [
            self.rng.choice(known[-4:] if self.rng.random() < 0.7 else known)
            for _ in range(self.rng.choice([1, 2, 2, 3]))
        ]
        if self.names["n"] and self.rng.random() < 0.4:
            results.append(self.rng.choice(self.names["n"]))
        return f"return {', '.join(results)}{',' if self.rng.random() < 0.2 else ''}"

    def _raise(self, depth: int) -> list[str]:
        message = self.fill(self.rng.choice(["'bad'", "f'bad {{t}.max()} of {{t}.shape}'", "f'bad {{n}}'", "str({t})"]))
        kind = self.rng.choice(["ValueError", "RuntimeError", "KeyError"])
        before = self.scoped(depth) if self.rng.random() < 0.3 else []
        return [f"if {self.hole('c')}:", *_in([*before, f"raise {kind}({message})"])]

    def _assert(self, depth: int) -> list[str]:
        message = self.rng.choice(["", "", ", 'no'", f", f'no {{{self.hole('t')}.sum()}}'"])
        return [f"assert {self.hole('c')}{message}"]

    def _for(self, depth: int) -> list[str]:
        over = self.rng.choice(["range({k})", "range({n})", "range(3)", "{t}", "({t}, {t})", "enumerate(({t}, 2))"])
        variable = self.new("j")
        self.inside += 1
        lines = self.scoped(depth)
        self.inside -= 1
        if self.rng.random() < 0.4:
            lines += [f"if {self.hole('c')}:", "    " + self.rng.choice(["break", "continue"])]
        name = self.rng.choice(self.names["t"])
        return [f"for {variable} in {self.fill(over)}:", *_in([*lines, self.fill(f"{name} = {name} * 0.5 + {{f}}")])]

    def _while(self, depth: int) -> list[str]:
        name, rounds = self.rng.choice(self.names["t"]), self.new("w")
        return [
            f"{rounds} = 0",
            f"while {self.hole('c')} and {rounds} < 4:",
            *_in([*self.scoped(depth), f"{name} = {name} - 1", f"{rounds} += 1"]),
        ]

    def _try(self, depth: int) -> list[str]:
        lines = ["try:", *_in(self.scoped(depth))]
        if self.rng.random() < 0.7:
            kind = self.rng.choice(["ValueError", "Exception", "(KeyError, AssertionError)"])
            handler = self.rng.choice(["out.append(str(e))", "pass", self.end()])
            lines += [f"except {kind} as e:", *_in([handler])]
        if len(lines) == 1 or "except" not in "".join(lines) or self.rng.random() < 0.3:
            lines += ["finally:", *_in(self.scoped(0))]
        return lines

    def _with(self, depth: int) -> list[str]:
        return [f"with {self.rng.choice(self.tables.contexts)}:", *_in(self.scoped(depth))]


def _in(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def argument(rng: random.Random, dtype: str, shape: str) -> str:
    """An expression that makes a float tensor."""
    makers = [
        "torch.randn({0})", "torch.randn({0})", "torch.rand({0})", "torch.randn({0}) - 2", "torch.zeros({0})", "torch.ones({0})",
        "torch.randint(-2, 3, ({0},))", "torch.randint(-2, 3, ({0},))", "torch.arange(2 * {1}).view(2, {1})[0]", "torch.full(({0},), float('nan'))",
    ]  # fmt: skip
    text = rng.choice(makers).format(shape, shape.split(",")[-1])
    return f"({text}).to(torch.{dtype})"


def calls(tables: Tables, rng: random.Random, shape: list[str]) -> list[str]:
    """Calls with changed values, sizes, dtypes, modes, gradients."""
    lines: list[str] = []
    dtype, sizes = rng.choice(FLOAT), dict.fromkeys(shape, "")
    for call in range(rng.choice([2, 3, 3, 4])):
        if call == 0 or rng.random() < 0.35:
            sizes = {name: str(rng.choice([0, 1, 2, 3, 3, 4, 4, 5])) for name in shape}
        if call and rng.random() < 0.12:
            dtype = rng.choice(FLOAT)
        inside = ", ".join(sizes.values())
        lines += [f"{name} = {argument(rng, dtype, inside)}" for name in ("x", "y") if call == 0 or rng.random() < 0.8]
        lines.append(f"i = torch.randint(0, {rng.choice([1, 2, 3, 4])}, ({rng.choice([0, 1, 2, 3])},))")
        if rng.random() < 0.1:
            lines.append(rng.choice(["y = x", "y = x[:]", "y = x.flip(0)", "x = x.t().contiguous().t()"]))
        if call and tables.changes and rng.random() < 0.3:
            lines.append(rng.choice(tables.changes))
        draw = rng.random()
        given = "f(x, y, i)"
        if draw < tables.train:
            lines += [f"{n} = {n}.detach().requires_grad_()" for n in rng.choice(["x", "xy", "y"])]
            if rng.random() < 0.3:
                lines += ["x = x * 1", "x.retain_grad() if x.requires_grad else 0"]
            given = "total(f(x, y, i))" if rng.random() < 0.8 else given
        elif draw < tables.train + 0.1:
            given = "with torch.no_grad(): r = f(x, y, i)"
        elif draw < tables.train + 0.14:
            given = "with torch.inference_mode(): r = f(x, y, i)"
        elif draw < tables.train + 0.17:
            given = "with torch.autocast('cpu', torch.bfloat16): r = f(x, y, i)"
        lines.append(given)
    return lines


SETUP = """\
out = []
class Box:
    pass
s = Box()
s.a = torch.ones(3)
s.n = 0
s.flag = True
p = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
lin = nn.Linear(3, 3)
@intarsia.disable
def look(t):
    return t
def total(r):
    ts = [t for t in (r if isinstance(r, (tuple, list)) else [r]) if isinstance(t, torch.Tensor) and t.requires_grad]
    if ts:
        sum((t.double() * t.double()).sum() for t in ts).backward()
    return r
"""


def program(tables: Tables, seed: int, attempts: int = 40) -> str:
    """A program of these tables whose calls mostly come to an end."""
    rng = random.Random(seed)
    for _ in range(attempts):
        text = _program(tables, rng)
        with contextlib.suppress(Refused):
            _accept(text, rng)
            return text
    return HEADER + "def f(x): return x\nf = intarsia.compile(f)\nf(torch.ones(2))\n"


def _program(tables: Tables, rng: random.Random) -> str:
    names: dict[str, list[str]] = {"t": ["x", "y"], "n": [], "i": ["i"], "F": ["torch.tanh"]}
    helpers: list[str] = []
    for number in range(rng.choice([0, 0, 1, 1])):
        body = Body(tables, rng, {"t": ["u"], "n": [], "i": ["i"], "F": ["torch.relu"]})
        lines = body.block(tables.depth - 1)
        helpers += [f"def h{number}(u):", *_in([*lines, f"return {rng.choice(body.names['t'])}"])]
        names["F"] += [f"h{number}"] * 3
    if rng.random() < 0.4:
        names["t"] += ["s.a"]
    if rng.random() < 0.3:
        names["t"] += ["p"]
    body = Body(tables, rng, names)
    lines = []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        lines += body.statement(tables.depth)
    if rng.random() < 0.08:
        lines.insert(0, "global s")
    settings = rng.choice(["", "", "", "", "", ", dynamic=True", ", dynamic=False", ", backend='eager'"])
    shape = rng.choice([["n"], ["n"], ["n", "m"]])
    parts = [
        HEADER.rstrip(),
        *SETUP.rstrip().split("\n"),
        *tables.setup.rstrip().split("\n"),
        *helpers,
        "def f(x, y, i):",
        *_in([*lines, body.end()]),
        f"f = intarsia.compile(f{settings})",
        *calls(tables, rng, shape),
    ]
    return "\n".join(part for part in parts if part) + "\n"


INTENDED = ("bad", "no", "")


def _accept(text: str, rng: random.Random) -> None:
    """Raises Refused where no call of a program comes to an end, or (mostly) where one fails for another reason than it is to."""
    from . import script

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            steps: list[Any] = script.run(_quick(text), None, states=False)
        except (script.Invalid, SyntaxError) as error:
            raise Refused from error
    ran = [s for s in steps if "f(x" in s.text]
    if all(s.error is not None for s in ran):
        raise Refused
    odd = [s for s in ran if s.error is not None and not str(s.error).strip("'").startswith(("bad", "no"))]
    if len(odd) > (1 if rng.random() < 0.3 else 0):
        raise Refused


def _quick(text: str) -> str:
    """Operators that take functions, in Python: torch compiles at each call of its own."""
    text = text.replace("torch.cond(", "quick_cond(").replace("while_loop(", "quick_while(")
    return text.replace("intarsia\n", "intarsia\n" + QUICK, 1)


QUICK = """\
def quick_cond(pred, first, second, operands=()):
    return first(*operands) if pred else second(*operands)
def quick_while(going, body, carried):
    for _ in range(50):
        if going(*carried):
            carried = body(*carried)
    return carried
"""
