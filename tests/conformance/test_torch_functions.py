"""torch's functions: creation, dtypes, nn.functional, fft, linalg, special, higher-order functions, einops."""

import math

import einops
import pytest
import torch
import torch.nn.functional as F
from cases import case, t
from torch.utils.checkpoint import checkpoint

# ---- creation ----


@case(lambda: (t(2), 3), lambda: (t(2), 4))
def test_creation(x, n):
    return (
        torch.zeros(n),
        torch.ones(2, n),
        torch.full((n,), 2.5),
        torch.arange(n),
        torch.arange(0, 1, 0.25),
        torch.linspace(0, 1, n),
        torch.eye(n),
        torch.tensor(n),
        torch.tensor([1.0, n]),
        torch.tensor([[1, 2], [3, n]], dtype=torch.float64),
        torch.empty(0),
        torch.logspace(0, 1, 3),
        torch.tril(torch.ones(n, n)),
        torch.tril_indices(n, n),
        torch.zeros(n, device=x.device, dtype=x.dtype),
        torch.scalar_tensor(3.0),
        torch.complex(x, x),
        torch.hann_window(n),
        torch.range(0, 2),
    )


@case(lambda: (t(3, 4), 1), lambda: (t(3, 4), 0))
def test_take_along_dim(x, dim):
    order = x.argsort(dim)
    return (
        torch.take_along_dim(x, order, dim),
        x.take_along_dim(order[:1, :1], dim=dim - 2),
        torch.take_along_dim(x, order),
    )


@case(lambda: (t(2), [1, 2.5], (True, False)), lambda: (t(2), [3, 4.5], (True, True)))
def test_tensors_of_python_data(x, values, flags):
    return (
        torch.tensor(values),
        torch.as_tensor(values),
        torch.tensor(flags),
        torch.tensor([x.shape[0], 2]),
        torch.as_tensor(x) is x,
        torch.FloatTensor([1, 2]),
        torch.LongTensor([1]),
        torch.Tensor([1, 2]),
        torch.asarray([1, 2]),
        torch.BoolTensor([True]),
    )


@case(lambda: (t(2),), expect="breaks")
def test_tensor_of_tensors(x):
    return torch.tensor([x[0], x[1] * 2]), torch.stack([x, x]), torch.as_tensor([x.sum(), 1.0])


@case(lambda: (t(2),))
def test_tensor_of_a_tensor(x):
    return torch.tensor(x) + 1, x.new_tensor(x), torch.asarray(x) is x


@case(lambda: (t(2),))
def test_finfo_iinfo_devices_dtypes(x):
    return (
        x.masked_fill(x > 0, torch.finfo(x.dtype).min),
        torch.finfo(torch.float16).eps,
        torch.iinfo(torch.int8).max,
        torch.device("cpu"),
        torch.device("cuda", 1).index,
        x.device.type,
        x.device == torch.device("cpu"),
        torch.float32.is_floating_point,
        torch.promote_types(torch.int8, torch.float16),
        torch.result_type(x, 1),
        torch.get_default_dtype(),
        torch.can_cast(torch.float32, torch.int32),
        str(x.dtype),
        torch.float16.itemsize,
        torch.broadcast_shapes((2, 1), (3,)),
        torch.is_tensor(x),
        torch.is_floating_point(x),
        torch.numel(x),
        torch.float32.to_complex(),
    )


@case(lambda: (t(2),), expect="breaks")
def test_default_dtype_context(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(2)
    torch.set_default_dtype(torch.float32)
    return y + x, y.dtype


@case(lambda: (t(2),))
def test_device_context(x):
    with torch.device("cpu"):
        y = torch.ones(2)
    return x + y


@case(lambda: (t(2),))
def test_meta_tensors_inside(x):
    shape = (torch.empty(2, 3, device="meta") + 1).shape
    return x * shape[1]


# ---- functions at large ----


@case(lambda: (t(2, 3, 8, 8),), lambda: (t(1, 3, 8, 8),))
def test_functional_images(x):
    w = torch.ones(4, 3, 3, 3)
    return (
        F.conv2d(x, w, padding=1, stride=2),
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 3, 1),
        F.adaptive_avg_pool2d(x, 1),
        F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        F.pad(x, (1, 2), value=3.0),
        F.pad(x, (1, 1, 1, 1), mode="reflect"),
        F.unfold(x, 2),
        F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2),
        F.conv_transpose2d(x, torch.ones(3, 2, 2, 2)),
        F.grid_sample(x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=True),
        F.max_pool2d(x, 2, return_indices=True)[1],
    )


@case(lambda: (t(4, 6),), lambda: (t(2, 6),))
def test_functional_activations(x):
    return [
        f(x)
        for f in (
            F.relu,
            F.gelu,
            F.silu,
            F.elu,
            F.leaky_relu,
            F.softplus,
            F.mish,
            F.hardtanh,
            F.hardswish,
            F.sigmoid,
            F.tanh,
            F.selu,
            F.softsign,
            F.logsigmoid,
            F.relu6,
            F.glu,
            F.celu,
            F.tanhshrink,
        )
    ] + [
        F.softmax(x, -1),
        F.log_softmax(x, dim=1),
        F.threshold(x, 0.1, 20),
        F.normalize(x),
        F.gelu(x, approximate="tanh"),
    ]


@case(lambda: (t(4, 6), torch.tensor([0, 1, 2, 5])))
def test_functional_losses(x, y):
    return (
        F.cross_entropy(x, y),
        F.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
        F.nll_loss(F.log_softmax(x, 1), y),
        F.mse_loss(x, x * 2),
        F.l1_loss(x, x + 1, reduction="sum"),
        F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        F.kl_div(x, x.softmax(1), reduction="batchmean"),
        F.smooth_l1_loss(x, x * 3),
        F.huber_loss(x, x * 3),
        F.cosine_similarity(x, x + 1),
        F.triplet_margin_loss(x, x + 1, x - 1),
        F.hinge_embedding_loss(x, torch.ones_like(x)),
        F.pairwise_distance(x, x + 1),
        F.one_hot(y, 6),
        F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(4)),
    )


@case(lambda: (t(2, 3, 8),), lambda: (t(1, 5, 8),))
def test_functional_norms_and_attention(x):
    w = torch.ones(8)
    return (
        F.layer_norm(x, (8,), w, w),
        F.rms_norm(x, (8,)),
        F.group_norm(x.transpose(1, 2), 2),
        F.instance_norm(x),
        F.batch_norm(x.transpose(1, 2), torch.zeros(8), torch.ones(8)),
        F.scaled_dot_product_attention(x, x, x),
        F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.5),
        F.linear(x, torch.ones(4, 8), torch.ones(4)),
        F.embedding(torch.tensor([0, 1]), x[0]),
        F.local_response_norm(x, 2),
        F.bilinear(x, x, torch.ones(2, 8, 8)),
    )


@case(lambda: (t(4, 5), t(5, 3)), expect="breaks")
def test_reductions_and_products(x, y):
    return (
        torch.einsum("ij,jk->ik", x, y),
        x.matmul(y),
        torch.addmm(torch.ones(3), x, y),
        torch.tensordot(x, y, dims=1),
        x.sum(), x.mean(1, keepdim=True), x.std(), x.var(dim=0, unbiased=False), x.prod(0), x.cumsum(1), x.logsumexp(1),
        x.argmax(), x.argmin(1), x.amax((0, 1)), x.norm(), x.median(), x.quantile(0.5), x.kthvalue(2), x.mode(),
        x.count_nonzero(), torch.histc(x, 4), torch.bucketize(x, torch.tensor([0.0, 1.0])), x.diff(), x.trace() if x.shape[0] == x.shape[1] else 0,
        torch.cdist(x, x), torch.kron(x[:1], x[:2]), torch.outer(x[0], x[1]), x.all(), (x > 0).any(dim=1), torch.cov(x), x.nansum(), x.cummax(0),
        torch.trapezoid(x), torch.dist(x, x + 1), x.logcumsumexp(0),
    )  # fmt: skip


@case(lambda: (t(2, 3, 4),), lambda: (t(3, 3, 4),), expect="breaks")
def test_shapes_at_large(x):
    return (
        x.permute(2, 0, 1), x.transpose(0, 1), x.reshape(-1, 4), x.flatten(1), x.unflatten(2, (2, 2)), x.squeeze(0), x.movedim(0, -1),
        x.view(x.size(0), -1), x.expand_as(x), x.repeat(1, 2, 1), x.tile(2), x.roll(1, 0), x.flip(0), x.rot90(), x.narrow(1, 0, 2),
        torch.cat([x, x], -1), torch.stack([x, x], 1), torch.hstack([x, x]), torch.atleast_2d(x[0, 0]), torch.block_diag(x[0], x[0]),
        torch.broadcast_to(x[:1], x.shape), torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"), x.diagonal(dim1=1, dim2=2),
        torch.tensor_split(x, 2), torch.cartesian_prod(torch.arange(2), torch.arange(2)), x.swapaxes(0, 1), torch.combinations(torch.arange(3)),
        x.view_as(x), x.tril(), torch.diag_embed(x[0]), x.select(0, 0), x.adjoint(), torch.vander(x[0, 0]), x.view(torch.int32),
    )  # fmt: skip


@case(lambda: (t(4), t(4)))
def test_elementwise_at_large(x, y):
    a = x.abs() + 0.1
    return (
        x.sin(), x.exp(), a.log(), a.sqrt(), a.rsqrt(), x.erf(), x.floor(), x.round(decimals=1), x.sign(), x.clamp(-1, 1), x.atan2(y),
        torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=2), torch.addcdiv(x, x, a), x.fmod(2), x.remainder(2), torch.maximum(x, y),
        torch.where(x > 0, x, 0.0), x.nan_to_num(), x.isnan(), x.isfinite(), torch.hypot(x, y), x.frac(), x.logit(eps=0.1), x.pow(2), 2**x,
        1 / a, 1 - x, x // 0.5, x % 2, -x, abs(x), ~(x > 0), (x > 0) ^ (y > 0), x.heaviside(y), torch.copysign(x, y), x.sigmoid(), x.float_power(2),
        torch.logaddexp(x, y), torch.nextafter(x, y), x.frexp(), torch.sinc(x), x.square(), x.reciprocal(), torch.gcd(torch.tensor(4), torch.tensor(6)),
        torch.bitwise_and(torch.tensor(6), 3), round(x), math.pi * x, x.ldexp(torch.tensor(2)), torch.xlogy(x, a), x.deg2rad(), x.trunc(), torch.signbit(x),
    )  # fmt: skip


@case(lambda: (t(8),), lambda: (t(6),))
def test_fft(x):
    z = torch.fft.fft(x)
    return (
        z.real,
        torch.fft.rfft(x).abs(),
        torch.fft.irfft(torch.fft.rfft(x), n=x.shape[0]),
        torch.fft.fftshift(x),
        torch.fft.fft2(x.view(2, -1)).imag,
        torch.fft.fftfreq(4),
    )


@case(lambda: (t(3, 3),), lambda: (t(4, 4),), expect="breaks")
def test_linalg(x):
    a = x @ x.T + torch.eye(x.shape[0])
    return (
        torch.linalg.inv(a),
        torch.linalg.norm(x),
        torch.linalg.det(a),
        torch.linalg.solve(a, x),
        torch.linalg.cholesky(a),
        torch.linalg.eigvalsh(a),
        torch.linalg.svdvals(x),
        torch.linalg.matrix_power(x, 2),
        torch.linalg.vector_norm(x, dim=1),
        torch.linalg.qr(x).R.abs(),
        torch.linalg.slogdet(a).logabsdet,
        torch.linalg.multi_dot([x, a, x]),
        torch.linalg.pinv(a),
        torch.linalg.matrix_exp(x),
        torch.linalg.lstsq(a, x).solution,
    )


@case(lambda: (torch.zeros(2, 2),))
def test_singular_matrix_raises(a):
    return torch.linalg.inv(a)


@case(lambda: (t(4).abs() + 0.5,))
def test_special(x):
    return (
        torch.special.gammaln(x),
        torch.special.expit(x),
        torch.special.erfinv(x / 10),
        torch.special.i0(x),
        torch.special.digamma(x),
        torch.special.zeta(x + 1, 2.0),
        torch.special.log1p(x),
        torch.special.entr(x),
    )


@case(lambda: (t(2, 4), [1, 2]))
def test_torch_functions_of_lists(x, dims):
    return (
        x.view(*x.shape[:-1], *dims, 2).sum(dims),
        torch.cat([x] * 2),
        x.permute(*[1, 0]),
        x.reshape([2, -1]),
        torch.zeros(*x.shape),
        torch.ones(x.shape),
        torch.zeros(x.size()),
    )


# ---- custom functions ----


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 2


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.needs = ctx.needs_input_grad
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(lambda: (t(4), 0.5), lambda: (t(4), 0.1))
def test_autograd_function(x, limit):
    return Clipped.apply(x, limit) + 1


@case(lambda: (t(4),))
def test_autograd_function_with_setup_context(x):
    a, b = Doubled.apply(x)
    return a + b


@case(lambda: (t(4),))
def test_autograd_function_in_place(x):
    y = Marked.apply(x)
    return y * 2, y is x


@case(lambda: (t(4), t(4)))
def test_checkpoint(x, w):
    def block(x, w):
        return torch.relu(x) * w

    return checkpoint(block, x, w, use_reentrant=False) + 1


@case(lambda: (t(4),))
def test_checkpoint_reentrant(x):
    return checkpoint(torch.sin, x, use_reentrant=True) + 1


# ---- higher-order functions ----


@case(lambda: (t(3, 4), t(4)))
def test_vmap(x, y):
    return torch.vmap(torch.dot, in_dims=(0, None))(x, y), torch.func.vmap(lambda a: a.sum() * 2)(x)


_weights = torch.arange(16.0).reshape(4, 4)


@case(lambda: (t(3, 4), t(4)))
def test_vmap_options(x, y):
    return (
        torch.vmap(lambda a, b: (a * b).softmax(-1), in_dims=(0, None), out_dims=1)(x, y),
        torch.vmap(torch.vmap(lambda a, b: a + b, in_dims=(None, 0)), in_dims=(0, None))(x, y),
        torch.vmap(lambda d: {"s": d["a"] + 1, "n": (d["a"] @ _weights).sum() * 2 + y})({"a": x}),
        torch.vmap(lambda a, k=2: torch.where(a > 0, a, -a).cumsum(0)[1:] * k)(x),
    )


@case(lambda: (t(3, 4), t(4)))
def test_vmap_of_too_many_dims_raises(x, y):
    return torch.vmap(torch.dot)(x, y)


# On torch 2.11 the first transformation meets a tensor that torch made before.
@case(lambda: (t(3),), expect="graph" if torch.__version__ >= (2, 13) else "breaks")
def test_func_grad(x):
    gradient, value = torch.func.grad_and_value(lambda v, w: (v * w).sum(), argnums=(0, 1))(x, x + 1)
    return (
        torch.func.grad(lambda v: (v**2).sum())(x),
        torch.func.jacrev(torch.sin)(x),
        torch.vmap(torch.func.grad(lambda v: (v * x).sin().sum()))(torch.stack([x, x * 2])),
        gradient,
        value,
    )


_gradient = torch.func.grad(lambda v: (v * _weights[0, 1:]).sin().sum())


@case(lambda: (t(3),), expect="graph" if torch.__version__ >= (2, 13) else "breaks")
def test_forward_mode(x):
    made = torch.func.jacfwd(lambda v: v * x)
    return (
        made(x),
        _gradient(x),
        torch.func.hessian(lambda v: (v**3).sum())(x),
        torch.vmap(lambda v: v + torch.rand(1), randomness="same")(x),
    )


@case(lambda: (t(3),), expect="breaks")
def test_autograd_inside(x):
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad((y**2).sum(), y)
    return g + 1


@case(lambda: (t(3),), lambda: (t(3) + 10,), expect="breaks")
def test_cond(x):
    return torch.cond(x.sum() > 5, lambda v: v.sin(), lambda v: v.cos(), (x,))


@case(lambda: (t(3), True), lambda: (t(3), False))
def test_cond_of_a_constant(x, flag):
    return torch.cond(flag, lambda v: v.sin(), lambda v: v.cos(), (x,))


@case(lambda: (t(3),), lambda: (t(3) * 0 + 1,), expect="breaks")
def test_while_loop(x):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda v: v.sum() < 50, lambda v: (v * 2 + 1,), (x.abs(),))


@case(lambda: (t(4, 2),), expect="breaks")
def test_scan(x):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, v: (c + v, c * 2), torch.zeros(2), x)


@case(lambda: (t(4, 2),), expect="breaks")
def test_torch_map(x):
    from torch._higher_order_ops import map as torch_map

    return torch_map(lambda v, s: v * s, x, torch.ones(2))


@torch.jit.script
def _scripted(x, n: int):
    for _ in range(n):
        x = x + 1
    return x


@case(lambda: (t(3), 2), lambda: (t(3), 3))
def test_scripted_function(x, n):
    return _scripted(x, n) * 2


@case(lambda: (t(3), 2), lambda: (t(3), 3))
def test_scripted_function_with_another_call(x, n):
    """As torch's own test modules put around the C function, for the whole process."""
    return _scripted(x, n) * 2


@pytest.fixture(autouse=True)
def _another_call(request, monkeypatch):
    if request.node.name.startswith("test_scripted_function_with_another_call"):
        kind, plain = torch.jit.ScriptFunction, torch.jit.ScriptFunction.__call__
        monkeypatch.setattr(kind, "__call__", lambda *args, **kwargs: plain(*args, **kwargs))


@case(lambda: (t(3),), expect="breaks")
def test_nested_compile(x):
    return torch.compile(lambda v: v + 1, backend="eager")(x) * 2


@case(lambda: (t(3),))
def test_user_library_op(x):
    return torch.ops.aten.add.Tensor(x, x), torch.ops.aten.mul(x, 2), torch._C._nn.gelu(x)


@torch.library.custom_op("intarsia_tests::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() / 2)


@halve.register_fake
def _(x):
    return torch.empty_like(x)


@case(lambda: (t(3),))
def test_custom_op(x):
    return halve(x) + torch.ops.intarsia_tests.halve(x)


# ---- einops ----


@case(lambda: (t(2, 3, 4),), lambda: (t(2, 5, 4),))
def test_einops_functions(x):
    return (
        einops.rearrange(x, "b h w -> b (h w)"),
        einops.rearrange(x, "b h (w1 w2) -> b w1 h w2", w2=2),
        einops.reduce(x, "b h w -> b w", "mean"),
        einops.repeat(x, "b h w -> b h w c", c=2),
        einops.einsum(x, x, "b h w, b k w -> b h k"),
        einops.pack([x, x], "b * w")[0],
        einops.parse_shape(x, "b h w"),
    )


@case(lambda: (t(2, 3, 4),))
def test_einops_error(x):
    return einops.rearrange(x, "b h -> h b")


@case(
    lambda: (
        torch.nn.Sequential(__import__("einops.layers.torch", fromlist=["x"]).Rearrange("b h w -> b (h w)")),
        t(2, 3, 4),
    )
)
def test_einops_layer(m, x):
    return m(x) + 1
