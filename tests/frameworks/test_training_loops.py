"""Ten steps of training under the frameworks that drive a loop, beside the same loop in eager; skipped where they are not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import intarsia

STEPS = 10


@pytest.fixture(autouse=True)
def _vision(monkeypatch):
    """All three import torchvision if it is there, which does not load beside a CPU build of torch."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import torchvision_stub

    torchvision_stub.install()
    intarsia.reset()
    forget_accelerators()


def forget_accelerators() -> None:
    """Accelerate keeps one state in a process, mixed precision and backend in it."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def agree(want: list[float], have: list[float], tolerance: float = 1e-5) -> None:
    assert len(want) == len(have) == STEPS and torch.allclose(torch.tensor(want), torch.tensor(have), atol=tolerance)
    counters = intarsia.counters()
    assert counters["graphs"] >= 2 and counters["fallbacks"] == 0


@needs("lightning")
@pytest.mark.parametrize("whole", [False, True], ids=["part", "module"])
def test_lightning(whole: bool, tmp_path: Path) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Losses(lightning.Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_train_batch_end(self, trainer, module, outputs, *_):
            self.seen.append(float(outputs["loss"]))

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8 * STEPS, 8), torch.randint(0, 4, (8 * STEPS,)))

    def fit(model) -> list[float]:
        losses = Losses()
        quiet = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", callbacks=[losses], default_root_dir=str(tmp_path), **quiet
        )
        trainer.fit(model, DataLoader(data, batch_size=8))
        return losses.seen

    want, model = fit(Model()), Model()
    if whole:
        agree(want, fit(intarsia.compile(model)))
    else:
        model.net = intarsia.compile(model.net)
        agree(want, fit(model))


@needs("accelerate")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_accelerate_in_bfloat16(before: bool) -> None:
    from accelerate import Accelerator

    def fit(compile_before, compile_after) -> list[float]:
        model = compile_before(network())
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model = compile_after(model)
        torch.manual_seed(3)
        losses = []
        for _ in range(STEPS):
            x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def same(model):
        return model

    want = fit(same, same)
    agree(want, fit(intarsia.compile, same) if before else fit(same, intarsia.compile), 5e-3)


@needs("transformers", "accelerate")
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_trainer(bf16: bool, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    data = [{"input_ids": torch.randint(0, 100, (12,)), "labels": torch.tensor(i % 2)} for i in range(8 * STEPS)]

    def fit(compiler) -> list[float]:
        torch.manual_seed(0)
        config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=8, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, disable_tqdm=True, bf16=bf16,
        )  # fmt: skip
        trainer = Trainer(model=compiler(BertForSequenceClassification(config)), args=arguments, train_dataset=data)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    agree(fit(lambda model: model), fit(intarsia.compile), 5e-3 if bf16 else 1e-4)


@needs("transformers")
@pytest.mark.parametrize("relative", [False, True], ids=["rates", "relative steps"])
def test_adafactor_of_transformers(relative: bool) -> None:
    """Its step sizes are Python's arithmetic on counts, rates and norms: two or three compiles, and no break."""
    from transformers.optimization import Adafactor

    given = (
        {"scale_parameter": True, "warmup_init": True}
        if relative
        else {"lr": 1e-2, "beta1": 0.9, "scale_parameter": False}
    )
    found = []
    for compiled in (False, True):
        model = network()
        optimizer = Adafactor(model.parameters(), relative_step=relative, **given)
        step, losses = intarsia.compile(optimizer.step) if compiled else optimizer.step, []
        generator = torch.Generator().manual_seed(0)
        for k in range(STEPS):
            x, y = torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            for group in optimizer.param_groups if not relative else ():
                group["lr"] = 1e-2 / (k + 1)
            step()
            losses.append(loss.item())
        found.append(losses)
    agree(*found)
    counters = intarsia.counters()
    assert counters["captures"] <= 3 and not counters["breaks"]
