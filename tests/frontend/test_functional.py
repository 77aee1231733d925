"""The functional graph, run on real tensors, does what eager does: values, aliasing, mutated inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx

import intarsia
from intarsia.frontend.errors import Unsupported
from intarsia.frontend.functional.spec import FunctionalGraph
from intarsia.frontend.functional.trace import functionalize
from intarsia.frontend.graph.fake_dispatch import new_fake_mode

aten = torch.ops.aten


def replay(graph: FunctionalGraph, inputs: list[Any]) -> Any:
    """Run the functional graph on real inputs and apply its output specifications and mutations."""
    results = graph.graph_module(*inputs)
    user: list[Any] = []
    for mutation in graph.mutations:
        inputs[mutation.input_index].copy_(results[mutation.output_index])
    symbols = {}
    for node, value in zip(graph.graph_module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, Tensor):
            for size, real in zip(node.meta["val"].shape, value.shape, strict=True):
                if isinstance(size, torch.SymInt):
                    symbols[size.node.expr] = real
    number = lambda e: int(e.subs(symbols)) if hasattr(e, "subs") else e  # noqa: E731
    for spec in graph.outputs:
        geometry = [[number(n) for n in spec.size], [number(n) for n in spec.stride]]
        if spec.kind == "value":
            assert list(results[spec.index].shape) == geometry[0]
            user.append(torch.empty_strided(*geometry, dtype=results[spec.index].dtype).copy_(results[spec.index]))
        elif spec.kind == "input":
            user.append(inputs[spec.index])
        elif spec.kind == "output":
            user.append(user[spec.index])
        elif spec.kind in ("alias", "alias_output"):
            base = (inputs if spec.kind == "alias" else results)[spec.index]
            offset = number(spec.storage_offset) + base.storage_offset()
            user.append(base.as_strided(*geometry, offset))
        elif spec.kind == "symint":
            user.append(number(spec.value))
        else:
            user.append(spec.value)
    return pytree.tree_unflatten(user, graph.output_tree)


def aliasing(tensors: list[Any]) -> list[list[bool]]:
    keys = [t.untyped_storage().data_ptr() if isinstance(t, Tensor) else i for i, t in enumerate(tensors)]
    return [[a == b for b in keys] for a in keys]


def check(fn: Any, *inputs: Any, dynamic: bool = False, other: tuple[Any, ...] | None = None) -> FunctionalGraph:
    """Trace with fx on ``inputs``, functionalise, and compare with eager on copies of ``inputs`` (then of ``other``)."""
    gm = fn if isinstance(fn, fx.GraphModule) else fx.symbolic_trace(fn)
    examples: list[Any] = list(inputs)
    if dynamic:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        mode = FakeTensorMode(shape_env=ShapeEnv())
        examples = [mode.from_tensor(t, static_shapes=False) if isinstance(t, Tensor) else t for t in inputs]
    graph = functionalize(gm, examples)
    for node in graph.graph_module.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta
            assert not (hasattr(node.target, "_schema") and node.target._schema.is_mutable)
    for given in [inputs] + ([other] if other else []):
        ours, theirs = copy.deepcopy(list(given)), copy.deepcopy(list(given))
        torch.manual_seed(3)
        with torch.no_grad():
            expected = fn(*theirs)
        torch.manual_seed(3)
        actual = replay(graph, ours)
        after = torch.rand(())
        flat_a, tree_a = pytree.tree_flatten(actual)
        flat_e, tree_e = pytree.tree_flatten(expected)
        assert tree_a == tree_e
        for a, e in zip(flat_a + ours, flat_e + theirs, strict=True):
            if isinstance(e, Tensor):
                assert (a.dtype, a.shape, a.stride()) == (e.dtype, e.shape, e.stride())
                torch.testing.assert_close(a, e, equal_nan=True)
            else:
                assert a == e and type(a) is type(e)
        assert aliasing(flat_a + ours) == aliasing(flat_e + theirs)
        assert [[a is b for b in flat_a + ours] for a in flat_a] == [[a is b for b in flat_e + theirs] for a in flat_e]
        torch.manual_seed(3)
        with torch.no_grad():
            fn(*copy.deepcopy(list(given)))
        assert torch.equal(after, torch.rand(())), "the generator was left in another state"
    return graph


def ops(graph: FunctionalGraph) -> list[Any]:
    return [n.target for n in graph.graph_module.graph.nodes if n.op == "call_function"]


X = torch.arange(24.0).reshape(4, 6)


def both(*fs: Any) -> Any:
    def run(x: Tensor) -> Any:
        for f in fs:
            f(x)
        return x

    return run


def slot_write(x: Tensor, y: Tensor) -> Tensor:
    x[1:3, ::2] = y
    return x.sum()


def cache_write(cache: Tensor, new: Tensor) -> Any:
    cache[:, 2:4].copy_(new)
    return cache[:, :4] * 2, cache


def stale_view(x: Tensor) -> Any:
    y = x + 1
    row = y[1]
    column = y.t()[2]
    y.mul_(2)
    row.add_(5)
    return row * 1, column * 1, y


def two_views(x: Tensor) -> Any:
    y = x * 2
    return y[:2], y[2:], y.t()


def deep_chain(x: Tensor) -> Any:
    y = x.clone()
    v = y.view(2, 2, 6).permute(2, 0, 1)[1].unsqueeze(0).squeeze(0)
    v.fill_(7.0)
    d = y.diagonal()
    d += 1
    a, b = y.split(3, dim=1)
    a.copy_(b)
    for part in y.unbind(1):
        part.mul_(0.5)
    return y, v


def inplace_metadata(x: Tensor) -> Any:
    y = x + 1
    z = y[0]
    y.t_()
    y.unsqueeze_(0)
    y.mul_(3)
    return y, z * 1


def random_ops(x: Tensor) -> Any:
    a = F.dropout(x, 0.5, training=True)
    b = torch.rand(3)
    torch.rand(2)  # dead, but it draws
    c = x.clone().uniform_(1, 2)
    x.normal_()
    return a, b, c, torch.bernoulli(torch.full((4,), 0.5)), torch.randint(0, 9, (5,)), torch.randperm(6)


def out_variants(x: Tensor, o: Tensor) -> Any:
    torch.add(x, 1, out=o)
    e = torch.empty(0)
    torch.mul(x, 2, out=e)
    t = torch.zeros(4, 6, dtype=torch.float64)
    torch.sin(x, out=t)
    return o.sum(), e, t


CASES: dict[str, Any] = {
    "pointwise": (lambda x: torch.sin(x) + x.cos() * 2, X),
    "view of input": (lambda x: x.view(6, 4), X),
    "input itself": (lambda x: (x, x, x + 1), X),
    "detach": (lambda x: x.detach(), X),
    "slices of input": (lambda x: (x[1:, 2:], x.t(), x[0]), X),
    "two views": (two_views, X),
    "same output twice": (lambda x: [x.sin()] * 2, X),
    "expanded": (lambda x: x.sum().expand(3), X),
    "gappy": (lambda x: (x + 1)[:, :2], X),
    "transposed": (lambda x: (x + 1).t(), X),
    "constants": (lambda x: {"a": None, "b": 3, "c": "s", "d": x + 1, "e": 1.5}, X),
    "inplace": (lambda x: x.add_(1), X),
    "inplace twice": (lambda x: x.mul_(2).add_(1).view(-1), X),
    "inplace on view": (lambda x: x[1].zero_(), X),
    "view then mutate": (lambda x: (x.t(), x.add_(1))[0], X),
    "slot write": (slot_write, X, torch.ones(2, 3)),
    "cache": (cache_write, torch.zeros(2, 6, 3), torch.randn(2, 2, 3)),
    "stale view": (stale_view, X),
    "deep chain": (deep_chain, X),
    "metadata": (inplace_metadata, X),
    "random": (random_ops, X),
    "out": (out_variants, X, torch.zeros(4, 6)),
    "copy broadcast": (lambda x, y: x.copy_(y) + 1, X, torch.arange(6)),
    "copy of input": (lambda x, y: (x.copy_(y), y + 1)[0], X, torch.ones(4, 6)),
    "copied, then fresh": (lambda x: torch.empty(4, 6).copy_(x), X),
    "strides kept": (lambda x, y: x.copy_(y), X.clone().t(), torch.ones(6, 4)),
    "half inplace": (lambda x, y: x.add_(y), X.half(), X),
    "bool inplace": (lambda x: x.logical_not_(), X),
    "index_put": (lambda x, i: (x.__setitem__(i, 3.0), x * 1)[1], X, torch.tensor([0, 2])),
    "masked": (lambda x: (x.__setitem__(x > 3, 0.0), x.masked_fill_(x == 0, 2))[1], X),
    "scatter": (lambda x, i: x.scatter_(1, i, 9.0), X, torch.tensor([[0, 1]])),
    "fill by tensor": (lambda x, v: x[0].fill_(v), X, torch.tensor(4.0)),
    "constant tensor": (lambda x: (x + torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([1, 2])), X),
    "constant, written": (lambda x: torch.tensor([1.0, 2]).add_(x[0, 0]), X),
    "factories": (lambda x: torch.arange(6) + torch.zeros(4, 6).add_(x) + torch.ones_like(x), X),
    "linear": (lambda x, w, b: F.linear(x, w, b), X, torch.randn(3, 6), torch.randn(3)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(2, 3, 5, 8)),
    "causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), torch.randn(2, 3, 5, 8)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), torch.randn(1, 2, 5, 5), torch.randn(4, 2, 3, 3)),
    "channels last": (
        lambda x, w: F.relu(F.conv2d(x, w)),
        torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last),
        torch.randn(4, 3, 3, 3),
    ),
    "norms": (lambda x: F.layer_norm(x, (6,)) + F.rms_norm(x, (6,)) + F.softmax(x, -1), X),
    "batch norm, inference": (
        lambda x, m, v: F.batch_norm(x, m, v),
        X,
        torch.zeros(6),
        torch.ones(6),
    ),
    "batch norm, training": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        X,
        torch.zeros(6),
        torch.ones(6),
    ),
    "matmul": (lambda x, y: x @ y, torch.randn(2, 3, 4, 5), torch.randn(5, 6)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
    "embedding": (lambda i, w: F.embedding(i, w), torch.tensor([[1, 2], [0, 3]]), torch.randn(4, 8)),
    "loss": (lambda x, t: F.cross_entropy(x, t), X, torch.tensor([0, 5, 2, 1])),
    "complex": (lambda x: (torch.view_as_complex(x.view(4, 3, 2)).conj() * 2j).real, X),
    "complex write": (lambda x: (torch.view_as_complex(x.view(4, 3, 2)).mul_(2), x + 1)[1], X),
    "reshape of transposed": (lambda x: x.t().reshape(-1).add_(1), X),
    "contiguous": (lambda x: (x.contiguous(), x.t().contiguous()), X),
    "dtype change": (lambda x: (x.to(torch.float32), x.double(), x.to(torch.int32)), X),
    "chunk and cat": (lambda x: torch.cat(x.chunk(2, dim=1)[::-1], dim=0), X),
    "foreach": (lambda x, y: torch._foreach_add_([x, y], 1.0), X, X.clone()),
    "sort": (lambda x: x.sort(dim=1, descending=True), X),
    "cumulative": (lambda x: (x.cumsum(0), x.cumprod_(1)), X),
    "lstm": (
        lambda x, h, c, w, u: torch.lstm_cell(x, (h, c), w, u),
        torch.randn(2, 3),
        torch.randn(2, 4),
        torch.randn(2, 4),
        torch.randn(16, 3),
        torch.randn(16, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str) -> None:
    fn, *inputs = CASES[name]
    # What fx cannot trace symbolically (item assignment) is traced by hand as a single call of the function.
    check(_as_graph(fn, len(inputs)), *inputs)


def _as_graph(fn: Any, arity: int) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(fn, tuple(graph.placeholder(f"x{i}") for i in range(arity))))
    return fx.GraphModule(torch.nn.Module(), graph)


def swap(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def rotate(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    y = torch.cat((-b, a), dim=-1).reshape(x.shape[0] * 2, -1)
    return y + torch.arange(x.shape[1] // 2) + x.shape[0]


def roll_cache(cache: Tensor, new: Tensor) -> Any:
    size = new.shape[0]
    cache[:-size] = cache[size:].clone()
    cache[-size:] = new
    return cache[size:], new.shape[0] + cache.shape[0]


@pytest.mark.parametrize(
    ("fn", "inputs", "other"),
    [
        (swap, (X, X + 1), (X[:2], X[2:] * 2)),
        (rotate, (torch.randn(4, 6),), (torch.randn(3, 10),)),
        (roll_cache, (torch.randn(8, 3), torch.randn(2, 3)), (torch.randn(9, 5), torch.randn(4, 5))),
        (lambda x: x.view(x.shape[0], 2, -1).transpose(1, 2), (X,), (torch.randn(3, 8),)),
        (lambda x: (x * 2)[:, 1:], (X,), (torch.randn(3, 8),)),
        (lambda x: x.mean(0) * x.shape[0], (X,), (torch.randn(7, 5),)),
        (lambda x: F.scaled_dot_product_attention(x, x, x), (torch.randn(2, 3, 5, 8),), (torch.randn(3, 4, 6, 8),)),
    ],
)
def test_symbolic_sizes(fn: Any, inputs: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    check(_as_graph(fn, len(inputs)), *inputs, dynamic=True, other=other)


def test_swap_with_fixed_sizes() -> None:
    check(_as_graph(swap, 2), X, X + 1)


def test_composites_stay_whole() -> None:
    q = torch.randn(1, 2, 4, 8)
    graph = check(_as_graph(lambda q, w: F.linear(F.scaled_dot_product_attention(q, q, q), w), 2), q, torch.randn(8, 8))
    assert ops(graph) == [aten.scaled_dot_product_attention.default, aten.linear.default]
    norm = check(_as_graph(lambda x, m, v: F.batch_norm(x, m, v), 3), X, torch.zeros(6), torch.ones(6))
    assert aten._native_batch_norm_legit_no_training.default in ops(norm)


def test_outputs_are_described() -> None:
    graph = check(_as_graph(lambda x: (x.view(-1)[2:], x, x + 1, None), 1), X)
    alias, same, value, constant = graph.outputs
    assert (alias.kind, alias.index, alias.size, alias.stride, alias.storage_offset) == ("alias", 0, (22,), (1,), 2)
    assert (same.kind, same.index) == ("input", 0)
    assert (value.kind, value.size, value.stride) == ("value", (4, 6), (6, 1))
    assert (constant.kind, constant.value) == ("constant", None)


def test_mutations_are_listed() -> None:
    graph = check(_as_graph(lambda x, y: y.add_(x)[0], 2), X, X.clone())
    assert [m.input_index for m in graph.mutations] == [1]


def test_the_users_line_is_kept() -> None:
    gm = _as_graph(lambda x: (x + 1).softmax(-1), 1)
    for node in gm.graph.find_nodes(op="call_function", target=next(iter(gm.graph.nodes)).next.target):
        node.meta["stack_trace"] = '  File "user.py", line 3, in f\n    return (x + 1).softmax(-1)'
    graph = functionalize(gm, [X])
    calls = graph.graph_module.graph.find_nodes
    assert all("user.py" in n.stack_trace for t in ops(graph) for n in calls(op="call_function", target=t))


def test_attributes_are_constants() -> None:
    gm = _as_graph(lambda x: x, 1)
    gm.register_buffer("weight", torch.ones(6))
    placeholder = next(iter(gm.graph.nodes))
    gm.graph.erase_node(placeholder.next.next)
    with gm.graph.inserting_after(placeholder):
        weight = gm.graph.get_attr("weight")
    gm.graph.erase_node(placeholder.next.next)
    total = gm.graph.call_function(torch.add, (placeholder, weight))
    gm.graph.output((total, weight))
    gm.recompile()
    graph = functionalize(gm, [X])
    assert [o.kind for o in graph.outputs] == ["value", "constant"]
    assert graph.outputs[1].value is gm.weight
    torch.testing.assert_close(graph.graph_module(X)[0], X + 1)


REFUSED: dict[str, Any] = {
    "resize of an input": (lambda x: x.resize_(2, 2), X.clone()),
    "transposed input": (lambda x: x.t_(), X.clone()),
    "sizes from data": (lambda x: x.nonzero(), X),
    "number from data": (lambda x: x.sum().item() + 1, X),
    "reinterpreted input": (lambda x: x.view(torch.int32), X),
    "set_": (lambda x: (x + 1).set_(x), X),
    "as strided write": (lambda x: (x + 1).unfold(0, 2, 1).add_(1), X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, x = REFUSED[name]
    with pytest.raises(Unsupported):
        functionalize(_as_graph(fn, 1), [x])


def test_refusal_names_the_users_line() -> None:
    gm = _as_graph(lambda x: x.t_(), 1)
    call = next(n for n in gm.graph.nodes if n.op == "call_function")
    call.meta["stack_trace"] = '  File "user.py", line 3, in f\n    return x.t_()'
    with pytest.raises(Unsupported) as error:
        functionalize(gm, [X.clone()])
    assert (error.value.filename, error.value.lineno) == ("user.py", 3)


def test_inputs_that_share_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    base = X.clone()
    whole, row = mode.from_tensor(base), mode.from_tensor(base[0])
    functionalize(_as_graph(lambda a, b: a + b, 2), [whole, row])
    with pytest.raises(Unsupported, match="share"):
        functionalize(_as_graph(lambda a, b: a.add_(1) + b, 2), [whole, row])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_interpolation_keeps_the_memory_format(channels: int, mode: str) -> None:
    """On a GPU as on a CPU: of few channels torch's fake tensors would be contiguous there, eager's results are not."""
    for form in (torch.channels_last, torch.contiguous_format):
        real = torch.randn(2, channels, 5, 7).to(memory_format=form)
        wanted = F.interpolate(real, size=(13, 4), mode=mode).stride()
        for device in ("cpu", "cuda"):
            with new_fake_mode(None):
                fake = torch.empty_strided(real.shape, real.stride(), device=device)
                assert F.interpolate(fake, size=(13, 4), mode=mode).stride() == wanted


def test_interpolation_of_volumes_keeps_the_memory_format() -> None:
    real = torch.randn(2, 3, 5, 7, 2).to(memory_format=torch.channels_last_3d)
    for mode in ("nearest", "trilinear"):
        wanted = F.interpolate(real, size=(3, 4, 5), mode=mode).stride()
        with new_fake_mode(None):
            fake = torch.empty_strided(real.shape, real.stride(), device="cuda")
            assert F.interpolate(fake, size=(3, 4, 5), mode=mode).stride() == wanted


def test_batch_norms_of_cudnn_say_what_they_write():
    """Autograd makes them of batch norms on a GPU: their running statistics change without being results."""

    def program(x, weight, bias, mean, var, gradient):
        made = aten.cudnn_batch_norm.default(x, weight, bias, mean, var, True, 0.1, 1e-5)
        given = (x, gradient, weight, mean, var, made[1], made[2], 1e-5, made[3])
        back = aten.cudnn_batch_norm_backward.default(*given)
        return made[0], back[0], back[1], back[2]

    def plain(x, weight, bias, mean, var, gradient):
        out, saved, scale = aten.native_batch_norm.default(x, weight, bias, mean, var, True, 0.1, 1e-5)
        wanted = [True, True, True]
        back = aten.native_batch_norm_backward.default
        return out, *back(gradient, x, weight, mean, var, saved, scale, True, 1e-5, wanted)

    x, gradient = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    inputs = [x, torch.randn(3), torch.randn(3), torch.zeros(3), torch.ones(3), gradient]
    mode = new_fake_mode(None)
    graph = functionalize(fx.symbolic_trace(program), [mode.from_tensor(t) for t in inputs])
    ours, theirs = [t.clone() for t in inputs], [t.clone() for t in inputs]
    torch.testing.assert_close(list(replay(graph, ours)), list(plain(*theirs)))
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(ours[3], inputs[3])


@pytest.mark.parametrize("sizes", [(3, 1), (1, 2, 2), (0, 4), None])
def test_pieces_of_what_was_written_have_their_own_sizes(sizes):
    """A piece begins where those in front of it end: by the compiler, which reads their sizes of the graph."""

    def program(x, lengths):
        y = x * 1
        pieces = y.split(lengths.tolist() if sizes is None else sizes)
        pieces[0].zero_()
        return y, [piece * 1 for piece in pieces]

    fast = intarsia.compile(program)
    for lengths in ([3, 1], [1, 3], [0, 4]):
        x = torch.randn(4 if sizes is None else sum(sizes), 2)
        torch.testing.assert_close(fast(x, torch.tensor(lengths)), program(x, torch.tensor(lengths)))


def test_copies_of_views() -> None:
    """Operators that give a view's contents are views and copies, which fuse; what they give shares no memory."""

    def f(x: Tensor, d: Tensor) -> Any:
        return (
            *(aten.permute_copy(x, [1, 0]), aten.t_copy(x) + 1, aten.select_copy(x, 0, 1), aten.detach_copy(x.t())),
            *(aten.expand_copy(d, [2, 3]), aten.view_copy(x, [6]), aten.slice_copy(x, 1, 0, 2), aten.alias_copy(x)),
            *(aten.unsqueeze_copy(x.t(), 0), aten.squeeze_copy(d[None])),
        )

    aten = torch.ops.aten
    graph = check(f, torch.arange(6.0).reshape(2, 3), torch.arange(3.0))
    assert not [op for op in ops(graph) if "_copy" in str(op)]


def test_samplers_of_cudnn_are_torchs():
    """grid_sample picks cuDNN's operator on a GPU, which fake tensors cannot run."""

    def function(x, grid, gradient):
        found = torch.ops.aten.cudnn_grid_sampler(x, grid)
        return found, *torch.ops.aten.cudnn_grid_sampler_backward(x, grid, gradient)

    x, grid, gradient = torch.randn(2, 3, 8, 9), torch.rand(2, 5, 6, 2) * 2.4 - 1.2, torch.randn(2, 3, 5, 6)
    found = intarsia.compile(function, fullgraph=True)(x, grid, gradient)
    leaves = [x.requires_grad_(), grid.requires_grad_()]
    with torch.enable_grad():
        expected = torch.nn.functional.grid_sample(x, grid, align_corners=True)
        both = torch.autograd.grad(expected, leaves, gradient)
    for got, want in zip(found, (expected, *both), strict=True):
        torch.testing.assert_close(got, want)
