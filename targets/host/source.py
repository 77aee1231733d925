"""A host program with what it needs beside it: what the cache keeps, and what is loaded."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from .ir import Halves, HostProgram, use
from .render import compiled, render
from .steps import Step


@dataclass
class HostSource:
    """A host program, and what it needs beside it.

    Attributes:
        program: the program.
        kernels: name of each kernel and how many arguments it takes.
        operators: names in the text of the ATen operators it calls.
        steps: names in the text of library steps (packed weights), with the description from which each is built.
        lines: the user's lines that each kernel computes.
        memory: bytes kept between calls, and most bytes in use at once; None where that depends on sizes.
        constants: which arguments `make_constants` takes, whose results are the last arguments.
        make_constants: the program that computes what depends on parameters alone; None: there is none.
        quick: the kernels that are done in a few microseconds: other threads need not run meanwhile.
        large: bytes of the results of one call whose memory comes from the pool, as far as sizes are known.
        gpu: the number of the GPU that kernels run on, None: there are none.
        arguments, sizes, work: what a recording has to know: `kinds`, `sizes` and `steps` of `Recorded`.
        not_recorded: why the program does not become a CUDA graph, "" where it does.
        mutated: the arguments that the program writes to.
        talks: the calls by which it talks to other processes, in order: group, words, line.
        halves: the program as a recording and its tail, where results are large.
        bodies: the functions that the program's steps call (ir/regions.py), each behind those that it calls.
    """

    program: HostProgram
    kernels: dict[str, int]
    operators: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memory: tuple[int, int] | None = None
    constants: Sequence[int] = ()
    make_constants: HostProgram | None = None
    quick: Sequence[str] = ()
    large: int = 0
    gpu: int | None = None
    arguments: Sequence[str] = ()
    sizes: Sequence[str] = ()
    work: int = 0
    not_recorded: str = ""
    mutated: Sequence[int] = ()
    halves: Halves | None = None
    talks: Sequence[tuple[str, str, str]] = ()
    bodies: Sequence[HostProgram] = ()

    @cached_property
    def text(self) -> str:
        """Its Python text."""
        return "\n\n".join(map(render, self.programs()))

    def programs(self) -> list[HostProgram]:
        """The program, that of its constants, and those that it calls."""
        return [self.program, *([] if self.make_constants is None else [self.make_constants]), *self.bodies]

    def calls_of(self, name: str) -> int:
        """How often a function is called in the program's text."""
        return sum(s.text.count(f"{use(name)}(") for program in self.programs() for s in program.statements())

    def as_bytes(self, title: str) -> bytes:
        """What the cache keeps: plain data, with the compiled texts, in the format of this version of Python, which is in every key.

        Args:
            title: stands for a file's name where an error comes from the text.
        """
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["steps"] = {name: tuple(step) for name, step in self.steps.items()}
        for name in ("program", "make_constants"):
            data[name] = data[name] and data[name].as_data(compiled(data[name], title))
        data["bodies"] = tuple(program.as_data(compiled(program, title)) for program in self.bodies)
        if self.halves is not None:
            data["halves"] = self.halves.program.as_data(), self.halves.steps, self.halves.results
        return marshal.dumps(data)

    @staticmethod
    def from_bytes(kept: bytes) -> HostSource:
        """The inverse of `as_bytes`."""
        data = marshal.loads(kept)
        data["steps"] = {name: Step(*step) for name, step in data["steps"].items()}
        for name in ("program", "make_constants"):
            data[name] = data[name] and HostProgram.from_data(data[name])
        data["bodies"] = tuple(map(HostProgram.from_data, data["bodies"]))
        if data["halves"] is not None:
            program, steps, results = data["halves"]
            data["halves"] = Halves(HostProgram.from_data(program), steps, results)
        return HostSource(**data)
