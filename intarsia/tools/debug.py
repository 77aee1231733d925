"""The debug folder: the IR of every stage, the generated C++ and Triton, and the host program of every graph, as files."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

from torch import fx
from xdsl.dialects.builtin import ModuleOp

from ..config import Config
from ..ir.text import print_module
from ..targets.build.program import Generated
from ..targets.build.toolchain import HEADER_DIR
from ..targets.triton.program import KERNELS

log = logging.getLogger("intarsia")
_IMPORTS = "import torch\nfrom torch import device, inf, nan  # noqa: F401\n\n"
_numbers = itertools.count()
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


@dataclass
class DebugFolder:
    """A folder for one graph, `graph0`, `graph1` ... under the configured one; without one every method does nothing."""

    path: Path | None = None
    stage: int = 0

    @staticmethod
    def create(config: Config) -> DebugFolder:
        """A new folder; none, and a warning, where it cannot be made."""
        if not config.debug:
            return DebugFolder()
        root = Path(config.debug).expanduser().absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
            for number in _numbers:
                path = root / f"graph{number}"
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return DebugFolder(path)
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
                _tell(self.path.parent, error)

    def write_graph(self, name: str, gm: fx.GraphModule) -> None:
        """An FX graph as Python code, which can be imported."""
        if self.path is not None:
            self.write(f"fx-{name}.py", _IMPORTS + gm.print_readable(print_output=False))

    def on_pass(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        """The IR after each pass: `3-cse.ir`."""
        if self.path is not None and phase == "after":
            self.stage += 1
            self.write(f"{self.stage}-{name}.ir", print_module(module))

    def write_sources(self, generated: Generated) -> None:
        """The Triton module, the C++ and the host program."""
        if generated.gpu is not None:
            self.write(KERNELS, generated.gpu.text)
        for unit in generated.units:  # with their headers, so that they compile by themselves
            self.write(f"{unit.name}.cpp", unit.text.replace('#include "intarsia_', '#include "include/intarsia_'))
        for header in sorted(HEADER_DIR.glob("*.h")) if generated.units else ():
            self.write(f"include/{header.name}", header.read_text(encoding="utf-8"))
        self.write("host.py", generated.host.text)
