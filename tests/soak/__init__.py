"""Random programs of twelve kinds, judged against eager; see `python -m tests.soak --help`."""

from __future__ import annotations

from importlib import import_module

GENERATORS = (
    "tensors",
    "modules",
    "python",
    "operators",
    "options",
    "branches",
    "functions",
    "training",
    "state",
    "held",
    "memory",
    "weak",
)


def generate(name: str, seed: int) -> str:
    """The text of a generator's program."""
    module = import_module(f".{name}_programs" if name == "python" else f".{name}", __package__)
    text: str = module.program(seed)
    return text
