"""Random numbers: the same sequence as eager's, and the same state of every generator after the call."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from cases import case, scenario, t
from torch import nn


@case(lambda: (t(3),), lambda: (t(4),))
def test_creation_functions(x):
    n = x.shape[0]
    return (
        torch.rand(n),
        torch.randn(2, n),
        torch.randint(0, 10, (n,)),
        torch.randperm(n),
        torch.rand_like(x),
        torch.randn_like(x) + x,
        torch.normal(0.0, 1.0, (2,)),
        torch.randint_like(x, 5),
        torch.normal(x, 1.0),
    )


@case(lambda: (t(3),))
def test_in_place_functions(x):
    y = torch.empty(3)
    y.normal_(1, 2)
    x.uniform_(0, 1)
    z = torch.empty(3).bernoulli_(0.5)
    return (
        y,
        z,
        torch.empty(3).exponential_(),
        torch.empty(3).random_(0, 9),
        torch.bernoulli(x),
        torch.empty(2).cauchy_(),
        torch.empty(2).geometric_(0.5),
        torch.empty(2).log_normal_(),
        torch.poisson(x),
        torch.multinomial(x, 2),
    )


@case(lambda: (t(8, 8),), lambda: (t(4, 8),))
def test_dropout(x):
    return (
        F.dropout(x, 0.5),
        F.dropout(x, 0.5, training=False),
        F.dropout1d(x, 0.3),
        F.alpha_dropout(x, 0.2, training=True),
        F.feature_alpha_dropout(x, 0.2, training=True),
        F.dropout(x, 0.9, inplace=True),
    )


@case(lambda: (t(2, 4, 3, 3),))
def test_dropout2d_and_rrelu(x):
    return (
        F.dropout2d(x, 0.5),
        F.rrelu(x, training=True),
        F.gumbel_softmax(x, dim=1),
        F.dropout(x, 0.0),
        F.dropout(x, 1.0),
    )


@case(lambda: (t(4, 2, 8),))
def test_attention_dropout(x):
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@case(lambda: (t(3),))
def test_order_of_draws(x):
    a = torch.rand(3)
    b = x * a
    if b.dim() == 1:
        c = torch.randn(3)
    unused = torch.rand(7)  # the state moves all the same
    return a + c, torch.rand(2)


@case(lambda: (t(3),))
def test_unused_draw(x):
    torch.rand(5)
    return x + 1


@case(lambda: (t(3),), expect="breaks")
def test_seed_inside(x):
    torch.manual_seed(7)
    a = torch.rand(3)
    torch.manual_seed(7)
    return a + x, torch.rand(3) - a


@case(lambda: (t(3), 1), lambda: (t(3), 2), expect="breaks")
def test_seed_from_an_argument(x, seed):
    torch.manual_seed(seed)
    return x * torch.rand(3), torch.initial_seed()


@case(lambda: (t(3),), expect="breaks")
def test_seed_returned_generator(x):
    g = torch.manual_seed(3)
    return torch.rand(3, generator=g) + x


@case(lambda: (t(3), torch.Generator().manual_seed(5)), expect="breaks")
def test_generator_argument(x, g):
    return torch.rand(3, generator=g) + x, torch.randn(2, generator=g), torch.empty(2).normal_(generator=g)


@case(lambda: (t(3),), expect="breaks")
def test_generator_made_inside(x):
    g = torch.Generator()
    g.manual_seed(3)
    return torch.rand(3, generator=g) + x, torch.randperm(4, generator=g), g.initial_seed()


_generator = torch.Generator()


@scenario(expect="breaks")
def test_generator_of_a_global(compile):
    _generator.manual_seed(9)
    fast = compile(lambda x: torch.rand(2, generator=_generator) + x)
    return [fast(t(2)) for _ in range(3)], _generator.get_state()


@case(lambda: (t(3),), expect="breaks")
def test_state_saved_and_restored(x):
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return torch.rand(3) - a, x


@case(lambda: (t(3),), expect="breaks")
def test_fork_rng(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.rand(2)
    return a, torch.rand(2), x


@scenario
def test_seed_outside(compile):
    fast = compile(lambda x: F.dropout(x, 0.5) + torch.rand(4))
    out = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        out += [fast(torch.ones(4)), torch.rand(2), fast(torch.ones(4))]
    return out


@scenario
def test_first_call_and_recompile_draw_once(compile):
    fast = compile(lambda x: x + torch.rand(x.shape))
    torch.manual_seed(0)
    return [fast(torch.zeros(n)) for n in (2, 3, 4, 2)], torch.rand(1)


@scenario
def test_draws_before_an_exception(compile):
    def run(x, bad):
        y = x + torch.rand(3)
        if bad:
            raise ValueError(str(y.shape))
        return y

    fast = compile(run)
    out = []
    torch.manual_seed(0)
    for bad in (False, True, True, False):
        try:
            out.append(fast(t(3), bad))
        except ValueError as error:
            out.append(str(error))
        out.append(torch.rand(1))
    return out


@case(lambda: (t(3),), expect="breaks")
def test_three_generators(x):
    a = torch.rand(2)
    b = random.random()
    c = np.random.rand(2)
    return x * b, a, c, torch.rand(1), random.random()


@scenario
def test_modules_with_dropout(compile):
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2))
    fast = compile(net)
    out = []
    for mode in (True, False, True):
        net.train(mode)
        torch.manual_seed(3)
        out += [fast(t(2, 4)), torch.rand(1)]
    return out


@case(lambda: (torch.empty(4, 4),), expect="breaks")
def test_initialisers(w):
    nn.init.xavier_uniform_(w)
    a = w.clone()
    nn.init.kaiming_normal_(w)
    b = w.clone()
    nn.init.trunc_normal_(w, std=0.02)
    nn.init.orthogonal_(w)
    return (
        a,
        b,
        nn.init.constant_(torch.empty(2), 3.0),
        nn.init.normal_(torch.empty(2)),
        nn.init.eye_(torch.empty(2, 2)),
    )


@case(lambda: (t(3),), expect="breaks")
def test_distributions(x):
    normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    return normal.sample(), normal.log_prob(x), torch.distributions.Categorical(logits=x).sample()
