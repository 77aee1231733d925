"""Types of tensors that eager's kernels refuse are refused where nobody reads the result, and inside a `try`."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, number_backend

import intarsia

TYPES = (torch.complex64, torch.bool, torch.int64, torch.uint8, torch.float16, torch.float32)

OPERATORS = {
    "sort": lambda x: x.sort(),
    "topk": lambda x: torch.topk(x, 2),
    "floor": lambda x: x.floor(),
    "round": lambda x: x.round(),
    "relu": lambda x: x.relu(),
    "softmax": lambda x: F.softmax(x, 0),
    "gelu": lambda x: F.gelu(x),
    "var": lambda x: x.var(),
    "less": lambda x: x < x,
    "equal": lambda x: x == x,
    "negative powers": lambda x: x**-1,
    "powers": lambda x: x**2,
    "gcd": lambda x: torch.gcd(x, x),
    "product": lambda x: x @ x,
    "lu": lambda x: torch.linalg.lu(x),
    "distances": lambda x: torch.cdist(x, x),
    "maximum": lambda x: x.max(),
    "pools": lambda x: F.max_pool2d(x[None], 2),
    "sum": lambda x: x.sum(0),
    "negative": lambda x: -x,
}


def outcome(function, x):
    torch.manual_seed(0)
    try:
        return str(function(x)), None
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", TYPES)
def test_refused_where_nobody_reads_the_result(dtype):
    """Each operator alone, its result unread, and all of them in a loop of `try` statements."""
    refused = []

    def all_of_them(x):
        said = []
        for operator in OPERATORS.values():
            try:
                operator(x)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                said.append((type(error), str(error)))
        return said, x + 1

    for x in (torch.ones(4, 4).to(dtype), torch.ones(0, 4).to(dtype)):
        for name, operator in OPERATORS.items():

            def unread(x, operator=operator):
                operator(x)
                return x * 1

            fast, _ = compiled(unread, on_error="raise")
            for _ in range(2):
                assert outcome(fast, x) == outcome(unread, x), name
            refused += [name] if outcome(unread, x)[0] in (RuntimeError, NotImplementedError) else []
        fast, log = compiled(all_of_them, on_error="raise")
        assert outcome(fast, x) == outcome(all_of_them, x)
        assert not log.breaks and not log.fallbacks
    assert refused or dtype == torch.float32


def test_a_call_too_large_to_ask_says_nothing_of_others():
    def unread(x):
        x.var(1, correction=3)  # a kind of call that no other test has
        return x + 1

    outcome(intarsia.compile(unread), torch.ones(1100, 1100, dtype=torch.int32))
    small = torch.ones(4, 4, dtype=torch.int32)
    assert outcome(intarsia.compile(unread), small) == outcome(unread, small)
    assert outcome(unread, small)[0] is RuntimeError


def test_generators_are_not_drawn_from():
    def drawn(x, generator):
        return torch.bernoulli(x, generator=generator) + x.to(torch.bool).to(torch.uint8).bernoulli_(
            0.5, generator=generator
        )

    fast = intarsia.compile(drawn)
    ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(2):
        assert torch.equal(fast(torch.full((8,), 0.5), ours), drawn(torch.full((8,), 0.5), theirs))
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float32])
def test_numbers_that_are_zero_in_the_type_divide_nothing(dtype):
    def divided(x, k):
        return x // k, x % k, torch.fmod(x, k), x.clone().floor_divide_(k)

    x, fast = torch.tensor([0, 1, 7, 100]).to(dtype), intarsia.compile(divided)
    for k in (3, 5, 256, 300, 2**32, 7, 2**40, -256, 0, 2**8 + 3):
        assert outcome(lambda t, k=k: fast(t, k), x) == outcome(lambda t, k=k: divided(t, k), x), k
    for k in (256, 257, 2**40):
        fixed = intarsia.compile(lambda t, k=k: (t // k, t + 1)[1])
        assert outcome(fixed, x) == outcome(lambda t, k=k: (t // k, t + 1)[1], x), k


@pytest.mark.parametrize("wanted", [True, False])
def test_a_float_of_what_takes_gradients_warns(wanted):
    def read(x):
        return x * float(x), int(x), x.item()

    counts = []
    torch.set_warn_always(True)
    try:
        for function in (read, compiled(read)[0]):
            with warnings.catch_warnings(record=True) as log:
                warnings.simplefilter("always")
                function(torch.ones((), requires_grad=wanted))
            counts.append([str(m.message).split(" (Triggered")[0] for m in log])
    finally:
        torch.set_warn_always(False)
    assert counts[0] == counts[1] and bool(counts[0]) == wanted


def test_numbers_that_only_the_running_program_knows_are_taken():
    def padded(x, batch):
        most = int(torch.zeros(3, dtype=torch.long).scatter_add_(0, batch, torch.ones_like(batch)).max())
        place = torch.arange(batch.size(0)) % 2 + batch * most
        return x.new_zeros(3 * most + 2).index_put((place,), x), batch * most

    fast, log = compiled(padded, number_backend, on_error="raise")
    for batch in ([0, 0, 1, 2], [0, 1, 1, 1], [2, 2, 2, 2]):
        x, given = torch.randn(4), torch.tensor(batch)
        for got, want in zip(fast(x, given), padded(x, given), strict=True):
            assert torch.equal(got, want)
    assert not log.fallbacks and not log.breaks
