"""What a lowered function shows of itself: a summary of a few lines, a page for notebooks, the kernels' texts, differences."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ..ir.dialects import loop
from ..ir.syntax import visible
from ..ir.text import parse_module, print_module
from ..targets.build.program import Generated
from .cost import Work
from .logs import count
from .roofline import short_number, size_of
from .text import short

if TYPE_CHECKING:
    from .stages import Lowered

_SHOWN = 8  # kernels, and library calls, of a summary
_LINES = 2000  # of a text on a page


@dataclass(frozen=True)
class StagedKernel:
    """One generated kernel.

    Attributes:
        name: its name in the generated text.
        lines: the user's lines that it computes (`file:line`).
        calls: how many steps of the program launch it.
        bytes, operations: of one launch, as in `Work`.
        text: its C++ or Triton.
        ir: its loops, as text.
    """

    name: str
    lines: tuple[str, ...]
    calls: int
    bytes: int
    operations: int
    text: str
    ir: str

    def __str__(self) -> str:
        return self.text


def kernels_of(ir: str, generated: Generated, works: Sequence[Work]) -> tuple[StagedKernel, ...]:
    """The kernels of a program in the order of their first launch."""
    calls = Counter(work.name for work in works)
    first = {work.name: work for work in reversed(works)}
    found = [op for op in parse_module(ir).body.block.ops if isinstance(op, loop.Kernel)]
    kernels = {op["sym_name"]: op for op in found}
    texts = kernel_texts(generated)
    return tuple(
        StagedKernel(
            name,
            tuple(kernels[name].get("lines", ())),
            calls[name],
            first[name].bytes,
            first[name].operations,
            texts.get(f"{name}_body", "") + texts.get(name, ""),
            print_module(kernels[name]),
        )
        for name in dict.fromkeys(work.name for work in works)
        if name in kernels
    )


# A function of generated C++ or Triton, with the comments and decorators in front of it.
_CPP = re.compile(r'(?:^//[^\n]*\n)*^extern "C" int (\w+)\(.*?^}\n', re.DOTALL | re.MULTILINE)
_TRITON = re.compile(r"(?:^#[^\n]*\n)*^@triton[^\n]*\n^def (\w+)\(.*?(?=^[#@]|\Z)", re.DOTALL | re.MULTILINE)


def kernel_texts(generated: Generated) -> dict[str, str]:
    """The text of each kernel, by name."""
    found = {match[1]: match[0] for unit in generated.units for match in _CPP.finditer(unit.text)}
    if generated.gpu is not None:
        found |= {match[1]: match[0].rstrip() + "\n" for match in _TRITON.finditer(generated.gpu.text)}
    return found


def summary(low: Lowered) -> str:
    """A few lines: what there is, and how to look at it."""
    works = low.works()
    kernels = {k.name: k for k in low.kernels}
    library = Counter(w.name for w in works if w.name not in kernels)
    nodes = [n for n in low.fx.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    moved, operations = sum(w.bytes for w in works), sum(w.operations for w in works)
    at_once = low.memory_plan.peak
    lines = [
        f"Lowered for {low.target}: {count(len(nodes), 'operation')}, {count(len(kernels), 'kernel')}, "
        f"{count(sum(library.values()), 'library call')}",
        *_some((f"  kernel   {_kernel_line(k)}" for k in kernels.values()), len(kernels)),
        *_some((f"  library  {name}{f'  x{n}' if n > 1 else ''}" for name, n in library.items()), len(library)),
        f"  moves {size_of(moved)}, {short_number(operations)} operations, {size_of(at_once)} in use at once",
        f"  stages   {', '.join(low.levels)}: ir(level); source(), host(), as_text(stage), run(level, *args), compile()",
    ]
    return "\n".join(lines)


def _kernel_line(kernel: StagedKernel) -> str:
    places = ", ".join(short(line) for line in kernel.lines[:3]) + (" ..." if len(kernel.lines) > 3 else "")
    return f"{kernel.name}{f'  x{kernel.calls}' if kernel.calls > 1 else ''}  {places}".rstrip()


def _some(rows: Iterator[str], of: int) -> list[str]:
    found = [row for row, _ in zip(rows, range(_SHOWN), strict=False)]
    return found if of <= _SHOWN else [*found, f"           and {of - _SHOWN} others"]


def page(low: Lowered) -> str:
    """The summary, and each stage to unfold, as HTML; nothing of the program's text is taken for markup."""
    made = {"fx": low.as_text("fx")} | {level: low.ir(level) for level in low.levels}
    made |= {"kernels": low.triton() or low.source(), "host program": low.host(), "memory": str(low.memory_plan)}
    parts = [f"<pre>{escape(visible(summary(low)))}</pre>"]
    for name, text in made.items():
        parts.append(f"<details><summary>{escape(name)}</summary><pre>{escape(visible(_cut(text)))}</pre></details>")
    return f"<div>{''.join(parts)}</div>"


def _cut(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _LINES
    return "\n".join([*lines[:_LINES], f"... and {more} lines more: as_text(stage) has all"]) if more > 0 else text


def difference(first: Mapping[str, str], second: Mapping[str, str], stage: str | None) -> str:
    """Where two functions' stages part: the first stage that both have and whose texts differ, or the one named.

    Raises:
        ValueError: one of them has no such stage.
    """
    both = [name for name in first if name in second]
    if stage is None:
        stage = next((name for name in both if first[name] != second[name]), None)
    if stage is None:
        only = ", ".join(name for name in (*first, *second) if name not in both)
        return f"the same at every stage{f'; only one has {only}' if only else ''}"
    for stages in (first, second):
        if stage not in stages:
            raise ValueError(f"no stage {stage!r}; known: {', '.join(stages)}")
    if first[stage] == second[stage]:
        return f"the same at stage {stage!r}"
    before = both[both.index(stage) - 1] if both.index(stage) else None
    head = f"the same up to {before!r}\n" if before is not None and first[before] == second[before] else ""
    lines = difflib.unified_diff(
        first[stage].splitlines(), second[stage].splitlines(), f"this: {stage}", f"other: {stage}", n=2, lineterm=""
    )
    return head + "\n".join(lines)
