"""Ordinary programs that once fell to eager or broke the graph: `python benchmarks/libraries.py --suite fallen`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from library_programs import Program, of
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

PROGRAMS: list[Program] = []


def program(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a program of torch alone."""

    def register(build: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS.append(Program(name, (), build))
        return build

    return register


def plain(name: str, *calls: Callable[[], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Register a function without modules, with what makes the arguments of its calls."""

    def register(function: Any) -> Any:
        PROGRAMS.append(Program(name, (), lambda: (of(lambda *a: function(*a)), [make() for make in calls])))
        return function

    return register


def r(*shape: int) -> Tensor:
    """A random tensor that is trained."""
    return torch.randn(shape, requires_grad=True)


# operators


@plain(
    "as_strided of inputs with an offset",
    lambda: (torch.arange(40.0)[3:], 5),
    lambda: (torch.arange(50.0)[4:], 6),
    lambda: (torch.arange(60.0)[7:], 7),
)
def strided(x: Tensor, n: int) -> Tensor:
    return torch.as_strided(x, (n, 3), (2, 1)) * 2


@plain(
    "as_strided with an offset of its own",
    lambda: (torch.arange(40.0)[3:], 5),
    lambda: (torch.arange(50.0)[4:], 6),
    lambda: (torch.arange(60.0)[7:], 7),
)
def strided_at(x: Tensor, n: int) -> Tensor:
    return torch.as_strided(x, (n, 3), (2, 1), x.storage_offset() + 2) * 2


@plain("arange by halves", lambda: (r(3), 0, 4), lambda: (r(3), 1, 6), lambda: (r(3), 2, 9))
def halves(x: Tensor, a: int, b: int) -> Tensor:
    return torch.arange(a, b, 0.5).sum() * x


@plain("arange of sizes by halves", lambda: (r(4),), lambda: (r(6),), lambda: (r(9),))
def halves_of_sizes(x: Tensor) -> Tensor:
    return torch.arange(0, x.shape[0], 0.5).reshape(-1, 2).sum(1) * x


@plain("arange by a changing float", lambda: (r(3), 0.5), lambda: (r(3), 0.25), lambda: (r(3), 0.3))
def by_floats(x: Tensor, s: float) -> Tensor:
    return torch.arange(0, 3, s).cos().sum() * x


@plain("torch.gradient", lambda: (r(4, 5),), lambda: (r(6, 7),), lambda: (r(9, 8),))
def gradient(x: Tensor) -> Any:
    return torch.gradient(x)


@plain("torch.gradient with spacing", lambda: (r(4, 5), 0.5), lambda: (r(6, 7), 2.0), lambda: (r(9, 8), 3.0))
def gradient_spaced(x: Tensor, s: float) -> Any:
    return torch.gradient(x, spacing=s, dim=1, edge_order=2)[0].sin()


@plain("losses of empty tensors", lambda: (r(0, 5),), lambda: (r(3, 5),), lambda: (r(0, 5),))
def empty_loss(x: Tensor) -> Tensor:
    return F.mse_loss(x, torch.zeros_like(x)) + F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long))


@plain(
    "addmv that broadcasts",
    lambda: (r(1), r(4, 3), r(3)),
    lambda: (r(1), r(5, 3), r(3)),
    lambda: (r(1), r(6, 3), r(3)),
)
def addmv(b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return torch.addmv(b, m, v, alpha=2).sin()


@plain("addmv of a scalar", lambda: (r(), r(4, 3), r(3)), lambda: (r(), r(5, 3), r(3)), lambda: (r(), r(6, 3), r(3)))
def addmv_scalar(b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return torch.addmv(b, m, v, beta=0.5).sin()


@plain("writes through an overlapping unfold", *[lambda n=n: (torch.arange(n * 1.0),) for n in (8, 10, 12)])
def unfold_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.unfold(0, 3, 1).add_(1)
    return y * 2


@plain("fill through an overlapping unfold", *[lambda n=n: (torch.arange(n * 1.0),) for n in (8, 10, 12)])
def unfold_filled(x: Tensor) -> Tensor:
    y = x.clone()
    y.unfold(0, 3, 2)[1:].fill_(1)
    return y * 2


@plain("cov and corrcoef", lambda: (r(3, 8),), lambda: (r(4, 9),), lambda: (r(5, 10),))
def cov(x: Tensor) -> Tensor:
    return torch.cov(x) + torch.corrcoef(x)


@plain(
    "cov with weights",
    *[lambda n=n: (r(3, n), torch.randint(1, 4, (n,)), torch.rand(n)) for n in (8, 9, 10)],
)
def cov_weights(x: Tensor, f: Tensor, a: Tensor) -> Tensor:
    return torch.cov(x, correction=0, fweights=f, aweights=a)


@plain("equal as a value", *[lambda n=n, d=d: (r(n), torch.zeros(n) + d) for n, d in ((3, 0), (4, 1), (5, 0))])
def equal(x: Tensor, y: Tensor) -> Any:
    return x * torch.equal(y, torch.zeros_like(y)), torch.equal(x, y)


@plain("equal in a branch", *[lambda n=n, d=d: (r(n), torch.zeros(n) + d) for n, d in ((3, 0), (4, 1), (5, 0))])
def equal_branch(x: Tensor, y: Tensor) -> Any:
    if torch.equal(y, torch.zeros_like(y)):
        return x.sin()
    return x.cos()


@plain("allclose in an assertion", *[lambda n=n: (r(n), torch.ones(n)) for n in (3, 4, 5)])
def allclose(x: Tensor, y: Tensor) -> Any:
    assert torch.allclose(y, torch.ones_like(y)), "not ones"
    return x.sin()


@plain("histogram with bins", *[lambda n=n: (torch.rand(n), torch.linspace(0, 1, 6)) for n in (30, 40, 50)])
def histogram(x: Tensor, bins: Tensor) -> Any:
    h = torch.histogram(x * 2, bins)
    return h.hist / h.hist.sum(), h.bin_edges


@plain("histogram, histc and bincount", *[lambda n=n: (torch.rand(n),) for n in (30, 40, 50)])
def histograms(x: Tensor) -> Any:
    return (
        torch.histogram(x, 5, range=(0.0, 1.0)).hist,
        torch.histc(x, 5, 0, 1),
        torch.bincount((x * 5).long(), minlength=6),
    )


# recurrent layers


class Tagger(nn.Module):
    """Padded sequences, packed and padded again."""

    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, batch_first=True, **settings)
        self.head = nn.Linear(16 if settings.get("bidirectional") else 8, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x.tanh(), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(out).log_softmax(-1)


LENGTHS = ([7, 5, 3], [7, 6, 2], [9, 8, 4, 4])


def ragged() -> list[Any]:
    """Three calls with other lengths."""
    return [(torch.randn(len(n), max(n), 6), torch.tensor(n)) for n in LENGTHS]


@program("packed LSTM in training")
def packed_lstm() -> Any:
    return Tagger(nn.LSTM), ragged()


@program("packed bidirectional GRU of two layers")
def packed_gru() -> Any:
    return Tagger(nn.GRU, bidirectional=True, num_layers=2), ragged()


@program("packed LSTM without gradients")
def packed_evaluated() -> Any:
    model = Tagger(nn.LSTM).eval().requires_grad_(False)
    return model, ragged()


@program("pack_sequence of a list")
def packed_list() -> Any:
    rnn = nn.RNN(6, 8)

    def run(parts: list[Tensor]) -> Tensor:
        packed = pack_sequence(parts, enforce_sorted=False)
        return pad_packed_sequence(rnn(packed)[0])[0].sin()

    return of(run, rnn), [([torch.randn(n, 6) for n in lengths],) for lengths in LENGTHS]


@program("last states of packed sequences")
def packed_states() -> Any:
    rnn = nn.LSTM(6, 8, batch_first=True)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn(packed)[1][0][-1].sin()

    return of(run, rnn), ragged()


def recurrent(kind: Any, steps: tuple[int, ...] = (5, 5, 7), **settings: Any) -> Callable[[], Any]:
    """A layer in training."""

    def build() -> Any:
        layer = kind(6, 8, **settings)
        return of(lambda x: layer(x.tanh())[0].sin(), layer), [(torch.randn(n, 3, 6),) for n in steps]

    return build


program("LSTM in training")(recurrent(nn.LSTM))
program("GRU in training")(recurrent(nn.GRU))
program("RNN in training")(recurrent(nn.RNN))
program("bidirectional LSTM of two layers with dropout")(
    recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.5)
)
program("LSTM with a projection")(recurrent(nn.LSTM, proj_size=5))
program("LSTM of 40 steps in training")(recurrent(nn.LSTM, (40, 40, 44)))
program("GRU of 40 steps in training")(recurrent(nn.GRU, (40, 40, 44)))


@program("LSTM cells in a loop")
def cells() -> Any:
    cell = nn.LSTMCell(6, 8)

    def run(x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], 8)
        out = []
        for step in x:
            h, c = cell(step, (h, c))
            out.append(h)
        return torch.stack(out).sin()

    return of(run, cell), [(torch.randn(n, 3, 6),) for n in (5, 5, 7)]


@program("GRU cells in a loop")
def gru_cells() -> Any:
    cell = nn.GRUCell(6, 8)

    def run(x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], 8)
        for step in x.unbind(0):
            h = cell(step, h)
        return h.sin()

    return of(run, cell), [(torch.randn(n, 3, 6),) for n in (5, 5, 7)]


@program("LSTM, a step of training")
def lstm_step() -> Any:
    layer = nn.LSTM(6, 8, batch_first=True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)

    def run(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layer(x)[0].sin().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return of(run, layer), [(torch.randn(3, n, 6),) for n in (5, 5, 7)]


@program("LSTM that keeps its state")
def lstm_state() -> Any:
    class Streamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.state = nn.LSTM(6, 8), None

        def forward(self, x: Tensor) -> Tensor:
            out, state = self.rnn(x, self.state)
            self.state = tuple(s.detach() for s in state)
            return out.sin()

    return Streamed(), [(torch.randn(n, 3, 6),) for n in (5, 5, 7)]


# sparse gradients


@program("sparse embedding")
def sparse_embedding() -> Any:
    table = nn.Embedding(20, 4, sparse=True)
    return of(lambda i: table(i).sin(), table), [(torch.randint(0, 20, (n, 3)),) for n in (4, 5, 6)]


@program("sparse embedding, backward inside")
def sparse_backward() -> Any:
    table = nn.Embedding(20, 4, sparse=True)

    def run(i: Tensor) -> Tensor:
        loss = table(i).sin().sum()
        loss.backward()
        return loss.detach()

    return of(run, table), [(torch.randint(0, 20, (n, 3)),) for n in (4, 5, 6)]


def sparse_step(make: Any, layer: Any = lambda: nn.Embedding(20, 4, sparse=True)) -> Callable[[], Any]:
    """A step with sparse gradients."""

    def build() -> Any:
        table = layer()
        optimizer = make(table.parameters())

        def run(i: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = table(i).sin().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return of(run, table), [(torch.randint(0, 20, (n, 3)),) for n in (4, 5, 6)]

    return build


program("sparse embedding with SparseAdam")(sparse_step(lambda p: torch.optim.SparseAdam(p, lr=0.1)))
program("sparse embedding with SGD")(sparse_step(lambda p: torch.optim.SGD(p, lr=0.1)))
program("sparse embedding with Adagrad")(sparse_step(lambda p: torch.optim.Adagrad(p, lr=0.1)))
program("sparse bag with SGD")(
    sparse_step(lambda p: torch.optim.SGD(p, lr=0.1), lambda: nn.EmbeddingBag(20, 4, sparse=True, mode="sum"))
)


@program("embedding bag")
def bag() -> Any:
    table = nn.EmbeddingBag(20, 4, mode="mean")
    return of(lambda i, o: table(i, o).sin(), table), [
        (torch.randint(0, 20, (n,)), torch.tensor([0, 3, 3])) for n in (7, 8, 9)
    ]


@program("sparse embedding bag")
def sparse_bag() -> Any:
    table = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
    return of(lambda i, o: table(i, o).sin(), table), [
        (torch.randint(0, 20, (n,)), torch.tensor([0, 3, 3])) for n in (7, 8, 9)
    ]


# optimizers


def step_with(make: Any, **settings: Any) -> Callable[[], Any]:
    """A step of training with an optimizer."""

    def build() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = make(model.parameters(), **settings)

        def run(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]

    return build


def only_step(make: Any, **settings: Any) -> Callable[[], Any]:
    """The optimizer's step alone, behind a backward outside."""

    def build() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = make(model.parameters(), **settings)

        def run(scale: Tensor) -> Tensor:
            optimizer.step()
            return scale * 2

        for p in model.parameters():
            p.grad = torch.ones_like(p) * 0.1
        return of(run), [(torch.ones(3) * k,) for k in range(4)]

    return build


program("AdamW(fused=True)")(step_with(torch.optim.AdamW, fused=True, lr=0.1))
program("AdamW(fused=True), the step alone")(only_step(torch.optim.AdamW, fused=True, lr=0.1))
program("SGD(fused=True)")(step_with(torch.optim.SGD, fused=True, lr=0.1, momentum=0.9))
program("Adagrad(fused=True)")(step_with(torch.optim.Adagrad, fused=True, lr=0.1))
program("AdamW(foreach=True)")(step_with(torch.optim.AdamW, foreach=True, lr=0.1))
program("Adam(amsgrad, capturable off, lr tensor)")(step_with(torch.optim.Adam, lr=torch.tensor(0.1), amsgrad=True))
program("AdamW(capturable=True)")(step_with(torch.optim.AdamW, capturable=True, lr=0.1))
program("RMSprop(centered)")(step_with(torch.optim.RMSprop, centered=True, momentum=0.9))
program("NAdam")(step_with(torch.optim.NAdam))
program("RAdam")(step_with(torch.optim.RAdam))
program("Adamax")(step_with(torch.optim.Adamax))
program("ASGD")(step_with(torch.optim.ASGD))
program("Rprop")(step_with(torch.optim.Rprop))
program("Adafactor")(step_with(torch.optim.Adafactor))
program("Muon")(
    lambda: (
        step_with(lambda ps, **k: torch.optim.Muon([p for p in ps if p.dim() == 2], **k), lr=0.02)()
        if hasattr(torch.optim, "Muon")
        else step_with(torch.optim.SGD)()
    )
)


def lbfgs(line_search: str | None) -> Callable[[], Any]:
    """A step with a closure."""

    def build() -> Any:
        model = nn.Linear(6, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, line_search_fn=line_search)

        def run(x: Tensor) -> Tensor:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = (model(x) - 1).square().mean()
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]

    return build


program("LBFGS")(lbfgs(None))
program("LBFGS with a line search")(lbfgs("strong_wolfe"))


@program("SGD with a closure")
def sgd_closure() -> Any:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def run(x: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


@program("GradScaler")
def scaler() -> Any:
    model = nn.Linear(6, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)

    def run(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


@program("learning rate schedule inside")
def schedule() -> Any:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def run(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6, 6)]


# autograd


def trained(forward: Any) -> Callable[[], Any]:
    """A model and a forward."""

    def build() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        return of(lambda x: forward(model, x), model), [(torch.randn(n, 6),) for n in (4, 5, 6)]

    return build


@program("anomaly mode inside")
@trained
def anomaly(model: Any, x: Tensor) -> Tensor:
    with torch.autograd.detect_anomaly(check_nan=True):
        return model(x).sin()


@program("anomaly mode with backward inside")
@trained
def anomaly_backward(model: Any, x: Tensor) -> Tensor:
    with torch.autograd.set_detect_anomaly(True):
        loss = model(x).sin().sum()
        loss.backward()
    return loss.detach()


@program("saved tensors hooks")
@trained
def saved(model: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        return model(x).sin()


@program("save_on_cpu")
@trained
def on_cpu(model: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x).sin()


@program("disable_saved_tensors_hooks")
@trained
def disabled(model: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        return model(x).sin()


@program("hooks on intermediate tensors")
@trained
def hooked(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    y.register_hook(lambda g: g.clamp(-0.5, 0.5))
    return y.sin()


@program("hooks that write down gradients")
def hooks_noting() -> Any:
    model = nn.Linear(6, 2)

    def run(x: Tensor) -> Any:
        seen: list[Tensor] = []
        y = model(x)
        y.register_hook(seen.append)
        y.sin().sum().backward()
        return seen[0]

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


@program("retain_grad")
@trained
def retained(model: Any, x: Tensor) -> Any:
    y = model(x)
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad * 2


@program("multi-grad hooks")
def multi() -> Any:
    model = nn.Linear(6, 2)
    norms: list[Any] = []

    def run(x: Tensor) -> Any:
        a, b = model(x), model(x * 2)
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda gs: norms.append(gs[0].norm()))
        return (a.sin() * b).sum()

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


@program("multi-grad hooks, backward inside")
def multi_inside() -> Any:
    model = nn.Linear(6, 2)

    def run(x: Tensor) -> Any:
        norms: list[Any] = []
        a, b = model(x), model(x * 2)
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda gs: norms.append(gs[0].norm() + gs[1].norm()))
        (a.sin() * b).sum().backward()
        return norms[0]

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


def module_hooks(register: Any) -> Callable[[], Any]:
    """A model with hooks that were registered before."""

    def build() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        register(model)
        return model, [(torch.randn(n, 6),) for n in (4, 5, 6)]

    return build


def _norms(model: Any) -> None:
    model.norms = []
    model[0].register_full_backward_hook(lambda m, gi, go: model.norms.append(go[0].norm()))


program("full backward hooks")(module_hooks(lambda m: m[1].register_full_backward_hook(lambda s, i, o: (i[0] * 0.5,))))
program("full backward hooks that note norms")(module_hooks(_norms))
program("full backward pre hooks")(
    module_hooks(lambda m: m[1].register_full_backward_pre_hook(lambda s, o: (o[0] * 0.5,)))
)
program("forward hooks that keep activations")(
    module_hooks(lambda m: m[1].register_forward_hook(lambda s, i, o: setattr(m, "kept", o.detach())))
)
program("hooks on parameters")(module_hooks(lambda m: m[0].weight.register_hook(lambda g: g * 2)))
program("hooks when gradients are accumulated")(
    module_hooks(lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 2)))
)


@program("full backward hooks, backward inside")
def full_hooks_inside() -> Any:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    norms: list[Any] = []
    model[1].register_full_backward_hook(lambda m, gi, go: norms.append(go[0].norm()))

    def run(x: Tensor) -> Any:
        norms.clear()
        loss = model(x).sin().sum()
        loss.backward()
        return norms[0]

    return of(run, model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


# NumPy


@plain("from_numpy inside", *[lambda n=n: (numpy.random.rand(n, 3).astype("float32"), r(3)) for n in (4, 5, 6)])
def from_numpy(a: Any, w: Tensor) -> Tensor:
    return torch.from_numpy(a) @ w


@plain("NumPy arguments and results", *[lambda n=n: (numpy.random.rand(n, 3).astype("float32"),) for n in (4, 5, 6)])
def numpy_through(a: Any) -> Any:
    return float((numpy.sin(a) * 2 + a.mean(axis=0)).sum())


@plain("t.numpy()", *[lambda n=n: (torch.randn(n, 3),) for n in (4, 5, 6)])
def to_numpy(x: Tensor) -> Any:
    a = (x * 2).numpy()
    return torch.from_numpy(numpy.cumsum(a, axis=0)) + 1


@plain("t.detach().cpu().numpy() as a result", *[lambda n=n: (torch.randn(n, 3),) for n in (4, 5, 6)])
def numpy_result(x: Tensor) -> Any:
    return torch.as_tensor((x * 2).detach().cpu().numpy())


@plain("NumPy scalars as factors", *[lambda n=n: (r(n), numpy.float32(n)) for n in (4, 5, 6)])
def numpy_scalars(x: Tensor, k: Any) -> Any:
    return x * k + float(numpy.sqrt(k))


@plain("NumPy random numbers", *[lambda n=n: (r(n),) for n in (4, 5, 6)])
def numpy_random(x: Tensor) -> Any:
    lam = float(numpy.random.beta(0.4, 0.4))
    return x * lam + x.flip(0) * (1 - lam)


# generators


@plain("a generator function", *[lambda n=n: (r(n),) for n in (4, 5, 6)])
def generator_made(x: Tensor) -> Any:
    def parts(t: Tensor) -> Any:
        for k in range(3):
            yield t.sin() * k

    return sum(parts(x))


# attention


@program("TransformerEncoder with a padding mask")
def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2)
    calls = []
    for n in (5, 6, 7):
        mask = torch.zeros(3, n, dtype=torch.bool)
        mask[0, -2:] = True
        calls.append((torch.randn(3, n, 8), mask))
    return of(lambda x, mask: model(x, src_key_padding_mask=mask), model), calls


@program("TransformerEncoder with a padding mask, in evaluation")
def encoder_evaluated() -> Any:
    run, calls = encoder()
    run.modules[0].eval().requires_grad_(False)
    return of(lambda x, m: run(x, m).masked_fill(m[..., None], 0.0), *run.modules), calls


@program("a copy of a module inside")
def copied() -> Any:
    model = nn.Linear(6, 2)
    return of(lambda x: copy.deepcopy(model)(x).sin(), model), [(torch.randn(n, 6),) for n in (4, 5, 6)]


@program("pad_sequence of a list")
def padded() -> Any:
    model = nn.Linear(6, 2)
    return of(lambda parts: model(pad_sequence(parts, batch_first=True)).sin(), model), [
        ([torch.randn(n, 6) for n in lengths],) for lengths in LENGTHS
    ]
