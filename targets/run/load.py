"""From the text of a host program to a callable."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch.autograd.graph import increment_version

from ...ir.dialects.aten import DIRECT, overload
from ...ir.regions import RUNS
from ..host.ir import HostProgram
from ..host.library import Library
from ..host.pool import FRESH, Results, keep_heap
from ..host.render import Inlinable, aligned, compiled, taking
from ..host.source import HostSource
from ..host.steps import Folded
from ..recordings.conditional import cond, while_loop
from ..recordings.graphs import Recorded
from ..recordings.recordable import of_a_library
from ..recordings.seeds import draw_seed
from ..torch_private import current_stream, empty_strided_cpu, empty_strided_gpu, fast_overload
from .arenas import alone, with_memory
from .gpu import aligned as address_of_aligned
from .gpu import finished, moved, not_launched, on_gpu
from .names import empty, failed, fit, not_assumed, over
from .profiling import note

Run = Callable[..., Sequence[Any]]


def namespace(
    source: HostSource, functions: Mapping[str, Callable[..., Any]], library: Library, results: Results
) -> dict[str, Any]:
    """The names that a host program's text refers to."""
    names: dict[str, Any] = {
        "torch": torch,
        "empty": empty,
        "empty_strided": empty_strided_cpu,
        "empty_strided_gpu": empty_strided_gpu,
        "current_stream": current_stream,
        "not_launched": not_launched,
        "increment_version": increment_version,
        "over": over,
        "aligned": address_of_aligned,
        "moved": moved,
        "fit": fit,
        "not_assumed": not_assumed,
        "failed": failed,
        "draw_seed": draw_seed,
        "results": results,
        "FloorDiv": operator.floordiv,
        "Mod": operator.mod,
        "Max": max,
        "Min": min,
    }
    names |= functions
    names |= {name: DIRECT.get(target) or fast_overload(overload(target)) for name, target in source.operators.items()}
    names |= {name: library.build(step) for name, step in source.steps.items()}
    names |= {name.split(".")[3]: run for name, (run, _) in RUNS.items()}
    if source.gpu is not None:
        names |= {"while_loop": while_loop, "cond": cond}
    for program in source.bodies:  # each has its own names, as functions that their own globals hold are a cycle
        names[program.name.removeprefix("make_")] = _body(program, source, functions, dict(names))
    return names


def _body(
    program: HostProgram, source: HostSource, functions: Mapping[str, Callable[..., Any]], names: dict[str, Any]
) -> Run:
    """A function that the program calls."""

    def make(form: HostProgram, copied: bool) -> Callable[..., Any]:
        text = compile(aligned(form), "<intarsia host program>", "exec") if copied else None
        return made(text or compiled(form, "<intarsia host program>"), form, dict(names))

    if source.gpu is not None:
        return _loaded(on_gpu(source, program, make, "a value decides what runs"), program, source)
    maker = make(program, False)
    run = _loaded(maker, program, source)
    note(run if program.arena is None else maker, functions)
    return run


def load_program(
    source: HostSource,
    functions: Mapping[str, Callable[..., Any]],
    library: Library,
    name: str,
    results: Results | None = None,
    recorded: list[Recorded] | None = None,
) -> Run:
    """The callable: takes the function's arguments, gives the user's results, whose memory comes from `results` where it is large.

    What is recorded as CUDA graphs goes to `recorded`, for reports.
    """
    results = results or Results()
    if (
        source.gpu is None
        and results.limit
        and source.memory is not None
        and source.memory[1] - source.memory[0] >= FRESH
    ):
        keep_heap()
    names = namespace(source, functions, library, results)
    title = f"<intarsia host program {name}>"

    def make(program: HostProgram, copied: bool) -> Callable[..., Any]:
        if copied:
            return made(compile(aligned(program), title, "exec"), program, dict(names))
        return made(compiled(program, title), program, names)

    if source.gpu is not None:
        custom = of_a_library(source.operators.values(), library.record_custom)
        refused = source.not_recorded or custom or ("" if library.record else "recordings are switched off")
        maker: Callable[[], Run] = on_gpu(source, source.program, make, refused, recorded)
    else:
        maker = make(source.program, False)
    run = _loaded(maker, source.program, source)
    if source.gpu is None:
        note(run if source.program.arena is None else maker, functions)
    if source.make_constants is None:
        if source.gpu is None and source.program.arena is None:
            run.inlinable = Inlinable.of(source.program, names)  # type: ignore[attr-defined]
        return run
    maker = make(source.make_constants, False)
    if source.gpu is not None:
        maker = on_gpu(source, source.make_constants, make, "it computes constants")
    constants = _loaded(maker, source.make_constants, source)
    if source.gpu is not None:
        constants = finished(constants, source.gpu)
    known, parameters = _folded(constants, library), source.constants
    for there in recorded or ():
        there.further = lambda given: known([given[i] for i in parameters])
    return lambda *args: run(*args, *known([args[i] for i in parameters]))


def load_taking(
    source: HostSource, functions: Mapping[str, Callable[..., Any]], library: Library, results: Results | None = None
) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The callable of a program on a CPU that takes a list of its arguments, and gives each of them up after its last use.

    None where there is no such form.
    """
    program = taking(source.program)
    if program is None or not source.program.functions[0].arguments or source.gpu is not None:
        return None
    names, code = (
        namespace(source, functions, library, results or Results()),
        compiled(program, "<intarsia host program>"),
    )

    maker = made(code, program, names)
    run = _loaded(maker, program, source)
    note(run if program.arena is None else maker, functions)
    if source.make_constants is None:
        return run
    folds = made(compiled(source.make_constants, "<intarsia host program>"), source.make_constants, names)
    known = _folded(_loaded(folds, source.make_constants, source), library)
    parameters = source.constants

    def call(given: list[Any]) -> Sequence[Any]:
        given += known([given[i] for i in parameters])
        return run(given)

    return call


def made(code: CodeType, program: HostProgram, names: dict[str, Any]) -> Callable[..., Any]:
    """What makes the functions of a program; `names` is their namespace."""
    exec(code, names)
    return names.pop(program.name)  # type: ignore[no-any-return]  # functions that their own globals hold are a cycle


def _folded(constants: Run, library: Library) -> Folded:
    assert library.fingerprint is not None
    return Folded(lambda *tensors: constants(*tensors), library.fingerprint)


def _loaded(make: Callable[..., Run], program: HostProgram, source: HostSource) -> Run:
    """The program's `run`, with memory where it has an arena."""
    if program.arena is None:
        return make()
    return with_memory(make, program.arena) if source.gpu is None else alone(make)
