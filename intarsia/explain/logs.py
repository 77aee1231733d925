"""Logging by topics: `INTARSIA_LOGS=breaks,recompiles python program.py`, or `intarsia.set_logs("breaks", "recompiles")`.

A topic is the logger `intarsia.<topic>` of Python's logging module, silent until it is switched on. Where the program has set up
logging, its handlers receive the records; otherwise they go to stderr.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from xdsl.dialects.builtin import ModuleOp

from ..config import suggestion
from ..frontend.breaks.breaks import Break
from ..frontend.breaks.pieces import Piece, Step
from ..frontend.bytecode.instruction import disassemble
from ..frontend.entry.capture import Capture
from ..frontend.errors import SourceLine
from ..frontend.guards.checks import SizeCheck, labelled
from ..frontend.guards.guards import Guard, GuardSet
from ..ir.text import print_module
from ..passes.core.context import Remark
from ..report.record import PassRecord, is_recording, own_work, spent
from ..targets.build.program import Generated
from ..targets.triton.program import KERNELS

__all__ = ["TOPICS", "set_logs"]

TOPICS: Mapping[str, str] = types.MappingProxyType(
    {
        "breaks": "where graphs break and calls run in eager: the line, the reason, what to do, where the call goes on",
        "recompiles": "calls that fitted nothing compiled before: what differed, the line that needs it, how to avoid it",
        "guards": "what is checked before each call, and the lines that need it",
        "bytecode": "the instructions that are captured, in the normal form of all Python versions",
        "graph": "captured graphs as FX code",
        "ir": "the IR as imported and after each pass that changed it (such graphs are compiled anew, not taken from the cache)",
        "code": "the generated C++ and Triton, and the host program; why a program is not recorded as a CUDA graph",
        "fusion": "which operations become one kernel, which do not and why, with numbers (such graphs are compiled anew, too)",
        "timing": "seconds of each phase, as it ends, and of each pass",
        "cudagraphs": "why a program is not recorded as a CUDA graph",
    }
)
VARIABLE, FILE = "INTARSIA_LOGS", "INTARSIA_LOGS_FILE"
_OFF = logging.CRITICAL + 10
_LEVEL = logging.INFO


def set_logs(*topics: str, **switches: bool) -> None:
    """Switch topics on and off.

    `set_logs("breaks", "guards")` logs these and no others, `set_logs("all")` every topic, `set_logs()` none;
    `set_logs(guards=True, breaks=False)` changes the named ones only.

    Raises:
        ValueError: an unknown topic, with a suggestion; nothing is changed then.
    """
    named = _names(topics)
    _names(switches)
    if topics or not switches:
        for name in TOPICS:
            _switch(name, name in named)
    for name in [n for n in ("all", *TOPICS) if n in switches]:
        for topic in TOPICS if name == "all" else (name,):
            _switch(topic, bool(switches[name]))


def set_logs_from_environment() -> None:
    """Read `INTARSIA_LOGS`, as the package does when it is imported. Unknown topics are left out with one warning."""
    words = [w.strip().lower() for w in os.environ.get(VARIABLE, "").split(",") if w.strip()]
    unknown = [w for w in words if w != "all" and w not in TOPICS]
    if unknown:
        warnings.warn(f"the environment variable {VARIABLE}: {_unknown(unknown[0])}", RuntimeWarning, stacklevel=2)
    if words:
        set_logs(*(w for w in words if w not in unknown))


def enabled(topic: str) -> bool:
    """Whether anyone reads this topic."""
    return _LOGGERS[topic].isEnabledFor(_LEVEL)


def _names(words: Iterable[str]) -> set[str]:
    names: set[str] = set()
    for word in words:
        if word != "all" and word not in TOPICS:
            raise ValueError(_unknown(word))
        names |= set(TOPICS) if word == "all" else {word}
    return names


def _unknown(word: str) -> str:
    known = [*TOPICS, "all"]
    return f"unknown log topic {word!r}{suggestion(word, known)}; known: {', '.join(known)}"


def _switch(topic: str, on: bool) -> None:
    _LOGGERS[topic].setLevel(_LEVEL if on else _OFF)


class _ToStderr(logging.Handler):
    """Writes records to the file that was asked for; else to stderr, where the program has set up no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        text, file = f"[{record.name.rpartition('.')[2]}] {record.getMessage()}\n", os.environ.get(FILE)
        try:
            if file:
                with open(file, "a", encoding="utf-8", errors="backslashreplace") as out:
                    out.write(text)
            elif not (logging.getLogger().handlers or logging.getLogger("intarsia").handlers):
                sys.stderr.write(text)
        except (ValueError, OSError):  # a closed stream or a full disk is no reason to stop the program
            return


def _logger(topic: str) -> logging.Logger:
    logger = logging.getLogger(f"intarsia.{topic}")
    logger.setLevel(_OFF)
    if not any(isinstance(h, _ToStderr) for h in logger.handlers):
        logger.addHandler(_ToStderr())
    return logger


_LOGGERS = {topic: _logger(topic) for topic in TOPICS}


def _tell(topic: str, head: str, lines: Iterable[str] = ()) -> None:
    """One record: a headline, the rest indented."""
    if not enabled(topic):
        return
    indented = [f"    {line}".rstrip() for text in lines for line in text.splitlines() or [""]]
    _LOGGERS[topic].log(_LEVEL, "%s", "\n".join([head, *indented]))


# ---- what `history` reports ----


def start(runtime: Any) -> None:
    """A callable or piece is about to be captured."""
    if enabled("bytecode"):
        code, index = code_of(runtime.target)
        if code is None:
            _tell("bytecode", f"{runtime.name()}: not a Python function, so that it has no bytecode")
        else:
            place = f"{code.co_filename}:{code.co_firstlineno}"
            _tell("bytecode", f"{runtime.name()} ({place}), from instruction {index} on", instructions(code, index))


def captured(name: str, capture: Capture) -> None:
    """A call was captured."""
    if enabled("graph") and capture.operations:
        _tell("graph", f"{name}: {count(capture.operations, 'operation')}", [readable(capture.graph_module)])
    if enabled("guards"):
        lines = [f"{text}{f'    # {at(place)}' if place else ''}" for text, place in guard_lines(capture.guards)]
        rows = [*lines, "as a program:", *(f"    {row}" for row in capture.guards.code.splitlines())]
        _tell("guards", f"{name}: {count(len(lines), 'check')}", rows)


def recompile(runtime: Any, miss: Any, reason: str) -> None:
    """A call fitted nothing that was compiled before."""
    if not enabled("recompiles"):
        return
    code, _ = code_of(runtime.target)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    entries = len(runtime.entries)
    head = f"{runtime.name()}{where} fits none of {count(entries, 'variant')} (at most {runtime.limit} are kept)"
    _tell("recompiles", head, miss_lines(miss) or [reason])


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
    _tell("breaks", line(place), [*lines, *([f"the call goes on {' or '.join(ways)}"] if ways else [])])


def fell_back(name: str, filename: str, lineno: int, text: str, reason: str) -> None:
    """A call runs in eager."""
    if enabled("breaks"):
        _tell("breaks", f"{filename}:{lineno}: {text}", [f"{name} runs in eager", f"why: {reason}"])


# ---- what `backend` reports ----


def shows_passes() -> bool:
    """Whether someone wants to see passes at work: then nothing comes out of the cache."""
    return enabled("ir") or wants_remarks()


def wants_remarks() -> bool:
    """Whether someone wants to know what passes decided, and why."""
    return enabled("fusion") or is_recording()


def decided(remarks: Iterable[Remark]) -> None:
    """What passes have decided about one graph."""
    if enabled("fusion"):
        found = [
            f"{r.kind}: {r.message}{f'    # {r.location}' if r.location else ''}"
            for r in remarks
            if r.pass_name == "fuse"
        ]
        _tell("fusion", count(len(found), "decision"), found)


def spent_on(phase: str, seconds: float) -> None:
    """A phase has ended, or a pass."""
    if enabled("timing"):
        _tell("timing", f"{phase}: {seconds:.4f} s")


class PassLog:
    """The IR of one graph, told when a pass has changed it; `record` keeps it for recordings that are under way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.record = PassRecord(text) if is_recording() else None
        if enabled("ir"):
            _tell("ir", "as imported", [text])

    def on_pass(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        """After each pass; see `passes.core.run.run_pipeline`."""
        if phase == "after":
            spent_on(f"pass {name}", seconds)
        if phase != "after" or not (self.record is not None or enabled("ir")):
            return
        spent(name, seconds, "pass")
        with own_work():
            self._behind(name, print_module(module), seconds)

    def _behind(self, name: str, text: str, seconds: float) -> None:
        if self.record is not None:
            self.record.behind(name, text, seconds)
        if text == self.text:
            _tell("ir", f"after {name}: the same")
        else:
            _tell("ir", f"after {name}", [text])
        self.text = text


def generated(program: Generated) -> None:
    """The text that a graph became."""
    if enabled("code"):
        if program.gpu is not None:
            _tell("code", f"{KERNELS}, for Triton", [program.gpu.text])
        for unit in program.units:
            _tell("code", f"{unit.name}.cpp", [unit.text])
        _tell("code", "the host program", [program.host.text])
    if program.host.gpu is not None and program.host.not_recorded:
        for topic in ("code", "cudagraphs"):
            _tell(topic, f"not recorded as a CUDA graph: {program.host.not_recorded}")


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
