"""Messages about errors that nobody expected say whose they are: "please report it" stands where the mistake is Intarsia's alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import intarsia
from intarsia.frontend.runtime.error_origin import blamed, culprit
from intarsia.passes.core.base import Pass
from intarsia.targets.measure import choices

X = torch.randn(4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))
    intarsia.reset()


@torch.library.custom_op("whose_mistake::raises", mutates_args=())
def raises(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@raises.register_fake
def fake_that_raises(x):
    raise KeyError("out of luck")


@torch.library.custom_op("whose_mistake::lies", mutates_args=())
def lies(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@lies.register_fake
def fake_that_lies(x):
    return torch.empty(7)


@torch.library.custom_op("whose_mistake::bare", mutates_args=())
def bare(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def with_raises(x):
    return raises(x) + 1


def with_lies(x):
    return lies(x) + 1


def with_bare(x):
    return bare(x) + 1


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    name = "broken"
    level = "prim"

    def apply(self, ctx, module):
        raise KeyError("out of luck")


def plain(x):
    return x.sin() + 1


@pytest.mark.parametrize(
    ("function", "expected", "passes"),
    [
        (with_raises, ["fake_that_raises", "KeyError: 'out of luck'", "correct it there"], ()),
        (
            with_lies,
            ["whose_mistake.lies gave torch.float32[4]", "its fake implementation (register_fake) torch.float32[7]"],
            (),
        ),
        (with_bare, ["no fake impl", "register_fake"], ()),
        (
            plain,
            ["pass 'broken'", "which is not Intarsia's own", "KeyError: 'out of luck'"],
            (Broken(),),
        ),
    ],
    ids=["fake that raises", "fake that lies", "no fake", "pass"],
)
def test_it_is_the_users(function, expected, passes, caplog):
    torch.testing.assert_close(intarsia.compile(function, passes=passes)(X), function(X))
    (text,) = [r.getMessage() for r in caplog.records]
    assert "report it" not in text and all(part in text for part in expected), text
    assert f"{__file__}:" in text.splitlines()[0] and len(text.splitlines()) <= 15


def test_it_is_ours(monkeypatch, caplog):
    monkeypatch.setattr("intarsia.targets.cpp.emit.kernels_of", len)  # a mistake in the middle of our own code
    torch.testing.assert_close(intarsia.compile(plain, options={"cache": False})(X), plain(X))
    (text,) = [r.getMessage() for r in caplog.records]
    assert "an error inside intarsia (please report it): TypeError" in text and text.startswith(f"{__file__}:")


def test_the_culprit_is_what_was_called_from_ours():
    def theirs():
        return {}["nothing"]

    for call in (lambda: intarsia.explain(3), theirs):  # raised by ours; and not called by ours
        error = _raised(call)
        assert culprit(error) == "" and "report it" in blamed(error)
    error = _raised(lambda: choices._trial({"x": theirs}))
    assert culprit(error).endswith("in theirs") and "report it" not in blamed(error)


def _raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
