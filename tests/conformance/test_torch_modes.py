"""Grad modes, inference mode, autocast and other switches: as `with`, as decorators, as plain calls."""

import contextlib

import torch
from cases import case, scenario, t
from torch import nn


@case(lambda: (t(2),))
def test_no_grad_with(x):
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


@case(lambda: (t(2),))
def test_enable_grad_inside_no_grad(x):
    with torch.no_grad(), torch.enable_grad():
        inside = torch.is_grad_enabled()
    return x + 1, inside, torch.is_grad_enabled()


@torch.no_grad()
def _frozen(x):
    return x * 2, torch.is_grad_enabled()


@torch.enable_grad()
def _live(x):
    return x * 2, torch.is_grad_enabled()


@torch.inference_mode()
def _inferred(x):
    return x * 2


@case(lambda: (t(2),))
def test_decorators(x):
    return _frozen(x), _live(x), torch.is_grad_enabled()


@torch.no_grad()
def test_decorated_root():
    @case(lambda: (t(2),))
    @torch.no_grad()
    def run(x):
        return x * 2, torch.is_grad_enabled()

    run()


@case(lambda: (t(2),), expect="breaks")
def test_inference_mode_decorator(x):
    y = _inferred(x)
    return y, y.is_inference()


@case(lambda: (t(2),), expect="breaks")
def test_inference_mode_with(x):
    with torch.inference_mode():
        y = x * 2
        asked = torch.is_inference_mode_enabled()
    with torch.inference_mode(False):
        z = x * 3
    return y, asked, z, torch.is_inference_mode_enabled()


@case(lambda: (t(2), True), lambda: (t(2), False))
def test_set_grad_enabled_with(x, flag):
    with torch.set_grad_enabled(flag):
        y = x * 2, torch.is_grad_enabled()
    return y, torch.is_grad_enabled()


@case(lambda: (t(2),))
def test_set_grad_enabled_call(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    inside = torch.is_grad_enabled()
    torch.set_grad_enabled(before)
    return x * 2, inside, torch.is_grad_enabled()


@scenario
def test_set_grad_enabled_stays(compile):
    def switch(x, flag):
        torch.set_grad_enabled(flag)
        return x + 1

    before = torch.is_grad_enabled()
    fast = compile(switch)
    out = []
    try:
        for flag in (False, True, False):
            y = fast(t(2), flag)
            out.append((y, torch.is_grad_enabled()))
            torch.set_grad_enabled(False)
    finally:
        torch.set_grad_enabled(before)
    return out


@case(lambda: (t(2),))
def test_no_grad_as_an_object(x):
    guard = torch.no_grad()
    with guard:
        x = x + 1
    with guard:
        x = x * 2
    return x, torch.is_grad_enabled()


@case(lambda: (t(2),))
def test_no_grad_left_by_an_exception(x):
    try:
        with torch.enable_grad():
            raise KeyError("k")
    except KeyError:
        pass
    return x, torch.is_grad_enabled()


@case(lambda: (t(2),))
def test_no_grad_in_a_generator(x):
    def values():
        with torch.enable_grad():
            yield x + 1
            yield x + 2

    it = values()
    a = next(it)
    flag = torch.is_grad_enabled()
    it.close()
    return a, flag, torch.is_grad_enabled()


@case(lambda: (t(4, 4), t(4, 4)))
def test_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y
        inside = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            w = x @ y
    return z, w, inside, torch.is_autocast_enabled("cpu"), (x @ y).dtype


@torch.autocast("cpu", dtype=torch.bfloat16)
def _cast(x):
    return torch.mm(x, x)


@case(lambda: (t(4, 4),))
def test_autocast_decorator(x):
    return _cast(x), torch.mm(x, x).dtype


@scenario
def test_autocast_around_the_call(compile):
    fast = compile(lambda x: (torch.mm(x, x), torch.sin(x)))
    x = t(4, 4)
    out = [fast(x)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.append(fast(x))
    out.append(fast(x))
    return out


@scenario
def test_grad_mode_around_the_call(compile):
    fast = compile(lambda x: (x * 2, torch.is_grad_enabled()))
    out = []
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            y, flag = fast(t(2))
            out.append((y.clone(), flag, y.is_inference()))
    return out


@scenario
def test_default_dtype_around_the_call(compile):
    fast = compile(lambda: torch.zeros(2) + 1.5)
    out = [fast()]
    torch.set_default_dtype(torch.float64)
    try:
        out.append(fast())
    finally:
        torch.set_default_dtype(torch.float32)
    out.append(fast())
    return out


@scenario
def test_default_device_around_the_call(compile):
    fast = compile(lambda n: torch.ones(n) * 2)
    out = [fast(3)]
    with torch.device("meta"):
        out.append(fast(3).device)
    with torch.device("cpu"):
        out.append(fast(3))
    return [*out, fast(4)]


@case(lambda: (t(2),))
def test_contextlib_helpers(x):
    @contextlib.contextmanager
    def scaled(by):
        log.append("in")
        try:
            yield by * 2
        finally:
            log.append("out")

    log = []
    with scaled(2) as s, contextlib.suppress(KeyError), contextlib.nullcontext(3) as n:
        x = x * s + n
        raise KeyError("gone")
    with contextlib.ExitStack() as stack:
        stack.enter_context(scaled(1))
        stack.callback(log.append, "callback")
        x = x + 1
    return x, log


@case(lambda: (t(2),))
def test_profiler_and_sdpa_contexts(x):
    with torch.profiler.record_function("part"):
        y = x * 2
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = y + 1
    return y


@case(lambda: (t(2),))
def test_deterministic_and_threads_asked(x):
    return x + 1, torch.are_deterministic_algorithms_enabled(), torch.get_num_threads() > 0


@case(lambda: (t(2),), expect="breaks")
def test_deterministic_algorithms_set(x):
    torch.use_deterministic_algorithms(True)
    flag = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return x + 1, flag, torch.are_deterministic_algorithms_enabled()


@case(lambda: (nn.Linear(2, 2), t(3, 2)))
def test_parameters_in_no_grad(net, x):
    with torch.no_grad():
        net.weight.mul_(2)
        net.bias.zero_()
    return net(x).detach()


@case(lambda: (t(2),), expect="breaks")
def test_anomaly_and_saved_tensor_hooks(x):
    with torch.autograd.set_detect_anomaly(False):
        y = x + 1
    with torch.autograd.graph.save_on_cpu():
        y = y * 2
    return y


@case(lambda: (t(2),))
def test_compiler_questions(x):
    if torch.jit.is_scripting() or torch.jit.is_tracing():
        return x
    return (
        x + 1,
        torch.backends.mkldnn.is_available(),
        torch.cuda.is_available(),
        torch.overrides.has_torch_function((x,)),
    )
