"""A target of somebody else's: text made of a module, for `lower(fn, x, target=Mine())` and `passes-opt --load mine.py --emit mine`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp

from ..passes.core.base import LEVELS, Pass
from ..passes.core.load import Loaded
from ..passes.core.plugins import left_out, line_of_import, where_of

ENTRY_POINT_GROUP = "intarsia.targets"


class Unwritten(ValueError):
    """A target does not know something in a module, or fails."""


class Target:
    """Derive from it, name it, and write. What it does not know it refuses with its name: `raise NotImplementedError(op.name)`.

    Attributes:
        name: what `target=` and `--emit` call it.
        stage: where it reads the module: behind a pass ("lower": the plain loops), or at the end of a level ("prim").
    """

    name: ClassVar[str] = ""
    stage: ClassVar[str] = "buffer"

    def write(self, module: ModuleOp) -> str:
        """The text of a module at that stage."""
        raise NotImplementedError

    def compile(self, low: Any) -> Callable[..., Any]:
        """What runs, of a lowered function (`low.source()` is the text, `low.constants` follow what `low.inputs(*args)` gives)."""
        raise TypeError(f"the target '{self.name}' writes text, and has no compile(self, low)")


def is_target(item: object) -> bool:
    """Whether `lower(target=)` takes it as a target of others: an object or a class."""
    return isinstance(item, Target) or isinstance(item, type) and issubclass(item, Target) and item is not Target


def made(item: Any) -> Target:
    """The object of a target or of its class.

    Raises:
        ValueError: it has no name.
    """
    target: Target = item() if isinstance(item, type) else item
    if not target.name:
        raise ValueError(f"the target {type(target).__qualname__} has no name: give it the class attribute 'name'")
    return target


def targets_in(found: Loaded) -> list[Target]:
    """The targets with a name that a loaded module defines, or that it imports where it is a package."""
    module, _, own = found
    kinds = [item for item in vars(module).values() if isinstance(item, type) and is_target(item)]
    named = [made(kind) for kind in kinds if vars(kind).get("name")]
    return [target for target in named if not own or type(target).__module__ == module.__name__]


def installed_targets() -> dict[str, Target]:
    """The targets that installed packages declare (entry points of the group "intarsia.targets"), by name.

    What cannot be imported, is no target, or takes a name that is taken, is left out and named once.
    """
    found: dict[str, Target] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        where = where_of(point, "target")
        try:
            item = point.load()
            target = made(item) if is_target(item) else None
        except (Exception, SystemExit) as error:
            said = traceback.format_exception_only(error)[-1].strip()
            left_out(where, f"it cannot be used: {said}{line_of_import(error)}")
            continue
        if target is None:
            left_out(where, f"it is nothing that derives from Target, but {item!r:.80}")
        elif target.name in found:
            left_out(where, f"another installed target is called '{target.name}'")
        else:
            found[target.name] = target
    return found


def text_of(target: Target, module: ModuleOp) -> str:
    """What a target writes.

    Raises:
        Unwritten: it refuses something, or fails; says what and where.
    """
    try:
        text = target.write(module)
    except Exception as error:
        what = "it does not write" if isinstance(error, NotImplementedError) else f"it fails: {type(error).__name__}:"
        places = traceback.extract_tb(error.__traceback__)
        theirs = [p for p in places if p.filename == type(target).write.__code__.co_filename] or places
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}"
        raise Unwritten(f"the target '{target.name}': {what} {error} ({where})") from error
    if not isinstance(text, str):
        raise Unwritten(f"the target '{target.name}' gives {type(text).__name__}, not text")
    return text


def up_to(stage: str, passes: Sequence[Pass]) -> list[Pass]:
    """The beginning of a pipeline that ends at a stage: with the last pass of that name, or with the level. All where it has no such end."""
    if stage in LEVELS:
        most = LEVELS.index(stage)
        return [p for p in passes if max(LEVELS.index(p.level), LEVELS.index(p.gives or p.level)) <= most]
    last = max((k for k, item in enumerate(passes) if item.name == stage), default=len(passes))
    return list(passes[: last + 1])


def check_level(target: Target, levels: Collection[str], passes: Sequence[Pass]) -> None:
    """Whether a module is at the level that a target reads.

    Args:
        levels: those that the module is legal at.
        passes: a pipeline with the pass of the target's stage.

    Raises:
        Unwritten: it is at another, or there is no such stage.
    """
    levels_of = {item.name: item.gives or item.level for item in passes} | {level: level for level in LEVELS}
    wanted = levels_of.get(target.stage)
    if wanted is None:
        raise Unwritten(
            f"the target '{target.name}' reads modules behind '{target.stage}', which is no pass and no level"
        )
    if wanted not in levels:
        raise Unwritten(
            f"the target '{target.name}' reads modules behind '{target.stage}', at level '{wanted}'; "
            f"this one is at {' or '.join(sorted(levels)) or 'no level'}"
        )
