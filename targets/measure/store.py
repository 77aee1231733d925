"""What was measured on a device, kept beside the compiled code: a table from a name to a word or a number, plain data that may be edited or removed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from json import dumps, loads  # as they were at import: programs patch modules
from pathlib import Path

from ..build.versions import torch_build


class Measurements:
    """The table `<what>-<device>-<libraries>.json` of a folder: other libraries than those that were measured have another one.

    Args:
        folder: where the table is kept; None: nowhere.
        what: what was measured.
        device: whose table it is.
        made_by: the libraries that took part, if they are more than torch with those that it was built with.
    """

    def __init__(self, folder: Path | None, what: str, device: str, made_by: str = "") -> None:
        self.path = None if folder is None else folder / f"{what}-{device}-{made_by or torch_build()}.json"

    def read(self) -> dict[str, object]:
        """The table; empty where there is none, or what is there is none."""
        if self.path is None:
            return {}
        try:
            found = loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # none yet, or damaged: measured again
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, table: Mapping[str, object]) -> None:
        """Adds to the table; of what two processes measured at the same time the last is kept. Where that cannot be, each process measures."""
        if self.path is None:
            return
        partial = self.path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            text = dumps(self.read() | dict(table), indent=1, sort_keys=True)
            partial.write_text(text + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        except (OSError, TypeError):  # a full or read-only disk
            partial.unlink(missing_ok=True)
