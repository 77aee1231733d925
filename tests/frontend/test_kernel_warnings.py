"""Warnings that only eager's kernels give come with the call that is captured, and with no other call."""

import random
import warnings

import pytest
import torch
from harness import compiled

import intarsia

matrix, line = torch.randn(3, 4), torch.randn(6)
complex_ones = torch.ones(3, dtype=torch.complex64)
index = torch.tensor([0, 0])


def said(fn, *args):
    """What is warned of, without places, and the error."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            fn(*args)
        finally:
            torch.set_warn_always(False)
    return sorted({(w.category, str(w.message).split(" (Triggered")[0]) for w in log})


PROGRAMS = {
    "std": (lambda x: x.std(0), matrix[:1]),
    "std of enough": (lambda x: x.std(0), matrix),
    "var of a number": (lambda x: x.var(), torch.tensor(2.0)),
    "correction": (lambda x: torch.var_mean(x, 0, correction=3), matrix),
    "less correction": (lambda x: torch.var_mean(x, 0, correction=2), matrix),
    "no correction": (lambda x: x.std(0, correction=0), matrix[:1]),
    "no elements": (lambda x: x.std(), matrix[:0]),
    "imaginary parts": (lambda z: z.to(torch.float32), complex_ones),
    "imaginary parts that are copied": (lambda z: torch.zeros(3).copy_(z), complex_ones),
    "real parts": (lambda z: z.real.to(torch.float64), complex_ones),
    "a search with gaps": (lambda x, y: torch.searchsorted(x, y.t()), line.sort().values, matrix),
    "a search": (lambda x, y: torch.searchsorted(x, y), line.sort().values, matrix),
    "scatter by reduce": (lambda x, i: x.scatter(0, i, x[:2], reduce="add"), line, index),
    "scatter": (lambda x, i: x.scatter(0, i, x[:2]), line, index),
    "cholesky": (torch.cholesky, torch.eye(3)),
    "grad of no leaf": (lambda x: (x * 2).grad, torch.ones(3, requires_grad=True)),
    "grad of a constant": (lambda x: (x * 2).grad, torch.ones(3)),
}

SILENT = (
    "std of enough",
    "less correction",
    "no correction",
    "real parts",
    "a search",
    "scatter",
    "grad of a constant",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_kernels_warn_of(name):
    fn, *args = PROGRAMS[name]
    wanted = said(fn, *args)
    fast = intarsia.compile(fn)
    assert said(fast, *args) == wanted
    assert bool(wanted) == (name not in SILENT)
    assert said(fast, *args) in ([], wanted)


def test_variances_of_any_shape():
    rng = random.Random(3)
    for _ in range(25):
        x = torch.randn([rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4))])
        dims = rng.sample(range(x.dim()), rng.randint(0, x.dim())) or None
        correction, name = rng.choice((0, 1, 1, 2, 2.5)), rng.choice(("std", "var", "std_mean", "var_mean"))

        def f(x, name=name, dims=dims, correction=correction):
            return getattr(torch, name)(x, dims, correction=correction)

        assert said(compiled(f)[0], x) == said(f, x), (x.shape, dims, correction, name)


def test_a_warning_that_is_an_error():
    def f(x):
        try:
            return x.std(0)
        except UserWarning:
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(f)[0](matrix[:1]), matrix[:1] + 1)


def softmax_without_dim(x):
    return torch.nn.functional.softmax(x)


WARN = {
    "a kernel": lambda x: x.var(0),
    "a kernel of types": lambda x: (x + 0j).var(0),
    "bindings": lambda x: (x + 1)[0].T,
    "a function of the library": softmax_without_dim,
    "inside of a function of the library": lambda x: torch.meshgrid(x[0], x[0]),
    "grad of no leaf": lambda x: (x * 2).grad,
    "a constructor": lambda x: torch.tensor(x),
}


@pytest.mark.parametrize("name", WARN)
def test_lines_and_times(name):
    fn, found = WARN[name], []
    for g in (fn, intarsia.compile(fn)):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            try:
                g(torch.ones(1, 4, requires_grad=name == "grad of no leaf"))
            finally:
                torch.set_warn_always(False)
        found.append([(w.filename, w.lineno, w.category, str(w.message).split(" (Triggered")[0]) for w in log])
    assert found[0] == found[1] != []


def test_shown_once_by_its_module():
    """A module's own register says what was shown: as in eager, what it has shown once is not shown again."""
    module = {"__name__": "program"}
    exec("def f(x):\n    return x.var(0), x.std(0)\n", module)
    with warnings.catch_warnings(record=True) as log:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        torch.set_warn_always(True)
        try:
            intarsia.compile(module["f"])(torch.ones(1, 4))
            module["f"](torch.ones(1, 4))
        finally:
            torch.set_warn_always(False)
    assert len(log) == len({str(w.message) for w in log}) == 2
    assert "__warningregistry__" in module
