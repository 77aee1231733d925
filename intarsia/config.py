"""All settings, in one table. Each can be given as `compile(..., options={"name": value})` or by its environment variable."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Config:
    """The settings.

    Attributes:
        debug: folder that receives the IR of every stage, the generated C++ and Triton, and the host program (INTARSIA_DEBUG).
        cache: keep compiled code on disk (INTARSIA_CACHE, 0 or 1).
        cache_dir: the folder for that; default: the user's cache folder (INTARSIA_CACHE_DIR).
        threads: how many threads kernels are made for; 0: as many as torch uses (INTARSIA_THREADS).
        packing: keep packed copies of weights for the library's fastest calls; they are made again when torch counts a change. A number
            is the most MiB that they may take, -1 or True no limit. False
            for programs that write single elements of a parameter through `.data` or NumPy between calls (INTARSIA_PACKING).
        result_memory: keep the memory of large results (8 MiB and more) that the program has dropped, and use it for those of
            later calls, which spares fresh pages. A number is the most MiB that all functions may keep; -1 or True a quarter of the machine's
            memory; 0 or False: keep nothing (INTARSIA_RESULT_MEMORY).
        winograd: compute 3x3 convolutions in a quarter of the products. The rounding error is 2.4 to 3.6 times eager's, an infinite or NaN
            input reaches all outputs of its tile of 4x4 pixels, and the transformed weights take four times the memory (INTARSIA_WINOGRAD).
        cuda_graphs: record programs on a GPU, after a few calls, so that one call of the driver starts all of their kernels; mode
            "max-autotune-no-cudagraphs" turns it off as well (INTARSIA_CUDA_GRAPHS).
        record_custom: record programs with operators of a user's library, too, whose Python code does not run in a playback: mode
            "reduce-overhead" turns it on. Operators tagged cudagraph_unsafe are never recorded (INTARSIA_RECORD_CUSTOM).
        max_autotune: measure which kernels of matrix products are the fastest on the GPU, once for each bucket of shapes, instead of estimating
            it; modes "max-autotune" and "max-autotune-no-cudagraphs" turn it on (INTARSIA_MAX_AUTOTUNE).
        random: where random numbers are made. "eager": by torch's own calls, with eager's numbers. "philox": in kernels, from a seed that torch's
            generator gives in every call; reproducible by `torch.manual_seed`, of the same distributions, but other numbers than eager's.
            "auto": "philox" on a GPU, "eager" on a CPU (INTARSIA_RANDOM).
        numerics: "float32": intermediates of half types stay in float32 inside a kernel. "eager": they are rounded where eager rounds, sums and
            products are not contracted, and what follows a product is a kernel of its own (INTARSIA_NUMERICS).
        libraries: "measure" which library call is the fastest, once for each bucket of shapes on a processor, or take the "fixed" choice
            that is the same everywhere (INTARSIA_LIBRARIES).
        pipeline: the passes to run instead of the default ones, as for `passes-opt --pipeline` (INTARSIA_PIPELINE).
        verify_each: check the IR after every pass, and raise errors inside the compiler instead of
            running the graph in eager; for tests (INTARSIA_VERIFY_EACH).
        recompile_limit: how many variants of one function are kept (INTARSIA_RECOMPILE_LIMIT).
        on_recompile: what a call does that fits no variant: "compile" another, run in "eager", or raise an "error"
            (INTARSIA_ON_RECOMPILE).
        on_error: what an error inside the compiler does: "warn" and run that graph in eager, or "raise" it (INTARSIA_ON_ERROR).
    """

    debug: str = ""
    cache: bool = True
    cache_dir: str = ""
    threads: int = 0
    packing: int = -1
    result_memory: int = -1
    winograd: bool = True
    cuda_graphs: bool = True
    record_custom: bool = False
    max_autotune: bool = False
    random: str = "auto"
    numerics: str = "float32"
    libraries: str = "measure"
    pipeline: str = ""
    verify_each: bool = False
    recompile_limit: int = 8
    on_recompile: str = "compile"
    on_error: str = "warn"

    @property
    def strict(self) -> bool:
        """Whether errors inside the compiler are raised."""
        return self.verify_each or self.on_error == "raise"

    @staticmethod
    def from_environment(options: Mapping[str, Any] | None = None) -> Config:
        """The defaults, then the environment, then `options`.

        Raises:
            ValueError: an unknown option, or a value of the wrong kind; says what is known.
        """
        known = {f.name: f for f in fields(Config)}
        values: dict[str, Any] = {}
        for name in known:
            text = os.environ.get(f"INTARSIA_{name.upper()}")
            if text is not None:
                values[name] = _convert(name, text, f"the environment variable INTARSIA_{name.upper()}")
        for name, value in (options or {}).items():
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
                raise ValueError(f"unknown option '{name}'{hint}")
            values[name] = _convert(name, value, f"the option '{name}'")
        return replace(Config(), **values)


_DEFAULTS = Config()
_CHOICES = {
    "random": ("auto", "philox", "eager"),
    "numerics": ("float32", "eager"),
    "libraries": ("measure", "fixed"),
    "on_recompile": ("compile", "eager", "error"),
    "on_error": ("warn", "raise"),
}
_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "": False,
}


def _convert(name: str, value: Any, what: str) -> Any:
    if name in _CHOICES:
        if value in _CHOICES[name]:
            return value
        close = difflib.get_close_matches(str(value), _CHOICES[name], n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"{what} takes one of {', '.join(_CHOICES[name])}, not {value!r}{hint}")
    if name in ("packing", "result_memory") and str(value).lower() in _WORDS:
        return -1 if _WORDS[str(value).lower()] else 0
    kind = type(getattr(_DEFAULTS, name))
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in _WORDS:
            return _WORDS[str(value).lower()]
        raise ValueError(f"{what} takes true or false, not {value!r}")
    if kind is int:
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ValueError(f"{what} takes an integer, not {value!r}") from None
    return os.fspath(value) if value is not None else ""
