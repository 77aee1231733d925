"""The text of host programs, in each of their forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from .ir import ADDRESS, Function, HostProgram, Statement, use


class _Plain(dict[str, str]):
    """Each slot holds its own name."""

    def __missing__(self, slot: str) -> str:
        return slot


class _Aligned(dict[str, str]):
    """An address is that of an aligned copy, where the tensor is not aligned."""

    def __missing__(self, slot: str) -> str:
        return f"aligned({slot.removesuffix(ADDRESS)}, copies)" if slot.endswith(ADDRESS) else slot


class _Prefixed(dict[str, str]):
    """Names with a prefix; dtypes become names too."""

    def __init__(self, prefix: str, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.prefix = prefix

    def __missing__(self, slot: str) -> str:
        if slot.endswith(ADDRESS):
            return f"{self[slot.removesuffix(ADDRESS)]}{ADDRESS}"
        name = self[slot] = f"{self.prefix}{slot.removeprefix('torch.')}"
        return name


def render(program: HostProgram) -> str:
    """The program as Python text."""
    return _text(program, _Plain())


def compiled(program: HostProgram, title: str) -> CodeType:
    """The text's code: as the cache has it, or as it is compiled now."""
    return program.code or compile(render(program), title, "exec")


def aligned(program: HostProgram) -> str:
    """The program with copies of arguments, views and results of libraries that are not aligned, where kernels are given these."""
    keeps = Statement("%(copies)s = []", ("copies",))
    changed = {
        f.name: (keeps, *(s for s in f.statements if s.kind != "alignment")) for f in program.functions
    }  # copies live as long as the call
    return _text(program.with_statements(changed), _Aligned())


def taking(program: HostProgram) -> HostProgram | None:
    """The program with a list of its arguments as the one argument, which it empties: it gives each up after its last use.

    None where the program is more than one function, or is to take any sizes: a call that has begun cannot go to eager any more.
    """
    if len(program.functions) != 1 or any(s.kind == "size" for s in program.functions[0].statements):
        return None
    function = program.functions[0]
    kept = Statement(function.result).reads
    last: dict[str, int] = dict.fromkeys(function.arguments, -1)
    for number, statement in enumerate(function.statements):
        last |= dict.fromkeys((*statement.reads, *statement.writes), number)
    given = {s.removesuffix(ADDRESS) for s in last} & {
        *function.arguments,
        *(w for s in function.statements for w in s.writes),
    }
    freed = {name for s in function.statements for name in s.frees}
    ends: dict[int, list[str]] = {}
    for name in given - kept - freed:
        ends.setdefault(last[name], []).append(name)

    def gives_up(number: int) -> Iterable[Statement]:
        names = sorted(ends.get(number, ()))
        if names:
            yield Statement(f"{' = '.join(map(use, names))} = None", frees=tuple(names))

    whole = "".join(f"{use(name)}, " for name in function.arguments)
    statements = [Statement(f"{whole}= {use('given')}"), Statement(f"{use('given')}.clear()"), *gives_up(-1)]
    for number, statement in enumerate(function.statements):
        statements += [statement, *gives_up(number)]
    return replace(program, functions=(function._replace(arguments=("given",), statements=tuple(statements)),))


def timed(program: HostProgram) -> HostProgram:
    """The program with `begin(k)` and `end(k)` around its k-th step."""
    return program.with_statements({f.name: _timed(f.statements) for f in program.functions})


def _timed(statements: Sequence[Statement]) -> Iterable[Statement]:
    last = -1
    for statement in (*statements, Statement("")):
        if statement.step != last:
            if last >= 0:
                yield Statement(f"{use('end')}({last})")
            if statement.step >= 0:
                yield Statement(f"{use('begin')}({statement.step})")
        last = statement.step
        if statement.text:
            yield statement


def _text(program: HostProgram, words: Mapping[str, str]) -> str:
    # Parts that nothing records are functions like any other.
    given = ["piece=lambda part: part"] if program.has_parts else []
    given += ["empty=empty"] if program.arena is not None else []
    lines = [f"def {program.name}({', '.join(given)}):"]
    lines += ["    " + statement.text % words for statement in program.once]
    for function in program.functions:
        lines += ["    @piece"] if function.is_part else []
        lines.append(f"    def {function.name}({', '.join(function.arguments)}):")
        lines += ["        " + statement.text % words for statement in function.statements]
        lines.append(f"        return {function.result % words}")
    if program.arena is not None:
        lines.append("    run.arena = arena  # `run` knows only addresses in it: it must live as long")
    return "\n".join([*lines, f"    return {', '.join(program.gives)}", ""])


@dataclass(frozen=True)
class Inlinable:
    """A program that a caller may write into its own function: it prepares nothing, and is one function.

    Attributes:
        arguments: the names of its arguments.
        known: what the names of functions and dtypes in it mean.
    """

    function: Function
    known: Mapping[str, Any]

    @staticmethod
    def of(program: HostProgram, known: Mapping[str, Any]) -> Inlinable | None:
        """The program; None where it is no such one."""
        if program.once or len(program.functions) != 1 or program.arena is not None:
            return None
        return Inlinable(program.functions[0], known)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return self.function.arguments

    @property
    def length(self) -> int:
        """How many characters its text has."""
        return len(render(HostProgram((), (self.function,))))

    def inlined(self, prefix: str, given: Sequence[str]) -> tuple[str, str, dict[str, Any], set[str]]:
        """Its lines, its results, what the functions and dtypes in them are, and all names but those of arguments.

        Args:
            prefix: of its names.
            given: the names of the arguments in the caller's function.
        """
        words = _Prefixed(prefix, dict(zip(self.arguments, given, strict=True)))
        lines = "\n".join(s.text % words for s in self.function.statements)
        result = self.function.result % words
        names = {name: slot for slot, name in words.items() if slot not in self.arguments}
        values = {name: self._value(slot) for name, slot in names.items() if self._is_known(slot)}
        return lines, result, values, set(names)

    def _is_known(self, slot: str) -> bool:
        return slot.startswith("torch.") or slot in self.known

    def _value(self, slot: str) -> Any:
        owner, _, name = slot.rpartition(".")
        return getattr(self.known[owner], name) if owner else self.known[slot]
