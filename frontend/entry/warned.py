"""`warnings.catch_warnings` in captured code, and what is warned of inside of it.

While a block is open, what filters and lists of warnings there are is known: capture keeps them, and gives each warning to the one that
gets it. Warnings of C code arrive from Python's own machinery, which meanwhile shows everything to capture. Behind the graph nothing is left
of a block but that warnings which were shown once are shown again. A graph that would end inside of a block ends in front of it.
"""

from __future__ import annotations

import re
import sys
import threading
import unittest.case
import warnings
from dataclasses import dataclass, field
from typing import Any

from ..breaks.breaks import restart_point
from ..calls.registry import Rows
from ..errors import GraphBreak, UserRaise
from ..guards.source import Attr, Const
from ..state import Interpreter
from ..values import object as objects
from ..values.constant import is_constant
from ..values.kinds import isinstance

__all__ = ["ROWS", "Warned", "warned"]

ROWS = Rows()
_MODULE = Const(warnings, "warnings")
_STATE = (
    "filters",
    "showwarning",
    "_showwarnmsg_impl",
    "defaultaction",
    "onceregistry",
    "_onceregistry",
    "_defaultaction",
)
_ACTIONS = ("error", "ignore", "always", "default", "module", "once")


@dataclass
class _Block:
    """An open block: its filters, the list that gets its warnings (None: that of the block around), what was shown once."""

    manager: Any
    filters: list[Any]
    log: list[Any] | None
    shown: set[Any] = field(default_factory=set)


class Warned:
    """The open blocks of one capture."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.thread = threading.get_ident()
        self.blocks: list[_Block] = []
        self.base = list(warnings.filters)
        self.base_action = warnings.defaultaction  # type: ignore[attr-defined]
        self.start = restart_point(vm), tuple(vm.places())
        vm.fake_mode.dispatch.heard = True
        self.shows = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
        self.real = warnings.catch_warnings()
        self.real.__enter__()
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = warnings._showwarning_orig  # type: ignore[attr-defined]
        warnings._showwarnmsg_impl = self._arrives  # type: ignore[attr-defined]

    def close(self) -> None:
        """The outermost block is left, or the capture ends."""
        if self.vm.effects.warned is self:
            self.vm.effects.warned = None
            self.vm.fake_mode.dispatch.heard = False
            self.real.__exit__(None, None, None)

    def refused(self, why: str) -> GraphBreak:
        """The break in front of the outermost block."""
        error = GraphBreak(f"warnings.catch_warnings: {why}")
        error.split, error.frames = self.start
        return error

    def check_name(self, name: str) -> None:
        """Break where the program looks at what capture has put into the module."""
        if name in _STATE:
            raise self.refused(f"warnings.{name} is read inside of the block")

    def warn(self, text: str, message: Any, category: type, place: tuple[str, int, str], source: Any = None) -> None:
        """Give a warning to what gets it; raises it where the filters say so."""
        filename, line, module = place
        action, block = self._action(text, category, module, line), self.blocks[-1]
        if action == "ignore":
            return
        if action == "error":
            raise UserRaise(message)
        if action not in ("always", "default", "module"):
            raise self.refused(f"a warning is shown {action}")
        key = (module, text, category, line if action == "default" else 0)
        if action != "always" and key in block.shown:
            return
        block.shown.add(key)
        log = next((b.log for b in reversed(self.blocks) if b.log is not None), None)
        if log is None:
            raise self.refused("a warning is shown inside of a block that records none")
        log.append(self.vm.create(warnings.WarningMessage(message, category, filename, line, source=source)))

    def _action(self, text: str, category: type, module: str, line: int) -> str:
        filters = self.blocks[-1].filters
        for item in filters:
            action, message, kind, where, lineno = item
            if any(item is known for known in self.base):
                self.vm.guards.add("keys", Attr(_MODULE, "filters"), list(self.base))
            told = issubclass(category, kind) and (message is None or message.match(text))
            if told and (where is None or where.match(module)) and lineno in (0, line):
                return str(action)
        self.vm.guards.add("keys", Attr(_MODULE, "filters"), list(self.base))
        self.vm.guards.add("equals", Attr(_MODULE, "defaultaction"), self.base_action)
        return str(self.base_action)

    def _arrives(self, message: Any) -> None:
        """A warning of code that capture runs as it is."""
        if threading.get_ident() != self.thread:
            self.shows(message)
            return
        try:
            frames, found = _frames(), None
            if frames and (message.filename, message.lineno) == frames[0]:
                here = self.vm.frames[-1]
                found = here.code.co_filename, here.line, str(here.globals.get("__name__", "<string>"))
            elif (message.filename, message.lineno) not in frames:  # of a text, as the compiler says of it
                name = message.filename.removesuffix(".py") or "<unknown>"
                found = message.filename, message.lineno, name
            if found is None:
                raise self.refused("a warning comes from elsewhere")
            self.warn(str(message.message), message.message, message.category, found, message.source)
        except UserRaise as raised:
            raise raised.value from None
        except GraphBreak as error:
            self.vm.delayed_break = error

    # ---- filters ----

    def changed(self) -> list[Any]:
        """The filters of the innermost block, to be changed: what was shown once is forgotten."""
        self.blocks[-1].shown.clear()
        return self.blocks[-1].filters


def _frames() -> list[tuple[str, int]]:
    """The frames around a warning that arrives: the innermost one is that which has called C code."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == warnings.__file__:
        frame = frame.f_back
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def warned(vm: Interpreter) -> Warned:
    """The blocks that are open."""
    if vm.effects.warned is None:
        raise GraphBreak("filters of warnings are changed outside of a block of warnings.catch_warnings")
    return vm.effects.warned  # type: ignore[no-any-return]


def _forget_what_was_shown() -> None:
    with warnings.catch_warnings():
        pass


@ROWS.rule(warnings.catch_warnings.__enter__)
def _enter(vm: Interpreter, manager: Any) -> Any:
    if not vm.is_created(manager) or objects.load_attr(vm, manager, "_module") is not warnings or vm.side is not None:
        raise GraphBreak("a block of warnings.catch_warnings is entered that was made elsewhere")
    if vm.truth(objects.load_attr(vm, manager, "_entered")):
        raise UserRaise(RuntimeError(f"Cannot enter {manager!r} twice"))
    if vm.effects.warned is None:
        vm.effects.warned = Warned(vm)
        vm.effects.calls.append((_forget_what_was_shown, (), {}))
    state: Warned = vm.effects.warned
    objects.store_attr(vm, manager, "_entered", True)
    log: list[Any] | None = [] if vm.truth(objects.load_attr(vm, manager, "_record")) else None
    filters = state.blocks[-1].filters if state.blocks else state.base
    state.blocks.append(_Block(manager, list(filters), log))
    first = getattr(manager, "_filter", None)
    if first is not None:
        _simple(vm, *first)
    return log


@ROWS.rule(warnings.catch_warnings.__exit__)
def _exit(vm: Interpreter, manager: Any, *_: Any) -> None:
    if vm.is_created(manager) and not vm.truth(objects.load_attr(vm, manager, "_entered")):
        raise UserRaise(RuntimeError(f"Cannot exit {manager!r} without entering first"))
    state = warned(vm)
    if state.blocks[-1].manager is not manager:
        raise state.refused("blocks are left in another order")
    state.blocks.pop()
    if not state.blocks:
        state.close()
    else:
        state.changed()


def _put(state: Warned, item: tuple[Any, ...], append: bool) -> None:
    """As `warnings` does: a filter that is there comes first, or stays where it is."""
    filters = state.changed()
    if append:
        if item not in filters:
            filters.append(item)
        return
    if item in filters:
        filters.remove(item)
    filters.insert(0, item)


@ROWS.rule(warnings.simplefilter)
def _simple(vm: Interpreter, action: Any, category: Any = Warning, lineno: Any = 0, append: Any = False) -> None:
    state = warned(vm)
    if action not in _ACTIONS or type(lineno) is not int or lineno < 0 or not _are_categories(category):
        raise state.refused("a filter of an unusual kind is set")
    _put(state, (action, None, category, None, lineno), bool(append))


@ROWS.rule(warnings.filterwarnings)
def _filter(
    vm: Interpreter,
    action: Any,
    message: Any = "",
    category: Any = Warning,
    module: Any = "",
    lineno: Any = 0,
    append: Any = False,
) -> None:
    state = warned(vm)
    plain = all(map(is_constant, (action, message, module, lineno))) and isinstance(category, type)
    if not plain or action not in _ACTIONS or type(lineno) is not int or lineno < 0 or not _are_categories(category):
        raise state.refused("a filter of an unusual kind is set")
    text = vm.native(re.compile, message, re.I) if message else None
    _put(state, (action, text, category, vm.native(re.compile, module) if module else None, lineno), bool(append))


@ROWS.rule(warnings.resetwarnings)
def _reset(vm: Interpreter) -> None:
    warned(vm).changed().clear()


def _are_categories(category: Any) -> bool:
    kinds = category if type(category) is tuple else (category,)
    return all(isinstance(kind, type) and type(kind) is type for kind in kinds)


# ---- unittest ----


def _forget_in_modules() -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__warningregistry__", None):
            module.__warningregistry__ = {}  # type: ignore[attr-defined]


@ROWS.rule(unittest.case._AssertWarnsContext.__enter__)  # type: ignore[attr-defined]
def _assert_warns(vm: Interpreter, context: Any) -> Any:
    """As unittest does; what modules have shown is forgotten behind the graph: inside of the block it does not matter."""
    manager = vm.call(warnings.catch_warnings, (), {"record": True})
    objects.store_attr(vm, context, "warnings_manager", manager)
    vm.effects.calls.append((_forget_in_modules, (), {}))
    objects.store_attr(vm, context, "warnings", vm.call(objects.load_attr(vm, manager, "__enter__"), (), {}))
    vm.call(warnings.simplefilter, ("always", objects.load_attr(vm, context, "expected")), {})
    return context
