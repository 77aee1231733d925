"""Random calls of operators with a fast form, against eager; and that they stand on both sides of the clauses of its precondition.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls import (
    Batch,
    Case,
    attention,
    convolution,
    convolution_as_it_lies,
    differing,
    gradients,
    narrow,
    places,
    pool,
    product,
    random_case,
)

import intarsia
from intarsia.frontend.errors import Unsupported
from intarsia.passes.core import clauses
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.build.toolchain import detect_isa

COUNT = int(os.environ.get("INTARSIA_FUZZ", "40"))
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
TOGETHER = 20


def cases(first: int, count: int, kinds: list[Callable[..., Any]] | None = None) -> list[Case]:
    return [case for seed in range(first, first + count) if (case := random_case(seed, kinds)) is not None]


@pytest.mark.parametrize("part", range(2))
def test_calls(part: int) -> None:
    for number, first in enumerate(range(FIRST + part * TOGETHER, FIRST + COUNT, 2 * TOGETHER)):
        options = {"verify_each": True, "winograd": number % 2 == part}
        found = differing(cases(first, TOGETHER), options, True if number % 5 == 4 else None)
        assert not found, "\n".join(f"{case.text}\n{what}" for case, what in found)


# What a call cannot break that gets so far: other clauses, or who asks, see to it.
ALWAYS = {
    "a CPU with registers for a tile of sums", "memory of the host", "no effect", "an image, a weight and perhaps a bias", "as many tensors behind the sums as there is room for",
    "two numbers each for stride, padding and dilation", "a weight packed for one filter a channel belongs to such a window", "two numbers, or one for both",
    "a weight packed for Winograd's products belongs to such a window", "weight and bias without gaps", "results channels-last", "channels side by side",
    "one group", "channels-last memory", "x, a weight and perhaps a bias", "a product with a matrix", "bfloat16 where its dot product is the fastest way to multiply",
    "memory without gaps, but for the weight", "memory without gaps", "rows without gaps", "a tensor, places and what is added there", "places in int32 or int64",
    "whole factors of whole numbers", "places along one dimension", "a dimension", "memory of the host, nothing empty", "a result without gaps", "a weight of known size",
    "a matrix as the weight", "single elements", "known sizes, and none of 0", "numbers in the host's memory", "single elements of the result", "as many heads of keys as of values", "equal batches", "no dropout", "a mask, or causal, and not both", "a mask of the same type, in float32, or of truth values",
    "nothing behind the sums", "queries, keys, values and perhaps a mask", "a torch with oneDNN", "a mask of two to four dimensions", "a type that is summed",
    "its dtypes have loops", "its memory is on one device", "a kernel with results, that is no contraction", "no memory lies between its elements",
    "only numbers are repeated", "its sizes are known", "they have elements, so many that 32 bits count them",
    "a convolution or its gradients", "an image, a weight, and a gradient where gradients are wanted", "no effect, and a weight as it is", "gradients that are wanted, and no others", "a bias in float32",
    "a result channels-last", "no factors", "a row of the window in registers", "factors of channels without gaps", "known sizes", "as many heads, or shared ones", "a matrix as the weight, nothing empty",
}  # fmt: skip


@pytest.mark.skipif("INTARSIA_FUZZ" not in os.environ, reason="takes a minute")
@pytest.mark.skipif(detect_isa() != "avx512", reason="the preconditions of kernels for AVX-512")
def test_both_sides_of_every_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only lowered: how the kernels compute is the other test's."""
    seen: dict[tuple[str, str], set[bool]] = defaultdict(set)

    def broken(found: clauses.Clauses) -> str | None:
        for holds, what in found:
            seen[found.__name__, what].add(holds)  # type: ignore[attr-defined]
            if not holds:
                return what
        return None

    default_pipeline()  # all passes are imported
    asking = [m for name, m in sys.modules.items() if name.startswith("intarsia.") and hasattr(m, "broken")]
    assert len(asking) > 8
    for module in asking:
        monkeypatch.setattr(module, "broken", broken)
    for first, kinds in enumerate(
        [[convolution]] * 20
        + [[product]] * 6
        + [[attention]] * 2
        + [[pool]] * 3
        + [[places], [convolution_as_it_lies]]
        + [[narrow]] * 2
        + [[gradients]] * 6
    ):
        monkeypatch.setenv("INTARSIA_PACKING", "0" if kinds == [narrow] else "-1")  # narrow weights stay narrow
        for case in cases(1000 * first, 24, kinds):
            with torch.no_grad(), contextlib.suppress(Unsupported):  # a call that eager alone takes
                intarsia.lower(Batch([case]).eval(), *case.inputs).source()
    on_gpu = ("takes_short", "takes_cudnn", "takes_flash", "takes_efficient", "takes_library")
    most = (
        *on_gpu,
        "takes_depthwise_on_gpu",
        "takes_max_pool",
        "takes_rows",
        "takes_products",  # drawn on both sides by test_match_attention
    )  # these are asked little of what they do not take
    seen = {(name, what): sides for (name, what), sides in seen.items() if name not in most and what not in ALWAYS}
    missing = [(*clause, sides) for clause, sides in seen.items() if len(sides) < 2]
    assert not missing, "\n".join(map(str, missing))
