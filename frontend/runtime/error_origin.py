"""Whose mistake an error is: this package's, or that of code which it was given and called (an operator, a pass, a backend, a plug-in)."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from functools import cache
from types import TracebackType

import torch

__all__ = ["blamed", "culprit", "of_fake_tensors"]

# Packages that this one is made of: what goes wrong in them, went wrong in how they were called.
_PARTS = """
torch torchgen xdsl immutabledict ordered_set sympy mpmath networkx bytecode triton numpy rich platformdirs filecheck
""".split()  # noqa: SIM905
_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "")
_FAKE_RULES = os.path.join(os.path.dirname(_HERE), "graph", "fake_rules.py")


def culprit(error: BaseException) -> str:
    """The line that raised an error, where that is code of others which was called from this package; else ""."""
    while error.__cause__ is not None:
        error = error.__cause__
    found, inside = "", False
    for path, line, name in _frames(error.__traceback__):
        kind = _kind(path)
        inside = inside or kind == "ours"
        if inside and kind == "theirs":
            found = f"{path}:{line}, in {name}"
    return found


def of_fake_tensors(error: BaseException) -> bool:
    """Whether torch raised it, or a check that stands for one of eager's: on a fake tensor, whose kernels are not eager's."""
    frames = list(_frames(error.__traceback__))
    if not frames:
        return False
    path = os.path.abspath(frames[-1][0])
    return path.startswith(_TORCH) or path == _FAKE_RULES


def blamed(error: BaseException) -> str:
    """How a message about an unexpected error begins."""
    found = culprit(error)
    if found:
        return f"an error in {found}, which is not Intarsia's own"
    return "an error inside intarsia (please report it)"


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    """File, line and function of each frame, the outermost first."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


@cache
def _kind(path: str) -> str:
    """Whose file it is: "ours", "library" for parts that this package is built on and for generated code, or "theirs"."""
    if path.startswith("<"):
        return "library"
    path = os.path.abspath(path)
    if path.startswith(_PACKAGE):
        return "ours"
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        at = max(i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages"))
        return "library" if parts[at + 1].removesuffix(".py") in _PARTS else "theirs"
    roots = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"])
    return "library" if path.startswith(tuple(root + os.sep for root in roots)) else "theirs"
