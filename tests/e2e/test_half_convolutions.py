"""Convolutional networks in bfloat16 and float16: as close to float64 as eager's, with weights and statistics that change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import intarsia
from intarsia.targets.torch_private import onednn_bfloat16
from intarsia.testing import check

KINDS = [torch.bfloat16, torch.float16]


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.norm1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.middle, self.norm2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.up, self.norm3 = nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> the same."""
        y = torch.relu(self.norm1(self.down(x)))
        y = torch.relu(self.norm2(self.middle(y)))
        return torch.relu(x + self.norm3(self.up(y)))


class Inverted(nn.Module):
    """A block of a MobileNet: depthwise, without an activation at the end."""

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        wide = 3 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), activation,
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False), nn.BatchNorm2d(wide), activation,
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> the same."""
        return x + self.body(x)


class Squeezed(nn.Module):
    """Channels weighted by what a small network says of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> the same."""
        return x * nn.functional.hardsigmoid(self.second(torch.relu(self.first(x.mean((2, 3), keepdim=True)))))


class Joined(nn.Module):
    """A block of a DenseNet: norm before the convolution, results side by side; then a pool."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> (n, channels + 16, h / 2, w / 2)."""
        return nn.functional.max_pool2d(torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1), 2)


NETS = {
    "residual": lambda: nn.Sequential(nn.Conv2d(3, 32, 3, 2), *(Residual(32, 16) for _ in range(6))),
    "inverted": lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2), *(Inverted(16, nn.Hardswish()) for _ in range(3))),
    "squeezed": lambda: nn.Sequential(nn.Conv2d(3, 32, 3, 2), Squeezed(32), nn.Conv2d(32, 16, 1)),
    "joined": lambda: nn.Sequential(nn.Conv2d(3, 16, 3), Joined(16), Joined(32), nn.AdaptiveAvgPool2d(1)),
    "grouped": lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, groups=4), nn.GELU()),
    "up": lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 1)),
}


def random_norms(net: nn.Module) -> None:
    """Statistics and factors as after training."""
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.3, 1.8)
            norm.weight.uniform_(0.4, 1.4)
            norm.bias.normal_(0, 0.2)


def build(name: str, kind: torch.dtype, seed: int, fresh: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    net = NETS[name]().eval()
    if not fresh:
        random_norms(net)
    return net.to(kind), torch.randn(2, 3, 33, 33).to(kind)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "trained"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_networks(name, kind, fresh):
    net, x = build(name, kind, 0, fresh)
    check(net, (x,))


@torch.no_grad()
def test_sums_have_no_bias():
    """Fresh batch norm multiplies by 0.999995. In front of sums eager rounds that away; otherwise all ties go one way, and add up."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 64, 3, 2), *(Residual(64, 16) for _ in range(16))).eval().bfloat16()
    x = torch.randn(2, 3, 33, 33).bfloat16()
    gold, ref = copy.deepcopy(net).double()(x.double()), net(x)
    found = intarsia.compile(net, fullgraph=True)(x)

    def error(y: Tensor) -> float:
        return (y.double() - gold).mean().abs().item()

    assert error(found) <= 2 * error(ref) + 1e-4 * gold.abs().mean().item()


@pytest.mark.skipif(not onednn_bfloat16, reason="oneDNN does not multiply in bfloat16 on this processor")
def test_weights_are_packed():
    net, x = build("residual", torch.bfloat16, 0, True)
    text = intarsia.lower(net, x).host()
    assert text.count(" = step") == 19 and "aten_convolution" not in text


@pytest.mark.parametrize("name", ["residual", "inverted", "grouped", "squeezed"])
@torch.no_grad()
def test_weights_change(name):
    net, x = build(name, torch.bfloat16, 0, False)
    compiled = intarsia.compile(net, fullgraph=True)
    check(net, (x,), compiled=compiled, calls=1)
    for p in net.parameters():
        p.mul_(1.25)
    check(net, (x,), compiled=compiled, calls=1)
    random_norms(net)
    check(net, (x,), compiled=compiled, calls=1)
    net.load_state_dict(build(name, torch.bfloat16, 3, False)[0].state_dict())
    check(net, (x,), compiled=compiled, calls=1)
    for p in net.parameters():
        p.data = p.data * 0.9
    check(net, (x,), compiled=compiled, calls=1)


@torch.no_grad()
def test_nan_and_infinity_stay():
    net, x = build("residual", torch.bfloat16, 0, False)
    x[0, 1, 3, 3], x[1, 2, 20, 20] = torch.nan, -torch.inf
    expected, found = net(x), intarsia.compile(net, fullgraph=True)(x)
    assert found.isnan().equal(expected.isnan()) and expected.isnan().any() and not expected.isnan().all()


POOLS = [(3, 2, 1, 1, False), (2, 2, 0, 1, False), ((2, 3), (2, 1), (1, 1), 1, False), (3, 2, 0, 2, True)]


@pytest.mark.parametrize("pool", POOLS, ids=str)
@torch.no_grad()
def test_max_pool(pool):
    window, stride, padding, dilation, ceil = pool
    torch.manual_seed(0)
    conv, pooled = nn.Conv2d(3, 20, 3), nn.MaxPool2d(window, stride, padding, dilation, ceil_mode=ceil)
    net = nn.Sequential(conv, nn.Identity(), pooled).eval().bfloat16()
    x = torch.randn(2, 3, 14, 13).bfloat16()
    x[0, 0, 4, 4], x[0, 1, 9, 2], x[1, :, :8, :8] = torch.nan, torch.inf, -torch.inf
    middle = intarsia.compile(conv, fullgraph=True)(x)
    found = intarsia.compile(net, fullgraph=True)(x)
    torch.testing.assert_close(found, pooled(middle), rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def test_batch_that_changes():
    net, x = build("inverted", torch.bfloat16, 0, False)
    compiled = intarsia.compile(net, fullgraph=True, dynamic=True)
    for batch in (2, 3, 1):
        check(net, (x[:1].repeat(batch, 1, 1, 1),), compiled=compiled, calls=1)


@torch.no_grad()
def test_autocast():
    net, x = build("residual", torch.float32, 0, False)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    check(run, (x,), tol=0.02)
