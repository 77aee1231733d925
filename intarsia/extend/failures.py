"""What happens when a pass fails: the module is put back, and the failure gets a reproducer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from ..config import Config
from ..ir.syntax import Op, line_of
from ..ir.text import parse_module
from ..passes.analysis.machine import Machine
from ..passes.core.base import Pass, PassError
from ..passes.core.context import CompileContext
from ..passes.core.manager import is_own
from ..passes.core.run import NotEnding, PassFailure, run_pipeline

log = logging.getLogger("intarsia")


def put_back(module: ModuleOp, text: str) -> None:
    """Make a module what its text says, whatever a pass has left of it."""
    while module.body.blocks:
        module.body.detach_block(0)
    module.body.add_block(parse_module(text).body.detach_block(0))


def culprits(error: Exception, pipeline: Sequence[Pass], asked_for: bool) -> frozenset[str]:
    """Which passes of others to leave out after an error: the one that failed, or all where one of our own does behind them.

    None where the order that somebody asked for (`asked_for`) cannot be.
    """
    if isinstance(error, PassFailure) and error.owner:
        return frozenset({error.pass_name})
    if isinstance(error, MemoryError) or (
        asked_for and isinstance(error, PassError) and not isinstance(error, PassFailure)
    ):
        return frozenset()
    return frozenset(item.name for item in pipeline if not is_own(type(item)))


def blame(error: Exception, theirs: frozenset[str], module: ModuleOp) -> str:
    """What to say of passes that are left out: the user's line that the program begins with, the passes, and what went wrong."""
    place = next((line for op in module.walk() if isinstance(op, Op) and (line := line_of(op))), "")
    head = f"{place}: " if place else ""
    if isinstance(error, PassFailure):
        if error.owner:
            return f"{head}{error}\nthe graph is compiled without this pass"
        what = str(error)
    else:
        what = f"{type(error).__name__}: {error}"
    names = ", ".join(f"'{name}'" for name in sorted(theirs))
    return f"{head}behind passes that are not Intarsia's own ({names}) it failed: {what}\nthe graph is compiled without them"


def with_reproducer(
    failure: PassFailure, text: str, machine: Machine, pipeline: Sequence[Pass], config: Config, folder: Path | None
) -> PassFailure:
    """The same failure with a reproducer: the passes run again on the imported text, this time with copies."""
    folder = folder or Path(tempfile.mkdtemp(prefix="intarsia-"))
    limit = 1.0 if isinstance(failure.__cause__, NotEnding) else float(config.pass_seconds)
    ctx, verify = CompileContext(machine), config.verify_each
    try:
        run_pipeline(ctx, parse_module(text), pipeline, verify_each=verify, reproducer_dir=folder, limit=limit)
    except PassFailure as second:
        if second.pass_name == failure.pass_name:
            return PassFailure(failure.item, failure.reason, second.reproducer)
    except Exception:  # the failure itself matters more than its reproducer
        log.debug("no reproducer", exc_info=True)
    return failure
