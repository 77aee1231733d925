"""What was measured on a device, kept beside the compiled code: a table from a name to a word or a number, plain data that may be edited or removed."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from json import dumps, loads  # as they were at import: programs patch modules
from pathlib import Path
from typing import TypeVar

import torch

from ..build.toolchain import cpu_identity
from ..build.versions import torch_build

__all__ = ["Measurements"]

T = TypeVar("T", str, float)

_log = logging.getLogger("intarsia.autotuning")  # a topic of `intarsia.set_logs`


class Measurements:
    """The table `measured-<device>-<libraries>.json` of a folder: other libraries than those that were measured have another one.

    Args:
        folder: where the table is kept; None: nowhere.
        device: whose table it is: "cpu" or "cuda:0".
        made_by: the libraries that took part, if they are more than torch with those that it was built with.
    """

    def __init__(self, folder: Path | None, device: str, made_by: str = "") -> None:
        self.path = None if folder is None else folder / f"measured-{_identity(device)}-{made_by or torch_build()}.json"
        self.table: dict[str, object] | None = None
        self.lock = threading.Lock()

    def get(self, key: str, measure: Callable[[], T], holds: Callable[[object], bool]) -> T:
        """What the table has under a name, if it holds, else as measured now; an empty word and 0 are not kept."""
        with self.lock:
            if self.table is None:
                self.table = self._read()
            found = self.table.get(key)
            if holds(found):
                _log.debug("known: %s: %s", key, found)
                return found  # type: ignore[return-value]  # it is what was measured
            made = measure()
            _log.info("measured: %s: %s", key, made)
            if made:
                self.table[key] = made
                self._add(key, made)
        return made

    def _read(self) -> dict[str, object]:
        """The table; empty where there is none, or what is there is none."""
        if self.path is None:
            return {}
        try:
            found = loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # none yet, or damaged: measured again
            return {}
        return found if isinstance(found, dict) else {}

    def _add(self, key: str, made: object) -> None:
        """Adds to the table; of what two processes measured at the same time the last is kept. Where that cannot be, each process measures."""
        if self.path is None:
            return
        partial = self.path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            text = dumps(self._read() | {key: made}, indent=1, sort_keys=True)
            partial.write_text(text + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        except (OSError, TypeError):  # a full or read-only disk
            partial.unlink(missing_ok=True)


def _identity(device: str) -> str:
    if device == "cpu":
        return cpu_identity()
    return re.sub(r"\W+", "-", torch.cuda.get_device_name(device)).strip("-").lower()
