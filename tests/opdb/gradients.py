"""Gradients of torch's operator database: each sample's results and gradients, eager and compiled.

    python -m tests.opdb.gradients [--only NAME] [--part K/N]

prints one line an operator that does not match, and the totals. The gradients are those of all float results, each weighted with
random numbers, for every input that requires them.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree

import intarsia
from intarsia.frontend.torch_private.dispatch import storage_key
from intarsia.testing import same

from .database import common_methods_invocations, op_db
from .harness import Fallback, Outcome, _call, listening, matches


def differentiable() -> list[Any]:
    """The operators of the database that have gradients in float32 on a CPU."""
    return [i for i in op_db if i.supports_autograd and torch.float32 in i.supported_backward_dtypes("cpu")]


def full_name(info: Any) -> str:
    """The operator's name with that of its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def outcomes(names: set[str] | None = None, samples: int = 3, part: tuple[int, int] = (0, 1)) -> list[Outcome]:
    """What became of every differentiable operator; `part` (k, n) takes each n-th from k."""
    found = []
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _call):
        for info in differentiable()[part[0] :: part[1]]:
            if not names or info.name in names:
                found.append(_one(info, samples, "cpu"))
    return found


def outcome(info: Any, samples: int, device: str) -> Outcome:
    """What became of one differentiable operator on a device."""
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _call):
        return _one(info, samples, device)


def _one(info: Any, samples: int, device: str) -> Outcome:
    name = full_name(info)
    try:
        with torch.enable_grad():
            inputs = list(itertools.islice(info.sample_inputs(device, torch.float32, requires_grad=True), samples))
    except Exception as error:
        return Outcome(name, "skip", f"no samples: {error}")
    reached = 0
    for sample in inputs:

        def run(fn: Any, dtype: torch.dtype | None = None, sample: Any = sample) -> tuple[Any, list[Any]]:
            return with_gradients(fn, (sample.input, *sample.args), sample.kwargs, sample.output_process_fn_grad, dtype)

        try:
            expected, again = run(info.op), run(info.op)
        except Exception as error:
            return Outcome(name, "skip", f"eager: {str(error)[:200]}")
        if _differs(expected, again):
            return Outcome(name, "skip", "eager does not agree with itself")
        if not any(isinstance(g, torch.Tensor) for g in expected[1]):
            continue
        reached += 1
        try:
            found = _compiled(info.op, run)
        except Fallback as error:
            return Outcome(name, "fallback", f"{type(error).__name__}: {_line(error)}")
        except Exception as error:
            return Outcome(name, "error", f"{type(error).__name__}: {_line(error)}")
        difference = _differs(expected, found)
        if difference:
            try:
                gold = run(info.op, torch.float64)
                difference = _against(expected, found, gold) or ""
            except Exception:
                gold = None
        if difference:
            return Outcome(name, "wrong", difference)
    return Outcome(name, "pass") if reached else Outcome(name, "skip", "no sample has gradients")


def with_gradients(
    fn: Any, args: Any, kwargs: Any, process: Any, dtype: torch.dtype | None = None
) -> tuple[Any, list[Any]]:
    """The result of a call on copies of the arguments, and the gradients of its random-weighted sum for each tensor input."""
    (args, kwargs), inputs = _copies((args, kwargs), dtype)
    torch.manual_seed(0)
    with torch.enable_grad():
        result = fn(*args, **kwargs)
        leaves = [
            t
            for t in pytree.tree_leaves(process(result))
            if isinstance(t, torch.Tensor) and t.requires_grad and not t.is_sparse
        ]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in leaves]
    wanted = [t for t in inputs if t.requires_grad]
    if not leaves or not wanted:
        return _detached(result), []
    return _detached(result), list(torch.autograd.grad(leaves, wanted, weights, allow_unused=True))


def _copies(values: Any, dtype: torch.dtype | None) -> tuple[Any, list[torch.Tensor]]:
    inputs: list[torch.Tensor] = []

    def copy(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return dtype if dtype is not None and x == torch.float32 else x
        if not isinstance(x, torch.Tensor):
            return x
        made = x.detach().clone()
        if dtype is not None and made.is_floating_point():
            made = made.to(dtype)
        made.requires_grad_(x.requires_grad)
        inputs.append(made)
        return made

    return pytree.tree_map(copy, values), inputs


def _detached(values: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, values)


def _compiled(fn: Any, run: Any) -> Any:
    """The same by `intarsia.compile`. Raises Fallback unless both halves were compiled.

    Results that share memory with an input have no backward half (AOTAutograd makes them again as views of the input), and a
    function that gives its input has no graph.
    """
    before = intarsia.counters()
    views = False

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal views
        made = compiled(*args, **kwargs)
        memory = {storage_key(t) for t in pytree.tree_leaves((args, kwargs)) if _has_storage(t)}
        results = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor) and t.requires_grad]
        views = all(_has_storage(t) and storage_key(t) in memory for t in results)
        return made

    compiled = intarsia.compile(program)
    with warnings.catch_warnings(record=True) as told, listening() as logged:
        warnings.simplefilter("always")
        result = run(watched)
    after = intarsia.counters()
    texts = [str(w.message) for w in told if "intarsia" in str(w.message)] + logged
    said = " ".join(" ".join(texts).split()) or "SILENTLY"
    if after["fallbacks"] != before["fallbacks"] or after["breaks"] != before["breaks"]:
        raise Fallback(said)
    if after["graphs"] < before["graphs"] + 2 and not views:
        raise Fallback(f"{after['graphs'] - before['graphs']} of 2 graphs were compiled {said}")
    return result


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _differs(expected: Any, found: Any) -> str:
    """Empty when results and gradients agree; strides of gradients are left out, as eager's depend on the accumulation."""
    difference = matches(expected[0], found[0])
    if difference:
        return f"result: {difference}"
    for i, (x, y) in enumerate(zip(expected[1], found[1], strict=True)):
        if (x is None) != (y is None):
            return f"gradient {i}: {y if y is None else 'a tensor'} instead of {x if x is None else 'a tensor'}"
        if x is not None:
            difference = matches(*(t.to_dense().contiguous() for t in (x, y)))
            if difference or x.layout != y.layout:
                return f"gradient {i}: {difference or y.layout}"
    return ""


def _against(expected: Any, found: Any, gold: Any) -> str:
    """The accuracy rule: about as close to float64 as eager."""
    verdict = same(expected, found, gold, tol=1e-4)
    return verdict.message.replace("\n", " ")


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:600]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    k, n = map(int, options.part.split("/"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = outcomes(set(options.only) if options.only else None, options.samples, (k, n))
    for r in results:
        if r.kind != "pass":
            print(f"{r.kind:9} {r.name:45} {r.detail[:300]}")
    print(Counter(r.kind for r in results))


if __name__ == "__main__":
    main()
