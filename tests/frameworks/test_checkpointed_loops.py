"""Loops as people write them, stopped and resumed from a checkpoint: compiled in one line, with the losses of eager that ran through.

The loops are those of small scripts (nanoGPT's), of recipes for fine-tuning (torchtune's), and of timm's training script with timm's own
optimizers, schedules, averages and savers; the frameworks that own the loop (accelerate, Lightning, Trainer) where they are installed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_training_loops import forget_accelerators, needs
from torch import Tensor, nn

import intarsia

STEPS, STOP = 8, 5
Compile = Callable[[Any], Any]
Run = Callable[[Compile, Path, int, int], list[float]]


def plain(fn: Any) -> Any:
    return fn


def by_name(fn: Any) -> Any:
    """What the framework compiles itself, with a backend that it is given by name."""
    return fn


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import torchvision_stub

    torchvision_stub.install()
    intarsia.reset()
    forget_accelerators()
    yield
    torch.set_grad_enabled(True)


def resumed_is_eager(run: Run, tmp_path: Path, tolerance: float, compiled: Compile) -> None:
    """`run(compile, folder, first, last)` gives the losses of some steps; from the second part on it finds its checkpoint in the folder."""
    for name in ("eager", "compiled"):
        (tmp_path / name).mkdir()
    want = run(plain, tmp_path / "eager", 0, STEPS)
    forget_accelerators()
    have = run(compiled, tmp_path / "compiled", 0, STOP)
    have += run(compiled, tmp_path / "compiled", STOP, STEPS)
    assert len(have) == len(want) == STEPS
    torch.testing.assert_close(torch.tensor(have), torch.tensor(want), rtol=tolerance, atol=tolerance)
    assert len({round(loss, 4) for loss in want}) > 1
    counters = intarsia.counters()
    assert counters["graphs"] and not counters["fallbacks"]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]
        return x + self.down(F.gelu(self.up(self.norm(mixed))))  # type: ignore[no-any-return]


class Language(nn.Module):
    """A tiny language model; the head shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList([Layer(16), Layer(16)])
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, 40), targets.view(-1), ignore_index=-1)


def tokens(step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 40, (4, 9), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def small_script(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    """nanoGPT's loop: schedule by hand, accumulation, clipping, evaluation in between, the best checkpoint with all that resuming needs."""
    torch.manual_seed(0)
    raw = Language()
    decayed = [p for p in raw.parameters() if p.dim() >= 2]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [p for p in raw.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    if first:
        kept = torch.load(folder / "ckpt.pt")
        prefix = "_orig_mod."
        raw.load_state_dict({name.removeprefix(prefix): value for name, value in kept["model"].items()})
        optimizer.load_state_dict(kept["optimizer"])
        assert kept["iter_num"] == first
    model, losses = compiled(raw), []
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                assert math.isfinite(model(*tokens(1000 + step))[1].item())
            model.train()
        for micro in range(2):
            _, loss = model(*tokens(2 * step + micro))
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": last}, folder / "ckpt.pt")
    return losses


def recipe(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    """torchtune's way: each layer and the loss are compiled alone, layers are checkpointed, the optimizer steps inside backward."""
    torch.manual_seed(0)
    model = Language()
    if first:
        model.load_state_dict(torch.load(folder / "model.pt"))
    for k, layer in enumerate(model.layers):
        model.layers[k] = compiled(layer)
    loss_of = compiled(lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    if first:
        states = torch.load(folder / "recipe.pt")
        for (name, p), state in zip(model.named_parameters(), states.values(), strict=True):
            assert name
            optimizers[p].load_state_dict(state)

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    losses = []
    for step in range(first, last):
        x, labels = tokens(step)
        h = model.embed(x)
        for layer in model.layers:
            h = torch.utils.checkpoint.checkpoint(layer, h, use_reentrant=False)
        loss = loss_of(model.head(h), labels)
        loss.backward()
        losses.append(loss.item())
    torch.save({n: optimizers[p].state_dict() for n, p in model.named_parameters()}, folder / "recipe.pt")
    torch.save(model.state_dict(), folder / "model.pt")
    return losses


def timm_script(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    """timm's train.py: its optimizer, schedule, average of the weights, soft targets, saver and resume."""
    import timm
    from timm.loss import SoftTargetCrossEntropy
    from timm.models import resume_checkpoint
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, NativeScaler, unwrap_model

    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=5)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.05)
    scaler, average, loss_of = NativeScaler("cpu"), ModelEmaV3(model, decay=0.9), SoftTargetCrossEntropy()
    schedule = CosineLRScheduler(optimizer, t_initial=STEPS, warmup_t=2, warmup_lr_init=1e-4)
    if first:
        name = str(folder / "last.pth.tar")
        assert resume_checkpoint(model, name, optimizer, scaler) == first
        average.load_state_dict(torch.load(folder / "average.pt"))
    schedule.step(first)
    model = compiled(model)
    saver = CheckpointSaver(unwrap_model(model), optimizer, amp_scaler=scaler, checkpoint_dir=str(folder))
    meter, losses = AverageMeter(), []
    model.train()
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        images, target = torch.randn(4, 3, 32, 32, generator=draw), torch.rand(4, 5, generator=draw).softmax(-1)
        loss = loss_of(model(images), target)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        optimizer.zero_grad()
        average.update(unwrap_model(model), step=step)
        schedule.step(step + 1)
        meter.update(loss.item(), len(images))
        losses.append(loss.item())
        saver.save_checkpoint(step, metric=-meter.avg)
    torch.save(average.state_dict(), folder / "average.pt")
    return losses


def under_accelerate(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    from accelerate import Accelerator

    torch.manual_seed(0)
    named = "intarsia" if compiled is by_name else None
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dynamo_backend=named)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    model, optimizer, schedule = accelerator.prepare(compiled(model), optimizer, schedule)
    accelerator.register_for_checkpointing(schedule)
    if first:
        accelerator.load_state(str(folder / "state"))
    losses = []
    for step in range(first, last):
        for micro in range(2):
            with accelerator.accumulate(model):
                _, loss = model(*tokens(2 * step + micro))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.save_state(str(folder / "state"))
    return losses


def under_lightning(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    import lightning
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Language()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.net(*batch)[1]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Losses(lightning.Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            self.seen.append(float(outputs["loss"]))

    torch.manual_seed(0)
    losses, module = Losses(), Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=last, accelerator="cpu", callbacks=[losses], enable_model_summary=False, default_root_dir=folder, **quiet
    )  # fmt: skip
    samples = [tuple(t[0] for t in tokens(0))] * 2
    trainer.fit(
        compiled(module), DataLoader(samples, batch_size=2), ckpt_path=str(folder / "last.ckpt") if first else None
    )
    trainer.save_checkpoint(folder / "last.ckpt")
    return losses.seen


def under_trainer(compiled: Compile, folder: Path, first: int, last: int) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    data = [{"input_ids": tokens(k)[0][0], "labels": tokens(k)[0][0]} for k in range(4 * STEPS)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, report_to=[], logging_steps=1,
        disable_tqdm=True, save_strategy="steps", save_steps=STOP, learning_rate=1e-2, eval_strategy="steps", eval_steps=3,
        torch_compile_backend="intarsia" if compiled is by_name else None,
    )  # fmt: skip
    trainer = Trainer(
        model=compiled(GPT2LMHeadModel(config)), args=arguments, train_dataset=data, eval_dataset=data[:6]
    )
    trainer.train(resume_from_checkpoint=bool(first))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses[first:last]


@pytest.mark.parametrize(
    ("run", "compiled"),
    [
        (small_script, intarsia.compile),
        (recipe, intarsia.compile),
        pytest.param(timm_script, intarsia.compile, marks=needs("timm", "torchvision")),
        pytest.param(under_accelerate, intarsia.compile, marks=needs("accelerate")),
        pytest.param(under_accelerate, by_name, marks=needs("accelerate")),
        pytest.param(under_lightning, intarsia.compile, marks=needs("lightning")),
        pytest.param(under_trainer, intarsia.compile, marks=needs("transformers", "accelerate")),
        pytest.param(under_trainer, by_name, marks=needs("transformers", "accelerate")),
    ],
    ids=lambda given: given.__name__,
)
def test_a_resumed_run_has_the_losses_of_eager(run: Run, compiled: Compile, tmp_path: Path) -> None:
    rounded = 2e-4 if run is under_trainer else 2e-5  # Trainer rounds what it logs
    resumed_is_eager(run, tmp_path, rounded, compiled)


def test_a_compiled_model_and_its_original_share_checkpoints() -> None:
    model = Language()
    fast = intarsia.compile(model)
    fast(*tokens(0))[1].backward()
    other = copy.deepcopy(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        model.embed.weight.mul_(2)
    fast.load_state_dict(other.state_dict())
    assert torch.equal(model.embed.weight, other.embed.weight)
    want, have = other(*tokens(1))[1], fast(*tokens(1))[1]
    torch.testing.assert_close(have, want)
