"""The text of a pipeline: `canonicalize,fuse{max-ops=8}`, and `default{after=fuse: mine; without=cse}` for the passes of a road.

pipeline = element, element ...        an element is a pass with its options, or `default`
default{clause; clause ...}            a clause is `after=NAME: pipeline`, `before=NAME: pipeline` or `without=NAME, NAME ...`
builtin.module(pipeline)               the same as the pipeline: passes run on modules
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias

from .base import Pass, PassError

DEFAULT = "default"
NAME = re.compile(r"[\w.-]+")


class PipelineError(PassError):
    """A pipeline that cannot be built: an unknown pass or option, a cycle, two passes of one name.

    Attributes:
        cycle: the passes of a cycle.
    """

    def __init__(self, message: str, cycle: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


@dataclass(frozen=True)
class Insertion:
    """What stands beside a pass of the default pipeline: `after=fuse: mine,cse`; `where` is "after" or "before"."""

    where: str
    name: str
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class Default:
    """The default pipeline as an element of another one, with others inserted and some left out."""

    insertions: tuple[Insertion, ...] = ()
    without: tuple[str, ...] = ()


# A pass by name, with its options as text; or the default pipeline.
Element: TypeAlias = tuple[str, dict[str, str]] | Default

_WRAPPED = re.compile(r"^\s*(?:builtin\.)?module\((.*)\)\s*$", re.DOTALL)


def split_pipeline(text: str) -> list[Element]:
    """`a,b{x=1,y=2}` -> [("a", {}), ("b", {"x": "1", "y": "2"})].

    Raises:
        PipelineError: the text has another form; the message shows the place.
    """
    wrapped = _WRAPPED.match(text)
    return [_element(part, text) for part in _split(wrapped[1] if wrapped else text, ",", text)]


def _element(part: str, text: str) -> Element:
    name, brace, rest = part.partition("{")
    name = name.strip()
    if not name or (brace and not rest.endswith("}")):
        raise PipelineError(f"malformed pipeline '{text}': expected name or name{{option=value}}, found '{part}'")
    if "(" in name or ")" in name:
        raise PipelineError(
            f"malformed pipeline '{text}': passes run on whole modules, so builtin.module(...) around all of them is the "
            f"one nesting there is, found '{part}'"
        )
    inside = rest.removesuffix("}")
    if name == DEFAULT:
        return _default(inside, text)
    options: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in inside.split(","))):
        key, equals, value = entry.partition("=")
        if not equals:
            raise PipelineError(f"malformed pipeline '{text}': expected option=value, found '{entry}'")
        if key.strip() in options:
            raise PipelineError(f"pass '{name}': option '{key.strip()}' is given twice")
        options[key.strip()] = value.strip()
    return name, options


def _default(inside: str, text: str) -> Default:
    insertions: list[Insertion] = []
    without: list[str] = []
    for clause in _split(inside, ";", text):
        what, equals, rest = clause.partition("=")
        what = what.strip()
        if what == "without" and equals:
            without += [name.strip() for name in rest.split(",")]
            continue
        name, colon, inserted = rest.partition(":")
        if what not in ("after", "before") or not equals or not colon or not inserted.strip():
            raise PipelineError(
                f"malformed pipeline '{text}': expected after=pass: pipeline, before=pass: pipeline or without=passes, "
                f"found '{clause}'"
            )
        insertions.append(Insertion(what, name.strip(), tuple(split_pipeline(inserted))))
    return Default(tuple(insertions), tuple(without))


def _split(part: str, at: str, text: str) -> list[str]:
    """The pieces between the separators that stand in no braces."""
    if not part.strip():
        return []
    pieces, depth = [""], 0
    for char in part:
        depth += (char == "{") - (char == "}")
        if depth < 0:
            raise PipelineError(f"malformed pipeline '{text}': a brace is closed that was not opened")
        if char == at and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    if depth != 0:
        raise PipelineError(f"malformed pipeline '{text}': a brace is not closed")
    return [piece.strip() for piece in pieces]


def with_insertions(
    element: Default, passes: Sequence[Pass], made: Callable[[Sequence[Element]], list[Pass]]
) -> list[Pass]:
    """The passes of the default pipeline with what the element inserts and leaves out; behind a pass that stands twice, behind both.

    Raises:
        PipelineError: it names a pass that is not among them.
    """
    names = [name for item in passes for name in (item.name, item.replaces) if name]
    for name in (*(i.name for i in element.insertions), *element.without):
        if name not in names:
            raise PipelineError(f"the default pipeline has no pass '{name}' here{suggest(name, names)}")
    found: list[Pass] = []
    for item in passes:
        beside = [i for i in element.insertions if i.name in (item.name, item.replaces)]
        found += [p for i in beside if i.where == "before" for p in made(i.elements)]
        found += [item] if _keeps(item, element) else []
        found += [p for i in beside if i.where == "after" for p in made(i.elements)]
    return found


def _keeps(item: Pass, element: Default) -> bool:
    """Whether the element leaves a pass of the default pipeline in."""
    return not {item.name, item.replaces} & set(element.without)


def make_pass(kind: type[Pass], options: Mapping[str, str]) -> Pass:
    """A pass with its options given as text.

    Raises:
        PipelineError: unknown option, or a value of the wrong kind.
    """
    known = {f.name.replace("_", "-"): f for f in fields(kind)}
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option not in known:
            has = ", ".join(sorted(known, key=lambda k: k == "remarks"))
            raise PipelineError(f"pass '{kind.name}' has no option '{option}'{suggest(option, known)}; it has: {has}")
        chosen = known[option]
        values[chosen.name] = _option_value(kind.name, option, value, chosen.default)
    try:
        return kind(**values)
    except PassError as error:  # a number that is too small
        raise PipelineError(str(error)) from None


def suggest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?", or ""."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _option_value(name: str, option: str, text: str, default: Any) -> Any:
    """The text as the type of the option's default value."""
    kind = type(default)
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind in (int, float, str):
            return kind(text)
    except (KeyError, ValueError):
        raise PipelineError(f"pass '{name}': option '{option}' takes {_KINDS[kind]}, not '{text}'") from None
    raise PipelineError(f"pass '{name}': option '{option}' cannot be given as text")


_KINDS = {bool: "true or false", int: "an integer", float: "a number"}


def pipeline_text(passes: Iterable[Pass]) -> str:
    """The pipeline in the syntax that `Registry.parse` reads."""
    return ",".join(p.spec for p in passes)


def describe_options(kind: type[Pass]) -> str:
    """The options of a pass with their defaults, without `remarks`, which all have: `max-ops=64, reuse=true`."""
    shown = []
    for f in fields(kind):
        if f.name == "remarks":
            continue
        default = (
            "" if f.default is MISSING else f"={str(f.default).lower() if isinstance(f.default, bool) else f.default}"
        )
        shown.append(f.name.replace("_", "-") + default)
    return ", ".join(shown)
