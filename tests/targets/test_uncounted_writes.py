"""Writes to weights that torch does not count are seen: what is kept of a weight is never stale."""

import ctypes
import gc
import os

import pytest
import torch
from torch import nn

import intarsia
from intarsia.targets.run import watch
from intarsia.targets.run.watch import PAGES, Contents


def checksum(table, size):
    """A stand-in for the compiled one."""
    spans = (ctypes.c_int64 * (size // 8)).from_address(table)
    return hash(tuple(ctypes.string_at(spans[i], spans[i + 1]) for i in range(0, len(spans), 2)))


def through_data(w):
    w.data[3, 4] = 50.0


def through_numpy(w):
    w.detach().numpy()[-1, -1] = 50.0


def through_a_pointer(w):
    ctypes.memmove(w.data_ptr() + 4 * (w.numel() // 2), b"\0\0\x48\x42", 4)


def through_a_file(w):
    """A system call writes it."""
    reading, writing = os.pipe()
    os.write(writing, b"\0\0\x48\x42")
    with open(reading, "rb", buffering=0) as file:
        file.readinto(w.detach().numpy().reshape(-1).view("uint8")[-4:])
    os.close(writing)


WAYS = [through_data, through_numpy, through_a_pointer, through_a_file]


@pytest.fixture(params=["pages", "checksums"])
def how(request, monkeypatch):
    """Both ways to know."""
    if request.param == "checksums":
        monkeypatch.setattr(watch.PAGES, "works", lambda: False)
    elif not PAGES.works():
        pytest.skip("the system does not tell")
    gc.collect()
    return request.param


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(8, 8), (120, 130), (700, 301)])
def test_contents(how, way, shape):
    tensor, other = torch.randn(shape), torch.randn(5, 5)
    known = Contents([other, tensor], checksum, watched=True)
    assert bool(known.watched) == (how == "pages" and shape == (700, 301))
    for _ in range(3):
        assert known.same()
    way(tensor)
    assert not known.same()
    again = Contents([other, tensor], checksum, watched=True)
    assert again.whole != known.whole and again.same()


def test_each_owner_of_a_copy_sees_the_write(how):
    tensor = torch.randn(600, 300)
    first, second = (Contents([tensor], checksum, watched=True) for _ in range(2))
    through_data(tensor)
    assert not first.same() and not second.same()
    again = Contents([tensor], checksum, watched=True)
    assert again.same() and not second.same() and again.same()


def test_views_that_overlap_and_memory_that_was_given_back(how):
    whole = torch.randn(4, 300, 300)
    parts = [whole, whole[1], whole[1:3], whole[3]]
    for number in range(3):
        known = [Contents([p], checksum, watched=True) for p in parts]
        assert all(k.same() for k in known)
        whole.data[3, 299, number] = 7.0
        assert [k.same() for k in known] == [False, True, True, False]
        whole[1].data[number, 5] += 1.0
        assert [k.same() for k in known] == [False, False, False, False]
    for _ in range(20):  # other tensors at the same addresses
        tensor = torch.randn(500, 500)
        known = Contents([tensor], checksum, watched=True)
        assert known.same()
        through_numpy(tensor)
        assert not known.same()


def test_shared_and_mapped_memory_is_read(tmp_path):
    shared = torch.randn(300, 300).share_memory_()
    torch.randn(300, 300).numpy().tofile(tmp_path / "w")
    mapped = torch.from_file(str(tmp_path / "w"), shared=True, size=90_000).view(300, 300)
    for tensor in (shared, mapped):
        known = Contents([tensor], checksum, watched=True)
        assert not known.watched and known.same()
        through_data(tensor)
        assert not known.same()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_watches_its_own_pages(how):
    tensor = torch.randn(300, 300)
    known = Contents([tensor], checksum, watched=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = Contents([tensor], checksum, watched=True)
            fine = mine.same()
            through_numpy(tensor)
            code = 0 if fine and not mine.same() and not known.same() else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0 and known.same()
    through_numpy(tensor)
    assert not known.same()


class Hoisted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(300, 300))

    def forward(self, x):
        return x @ self.weight.softmax(-1)


LAYERS = {
    "linear": (lambda: nn.Linear(300, 400), (40, 300)),
    "few rows": (lambda: nn.Linear(512, 512), (2, 512)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(64, 96, 3), nn.BatchNorm2d(96), nn.ReLU()).eval(), (2, 64, 12, 12)),
    "hoisted": (Hoisted, (7, 300)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_models(how, layer):
    make, shape = LAYERS[layer]
    net, x = make(), torch.randn(shape)
    fast = intarsia.compile(net)
    weight = next(net.parameters())
    with torch.no_grad():
        for way in (None, through_data, None, through_data, through_numpy, None, through_a_pointer):
            if way is not None:
                way(weight.flatten(1) if weight.dim() > 2 else weight)
            for _ in range(2):
                torch.testing.assert_close(fast(x), net(x), atol=2e-3, rtol=2e-4)
            weight.data.flatten(1)[3:4, 4:5] *= 0.5
            torch.testing.assert_close(fast(x), net(x), atol=2e-3, rtol=2e-4)
