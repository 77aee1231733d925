"""Running a pipeline: each pass at its level, verified where others wrote it, and a reproducer where one fails."""

from __future__ import annotations

import hashlib
import operator
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.syntax import visible
from ...ir.text import print_module
from ..analysis.machine import Machine
from .base import LEVELS, Pass, PassError
from .context import CompileContext
from .levels import first_illegal, module_levels
from .limit import TooLong, run_within
from .manager import is_own
from .plugins import installed
from .preconditions import check

LOADED = "__passes_opt_file__"  # of a module that `passes-opt --load` made: the file, as it was named


class PassFailure(PassError):
    """A pass raised an exception or left a module that does not verify. The cause is chained.

    Attributes:
        pass_name: the pass.
        item, reason: the pass itself, and what went wrong.
        reproducer: the file that runs it again, or None.
        owner: "module.Class" of a pass that is not Intarsia's own, else "".
    """

    def __init__(self, item: Pass, reason: str, reproducer: Path | None) -> None:
        kind = type(item)
        hint = _again(kind, reproducer) if reproducer else ""
        self.owner = "" if is_own(kind) else owner_of(item)
        whose = f" ({self.owner}, which is not Intarsia's own)" if self.owner else ""
        super().__init__(f"pass '{item.name}'{whose} failed: {reason}{hint}")
        self.pass_name, self.reproducer, self.item, self.reason = item.name, reproducer, item, reason


def _again(kind: type[Pass], reproducer: Path) -> str:
    """How the tool runs a pass again: by its name, or with the file or package that it is loaded from."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, LOADED, None)
    load = f" --load {shlex.quote(file)}" if file else ""
    if not file and not is_own(kind) and all(plugin.kind is not kind for plugin in installed()):
        place = getattr(module, "__file__", None)
        if getattr(module, kind.__qualname__, None) is not kind or not place:
            return (
                f"\nthe module as it received it: {reproducer} (a pass that a file defines at its top can be run again)"
            )
        packaged = "." in kind.__module__
        load = (
            f" --load-package {kind.__module__}" if packaged else f" --load {shlex.quote(str(Path(place).absolute()))}"
        )
    return f"\nrun it again with: passes-opt --run-reproducer {shlex.quote(str(reproducer))}{load}"


class OnPass(Protocol):
    """Told before and after each pass: `phase` is "before" (seconds 0) or "after"."""

    def __call__(self, name: str, module: ModuleOp, seconds: float, phase: str, /) -> None: ...


@dataclass
class PipelineRun:
    """What a run of a pipeline took: (pass, seconds) in order; verification has the name "(verify)"."""

    seconds: list[tuple[str, float]] = field(default_factory=list)
    verified: list[Any] = field(default_factory=list, repr=False)  # what the module was made of when it last verified


def run_pipeline(
    ctx: CompileContext,
    module: ModuleOp,
    passes: Sequence[Pass],
    *,
    verify_each: bool = False,
    on_pass: OnPass | None = None,
    reproducer_dir: str | Path | None = None,
    limit: float = 0.0,
) -> PipelineRun:
    """Run the passes in this order on the module, in place, and verify the result.

    With `reproducer_dir` a failure writes a file there that holds the module as the failing pass received it. `limit`: the seconds
    after which a pass of others is stopped; 0: never.

    Raises:
        PassError: a pass stands where its level does not hold; says which pass establishes it.
        PassFailure: a pass failed, or left a module that does not verify.
        VerifyException: the module that came in does not verify (only with verify_each or without passes).
    """
    run = PipelineRun()
    # A copy is 15 ms for 1,000 operations; a print would be four times that, so the text is made only on failure.
    original = module.clone() if reproducer_dir is not None and passes else None
    if verify_each or not passes:
        module.verify()
    levels = module_levels(module)
    # What others wrote is checked where it stands, and what it was given too: the culprit is named.
    own = [is_own(type(item)) for item in passes]
    for index, item in enumerate(passes):
        check_level(item, levels, module)
        beside = not (own[index] and all(own[index + 1 : index + 2]))
        levels = {item.gives} if item.gives else levels
        if on_pass:
            on_pass(item.name, module, 0.0, "before")
        start = time.perf_counter()
        try:
            if own[index]:
                _apply(item, ctx, module)
            else:
                _apply_within(limit, item, ctx, module)
            seconds = time.perf_counter() - start
            run.seconds.append((item.name, seconds))
            if verify_each or beside or index == len(passes) - 1:
                _verify(module, item, run, ctx)
        except (Exception, SystemExit) as error:  # a pass that ends the program would end the user's
            if isinstance(error, PassError | SystemExit) and own[index]:
                raise
            path = _reproduce(ctx, original, passes[: index + 1], error, reproducer_dir)
            kind = "" if isinstance(error, PassError) else f"{type(error).__name__}: "
            raise PassFailure(item, f"{kind}{_first_lines(error)}{_line_in(item, error)}", path) from error
        if on_pass:
            on_pass(item.name, module, seconds, "after")
    return run


def _apply(item: Pass, ctx: CompileContext, module: ModuleOp) -> None:
    """Run one pass; its option `remarks` holds while it runs."""
    diagnostics = ctx.diagnostics
    wanted = diagnostics.want_remarks
    diagnostics.want_remarks = wanted or item.remarks
    try:
        item.apply(ctx, module)
    finally:
        diagnostics.want_remarks = wanted


class NotEnding(PassError):
    """A pass of others took longer than it may."""


def _apply_within(limit: float, item: Pass, ctx: CompileContext, module: ModuleOp) -> None:
    """Run a pass of others, which may never end."""
    try:
        run_within(limit, f"pass '{item.name}' ({owner_of(item)})", lambda: _apply(item, ctx, module))
    except TooLong as error:
        places = [
            p for p in traceback.extract_tb(error.__traceback__) if Path(p.filename).parent != Path(__file__).parent
        ]
        place = _place_in(item, error) or (places[-1] if places else None)
        where = f"; it was at {place.filename}:{place.lineno}: {place.line}" if place else ""
        raise NotEnding(f"it did not end within {limit:g} s (the setting pass_seconds){where}") from None


def owner_of(item: Pass) -> str:
    """ "module.Class" of a pass."""
    return f"{type(item).__module__}.{type(item).__qualname__}"


def _own_passes(kind: type[Pass]) -> Iterator[type[Pass]]:
    """The classes below this one that are Intarsia's own, as far as they are loaded."""
    for each in kind.__subclasses__():
        if is_own(each):
            yield each
        yield from _own_passes(each)


def check_level(item: Pass, levels: set[str], module: ModuleOp) -> None:
    """Check that a pass may run on a module that is legal at `levels`.

    Raises:
        PassError: it may not.
    """
    if levels & {item.level, *item.accepts}:
        return
    illegal = first_illegal(module, item.level)
    found = f"the module is at level '{min(levels, key=LEVELS.index)}'" if levels else "the module mixes levels"
    shown = f" (it holds {illegal.name})" if illegal is not None else ""
    givers = sorted({kind.name for kind in _own_passes(Pass) if kind.gives == item.level != kind.level})
    ways = " or ".join(f"'{name}'" for name in givers)
    behind = levels and max(map(LEVELS.index, levels)) > LEVELS.index(item.level)
    advice = f"; the pass {ways} establishes it: run it before" if givers and not behind else ""
    raise PassError(f"pass '{item.name}' works at level '{item.level}', but {found}{shown}{advice}")


def _verify(module: ModuleOp, item: Pass, run: PipelineRun, ctx: CompileContext) -> None:
    start = time.perf_counter()
    parts = _parts(module)
    if len(parts) != len(run.verified) or not all(
        map(operator.is_, parts, run.verified)
    ):  # most passes find nothing to do
        module.verify()
        _check_defined(module)
        check(module, ctx.machine)
        run.verified = parts
    if item.gives is not None and (illegal := first_illegal(module, item.gives)) is not None:
        raise ValueError(f"{illegal.name} is left in a module of level '{item.gives}'")
    run.seconds.append(("(verify)", time.perf_counter() - start))


def _check_defined(module: ModuleOp) -> None:
    """Every operand is made in front of its operation, in a block around it: xDSL's verifier does not ask.

    Raises:
        ValueError: one is not; names both operations.
    """
    known: set[SSAValue] = set()

    def look(block: Block) -> None:
        inside = set(block.args)
        known.update(inside)
        for op in block.ops:
            for operand in op.operands:
                if operand not in known:
                    owner = operand.owner
                    made = f"the result of {owner.name}" if isinstance(owner, Operation) else "an argument of a block"
                    raise ValueError(f"{op.name} reads {made}, which does not stand in front of it in the module")
            for region in op.regions:
                for each in region.blocks:
                    look(each)
            known.update(op.results)
            inside.update(op.results)
        known.difference_update(inside)

    look(module.body.block)


def _parts(module: ModuleOp) -> list[Any]:
    """All that verification looks at, in order. The objects themselves: attributes and types never change, and while they are held here
    no other one gets their place in memory.
    """
    found: list[Any] = []
    for op in module.walk():
        found += (
            op,
            op.parent,
            *op.operands,
            *op.successors,
            *op.attributes,
            *op.attributes.values(),
            *op.properties.values(),
        )
        for result in op.results:
            found += (result, result.type)
        for region in op.regions:
            for block in region.blocks:
                found += (region, block)
                for argument in block.args:
                    found += (argument, argument.type)
    return found


def _line_in(item: Pass, error: BaseException) -> str:
    """Where in the file of a pass of others it came up, or ""."""
    if is_own(type(item)) or isinstance(error, NotEnding):
        return ""
    place = _place_in(item, error)
    return f" ({place.filename}:{place.lineno}: {place.line})" if place else ""


def _place_in(item: Pass, error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line of the pass's own file that an error went through."""
    file = getattr(sys.modules.get(type(item).__module__), "__file__", None)
    places = [p for p in traceback.extract_tb(error.__traceback__) if p.filename == file]
    return places[-1] if places else None


def _first_lines(error: BaseException, count: int = 6) -> str:
    return "\n".join(str(error).splitlines()[:count])


REPRODUCER_HEADER = "// intarsia reproducer"


def _reproduce(
    ctx: CompileContext,
    original: ModuleOp | None,
    passes: Sequence[Pass],
    error: BaseException,
    directory: str | Path | None,
) -> Path | None:
    """Write the module as the last pass received it: the passes before it run again on a copy of the input."""
    if original is None or directory is None:
        return None
    failing = passes[-1]
    try:
        for item in passes[:-1]:
            item.apply(CompileContext(ctx.machine), original)
        return write_reproducer(directory, failing, type(error).__name__, print_module(original), ctx.machine)
    except Exception as second:  # the failure itself matters more than its reproducer
        print(f"no reproducer was written: {type(second).__name__}: {second}", file=sys.stderr)
        return None


def write_reproducer(directory: str | Path | None, item: Pass, what: str, text: str, machine: Machine) -> Path | None:
    """Write the module that a pass received, with the pass and the machine, to a file named after them; None without a folder.

    Raises:
        OSError: it cannot be written.
    """
    if directory is None:
        return None
    header = [
        f"{REPRODUCER_HEADER}: {what} in pass '{item.name}'",
        f"// pipeline: {item.spec}",
        f"// machine: {machine.text}",
    ]
    digest = hashlib.sha256(("\n".join(header) + text).encode()).hexdigest()[:12]
    path = Path(directory) / f"{item.name}-{digest}.ir"
    header.insert(1, f"// run: passes-opt --run-reproducer {shlex.quote(visible(str(path)))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(header) + "\n" + text)
    return path
