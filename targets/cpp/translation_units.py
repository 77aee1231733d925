"""Which kernel goes into which translation unit: little text twice, all processor cores busy for the same time, the longest first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import buffer, loop
from ...ir.interpreter.loops import find_function
from ...ir.syntax import Op
from ..build.toolchain import Source, cores
from ..host.kernels import runs_on_gpu
from .call_kernels import CallKernel, emit_call_unit
from .emit import emit_kernel, emit_unit, kernels_of

UNIT_CHARACTERS = 20_000  # text of about this length is one translation unit
_TEMPLATE = re.compile(r"\bim::(\w+)(<[^<>()]*>)?")
# g++ takes for one of them, once in a unit.
_SECONDS = {"attention": 0.8, "linear": 0.15, "rows_product": 0.12, "winograd": 0.12}
_SECONDS |= {"dense_convolution": 0.1, "depthwise_convolution": 0.1, "few_channels_convolution": 0.08, "max_pool": 0.1}
# Seconds for an inner loop of such a template, a kernel, a character of other text.
_INSTANCE, _CALL, _CHARACTER = 0.04, 0.006, 4e-5


def units_of(module: ModuleOp, calls: Mapping[Op, CallKernel], shared: str = "") -> tuple[Source, ...]:
    """The C++ units of a module at the `buffer` level, those that take long first; one of them holds the text `shared`, too.

    Args:
        calls: its library calls that kernels carry out.
    """
    seldom = _only_in_constants(module)
    kernels = [kernel for kernel in kernels_of(module) if not runs_on_gpu(kernel)]
    found = _call_units(calls)
    found += _units("kernels", [k for k in kernels if k["sym_name"] not in seldom], light=False)
    found += _units("constants", [k for k in kernels if k["sym_name"] in seldom], light=True)
    found.sort(key=lambda item: -item[0])
    sources = [source for _, source in found]
    if shared:
        at = next((i for i in reversed(range(len(sources))) if not sources[i].light), None)
        if at is None:
            sources.append(Source("shared", shared))
        else:
            sources[at] = Source(sources[at].name, f"{sources[at].text}\n{shared}")
    return tuple(sources)


def _only_in_constants(module: ModuleOp) -> set[str]:
    """The kernels that run once for each state of the parameters."""
    launched = {}
    for name in ("main", "constants"):
        function = find_function(module, name)
        ops = function.walk() if function is not None else ()
        launched[name] = {op["kernel"] for op in ops if isinstance(op, buffer.Launch)}
    return launched["constants"] - launched["main"]


def _units(name: str, kernels: Sequence[loop.Kernel], *, light: bool) -> list[tuple[float, Source]]:
    """Kernels of equal length in all; each with the seconds that it takes to compile."""
    texts = [(kernel, len(emit_kernel(kernel))) for kernel in kernels]
    count = max(1, round(sum(length for _, length in texts) / (UNIT_CHARACTERS * (3 if light else 1))))
    groups: list[list[loop.Kernel]] = [[] for _ in range(count)]
    sizes = [0] * count
    for kernel, length in sorted(texts, key=lambda item: (-item[1], item[0]["sym_name"])):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(kernel)
        sizes[smallest] += length
    cost = _CHARACTER / (3 if light else 1)
    return [
        (size * cost, Source(f"{name}{i}", emit_unit(group), light))
        for i, (group, size) in enumerate(zip(groups, sizes, strict=True))
        if group
    ]


def _call_units(calls: Mapping[Op, CallKernel]) -> list[tuple[float, Source]]:
    """The kernels for library calls: templates that take the compiler long, each in as few units as leaves all cores something to do."""
    kernels = {kernel.name: kernel for kernel in calls.values()}
    parts = {name: {a + b for a, b in _TEMPLATE.findall(kernel.body)} for name, kernel in kernels.items()}
    held: list[set[str]] = [set() for _ in range(cores())]
    loads, groups = [0.0] * len(held), [[] for _ in held]  # type: ignore[var-annotated]
    for name in sorted(kernels, key=lambda name: -_seconds(parts[name])):
        after = [load + _seconds(parts[name] - has) for load, has in zip(loads, held, strict=True)]
        best = after.index(min(after))
        loads[best] = after[best]
        held[best] |= parts[name]
        groups[best].append(name)
    # Calls of a kernel follow each other in its unit, in the module's order.
    texts = [
        emit_call_unit({op: kernel for name in group for op, kernel in calls.items() if kernel.name == name})
        for group in groups
    ]
    return [
        (load, Source(f"calls{i}", text))
        for i, (load, group, text) in enumerate(zip(loads, groups, texts, strict=True))
        if group
    ]


def _seconds(parts: set[str]) -> float:
    """About how long templates take to compile."""
    costs = (_SECONDS.get(part.partition("<")[0], _INSTANCE if "<" in part else 0.0) for part in parts)
    return math.fsum([_CALL, *costs])  # exact: the same in each process, whatever the order of a set
