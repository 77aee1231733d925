"""The programs of a launch: how many there are, and how several loop nests share them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import sympy
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.symbols import Dim, FloorDiv, dim, substitute, symbol
from ...ir.types import RefType
from ..text.walk import parameter_names
from .text import index_text
from .writer import Writer

# Gives the text of a function: writer, its name, its memory, other parameters, its operations.
WriteFunction: TypeAlias = Callable[[Writer, str, Mapping[SSAValue, str], Sequence[str], Sequence[Operation]], str]


def nests_of(kernel: loop.Kernel) -> list[loop.For]:
    """The loop nests between which a kernel's programs are shared out, one after another."""
    return [op for op in kernel.block_body.ops if isinstance(op, loop.For) and op["kind"] == "parallel"]


def program_count(kernel: loop.Kernel) -> Dim:
    """How many programs a launch has."""
    if "members" in kernel.attributes:
        return sum(member_programs(kernel))
    nests = nests_of(kernel)
    return dim(sum(map(programs_of, nests))) if nests else programs_of_a_row(kernel.block_body)


def member_programs(kernel: loop.Kernel) -> list[int]:
    """How many programs each member of a kernel has."""
    (nest,) = nests_of(kernel)
    found = [substitute(programs_of(nest), {symbol(loop.MEMBER): size}) for size in kernel.members if size is not None]
    return list(map(int, found))


def programs_of_a_row(body: Block) -> int:
    """How many programs share a row."""
    found = (op["stop"] for op in body.walk() if isinstance(op, loop.For) and op.get("cooperative"))
    return next(found, 1)


def programs_of(nest: loop.For) -> Dim:
    """How many programs share in a nest."""
    found, most = dim(tiles_of(nest) * programs_of_a_row(nest.block_body)), nest.get("persistent")
    return min(found, most) if most and isinstance(found, int) else found


def tiles_of(nest: loop.For) -> Dim:
    """How many blocks the parallel loops of a nest have in all."""
    found: Dim = 1
    for op in nest.walk():
        if isinstance(op, loop.For) and op["kind"] == "parallel":
            found = dim(found * blocks(op))
    return found


def blocks(op: loop.For) -> Dim:
    """How many blocks a loop has."""
    size, block = dim(sympy.sympify(op["stop"]) - op.get("start", 0)), op.get("block", 1)
    return size if block == 1 else dim(FloorDiv(sympy.sympify(size + block - 1), sympy.Integer(block)))


def emit_parts(kernel: loop.Kernel, arguments: Mapping[SSAValue, str], wide: bool, write: WriteFunction) -> str:
    """A function for each loop nest, equal ones once, and the kernel: it calls the one that a program belongs to."""
    symbols = tuple(kernel.get("symbols", ()))
    # By text, types of memory and number of programs: the name, and the memory of those that are equal.
    calls: dict[tuple[str, tuple[str, ...], Dim], tuple[str, list[list[str]]]] = {}
    for nest in nests_of(kernel):
        own = _memory_of(nest, arguments)
        text = write(
            Writer(wide=wide, numbered=True, contract=kernel.get("contract", True)),
            "{}",
            own,
            (*symbols, "program"),
            [nest],
        )
        kinds = tuple(str(a.type.dtype) for a in own if isinstance(a.type, RefType))
        found = calls.setdefault((text, kinds, programs_of(nest)), (_part_name(nest, text), []))
        found[1].append([arguments[a] for a in own])
    w = Writer(wide=wide)
    w.line(f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}")
    ends = list(accumulate(dim(programs * len(members)) for (_, _, programs), (_, members) in calls.items()))
    groups = list(calls.items())

    def call(number: int) -> None:
        (_, _, programs), (name, members) = groups[number]
        if number:
            w.line(f"program -= {index_text(ends[number - 1], {})}")
        given = list(members[0])
        if len(members) > 1:
            given = [f"p{number}_{k}" for k in range(len(given))]  # of this branch alone: of one type
            starts = [dim(programs * (k + 1)) for k in range(len(members))]
            _divide(w, starts, lambda k: w.line(f"{', '.join(given)} = {', '.join(members[k])}"))
            w.line(f"program = program % {_factor(programs)}")
        w.line(f"{name}({', '.join([*given, *symbols, 'program'])})")

    _divide(w, ends, call)
    head = f"@triton.jit\ndef {kernel['sym_name']}({', '.join([*arguments.values(), *symbols])}):"
    texts = {name: text.replace("def {}(", f"def {name}(", 1) for (text, *_), (name, _) in calls.items()}
    return "\n\n".join([*texts.values(), "\n".join([head, *w.text, ""])])


def emit_members(kernel: loop.Kernel, arguments: Mapping[SSAValue, str], wide: bool, write: WriteFunction) -> str:
    """A function for a member, and the kernel: it finds out which member a program belongs to, and calls the function with its memory and size."""
    name, symbols = kernel["sym_name"], kernel.sizes
    writer = Writer(wide=wide, numbered=True, contract=kernel.get("contract", True))
    body = write(writer, f"{name}_member", arguments, (loop.MEMBER, *symbols, "program"), list(kernel.block_body.ops))
    w = Writer(wide=wide)
    w.line(f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}")
    names, ends = list(parameter_names(kernel)), list(accumulate(member_programs(kernel)))
    shared = kernel.get("shared", 0)
    own = list(arguments.values())[shared:]

    def choose(member: int) -> None:
        given = [names[k] for k in kernel.places(member)[shared:]]
        before = ends[member - 1] if member else 0
        w.line(f"{', '.join(own)}, n, program = {', '.join(given)}, {kernel.members[member]}, program - {before}")

    _divide(w, ends, choose)
    w.line(f"{name}_member({', '.join([*arguments.values(), loop.MEMBER, *symbols, 'program'])})")
    head = f"@triton.jit\ndef {name}({', '.join([*names, *symbols])}):"
    return f"{body}\n\n" + "\n".join([head, *w.text, ""])


def _part_name(nest: loop.For, text: str) -> str:
    """By content: functions of one module, whose kernels are many, have one name only if they are equal."""
    words = str(nest["part"]).rpartition("_")[0]
    return f"{words}_part_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _divide(w: Writer, ends: Sequence[Dim], write: Callable[[int], None], first: int = 0) -> None:
    """Write part `first + k` for the programs below ends[k] that are in no part before, found by halving.

    Triton simplifies nested branches to a fixed depth: a chain of sixty `elif` does not compile.
    """
    if len(ends) == 1:
        write(first)
        return
    middle = len(ends) // 2
    with w.scope(f"if program < {index_text(ends[middle - 1], {})}:"):
        _divide(w, ends[:middle], write, first)
    with w.scope("else:"):
        _divide(w, ends[middle:], write, first + middle)


def _memory_of(nest: loop.For, arguments: Mapping[SSAValue, str]) -> dict[SSAValue, str]:
    """The memory that a nest takes, under names of its own, in the order of use."""
    used = dict.fromkeys(v for inner in nest.walk() for v in inner.operands if v in arguments)
    written = {inner.operands[1] for inner in nest.walk() if isinstance(inner, loop.Store)}
    names: dict[SSAValue, str] = {}
    for kind, values in (("in", [v for v in used if v not in written]), ("out", [v for v in used if v in written])):
        names |= {v: f"{kind}{k}" for k, v in enumerate(values)}
    return names


def _factor(value: Dim) -> str:
    """A size behind an operator."""
    return str(value) if isinstance(value, int) else f"({index_text(value, {})})"
