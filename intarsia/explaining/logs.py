"""Logging by topics: `INTARSIA_LOGS=breaks,recompiles python program.py`, or `intarsia.set_logs("breaks", "recompiles")`.

What is told of captures, of passes and of halves; `topics` has the topics, `program_logs` what is told of finished programs.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from xdsl.dialects.builtin import ModuleOp

from ..frontend.breaks.breaks import Break
from ..frontend.breaks.pieces import Piece, Step
from ..frontend.bytecode.instruction import disassemble
from ..frontend.entry.capture import Capture
from ..frontend.errors import SourceLine
from ..frontend.guards.checks import SizeCheck, labelled
from ..frontend.guards.guards import Guard, GuardSet
from ..ir.text import print_module
from ..partition.choose import Partition
from ..passes.core.context import Diagnostics
from ..reports.record import PassRecord, is_recording, own_work, spent
from .topics import detailed, enabled, tell

# ---- what `history` reports ----


def start(runtime: Any) -> None:
    """A callable or piece is about to be captured."""
    if enabled("bytecode"):
        code, index = code_of(runtime.target)
        if code is None:
            tell("bytecode", f"{runtime.name()}: not a Python function, so that it has no bytecode")
        else:
            place = f"{code.co_filename}:{code.co_firstlineno}"
            tell("bytecode", f"{runtime.name()} ({place}), from instruction {index} on", instructions(code, index))


def captured(name: str, capture: Capture) -> None:
    """A call was captured."""
    if enabled("graph") and capture.operations:
        lines = [readable(capture.graph_module), *(_shapes(capture.graph_module) if detailed("graph") else ())]
        tell("graph", f"{name}: {count(capture.operations, 'operation')}", lines)
    if enabled("sizes"):
        checks = [part for part in capture.guards if isinstance(part, SizeCheck)]
        found = [f"{c.symbol_text(s)} is {source.name()}{place}" for c in checks for s, source, place in c.bindings]
        rows = [f"{text}{f'    # {at(place)}' if place else ''}" for c in checks for text, place in size_lines(c)]
        tell("sizes", f"{name}: {count(len(found), 'symbol')}", [*found, *rows])
    if enabled("effects"):
        written = ["inputs of the graph are written to"] if capture.writes else []
        tell("effects", f"{name}: {count(len(capture.changes) + len(written), 'effect')}", [*capture.changes, *written])
    if enabled("entry"):
        tell("entry", name, [capture.entry.text()])
    if enabled("guards"):
        lines = [f"{text}{f'    # {at(place)}' if place else ''}" for text, place in guard_lines(capture.guards)]
        rows = [*lines, "as a program:", *(f"    {row}" for row in capture.guards.code.splitlines())]
        tell("guards", f"{name}: {count(len(lines), 'check')}", rows)


def recompile(runtime: Any, miss: Any, reason: str) -> None:
    """A call fitted nothing that was compiled before."""
    if not enabled("recompiles"):
        return
    code, _ = code_of(runtime.target)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    entries = len(runtime.entries)
    head = f"{runtime.name()}{where} fits none of {count(entries, 'variant')} (at most {runtime.limit} are kept)"
    tell("recompiles", head, miss_lines(miss) or [reason])


def broke(name: str, capture: Capture | None, broken: Break) -> None:
    """A graph broke."""
    if not enabled("breaks"):
        return
    place = broken.place
    after = (
        f"in {place.function}, after {count(capture.operations, 'operation')} of {name}" if capture else f"in {name}"
    )
    lines = [after, *callers(broken)]
    lines += [f"why: {broken.reason}", f"what to do: {broken.advice}"]
    ways = [] if capture is None else where_it_goes_on(capture)
    tell("breaks", line(place), [*lines, *([f"the call goes on {' or '.join(ways)}"] if ways else [])])


def fell_back(name: str, filename: str, lineno: int, text: str, reason: str) -> None:
    """A call runs in eager."""
    if enabled("breaks"):
        tell("breaks", f"{filename}:{lineno}: {text}", [f"{name} runs in eager", f"why: {reason}"])


# ---- what `backend` reports ----


def shows_passes() -> bool:
    """Whether someone wants to see passes at work: then nothing comes out of the cache."""
    return any(map(enabled, ("ir", "passes", "statistics", "aten"))) or wants_remarks()


def wants_remarks() -> bool:
    """Whether someone wants to know what passes decided, and why."""
    return enabled("fusion") or enabled("remarks") or is_recording()


def decided(diagnostics: Diagnostics) -> None:
    """What passes have decided about one graph, and what they counted."""
    for topic in ("fusion", "remarks"):
        if enabled(topic):
            found = [r for r in diagnostics.remarks if (r.pass_name == "fuse") == (topic == "fusion")]
            lines = [
                f"{'' if topic == 'fusion' else f'{r.pass_name}: '}{r.kind}: {r.message}"
                f"{f'    # {r.location}' if r.location else ''}"
                for r in found
            ]
            tell(topic, count(len(found), "decision"), lines)
    if enabled("statistics"):
        table = diagnostics.statistics
        rows = [f"{name}: {what}: {number}" for name, counts in table.items() for what, number in counts.items()]
        tell("statistics", count(len(rows), "count"), rows)


def spent_on(phase: str, seconds: float) -> None:
    """A phase has ended, or a pass."""
    if enabled("timing"):
        tell("timing", f"{phase}: {seconds:.4f} s")


class PassLog:
    """The IR of one graph, told when a pass has changed it; `record` keeps it for recordings that are under way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.record = PassRecord(text) if is_recording() else None
        if enabled("ir"):
            tell("ir", "as imported", [text])

    def on_pass(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        """After each pass; see `passes.core.run.run_pipeline`."""
        if phase == "after":
            spent_on(f"pass {name}", seconds)
            if enabled("passes"):
                size = sum(1 for _ in module.walk())
                tell("passes", f"{name}: {count(size, 'operation')}, {seconds:.4f} s")
        if phase != "after" or not (self.record is not None or enabled("ir")):
            return
        spent(name, seconds, "pass")
        with own_work():
            self._behind(name, print_module(module), seconds)

    def _behind(self, name: str, text: str, seconds: float) -> None:
        if self.record is not None:
            self.record.behind(name, text, seconds)
        if text == self.text:
            tell("ir", f"after {name}: the same")
        else:
            tell("ir", f"after {name}", [text])
        self.text = text


def imported(graph: fx.GraphModule, half: str = "") -> None:
    """A graph in ATen operators is about to become IR."""
    if enabled("aten"):
        tell("aten", half or "a graph without gradients", [readable(graph)])


def joint(graph: fx.GraphModule) -> None:
    """Forward and backward as one graph."""
    if enabled("joint"):
        tell("joint", count(len(graph.graph.nodes), "node"), [readable(graph)])


def partitioned(found: Partition) -> None:
    """What forward saves for backward."""
    if enabled("partition"):
        again = ", ".join(f"{number} x {name}" for name, number in found.again.items())
        saved = [
            f"{s.name}: {s.type}, {s.bytes:,} bytes{f' in {s.module}' if s.module else ''}{f'    # {at(s.place)}' if s.place else ''}"
            for s in found.saved
        ]
        head = f"{count(len(saved), 'tensor')} saved, {found.bytes:,} bytes (from {found.least:,} to {found.most:,})"
        tell("partition", head, [*(saved if detailed("partition") else ()), f"computed again: {again or 'nothing'}"])


def half(name: str, graph: fx.GraphModule) -> None:
    """A half of a graph with gradients is about to be compiled."""
    if enabled("backward"):
        tell("backward", f"{name}: {count(len(graph.graph.nodes), 'node')} are compiled")


def split(parts: int, bucket: int) -> None:
    """A graph is compiled in parts, so that gradients are sent early."""
    tell("distributed", f"{count(parts, 'part')}, for buckets of {bucket:,} bytes")


# ---- words ----


def count(number: int, word: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def at(place: SourceLine) -> str:
    """`file:line`."""
    return f"{place.filename}:{place.lineno}"


def line(place: SourceLine) -> str:
    """`file:line: text`."""
    return f"{at(place)}: {place.text}" if place.text else at(place)


def callers(broken: Break) -> list[str]:
    """The lines through which the program came to a break, innermost first."""
    return [f"called from {line(f)}" for f in broken.frames[::-1] if f != broken.place][:5]


def _shapes(gm: fx.GraphModule) -> Iterator[str]:
    """The value of each node, as far as it is known."""
    for node in gm.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch.Tensor):
            yield f"{node.name}: {str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}, {value.device}"


def readable(gm: fx.GraphModule) -> str:
    """A graph as Python, with the user's lines."""
    return str(gm.print_readable(print_output=False)).strip()


def code_of(target: Any) -> tuple[types.CodeType | None, int]:
    """The code object that a capture of `target` begins in, and the instruction."""
    if isinstance(target, Piece):
        return target.code, target.ip
    function = target.forward if isinstance(target, nn.Module) else target
    function = getattr(function, "func", function)
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None), 0


def instructions(code: types.CodeType, first: int) -> list[str]:
    """The normal form from an instruction on: source line where it changes, number, operation, argument."""
    out, before = [], None
    for index, ins in enumerate(disassemble(code).instructions):
        if index >= first:
            out.append(f"{ins.line if ins.line != before else '':>6} {index:>4} {ins}")
            before = ins.line
    return out


def where_it_goes_on(capture: Capture) -> list[str]:
    """The lines on which a call may go on after the graph break of `capture`."""
    return list(dict.fromkeys(f"in {piece.code.co_name} at line {piece.line}" for piece in next_pieces(capture)))


def next_pieces(capture: Capture) -> list[Piece]:
    """The pieces that may follow the graph break of `capture`: the rest of the innermost frame that was split."""
    steps = [value for value in capture.namespace.values() if isinstance(value, Step)]
    return [piece for piece, _ in steps[0].pieces] if steps else []


def guard_lines(guards: GuardSet) -> Iterator[tuple[str, SourceLine | None]]:
    """Each check as a sentence, with the user's line that needs it where that is known."""
    for part in guards:
        if isinstance(part, Guard):
            text = f"{part.source.name()}: {_same(part.expected)}" if part.kind == "is" else str(part)
            yield text, None if part.place is None else SourceLine(*part.place)
        elif hasattr(part, "facts"):
            for facts in part.facts:
                yield f"{facts.source.name()}: {facts}", facts.place()
        elif hasattr(part, "relations"):
            yield from size_lines(part)
        else:
            yield str(part), None


def _same(value: Any) -> str:
    """An object that is held by identity: its kind and name, not its contents."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"the same {kind} {str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return f"the same {kind}"
    return f"the same {'class' if isinstance(value, type) else kind} {name}"


def size_lines(check: SizeCheck) -> Iterator[tuple[str, SourceLine | None]]:
    """Relations between sizes, in the words of the arguments."""
    labels = {check.symbol_text(symbol): f"{source.name()}{place}" for symbol, source, place in check.bindings}

    def spell(text: str) -> str:
        return re.sub(r"\bs\d+\b", lambda m: labels.get(m.group(), m.group()), text)

    for source, place, expr in check.equations:
        yield f"{source.name()}{place} == {labelled(check.symbol_text(expr), labels)}", None
    for relation, line_of in check.relations.items():
        yield labelled(relation, labels), line_of


def miss_lines(miss: Any) -> list[str]:
    """Why a call did not fit: what, which line needs it, how to avoid it."""
    if miss is None:
        return []
    out = [f"{miss.part}: expected {miss.expected}, got {miss.got}"]
    out += [f"needed by {line(miss.place)}"] if miss.place is not None else []
    return [*out, *([f"to avoid it: {miss.advice}"] if miss.advice else [])]
