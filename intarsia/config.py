"""All settings, in one table. Each can be given as `compile(..., options={"name": value})` or by its environment variable."""

from __future__ import annotations

import difflib
import operator
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


def suggestion(word: Any, known: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean '...'?` for a word that is not known, else `otherwise`."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else otherwise


@dataclass(frozen=True)
class Config:
    """The settings.

    Attributes:
        debug: folder that receives the IR of every stage, the generated C++ and Triton, and the host program (INTARSIA_DEBUG).
        cache: keep compiled code on disk (INTARSIA_CACHE, 0 or 1).
        cache_dir: the folder for that; default: the user's cache folder (INTARSIA_CACHE_DIR).
        threads: how many threads kernels are made for; 0: as many as torch uses (INTARSIA_THREADS).
        packing: keep packed copies of weights for the library's fastest calls; they are made again when the weights change, in
            whatever way. A number is the most MiB that they may take, -1 or True no limit, False none (INTARSIA_PACKING).
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
        memory_budget: of a training step, how much of what backward reads is saved by forward, and not computed again: from 1, which is the
            fastest, to 0, which saves what cannot be computed again alone (random numbers). In between, the least time is spent for
            that part of the bytes that lie between both (INTARSIA_MEMORY_BUDGET).
        random: where random numbers are made. "eager": by torch's own calls, with eager's numbers. "philox": in kernels, from a seed that torch's
            generator gives in every call; reproducible by `torch.manual_seed`, of the same distributions, but other numbers than eager's.
            "auto": "philox" on a GPU, "eager" on a CPU (INTARSIA_RANDOM).
        numerics: "float32": intermediates of half types stay in float32 inside a kernel. "eager": they are rounded where eager rounds, sums and
            products are not contracted, and what follows a product is a kernel of its own (INTARSIA_NUMERICS).
        libraries: "measure" which library call is the fastest, once for each bucket of shapes on a processor, or take the "fixed" choice
            that is the same everywhere (INTARSIA_LIBRARIES).
        pipeline: the passes to run instead of the default ones, as for `passes-opt -p`: `default{after=fuse: mine}` (INTARSIA_PIPELINE).
        passes: files with passes of your own, which every compilation takes: `mine.py`, or several as in PATH (INTARSIA_PASSES).
        pass_seconds: after how many seconds a pass that is not Intarsia's own is stopped; 0: never (INTARSIA_PASS_SECONDS).
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
    memory_budget: float = 1.0
    random: str = "auto"
    numerics: str = "float32"
    libraries: str = "measure"
    pipeline: str = ""
    passes: str = ""
    pass_seconds: int = 120
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
        warn_of_unknown_variables()
        known = {f.name: f for f in fields(Config)}
        values: dict[str, Any] = {}
        for name in known:
            text = os.environ.get(f"INTARSIA_{name.upper()}")
            if text is not None:
                values[name] = _convert(name, text, f"the environment variable INTARSIA_{name.upper()}")
        for name, value in (options or {}).items():
            if name not in known:
                raise ValueError(f"unknown option '{name}'" + suggestion(name, known, f"; known: {', '.join(known)}"))
            values[name] = _convert(name, value, f"the option '{name}'")
        return replace(Config(), **values)


OTHER_VARIABLES: Mapping[str, str] = {
    "INTARSIA_LOGS": "topics that are written as things happen, such as breaks,recompiles; help lists them (see intarsia.set_logs)",
    "INTARSIA_LOGS_FILE": "file that they are added to; default: standard error",
    "INTARSIA_TRACE": "folder that receives a page and a trace of all that one run of a program compiled (docs/report.md)",
    "INTARSIA_PROCESSOR": "compile for an x86 processor with no more than this one has: plain, avx2, avx512, avx512-bf16 or amx",
}
_OF_TESTS = ["FUZZ", "OPDB", "SOAK", "SWEEP", "CONFORMANCE", "ALL_MODELS", "TEST"]  # this repository's own tests
_warned: set[str] = set()


def warn_of_unknown_variables() -> None:
    """One warning for each environment variable that is called as ours are, and is none."""
    for name in [n for n in os.environ if n.startswith("INTARSIA_") and n not in _warned]:
        _warned.add(name)
        known = [*(f"INTARSIA_{f.name.upper()}" for f in fields(Config)), *OTHER_VARIABLES]
        if name in known or any(name == f"INTARSIA_{w}" or name.startswith(f"INTARSIA_{w}_") for w in _OF_TESTS):
            continue
        close = difflib.get_close_matches(
            name.removeprefix("INTARSIA_"), [k.removeprefix("INTARSIA_") for k in known], n=1
        )
        hint = f"did you mean INTARSIA_{close[0]}?" if close else f"known are {', '.join(known)}"
        warnings.warn(f"the environment variable {name} is not used; {hint}", RuntimeWarning, stacklevel=3)


# Settings that stand as their defaults in keys of the cache: of one graph they make the same code.
DECIDE_NO_CODE = (
    *("debug", "cache", "cache_dir", "passes", "pass_seconds"),
    *("verify_each", "recompile_limit", "on_recompile", "on_error"),
)
_DEFAULTS = Config()
MOST_THREADS = 4096  # more cannot be started
_RANGES: dict[str, tuple[int, int | None, str]] = {  # least, most, what they mean
    "threads": (0, MOST_THREADS, "a number of threads, or 0 for as many as torch uses"),
    "packing": (-1, None, "a number of MiB, 0 for none, or -1 for no limit"),
    "result_memory": (-1, None, "a number of MiB, 0 for none, or -1 for a quarter of the memory"),
    "pass_seconds": (0, None, "a number of seconds, or 0 for no limit"),
    "recompile_limit": (1, None, "a number of variants, at least 1"),
}
_CHOICES = {
    "random": ("auto", "philox", "eager"),
    "numerics": ("float32", "eager"),
    "libraries": ("measure", "fixed"),
    "on_recompile": ("compile", "eager", "error"),
    "on_error": ("warn", "raise"),
}
_WORDS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off", ""), False)}


def _convert(name: str, value: Any, what: str) -> Any:
    if name in _CHOICES:
        if value in _CHOICES[name]:
            return value
        hint = suggestion(value, _CHOICES[name])
        raise ValueError(f"{what} takes one of {', '.join(_CHOICES[name])}, not {value!r}{hint}")
    if name in ("packing", "result_memory") and isinstance(value, bool | str) and str(value).lower() in _WORDS:
        return -1 if _WORDS[str(value).lower()] else 0
    kind = type(getattr(_DEFAULTS, name))
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in _WORDS:
            return _WORDS[str(value).lower()]
        raise ValueError(f"{what} takes true or false, not {value!r}")
    if kind is int:
        least, most, meaning = _RANGES[name]
        try:
            number = int(value) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, bool) or number < least or (most is not None and number > most):
            limit = f" (at most {most})" if most is not None else ""
            raise ValueError(f"{what} takes {meaning}{limit}, not {value!r:.80}")
        return number
    if kind is float:
        try:
            part = -1.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            part = -1.0
        if not 0.0 <= part <= 1.0:
            raise ValueError(f"{what} takes a number from 0 to 1, not {value!r:.80}")
        return part
    if value is None:
        return ""
    try:
        text = value if name == "pipeline" else os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{what} takes {'a pipeline as text' if name == 'pipeline' else 'a path'}, not {value!r:.80}")
    return text
