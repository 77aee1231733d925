"""Quantized tensors and sparse layouts in graphs: eager's values, layouts, gradients and errors, in one graph where nothing else is said."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from harness import compiled, leaves, number_backend
from one_graph import Program, i, r, t
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import intarsia

PROGRAMS: dict[str, Program] = {}


def program(*calls: tuple[Any, ...], breaks: str = "") -> Any:
    """Add a function."""

    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = Program(lambda: function, calls, breaks)
        return function

    return add


def csr(*shape: int, k: int = 0) -> Tensor:
    """A tensor of every third number of `t`, from the one at `k` on."""
    return (t(*shape) * (torch.arange(t(*shape).numel()).reshape(shape) % 3 == k)).to_sparse_csr()


def coo(*shape: int, k: int = 0) -> Tensor:
    """The same, in coordinates."""
    return csr(*shape, k=k).to_sparse().coalesce()


def twice(*shape: int) -> Tensor:
    """One that is not coalesced."""
    one = coo(*shape)
    return torch.sparse_coo_tensor(torch.cat([one.indices()] * 2, 1), torch.cat([one.values()] * 2), shape)


# ---- quantized ----


@program((t(4), 0.1), (t(4) * 0.5, 0.1), (t(4), 0.2))
def scale_of_the_program(x, s):
    q = torch.quantize_per_tensor(x, s, 3, torch.quint8)
    return q, q.dequantize() + q.int_repr().sum() * q.q_scale(), q.q_zero_point(), q.dtype, q.is_quantized, q.qscheme()


@program((t(4), torch.tensor(0.1), i(3)[0]), (t(4), torch.tensor(0.3), i(1)[0]))
def scale_in_a_tensor(x, s, z):
    q = torch.quantize_per_tensor(x, s, z, torch.qint8)
    return q, q.dequantize() * 2


@program((t(4),), (t(4) * 3,), (t(4).exp(),))
def scale_of_the_values(x):
    q = torch.quantize_per_tensor_dynamic(x, torch.quint8, False)
    return q.dequantize(), q


@program((t(3, 4), t(3).abs() + 0.1), (t(3, 4) * 2, t(3).abs() + 0.3))
def per_channel(x, s):
    q = torch.quantize_per_channel(x, s, torch.zeros(3, dtype=torch.long), 0, torch.qint8)
    return q, q.dequantize() + q.int_repr(), q.q_per_channel_scales() * 2, q.q_per_channel_axis()


@program((t(2, 8),), (t(2, 8) * 2,))
def quantized_operators(x):
    q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
    total = torch.ops.quantized.add(q, q, 0.1, 3)
    return torch.relu(total).reshape(16)[2:].dequantize(), torch.cat([q, total]).dequantize().sum()


@program(
    (torch.quantize_per_tensor(t(6), 0.1, 3, torch.quint8),), (torch.quantize_per_tensor(t(6), 0.2, 1, torch.quint8),)
)
def quantized_given(q):
    return q.dequantize() * q.q_scale(), q, q.int_repr() + q.q_zero_point()


@program((t(6),), breaks="a view of a quantized tensor is given out")
def quantized_view(x):
    return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).reshape(2, 3)


@program((t(6),))
def quantized_written(x):
    q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    q.copy_(x * 2)
    return q.dequantize()


# ---- sparse ----


@program(*((csr(4, 5, k=k), t(5, 2)) for k in (0, 1)))
def multiplied_in_place(a, d):
    a *= 2
    return a @ d, a.values()


@program((coo(4, 5), t(5, 2)))
def added_in_place(a, d):
    b = a.clone()
    b += a
    return b @ d


@program((csr(4, 5), r(5, 2)), (csr(4, 5, k=1), r(5, 2)), (csr(6, 5), r(5, 2)), (csr(7, 5), r(5, 3)))
def product(a, d):
    return (a @ d).relu() * 2, a.shape, a.layout, a.is_sparse_csr


@program((csr(4, 5).requires_grad_(), r(5, 2)), (csr(4, 5, k=1).requires_grad_(), t(5, 2)))
def product_trained(a, d):
    return torch.sparse.mm(a, d).sin()


@program((coo(4, 5).requires_grad_(), r(5, 2)), (coo(4, 5, k=2).requires_grad_(), t(5, 2)))
def coordinates_trained(a, d):
    return torch.sparse.mm(a, d).sin(), a.values() * 2


@program((r(4, 4), r(4, 2)), ((t(4, 4) - 0.5).relu().requires_grad_(), r(4, 2)), (torch.zeros(4, 4), r(4, 2)))
def made_here(x, d):
    a = (x * 2).to_sparse()
    return torch.sparse.mm(a, d), a._nnz(), a.to_dense() + 1


@program((torch.eye(4), t(4, 2)), (torch.zeros(4, 4), t(4, 2)), (torch.eye(4)[:1].expand(4, 4), t(4, 2)))
def made_here_compressed(x, d):
    a = x.to_sparse_csr()
    return a, a.crow_indices(), a.values() * 2, a.t() @ d, a.transpose(0, 1).layout


@program((i(0, 1, 1), i(2, 0, 0), r(3)), (i(3, 1, 2), i(2, 0, 3), r(3)), (i(0, 1, 1, 2), i(2, 0, 0, 2), r(4)))
def of_indices(rows, columns, v):
    a = torch.sparse_coo_tensor(torch.stack([rows, columns]), v * 2, (4, 4))
    b = a + a.t()
    return b.coalesce().values().sin().sum(), a.is_coalesced(), torch.sparse.sum(b, 0).to_dense()


@program((coo(3, 4),), (twice(3, 4),), (coo(3, 4, k=1),))
def coalesced_or_not(a):
    return a.values() * 2, a.is_coalesced()


@program((twice(3, 4),))
def coalesced_here(a):
    b = a.coalesce()
    return b, b.values() * 2, (a + b).to_dense()


@program((csr(4, 5), t(4, 2)), (csr(4, 5), t(5, 2)))
def sizes_that_do_not_fit(a, d):
    return a @ d


@program((coo(3, 4),), (csr(3, 4),), (csr(3, 4).to_dense(),))
def layouts(a):
    return (a.to_dense() if a.layout is not torch.strided else a) * 2


@program((coo(3, 4),))
def values_written(a):
    b = a.to_dense().to_sparse()
    b.values().mul_(3)
    return b.to_dense(), b


@program((coo(3, 4),))
def written(a):
    b = a.to_dense().to_sparse()
    b.mul_(3)
    return b.to_dense()


@program((coo(3, 4),))
def caller_s_own(a):
    return a, [a, a.values(), a.indices()], a.to_dense()


@program((coo(3, 4), t(3)), breaks="print is called")
def alive_at_a_break(a, x):
    b = a * 2
    y = x + 1
    print(end="")
    return b.to_dense().sum() * y, b


@program((r(4, 4),), ((t(4, 4) * 2).requires_grad_(),))
def mixed_with_grad_mode(x):
    with torch.no_grad():
        mask = (x > 0).to(x.dtype).to_sparse_csr()
    return mask @ x, mask.values().requires_grad


# ---- packed sequences ----


def recurrent(kind: Any, **options: Any) -> Any:
    """A function of rows and lengths that runs a recurrent layer on packed sequences."""
    torch.manual_seed(0)
    layer = kind(4, 3, batch_first=True, **options)

    def function(x: Tensor, lengths: Any, ordered: bool) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=ordered)
        made, state = layer(packed)
        rows, found = nn.utils.rnn.pad_packed_sequence(made, batch_first=True)
        return rows * 2, found, state, rows.shape, type(packed), *packed

    return function


LENGTHS = (
    *((r(3, 5, 4), i(5, 4, 2), True), (r(3, 5, 4), i(3, 3, 3), True), (r(3, 5, 4), i(2, 5, 1), False)),
    *((r(4, 6, 4), i(6, 2, 2, 1), True), (r(3, 5, 4), i(2, 5, 1), True), (r(3, 5, 4), i(5, 1, 0), True)),
    *((r(3, 5, 4), i(6, 1, 1), True), (r(3, 5, 4), i(5, 4), True)),
)
PROGRAMS["lstm"] = Program(lambda: recurrent(nn.LSTM), LENGTHS)
PROGRAMS["lstm_both_ways"] = Program(
    lambda: recurrent(nn.LSTM, bidirectional=True, num_layers=2, proj_size=2), LENGTHS[:4]
)
PROGRAMS["gru"] = Program(lambda: recurrent(nn.GRU), LENGTHS[:4])
PROGRAMS["tanh"] = Program(lambda: recurrent(nn.RNN), LENGTHS[:4])


@program((r(5, 3, 4), i(5, 4, 2)), (r(5, 3, 4), i(4, 4, 4)), (r(5, 3, 4), i(4, 1, 1)))
def batch_sizes_written(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
    sizes = packed.batch_sizes.clone()
    first = sizes[0] + packed.batch_sizes[0]
    sizes.mul_(2)
    return torch.zeros(first - 2), sizes[0] * 2, packed.data.sin().sum()


@program(
    (r(6, 2, 4), i(6, 5), i(2, 1), "mean"),
    (r(6, 2, 4), i(4, 3), i(2, 2), "none"),
    (r(6, 2, 4), i(1, 3), i(2, 2), "sum"),
)
def ctc(x, lengths, wanted, how):
    targets = torch.ones(2, 2, dtype=torch.long).cumsum(1)
    return nn.functional.ctc_loss(x.log_softmax(-1), targets, lengths, wanted, reduction=how, zero_infinity=True)


# ---- the test ----


def _copied(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        made = leaf.detach().clone()
        return made.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(one, value)


def _facts(value: Any) -> Any:
    """What can be seen of a value, with tensors as their dense values."""
    if not isinstance(value, Tensor):
        return value
    dense = (
        value.dequantize() if value.is_quantized else value.to_dense() if value.layout is not torch.strided else value
    )
    more: tuple[Any, ...] = (value.is_coalesced(), value._nnz()) if value.layout is torch.sparse_coo else ()
    if value.is_quantized and value.qscheme() is torch.per_tensor_affine:
        more = value.q_scale(), value.q_zero_point()
    return dense.detach(), value.dtype, value.layout, value.requires_grad, *more


def _account(function: Any, args: tuple[Any, ...]) -> Any:
    given = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    torch.manual_seed(0)
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    made = [v for v in leaves(result) if isinstance(v, Tensor) and v.requires_grad]
    gradients: list[Any] = []
    if made and given:
        loss = sum((v if v.layout is torch.strided else v.to_dense()).sin().sum() for v in made)
        gradients = list(torch.autograd.grad(loss, given, allow_unused=True))
    return pytree.tree_map(_facts, [result, gradients])


def _check(got: Any, want: Any) -> None:
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert type(one) is type(other) and one == other, (got, want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program = PROGRAMS[name]
    eager = program.make()
    fast, log = compiled(eager, number_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in program.calls:
            _check(_account(fast, _copied(args)), _account(eager, _copied(args)))
    found = [*(b.reason for b in log.breaks), *(why for *_, why in log.fallbacks)]
    assert program.breaks in found[0] if program.breaks else not found, found


COMPILED = ["scale_of_the_values", "quantized_given", "coordinates_trained", "values_written", "lstm", "ctc"]


@pytest.mark.parametrize("name", COMPILED)
def test_with_the_compiler(name: str) -> None:
    eager = PROGRAMS[name].make()
    fast = intarsia.compile(eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in PROGRAMS[name].calls:
            _check(_account(fast, _copied(args)), _account(eager, _copied(args)))


def test_packed_weights_are_those_of_the_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        quantize = torch.ao.quantization.quantize_dynamic
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        model = quantize(model, {nn.Linear}, dtype=torch.qint8)
        fast, log = compiled(model)
        for rows in (3, 5, 7):
            torch.testing.assert_close(fast(t(rows, 8)), model(t(rows, 8)))
        other = quantize(nn.Sequential(nn.Linear(8, 4)), {nn.Linear}, dtype=torch.qint8)[0]
        model[2].set_weight_bias(other.weight(), other.bias())
        torch.testing.assert_close(fast(t(5, 8)), model(t(5, 8)))
        assert not log.breaks and not log.fallbacks


def test_recurrent_layers_with_packed_weights_are_one_graph() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (nn.LSTM, nn.GRU):
            torch.manual_seed(0)
            model = torch.ao.quantization.quantize_dynamic(kind(8, 16, batch_first=True), {kind}, dtype=torch.qint8)
            fast, log = compiled(lambda x, model=model: model(x)[0][:, -1] * 2)
            for rows in (3, 3, 5, 7):
                x = t(rows, 4, 8)
                torch.testing.assert_close(fast(x), model(x)[0][:, -1] * 2)
            assert len(log.captures) == 2 and not log.breaks and not log.fallbacks


def test_gradients_of_gradients_are_eagers() -> None:
    def function(a: Tensor, d: Tensor) -> Tensor:
        return (a @ d).sin().sum()

    def penalty(f: Any) -> Tensor:
        d = r(5, 2)
        (g,) = torch.autograd.grad(f(csr(4, 5), d), d, create_graph=True)
        return torch.autograd.grad(g.square().sum(), d)[0]

    fast, _ = compiled(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(penalty(fast), penalty(function))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_host_program_calls_the_library_itself(mode):
    """Without torch's dispatcher: results have memory of their own, and gradients where those are recorded."""

    def program(a, x):
        held = a.to_dense()
        return a @ x, held.mul_(2), a.to_sparse_csr(), a.sum().sqrt()

    fast = intarsia.compile(program)
    for k in (0, 1, 2):
        with mode():
            one, other = ((coo(4, 4, k=k), t(4, 3).requires_grad_(mode is torch.enable_grad)) for _ in range(2))
            want, got = program(*one), fast(*other)
        for w, g in zip(want, got, strict=True):
            assert g.layout == w.layout and g.requires_grad == w.requires_grad and g.is_inference() == w.is_inference()
            torch.testing.assert_close(g, w, equal_nan=True)
        assert torch.equal(other[0].to_dense(), one[0].to_dense())
        if one[1].requires_grad:
            want[0].sin().sum().backward()
            got[0].sin().sum().backward()
            torch.testing.assert_close(other[1].grad, one[1].grad)


def test_a_tensor_whose_parts_are_known_is_not_made_again() -> None:
    """The very tensor is handed to the call, and not where it has changed hands: another layout, gradients, results."""

    def program(a, x):
        b = torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), a.values(), a.shape)
        return a @ x, a.t() @ x, b, a.to_dense().mul_(2), a.clone()

    fast, log = compiled(program, number_backend)
    for k in (0, 1, 2):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                a, x = csr(4, 4, k=k), t(4, 3)
                want, got = program(a, x), fast(a, x)
                assert got[2] is not a and got[4] is not a
                for w, g in zip(want, got, strict=True):
                    assert g.layout == w.layout
                    torch.testing.assert_close(g, w)
                a.values().mul_(3)  # seen by the next call
                torch.testing.assert_close(fast(a, x)[0], a @ x)
    assert not log.fallbacks


# ---- gradients of the caller's own ----

SPARSE = {
    "csr": lambda: csr(4, 5).requires_grad_(),
    "coo": lambda: coo(4, 5).requires_grad_(),
}


def detached(a):
    return a.detach(), a.detach().to_dense() * 2, a.to_dense()


def detached_values(a):
    b = a.detach().clone()
    values = b._values() if b.layout is torch.sparse_coo else b.values()
    values.mul_(3)
    return b.to_dense(), a.to_dense()


def kept_without_grad(a):
    with torch.no_grad():
        b = a.t().to_dense()
    return b, a.to_dense()


def times_dense(a):
    return a @ torch.ones(5, 2)


def summed(a):
    return a.sum()


def masked(a):
    return torch.sparse.mm(a, torch.ones(5, 2)).sin()


def backward_inside(a):
    torch.sparse.mm(a, torch.ones(5, 2)).sum().backward()
    return a.grad.to_dense()


def clone_is_written(a):
    b = a.clone()
    with torch.no_grad():
        b.mul_(2)
    return b.to_dense()


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize(
    "program",
    [detached, detached_values, kept_without_grad, times_dense, summed, masked, backward_inside, clone_is_written],
)
def test_gradients_of_the_callers(program: Any, kind: str) -> None:
    """Their layout and places are eager's, too; what has no gradient requires none."""
    fast, log = compiled(program, number_backend)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in (program, fast):
            a = SPARSE[kind]()
            made = call(a)
            given = [v for v in leaves(made) if v.requires_grad and v.grad_fn is not None]
            for each in given:
                (each * each).sum().backward()
            gradient = a.grad
            if gradient is not None and gradient.layout is torch.sparse_coo:
                gradient = gradient.coalesce()
            found.append([pytree.tree_map(_facts, [made, gradient, a]), [v.grad_fn is None for v in leaves(made)]])
    _check(found[1], found[0])
    if program in (times_dense, summed):
        assert "whose gradient has other places" in log.breaks[0].reason
    elif program in (detached, masked):
        assert not log.breaks and not log.fallbacks


def test_a_deep_copy_is_eagers() -> None:
    fast, _ = compiled(lambda a: copy.deepcopy(a))
    with pytest.raises(NotImplementedError, match="Cannot access storage"):
        fast(csr(4, 5))


# ---- transforms ----


def batch_times(a, x):
    return torch.func.vmap(lambda v: a @ v)(x) + 1


def batch_of_products(a, x):
    return torch.func.vmap(lambda v: torch.sparse.mm(a, v[:, None]).sin())(x)


def gradient(a, x):
    return torch.func.grad(lambda v: (a @ v).sum())(x[0])


def jacobian(a, x):
    return torch.func.jacrev(lambda v: a @ v)(x[0])


def tangents(a, x):
    return torch.func.jvp(lambda v: a @ v, (x[0],), (x[0],))


def dense_around(a, x):
    d = a.to_dense()
    return torch.func.vmap(lambda v: d @ v)(x)


def made_inside(a, x):
    return torch.func.vmap(lambda v: v.to_sparse().to_dense())(x)


@pytest.mark.parametrize("make", [csr, coo, twice])
@pytest.mark.parametrize(
    "program", [batch_times, batch_of_products, gradient, jacobian, tangents, dense_around, made_inside]
)
def test_transforms_around(program: Any, make: Any) -> None:
    """Eager's result or its own error, for changed values: a call on a foreign tensor inside is one break, at the call's own line."""
    fast, log = compiled(program, number_backend)
    for factor in (1, 2, 3):
        given = make(4, 5) * factor, t(3, 5) + factor
        found = []
        for call in (program, fast):
            try:
                found.append(call(*given))
            except Exception as raised:
                found.append((type(raised), str(raised).splitlines()[0]))
        _same_answers(found[1], found[0])
    assert not log.fallbacks
    assert bool(log.breaks) is (program is not dense_around)
    for each in log.breaks:
        assert "inside a transform" in each.reason


def test_a_transform_of_dequantized() -> None:
    def around(q, x):
        return torch.func.vmap(lambda v: v + q.dequantize())(x)

    fast, log = compiled(around, number_backend)
    for factor in (1.0, 2.0):
        q = torch.quantize_per_tensor(t(5) * factor, 0.1, 3, torch.quint8)
        assert torch.equal(fast(q, t(3, 5)), around(q, t(3, 5)))
    assert not log.fallbacks
    assert "dequantize of a quantized tensor is called inside a transform" in log.breaks[0].reason


def _same_answers(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def _many() -> list[Any]:
    """Tensors that differ in one thing each."""
    one = csr(4, 6)
    dense = torch.sparse_csr_tensor(one.crow_indices(), one.col_indices(), t(8, 2), (4, 6, 2))
    made = [
        one,
        one.clone(),
        csr(5, 6),
        csr(4, 6, k=1),
        one.double(),
        dense,
        one.to_sparse_csc(),
        t(4, 6).to_sparse_csc(),
    ]
    made += [coo(4, 6), t(4, 6), t(4, 6).to_sparse_bsr((2, 2)), one.to(torch.complex64), one.to(torch.complex64).conj()]
    made += [
        one.clone().requires_grad_(),
        one.clone().requires_grad_() * 2,
        nn.Parameter(one.clone()),
        nn.Parameter(one.clone(), False),
    ]
    made += [
        torch.stack([one.to_dense()] * 2).to_sparse_csr(),
        one.to("meta"),
        None,
        3,
        torch.quantize_per_tensor(t(4, 6), 0.1, 0, torch.qint8),
    ]
    return made


def test_the_quick_guard_asks_what_the_slow_one_asks() -> None:
    from intarsia.frontend.foreign.tensors import _Facts, _facts_of

    values, taken = _many(), 0
    for one in values:
        if (facts := _facts_of(one)) is None:
            continue
        taken += 1
        guard = _Facts(one)
        for other in values:
            assert guard(other) == (_facts_of(other) == facts), (one, other)
    assert taken > 12


def test_a_quantized_tensor_of_the_callers_is_handed_to_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are copies: putting it together again cost more than the call."""
    from intarsia.frontend.torch_private.foreign import parts

    fast = intarsia.compile(lambda q: q.dequantize() * 2)
    made: list[Any] = []
    for seed in range(3):
        q = torch.quantize_per_tensor(t(4, 6) + seed, 0.1 + 0.01 * seed, seed, torch.quint8)
        if seed == 1:
            monkeypatch.setattr(parts, "whole", lambda *given, to=parts.whole: made.append(1) or to(*given))
        torch.testing.assert_close(fast(q), q.dequantize() * 2)
    assert not made
