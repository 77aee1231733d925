"""`sys.__excepthook__`: the text of an exception, with what CPython suggests in the place of a name that there is not.

CPython's own hook writes it, to a stream that the call has made. It looks at more than the exception: at the attributes of the object and the
names of the module in which it finds names that are alike. These are guarded, or the graph breaks.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

from ..bytecode.exceptions import standing_for, traceback_of
from ..bytecode.version import V312, V313
from ..calls.registry import Rows
from ..errors import GraphBreak, UserRaise
from ..state import Interpreter
from ..values import object as objects
from ..values.constant import is_constant
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE, isinstance

__all__ = ["ROWS"]

ROWS = Rows()
_ASKED = ("__str__", "__repr__", "__getattr__", "__getattribute__", "__class__", "__notes__", "print_file_and_line")


@ROWS.rule(sys.__excepthook__)
def _shown(vm: Interpreter, kind: Any, error: Any, trace: Any) -> None:
    written = vm.effects.globals.get((id(sys.__dict__), "stderr"))
    if written is None or type(written[1]) is not io.StringIO or vm.user.source_of(written[1]) is not None:
        raise GraphBreak("an exception is written to a stream that the call has not made")
    if not isinstance(error, BaseException) or kind is not type(error) or trace is not traceback_of(vm, error):
        raise GraphBreak("sys.excepthook is given parts of several exceptions")
    chain = list(_chain(error))
    for one in chain:
        _check(vm, one)
    with contextlib.ExitStack() as stack:
        for one in chain:
            if type(one) is NameError and one.name is not None and one.__traceback__ is not None:
                stack.callback(one.with_traceback, one.__traceback__)
                one.__traceback__ = _with_names(vm, one.__traceback__)
            if type(one) is AttributeError and one.name is not None and one.obj is not None:
                stack.callback(setattr, one, "obj", one.obj)
                one.obj = _Listed(vm, one.obj)
        text = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        sys.__excepthook__(kind, error, error.__traceback__)
    if " at 0x" in text.getvalue():
        raise GraphBreak("the text of an exception shows where an object lies")
    vm.call(objects.load_attr(vm, written[1], "write"), (text.getvalue(),), {})


def _chain(error: BaseException) -> Iterator[BaseException]:
    """All exceptions that are shown with one."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [
                one.__cause__,
                one.__context__,
                *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()),
            ]


def _check(vm: Interpreter, error: BaseException) -> None:
    """Break where code of the program's would run, what the text shows is not guarded, or what CPython suggests may be something else."""
    kind = type(error)
    pythons = [vars(cls) for cls in kind.__mro__ if cls.__flags__ & HEAP_TYPE and not cls.__flags__ & IMMUTABLE_TYPE]
    plain = type(kind) is type and not any(name in names for names in pythons for name in _ASKED)
    shown = error.args[:1] if isinstance(error, BaseExceptionGroup) else error.args
    if not plain or not is_constant(shown) or vm.user.source_of(error) is not None or "__notes__" in vars(error):
        raise GraphBreak(
            f"the text of a {kind.__qualname__} is made, which is the caller's or has code of the program's"
        )
    if kind is ImportError and V312 or kind is NameError and V313:  # 3.13 asks frames for their variables
        raise GraphBreak(f"CPython may suggest another name in the text of the {kind.__name__}")


class _Listed:
    """What stands for an object while CPython looks for names that are like one that it has not: its names, or that it does not say them."""

    def __init__(self, vm: Interpreter, obj: Any) -> None:
        try:
            self.names: Any = vm.call(dir, (obj,), {})
        except UserRaise:
            self.names = None

    def __dir__(self) -> Any:
        if self.names is None:
            raise TypeError
        return self.names


def _with_names(vm: Interpreter, trace: types.TracebackType) -> types.TracebackType:
    """The same traceback, whose last frame has the variables and the module's names of the interpreted one."""
    behind = None if trace.tb_next is None else _with_names(vm, trace.tb_next)
    frame = trace.tb_frame
    if behind is None:
        shown = standing_for(frame)
        if shown is None or V312 and "self" in shown.code.co_varnames:  # an attribute of it may be suggested
            raise GraphBreak("CPython may suggest another name in the text of the NameError")
        names, given = (objects.shown_globals(vm, names).keys() for names in (shown.globals, vars(builtins)))
        code = frame.f_code.replace(co_varnames=shown.code.co_varnames, co_nlocals=shown.code.co_nlocals)
        frame = types.FunctionType(code, {**dict.fromkeys(names), "__builtins__": dict.fromkeys(given)})().gi_frame
    return types.TracebackType(behind, frame, trace.tb_lasti, trace.tb_lineno)
