"""The debug folder: the IR of every stage, the generated C++ and Triton, the host program, and each kernel as a benchmark, as files.

Each process that writes there gets a folder of its own, `run1`, `run2` ..., and in it each graph one that is called by the user's
function and a number: `run1/attention_1`, `run1/train_step_2_backward`.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import fx
from xdsl.dialects.builtin import ModuleOp

from ..config import Config
from ..ir.text import print_module
from ..targets.build.program import Generated
from ..targets.build.toolchain import HEADER_DIR
from ..targets.triton.device import capability
from ..targets.triton.program import KERNELS
from .kernel_scripts import scripts

log = logging.getLogger("intarsia")
_IMPORTS = "import torch\nfrom torch import device, inf, nan  # noqa: F401\n\n"
FUNCTION = "function"  # in the `meta` of a graph: what reports call the function that it was captured from
_LONGEST = 60  # of a function's name in that of a folder
_runs: dict[
    Path, tuple[Path, Iterator[int]]
] = {}  # by what was asked for: this process's folder there, and its next graph
_making = threading.Lock()
_warned: set[str] = set()


def _tell(root: object, error: Exception) -> None:
    """Once for a folder: debugging must not stop a program."""
    if str(root) not in _warned:
        _warned.add(str(root))
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        log.warning(
            "the debug folder %s cannot be written: %s. Set INTARSIA_DEBUG, or the option debug, to a folder of yours",
            root,
            reason,
        )


def _run_in(root: Path) -> tuple[Path, Iterator[int]]:
    """The folder of this process in another one, made at the first graph, and the numbers of graphs."""
    with _making:
        found = _runs.get(root)
        if found is None or not found[0].is_dir():  # somebody may have cleared it
            root.mkdir(parents=True, exist_ok=True)
            found = _runs[root] = _new(root / f"run{n}" for n in itertools.count(1)), itertools.count(1)
        return found


def _new(paths: Iterator[Path]) -> Path:
    """The first of these folders that was not there."""
    for path in paths:
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def _called(gm: fx.GraphModule, scope: str) -> tuple[str, str]:
    """How a graph's folder is called, in front of its number and behind."""
    name = str(gm.meta.get(FUNCTION, "")).rpartition("<locals>.")[2]
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST]
    return plain or "graph", f"_{scope}" if scope in ("forward", "backward") else ""


@dataclass
class DebugFolder:
    """A folder for one graph; without one every method does nothing."""

    path: Path | None = None
    stage: int = 0

    @staticmethod
    def create(config: Config, gm: fx.GraphModule, scope: str) -> DebugFolder:
        """A new folder; none, and a warning, where it cannot be made.

        Args:
            scope: "forward" or "backward" of a graph with gradients; else what it is stands in no name.
        """
        if not config.debug:
            return DebugFolder()
        root = Path(config.debug).expanduser().absolute()
        try:
            run, numbers = _run_in(root)
            front, behind = _called(gm, scope)
            return DebugFolder(_new(run / f"{front}_{n}{behind}" for n in numbers))
        except OSError as error:
            _tell(root, error)
        return DebugFolder()

    def __bool__(self) -> bool:
        return self.path is not None

    def write(self, name: str, text: str) -> None:
        """One file."""
        if self.path is not None:
            try:
                (self.path / name).parent.mkdir(exist_ok=True)
                (self.path / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            except OSError as error:  # a full disk
                _tell(self.path.parents[1], error)

    def write_graph(self, name: str, gm: fx.GraphModule) -> None:
        """An FX graph as Python code, which can be imported."""
        if self.path is not None:
            self.write(f"fx-{name}.py", _IMPORTS + gm.print_readable(print_output=False))

    def on_pass(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        """The IR after each pass: `3-cse.ir`."""
        if self.path is not None and phase == "after":
            self.stage += 1
            self.write(f"{self.stage}-{name}.ir", print_module(module))

    def write_sources(self, generated: Generated, module: ModuleOp) -> None:
        """The Triton module, the C++, the host program, and a benchmark of each kernel."""
        if self.path is None:
            return
        if generated.gpu is not None:
            self.write(KERNELS, generated.gpu.text)
        for unit in generated.units:  # with their headers, so that they compile by themselves
            self.write(f"{unit.name}.cpp", unit.text.replace('#include "intarsia_', '#include "include/intarsia_'))
        for header in sorted(HEADER_DIR.glob("*.h")) if generated.units else ():
            self.write(f"include/{header.name}", header.read_text(encoding="utf-8"))
        self.write("host.py", generated.host.text)
        gpu = generated.host.gpu
        try:
            for name, text in scripts(module, "cpu" if gpu is None else capability(gpu)):
                self.write(name, text)
        except Exception as error:  # a kernel that is nothing without its program is no reason to stop one
            log.warning("no benchmark of a kernel in %s: %s: %s", self.path, type(error).__name__, error)
