"""torch's own operator database as a test set: each sample through functionalise, import, decompose and the interpreter.

    python -m tests.opdb.harness [--only NAME] [--stage decompose|full]

prints one line an operator that does not match, and the totals.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import fx

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import kernel
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.passes.core.context import CompileContext
from intarsia.passes.graph.decompose import Decompose


@dataclass(frozen=True)
class Outcome:
    """What became of one operator: "pass", "wrong", "fallback" (visibly not imported) or "skip" (eager itself differs)."""

    name: str
    kind: str
    detail: str = ""
    externs: int = 0


def graph_of(fn: Any, leaves: list[Any], spec: pytree.TreeSpec) -> tuple[fx.GraphModule, list[Any]]:
    """A graph of one call: tensors are placeholders, all else is written into it."""
    graph = fx.Graph()
    tensors, nodes = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            nodes.append(graph.placeholder(f"x{len(tensors)}"))
            tensors.append(leaf)
        else:
            nodes.append(leaf)
    args, kwargs = pytree.tree_unflatten(nodes, spec)
    graph.output(graph.call_function(fn, args, kwargs))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def matches(expected: Any, found: Any) -> str:
    """Empty when both agree, else what differs."""
    a, b = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    if len(a) != len(b):
        return f"{len(b)} results instead of {len(a)}"
    for x, y in zip(a, b, strict=True):
        if not isinstance(x, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"{y!r} instead of {x!r}"
            continue
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{y.dtype}{list(y.shape)} instead of {x.dtype}{list(x.shape)}"
        if x.numel() and x.stride() != y.stride():
            pairs = zip(x.shape, x.stride(), y.stride(), strict=True)
            if any(n > 1 and s != t for n, s, t in pairs):
                return f"strides {y.stride()} instead of {x.stride()}"
        near = TOLERANCES.get(x.dtype, 1e-4)
        try:
            torch.testing.assert_close(y, x, rtol=near, atol=near, equal_nan=True)
        except AssertionError as error:
            return str(error).splitlines()[0] + " " + " ".join(str(error).splitlines()[2:4])
    return ""


def try_interpreter(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int]:
    """The result by functionalise, import, decompose and the interpreter; and the number of library calls."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    gm, tensors = graph_of(fn, leaves, spec)
    functional = functionalize(gm, tensors)
    imported = import_fx(functional)
    Decompose().apply(CompileContext(), imported.module)
    imported.module.verify()
    externs = sum(isinstance(op, kernel.Extern) for op in imported.module.walk())
    flat = run_user(imported.module, [*tensors, *imported.constants])
    return pytree.tree_unflatten(flat, functional.output_tree), externs


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the logger of intarsia says meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger, level = logging.getLogger("intarsia"), logging.getLogger("intarsia").level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def try_compiled(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int]:
    """The result by `intarsia.compile`. Raises Fallback when the call, or its graph, ran in eager."""
    before = intarsia.counters()["fallbacks"]

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    with warnings.catch_warnings(record=True) as told, listening() as logged:
        warnings.simplefilter("always")
        result = intarsia.compile(program)(*args, **kwargs)
    if intarsia.counters()["fallbacks"] != before:
        texts = [str(w.message) for w in told if "intarsia" in str(w.message)] + logged
        raise Fallback(" ".join(" ".join(texts).split()) or "SILENTLY")
    return result, 0


# What they give is whatever lies in the memory.
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


class Fallback(Exception):
    """The program was not compiled but ran in eager, and said so."""


def name_of(info: Any) -> str:
    """An operator's name, with that of its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def outcomes(
    names: set[str] | None = None, samples: int = 3, attempt: Any = try_interpreter, part: tuple[int, int] = (0, 1)
) -> list[Outcome]:
    """Every operator of the database that supports float32 on a CPU; `part` (k, n) takes each n-th from k."""
    from .database import op_db  # takes seconds to import; other tests use what stands beside this

    chosen = [info for info in op_db[part[0] :: part[1]] if not names or info.name in names]
    return [outcome(info, samples, attempt) for info in chosen if torch.float32 in info.dtypes]


def outcome(info: Any, samples: int, attempt: Any, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Outcome:
    """What becomes of one operator, in a type and on a device that it supports."""
    from .database import common_methods_invocations

    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _call):
        return _one(info, name_of(info), samples, attempt, device, dtype)


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Random operators: the seed is set around each call, not inside what is compiled."""
    return op(*args, **kwargs)


def _one(info: Any, name: str, samples: int, attempt: Any, device: str, dtype: torch.dtype) -> Outcome:
    externs = 0
    if name in UNDEFINED and device != "cpu":
        return Outcome(name, "skip", "its values are not defined")
    try:
        inputs = list(itertools.islice(info.sample_inputs(device, dtype, requires_grad=False), samples))
    except Exception as error:
        return Outcome(name, "skip", f"no samples: {error}")
    for sample in inputs:
        args, kwargs = (sample.input, *sample.args), sample.kwargs

        def clones(values: Any) -> Any:
            return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values)

        try:
            torch.manual_seed(0)
            expected = info.op(*clones(args), **clones(kwargs))
            torch.manual_seed(0)
            again = info.op(*clones(args), **clones(kwargs))
        except Exception as error:
            return Outcome(name, "skip", f"eager: {error}")
        if matches(expected, again):
            return Outcome(name, "skip", "eager does not agree with itself")
        try:
            torch.manual_seed(0)
            result, count = attempt(info.op, clones(args), clones(kwargs))
        except Exception as error:
            return Outcome(
                name, "fallback", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        difference = matches(expected, result)
        if difference:
            return Outcome(name, "wrong", difference)
        externs += count
    return Outcome(name, "pass", "", externs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--stage", choices=("decompose", "full"), default="decompose")
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    attempt = try_compiled if options.stage == "full" else try_interpreter
    k, n = map(int, options.part.split("/"))
    warnings.simplefilter("ignore")
    with torch.no_grad():
        results = outcomes(set(options.only) if options.only else None, options.samples, attempt, (k, n))
    for r in results:
        if r.kind != "pass":
            print(f"{r.kind:9} {r.name:45} {r.detail[:150]}")
    print(
        Counter(r.kind for r in results),
        "with library calls only:",
        sum(r.kind == "pass" and r.externs > 0 for r in results),
    )


if __name__ == "__main__":
    main()
