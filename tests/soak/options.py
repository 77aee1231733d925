"""Programs of the other generators, compiled with random options."""

from __future__ import annotations

import random

from . import modules, operators, python_programs, tensors

OPTIONS = {
    "threads": ["1", "2", "3"],
    "packing": ["False", "1", "True"],
    "result_memory": ["0", "1", "True"],
    "winograd": ["False"],
    "numerics": ["'eager'", "'float32'"],
    "libraries": ["'fixed'", "'measure'"],
    "random": ["'eager'"],
    "verify_each": ["True"],
    "recompile_limit": ["1", "2"],
    "on_recompile": ["'eager'", "'compile'"],
    "cache": ["False"],
}
SETTINGS = {
    "dynamic": ["True", "True", "False", "None"],
    "mode": ["'default'", "'reduce-overhead'", "'max-autotune'", "'max-autotune-no-cudagraphs'"],
    "fullgraph": ["True", "False"],
    "passes": ["[Nothing()]"],
}
NOTHING = """\
from dataclasses import dataclass
from typing import ClassVar
from intarsia.passes.core.base import Pass
@dataclass(frozen=True)
class Nothing(Pass):
    name: ClassVar[str] = 'nothing'
    after: ClassVar[tuple] = ('decompose',)
    def apply(self, ctx, module): pass
"""


def program(seed: int) -> str:
    """The program of this seed: one of another generator, with options."""
    rng = random.Random(seed)
    inner = rng.choice([tensors, tensors, tensors, modules, modules, operators, python_programs])
    text = inner.program(10**6 + seed)
    settings = {
        name: rng.choice(values)
        for name, values in SETTINGS.items()
        if rng.random() < (0.5 if name == "dynamic" else 0.25)
    }
    chosen = {name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < 0.2}
    if chosen:
        settings["options"] = "{" + ", ".join(f"'{k}': {v}" for k, v in chosen.items()) + "}"
    if "passes" in settings:
        text = text.replace("import intarsia\n", "import intarsia\n" + NOTHING, 1)
    given = "".join(f", {k}={v}" for k, v in settings.items())
    for target in ("f", "m"):
        text = text.replace(f"f = intarsia.compile({target})", f"f = intarsia.compile({target}{given})")
    return text
