"""Architectures in training mode: every result and every gradient against float64 by the accuracy rule, without falling back.

A few in the usual run; INTARSIA_ALL_MODELS=1 takes all of them. `python tests/e2e/test_training_models.py [NAMES]` prints a table.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.testing import check

sys.path.append(str(Path(__file__).parents[1] / "frontend"))
from zoo import ZOO  # noqa: E402

QUICK = ("bert-labels", "gpt2-no-cache", "t5-encoder", "llama-no-cache", "vit", "resnet")
VISION = [
    "timm-resnet18",
    "timm-vit_tiny_patch16_224",
    "timm-mixer_s32_224",
    "timm-regnetx_002",
    "timm-convnext_atto",
    "torchvision-resnet18",
    "torchvision-squeezenet1_0",
    "torchvision-swin_t",
]
# Many kinks behind batch norm over few values: where one bit decides which side a value falls, eager's own gradients change in the
# second digit. Such a model is run with smooth activations.
SENSITIVE = ["timm-mobilenetv3_small_100"]
# Captured in several graphs: requires_grad is assigned in the middle; a torch.autograd.Function is applied.
BREAKS = ["wav2vec2", "bloom"]
ALL = [name for name in ZOO if not name.startswith(("timm", "torchvision"))] + VISION + SENSITIVE
NAMES = ALL if os.environ.get("INTARSIA_ALL_MODELS") else QUICK
_RANDOM = ("p", "drop_prob", "layerdrop", "layer_dropout", "apply_spec_augment")


def training(name):
    """The model in training mode with its arguments: two images where there was one (batch norm), nothing random."""
    module, args, kwargs = ZOO[name]()
    module.train()
    for part in (*module.modules(), *(m.config for m in module.modules() if hasattr(m, "config"))):
        for key, value in vars(part).items():
            if type(value) in (float, bool) and ("drop" in key or key in _RANDOM):
                setattr(part, key, type(value)(0))

    for part in module.modules() if name in SENSITIVE else ():
        for key, child in part.named_children():
            if type(child).__name__ in ("ReLU", "ReLU6", "Hardswish"):
                setattr(part, key, torch.nn.SiLU())

    def batch(value):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[0] == 1:
            return torch.randn(2, *value.shape[1:], generator=torch.Generator().manual_seed(1))
        return value

    return module, tuple(map(batch, args)), {k: batch(v) for k, v in kwargs.items()}


def run(name, calls=2):
    """The report of the check, and why something ran in eager (a list of warnings, empty when all was compiled)."""
    module, args, kwargs = training(name)
    before = intarsia.counters()
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check(
            module,
            args,
            kwargs,
            gradients=True,
            calls=calls,
            compiled=intarsia.compile(module, fullgraph=name not in BREAKS),
        )
    after = intarsia.counters()
    return report, {key: after[key] - before[key] for key in ("graphs", "fallbacks", "breaks")}


@pytest.mark.parametrize("name", NAMES)
def test_model(name):
    pytest.importorskip("timm" if "timm" in name else "torchvision" if "torchvision" in name else "transformers")
    report, counts = run(name)
    assert report.raised is None and report.gold
    assert counts["graphs"] >= 2 and counts["fallbacks"] == 0, counts
    assert counts["breaks"] == 0 or name in BREAKS, counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or ALL:
        start = time.perf_counter()
        try:
            found, number = run(chosen)
            said = f"pass  ratio {found.ratio:.2f} worst {found.worst:.1e} gold {found.gold} raised {found.raised} {number}"
        except AssertionError as error:
            said = "WRONG " + " ".join(str(error).split())[:400]
        except Exception as error:
            said = f"error {type(error).__name__}: " + " ".join(str(error).split())[:400]
        print(f"{chosen:32} {time.perf_counter() - start:5.1f} s  {said}", flush=True)
