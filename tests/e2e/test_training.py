"""Gradients through compiled functions: what may stand in a training step, compared with eager, results and gradients both."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import intarsia
from intarsia.testing import check


@pytest.fixture(autouse=True)
def gradients():
    with torch.enable_grad():
        torch.manual_seed(0)
        yield


def leaf(*shape, **kwargs):
    return torch.randn(*shape, **kwargs).requires_grad_()


def agrees(function, *args, graphs=2, **options):
    """Eager and compiled agree in results, arguments and gradients, and `graphs` graphs were compiled, none fell back."""
    before = intarsia.counters()
    check(function, args, gradients=True, **options)
    after = intarsia.counters()
    assert after["fallbacks"] == before["fallbacks"] and after["breaks"] == before["breaks"]
    assert after["graphs"] - before["graphs"] == graphs


# ---- results --------------------------------------------------------------------------------------------------------


def test_several_results_some_without_gradients():
    def function(x, w):
        h = x @ w
        return h.sin(), (h > 0), h.argmax(), {"loss": h.square().mean(), "number": 3, "constant": h.detach() + 1}

    agrees(function, torch.randn(4, 5), leaf(5, 3))


def test_only_one_of_several_results_is_used():
    def function(x):
        return x.sin() * 2, x.cos() * 3

    x = leaf(5)
    for which in (0, 1):
        expected = torch.autograd.grad(function(x)[which].sum(), x)
        torch.testing.assert_close(torch.autograd.grad(intarsia.compile(function)(x)[which].sum(), x), expected)


def test_results_that_are_inputs_or_views_of_them():
    agrees(lambda x, y: (x, x.t(), y[1:], x.sin() * y), leaf(3, 3), leaf(3, 3))


def test_results_that_are_views_of_one_value():
    def function(x):
        h = x.exp()
        return h, h.t(), h[0], h.view(-1)[2:]

    agrees(function, leaf(3, 4))


def test_the_same_value_twice():
    def function(x):
        h = x.exp()
        return h, h

    agrees(function, leaf(3))


def test_views_inside():
    def function(x):
        parts = x.view(2, 3, 4).transpose(0, 1).chunk(2, dim=-1)
        return torch.cat([parts[0].flatten() * 2, parts[1].reshape(-1).sin()]).unfold(0, 3, 2).sum(-1)

    agrees(function, leaf(6, 4))


def test_gradients_of_expanded_and_transposed_inputs():
    base = torch.randn(1, 4)
    agrees(
        lambda x, y: (x * y).sum(0).tanh(), base.expand(3, 4).detach().requires_grad_(), torch.randn(4, 3).t().detach()
    )


# ---- in place -------------------------------------------------------------------------------------------------------


def test_in_place_on_values_and_views():
    def function(x, w):
        h = x * w
        h[1:].mul_(2)
        h.t()[0].add_(x[:, 0])
        h += 1
        return h.relu_()

    agrees(function, leaf(3, 4), leaf(4))


def test_in_place_on_an_input_that_autograd_tracks():
    def function(x, y):
        x.mul_(y).add_(1)
        return x.sum()

    def step(fn):
        torch.manual_seed(1)
        a, y = leaf(3), leaf(3)
        x = a * 2
        out = fn(x, y)
        (out + x.square().sum()).backward()
        return x.detach(), a.grad, y.grad, out.detach()

    torch.testing.assert_close(step(intarsia.compile(function)), step(function))
    assert intarsia.counters()["fallbacks"] == 0


def test_in_place_on_a_view_of_a_tracked_tensor():
    def function(v, y):
        v.mul_(y)
        return v.sin()

    def step(fn):
        torch.manual_seed(1)
        a, y = leaf(4, 3), leaf(3)
        base = a * 2
        out = fn(base[1], y)
        (out.sum() + base.square().sum()).backward()
        return base.detach(), a.grad, y.grad

    torch.testing.assert_close(step(intarsia.compile(function)), step(function))


def test_in_place_on_an_input_without_gradients():
    agrees(lambda x, buffer: (buffer.add_(1), x * buffer)[1], leaf(3), torch.ones(3))


def test_in_place_on_a_leaf_is_eagers_error():
    def function(x):
        x.add_(1)
        return x * 2

    for fn in (function, intarsia.compile(function)):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            fn(leaf(3))


def test_a_saved_input_written_before_backward_is_eagers_error():
    def function(x, y):
        return x * y

    for fn in (function, intarsia.compile(function)):
        x, y = leaf(3), leaf(3)
        out = fn(x, y)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


# ---- what autograd is told ------------------------------------------------------------------------------------------


def test_detach_and_islands():
    def function(x):
        with torch.no_grad():
            scale = x.abs().amax()
        h = x / scale
        with torch.no_grad():
            still = h * 2
            with torch.enable_grad():
                tracked = h * 3
        return h * still + tracked.detach() * h.sin(), still, tracked

    agrees(function, leaf(3, 4))


def test_gradients_wanted_inside_of_no_grad_outside():
    @torch.enable_grad()
    def function(x):
        return x.sin() * 2

    with torch.no_grad():
        out = intarsia.compile(function)(x := leaf(3))
    assert out.requires_grad
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 2 * x.detach().cos())
    assert intarsia.counters()["fallbacks"] == 0


def test_gradients_not_wanted_then_wanted():
    fast = intarsia.compile(lambda x: x.sin() * 2)
    x = leaf(3)
    for _ in range(2):
        with torch.no_grad():
            assert not fast(x).requires_grad
        with torch.inference_mode():
            assert not fast(x).requires_grad
        torch.testing.assert_close(torch.autograd.grad(fast(x).sum(), x)[0], 2 * x.detach().cos())
        assert not fast(x.detach()).requires_grad


def test_none_gradients():
    def function(x, y, unused):
        return x * y.detach() + unused.detach().sum() * 0

    for fn in (function, intarsia.compile(function)):
        x, y, unused = leaf(3), leaf(3), leaf(2)
        fn(x, y, unused).sum().backward()
        assert x.grad is not None and y.grad is None and unused.grad is None


def test_some_parameters_without_gradients():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.never = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.first.weight.requires_grad_(False)

        def forward(self, x):
            return self.second(self.first(x).relu())

    agrees(Model(), torch.randn(2, 3))


def test_hooks_on_tensors():
    calls = []

    def function(x):
        h = x.sin()
        h.register_hook(lambda g: g * 10)
        return h * 2

    x = leaf(3)
    fast = intarsia.compile(function)
    x.register_hook(lambda g: calls.append(g.clone()))
    torch.testing.assert_close(torch.autograd.grad(fast(x).sum(), x)[0], 20 * x.detach().cos())
    out = fast(x)
    out.register_hook(lambda g: g * 5)
    out.sum().backward()
    torch.testing.assert_close(x.grad, 100 * x.detach().cos())
    torch.testing.assert_close(calls[-1], x.grad)


def test_hooks_on_modules_and_accumulation():
    def step(wrap):
        torch.manual_seed(3)
        model, seen = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), []
        model[1].register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].clone(), go[0].clone())))
        model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append((p.grad.clone(),)))
        model.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
        fast = wrap(model)
        for _ in range(2):
            fast(torch.ones(2, 3)).square().sum().backward()
        return seen, [p.grad for p in model.parameters()]

    torch.testing.assert_close(step(intarsia.compile), step(lambda m: m))


def test_retain_grad_and_retain_graph():
    def step(fn):
        torch.manual_seed(1)
        x = leaf(3)
        h = x * 2
        h.retain_grad()
        out = fn(h).sum()
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
        return x.grad, h.grad

    def function(h):
        return h.sin() * h

    torch.testing.assert_close(step(intarsia.compile(function)), step(function))


# ---- state ----------------------------------------------------------------------------------------------------------


def test_batch_norm_in_training_and_evaluation():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    other = copy.deepcopy(model)
    fast = intarsia.compile(other, fullgraph=True)
    for train in (True, True, False, True, False):
        model.train(train), other.train(train)
        x = torch.randn(5, 2, 6, 6)
        model.zero_grad(), other.zero_grad()
        for fn in (model, fast):
            fn(x).square().mean().backward()
        torch.testing.assert_close(dict(other.named_buffers()), dict(model.named_buffers()))
        torch.testing.assert_close([p.grad for p in other.parameters()], [p.grad for p in model.parameters()])
    assert int(other[1].num_batches_tracked) == 3 and intarsia.counters()["fallbacks"] == 0


def test_batch_norm_with_other_momentum_or_without_statistics():
    agrees(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3)), torch.randn(5, 3))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None))  # reads a tensor's value
    check(model, [torch.randn(5, 3)], gradients=True, calls=3, compiled=intarsia.compile(model))
    agrees(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)), torch.randn(5, 3))


def test_dropout_follows_the_seed():
    def function(x):
        return F.dropout(x, 0.4).sin() + torch.rand_like(x) * x

    fast, x = intarsia.compile(function, fullgraph=True), leaf(50, 50)
    seen = []
    for seed in (0, 0, 1):
        found = []
        for fn in (function, fast):
            torch.manual_seed(seed)
            out = fn(x)
            found.append((out.detach(), torch.autograd.grad(out.sum(), x)[0], torch.rand(3)))
        torch.testing.assert_close(found[1], found[0])
        seen.append(found[1][0])
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert intarsia.counters()["fallbacks"] == 0


def test_requires_grad_changes_between_calls():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    fast, x = intarsia.compile(other), torch.randn(2, 3)
    for frozen in ((), (0,), (0, 1), (0, 1, 2, 3), (2, 3), ()):
        found = []
        for module, fn in ((model, model), (other, fast)):
            for i, p in enumerate(module.parameters()):
                p.grad = None
                p.requires_grad_(i not in frozen)
            out = fn(x)
            assert out.requires_grad == (len(frozen) < 4)
            if out.requires_grad:
                out.square().sum().backward()
            found.append([p.grad for p in module.parameters()])
        assert [g is None for g in found[0]] == [g is None for g in found[1]] == [i in frozen for i in range(4)]
        torch.testing.assert_close(*[[g for g in f if g is not None] for f in found])
    assert intarsia.counters()["fallbacks"] == 0


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where):
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), torch.arange(4))

    def outside(x):
        return F.cross_entropy(model(x), torch.arange(4))

    function = inside if where == "inside" else outside
    fast, x, found = intarsia.compile(function, fullgraph=True), torch.randn(4, 16), []
    for fn in (function, fast, fast):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
            loss = fn(x)
        loss.backward()
        found.append((loss.detach(), *[p.grad for p in model.parameters()]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0.02, atol=0.01)
        assert all(p.dtype == torch.float32 for p in other)
    assert intarsia.counters()["fallbacks"] == 0


# ---- around it ------------------------------------------------------------------------------------------------------


def regression(wrap, optimizer=torch.optim.Adam, steps=6, accumulate=1, inside=False):
    """A small training loop; the losses and the parameters at the end."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 1))
    data, target = torch.randn(24, 5), torch.randn(24, 1)
    optimizer = optimizer(model.parameters(), lr=0.05)

    def loss_of(x, y):
        return F.mse_loss(model(x), y)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if inside:
        whole = wrap(step)
        losses = [whole(data, target) for _ in range(steps)]
        return losses, list(model.parameters())
    compiled, losses = wrap(loss_of), []
    for number in range(steps):
        loss = compiled(data, target) / accumulate
        loss.backward()
        losses.append(loss.detach())
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses, list(model.parameters())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_training_loop(optimizer):
    torch.testing.assert_close(regression(intarsia.compile, optimizer), regression(lambda f: f, optimizer))
    assert intarsia.counters()["graphs"] == 2 and intarsia.counters()["breaks"] == 0


def test_training_loop_with_accumulation():
    expected = regression(lambda f: f, accumulate=3)
    torch.testing.assert_close(regression(intarsia.compile, accumulate=3), expected)
    assert intarsia.counters()["graphs"] == 2


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_whole_step_inside(optimizer):
    expected = regression(lambda f: f, optimizer, inside=True)
    torch.testing.assert_close(regression(intarsia.compile, optimizer, inside=True), expected)
    assert intarsia.counters()["graphs"] >= 1


def test_gradient_asked_for_inside():
    def function(x):
        y = (x.sin() * 2).sum()
        return torch.autograd.grad(y, x)[0] * 3

    x = leaf(4)
    torch.testing.assert_close(intarsia.compile(function)(x), function(x))


def test_gradients_through_two_graphs():
    def function(x, w):
        h = (x @ w).relu()
        scale = round(h.sum().item(), 3)
        return (h / scale).square().sum()

    found = []
    for fn in (function, intarsia.compile(function)):
        x, w = torch.ones(2, 3), (torch.arange(12.0).view(3, 4) / 7).requires_grad_()
        fn(x, w).backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
    assert intarsia.counters()["graphs"] == 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))

    def function(x):
        return checkpoint(model, x * 2, use_reentrant=reentrant).sin()

    def outside(fn):
        return lambda x: checkpoint(fn, x * 2, use_reentrant=reentrant).sin()

    x, found = leaf(3, 4), []
    for fn in (function, intarsia.compile(function), outside(model), outside(intarsia.compile(model))):
        torch.manual_seed(5)
        model.zero_grad()
        x.grad = None
        fn(x).square().sum().backward()
        found.append([x.grad.clone(), *[p.grad.clone() for p in model.parameters()]])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_sizes_that_change():
    def function(x, w):
        return F.softmax(x @ w, -1).square().sum() * x.shape[0]

    fast = intarsia.compile(function, fullgraph=True)
    for rows in (3, 4, 7, 1, 2):
        x, w = leaf(rows, 5), leaf(5, 6)
        expected = torch.autograd.grad(function(x, w), (x, w))
        torch.testing.assert_close(torch.autograd.grad(fast(x, w), (x, w)), expected)
    assert intarsia.counters()["graphs"] <= 6 and intarsia.counters()["fallbacks"] == 0


def test_backward_in_another_thread():
    import threading

    fast, x = intarsia.compile(lambda x: x.sin() * 2), leaf(4)
    out, found = fast(x), []
    thread = threading.Thread(target=lambda: found.append(torch.autograd.grad(out.sum(), x)[0]))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], 2 * x.detach().cos())


def test_parameters_shared_and_given_twice():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids)).logsumexp(-1)

    agrees(Tied(), torch.randint(0, 10, (2, 5)))
    x = leaf(3)
    fast = intarsia.compile(lambda a, b: a * b.sin())
    torch.testing.assert_close(torch.autograd.grad(fast(x, x).sum(), x)[0], (x.sin() + x * x.cos()).detach())


def test_complex_numbers():
    def function(x):
        spectrum = torch.fft.rfft(x)
        return spectrum.abs().square().sum(-1), spectrum

    agrees(function, leaf(3, 8))


def test_a_complex_number_of_the_program_is_conjugated():
    def function(x):
        return torch.exp(1j * x) * torch.sin(x)

    def step(x):
        value = function(x).abs().sum()
        value.backward()
        return value.detach()

    agrees(function, leaf(5))
    x = leaf(5)
    y = x.detach().clone().requires_grad_()
    torch.testing.assert_close(intarsia.compile(step, fullgraph=True)(x), step(y))
    torch.testing.assert_close(x.grad, y.grad)


class Cube(torch.autograd.Function):
    """x ** 3 with a gradient that is twice the true one, so that it shows whose backward ran."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 6 * x.square() * gradient


def test_custom_function_is_part_of_the_graph():
    def function(x):
        return Cube.apply(x.sin()).exp().sum()

    fast = intarsia.compile(function, fullgraph=True)
    for _ in range(2):
        x = leaf(4)
        expected = torch.autograd.grad(function(x), x)
        torch.testing.assert_close(torch.autograd.grad(fast(x), x), expected)
    assert intarsia.counters()["fallbacks"] == 0


def test_hook_inside_is_not_lost():
    def function(x):
        h = x.sin()
        h.register_hook(lambda g: g * 10)
        return (h * 2).sum()

    x = leaf(4)
    torch.testing.assert_close(torch.autograd.grad(intarsia.compile(function)(x), x)[0], 20 * x.detach().cos())


def test_gradients_with_several_backward_passes_from_one_call():
    fast, x, w = intarsia.compile(lambda x, w: (x * w, (x + w).sin())), leaf(3), leaf(3)
    a, b = fast(x, w)
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    torch.testing.assert_close(x.grad, (w + (x + w).cos()).detach())
    torch.testing.assert_close(w.grad, (x + (x + w).cos()).detach())


def test_gradient_arrives_in_other_strides_or_expanded():
    def function(x):
        return (x * 2).tanh()

    fast = intarsia.compile(function)
    for arriving in (torch.randn(4, 3).t(), torch.ones(1).expand(3, 4), torch.randn(3, 8)[:, ::2]):
        x = leaf(3, 4)
        expected = torch.autograd.grad(function(x), x, arriving)
        torch.testing.assert_close(torch.autograd.grad(fast(x), x, arriving), expected)


def test_anomaly_detection():
    fast, x = intarsia.compile(lambda x: x.log().sum()), torch.ones(3).requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        fast(x).backward()
    assert torch.equal(x.grad, torch.ones(3))


@pytest.mark.parametrize("which", range(5))
def test_gradients_that_are_equal_do_not_share_memory(which):
    """Autograd keeps what it receives as `.grad` and adds to it in place."""
    functions = [
        lambda a, b, c: (a.view(3, 4) + b + c.t()).sin().sum(),
        lambda a, b, c: (a.view(3, 4) + b + c.t()).sum(),
        lambda a, b, c: ((a.view(3, 4) + b)[1:] * c.t()[1:]).sin().sum() + a[:2].sum(),
        lambda a, b, c: torch.cat([a.view(3, 4), b, c.t()]).exp().sum(),
        lambda a, b, c: (b + a[:4]).sin().sum() + (b - 1 + b).sum() + c.sum(),
    ]
    found = []
    for wrap in (lambda f: f, intarsia.compile):
        torch.manual_seed(1)
        leaves, fn = [leaf(12), leaf(3, 4), leaf(4, 3)], wrap(functions[which])
        arriving = torch.tensor(2.0)
        for _ in range(3):
            fn(*leaves).backward(arriving)
        assert arriving == 2
        found.append([x.grad for x in leaves])
    torch.testing.assert_close(found[1], found[0])


def test_calls_before_backward_do_not_disturb_each_other():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    first, second, found = torch.randn(3, 4), torch.randn(3, 4), []
    for fn in (model, intarsia.compile(model)):
        model.zero_grad()
        one, two = fn(first), fn(second)
        kept = one.detach().clone()
        two.square().sum().backward()
        one.square().sum().backward()
        assert torch.equal(kept, one)
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_results_that_backward_needs_are_no_views():
    p = torch.randn(3, requires_grad=True)
    result = intarsia.compile(lambda x: x.sigmoid())(p)
    assert result._base is None and result.detach_() is result


def test_group_norm_under_autocast(caplog: pytest.LogCaptureFixture) -> None:
    """Half-precision images, float32 weights: each gradient has the dtype of its own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.GroupNorm(4, 16), torch.nn.Conv2d(16, 8, 1))
    other, x = copy.deepcopy(model), torch.randn(4, 3, 10, 10)
    fast = intarsia.compile(other)
    with torch.autocast("cpu", torch.bfloat16):
        want, got = model(x).float().square().mean(), fast(x).float().square().mean()
    want.backward()
    got.backward()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=5e-2, atol=5e-3)
    assert "runs in eager" not in caplog.text
