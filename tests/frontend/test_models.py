"""Architectures from transformers, timm and torchvision: one graph each, equal to eager, warm on the second call."""

import os
import warnings

import pytest
import torch
from harness import compiled, leaves
from zoo import ZOO

QUICK = (
    "bert",
    "gpt2",
    "t5",
    "llama",
    "vit",
    "clip",
    "mamba",
    "timm-mobilenetv3_small_100",
    "torchvision-resnet18",
    "torchvision-swin_t",
)
NAMES = list(ZOO) if os.environ.get("INTARSIA_ALL_MODELS") else QUICK


@pytest.mark.parametrize("name", NAMES)
def test_model(name):
    pytest.importorskip("timm" if "timm" in name else "torchvision" if "torchvision" in name else "transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, args, kwargs = ZOO[name]()
        fast, log = compiled(module, fullgraph=True)
        with torch.no_grad():
            want = module(*args, **kwargs)
            for _ in range(2):
                got = fast(*args, **kwargs)
                assert type(got) is type(want)
                torch.testing.assert_close(leaves(got), leaves(want), equal_nan=True)
    assert len(log.captures) == 1, log.recompiles


def test_models_with_dynamic_sizes():
    pytest.importorskip("transformers")
    for name in ("bert", "gpt2"):
        module, (ids,), kwargs = ZOO[name]()
        fast, log = compiled(module, fullgraph=True, dynamic=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows, length in ((2, 12), (3, 12), (4, 7)):
                x = ids[:1, :length].repeat(rows, 1)
                k = {n: torch.ones_like(x) for n in kwargs}
                torch.testing.assert_close(leaves(fast(x, **k)), leaves(module(x, **k)))
        assert len(log.captures) == 1, log.recompiles
