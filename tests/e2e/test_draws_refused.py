"""Draws that eager refuses for what their parameters hold: a program may catch the error, and the generator is where eager leaves it."""

import pytest
import torch
import torch.nn.functional as F

import intarsia

GOOD, BAD, NANS = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.2, -1.5, 2.3]), torch.tensor([float("nan"), 0.5, 0.5])

DRAWS = {
    "multinomial": lambda p: torch.multinomial(p, 2),
    "bernoulli": torch.bernoulli,
    "bernoulli in place": lambda p: p.clone().bernoulli_(p),
    "normal": lambda p: torch.normal(p, p),
    "poisson": torch.poisson,
    "categorical": lambda p: torch.distributions.Categorical(p, validate_args=False).sample(),
    "an index behind a draw": lambda p: F.dropout(p)[(p * 10).long()],
}


def ended(f, *args):
    """The result or error, the generator's state, and what else was done."""
    torch.manual_seed(3)
    done = []
    try:
        result = f(*args, done)
    except (RuntimeError, IndexError, ValueError) as error:
        result = type(error), str(error).splitlines()[0]
    return str(result), done, torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("caught", [True, False])
def test_as_in_eager(name, caught):
    draw, kinds = DRAWS[name], (RuntimeError, IndexError, ValueError) if caught else (KeyError,)

    def f(p, done):
        before = torch.rand(2)
        done.append(1)
        try:
            made = draw(p)
        except kinds as error:
            return before, str(error).splitlines()[0], torch.rand(1)
        done.append(2)
        return before, made, torch.rand(1)

    fast = intarsia.compile(f, backend="eager")
    for p in (GOOD, BAD, NANS, GOOD, torch.zeros(3)):
        assert ended(fast, p) == ended(f, p), p


def test_what_was_written_before():
    def f(p, x):
        x.add_(1)
        try:
            return torch.multinomial(p, 1) * 0
        except RuntimeError:
            return x * 2

    fast = intarsia.compile(f)
    for p in (GOOD, BAD, GOOD):
        x, y = torch.ones(2), torch.ones(2)
        torch.manual_seed(0)
        wanted, state = f(p, x), torch.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(fast(p, y), wanted)
        assert torch.equal(x, y) and torch.equal(state, torch.get_rng_state())


def test_a_generator_of_the_callers():
    generator = torch.Generator()

    def f(p):
        try:
            return torch.bernoulli(GOOD, generator=generator), torch.multinomial(p, 1, generator=generator)
        except RuntimeError:
            return torch.rand(2, generator=generator)

    generator.manual_seed(2)
    wanted = f(GOOD)
    generator.manual_seed(2)
    assert torch.equal(intarsia.compile(f, backend="eager")(GOOD)[1], wanted[1])
