"""Passes of others from files and packages: `passes-opt --load FILE.py`, `compile(fn, passes=["file.py"])`."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from .base import Pass
from .manager import is_own
from .run import LOADED
from .syntax import PipelineError

_LOCK = threading.Lock()
Given: TypeAlias = "Pass | type[Pass] | str | os.PathLike[str]"  # what `compile(passes=)` takes
Loaded = tuple[ModuleType, str, bool]  # a module, how messages call it, and whether what it imports is left out
NO_PASS = "a subclass of intarsia's Pass with the class attribute 'name'"
_FILES: dict[str, tuple[tuple[int, int], ModuleType]] = {}  # by absolute path: time and size when it was read


def is_given(item: object) -> bool:
    """Whether `compile(passes=)` takes it: a pass, a class of passes, or a file."""
    return isinstance(item, Pass | str | os.PathLike) or isinstance(item, type) and issubclass(item, Pass)


def passes_given(items: Iterable[Any]) -> tuple[Pass | type[Pass], ...]:
    """The passes that `compile(passes=)` was given: objects, classes, or files that define some; of a file as classes, of which
    those with `default = False` run by name only.

    Raises:
        TypeError: one is something else.
        PipelineError: a file cannot be imported, or has no pass.
    """
    if is_given(items):
        raise TypeError(f"passes takes a list, not {items!r:.80}")
    found: list[Pass | type[Pass]] = []
    for item in items:
        if isinstance(item, str | os.PathLike):
            found += passes_of_file(os.fspath(item))
        elif is_given(item):
            found.append(item() if isinstance(item, type) else item)
        else:
            raise TypeError(
                "passes takes objects of classes that derive from Pass, or files with such classes, "
                f"not {type(item).__name__}: {item!r:.80}"
            )
    return tuple(found)


def passes_of_setting(text: str) -> tuple[type[Pass], ...]:
    """The passes of the files in a setting, which stand as in PATH."""
    return tuple(kind for file in text.split(os.pathsep) if file.strip() for kind in passes_of_file(file.strip()))


def load(files: Sequence[str], packages: Sequence[str]) -> list[Loaded]:
    """The files, then the packages, as modules.

    Raises:
        PipelineError: one cannot be imported (shows the line that fails).
    """
    found = [_file(file) for file in files]
    for package in packages:
        try:
            module = importlib.import_module(package)
        except (Exception, SystemExit) as error:
            raise PipelineError(f"passes of the package '{package}': {why(error)}") from None
        found.append((module, f"the package '{package}'", False))
    return found


def passes_of_file(file: str) -> list[type[Pass]]:
    """The passes that a file defines; it is read again when it has changed.

    Raises:
        PipelineError: it cannot be imported (shows the line that fails), or has no pass.
    """
    loaded = _file(file)
    found = passes_in(loaded)
    if not found:
        raise PipelineError(f"{loaded[1]} has no pass: {NO_PASS}")
    return found


def _file(file: str) -> Loaded:
    path = Path(file).absolute()
    if path.suffix != ".py" or not path.is_file():
        what = "is no file" if not path.is_file() else "is not called *.py"
        raise PipelineError(f"passes of {file}: {what}")
    with _LOCK:
        stat = path.stat()
        state = stat.st_mtime_ns, stat.st_size
        known = _FILES.get(str(path))
        if known is None or known[0] != state:
            known = _FILES[str(path)] = state, _run(file, path)
    return known[1], f"'{file}'", True


def _run(file: str, path: Path) -> ModuleType:
    name = f"passes_of.{path.stem}"
    if getattr(sys.modules.get(name), "__file__", str(path)) != str(path):  # another file of this name
        name += f"_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    setattr(module, LOADED, file)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as for a script: what lies beside it can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PipelineError(f"passes of {file}: {why(error, path)}") from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def passes_in(loaded: Loaded) -> list[type[Pass]]:
    """The passes with a name that a module defines, or of a package that it only imports, too."""
    module, _, own = loaded
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Pass) and item.name and not is_own(item)
    ]
    return [item for item in found if not own or item.__module__ == module.__name__]


def why(error: BaseException, path: Path | None = None) -> str:
    """The error, and the last line of the file where it came up."""
    if isinstance(error, SyntaxError):
        if error.lineno is None:  # zero bytes
            return error.msg
        return f"{error.filename}:{error.lineno}: {error.msg}\n  {(error.text or '').strip()}"
    said = "".join(traceback.format_exception_only(error)).strip()
    places = traceback.extract_tb(error.__traceback__)
    inside = [p for p in places if path is None or Path(p.filename) == path]
    if path is None or not inside:
        return said
    return f"{inside[-1].filename}:{inside[-1].lineno}: {said}\n  {inside[-1].line}"
