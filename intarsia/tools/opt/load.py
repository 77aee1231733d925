"""Passes of others on the command line: `--load FILE.py` and `--load-package NAME`."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ...passes.core.base import Pass
from ...passes.core.manager import is_own
from ...passes.core.run import LOADED
from .errors import CommandError


def load_passes(files: Sequence[str], packages: Sequence[str]) -> tuple[type[Pass], ...]:
    """The passes that the files define, then those that are names of the packages' modules.

    Raises:
        CommandError: one cannot be imported (shows the line that fails), or has no pass.
    """
    found: dict[type[Pass], None] = {}
    for file in files:
        module = _from_file(file)
        found |= dict.fromkeys(_passes_of(module, f"'{file}'", own=True))
    for package in packages:
        try:
            module = importlib.import_module(package)
        except BaseException as error:
            raise CommandError(f"--load-package {package}: {_why(error)}") from None
        found |= dict.fromkeys(_passes_of(module, f"the package '{package}'", own=False))
    return tuple(found)


def _from_file(file: str) -> ModuleType:
    path = Path(file).absolute()
    name = f"passes_of.{path.stem}"
    if getattr(sys.modules.get(name), "__file__", str(path)) != str(path):  # another file of this name
        name += f"_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if path.suffix != ".py" or not path.is_file():
        what = "is no file" if not path.is_file() else "is not called *.py"
        raise CommandError(f"--load {file}: {what}")
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    setattr(module, LOADED, file)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as for a script: what lies beside it can be imported
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise CommandError(f"--load {file}: {_why(error, path)}") from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _passes_of(module: ModuleType, where: str, own: bool) -> list[type[Pass]]:
    """The passes with a name that a module defines, or with `own` off those that it only imports, too."""
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Pass) and item.name and not is_own(item)
    ]
    found = [item for item in found if not own or item.__module__ == module.__name__]
    if not found:
        raise CommandError(f"{where} has no pass: a subclass of intarsia's Pass with the class attribute 'name'")
    return found


def _why(error: BaseException, path: Path | None = None) -> str:
    """The error, and the last line of the file where it came up."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}\n  {(error.text or '').strip()}"
    said = "".join(traceback.format_exception_only(error)).strip()
    places = traceback.extract_tb(error.__traceback__)
    inside = [p for p in places if path is None or Path(p.filename) == path]
    if path is None or not inside:
        return said
    return f"{inside[-1].filename}:{inside[-1].lineno}: {said}\n  {inside[-1].line}"
