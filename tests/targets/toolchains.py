"""Toolchains for processors that have less than this one."""

from __future__ import annotations

import dataclasses

import pytest

from intarsia.targets.build.toolchain import Toolchain, find_toolchain

MARCHES = ((), ("-march=x86-64-v3",), ("-march=x86-64",))  # this processor, AVX2, plain


def toolchain_for(flags: tuple[str, ...]) -> Toolchain:
    """This machine's compiler with another -march; skips the test where the processor is of another family."""
    tools = find_toolchain()
    if not flags:
        return tools
    if tools.isa not in ("avx512", "avx2"):
        pytest.skip("another family of processors")
    return dataclasses.replace(tools, flags=(*(f for f in tools.flags if not f.startswith("-march")), *flags))
