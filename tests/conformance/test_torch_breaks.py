"""Graph breaks, sizes that change, writes through views: effects happen once, in order, and results are eager's."""

import contextlib
import io
import logging
import math
import warnings

import torch
import torch.nn.functional as F
from cases import scenario, t
from torch import nn


@scenario(expect="breaks")
def test_prints_between_graphs(compile):
    log = []

    def run(x):
        log.append("a")
        y = x + 1
        log.append(y)
        print("p", len(log))
        log.append("b")
        y.add_(1)
        z = y.sum().item()
        log.append(z)
        return y

    s = io.StringIO()
    fast = compile(run)
    with contextlib.redirect_stdout(s):
        o = [fast(t(2)), fast(t(2))]
    return o, log, s.getvalue()


@scenario(expect="breaks")
def test_attributes_changed_around_a_break(compile):
    class S:
        pass

    s = S()
    s.v = 0
    s.hist = []

    def run(x):
        s.v += 1
        s.hist.append(x * s.v)
        if x.sum() > 0:
            s.v += 10
            s.hist[-1].mul_(2)
        else:
            s.hist.append(None)
        return x + s.v

    fast = compile(run)
    return [fast(t(2)) for _ in range(4)], s.v, s.hist


@scenario(expect="eager")
def test_views_written_after_a_break(compile):
    def run(x):
        y = x.view(-1)
        y.add_(1)
        if y.sum() > 0:
            x.mul_(2)
        z = y[1:]
        z.zero_()
        return y, x, z

    fast = compile(run)
    a = t(2, 2)
    b = -t(2, 2).abs()
    return fast(a), a, fast(b), b


@scenario(expect="breaks")
def test_break_in_a_loop(compile):
    def run(x, n):
        out = []
        for i in range(n):
            x = x * 1.5
            if x.sum() > 3:
                out.append(i)
                x = x - 1
            elif i % 2:
                continue
            else:
                x = x + 0.1
        else:
            out.append("end")
        return x, out

    fast = compile(run)
    return fast(t(3).abs(), 5), fast(t(3), 5), fast(t(3), 2)


@scenario(expect="breaks")
def test_break_in_try(compile):
    def run(x):
        try:
            y = x + 1
            n = y.sum().item()
            if n > 1e9:
                raise ValueError
            z = 1 / 0
        except ZeroDivisionError as e:
            y = y * 2
        finally:
            y = y + 1
        return y

    fast = compile(run)
    return fast(t(2)), fast(t(2))


@scenario(expect="breaks")
def test_break_inside_autocast(compile):
    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
            n = a.sum().item()
            b = x @ x
        return a, b, (x @ x).dtype, n

    fast = compile(run)
    return fast(t(2, 2)), fast(t(2, 2))


@scenario(expect="breaks")
def test_break_in_a_callee_called_twice(compile):
    def h(x, k):
        y = x * k
        n = int(y.sum().item())
        return y + n

    def run(x):
        return h(x, 1) + h(x, 2) * 3

    fast = compile(run)
    return fast(t(2)), fast(t(3))


@scenario(expect="breaks")
def test_break_in_a_comprehension(compile):
    fast = compile(lambda xs: [x * x.sum().item() for x in xs if x.sum() > -5])
    return fast([t(2), t(2)]), fast([t(2), t(2), t(2)])


@scenario(expect="breaks")
def test_break_in_a_sort_key(compile):
    fast = compile(lambda xs: sorted(xs, key=lambda v: v.sum().item()))
    return fast([t(2), t(2), t(2)]), fast([t(2), t(2)])


@scenario(expect="breaks")
def test_break_in_a_generator(compile):
    def gen(x):
        for i in range(3):
            yield x.sum().item() + i

    def run(x):
        return x * sum(gen(x))

    fast = compile(run)
    return fast(t(2)), fast(t(3))


@scenario(expect="breaks")
def test_nonlocal_around_a_break(compile):
    n = 0

    def run(x):
        nonlocal n
        n += 1
        y = x * n
        if y.sum() > 0:
            n += 1
        return y + n

    fast = compile(run)
    return [fast(t(2)) for _ in range(3)], n


@scenario(expect="breaks")
def test_break_in_a_hook(compile):
    net = nn.Linear(2, 2)
    seen = []
    net.register_forward_hook(lambda m, a, o: seen.append(o.sum().item()))
    fast = compile(lambda x: net(x) + 1)
    return fast(t(2, 2)).detach(), fast(t(2, 2)).detach(), seen


@scenario(expect="breaks")
def test_random_numbers_around_a_break(compile):
    def run(x):
        a = torch.rand(2)
        if a.sum() > 0.5:
            b = torch.rand(2)
        else:
            b = torch.randn(2)
        return a, b, F.dropout(x, 0.5)

    fast = compile(run)
    return [fast(t(4)) for _ in range(4)], torch.rand(1)


@scenario(expect="breaks")
def test_array_sharing_memory_with_an_argument(compile):
    def run(x):
        a = x.numpy()
        a += 1
        y = x * 2
        a *= 2
        return y, x, float(a.sum()), torch.from_numpy(a) + y

    fast = compile(run)
    a = t(3)
    return fast(a), a, fast(t(3))


@scenario(expect="breaks")
def test_dict_filled_around_a_break(compile):
    def run(d):
        d["y"] = d["x"] + 1
        n = d["y"].sum().item()
        d["n"] = n
        d["y"].mul_(2)
        return d

    fast = compile(run)
    a = {"x": t(2)}
    r = fast(a)
    return r is a, a, fast({"x": t(2)})


@scenario(expect="breaks")
def test_buffers_around_a_break(compile):
    class N(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("b", torch.zeros(2))
            s.k = 0

        def forward(s, x):
            s.b.add_(x.sum(0))
            s.k += 1
            if s.b.sum() > 0:
                s.k += 1
                s.b.mul_(0.5)
            s.last = x * s.k
            return s.last + s.b

    n = N()
    fast = compile(n)
    return [fast(t(3, 2)) for _ in range(3)], n.b, n.k, n.last


@scenario
def test_mutable_default(compile):
    def run(x, acc=[]):
        acc.append(x)
        return sum(acc)

    fast = compile(run)
    return [fast(t(2)) for _ in range(3)], run.__defaults__


@scenario
def test_global_counter(compile):
    space = {}
    exec("n=0\ndef run(x):\n    global n\n    n+=1\n    return x*n\n", space)
    fast = compile(space["run"])
    return [fast(t(2)) for _ in range(4)], space["n"]


@scenario(expect="breaks")
def test_break_in_a_variadic_callee(compile):
    def h(*a, **k):
        return sum(a) * k.get("s", 1) + a[0].sum().item()

    fast = compile(lambda x: h(x, x, s=2))
    return fast(t(2)), fast(t(2))


@scenario(expect="breaks")
def test_exception_after_a_break(compile):
    log = []

    def run(x):
        log.append(1)
        y = x + 1
        if y.sum() > -100:
            log.append(2)
        raise KeyError("z")

    fast = compile(run)
    o = []
    for _ in range(3):
        try:
            fast(t(2))
        except KeyError as e:
            o.append(str(e))
    return o, log


@scenario(expect="breaks")
def test_sizes_from_items(compile):
    fast = compile(lambda x, n: x[: n.item()].sum() + torch.zeros(n.item()).shape[0])
    return [fast(t(5), torch.tensor(k)) for k in (2, 3, 0, 1, 5)]


@scenario(expect="breaks")
def test_rows_picked_by_nonzero(compile):
    def run(x):
        i = x.nonzero().squeeze(-1)
        y = x[i]
        return y * 2, i.shape[0], y.numel() > 1

    fast = compile(run)
    return [fast(torch.tensor(v)) for v in ([1.0, 0, 2], [0.0, 0, 0], [1.0, 2, 3], [0.0, 0, 5])]


@scenario(expect="eager")
def test_elements_picked_by_a_mask(compile):
    fast = compile(lambda x: (x[x > 0] * 2).sum() + x[x > 0].shape[0])
    return [fast(t(5)) for _ in range(3)], fast(-t(3).abs())


@scenario
def test_iteration_over_other_lengths(compile):
    fast = compile(lambda x: [r + i for i, r in enumerate(x)])
    return fast(t(3, 2)), fast(t(1, 2)), fast(t(0, 2)), fast(t(4, 2))


@scenario
def test_cache_that_grows(compile):
    def run(cache, x):
        cache = torch.cat([cache, x], 0)
        return cache, cache.mean(0), cache.shape[0]

    fast = compile(run)
    c = torch.zeros(0, 2)
    o = []
    for _ in range(5):
        c, m, n = fast(c, t(1, 2))
        o.append((m, n))
    return o, c


@scenario
def test_sizes_zero_and_one(compile):
    fast = compile(lambda x: x.sum(0) / x.shape[0] if x.shape[0] > 1 else x * 2)
    return [fast(t(n, 2)) for n in (3, 4, 1, 0, 5, 2)]


@scenario
def test_other_floats(compile):
    fast = compile(lambda x, s: x * s + math.sqrt(abs(s)) if s > 0 else x - s)
    return [fast(t(2), s) for s in (0.5, 1.5, -2.0, 0.0, 3.0, float("inf"))]


@scenario
def test_sizes_as_text_and_keys(compile):
    fast = compile(
        lambda x: (
            f"{x.shape} {x.shape[0]}",
            str(x.shape[0]),
            x.shape[0] * "a",
            {x.shape[0]: 1},
            [0] * x.shape[0],
            range(x.shape[0]),
            x + 1,
        )
    )
    return [fast(t(n)) for n in (2, 3, 4)]


@scenario
def test_arithmetic_of_sizes(compile):
    fast = compile(lambda x: x.view(x.shape[0] // 2, 2).sum(1) if x.shape[0] % 2 == 0 else x[:-1].view(-1, 2))
    return [fast(t(n)) for n in (4, 6, 5, 8, 7)]


@scenario
def test_expanded_argument_written(compile):
    def run(x):
        y = x.expand(3, 2)
        z = y.clone()
        z[0] = 5
        x.add_(1)
        return y, z

    fast = compile(run)
    a = t(2)
    return fast(a), a


@scenario
def test_chunks_written(compile):
    def run(x):
        a, b = x.chunk(2)
        a.mul_(2)
        b.copy_(a)
        return a, b

    fast = compile(run)
    a = t(4)
    return fast(a), a


@scenario
def test_rows_written_in_a_loop(compile):
    def run(x):
        for i, r in enumerate(x):
            r.add_(i)
        return x.sum()

    fast = compile(run)
    a = t(3, 2)
    return fast(a), a


@scenario
def test_masked_writes(compile):
    def run(x, m):
        x[m] = 0
        x[:, 0] = 1
        x.masked_fill_(m, 2)
        return x.t()

    fast = compile(run)
    a = t(2, 2)
    return fast(a, a > 0), a, fast(t(2, 2), t(2, 2) > 0)


@scenario
def test_views_of_parameters_written(compile):
    net = nn.Linear(2, 2)

    def run(x):
        net.weight.data[0].zero_()
        net.weight.data.view(-1)[3] = 1
        return net(x)

    fast = compile(run)
    return fast(t(2, 2)).detach(), net.weight.detach()


@scenario
def test_detached_argument_written(compile):
    def run(x):
        d = x.detach()
        d.add_(1)
        return d is x, x, d

    fast = compile(run)
    a = t(2)
    return fast(a), a


@scenario
def test_tensor_replaced_in_a_list(compile):
    def run(xs):
        xs[0] = xs[0] + 1
        xs.append(xs[0])
        xs[0].mul_(2)
        return xs[-1]

    fast = compile(run)
    a = [t(2)]
    r = fast(a)
    return r is a[0], a, fast([t(2)])


@scenario
def test_inference_mode_around_the_call(compile):
    fast = compile(lambda x: (x * 2, x.view(-1)))
    with torch.inference_mode():
        a = fast(t(2, 2))
        b = fast(t(2, 2))
        r = (a[0].is_inference(), b[1].is_inference())
    return r, fast(t(2, 2))


@scenario(expect="breaks")
def test_warnings_of_every_call(compile):
    fast = compile(lambda x: (warnings.warn("w"), x + 1)[1])
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        o = [fast(t(2)), fast(t(2))]
    return o, [str(v.message) for v in w if "intarsia" not in str(v.message)]


@scenario(expect="breaks")
def test_log_records(compile):
    recs = []

    class H(logging.Handler):
        def emit(s, r):
            recs.append(r.getMessage())

    logger = logging.getLogger("zz.conf")
    logger.setLevel(10)
    h = H()
    logger.addHandler(h)

    def run(x):
        logger.info("shape %s", tuple(x.shape))
        y = x + 1
        logger.debug("d")
        return y

    fast = compile(run)
    o = [fast(t(2)), fast(t(2))]
    logger.removeHandler(h)
    return o, recs
