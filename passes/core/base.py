"""What a pass is: a frozen dataclass with a name, a docstring, options as fields, and `apply`.

@dataclass(frozen=True)
class Double(Pass):
    \"\"\"Replace x + x by 2*x.\"\"\"
    name = "double"
    level = "prim"
    after = ("decompose",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None: ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from .context import CompileContext

LEVELS = ("aten", "prim", "kernel", "loop", "buffer")
DEVICES = ("cpu", "gpu")
JOINT = "joint"  # of policies, which choose where a training graph is cut in two: no level of the IR
SCOPES = ("inference", "forward", "backward", "step")


class PassError(Exception):
    """A pass cannot do its work on this module: a precondition does not hold, or an option is wrong."""


@dataclass(frozen=True)
class Pass:
    """Base of all passes. The first line of the docstring is what `passes-opt --list` prints.

    Class attributes:
        level: the IR level on which the pass works; the manager checks it.
        accepts: further levels on which it may run when a pipeline names it there.
        gives: the level of the module afterwards (default: the same).
        after, before: names of passes, or IR levels, that it follows or precedes when both run. A name that is no pass is an error, unless
            it ends with "?": `after = ("theirs?",)` holds where a pass called "theirs" is there.
        requires: names of passes, or IR levels, whose result it needs; `--until` inserts them.
        default: whether a pass of others runs without being named; those of Intarsia are listed in pipeline.py.
        devices: "cpu" and "gpu": the programs for which it runs without being named; none: all.
        scopes: the graphs for which it does: "inference", "forward" and "backward" (the halves of a training graph), "step" (a graph that
            takes its gradients itself); none: all.
        replaces: the pass in whose place it stands.
        least: the least value of options that are numbers, by their names: `{"max_ops": 1}`.

    Every pass has the option `remarks`: say what was done and refused, and why, as `--remarks` does for all passes.
    """

    name: ClassVar[str] = ""
    level: ClassVar[str] = "prim"
    accepts: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[str | None] = None
    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[bool] = True
    devices: ClassVar[tuple[str, ...]] = ()
    scopes: ClassVar[tuple[str, ...]] = ()
    replaces: ClassVar[str] = ""
    least: ClassVar[Mapping[str, float]] = MappingProxyType({})
    remarks: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            if not getattr(self, name) >= least:
                option, given = name.replace("_", "-"), getattr(self, name)
                raise PassError(f"pass '{self.name}': option '{option}' takes {least} or more, not {given}")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Rewrite the module in place.

        Raises:
            PassError: says what does not hold and which pass establishes it.
        """
        raise PassError(f"{type(self).__qualname__} has no method apply(self, ctx, module)")

    @property
    def spec(self) -> str:
        """The pass in pipeline syntax, with the options that differ from their defaults: `fuse{max-ops=8}`."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        options = ",".join(f"{f.name.replace('_', '-')}={_option(getattr(self, f.name))}" for f in changed)
        return f"{self.name}{{{options}}}" if options else self.name


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
