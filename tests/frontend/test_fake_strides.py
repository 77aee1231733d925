"""The strides that capture plans for results are eager's, those of sizes 0 and 1 included."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import intarsia
from intarsia.frontend.errors import GraphBreak
from intarsia.frontend.graph.fake_dispatch import new_fake_mode
from intarsia.frontend.graph.fake_rules import _REFUSES

aten = torch.ops.aten
SIZES = (0, 1, 1, 2, 3, 5)


def laid_out(rng: random.Random, shape):
    """A tensor of this shape in some layout: permuted, with gaps, expanded, other strides of size 1, channels last."""
    order = rng.sample(range(len(shape)), len(shape))
    kind = rng.choice(("plain", "turned", "turned", "gaps", "expanded", "odd", "last"))
    if kind == "last" and len(shape) == 4:
        return torch.randn(shape).contiguous(memory_format=torch.channels_last)
    if kind in ("turned", "odd"):
        made = torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
        strides = [7 if kind == "odd" and n == 1 else s for n, s in zip(shape, made.stride(), strict=True)]
        return made.as_strided(shape, strides)
    if kind == "gaps" and shape:
        return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    if kind == "expanded":
        return torch.randn([1 if rng.random() < 0.4 else n for n in shape]).expand(shape)
    return torch.randn(shape)


def planned(func, *args, **kwargs):
    """The strides that capture sees, and eager's."""
    mode = new_fake_mode(None)
    with mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        found = func(*fakes, **kwargs)
    wanted = func(*args, **kwargs)
    both = [r if isinstance(r, tuple) else (r,) for r in (found, wanted)]
    return [[t.stride() for t in results] for results in both]


CALLS = [
    (aten.add.Tensor, 2),
    (aten.logical_and.default, 2),
    (aten.copysign.Tensor, 2),
    (aten.where.self, 3),
    (aten.sigmoid.default, 1),
    (aten.frexp.Tensor, 1),
    (aten.zeros_like.default, 1),
    (aten.hardtanh.default, 1),
    (aten.sort.default, 1),
    (aten.angle.default, 1),
]


@pytest.mark.parametrize(("func", "count"), CALLS, ids=lambda c: str(c))
def test_pointwise_operators_and_copies(func, count):
    rng = random.Random(str(func))
    for _ in range(120):
        shape = [rng.choice(SIZES) for _ in range(rng.randint(0 if count > 1 else 1, 4))]
        operands = []
        for k in range(count):
            own = [1 if rng.random() < 0.2 else n for n in shape][rng.choice((0, 0, 0, 1)) :] if k else shape
            operands.append(laid_out(rng, own))
        if func is aten.where.self:
            operands[0] = operands[0] > 0
        if func is aten.angle.default and rng.random() < 0.7:
            operands[0] = operands[0].to(torch.complex64)
        found, wanted = planned(func, *operands)
        assert found == wanted, (func, [(t.shape, t.stride()) for t in operands])


def test_numbers_beside_tensors():
    rng = random.Random(3)
    for func in (aten.remainder.Scalar, aten.add.Tensor, aten.eq.Scalar, aten.div.Tensor, aten.leaky_relu.default):
        for _ in range(60):
            x = laid_out(rng, [rng.choice(SIZES) for _ in range(rng.randint(1, 4))])
            found, wanted = planned(func, x, 0.5)
            assert found == wanted, (func, x.shape, x.stride())
    found, wanted = planned(aten.pow.Scalar, 2.0, torch.randn(3, 4).t())
    assert found == wanted


def test_layers_of_the_library():
    def last(*shape):
        return torch.randn(shape).contiguous(memory_format=torch.channels_last)

    image, turned = last(2, 3, 6, 6), torch.randn(3, 5, 4).transpose(1, 2)
    four = torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4)
    calls = [
        (aten._native_batch_norm_legit_no_training.default, (turned, *four, 0.1, 1e-5)),
        (aten.native_batch_norm.default, (turned, *four, True, 0.1, 1e-5)),
        (aten.native_batch_norm.default, (last(2, 4, 3, 3), *four, True, 0.1, 1e-5)),
        (aten.max_unpool2d.default, (image, torch.arange(36).expand(2, 3, 36).reshape(2, 3, 6, 6), (12, 12))),
        (aten.reflection_pad2d_backward.default, (last(2, 3, 8, 8), image, (1, 1, 1, 1))),
        (aten.replication_pad3d.default, (image, (1, 1, 1, 1, 1, 1))),
        (aten.log_sigmoid_forward.default, (torch.randn(3, 4).t(),)),
        (aten.convolution.default, (torch.randn(0, 17, 1, 1), torch.randn(17, 17, 1, 1), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)),
    ]  # fmt: skip
    for func, args in calls:
        found, wanted = planned(func, *args)
        assert found == wanted, func


def test_layers_of_one_image_of_one_channel_and_of_nothing():
    def last(*shape):
        return torch.randn(shape).contiguous(memory_format=torch.channels_last)

    one = torch.ones(1), torch.zeros(1), torch.zeros(1), torch.ones(1)
    column = torch.randn(7, 1, dtype=torch.complex64).t()
    calls = [
        *((aten.native_group_norm.default, (last(n, 6, 3, 4), None, None, n, 6, 12, 2, 0.1)) for n in (0, 1, 2)),
        *((aten.native_channel_shuffle.default, (last(n, 6, 3, 4), 2)) for n in (0, 1, 2)),
        (aten.native_batch_norm.default, (last(4, 1, 2, 8), *one, False, 0.1, 1e-5)),
        (aten.native_batch_norm.default, (last(4, 6, 2, 8)[:, :1], *one, False, 0.1, 1e-5)),
        (aten.rrelu.default, (torch.randn(3, 4).t(), 0.1, 0.2, True)),
        (aten.rrelu.default, (torch.randn(3, 4).t(), 0.1, 0.2, False)),
        *((func, (torch.randn(2, 0, 2), [0], True)) for func in (aten.amin.default, aten.amax.default)),
        (aten.isinf.default, (column,)),
        (aten.isinf.default, (torch.randn(7, 1).t(),)),
    ]
    for func, args in calls:
        found, wanted = planned(func, *args)
        assert found == wanted, (func, args[0].shape)


def test_refused_as_in_eager():
    def bits(x, y):
        return torch.bitwise_xor(x, y)

    def norm(x, weight, bias):
        return torch.nn.functional.batch_norm(x, None, None, weight, bias, True)

    half, one = torch.randn(3, 1).bfloat16(), torch.ones(1)
    for fn, args in ((bits, (0, torch.randn(0))), (norm, (half, one.bfloat16(), one))):
        for call in (fn, intarsia.compile(fn, backend="eager")):
            with pytest.raises(RuntimeError, match="not implemented|expected scalar type"):
                call(*args)


def test_reductions_of_nothing_are_refused_where_nothing_reads_them():
    def program(x, name):
        getattr(x, name)(dim=0)
        return x.dim()

    for name in ("max", "min", "median", "nanmedian", "mode"):
        compiled = intarsia.compile(program, backend="eager")
        for shape in ((0,), (0, 3)):
            with pytest.raises(IndexError):
                compiled(torch.randn(shape), name)
        assert compiled(torch.randn(3, 0), name) == 2


def test_random_numbers_in_the_order_of_memory_with_gradients():
    def program(x):
        return torch.nn.functional.alpha_dropout(x, 0.2, True)

    x, compiled = torch.randn(4, 6, 5).transpose(0, 2).requires_grad_(), intarsia.compile(program)
    results = []
    for call in (program, compiled):
        torch.manual_seed(0)
        results.append(call(x))
    assert torch.equal(*results)


def test_a_tensor_set_to_anothers_memory_shares_it():
    put = torch.ops.aten.set.source_Tensor
    x, y = torch.rand(4, 1), torch.rand(4)
    assert intarsia.compile(lambda a, b: put(a, b), backend="eager")(x, y).data_ptr() == y.data_ptr()


def test_results_have_eagers_strides():
    def program(x, image, turned, nothing):
        norm, last = torch.nn.functional.batch_norm, torch.nn.functional.channel_shuffle
        four = torch.ones(4)
        return (
            torch.log10(x)[:, 0],
            x % 0.5,
            nothing % 1.0,
            norm(turned, four, four),
            last(image, 1),
            last(image, 2) * 2,
            torch.nn.functional.max_pool1d(turned, 3),
            (x * 2).unfold(1, 2, 1),
            image[:1, :, :1] + 1,
        )

    given = (
        torch.rand(1, 2),
        torch.randn(2, 4, 1, 2).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 5, 4).transpose(1, 2),
        torch.randn(0, 1),
    )
    wanted = program(*given)
    found = intarsia.compile(program, fullgraph=True)(*given)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]
    assert all(torch.allclose(a, b, equal_nan=True) for a, b in zip(found, wanted, strict=True))


def test_fourier_transforms_and_reads_of_nothing():
    rng = random.Random(0)
    for _ in range(60):
        shape = [rng.choice((1, 2, 3, 4, 5)) for _ in range(rng.randint(1, 4))]
        dims = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
        x = laid_out(rng, shape)
        assert len({*map(tuple, planned(lambda x, d=dims: torch.fft.rfftn(x, dim=d), x))}) == 1
        assert len({*map(tuple, planned(lambda x, d=dims: torch.fft.fftn(x, dim=d), x + 0j))}) == 1
        assert len({*map(tuple, planned(lambda x, d=dims: torch.fft.irfftn(x, [4] * len(d), d), x + 0j))}) == 1
        assert len({*map(tuple, planned(torch.deg2rad, laid_out(rng, [rng.choice(SIZES) for _ in shape])))}) == 1
    for shape in ((4, 5, 1), (16, 16, 1)):
        assert (
            len({*map(tuple, planned(lambda x, i: x[i], torch.rand(shape), torch.tensor([], dtype=torch.long)))}) == 1
        )


REFUSED = {
    "difference": (lambda x, y: x - y, torch.ones(3), torch.ones(3, dtype=torch.bool)),
    "difference of two": (lambda x, y: x - y, *[torch.ones(3, dtype=torch.bool)] * 2),
    "difference and number": (lambda x, y: x - True, torch.ones(3), None),
    "heaviside": (torch.heaviside, torch.ones(3), torch.ones(3, dtype=torch.float64)),
    "pixel_shuffle": (lambda x, y: torch.pixel_shuffle(x, 2), torch.ones(0, 3, 4, 4), None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name):
    f, *given = REFUSED[name]
    said = []
    for call in (f, intarsia.compile(f, backend="eager")):
        with pytest.raises(RuntimeError) as raised:
            call(*given)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_results_of_graphs_with_gradients_have_eagers_strides():
    def program(x):
        written = x.flip(0).t() / x.t()
        written.index_copy_(1, torch.tensor([0]), written[:, :1] * 2)
        return (x * 2).view(4, 1, 3).transpose(0, 1), written

    x = torch.rand(4, 3) + 1
    sides = []
    for call in (program, intarsia.compile(program, fullgraph=True)):
        given = x.clone().requires_grad_()
        results = call(given)
        results[0].mul_(2)  # nobody's view
        sum(r.sum() for r in results).backward()
        sides.append(([r.stride() for r in results], given.grad, [r.detach() for r in results]))
    assert sides[0][0] == sides[1][0]
    torch.testing.assert_close(sides[0][1:], sides[1][1:])


def test_a_comparison_asks_the_subclass_first():
    parameter = torch.nn.Parameter(torch.rand(3, 3))
    turned = parameter.detach().t()
    for f in (lambda x, p: x < p, lambda x, p: x == p, lambda x, p: p < x):
        compiled = intarsia.compile(f, backend="eager")
        wanted, found = f(turned, parameter), compiled(turned, parameter)
        assert wanted.stride() == found.stride()
        assert torch.equal(wanted, found)


def test_a_graph_without_arguments():
    def program(number):
        return torch.ones(2, 2)[::2, 1:].sort(1)[0], torch.floor_divide(number, number)

    wanted, found = program(3), intarsia.compile(program, fullgraph=True)(3)
    assert [t.stride() for t in wanted] == [t.stride() for t in found]
    assert found[1] == 1


def test_attention_without_weights_gives_none():
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.rand(2, 3, 4)
    with torch.no_grad():
        assert intarsia.compile(attention, backend="eager")(x, x, x, need_weights=False)[1] is None


def test_interpolation_of_lines_at_a_second_size():
    compiled = intarsia.compile(lambda x: torch.nn.functional.interpolate(x, scale_factor=2), backend="eager")
    compiled(torch.rand(16, 6, 8))
    x = torch.rand(8, 6, 8).transpose(0, 2).contiguous().transpose(0, 2)
    seen = []
    strided = intarsia.compile(
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2),
        dynamic=True,
        backend=lambda gm, inputs: seen.append(gm) or gm.forward,
    )
    assert strided(x).stride() == compiled(x).stride() == (96, 16, 1)
    (result,) = seen[0].graph.find_nodes(op="output")[0].all_input_nodes
    strides = result.meta["example_value"].stride()
    assert [n.node.hint if isinstance(n, torch.SymInt) else n for n in strides] == [96, 16, 1]


def facts(func, *args):
    """Sizes, strides and types that capture sees, and eager's."""
    mode = new_fake_mode(None)
    with mode:
        found = func(*[mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args])
    both = [r if isinstance(r, tuple) else (r,) for r in (found, func(*args))]
    return [[(t.shape, t.stride(), t.dtype) for t in results if t is not None] for results in both]


def cases():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for rows in (1, 4):  # the sums of attention; one row
            q, k = (torch.randn(2, n, 3, 8, dtype=dtype).transpose(1, 2) for n in (rows, 4))
            yield aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, k
        for bag in (0, 1):
            ends = torch.tensor([1, 2, 3, 4]), torch.tensor([0])
            yield aten._embedding_bag.default, torch.randn(10, 6, dtype=dtype), *ends, False, bag, False, None
        for shape in ((0, 3), (2, 3)):
            yield aten.native_dropout.default, torch.randn(shape, dtype=dtype), 0.5, True
        yield aten.native_dropout.default, torch.randn(2, 3, dtype=dtype), 2, False
    for form in (torch.contiguous_format, torch.channels_last):
        for shape in ((2, 3, 5, 6), (1, 8, 5, 1), (0, 3, 5, 6)):
            x = torch.randn(shape).contiguous(memory_format=form)
            for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
                yield getattr(aten, name).default, x, (7, 3)
            for kernel in (1, 3):
                weight = torch.randn(shape[1], shape[1], kernel, kernel)
                yield torch.conv2d, x, weight, None, 1, kernel // 2
            if shape[0]:
                yield aten.replication_pad2d.default, x, (2, 1, 0, 3)
                yield aten.reflection_pad2d.default, x, (0, 0, 1, 1)
    yield aten.upsample_nearest1d.default, torch.randn(0, 2, 3), (7,)
    yield torch.diag_embed, torch.randn(1, 4), 0, 0, -1
    for k in range(4):
        for shape in ((0, 3), (2, 0), (2, 3)):
            yield torch.rot90, torch.cat([torch.randn(shape)] * 2, 1)[:, : shape[1]], k


def test_reads_by_one_index():
    rng = random.Random(3)
    for _ in range(150):
        x = laid_out(rng, [rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3))])
        index = laid_out(rng, [rng.choice(SIZES[1:]) for _ in range(rng.randint(0, 3))]).to(torch.int64) * 0
        given = [None] * rng.randrange(x.dim()) + [index]
        mode = new_fake_mode(None)
        with mode:
            found = aten.index.Tensor(mode.from_tensor(x), [i if i is None else mode.from_tensor(i) for i in given])
        assert found.stride() == aten.index.Tensor(x, given).stride(), (
            x.shape,
            x.stride(),
            index.shape,
            index.stride(),
            given,
        )


def test_types_and_strides_of_operators_whose_fake_tensors_differ():
    for func, *args in cases():
        found, wanted = facts(func, *args)
        assert found == wanted, (func, args)


def test_operators_whose_fake_tensors_take_other_types_than_eager(caplog):
    half = torch.rand(2, 3).half()
    calls = [
        (lambda x: aten.binary_cross_entropy_with_logits(x, half), torch.randn(2, 3)),
        (lambda x: aten._softmax_backward_data(x, x, -1, torch.float32), torch.randn(2, 3, dtype=torch.float64)),
        (lambda x: torch.index_add(x, 0, x, x, alpha=2.0), torch.tensor([0, 1])),  # which torch itself says
    ]
    for call, x in calls:
        caplog.clear()
        found, wanted = intarsia.compile(call)(x), call(x)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
        assert "only fake tensors" in caplog.text and "please report" not in caplog.text
    with pytest.raises(IndexError, match="Dimension out of range"):
        intarsia.compile(lambda x: torch.softmax(x, 1))(torch.randn(0))


def test_results_put_into_tensors_of_another_size():
    """These are resized, and a kernel would write over the end of the memory that they had."""

    def twice(x, out):
        return aten.add.out(x, x, out=out) * 2

    def most(x, out):
        return aten.mode(x, -1, True, values=out, indices=torch.empty(1, dtype=torch.long))

    for f in (twice, most):
        for size in (0, 5):
            x, out, wanted = torch.ones(3), torch.empty(size), torch.empty(size)
            torch.testing.assert_close(intarsia.compile(f)(x, out), f(x, wanted))
            assert out.shape == wanted.shape and torch.equal(out, wanted)


def test_transforms_in_another_order_on_a_gpu_are_left_to_eager() -> None:
    image = SimpleNamespace(is_cuda=True, dim=lambda: 3)
    for dims, breaks in (((0, 2), False), ((-3, -1), False), ((2, 0), True), ((-1, 0), True), ((1,), False)):
        with pytest.raises(GraphBreak) if breaks else nullcontext():
            _REFUSES[torch.ops.aten._fft_c2c.default](image, dims, 0, True)
    assert intarsia.explain(lambda x: torch.fft.fft2(x, dim=(1, 0)))(torch.ones(2, 3)).breaks == []


@pytest.mark.parametrize("func", [aten.poisson.default, aten._standard_gamma.default, aten.isin.Tensor_Tensor])
def test_contiguous_whatever_the_argument_lies_like(func):
    rng = random.Random(1)
    for shape in ((3, 4), (2, 1, 3), (0, 3), (2, 3, 4, 5)):
        for _ in range(6):
            given = (laid_out(rng, shape).abs(), *((torch.ones(2),) if func is aten.isin.Tensor_Tensor else ()))
            found, wanted = planned(func, *given)
            assert found == wanted, given[0].stride()
