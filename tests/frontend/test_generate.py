"""Hugging Face `generate`: the cache grows by one position a step, over a loop of plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled

from benchmarks import torchvision_stub

torchvision_stub.install()
transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 99, "pad_token_id": 98}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, **TOKENS)).eval()


def llama() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=64, **TOKENS)).eval()


def generate(function: Any, length: int, **options: Any) -> torch.Tensor:
    torch.manual_seed(length)
    ids = torch.randint(1, 90, (2, length))
    return function(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, **options)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_generate_with_a_compiled_forward(make):
    model = make()
    wanted = [generate(model.generate, n, do_sample=n == 7) for n in (5, 9, 7)]
    model.forward, log = compiled(model.forward, fullgraph=True, on_error="raise")
    got = [generate(model.generate, n, do_sample=n == 7) for n in (5, 9, 7)]
    assert all(map(torch.equal, got, wanted))
    assert not log.fallbacks and not log.breaks
    # The prompt and one step with constant sizes, then each with symbols.
    assert len(log.captures) <= 5, log.recompiles


@pytest.mark.parametrize("make", [gpt2, llama])
def test_generate_compiled_as_a_whole(make):
    model = make()
    wanted = [generate(model.generate, n) for n in (5, 5, 9)]
    fast, log = compiled(model.generate, on_error="raise")
    got = [generate(fast, 5)]
    assert len(log.captures) <= 16, log.recompiles  # 12 steps: pieces, not steps, are captured
    first = len(log.captures)
    got.append(generate(fast, 5))
    assert len(log.captures) == first, log.recompiles[-1]
    got.append(generate(fast, 9))
    assert all(map(torch.equal, got, wanted))
    assert not log.fallbacks
    # What breaks looks at values: of the attention mask, of whether all sequences have ended.
    assert all("a tensor's value" in b.reason or "iterator" in b.reason for b in log.breaks), log.breaks
