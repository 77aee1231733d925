"""Parts of complex results that need gradients: strides, offsets and values as in eager. Kernels that call products, under autocast."""

import pytest
import torch
import torch.nn.functional as F

import intarsia


def parts(x):
    z = torch.polar(x, x)
    return z.real, z.imag, z.t().real, z.real[:, ::2], z.imag.expand(2, 3, 4), z.conj().imag[1:], torch.view_as_real(z)


def others(x):
    y = x * 2
    return torch.fft.rfft(x).imag[:, 1:], torch.fft.fft2(x).real.t(), y[:, ::2], y.view(3, 2, 2)[..., 1]


@torch.enable_grad()
@pytest.mark.parametrize("f", [parts, others])
def test_strides_and_values(f):
    fast = intarsia.compile(f, dynamic=False)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]):
        found, wanted = (g(x.clone(memory_format=torch.preserve_format).requires_grad_()) for g in (fast, f))
        for a, b in zip(found, wanted, strict=True):
            assert (a.shape, a.stride(), a.requires_grad) == (b.shape, b.stride(), b.requires_grad)
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        gradients = []
        for g in (fast, f):
            leaf = x.detach().clone().requires_grad_()
            sum((t * t).sum() for t in g(leaf)).backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_products_inside_of_kernels(inside):
    def f(x):
        grid = F.affine_grid(x[None, :2, :3], [1, 3, 4, 5], align_corners=False)
        return grid, torch.linalg.pinv(x), torch.pinverse(x), x @ x

    def g(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return f(x)

    fast, x = intarsia.compile(g, backend="eager"), torch.eye(3) + 0.25
    for low in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            found, wanted = fast(x), g(x)
        assert [t.dtype for t in found] == [t.dtype for t in wanted]
        assert all(map(torch.equal, found, wanted))
