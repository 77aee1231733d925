"""What a training graph saves for backward: right and monotonic at every budget, never what costs nothing to have again."""

import random
import weakref

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import intarsia
from intarsia.frontend.torch_private.autograd import aot_autograd
from intarsia.frontend.torch_private.joint import Joint
from intarsia.partition import layouts, paddings
from intarsia.partition.choose import split
from intarsia.partition.prepare import prepare
from intarsia.targets.build.program import Program
from intarsia.targets.host.ir import Function, HostProgram, Statement
from intarsia.targets.host.render import render, taking

BUDGETS = (1.0, 0.5, 0.3, 0.0)


def halves(function, args, budget=1.0):
    """(callable, forward, backward, what is saved) of a function; both halves run in eager."""
    made = {}

    def keep(name):
        def compiler(graph, inputs):
            made[name] = graph
            return graph.forward

        return compiler

    def part(joint):
        forward, backward, made["partition"] = split(joint, budget)
        return forward, backward

    graph = fx.Graph()  # of one node: what the function does is seen when AOTAutograd runs it
    graph.output((graph.call_function(function, tuple(graph.placeholder(f"x{i}") for i in range(len(args)))),))
    module = fx.GraphModule(nn.Module(), graph)
    with torch.enable_grad():
        run = aot_autograd(
            module, list(args), keep("forward"), keep("backward"), lambda m: prepare(m, small=budget < 1.0), part
        )
    return lambda *args: run(*args)[0], made["forward"], made["backward"], made["partition"]


def targets(graph):
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


def kinds(partition):
    return [s.name for s in partition.saved]


def leaf(*shape, **kwargs):
    return torch.randn(*shape, **kwargs).requires_grad_()


def gradients_of(function, args):
    torch.manual_seed(7)
    with torch.enable_grad():
        result = function(*args)
        wanted = [a for a in args if a.requires_grad]
        return [result.detach(), *torch.autograd.grad(result.sum(), wanted, allow_unused=True)]


# ---- random programs ------------------------------------------------------------------------------------------------

_STEPS = {
    "product": lambda x, w, v: x @ w,
    "gelu": lambda x, w, v: F.gelu(x) * 1.5,
    "norm": lambda x, w, v: F.layer_norm(x, x.shape[-1:]) * v,
    "softmax": lambda x, w, v: torch.softmax(x, -1),
    "dropout": lambda x, w, v: F.dropout(x, 0.3),
    "native dropout": lambda x, w, v: torch.native_dropout(x, 0.25, True)[0],
    "row": lambda x, w, v: x + x.sum(-1, keepdim=True) * 0.1,
    "views": lambda x, w, v: x.t().reshape(x.shape) + x,
    "piece": lambda x, w, v: torch.cat([x[:, 3:].tanh(), x[:, :3]], 1),
    "half": lambda x, w, v: x.to(torch.float64).sin().to(torch.float32) + v,
    "relu": lambda x, w, v: F.relu(x - v),
    "noise": lambda x, w, v: x * (1 + 0.1 * torch.rand_like(x)),
    "power": lambda x, w, v: x.square().mean(0) + (x.abs() + 0.1).sqrt(),
    "lookup": lambda x, w, v: x + w[torch.arange(8) % 5],
    "norm of turned": lambda x, w, v: F.layer_norm(x.t() + x, x.shape[-1:], v).reshape(4, 16).sin().reshape(8, 8),
}


def program(seed):
    """A random program over (x, w, v), and the names of its steps."""
    rng = random.Random(seed)
    names = [rng.choice(list(_STEPS)) for _ in range(rng.randint(4, 14))]
    again = [rng.randrange(len(names)) if rng.random() < 0.4 else None for _ in names]

    def function(x, w, v):
        known = [x]
        for name, other in zip(names, again, strict=True):
            made = _STEPS[name](known[-1], w, v)
            known.append(made + 0.5 * known[other] if other is not None and other < len(known) else made)
        return known[-1].square().mean(1)

    return function, names


@pytest.mark.parametrize("seed", range(5))
def test_random_programs_at_every_budget(seed):
    function, names = program(seed)
    args = leaf(8, 8), leaf(8, 8), leaf(8)
    expected = gradients_of(function, args)
    held = []
    for budget in BUDGETS:
        run, _, _, found = halves(function, args, budget)
        for got, want in zip(gradients_of(run, args), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda m: f"{names}, {budget}: {m}")  # noqa: B023
        held.append(found.bytes)
        assert found.least <= found.bytes <= found.least + budget * (found.most - found.least) + 1 or budget == 1.0
    assert held == sorted(held, reverse=True), names


# ---- whole steps ----------------------------------------------------------------------------------------------------


def on_a_gpu(monkeypatch):
    """Values cost what they cost on a GPU."""
    for name in ("choose", "costs", "step"):
        monkeypatch.setattr(f"intarsia.partition.{name}.is_on_gpu", lambda node: True)


def step_of(function):
    def step(x, w, v):
        loss = function(x, w, v).mean()
        loss.backward()
        if w.grad is not None:
            with torch.no_grad():
                w -= 0.01 * w.grad
        return loss.detach()

    return step


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_as_whole_steps(seed, monkeypatch):
    """What backward computes again has the same values, random numbers among them."""
    on_a_gpu(monkeypatch)
    function, names = program(seed)
    torch.manual_seed(0)
    args = [torch.randn(8, 8), torch.randn(8, 8) / 3, torch.randn(8)]
    found = {}
    for name in ("eager", "compiled"):
        step = intarsia.compile(step_of(function), fullgraph=True) if name == "compiled" else step_of(function)
        given = [a.clone().requires_grad_() for a in args]
        found[name] = []
        for _ in range(2):
            torch.manual_seed(5)
            with torch.enable_grad():
                found[name].append(step(*given))
            found[name] += [a.grad for a in given if a.grad is not None] + [given[1].detach().clone()]
            for a in given:
                a.grad = None
    for got, want in zip(found["compiled"], found["eager"], strict=True):
        assert (got - want).abs().max() <= 1e-4 * want.abs().max() + 1e-5, names


NORMS = {
    "batch": lambda x, v: F.batch_norm(x, None, None, v, None, True),
    "layer": lambda x, v: F.layer_norm(x, x.shape[1:], v[:, None, None].expand(x.shape[1:])),
    "group": lambda x, v: F.group_norm(x, 2, v, v.sin()),
    "rms": lambda x, v: F.rms_norm(x, x.shape[-1:]) * v[:, None, None],
}


@pytest.mark.parametrize("name", NORMS)
def test_what_a_norm_gives_is_computed_of_its_statistics(name, monkeypatch):
    on_a_gpu(monkeypatch)

    def function(x, w, v):
        y = NORMS[name](F.conv2d(x, w), v).relu()
        return F.conv2d(y, w.flip(0)).square()

    args = leaf(4, 8, 6, 6), leaf(8, 8, 1, 1), leaf(8)
    run, _, backward, found = halves(function, args)
    assert [s.name for s in found.saved if s.bytes > 1000] == ["convolution", "convolution"]
    assert not any("norm" in t and "backward" not in t for t in targets(backward))
    for got, want in zip(gradients_of(run, args), gradients_of(function, args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "turned": lambda x: x.transpose(2, 3) + x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned channels": lambda x: x.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3).sin(),
}


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NORMS)
def test_what_a_norm_gives_lies_as_it_did(name, layout, dtype, budget, monkeypatch):
    """A norm of an operand in any order of dimensions: what reads its result is a view where eager's is."""
    on_a_gpu(monkeypatch)

    def function(x, w, v):
        y = NORMS[name](LAYOUTS[layout](F.conv2d(x, w)).to(dtype), v.to(dtype)).relu().float()
        parts = y.permute(0, 2, 3, 1) if y.is_contiguous(memory_format=torch.channels_last) else y
        return F.conv2d((parts.reshape(-1, 36) * 2).reshape(4, 8, 6, 6), w.flip(0)).square()

    args = leaf(4, 8, 6, 6), leaf(8, 8, 1, 1), leaf(8)
    run = halves(function, args, budget)[0]
    for got, want in zip(gradients_of(run, args), gradients_of(function, args), strict=True):
        torch.testing.assert_close(
            got, want, rtol=1e-4 if dtype is torch.float32 else 3e-2, atol=want.abs().max() * 1e-2
        )


def test_long_chains_of_what_backward_reads_are_saved_here_and_there(monkeypatch):
    """Each sum is computed of the norm of the one before: all of them would be there when backward begins."""
    on_a_gpu(monkeypatch)

    def function(x, w):
        for _ in range(12):
            x = F.layer_norm(x + (x.bfloat16() @ w.bfloat16()), x.shape[-1:])
        return x

    args = leaf(64, 64), leaf(64, 64)
    run, _, _, found = halves(function, args)
    assert 2 <= kinds(found).count("add") <= 6 and kinds(found).count("mm") >= 6
    for got, want in zip(gradients_of(run, args), gradients_of(function, args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_weights_in_a_half_type_are_not_saved(monkeypatch):
    on_a_gpu(monkeypatch)
    args = leaf(64, 64), leaf(64, 256), leaf(256, 64)

    def function(x, v, w):
        with torch.autocast("cpu", torch.bfloat16):
            return (F.gelu(x @ v) @ w).float()

    _, _, _, found = halves(function, args)
    assert [(s.name, s.type) for s in found.saved] == [("mm", "bfloat16[64, 256]")]


# ---- what is saved --------------------------------------------------------------------------------------------------


def test_chains_of_elements_are_computed_again():
    _, _, backward, found = halves(lambda x, b: (x.sin() * b).exp().tanh() + 1, (leaf(64, 64), leaf(64)))
    assert found.saved == [] and "aten.sin.default" in targets(backward)


def test_views_are_not_saved_but_their_base():
    def function(x, w):
        q, k, v = (x @ w).split(8, 1)
        return (q * k.sin() * v).t()

    _, _, _, found = halves(function, (leaf(16, 8), leaf(8, 24)))
    assert kinds(found) == ["mm"] and found.bytes == 16 * 24 * 4


def test_a_small_part_of_a_large_value_is_saved_as_such():
    _, _, _, found = halves(lambda x, w: (x @ w)[:, :1].sin(), (leaf(64, 8), leaf(8, 64)))
    assert found.bytes == 64 * 4


def test_two_types_of_one_value_are_saved_as_the_narrow_one():
    def function(x, w):
        product = x @ w
        return product.float().sin().sum() + (product * product).sum()

    _, _, _, found = halves(function, [leaf(16, 16, dtype=torch.bfloat16) for _ in range(2)])
    assert [s.type for s in found.saved] == ["bfloat16[16, 16]"]


def test_what_two_kernels_make_of_narrow_elements_costs_them_a_narrow_read(monkeypatch):
    """A loss under autocast reads its rounded logarithms twice in backward: both are made of the logits, which are there anyway."""
    monkeypatch.setattr("intarsia.partition.choose.is_on_gpu", lambda node: True)
    monkeypatch.setattr("intarsia.partition.costs.is_on_gpu", lambda node: True)

    def loss(x, w, t):
        return F.nll_loss(torch.log_softmax((x @ w), 1).float(), t)

    args = leaf(64, 16, dtype=torch.bfloat16), leaf(16, 1000, dtype=torch.bfloat16), torch.randint(1000, (64,))
    _, _, _, partition = halves(loss, args)
    assert "mm" in kinds(partition)
    assert partition.bytes < 2 * 64 * 1000 * 2


def test_dropout_saves_a_byte_an_element():
    _, forward, backward, found = halves(lambda x: F.dropout(x.sin(), 0.5), (leaf(64, 64),))
    assert found.bytes == 64 * 64 and [s.type for s in found.saved] == ["bool[64, 64]"]
    assert any("native_dropout.default" in t for t in targets(forward)) and not any(
        "native_dropout.default" in t for t in targets(backward)
    )


def test_products_are_computed_once_at_full_budget_and_again_at_none():
    def function(x, w):
        for _ in range(3):
            x = torch.sin(x @ w)
        return x

    args = leaf(16, 16), leaf(16, 16)
    _, _, backward, found = halves(function, args)
    assert found.costly == {} and targets(backward).count("aten.mm.default") == 6
    _, _, backward, found = halves(function, args, 0.0)
    assert found.saved == [] and found.costly == {"mm": 3} and targets(backward).count("aten.mm.default") == 9


def test_what_is_computed_again_stands_before_its_use():
    def function(x, *weights):
        for w in weights:
            x = torch.sin(x @ w)
        return x

    _, _, backward, _ = halves(function, (leaf(16, 16), *(leaf(16, 16) for _ in range(6))), 0.5)
    nodes = [n for n in backward.graph.nodes if n.op == "call_function"]
    late = {n for n in backward.graph.nodes if "tangents" in n.name}
    for node in nodes:
        if not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    products = [n not in late for n in nodes if n.target is torch.ops.aten.mm.default]
    assert True in products and products != sorted(products, reverse=True)  # not all of them at the beginning


def test_equal_computations_are_one():
    _, _, _, found = halves(lambda x, w: (x @ w).sin() * (x @ w).cos(), (leaf(8, 8), leaf(8, 8)))
    assert kinds(found) == ["mm"]


# ---- end to end -----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        for _ in range(3):
            x = x + F.dropout(self.second(F.gelu(self.first(self.norm(x)))), 0.2)
        return x.square().mean()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_small_budget_of_a_compiled_model(dynamic):
    torch.manual_seed(0)
    model = Net()
    compiled = {0.3: intarsia.compile(model, dynamic=dynamic, options={"memory_budget": 0.3})}
    for size in (8, 12) if dynamic else (8,):
        x = torch.randn(size, 16)
        found = {}
        for name, run in {"eager": model, **compiled}.items():
            torch.manual_seed(3)
            with torch.enable_grad():
                loss = run(x)
                found[name] = [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]
        for budget in compiled:
            for got, want in zip(found[budget], found["eager"], strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [-0.1, 1.5, "half", True, None, float("nan")])
def test_a_budget_that_makes_no_sense(value):
    with pytest.raises(ValueError, match="'memory_budget' takes a number from 0 to 1"):
        intarsia.compile(lambda x: x, options={"memory_budget": value})


# ---- saved tensors are given up as backward goes on -----------------------------------------------------------------


def test_backward_gives_up_what_was_saved(monkeypatch):
    taken = []
    plain = Program.take

    def take(program, *args):
        made = plain(program, *args)

        def call(given):
            taken.append(len(given))
            result = made(given)
            assert not given
            return result

        return call

    monkeypatch.setattr(Program, "take", take)
    layers = [torch.randn(256, 256) / 32 for _ in range(8)]

    def function(x):
        for w in layers:
            x = torch.sin(x @ w)
        return x.sum()

    x = leaf(256, 256)
    compiled = intarsia.compile(function)
    with torch.enable_grad():
        expected = torch.autograd.grad(function(x), x)[0]
        for call in range(3):
            torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], expected)
            assert len(taken) == call  # the first shows that it goes as planned
        loss = compiled(x)
        for keep in (True, False):
            torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=keep)[0], expected)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, x)
    assert len(taken) == 4


def test_the_form_that_gives_up_its_arguments():
    lines = (
        Statement("%(v0)s = %(a1)s.view(-1)", ("v0",)),
        Statement("%(t0)s = %(mul)s(%(a0)s, %(v0)s)", ("t0",)),
        Statement("%(kernel)s(%(t0.data_ptr())s, %(a2.data_ptr())s)"),
        Statement("%(t0)s = None", frees=("t0",)),
    )
    function = Function("run", ("a0", "a1", "a2", "a3"), lines, "(%(a2)s,)")
    given = [torch.ones(4), torch.ones(2, 2), torch.ones(3), torch.ones(1)]
    alive = [weakref.ref(t) for t in given]

    def kernel(*addresses):
        assert [ref() is not None for ref in alive] == [False, False, True, False]

    names = {"mul": torch.mul, "kernel": kernel}
    exec(render(taking(HostProgram((), (function,)))), names)
    assert names["make"]()(given)[0] is alive[2]() and given == []


def test_a_program_of_any_sizes_keeps_its_arguments():
    size = Statement("%(s0)s = %(a0)s.size(0)", ("s0",), kind="size")
    assert taking(HostProgram((), (Function("run", ("a0",), (size,), "(%(s0)s,)"),))) is None


def test_what_is_brought_to_the_host_stays_there_until_backward():
    """`save_on_cpu` of a value on a GPU, at every budget; what merely comes from the host is as any other value."""
    graph, mode, aten = fx.Graph(), FakeTensorMode(), torch.ops.aten

    def given(name, device):
        node = graph.placeholder(name)
        with mode:
            node.meta["val"] = torch.empty(64, 64, device=device)
        return node

    def call(target, *args, **kwargs):
        node = graph.call_function(target, args, kwargs)
        with mode:
            node.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args), **kwargs)
        return node

    x, batch, arriving = given("primals_1", "cuda"), given("primals_2", "cpu"), given("tangents_1", "cuda")
    read = call(aten._to_copy.default, batch, device=torch.device("cuda"))
    value = call(aten.tanh.default, call(aten.mm.default, x, read))
    away = call(aten._to_copy.default, value, device=torch.device("cpu"))
    result = call(aten.sin.default, value)
    back = call(aten._to_copy.default, away, device=torch.device("cuda"))
    gradient = call(aten.mm.default, call(aten.tanh_backward.default, arriving, back), call(aten.sin.default, read))
    graph.output((result, gradient))
    for budget in BUDGETS:
        _, backward, partition = split(Joint(fx.GraphModule(nn.Module(), graph), 1), budget)
        taken = [n.name for n in backward.graph.find_nodes(op="placeholder")]
        assert away.name in taken and not {value.name, back.name} & set(taken)
        assert partition.bytes <= 64 * 64 * 4
    assert read.name in [n.name for n in split(Joint(fx.GraphModule(nn.Module(), graph), 1), 1.0)[1].graph.nodes]


# ---- rows that begin anywhere -----------------------------------------------------------------------------------------


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Graphs on a CPU are treated as on a GPU, and small products as large ones."""
    monkeypatch.setattr(paddings, "is_on_gpu", lambda node: True)
    monkeypatch.setattr(paddings, "_pays", lambda found: True)
    monkeypatch.setattr(paddings, "FEW", 4)


def half(*shape):
    return torch.randn(*shape).bfloat16().requires_grad_()


def loss_of_linear(x, w):
    return F.cross_entropy(F.linear(x, w).float(), torch.arange(8) % w.shape[0])


def loss_of_addmm(x, w, b):
    return F.cross_entropy(torch.addmm(b, x, w).view(2, 4, -1).float().flatten(0, 1), torch.arange(8) % b.shape[0])


LONGER = {
    "linear": (loss_of_linear, [half(8, 16), half(13, 16)]),
    "bias": (loss_of_addmm, [half(8, 16), half(16, 21), half(21)]),
    "joined dimensions": (lambda x, w: (x @ w).flatten().float().sum(), [half(8, 16), half(16, 13)]),  # of no slice
}


@pytest.mark.parametrize("name", LONGER)
def test_longer_rows(name, as_on_gpu):
    """Products whose rows begin anywhere get longer rows in both halves, and gradients stay eager's."""
    function, args = LONGER[name]
    run, forward, backward, partition = halves(function, args)
    pads = [n for half in (forward, backward) for n in half.graph.nodes if "constant_pad_nd" in str(n.target)]
    padded = [n.meta["val"].shape for n in pads if n.op == "call_function"]
    assert len(padded) == {"linear": 3, "bias": 4, "joined dimensions": 0}[name]  # the weight in both halves
    columns = args[1].shape[0 if name == "linear" else 1]
    longer = columns + -columns % 8
    assert all(longer in shape for shape in padded)
    assert not padded or f"bfloat16[8, {longer}]" in [s.type for s in partition.saved]
    for expected, found in zip(gradients_of(function, args), gradients_of(run, args), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reason", ["seen", "a view is seen", "even", "few", "float32"])
def test_rows_that_stay(reason, as_on_gpu):
    """The program's own results lie as in eager, and what would gain nothing stays as it is."""
    dtype = torch.float32 if reason == "float32" else torch.bfloat16
    x, w = torch.randn(4 if reason == "few" else 8, 16), torch.randn(16 if reason == "even" else 13, 16)

    def function(x, w):
        y = F.linear(x, w)
        return y if reason == "seen" else y.view(2, -1, y.shape[1]) if "view" in reason else y.float().exp().sum()

    _, forward, _, _ = halves(function, [x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()])
    assert not [n for n in forward.graph.nodes if "pad" in n.name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_where_a_norm_was_positive(dtype, training, monkeypatch):
    """On a GPU the gradient of relu(batch_norm(x)) asks x, which the norm's reads anyway, and no longer the result."""
    monkeypatch.setattr("intarsia.partition.prepare.is_on_gpu", lambda node: True)

    def function(x, w, b):
        x = F.batch_norm(x.to(dtype), torch.zeros(8), torch.ones(8), w, b, training=training)
        return F.relu(x).float().square().sum()

    args = [leaf(4, 8, 6, 6), leaf(8), leaf(8)]
    run, _, backward, _ = halves(function, args)
    exact = training and dtype is torch.float32  # a CPU's statistics have the image's dtype
    assert ("aten.threshold_backward.default" in targets(backward)) is not exact
    for expected, found in zip(gradients_of(function, args), gradients_of(run, args), strict=True):
        torch.testing.assert_close(found, expected)


def test_windows_lie_last(monkeypatch):
    """A convolution's weight that is computed goes channels-last from half to half, where both halves read it alone."""
    monkeypatch.setattr(layouts, "_on_gpu", lambda value: True)

    def function(x, w, v, p):
        w, v, p = w.bfloat16(), v.bfloat16(), p.bfloat16()
        y = F.conv2d(F.conv2d(F.conv2d(x.bfloat16(), w, padding=1), v, padding=1), p)
        return y.float().sum() + v.float().sum()

    args = [leaf(2, 4, 6, 6), leaf(8, 4, 3, 3), leaf(8, 8, 3, 3), leaf(8, 8, 1, 1)]
    run, _, backward, _ = halves(function, args)
    windows = [n.meta["val"] for n in backward.graph.nodes if n.op == "placeholder" and n.meta["val"].dim() == 4]
    last = [tuple(v.shape) for v in windows if v.is_contiguous(memory_format=torch.channels_last) and v.shape[2] == 3]
    assert last == [(8, 4, 3, 3)]  # `v` is read by others as well, `p` lies so anyway
    for expected, found in zip(gradients_of(function, args), gradients_of(run, args), strict=True):
        near = 0.05 * expected.abs().max().item()  # bfloat16: how a processor adds hangs on the layout
        torch.testing.assert_close(found, expected, rtol=0.0, atol=near)
