"""The messages that a user can meet, read from the code, and where the pages say what to do about them.

A page takes messages in with a line `<!-- messages: FILES ... [: CLASSES ...] -->`: those of the files (patterns, from
the repository's root) that are raised as one of the classes, or warned of (class `warning`). `tests/test_site.py`
checks that each message stands on one page.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cures import cure_of

from intarsia.frontend.breaks.hints import GENERAL, remedy

ROOT = Path(__file__).parents[2]
ROOMS = ("intarsia", "frontend", "ir", "passes", "targets")
MARK = re.compile(r"^<!-- messages: (?P<files>[^:>]+?)(?: : (?P<classes>[^>]+?))? -->$", re.M)
HOLE = "…"

# Raised for another part of the compiler, which catches it, or as the program's own error, which eager raises alike.
INSIDE = frozenset(
    [
        "UserRaise",
        "Prevented",
        "InterpreterError",
        "NotOne",
        "refused",
        "_refuse",
        "Refused",
        "IndexError",
        "AttributeError",
        "escapes",
        "_refusal",
        "PermissionError",
        "name_error",
        "NotImplementedError",
        "AssertionError",
        "must_run",
        "_refused",
        "NoRoom",
        "UnplannedResult",
        "ImportError",
        "unbound_local",
        "_placed",
        "_outside",
        "InternalError",
        "FilterError",
        "_looked_at",
        "Recompiled",
        "LookupError",
        "NotCanonical",
        "DriverError",
        "_with_reproducer",
        "NetworkXUnbounded",
        "Undecided",
        "_stopped",
        "unknown_number",
        "ProgramRaised",
        "Overridden",
        "eagers_error",
        "Undrawn",
        "KeyError",
        "with_traceback",
        "Busy",
        "UnknownDType",
        "Misaligned",
        "NoContext",
        "MemoryError",
        "NotTimed",
        "_reproducible",
        "unsupported",
        "UnusableLibrary",
        "StopIteration",
        "SystemExit",
        "KeyboardInterrupt",
        "Leaf",
    ]
)
WARNINGS = ("warn", "warning", "warn_once", "warning_once")


@dataclass(frozen=True, order=True)
class Message:
    """One place in the code that raises or warns: `text` has a hole where a value stands."""

    file: str
    line: int
    kind: str
    text: str
    advice: str = ""


@functools.cache
def messages() -> tuple[Message, ...]:
    """All of them, in the order of files and lines; those whose text is made elsewhere are left out."""
    return tuple(
        message
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.relative_to(ROOT).parts[1] not in ROOMS  # intarsia/frontend is a link to frontend
        for message in _of_file(path)
    )


def _of_file(path: Path) -> Iterator[Message]:
    file = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call, kind = node.exc, _name(node.exc.func)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WARNINGS:
            call, kind = node, "warning"
        else:
            continue
        texts = [" ".join(_text(argument).split()) for argument in call.args]
        said = next((text for text in texts if text.strip(f"{HOLE}: .,'\"()")), "")
        if said and kind not in INSIDE:
            named = [_text(k.value) for k in call.keywords if k.arg == "advice"]
            behind = texts[texts.index(said) + 1 :] if kind in ("ExportError", "GraphBreak", "Unsupported") else []
            advice = next((" ".join(t.split()) for t in (*named, *behind) if t.strip(HOLE)), "")
            yield Message(file, node.lineno, kind, said, advice)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(node: ast.expr) -> str:
    """The text of an expression, with a hole for each part that is no constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\d*\.?\d*[sdrfg]", HOLE, node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{HOLE}+", HOLE, "".join(_text(part) for part in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left)
    return HOLE


def taken(mark: re.Match[str]) -> list[Message]:
    """The messages that one line of a page takes in."""
    patterns = [re.escape(pattern).replace(r"\*", "[^/]*") for pattern in mark["files"].split()]
    files, classes = re.compile("|".join(patterns)), (mark["classes"] or "").split()
    return [
        message for message in messages() if files.fullmatch(message.file) and (not classes or message.kind in classes)
    ]


def expanded(page: str) -> str:
    """The page with the messages where its lines ask for them, each once, with what to do where that is said of one."""

    def rows(mark: re.Match[str]) -> str:
        found: dict[str, str] = {}
        for message in taken(mark):
            reason = message.kind in ("GraphBreak", "Unsupported")
            advice = message.advice or (remedy(message.text) if reason else "")
            advice = "" if advice == GENERAL else _plain(advice)
            found.setdefault(message.text, advice or cure_of(message.file, message.text))
        return "".join(f"- {_code(text)}{': ' + advice if advice else ''}\n" for text, advice in found.items())

    return MARK.sub(rows, page)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)
