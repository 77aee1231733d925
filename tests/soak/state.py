"""Programs that read and set the state of the process: seeds, generators, default dtype and device, grad and inference mode, autocast."""

from __future__ import annotations

from . import branches
from .bodies import Tables
from .bodies import program as grown

SETUP = """\
gen = torch.Generator().manual_seed(5)
drop = nn.Dropout(0.5)
kept = torch.get_rng_state()
noisy = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.BatchNorm1d(3))
@torch.no_grad()
def quiet(a):
    return a * 2
@torch.inference_mode()
def inferred(a):
    return a + 1
@torch.enable_grad()
def loud(a):
    return a * 3
@torch.autocast('cpu', torch.bfloat16)
def cast(a):
    return torch.ones(2, 3) @ torch.ones(3, 2) * a.sum()
"""
VALUES = [
    "{t} + 1", "{t} * {t}", "{t}.relu()", "{t}.sum()", "{t}.clone()", "{t}.detach()", "{t}", "{t}.view(-1)", "{t}[:1]", "look({t})", "{F}({t})", "{t} * p.sum()",
    "torch.rand(3)", "torch.randn(2)", "torch.rand_like({t})", "torch.randint(0, 9, (3,))", "torch.randperm(4)", "F.dropout({t}, 0.5)", "drop({t})", "torch.rand(3, generator=gen)", "torch.randn(2, generator=gen)", "torch.bernoulli(torch.full((4,), 0.5))", "torch.normal(0.0, 1.0, (2,))", "torch.multinomial(torch.ones(4), 2)",
    "torch.empty(3).uniform_()", "torch.empty(3).normal_(generator=gen)", "torch.empty(3).exponential_()", "{t}.bernoulli(0.5) if {t}.is_floating_point() else {t}", "torch.randn(0)", "torch.rand({t}.shape)", "torch.randn(2, 3)[:, :1]", "noisy(torch.ones(2, 3))", "F.dropout({t}, 0.5, False)", "F.dropout({t}, 0.0)", "F.dropout({t}, 1.0)", "F.alpha_dropout({t}, 0.3)",
    "torch.ones(2)", "torch.tensor(1.5)", "torch.tensor([1, 2]) / 2", "torch.zeros(2, 2)", "torch.arange(3.0)", "torch.linspace(0, 1, 3)", "torch.full((2,), 1.5)", "torch.eye(2)", "torch.empty(0)", "torch.tensor(1.5) * {t}.sum()", "torch.tensor(1j)", "quiet({t})", "inferred({t})", "loud({t})", "cast({t})", "torch.get_rng_state()[:4]", "gen.get_state()[:3]",
    "torch.ones(2, 3) @ torch.ones(3, 2)", "torch.tensor({t}.sum().item())", "torch.as_tensor([1.0, 2.0])", "torch.initial_seed() * torch.ones(1)", "gen.initial_seed() % 7 * torch.ones(1)", "torch.scalar_tensor(2)", "torch.hann_window(3)", "{t}.new_tensor([1.0])", "{t} ** 2.5", "i / 2", "i * 1.5", "i.mean(dtype=torch.float32)", "{t} + torch.rand(())",
]  # fmt: skip
STATEMENTS = [
    "torch.manual_seed({k} + 1)", "torch.manual_seed({k})", "gen.manual_seed({k})", "gen.seed()\ngen.manual_seed(1)", "st = torch.get_rng_state()\n{t} = {t} + torch.rand(())\ntorch.set_rng_state(st)", "torch.set_rng_state(kept)", "gen.set_state(kept)", "with torch.random.fork_rng(devices=[]):\n    {t} = {t} + torch.rand(())", "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed({k})\n    out.append(torch.rand(2))",
    "torch.rand(2)", "torch.randn(1, generator=gen)", "torch.nn.init.normal_(s.a.data)", "{t}.uniform_()", "{t}.normal_(generator=gen)", "{t}.add_(torch.rand(()))", "torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)", "out.append(torch.get_default_dtype())", "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "out.append(torch.is_grad_enabled())",
    "out.append(torch.is_inference_mode_enabled())", "out.append({t}.is_inference())", "drop.train()", "drop.eval()", "noisy.eval()", "noisy.train()", "noisy(torch.ones(2, 3))", "out.append({t})", "s.a = {t}", "look({t})", "out.append(gen.get_state())", "kept2 = torch.get_rng_state()\nout.append(kept2)", "g2 = torch.Generator()\ng2.manual_seed({k})\nout.append(torch.rand(2, generator=g2))",
    "g2 = gen.clone_state()\nout.append(torch.rand(2, generator=g2))", "out.append(torch.rand(2, generator=torch.Generator().manual_seed({k})))", "prev = torch.is_grad_enabled()\ntorch.set_grad_enabled(not prev)\n{t} = {t} * 2\ntorch.set_grad_enabled(prev)", "old = torch.get_default_dtype()\ntorch.set_default_dtype(torch.float64)\n{t} = {t} + torch.ones(())\nout.append(torch.ones(1))\ntorch.set_default_dtype(old)",
    "out.append(torch.is_autocast_enabled('cpu'))", "{t}.sum().backward()", "out.append(torch.rand(()).item())", "out.append(torch.randint(0, 5, ()).item())", "s.n = int(torch.randint(0, 5, ()))", "import random as pyr\nout.append(pyr.random())", "torch.seed()\ntorch.manual_seed(0)", "out.append(torch.initial_seed())", "s.g = gen", "with inference(gen) if False else torch.no_grad():\n    out.append(torch.rand(1, generator=gen))",
]  # fmt: skip
NUMBERS = ["{k}", "{t}.shape[0]", "s.n", "{t}.dim()", "torch.randint(0, 4, ()).item()", "int(torch.rand(()) * 3)", "{t}.sum().item()", "int(torch.is_grad_enabled())", "len(out)", "torch.rand(()).item()"]  # fmt: skip
CONDITIONS = ["{t}.sum() > {f}", "torch.rand(()) > 0.5", "torch.rand(()).item() > 0.5", "drop.training", "{n} > 1", "({t} > 0).any()", "torch.is_grad_enabled()", "torch.is_inference_mode_enabled()", "torch.get_default_dtype() == torch.float32", "s.n > 1", "{t}.requires_grad", "torch.rand(3).sum() > 1"]  # fmt: skip
CHANGES = [*branches.CHANGES, "torch.manual_seed(3)", "gen.manual_seed(7)", "gen = torch.Generator().manual_seed(2)", "drop.eval()", "drop.p = 0.3", "noisy.eval()", "torch.rand(5)", "torch.rand(1, generator=gen)", "torch.set_default_dtype(torch.float64)", "torch.set_grad_enabled(False)", "kept = torch.get_rng_state()"]  # fmt: skip
CONTEXTS = ("torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)", "torch.inference_mode()", "torch.inference_mode(False)", "torch.autocast('cpu', torch.bfloat16)", "torch.autocast('cpu', enabled=False)", "torch.random.fork_rng(devices=[])", "torch.device('cpu')", "torch.random.fork_rng()")  # fmt: skip
TABLES = Tables(CONDITIONS, VALUES, NUMBERS, STATEMENTS, SETUP, ("if", "else", "early", "raise", "for", "with", "with", "try"), CONTEXTS, CHANGES, 0.2, 1)  # fmt: skip


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
