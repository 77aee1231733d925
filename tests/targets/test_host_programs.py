"""Host programs as data: what statements say of themselves, and that each form of a program runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from intarsia.targets.host.ir import Function, HostProgram, Names, Statement, verbatim
from intarsia.targets.host.render import Inlinable, aligned, render, timed
from intarsia.targets.host.source import HostSource
from tests.targets.test_pieces import host

LINES = (
    Statement(verbatim("# 100% of file.py:3"), kind="comment"),
    Statement("if %(a0)s.data_ptr() & 15: %(refuse)s()", kind="alignment"),
    Statement("%(o0)s = %(torch)s.empty(2, dtype=%(torch.float32)s)", ("o0",), step=0),
    Statement("%(o0)s.copy_(%(seen)s(%(a0)s, %(a0.data_ptr())s))", step=0),
    Statement("%(o1)s = %(o0)s + 1", ("o1",), step=1),
    Statement("%(o0)s = None", frees=("o0",)),
)
PROGRAM = HostProgram((), (Function("run", ("a0",), LINES, "(%(o1)s,)"),))
NAMES: dict[str, Any] = {"torch": torch, "seen": lambda x, address: x, "aligned": lambda x, copies: 0}


def run(text: str, *args: Any, **names: Any) -> Any:
    exec(text, made := NAMES | names)
    return made["make"]()(*args)


def test_a_statement_says_what_it_reads_and_writes() -> None:
    assert LINES[3].reads == {"o0", "seen", "a0"} and not LINES[3].writes
    names = Names.of(LINES)
    assert names.writes == {"o0", "o1"} and names.frees == {"o0"} and "a0" in names.reads and "file" not in names.reads


def test_forms() -> None:
    x = torch.tensor([1.0, 2.0])
    (plain,) = run(render(PROGRAM), x, refuse=list)
    assert plain.tolist() == [2, 3] and "# 100% of file.py:3" in render(PROGRAM)
    given: list[Any] = []
    (copied,) = run(aligned(PROGRAM), x, refuse=None, seen=lambda t, address: given.append(address) or t)
    assert copied.tolist() == [2, 3] and given == [0] and "refuse" not in aligned(PROGRAM)
    clock: list[Any] = []
    run(render(timed(PROGRAM)), x, refuse=list, begin=clock.append, end=lambda k: clock.append(-k - 1))
    assert clock == [0, -1, 1, -2]


def test_what_the_cache_keeps() -> None:
    source = HostSource(PROGRAM, {"k": 2}, make_constants=replace(PROGRAM, name="make_constants"))
    kept = HostSource.from_bytes(source.as_bytes("a title"))
    assert kept == source and kept.text == source.text
    assert kept.program.code is not None and kept.program.code.co_filename == "a title"
    exec(kept.program.code, names := {**NAMES, "refuse": list})
    assert names["make"]()(torch.tensor([1.0]))[0].tolist() == [2, 2]
    # What is made of a program has other text, and so no code of it.
    assert timed(kept.program).code is None and replace(kept.program, name="other").code is None


def test_inside_of_a_caller() -> None:
    shown = Inlinable.of(PROGRAM, NAMES)
    assert shown is not None
    lines, result, values, names = shown.inlined("p_", ["mine"])
    assert values == {"p_torch": torch, "p_float32": torch.float32, "p_seen": NAMES["seen"]}
    assert names == {*values, "p_o0", "p_o1", "p_refuse"}
    exec(lines, made := {**values, "mine": torch.ones(2), "p_refuse": list})
    assert eval(result, made)[0].tolist() == [2, 2]


def _half(token: torch.Tensor, cache: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sort(cache[: cache.shape[0] // 2 + 1] @ w)[0]


def test_names_of_symbolic_sizes_are_slots() -> None:
    """Also inside of quotients."""
    source = host(_half)
    program = source.program
    sizes = {name for s in program.statements() if s.kind == "size" for name in s.writes}
    quotients = [s for s in program.statements() if "FloorDiv" in s.reads]
    assert sizes and quotients and all(s.reads & sizes for s in quotients)
    assert [source.calls_of(name) for name in source.operators] == [1] * len(source.operators) and source.operators


def _writes_to_a_view(token: torch.Tensor, cache: torch.Tensor, w: torch.Tensor) -> None:
    w.view(-1, 4).index_put_((torch.arange(2),), token[:, :4])


def test_a_write_to_a_view_counts_as_one_to_the_argument() -> None:
    text = host(_writes_to_a_view, [3]).text
    assert "copy_" not in text and "increment_version((a" in text  # the kernel writes to a view of the argument
