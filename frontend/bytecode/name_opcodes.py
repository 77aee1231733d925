"""Opcodes of the normal form that class bodies have: names in the class's namespace, each function under its opcode's name."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported, UserRaise
from ..state import Interpreter
from ..values import operators
from ..values.kinds import isinstance
from ..values.namespaces import load_cell, load_global
from . import exceptions
from .frame import Frame


def _namespace(frame: Frame) -> Any:
    if frame.names is None:
        raise Unsupported("module bodies are not captured")
    return frame.names


def _found(vm: Interpreter, names: Any, name: str) -> tuple[bool, Any]:
    """(True, value) of a name in a namespace; one that a metaclass gave is asked as the program's mapping that it is."""
    if type(names) is dict:
        return (True, names[name]) if name in names else (False, None)
    try:
        return True, operators.get_item(vm, names, name)
    except UserRaise as raised:
        if not isinstance(raised.value, KeyError):
            raise
    return False, None


def LOAD_LOCALS(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(_namespace(frame))


def LOAD_NAME(vm: Interpreter, frame: Frame, name: str) -> None:
    found, value = _found(vm, _namespace(frame), name)
    frame.push(value if found else load_global(vm, frame, name))


def LOAD_FROM_DICT_OR_GLOBALS(vm: Interpreter, frame: Frame, name: str) -> None:
    found, value = _found(vm, frame.pop(), name)
    frame.push(value if found else load_global(vm, frame, name))


def LOAD_FROM_DICT_OR_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    found, value = _found(vm, frame.pop(), name)
    frame.push(value if found else load_cell(vm, frame.fast[name], name))


def STORE_NAME(vm: Interpreter, frame: Frame, name: str) -> None:
    names, value = _namespace(frame), frame.pop()
    if type(names) is dict:
        names[name] = value
    else:
        operators.set_item(vm, names, name, value)


def DELETE_NAME(vm: Interpreter, frame: Frame, name: str) -> None:
    names = _namespace(frame)
    try:
        operators.delete_item(vm, names, name)
    except UserRaise as raised:
        if not isinstance(raised.value, KeyError):
            raise
        raise exceptions.name_error(name) from None


def SETUP_ANNOTATIONS(vm: Interpreter, frame: Frame, _: Any) -> None:
    names = _namespace(frame)
    if not _found(vm, names, "__annotations__")[0]:
        operators.set_item(vm, names, "__annotations__", {})
