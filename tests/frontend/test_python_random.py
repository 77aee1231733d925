"""Python's random numbers in captured code: those of eager, in its order, fresh in each call, and the generators' states behind it."""

import copy
import random
import threading

import pytest
import torch
from harness import compiled, number_backend
from torch import nn

OWN = random.Random(7)


class Counted(random.Random):
    """Numbers of its own."""

    calls = 0

    def random(self):
        self.calls += 1
        return super().random() / 2


class Named(random.Random):
    """Python's numbers under another name."""

    name = "a generator"


COUNTED, NAMED = Counted(3), Named(4)
GENERATORS = (random._inst, OWN, COUNTED, NAMED)


def states():
    return [(g.getstate(), {k: v for k, v in vars(g).items() if k != "gauss_next"}) for g in GENERATORS]


def shown(value):
    if isinstance(value, random.Random):
        return type(value), value.getstate()
    if isinstance(value, list | tuple):
        return type(value), [*map(shown, value)]
    return (type(value), repr(value))


def check(function, x=None, calls=6, graphs=None, breaks=0, backend=number_backend):
    """Calls of a function, each from the state of the one before, as in eager."""
    x = torch.arange(8.0) if x is None else x
    fast, log = compiled(function, backend)
    for seed in range(calls):
        for number, generator in enumerate(GENERATORS):
            generator.seed(100 * seed + number)
        kept = [(copy.copy(vars(g)), g.getstate()) for g in GENERATORS]
        expected, behind = shown(function(x)), states()
        for generator, (namespace, state) in zip(GENERATORS, kept, strict=True):
            vars(generator).clear()
            vars(generator).update(namespace)
            generator.setstate(state)
        assert shown(fast(x)) == expected
        assert states() == behind
    assert not log.fallbacks, log.fallbacks
    assert (len(log.breaks) > 0) == (breaks > 0), [b.reason for b in log.breaks]
    if graphs is not None:
        assert len(log.captures) == graphs
    return log


def scaled(x):
    return x * random.random() + random.uniform(2, 3), random.gauss(0, 1)


def every_float(x):
    return x, [
        *(random.triangular(0, 2, 1), random.normalvariate(0, 2), random.lognormvariate(0, 1), random.expovariate(2.0)),
        *(random.vonmisesvariate(1, 2), random.gammavariate(1, 2), random.betavariate(1, 2), random.paretovariate(2)),
        *(random.weibullvariate(1, 2), random.gauss(1, 2), random.gauss(1, 2), random.gauss(1, 2)),
    ]


def sizes(x):
    width, shift = random.randint(1, 4), random.randrange(-3, 4)
    return x.narrow(0, 0, width), x.roll(shift), shift, torch.zeros(width), random.getrandbits(9)


def cropped(x):
    start = random.randint(0, x.shape[0] - 4)
    return x[start : start + 4] * 2


def places(x):
    return x[random.randrange(8)], x[int(random.random() * 8)], x[-random.randint(1, 3)]


def lists(x):
    order = [3, 1, 2]
    random.shuffle(order)
    return x[:3] * order[0], order, random.sample(range(50), 3), random.choices([0.5, 1.5], k=2), random.choice((1, 5))


def arithmetic(x):
    a = random.random()
    return x * (1 - a) / (a + 2) ** 2, a * 3 - 1, -a, round(a * 100), max(a, 0.0)


def own(x):
    return x * OWN.random() + random.random(), OWN.randint(1, 6), NAMED.uniform(0, 1)


def states_set(x):
    before = random.getstate()
    a = random.random()
    random.setstate(before)
    return x * a, random.random(), before


def seeded(x):
    random.seed(5)
    data = [random.randrange(10) for _ in range(5)]
    random.shuffle(data)
    return x * random.random(), sorted(data), random.choice(["a", "b"]), random.gauss(0, 1)


def made(x):
    rng = random.Random("word")
    flips = [rng.random() < 0.5 for _ in range(20)]
    other = Counted(3)
    return x * sum(flips), rng.sample(range(9), 4), rng, other.random(), other.uniform(1, 2)


def drawn_then_seeded(x):
    a = random.random()
    random.seed(1)
    b = random.random()
    state = random.getstate()
    return x * a * b, state


def asked(x):
    return x * random.choice([True, False]), isinstance(random.random(), float), type(random.getrandbits(3))


@pytest.mark.parametrize(
    "function",
    [
        *(scaled, every_float, sizes, cropped, places, lists, arithmetic, own, states_set, seeded, made),
        drawn_then_seeded,
    ],
)
def test_one_graph(function):
    check(function, graphs=1)


def test_numbers_differ_from_call_to_call():
    fast, log = compiled(scaled, number_backend)
    found = {float(fast(torch.ones(1))[1]) for _ in range(20)}
    assert len(found) == 20
    assert len(log.captures) == 1


# ---- what numbers decide ----


def one_coin(x):
    y = x + 1
    if random.random() < 0.5:
        y = y.flip(0)
    return y * random.random()


def two_coins(x):
    for _ in range(2):
        x = x * 2 if random.random() < 0.5 else x - random.random()
    return x, random.random()


def one_of_three(x):
    return random.choice([torch.sin, torch.cos, torch.exp])(x) * random.random()


@pytest.mark.parametrize(("function", "graphs"), [(one_coin, 2), (two_coins, 4), (one_of_three, 3), (asked, 2)])
def test_few_ways_are_one_graph_each(function, graphs):
    check(function, calls=30, graphs=graphs)


class Dropped(nn.Module):
    """Layers of which each call leaves some out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.5:
                continue
            x = layer(x) + random.random()
        return x, random.random()


def many_coins(x):
    return [x + k for k in range(8) if random.random() < 0.5], random.random()


def ordered(x):
    data = [random.random() for _ in range(6)]
    return x * sorted(data)[0], data.index(min(data)), f"{random.random():.2f}"


def shuffled_objects(x):
    steps = [torch.sin, torch.cos, torch.exp]
    random.shuffle(steps)
    for step in steps:
        x = step(x)
    return x


def state_looked_at(x):
    return x * random.random(), random.getstate()[0], random.random()


def next_gauss(x):
    random.gauss(0, 1)
    return x, random._inst.gauss_next is None, random.gauss(0, 1)


def counted(x):
    return x * COUNTED.random(), COUNTED.uniform(0, 2), COUNTED.calls


@pytest.mark.parametrize("function", [many_coins, ordered, shuffled_objects, state_looked_at, next_gauss])
def test_other_numbers_break(function):
    check(function, breaks=1, calls=8)


def test_layers_that_are_left_out():
    check(Dropped(), x=torch.randn(2, 4), breaks=1, calls=8)


def test_methods_of_a_class_of_the_programs():
    check(counted)


def test_a_generator_of_the_system_is_not_known():
    def unseeded(x):
        rng = random.Random()
        return x * 0 + 1, rng.random(), random.random()

    fast, log = compiled(unseeded, number_backend)
    assert len({fast(torch.ones(1))[1] for _ in range(9)}) == 9
    assert len(log.captures) == 1

    def decided(x):
        rng = random.Random()
        return x + 1 if rng.random() < 0.5 else x

    fast, log = compiled(decided, number_backend)
    assert {float(fast(torch.zeros(()))) for _ in range(30)} == {0.0, 1.0}
    assert log.breaks and not log.fallbacks

    def system(x):
        random.seed()
        return x * random.random()

    fast, _ = compiled(system, number_backend)
    assert len({float(fast(torch.ones(()))) for _ in range(9)}) == 9


# ---- draws happen once, whatever way a call goes ----


def test_a_check_that_fails():
    def checked(x):
        a = random.random()
        if x.sum() > 100:
            raise ValueError(f"{a}")
        return x * a

    fast, _ = compiled(checked, number_backend)
    for x in (torch.ones(2), torch.full((2,), 99.0), torch.ones(2)):
        random.seed(3)
        try:
            expected = checked(x)
        except ValueError as error:
            expected = str(error)
        behind = random.getstate()
        random.seed(3)
        try:
            found = fast(x)
        except ValueError as error:
            found = str(error)
        assert str(found) == str(expected)
        assert random.getstate() == behind


def test_a_graph_that_raises():
    def failing(module, inputs):
        def run(*args):
            raise RuntimeError("no memory")

        return run

    failing.takes_floats = True
    fast, _ = compiled(lambda x: (x * random.random(), random.random()), failing)
    random.seed(9)
    found = fast(torch.ones(()))
    random.seed(9)
    assert (found[0].item(), found[1]) == (torch.tensor(random.random()).item(), random.random())


def test_errors_that_the_program_catches():
    def caught(x):
        a = random.random()
        try:
            random.choice([])
        except IndexError:
            a += 1
        try:
            random.randrange(0)
        except ValueError:
            a += random.random()
        return x * a, random.random()

    check(caught, graphs=1)


def test_errors_that_depend_on_numbers():
    def divided(x):
        n = random.randint(0, 1)
        a = random.random()
        return x / n if n else x * a, 1 / (n + 1)

    check(divided, calls=12)

    def raises(x):
        return x * (1 / random.randint(0, 1)), random.random()

    fast, _ = compiled(raises, number_backend)
    for seed in range(8):
        outcomes = []
        for function in (raises, fast):
            random.seed(seed)
            try:
                outcomes.append((repr(function(torch.ones(1))), random.getstate()))
            except ZeroDivisionError as error:
                outcomes.append((str(error), random.getstate()))
        assert outcomes[0] == outcomes[1]


def test_a_break_between_draws():
    def broken(x):
        a = random.random()
        torch._dynamo.graph_break()
        b = random.random()
        print(end="")
        return x * a - b, random.randint(0, 9), random.getstate()

    check(broken, breaks=1)


def test_another_entry_draws_the_same():
    """Sizes that no entry fits, in calls whose decisions miss the first ones."""
    fast, log = compiled(one_coin, number_backend)
    for seed in range(20):
        x = torch.arange(float(3 + seed % 3))
        random.seed(seed)
        expected, behind = one_coin(x), random.getstate()
        random.seed(seed)
        assert torch.equal(fast(x), expected)
        assert random.getstate() == behind


def test_generators_that_are_one():
    def both(x, a, b):
        first = a.random()
        state = b.getstate()
        return x * first, b.random(), state, a.random()

    fast, _ = compiled(both, number_backend)
    for kind in (0, 1, 0, 1):
        found = []
        for function in (both, fast):
            one = random.Random(3)
            other = one if kind else random.Random(4)
            found.append((shown(function(torch.ones(2), one, other)), one.getstate(), other.getstate()))
        assert found[0] == found[1]


def test_attributes_and_patches(monkeypatch):
    fast, _ = compiled(scaled, number_backend)
    check(scaled)
    fast(torch.ones(1))
    monkeypatch.setattr(random, "random", lambda: 0.25)
    random.seed(2)
    expected = scaled(torch.ones(1))
    random.seed(2)
    assert shown(fast(torch.ones(1))) == shown(expected)
    monkeypatch.undo()

    def uses(x, rng):
        return x * rng.uniform(0, 1)

    fast, _ = compiled(uses, number_backend)
    rng = random.Random(1)
    fast(torch.ones(1), rng)
    rng.random = lambda: 0.5
    assert fast(torch.ones(1), rng).item() == 0.5


def test_threads_get_different_numbers():
    fast, _ = compiled(lambda x: (x * 1, random.random()), number_backend)
    fast(torch.ones(1))
    found = []

    def run():
        found.extend(fast(torch.ones(1))[1] for _ in range(200))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 800


def test_parts_of_the_graph_do_not_draw():
    def branch(x):
        if x.sum() > 0:
            x = x * random.random()
        else:
            x = x - random.random()
        return x * 2

    def looped(x):
        while x.sum() < 50:
            x = x + random.randint(1, 2)
        return x

    def repeated(x):
        w = x.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(lambda t: t.sin() * random.random(), w, use_reentrant=False)
        y.sum().backward()
        return w.grad, random.random()

    for function in (branch, looped, repeated):
        fast, _ = compiled(function, number_backend)
        for seed in range(3):
            random.seed(seed)
            expected, behind = shown(function(torch.arange(4.0))), random.getstate()
            random.seed(seed)
            assert shown(fast(torch.arange(4.0))) == expected
            assert random.getstate() == behind


def test_with_gradients():
    def loss(x):
        w = x.clone().requires_grad_()
        y = (w * random.random()).sum() * random.uniform(1, 2)
        return torch.autograd.grad(y, w)[0], y.detach()

    check(loss)
    layer = nn.Linear(4, 4)
    fast, _ = compiled(lambda x: layer(x) * random.random(), number_backend)
    for seed in range(3):
        grads = []
        for function in (lambda x: layer(x) * random.random(), fast):
            layer.zero_grad()
            random.seed(seed)
            function(torch.ones(2, 4)).sum().backward()
            grads.append(layer.weight.grad.clone())
        assert torch.equal(*grads)


def test_a_backend_that_takes_no_numbers():
    from harness import graph_backend

    check(scaled, breaks=1, backend=graph_backend)


# ---- a graph for one state ----


def test_a_program_that_seeds_before_each_call():
    fast, log = compiled(shuffled_objects, number_backend)
    for seed in (3, 3, 3):
        random.seed(seed)
        expected, behind = shuffled_objects(torch.ones(3)), random.getstate()
        random.seed(seed)
        assert torch.equal(fast(torch.ones(3)), expected)
        assert random.getstate() == behind
    assert (len(log.captures), log.breaks) == (1, [])


@pytest.mark.parametrize("function", [shuffled_objects, ordered])
def test_other_states_are_captured_once_more(function):
    fast, log = compiled(function, number_backend)
    captures = []
    for seed in (3, *range(12), *range(4)):
        random.seed(seed)
        expected, behind = shown(function(torch.ones(3))), random.getstate()
        random.seed(seed)
        assert shown(fast(torch.ones(3))) == expected
        assert random.getstate() == behind
        captures.append(len(log.captures))
    assert captures[0] == 1 and log.breaks
    assert captures[-1] == captures[-4]  # entries for one state are gone, and no others are made


def test_a_known_generator_in_a_loop_that_values_end():
    def run(x):
        rng = random.Random(5)
        while x.sum() < 10:
            x = x + 2 + rng.random()
        return x + rng.random()

    fast, _ = compiled(run, number_backend)
    for x in (torch.ones(2), torch.full((2,), 4.0), torch.full((2,), 9.0), -torch.ones(2)):
        assert torch.equal(fast(x), run(x))
