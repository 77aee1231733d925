"""The C++ compiler in tests: at -O1, where it takes half of its time, and once for a text in a run of the tests, whichever test and worker needs it first.

Loops with `omp simd` are vectorized at -O1 too. The product's own level, and a compiler run for each program, have the kernels of every
processor, the models of all levels, the accuracy of the math header, what tests the cache and the compiler, the tutorial's page, the examples, and other
processes: these use the fixture `product_compiler`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from intarsia.targets.build import program
from intarsia.targets.build import toolchain as build
from intarsia.targets.build.toolchain import Progress, Source, Toolchain, compile_sources

PRODUCT = build.OPTIMIZE
LIGHT = ("-O1", *build.OPTIMIZE[1:])
HEADER = re.compile(r'#include "(\w+\.h)"\n')  # a text begins with the one header that brings all others
OFTEN = 4  # texts with the same header and flags: it is precompiled


@contextmanager
def optimized(flags: tuple[str, ...]) -> Iterator[None]:
    """Compile with these flags in place of build.OPTIMIZE."""
    before = build.OPTIMIZE
    build.OPTIMIZE = flags
    build._toolchain.cache_clear()
    yield
    build.OPTIMIZE = before
    build._toolchain.cache_clear()


class Shared:
    """In place of `compile_sources` where programs are compiled: what is in the folder already is copied from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiled = self.copied = 0
        self.included: Counter[Path] = Counter()

    def __call__(
        self, sources: Sequence[Source], toolchain: Toolchain, out_dir: Path, *, progress: Progress | None = None
    ) -> list[Path]:
        out_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = {s.name: self.folder / f"{self._key(s, toolchain)}.so" for s in sources}
        missing = [s for s in sources if not kept[s.name].exists()]
        self.compiled += len(missing)
        self.copied += len(sources) - len(missing)
        if missing:
            for path in compile_sources(missing, self._prepared(missing, toolchain), out_dir, progress=progress):
                partial = self.folder / f".{os.getpid()}-{threading.get_ident()}-{path.name}"
                shutil.copyfile(path, partial)
                partial.replace(kept[path.stem])
        for source in sources:
            if source not in missing:
                shutil.copyfile(kept[source.name], out_dir / f"{source.name}.so")
        return [out_dir / f"{s.name}.so" for s in sources]

    def _prepared(self, sources: Sequence[Source], toolchain: Toolchain) -> Toolchain:
        """The toolchain with precompiled headers in front of the package's own; gcc passes over those that were made with other flags."""
        if toolchain.kind != "gcc":
            return toolchain
        folder = self.folder / toolchain.identity[:16]
        for header in {found[1] for s in sources if (found := HEADER.match(s.text))}:
            self.included[folder / header] += 1
            made = folder / f"{header}.gch"
            if self.included[folder / header] >= OFTEN and not made.exists():
                folder.mkdir(exist_ok=True)
                partial = folder / f".{os.getpid()}-{header}.gch"
                bare = dataclasses.replace(toolchain, link_flags=())
                subprocess.run(bare.command(build.HEADER_DIR / header, partial), check=True)
                partial.replace(made)
        return dataclasses.replace(toolchain, flags=(f"-I{folder}", *toolchain.flags))

    @staticmethod
    def _key(source: Source, toolchain: Toolchain) -> str:
        code = re.sub(r"^\s*//.*\n", "", source.text, flags=re.MULTILINE)  # comments say from which lines a kernel is
        return hashlib.sha256(repr((code, source.light, toolchain.identity)).encode()).hexdigest()


@contextmanager
def shared(folder: Path) -> Iterator[Shared]:
    """Programs of this process are compiled once for a text, with all processes that have the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    before, program.compile_sources = program.compile_sources, Shared(folder)  # type: ignore[attr-defined]
    yield program.compile_sources  # type: ignore[attr-defined]
    program.compile_sources = before  # type: ignore[attr-defined]


@contextmanager
def product() -> Iterator[None]:
    """As in the product: its level, a compiler run for each program."""
    before, program.compile_sources = program.compile_sources, compile_sources  # type: ignore[attr-defined]
    with optimized(PRODUCT):
        yield
    program.compile_sources = before  # type: ignore[attr-defined]
