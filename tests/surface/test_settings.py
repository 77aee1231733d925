"""Settings that do not exist or make no sense are refused, by name; folders that cannot be written stop no program."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import intarsia
from intarsia import config
from intarsia.config import Config
from intarsia.tools import debug

X = torch.randn(5)


def f(x):
    return torch.sin(x) * 2 + 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("threads", [-3, "-3", True, 2.5, "two", None, 1 << 40], "a number of threads, or 0"),
        ("recompile_limit", [0, -1, "x", False], "a number of variants, at least 1"),
        ("packing", [-7, 1.5, "some"], "a number of MiB"),
        ("result_memory", [-2, [], "much"], "a number of MiB"),
        ("winograd", [2, "perhaps", None], "true or false"),
        ("cache_dir", [5, b"x", "a\0b"], "a path"),
        ("debug", [3.0], "a path"),
        ("pipeline", [7, ["fuse"]], "a pipeline as text"),
        ("numerics", ["eagre", 1], "one of float32, eager"),
    ],
)
def test_values_that_make_no_sense(name, values, expected, monkeypatch):
    for value in values:
        with pytest.raises(ValueError, match=f"the option '{name}' takes {expected}") as caught:
            intarsia.compile(f, options={name: value})
        assert repr(value)[:20] in str(caught.value) and len(str(caught.value)) < 250
        if isinstance(value, str) and "\0" not in value:
            with monkeypatch.context() as inner:
                inner.setenv(f"INTARSIA_{name.upper()}", value)
                with pytest.raises(
                    ValueError, match=f"the environment variable INTARSIA_{name.upper()} takes {expected}"
                ):
                    intarsia.compile(f)


def test_values_that_do():
    made = Config.from_environment({"threads": np.int64(2), "packing": "1", "result_memory": 1, "recompile_limit": "1"})
    assert (made.threads, made.packing, made.result_memory, made.recompile_limit) == (2, -1, 1, 1)
    made = Config.from_environment({"packing": False, "result_memory": "off", "threads": 0, "debug": None})
    assert (made.packing, made.result_memory, made.threads, made.debug) == (0, 0, 0, "")


@pytest.mark.parametrize("call", [intarsia.compile, intarsia.explain])
def test_a_misspelt_option(call):
    with pytest.raises(ValueError, match="unknown option 'treads'; did you mean 'threads'"):
        call(f, options={"treads": 2})(X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"treads": 2}}, "did you mean 'threads'"),
        ({"mode": "reduce-overheads"}, "did you mean 'reduce-overhead'"),
    ],
)
def test_settings_under_torch_compile(settings, message):
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message):
        torch.compile(f, backend="intarsia", **settings)(X)


def test_misspelt_variables(monkeypatch):
    monkeypatch.setattr(config, "_warned", set())
    for name in (
        "INTARSIA_TREADS",
        "INTARSIA_CACHEDIR",
        "INTARSIA_WHATEVER",
        "INTARSIA_FUZZ_SEED",
        "INTARSIA_LOGS",
        "INTARSIA_PACKING",
    ):
        monkeypatch.setenv(name, "1" if name != "INTARSIA_LOGS" else "")
    monkeypatch.setenv("INTARSIA_PROCESSOR", "avx2")  # one that takes effect, and no option
    with pytest.warns(RuntimeWarning) as caught:
        Config.from_environment()
        Config.from_environment()
    texts = [str(w.message) for w in caught]
    assert len(texts) == 3
    assert any("INTARSIA_TREADS is not used; did you mean INTARSIA_THREADS?" in text for text in texts)
    assert any("INTARSIA_CACHEDIR is not used; did you mean INTARSIA_CACHE_DIR?" in text for text in texts)
    assert any("INTARSIA_WHATEVER is not used; known are INTARSIA_DEBUG, " in text for text in texts)


@pytest.mark.parametrize("kind", ["a file", "below a file", "full"])
def test_a_debug_folder_that_cannot_be_written(kind, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(debug, "_warned", set())
    place = tmp_path / "file"
    if kind == "full":
        place = tmp_path / "out"

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("pathlib.Path.write_text", full)
        monkeypatch.setattr("intarsia.targets.build.toolchain.Path.write_text", full, raising=False)
    else:
        place.write_text("mine")
    monkeypatch.setenv("INTARSIA_DEBUG", str(place / "x" if kind == "below a file" else place))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            intarsia.reset()
            torch.testing.assert_close(intarsia.compile(f)(X), f(X))
    told = [r.getMessage() for r in caplog.records if "debug folder" in r.getMessage()]
    assert len(told) == 1 and "INTARSIA_DEBUG" in told[0]
    assert kind == "full" or place.read_text() == "mine"
