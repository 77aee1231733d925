"""Topics of logging: what there is, and how it is switched.

A topic is the logger `intarsia.<topic>` of Python's logging module, silent until it is switched on; `+topic` lets the details through
(the level DEBUG). Where the program has set up logging, its handlers receive the records; otherwise they go to stderr, or to a file.
"""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings
from collections.abc import Iterable, Mapping

from ..config import suggestion

TOPICS: Mapping[str, str] = types.MappingProxyType(
    {
        "breaks": "where graphs break and calls run in eager: the line, the reason, what to do, where the call goes on",
        "recompiles": "calls that fitted nothing compiled before: what differed, the line that needs it, how to avoid it",
        "guards": "what is checked before each call, and the lines that need it",
        "sizes": "which sizes and numbers are symbols, of which arguments, and what is assumed of them",
        "bytecode": "the instructions that are captured, in the normal form of all Python versions",
        "graph": "captured graphs as FX code; +: the shape and type of each value",
        "effects": "what a captured call changes beside its results: arguments, attributes, globals",
        "entry": "the function that checks a call, fetches the graph's inputs and carries out the effects, as Python",
        "aten": "graphs in ATen operators, as they are imported (such graphs are compiled anew, not taken from the cache)",
        "joint": "forward and backward as one graph, before it is split",
        "partition": "what forward saves for backward, and what backward computes again; +: each tensor that is saved",
        "backward": "when the halves of a graph with gradients are compiled",
        "distributed": "how a graph is split, so that its gradients are sent while the rest is computed",
        "passes": "each pass, how many operations it left, and its seconds (compiled anew, too)",
        "ir": "the IR as imported and after each pass that changed it (compiled anew, too)",
        "remarks": "what the passes decided, and why; without those of fusion (compiled anew, too)",
        "fusion": "which operations become one kernel, which do not and why, with numbers (compiled anew, too)",
        "statistics": "what the passes counted (compiled anew, too)",
        "memory": "bytes of the memory plan; +: each value, its place, and the steps in which it is needed",
        "cost": "bytes moved and operations of a program; +: of each step",
        "calls": "the library calls that are left in a program, with the user's lines",
        "code": "the generated C++ and Triton, and the host program; why a program is not recorded as a CUDA graph",
        "kernels": "of that the kernels alone: C++ and Triton",
        "host": "of that the host program alone",
        "compiler": "what the C++ compiler and Triton were given, and how long they took; +: the commands",
        "cache": "what is found in the cache of compiled code, kept there and dropped; +: its folders",
        "autotuning": "what was measured to choose between kernels and library calls; +: what was known of earlier runs",
        "cudagraphs": "CUDA graphs: recordings, and why a program is not recorded",
        "timing": "seconds of each phase, as it ends, and of each pass",
    }
)
VARIABLE, FILE = "INTARSIA_LOGS", "INTARSIA_LOGS_FILE"
_OFF = logging.CRITICAL + 10
_INFO, _DETAIL = logging.INFO, logging.DEBUG


def set_logs(*topics: str, **switches: bool) -> None:
    """Switch topics on and off.

    `set_logs("breaks", "guards")` logs these and no others, `set_logs("all")` every topic, `set_logs("all", "-ir")` all but one,
    `set_logs("+memory")` one with its details, `set_logs()` none; `set_logs(guards=True, breaks=False)` changes the named ones only.
    `set_logs("help")` prints what there is, and changes nothing.

    Raises:
        ValueError: an unknown topic, with a suggestion; nothing is changed then.
    """
    if "help" in topics:
        print(topics_text(), file=sys.stderr, end="")
        return
    levels = _levels(topics)
    _levels(switches)
    if topics or not switches:
        for name in TOPICS:
            _LOGGERS[name].setLevel(levels.get(name, _OFF))
    for name in [n for n in ("all", *TOPICS) if n in switches]:
        for topic in TOPICS if name == "all" else (name,):
            _LOGGERS[topic].setLevel(_INFO if switches[name] else _OFF)


def set_logs_from_environment() -> None:
    """Read `INTARSIA_LOGS`, as the package does when it is imported. Unknown topics are left out with one warning."""
    words = [w.strip().lower() for w in os.environ.get(VARIABLE, "").split(",") if w.strip()]
    unknown = [w for w in words if _split(w)[1] not in ("all", "help", *TOPICS)]
    if unknown:
        warnings.warn(
            f"the environment variable {VARIABLE}: {_unknown(_split(unknown[0])[1])}", RuntimeWarning, stacklevel=2
        )
    if words:
        set_logs(*(w for w in words if w not in unknown))


def topics_text() -> str:
    """The topics, a line each, and how they are switched."""
    width = max(map(len, TOPICS))
    lines = [f"topics of {VARIABLE} and of intarsia.set_logs:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in TOPICS.items()]
    lines += [f"'all' is all of them; +topic adds details, -topic leaves one out: {VARIABLE}=all,-ir,+memory"]
    return "\n".join([*lines, f"{FILE}=file adds them to a file"]) + "\n"


def enabled(topic: str) -> bool:
    """Whether anyone reads this topic."""
    return _LOGGERS[topic].isEnabledFor(_INFO)


def detailed(topic: str) -> bool:
    """Whether anyone wants its details."""
    return _LOGGERS[topic].isEnabledFor(_DETAIL)


def tell(topic: str, head: str, lines: Iterable[str] = ()) -> None:
    """One record: a headline, the rest indented."""
    if not enabled(topic):
        return
    indented = [f"    {line}".rstrip() for text in lines for line in text.splitlines() or [""]]
    _LOGGERS[topic].log(_INFO, "%s", "\n".join([head, *indented]))


def _split(word: str) -> tuple[str, str]:
    """The sign in front of a topic, and the topic."""
    return (word[0], word[1:]) if word[:1] in ("+", "-") else ("", word)


def _levels(words: Iterable[str]) -> dict[str, int]:
    """The level of each topic that is named. What stands later counts, but for `all`, which is what the others add to."""
    levels: dict[str, int] = {}
    for word in sorted(words, key=lambda word: _split(word)[1] != "all"):
        sign, name = _split(word)
        if name != "all" and name not in TOPICS:
            raise ValueError(_unknown(name))
        level = {"+": _DETAIL, "-": _OFF, "": _INFO}[sign]
        levels |= dict.fromkeys(TOPICS if name == "all" else (name,), level)
    return levels


def _unknown(word: str) -> str:
    known = [*TOPICS, "all", "help"]
    return f"unknown log topic {word!r}{suggestion(word, known)}; known: {', '.join(known)}"


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
