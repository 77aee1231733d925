"""How many compiles a run of sizes costs, ours beside torch.compile's capture: twenty batch sizes, sequence lengths 1 to 64.

    python benchmarks/shapes.py [mlp bert gpt2 resnet]

Every call is compared with eager. torch.compile runs with its backend "eager", which is its capture alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision_stub
from torch import Tensor, nn

import intarsia

BATCHES = random.Random(0).sample(range(2, 65), 20)
LENGTHS = list(range(1, 65))


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, 100, (batch, length))


def _mlp() -> tuple[nn.Module, Callable[[int, int], Tensor]]:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    return model, lambda batch, length: torch.randn(batch, length, 8)


def _bert() -> tuple[nn.Module, Callable[[int, int], Tensor]]:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return BertModel(BertConfig(vocab_size=100, **sizes)), _tokens


def _gpt2() -> tuple[nn.Module, Callable[[int, int], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(config), _tokens


def _resnet() -> tuple[nn.Module, Callable[[int, int], Tensor]]:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1]), lambda batch, length: torch.randn(batch, 3, 31 + length, 31 + length)


CASES = {"mlp": _mlp, "bert": _bert, "gpt2": _gpt2, "resnet": _resnet}


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _ours(model: nn.Module, inputs: list[Tensor], wanted: list[Tensor]) -> tuple[int, float, float]:
    intarsia.reset()
    fast = intarsia.compile(model)
    start, worst = time.perf_counter(), 0.0
    for x, want in zip(inputs, wanted, strict=True):
        worst = max(worst, float((_first(fast(x)) - want).abs().max()))
    return intarsia.counters()["captures"], worst, time.perf_counter() - start


def _torchs(model: nn.Module, inputs: list[Tensor]) -> tuple[int, float]:
    torch._dynamo.reset()
    compiles = 0

    def backend(module: Any, _: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return module.forward

    fast = torch.compile(model, backend=backend)
    start = time.perf_counter()
    for x in inputs:
        fast(x)
    return compiles, time.perf_counter() - start


def main() -> None:
    """Print the table."""
    torchvision_stub.install()
    print(f"{'case':16}{'calls':>6}{'compiles':>10}{'worst diff':>12}{'seconds':>9}{'torch: graphs':>15}{'seconds':>9}")
    with torch.no_grad():
        for name in sys.argv[1:] or CASES:
            torch.manual_seed(0)
            model, make = CASES[name]()
            model.eval()
            for axis, sizes in (("batch", [(b, 16) for b in BATCHES]), ("length", [(2, n) for n in LENGTHS])):
                inputs = [make(*s) for s in sizes]
                wanted = [_first(model(x)) for x in inputs]
                compiles, worst, seconds = _ours(model, inputs, wanted)
                theirs, their_seconds = _torchs(model, inputs)
                print(
                    f"{name + ' ' + axis:16}{len(inputs):6}{compiles:10}{worst:12.1e}{seconds:9.1f}{theirs:15}{their_seconds:9.1f}"
                )


if __name__ == "__main__":
    main()
