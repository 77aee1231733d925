"""A linear layer and the cross entropy of its results in chunks of rows, against eager, and where logits stay as they are."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import intarsia
from intarsia import graph_compiler, linear_losses, training
from intarsia.config import Config
from intarsia.frontend.functional.trace import functionalize
from intarsia.graph_compiler import Report
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline

CLASSES, INNER = 37, 8
OPERATOR = torch.ops.intarsia.linear_cross_entropy.default


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few logits are many, and a chunk has five or ten rows."""
    monkeypatch.setattr(linear_losses, "LOGITS", (1, 1))
    monkeypatch.setattr(linear_losses, "LOGITS_CHUNK", (10 * 2 * CLASSES, 10 * 2 * CLASSES))
    monkeypatch.setattr(linear_losses, "LOGITS_ROWS", (1, 1))
    with torch.enable_grad():
        yield


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the operator are in each graph that has a loss, after it was looked at."""
    counts: list[int] = []

    def counted(module: fx.GraphModule, config: Config) -> None:
        losses = module.graph.find_nodes(op="call_function", target=torch.ops.aten.nll_loss_forward.default)
        linear_losses.without_logits(module, config)
        if losses:
            counts.append(len(module.graph.find_nodes(op="call_function", target=OPERATOR)))

    monkeypatch.setattr(graph_compiler, "without_logits", counted)
    monkeypatch.setattr(training, "without_logits", counted)
    return counts


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return intarsia.compile(fn, dynamic=options.pop("dynamic", None), options={"on_error": "raise", **options})


def gradients(fn: Callable[..., Tensor], layer: nn.Module, x: Tensor, *rest: Tensor) -> list[Tensor | None]:
    """The loss and all gradients; a loss that has run backward itself is not run again."""
    layer.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_()
    loss = fn(x, *rest)
    if not getattr(fn, "whole", False):
        (loss * torch.linspace(1, 2, loss.numel()).view(loss.shape).to(loss)).sum().backward()
    return [loss.detach(), x.grad, *(p.grad for p in layer.parameters())]


def agree(
    res: Sequence[Tensor | None], ref: Sequence[Tensor | None], gold: Sequence[Tensor | None], half: bool
) -> None:
    """As near to float64 as eager is, by the rule for half types or others."""
    for a, b, c in zip(res, ref, gold, strict=True):
        if a is None or b is None or c is None:
            assert a is b is c
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a.isnan(), b.isnan())
        a, b, c = (v.double().nan_to_num(0) for v in (a, b, c))
        mine, theirs = (a - c).square().mean().sqrt(), (b - c).square().mean().sqrt()
        tolerance = 1e-3 if half else 1e-6
        assert mine <= 3 * theirs + tolerance * c.abs().max() + 1e-12


KINDS = [
    (reduction, weighted, bias, amp, whole)
    for reduction in ("mean", "sum", "none")
    for weighted in (False, True)
    for bias in (False, True)
    for amp in (False, True)
    for whole in (False, True)
    if not (whole and reduction == "none")
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", range(4))
def test_random_losses(seed: int, kind: int, found: list[int]) -> None:
    """All kinds of losses, in both spellings; rows of a whole chunk may be left out, and the last chunk be shorter."""
    chance = random.Random(100 * seed + kind)
    torch.manual_seed(seed)
    for reduction, weighted, bias, amp, whole in KINDS[kind + 4 * seed :: 12]:
        length, shifted = chance.choice([12, 20, 23]), chance.random() < 0.3
        images = 2 if shifted or chance.random() < 0.5 else 1
        x = torch.randn(images, length, INNER)
        target = torch.randint(0, CLASSES, (images, length))
        target[0, : chance.choice([0, 1, length])] = -1
        layer = nn.Linear(INNER, CLASSES, bias=bias)
        weights = torch.linspace(0.5, 2, CLASSES) if weighted else None

        def loss(
            x: Tensor,
            target: Tensor,
            layer: nn.Module = layer,
            weights: Tensor | None = weights,
            how: tuple[Any, ...] = (reduction, amp, shifted, whole),
        ) -> Tensor:
            reduction, amp, shifted, whole = how
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                logits = layer(x)
                if shifted:
                    logits = logits.float() if amp else logits
                    logits, target = logits[:, :-1].reshape(-1, CLASSES), target[:, 1:]
                kinds = {"weight": weights if weights is None else weights.to(x), "ignore_index": -1}
                value = F.cross_entropy(logits.view(-1, CLASSES), target.reshape(-1), reduction=reduction, **kinds)
            if whole:
                (value * 3).backward()
            return value

        loss.whole = whole  # type: ignore[attr-defined]
        ref = gradients(loss, layer, x, target)
        found.clear()
        fast = compiled(loss)
        fast.whole = whole  # type: ignore[attr-defined]
        res = gradients(fast, layer, x, target)
        assert found == [2 if reduction == "none" else 1]
        wide = nn.Linear(INNER, CLASSES, bias=bias).double()
        wide.load_state_dict(layer.state_dict())

        def exact(x: Tensor, target: Tensor, wide: nn.Module = wide, loss: Any = loss) -> Tensor:
            return loss(
                x, target, wide, loss.__defaults__[1], (*loss.__defaults__[2][:1], False, *loss.__defaults__[2][2:])
            )

        exact.whole = whole  # type: ignore[attr-defined]
        agree(res, ref, gradients(exact, wide, x.double(), target), amp)


@pytest.mark.parametrize("whole", [False, True])
def test_any_number_of_rows(whole: bool, found: list[int]) -> None:
    """One program for all numbers of rows: chunks may be empty, or the rest."""
    layer = nn.Linear(INNER, CLASSES)

    def loss(x: Tensor, target: Tensor) -> Tensor:
        value = F.cross_entropy(layer(x), target)
        if whole:
            value.backward()
        return value

    loss.whole = whole  # type: ignore[attr-defined]
    fast = compiled(loss, dynamic=True)
    fast.whole = whole  # type: ignore[attr-defined]
    torch.manual_seed(0)
    for rows in (50, 56, 3, 2, 200):
        x, target = torch.randn(rows, INNER), torch.randint(0, CLASSES, (rows,))
        for a, b in zip(gradients(fast, layer, x, target), gradients(loss, layer, x, target), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert found == [1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types_of_factors(dtype: torch.dtype, found: list[int]) -> None:
    """The factor of backward comes into float16 before it is rounded: a scaled loss has gradients that fit."""
    torch.manual_seed(0)
    layer = nn.Linear(INNER, CLASSES).to(dtype)
    x, target = torch.randn(25, INNER, dtype=dtype), torch.randint(0, CLASSES, (25,))

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(layer(x).float() if dtype.itemsize == 2 else layer(x), target) * 1024

    ref, res = gradients(loss, layer, x, target), gradients(compiled(loss), layer, x, target)
    assert found[0] == (2 if dtype is torch.float16 else 1)
    for a, b in zip(res, ref, strict=True):
        assert a is not None and b is not None and a.dtype is b.dtype
        torch.testing.assert_close(a, b, atol=1e-9 if dtype.itemsize == 8 else 0.05 * float(b.abs().max()), rtol=0.01)


class Tied(nn.Module):
    """One table for tokens in and out; backward meets it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, INNER)
        self.inner = nn.Linear(INNER, INNER)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        logits = F.linear(torch.tanh(self.inner(self.table(tokens))), self.table.weight)
        return F.cross_entropy(logits.view(-1, CLASSES), target.reshape(-1))


def test_tied_weights_and_an_optimizer(found: list[int]) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, CLASSES, (3, 17))
    states, losses = [], []
    for fast in (False, True):
        torch.manual_seed(1)
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

        def step(tokens: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = compiled(step) if fast else step
        losses.append([float(run(tokens)) for _ in range(4)])
        states.append(model.state_dict())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and found and found[0] == 1
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)


FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "of the loss itself": lambda loss: loss * loss,
    "random": lambda loss: loss * torch.rand(()),
    "computed behind it": lambda loss: loss * (torch.arange(3.0).sum() + 1),
}


@pytest.mark.parametrize("factor", FACTORS)
def test_factors_of_backward(factor: str, found: list[int]) -> None:
    """Steps in one function: what the loss is multiplied with is known before it, or not."""
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))

    def loss(x: Tensor, target: Tensor) -> Tensor:
        value = F.cross_entropy(layer(x), target)
        FACTORS[factor](value).backward()
        return value + torch.rand(())

    loss.whole = True  # type: ignore[attr-defined]
    fast = compiled(loss)
    fast.whole = True  # type: ignore[attr-defined]
    torch.manual_seed(3)
    ref = gradients(loss, layer, x, target)
    torch.manual_seed(3)
    res = gradients(fast, layer, x, target)
    assert found == [1]
    for a, b in zip(res, ref, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_all_rows_left_out(found: list[int]) -> None:
    layer = nn.Linear(INNER, CLASSES)

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(layer(x), target)

    x, target = torch.randn(25, INNER), torch.full((25,), -100)
    ref, res = gradients(loss, layer, x, target), gradients(compiled(loss), layer, x, target)
    assert found == [1] and ref[0] is not None and ref[0].isnan()
    for a, b in zip(res, ref, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_a_class_outside_is_an_error() -> None:
    layer = nn.Linear(INNER, CLASSES)
    fast = compiled(lambda x, target: F.cross_entropy(layer(x), target))
    with pytest.raises(IndexError):
        fast(torch.randn(25, INNER), torch.full((25,), CLASSES))


def test_a_loss_without_gradients(found: list[int]) -> None:
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))
    with torch.no_grad():
        fast = compiled(lambda x, target: F.cross_entropy(layer(x.view(5, 5, INNER)).view(-1, CLASSES), target))
        torch.testing.assert_close(fast(x, target), F.cross_entropy(layer(x), target))
    assert found == [1]


def test_rounding_as_eager_has_it(found: list[int]) -> None:
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))
    compiled(lambda x, target: F.cross_entropy(layer(x), target), numerics="eager")(x, target)
    assert found[0] == 0


def test_lowered_stages_tell_of_chunks() -> None:
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))
    lowered = intarsia.lower(lambda x, target: F.cross_entropy(layer(x), target), x, target)
    assert "intarsia.linear_cross_entropy" in lowered.ir("aten")
    (said,) = [r.message for r in lowered.remarks if r.kind == "written out"]
    assert said == "logits of 25 rows are computed in 5 chunks, of 5 rows"


STAY: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "read elsewhere": lambda logits, target, x: F.cross_entropy(logits, target) + logits.logsumexp(1).square().mean(),
    "not rounded in between": lambda logits, target, x: F.cross_entropy(logits.half().float(), target),
    "returned": lambda logits, target, x: (F.cross_entropy(logits, target), logits),
    "is computed from logits": lambda logits, target, x: F.cross_entropy(logits.tanh(), target),
    "log_softmax along": lambda logits, target, x: F.nll_loss(F.log_softmax(logits, 0), target),
    "probabilities are read": lambda logits, target, x: F.cross_entropy(logits, target, label_smoothing=0.1),
    "no bias": lambda logits, target, x: F.cross_entropy(torch.addmm(logits[:1, :1], x, logits[:INNER]), target),
}


@pytest.mark.parametrize("why", STAY)
def test_logits_that_stay(why: str, found: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """What the operator does not stand for takes the plain road, with the same values, and the log says why."""
    torch.manual_seed(0)
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))

    def loss(x: Tensor, target: Tensor) -> Tensor:
        value = STAY[why](layer(x), target, x)
        return value[0] + value[1].mean() if isinstance(value, tuple) else value

    with caplog.at_level(logging.INFO, "intarsia"):
        res = gradients(compiled(loss, cache=False), layer, x, target)
    assert found[:1] == [0] and "computed at once" in caplog.text and f"{__file__}:" in caplog.text
    tolerance = 1e-2 if "rounded" in why else 1e-5
    for a, b in zip(res, gradients(loss, layer, x, target), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-4)


def test_few_logits_stay(found: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(25, INNER), torch.randint(0, CLASSES, (25,))
    for limit, count in ((25 * CLASSES * 4 + 1, 0), (25 * CLASSES * 4, 1)):
        monkeypatch.setattr(linear_losses, "LOGITS", (limit, limit))
        found.clear()
        compiled(lambda x, target: F.cross_entropy(layer(x), target), cache=False)(x, target)
        assert found[0] == count
    for limit, count in ((13, 0), (12, 1)):
        monkeypatch.setattr(linear_losses, "LOGITS_ROWS", (limit, limit))
        found.clear()
        compiled(lambda x, target: F.cross_entropy(layer(x), target), cache=False)(x, target)
        assert found[0] == count


def test_forward_saves_no_logits() -> None:
    """What backward reads is no larger than the factors are."""
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(512, INNER, requires_grad=True), torch.randint(0, CLASSES, (512,))
    text = str(intarsia.explain(compiled(lambda x, target: F.cross_entropy(layer(x), target)))(x, target))
    assert f"512, {CLASSES}" not in text and f"float32[{CLASSES}, {INNER}]" in text


def lowered_for_a_gpu(graph: fx.GraphModule, inputs: Sequence[Any], *_: Any) -> tuple[Callable[..., Any], Report]:
    """In place of `compile_graph`: the graph's loops for a GPU, run by the interpreter."""
    imported = import_fx(functionalize(graph, inputs))
    retarget(imported.module, "cuda:0")
    ctx = CompileContext()
    for step in default_pipeline(gpu=True):
        step.apply(ctx, imported.module)
    return (lambda *args: run_user(imported.module, args)), Report()


@pytest.mark.parametrize("amp", [False, True])
def test_on_a_gpu(amp: bool, monkeypatch: pytest.MonkeyPatch, found: list[int]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(INNER, CLASSES)
    x, target = torch.randn(130, INNER), torch.randint(0, CLASSES, (130,))
    monkeypatch.setattr(linear_losses, "LOGITS_CHUNK", (64 * 4 * CLASSES, 64 * 4 * CLASSES))

    def loss(x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            return F.cross_entropy(layer(x), target)

    ref = gradients(loss, layer, x, target)
    monkeypatch.setattr(training, "compile_graph", lowered_for_a_gpu)
    res = gradients(compiled(loss, cache=False), layer, x, target)
    assert found[:1] == [1]
    for a, b in zip(res, ref, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, atol=(0.02 if amp else 1e-5) * float(b.abs().max()), rtol=1e-4)
