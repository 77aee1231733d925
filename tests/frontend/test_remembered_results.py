"""Fake results that captures share: none from another state of the process, none that belongs to another capture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intarsia.frontend.graph import fake_dispatch
from intarsia.frontend.graph.fake_dispatch import new_fake_mode
from intarsia.frontend.torch_private.fake import FakeTensorMode, quiet_fake_errors


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """What this module remembers, alone."""
    table = fake_dispatch._Remembered()
    monkeypatch.setattr(fake_dispatch, "_remembered", table)
    return table


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The operators that torch was asked about."""
    names: list[str] = []
    plain = FakeTensorMode.dispatch

    def dispatch(mode, func, *args, **kwargs):
        names.append(str(func))
        return plain(mode, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    return names


def _half(x: Tensor) -> Tensor:
    return x / 2


def _in_new_capture(x: Tensor, fn=_half) -> Tensor:
    mode = new_fake_mode(None)
    result = fn(mode.from_tensor(x))
    assert result.fake_mode is mode
    return result


def test_a_second_capture_does_not_ask_torch(asked):
    first = _in_new_capture(torch.ones(3, 4))
    once = asked.count("aten.div.Tensor")
    second = _in_new_capture(torch.ones(3, 4))
    assert once == asked.count("aten.div.Tensor") == 1
    assert (first.shape, first.stride(), first.dtype) == (second.shape, second.stride(), second.dtype)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


@pytest.mark.parametrize(
    "other", [torch.ones(4, 3), torch.ones(4, 3).t(), torch.ones(3, 4).double(), torch.ones(3, 4).int()]
)
def test_other_operands_are_asked_about(asked, other):
    _in_new_capture(torch.ones(3, 4))
    made, wanted = _in_new_capture(other), _half(other)
    assert asked.count("aten.div.Tensor") == 2
    assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)


def test_the_default_dtype_decides():
    whole = torch.ones(3, dtype=torch.int64)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert _in_new_capture(whole).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_inference_mode_decides():
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            made = _in_new_capture(torch.ones(3))
        assert made.is_inference() == inference


def test_switches_of_libraries_decide(asked):
    image, weight = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            mode = new_fake_mode(None)
            torch.conv2d(mode.from_tensor(image), mode.from_tensor(weight))
    assert asked.count("aten.convolution.default") == 2


def test_what_refuses_to_be_deterministic_refuses():
    """The median on a GPU is asked for again when the mode has changed."""

    def median() -> Tensor:
        with new_fake_mode(None), quiet_fake_errors():
            return torch.empty_strided((3, 4), (4, 1), device="cuda").median(1).values

    assert median().shape == (3,)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            median()
    finally:
        torch.use_deterministic_algorithms(False)
    assert median().shape == (3,)


def test_where_warnings_are_heard_each_operator_is_run(asked):
    _in_new_capture(torch.ones(3))
    mode = new_fake_mode(None)
    mode.dispatch.heard = True
    for _ in range(2):
        _half(mode.from_tensor(torch.ones(3)))
    assert asked.count("aten.div.Tensor") == 3


def test_a_write_is_no_result(asked):
    """An operator that writes is run each time."""
    for _ in range(2):
        x = new_fake_mode(None).from_tensor(torch.ones(3))
        assert x.add_(1) is x
    assert asked.count("aten.add_.Tensor") == 2


def test_what_is_remembered_has_an_end(monkeypatch, remembered):
    monkeypatch.setattr(fake_dispatch, "_MOST", 3)
    for size in range(2, 12):
        assert _in_new_capture(torch.ones(size)).shape == (size,)
        assert len(remembered) <= 3
