"""Tensors: attributes, conversions, in-place operations and views, aliasing with arguments, indexing, iteration."""

import numpy as np
import torch
from cases import case, scenario, t

# ---- attributes ----


@case(lambda: (t(2, 3),), lambda: (t(3, 2).double(),))
def test_transposes(x):
    return x.T, x.mT, x.H, x.mH, x.T.is_contiguous(), x.t().stride()


@case(lambda: (torch.complex(t(3), t(3)),))
def test_real_and_imaginary_parts(z):
    return z.real + 1, z.imag * 2, z.abs(), z.conj() * z, z.angle(), z.is_complex(), torch.view_as_real(z)


# torch 2.11 refuses fake tensors that are asked for their names.
@case(
    lambda: (t(2, 3),),
    lambda: (t(2, 3).half(),),
    lambda: (t(2, 3).T,),
    expect="graph" if torch.__version__ >= (2, 13) else "eager",
)
def test_facts(x):
    return (
        x.shape,
        x.dtype,
        x.device,
        x.ndim,
        x.requires_grad,
        x.is_leaf,
        x.grad,
        x.grad_fn,
        x.layout,
        x.is_cuda,
        x.itemsize,
        x.nbytes,
        hasattr(x, "names"),
        x.dim(),
        x.numel(),
        x.stride(0),
        x.storage_offset(),
        x.element_size(),
        x.is_contiguous(),
        x.is_floating_point(),
        x.size(-1),
        len(x),
        x.get_device(),
        x.type(),
        x.is_sparse,
        x.is_quantized,
        x.nelement(),
    )


@case(lambda: (t(2, 3),), lambda: (t(4, 5),))
def test_size_arithmetic(x):
    s = x.shape
    return (
        x.new_zeros(s + (2,)),
        s[0] * s[1],
        s[1:],
        s.numel(),
        list(s),
        tuple(s),
        s == (2, 3),
        torch.Size([1, 2]) + s,
        len(s),
        s.index(3) if 3 in s else -1,
        type(s + (1,)),
        s.count(2),
        *s,
    )


@case(lambda: (t(2),))
def test_data_attribute(x):
    y = x.data
    y.add_(1)
    return y, x, x.data.requires_grad


@case(lambda: (t(2), t(2)), expect="breaks")
def test_data_assigned(x, y):
    x.data = y * 2
    return x + 1


@case(lambda: (t(2),), expect="breaks")  # of a backend that takes no gradients in its graphs
def test_requires_grad_made_inside(x):
    y = (x * 2).requires_grad_()
    return y.requires_grad, y.detach() + 1


@case(lambda: (t(2),))
def test_requires_grad_on_an_argument(x):
    x.requires_grad_(True)
    return x.detach() * 2


@case(lambda: (t(2),), expect="breaks")  # of a backend that takes no gradients in its graphs
def test_requires_grad_assigned(x):
    y = x * 1
    y.requires_grad = True
    return y.requires_grad, y.is_leaf, y.detach()


@case(lambda: (t(2),))
def test_user_attributes(x):
    x.tag = "seen"
    y = x * 2
    y.scale = 3
    return y * y.scale, x.tag, hasattr(x, "other"), getattr(y, "other", None)


@case(lambda: (t(2),))
def test_attribute_questions(x):
    return hasattr(x, "sum"), hasattr(x, "no_such"), getattr(x, "abs")(), getattr(x, "no_such", 1), callable(x.sum)


@case(lambda: (t(2),))
def test_missing_attribute_raises(x):
    return x.no_such_attribute


@case(lambda: (t(2, 3),))
def test_wrong_shapes_raise(x):
    return x @ x


@case(lambda: (t(2, 3),))
def test_caught_shape_error(x):
    try:
        y = x @ x
    except RuntimeError:
        y = x @ x.T
    return y


@case(lambda: (t(2, 3),))
def test_wrong_dimension_raises(x):
    return x.sum(dim=5)


@case(lambda: (t(2, 3),))
def test_bad_argument_raises(x):
    return torch.cat(x, 1, 2, 3)


@case(lambda: (t(2).requires_grad_(),), lambda: (t(3),))
def test_grad_needed(x):
    return (x * 2).detach()


# ---- conversions ----


@case(lambda: (t(3),), lambda: (t(4),))
def test_dtype_methods(x):
    return (
        x.double(),
        x.half(),
        x.bfloat16(),
        x.int(),
        x.long(),
        x.bool(),
        x.byte(),
        x.char(),
        x.short(),
        x.cfloat(),
        x.to(torch.float64),
        x.to("cpu", torch.int32),
        x.to(x.double()),
        x.type(torch.int64),
        x.type_as(x.double()),
        x.type("torch.DoubleTensor"),
    )


@case(lambda: (t(3),))
def test_conversions_that_alias(x):
    a, b, c, d = x.float(), x.to(torch.float32), x.contiguous(), x.cpu()
    a.add_(1)
    return a is x, b is x, c is x, d is x, x.to(x.dtype, copy=True) is x


@case(lambda: (t(2),), lambda: (t(4, 3),), lambda: (t(5, 1),), lambda: (t(1),))
def test_new_of_sizes_and_of_numbers(x):
    """A size is one, a tuple or list of numbers is what the tensor holds."""
    sizes = x.new(x.shape).fill_(2), x.new(x.size()).uniform_(), x.new(size=x.shape).zero_(), x.new(3, 2).zero_()
    return *sizes, x.new(torch.Size([])).fill_(1), x.new((1, 2)), x.new([3, 4]), x.new().shape


@case(lambda: (t(2, 3),))
def test_new_methods(x):
    return (
        x.new_zeros(2),
        x.new_ones((2, 2), dtype=torch.int64),
        x.new_full((2,), 3.5),
        x.new_tensor([1, 2]),
        x.new_empty((0, 3)),
        torch.zeros_like(x),
        torch.full_like(x, 2),
        torch.ones_like(x, dtype=torch.bool),
        torch.empty_like(x).shape,
    )


@case(lambda: (t(3),), lambda: (t(4),), expect="breaks")
def test_item(x):
    n = x.sum().item()
    return x * n, round(n, 3)


@case(lambda: (torch.tensor(3), t(5)), lambda: (torch.tensor(4), t(5)), expect="breaks")
def test_item_as_index(n, x):
    return x[: n.item()] * 2, x[n], x[int(n) :]


@case(lambda: (t(3),), expect="breaks")
def test_tolist(x):
    values = (x * 10).int().tolist()
    return x + values[0], values, sum(values)


@case(lambda: (t(3),), expect="breaks")
def test_numpy_in_the_middle(x):
    y = x * 2
    a = np.sin(y.numpy())
    return torch.from_numpy(a) + x, a.shape


@case(lambda: (t(3),), expect="breaks")
def test_numpy_shares_memory(x):
    y = x + 1
    a = y.numpy()
    a[0] = 7
    y.mul_(2)
    return y, a, float(a[0])


@case(lambda: (np.arange(3, dtype=np.float32), t(3)), expect="breaks")
def test_numpy_argument(a, x):
    y = torch.from_numpy(a)
    y.add_(x)
    a[1] = 0
    return y * 2, torch.as_tensor(a) + 1, torch.tensor(a), a.sum() > -100


@case(lambda: (t(3), np.float32(2.0)), lambda: (t(3), np.float32(3.0)))
def test_numpy_scalar_argument(x, s):
    return x * float(s), x * s.item()


@case(lambda: (t(8),), expect="breaks")
def test_scipy_in_the_middle(x):
    import scipy.fft

    y = torch.relu(x)
    z = torch.from_numpy(scipy.fft.dct(y.numpy()))
    return torch.sin(z) + y


@case(lambda: (t(3),), lambda: (t(3) + 10,), expect="breaks")
def test_bool_of_a_tensor(x):
    if (x > 5).all():
        return x - 5
    if not x.sum() > 1e6:
        x = x + 1
    return x


@case(lambda: (t(1),), lambda: (t(2),), expect="breaks")
def test_bool_of_many_values_raises(x):
    return x if x > 0 else -x


@case(lambda: (t(3),), expect="breaks")
def test_numbers_of_tensors(x):
    return (
        float(x[0]),
        int(x[1] * 10),
        bool(x[2] > 0),
        complex(x[0]),
        range(torch.tensor(2)),
        [1, 2, 3][torch.tensor(1)],
    )


# ---- in place, views, aliasing ----


@case(lambda: (t(3), t(3)))
def test_in_place_on_arguments(x, y):
    x.add_(1).mul_(2)
    x += y
    y.copy_(x)
    y.zero_()
    torch.relu_(x)
    x.clamp_(max=2)
    x.fill_diagonal_(0) if x.dim() > 1 else None
    return x is y


@case(lambda: (t(2, 3),))
def test_views_of_arguments(x):
    row = x[0]
    row.add_(1)
    flat = x.view(-1)
    flat[1] = 5.0
    x.t()[2].zero_()
    return row, flat, x.sum(), x[:, 1:].mul_(2)


@case(lambda: (t(2, 3),))
def test_views_returned(x):
    return x.view(3, 2), x[0], x.T, x.unsqueeze(0), x.expand(2, 2, 3), x


@case(lambda: (t(4),))
def test_returned_view_shares_memory(x):
    y = x[1:]
    z = x * 2
    return y, z, z[:2]


@case(lambda: (t(4),))
def test_same_tensor_returned_twice(x):
    y = x + 1
    return y, y, [x, x], {"y": y}


@case(lambda: (lambda x: (x, x))(t(3)), lambda: (t(3), t(3)))
def test_same_tensor_twice_as_argument(x, y):
    x.add_(1)
    return x + y, x is y


@case(lambda: (lambda x: (x, x[1:]))(t(3)), lambda: (t(3), t(2)), expect="eager")
def test_overlapping_arguments(x, y):
    x.mul_(2)
    return y + 1


@case(lambda: (t(3), []))
def test_tensor_kept_by_the_caller(x, kept):
    y = x * 2
    kept.append(y)
    y.add_(1)
    return y


@case(lambda: (t(3),))
def test_detach_and_clone(x):
    a, b = x.detach(), x.clone()
    a.add_(1)
    b.add_(5)
    return a, b, x


@case(lambda: (t(3),))
def test_swap_by_unpacking(x):
    a, b = x, x + 1
    a, b = b, a
    a += b
    return a, b


@case(lambda: (t(3),), expect="breaks")  # eager's own error
def test_inplace_on_expanded_raises(x):
    y = x.unsqueeze(0).expand(2, 3)
    y.add_(1)
    return y


@case(lambda: (t(3),))
def test_inplace_dtype_error(x):
    y = torch.ones(3, dtype=torch.int64)
    y.add_(x)
    return y


@case(lambda: (t(3), t(3)))
def test_out_arguments(x, y):
    out = torch.empty(3)
    torch.add(x, y, out=out)
    torch.mul(x, 2, out=y)
    return out, torch.sin(x, out=x) is x


@case(lambda: (t(2, 3), torch.empty(0)), expect="breaks")
def test_out_argument_resized(x, out):
    torch.sum(x, dim=1, out=out)
    return out * 2


@case(lambda: (t(3), t(3), torch.empty(3), torch.empty(3, dtype=torch.int64)))
def test_out_tuple(x, y, values, indices):
    torch.sort(x, out=(values, indices))
    return values + y


@case(lambda: (t(3),), expect="breaks")
def test_resize_and_set(x):
    y = torch.empty(0)
    y.set_(x)
    z = torch.zeros(2)
    z.resize_(4).zero_()
    return y + 1, z.shape


@case(lambda: (t(6),))
def test_as_strided_and_unfold(x):
    return x.as_strided((2, 2), (1, 2)), x.unfold(0, 2, 2), torch.as_strided(x, (3,), (2,)).add_(1)


@case(lambda: (t(3), 2), lambda: (t(3), 3))
def test_augmented_assignments(x, n):
    y = x.clone()
    y += n
    y -= 1
    y *= x
    y /= 2
    y **= 2
    y //= 0.5
    y %= 3
    z = (x > 0).int()
    z |= 2
    z &= 3
    z ^= 1
    z <<= 1
    return y, z


# ---- indexing ----


@case(lambda: (t(4, 5, 6),))
def test_reading_by_index(x):
    return (
        x[0],
        x[-1, 2],
        x[..., 1],
        x[:, None, 1:3],
        x[[0, 2]],
        x[[0, 1], [1, 2]],
        x[torch.tensor([1, 1])],
        x[:, torch.tensor([0, 3]), 1],
        x[::2, ::3],
        x[True],
        x[1, :, [0, 1]],
        x[()],
        x[slice(1, 3)],
        x[0][1][2],
        x[None].shape,
    )


@case(lambda: (t(4, 5), t(4, 5) > 0), expect="breaks")
def test_boolean_masks(x, m):
    y = x.clone()
    y[m] = 0
    y[~m] += 1
    y[m[:, 0]] *= 2
    return y, torch.where(m, x, y), x.masked_fill(m, -1), x[m].numel() >= 0, x[m].sum()


@case(lambda: (t(4, 5),))
def test_writing_by_index(x):
    x[0] = 1
    x[1, 2] = torch.tensor(7.0)
    x[:, 3] = torch.arange(4.0)
    x[[2, 3], [0, 1]] = torch.tensor([5.0, 6.0])
    x[..., -1] = 0
    x[2:4, :2] += 10
    x[torch.tensor([0])] -= 1
    x[3, None] = 2
    return x.sum()


@case(lambda: (t(3),))
def test_index_out_of_range_raises(x):
    return x[5]


@case(lambda: (t(3),))
def test_too_many_indices_raise(x):
    return x[0, 0]


@case(lambda: (t(3, 4), torch.tensor([[0, 1], [2, 3], [1, 0]])))
def test_gather_scatter(x, i):
    return (
        x.gather(1, i),
        torch.zeros(3, 4).scatter_(1, i, 1.0),
        torch.zeros(3, 4).scatter_add(1, i, torch.ones(3, 2)),
        x.index_select(0, i[0]),
        x.index_add(0, i[0], torch.ones(2, 4)),
        x.index_fill(1, torch.tensor([0]), 3.0),
        torch.take_along_dim(x, i, 1),
        x.take(torch.tensor([0, 5])),
        x.index_copy(0, torch.tensor([1]), torch.zeros(1, 4)),
        x.put(torch.tensor([1]), torch.tensor([9.0])),
        torch.zeros(3, 4).scatter_reduce(1, i, torch.ones(3, 2), "amax"),
    )


@case(lambda: (torch.tensor([1.0, 0.0, 2.0, 0.0]),), lambda: (torch.tensor([0.0, 0.0, 2.0, 1.0]),), expect="breaks")
def test_data_dependent_shapes(x):
    return x.nonzero(), torch.where(x > 0), torch.unique(x), x.masked_select(x > 0), torch.argwhere(x), x[x > 0] * 2


@case(lambda: (torch.tensor([3, 1, 3, 2]),), expect="breaks")
def test_unique_with_counts(x):
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values * 2, inverse, counts, torch.unique_consecutive(x), torch.bincount(x)


@case(lambda: (torch.tensor([1, 2]), t(3, 2)), expect="breaks")
def test_repeat_interleave(n, x):
    return x.repeat_interleave(2, dim=0), torch.repeat_interleave(n), torch.repeat_interleave(x[:2], n, dim=0)


# ---- iteration ----


@case(lambda: (t(3, 2),), lambda: (t(2, 2),))
def test_iteration(x):
    total = 0
    for i, row in enumerate(x):
        total = total + row * i
    return total, [r.sum() for r in x], len(x), list(x.unbind(1)), sum(x)


@case(lambda: (t(3),), lambda: (t(2),))
def test_unpacking(x):
    a, b, c = x
    first, *rest = x
    return a * b + c, first, rest


@case(lambda: (t(4, 2),))
def test_splitting(x):
    a, b = x.chunk(2)
    c, d = torch.split(x, [1, 3])
    values, indices = x.max(dim=0)
    q, r = divmod(7, 2)
    return a + b, c + d, values, indices, x.topk(2, dim=0), x.sort(dim=1).indices, torch.aminmax(x), x.unbind()[0], q, r


@case(lambda: (t(2),))
def test_iterating_a_number_raises(x):
    return [v for v in x.sum()]


@case(lambda: (t(3, 2),))
def test_reversed_and_zip(x):
    return [a + b for a, b in zip(x, reversed(list(x)))], torch.stack(list(map(torch.sum, x))), reversed(x)


@case(lambda: (t(3), [t(3), t(3)]), expect="breaks")
def test_in_and_equality(x, xs):
    return any(x is y for y in xs), torch.equal(x, x), torch.allclose(x, xs[0]), x.eq(xs[0]).any(), x.equal(xs[1])


@case(lambda: (t(3),), expect="breaks")
def test_in_with_a_tensor(x):
    return 3.0 in x, x in [x, 1]


@case(lambda: ({}, t(3)), expect="breaks")
def test_tensor_as_key(d, x):
    d[x] = 1
    return x + d[x], x in d, len({x, x})


# ---- kinds of tensors that are not compiled ----


@case(lambda: (torch.eye(3).to_sparse(), t(3, 3)), expect="breaks")
def test_sparse_argument(s, x):
    return torch.sparse.mm(s, x) + 1


@case(lambda: (t(3, 3),), expect="breaks")
def test_sparse_made_inside(x):
    s = torch.relu(x).to_sparse()
    return s.to_dense() + torch.sparse.mm(s, x)


@case(lambda: (t(3),), expect="breaks")
def test_quantized(x):
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return q.dequantize() + 1


@case(lambda: ([t(2, 3), t(1, 3)],), expect="breaks")
def test_nested(xs):
    n = torch.nested.nested_tensor(xs)
    return torch.nested.to_padded_tensor(n, 0.0) + 1


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@case(lambda: (t(3).as_subclass(Tagged),), expect="breaks")
def test_subclass_argument(x):
    return x + 1, type(x * 2).__name__


@case(lambda: (t(3),), expect="breaks")
def test_subclass_made_inside(x):
    y = x.as_subclass(Tagged)
    return type(y + 1).__name__, (y + 1).as_subclass(torch.Tensor)


@case(lambda: (torch.complex(t(3), t(3)).conj(),), expect="breaks")
def test_lazy_conjugate(z):
    return z + 1, z.is_conj(), z.resolve_conj() * 2


@case(lambda: (torch.empty(2, 3, device="meta"),), expect="breaks")
def test_meta_device(x):
    return (x + 1).shape


@scenario
def test_error_that_depends_on_values(compile):
    table = torch.arange(5.0)

    def run(x, index, log):
        log.append("start")
        y = x * 2
        z = table[index]
        log.append("end")
        return y + z

    fast, log, out = compile(run), [], []
    for last in (1, 9, 2):
        try:
            out.append(fast(torch.ones(2), torch.tensor([0, last]), log))
        except IndexError as error:
            out.append(str(error))
    return out, log
