"""What a call costs before any work is done: a one-op call, and the dispatch of a 12-layer BERT, beside torch.compile, in us.

python benchmarks/guards.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision_stub

import intarsia


def best(function: Callable[[], Any], calls: int, rounds: int = 7) -> float:
    """Microseconds of one call, the best of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls)
    return min(times) * 1e6


def one_op() -> None:
    """`x + y` on 8 elements: the whole call."""

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    x, y = torch.randn(8), torch.randn(8)
    ours, theirs = intarsia.compile(add), torch.compile(add)
    ours(x, y), theirs(x, y)
    eager, us, them = (best(lambda f=f: f(x, y), 20_000) for f in (add, ours, theirs))  # type: ignore[misc]
    print(f"{'one op':24}{eager:8.2f}{us:10.2f} ({us / eager:.2f}x){them:10.2f} ({them / eager:.2f}x)")


def bert(dynamic: bool) -> None:
    """A 12-layer BERT whose graph does nothing: guards and call alone."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=100, **sizes)).eval()
    ids = torch.randint(0, 100, (2, 16))

    def nothing(module: Any, _: Any) -> Any:
        nodes = next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0]
        results = [
            torch.zeros([int(s) if isinstance(s, int) else 2 for s in n.meta["example_value"].shape]) for n in nodes
        ]
        return lambda *args: results

    torch._dynamo.reset()
    ours = intarsia.compile(model, backend=nothing, dynamic=dynamic)
    theirs = torch.compile(model, backend=nothing, dynamic=dynamic)
    ours(ids), theirs(ids)
    us, them = best(lambda: ours(ids), 500), best(lambda: theirs(ids), 500)
    print(f"{'BERT-12 dispatch' + (', dynamic' if dynamic else ''):24}{'':8}{us:10.1f}{'':8}{them:10.1f}")


def main() -> None:
    """Print the table."""
    torchvision_stub.install()
    print(f"{'us a call':24}{'eager':>8}{'intarsia':>10}{'':8}{'torch.compile':>14}")
    with torch.no_grad():
        one_op()
        bert(dynamic=False)
        bert(dynamic=True)


if __name__ == "__main__":
    main()
