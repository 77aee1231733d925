"""Hooks of modules: all kinds, their order, what they may change, global ones, removed between calls."""

import torch
from cases import scenario, t
from torch import nn
from torch.nn.modules import module as module_hooks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.second(torch.relu(self.first(x)) * scale)


def made():
    torch.manual_seed(0)
    return Net()


@scenario
def test_forward_hook_reads(compile):
    net, seen = made(), []
    net.first.register_forward_hook(lambda m, args, out: seen.append((type(m).__name__, len(args), out.shape)))
    fast = compile(net)
    return fast(t(2, 4)), fast(t(3, 4)), seen


@scenario
def test_forward_hook_keeps_activations(compile):
    net, kept = made(), {}

    def keep(name):
        def hook(module, args, output):
            kept[name] = output.detach()

        return hook

    for name, child in net.named_children():
        child.register_forward_hook(keep(name))
    fast = compile(net)
    return fast(t(2, 4)), dict(kept), fast(t(2, 4) + 1), kept


@scenario
def test_forward_hook_replaces_the_output(compile):
    net = made()
    net.first.register_forward_hook(lambda m, args, out: out * 2)
    net.register_forward_hook(lambda m, args, out: (out, args[0]))
    return compile(net)(t(2, 4))


@scenario
def test_pre_hook_replaces_the_arguments(compile):
    net = made()
    net.first.register_forward_pre_hook(lambda m, args: args[0] + 1)
    net.second.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    return compile(net)(t(2, 4))


@scenario
def test_hooks_with_kwargs(compile):
    net, seen = made(), []

    def before(module, args, kwargs):
        seen.append(sorted(kwargs))
        return args, {**kwargs, "scale": kwargs["scale"] * 3.0}

    def after(module, args, kwargs, output):
        seen.append(kwargs["scale"])
        return output + kwargs["scale"]

    net.register_forward_pre_hook(before, with_kwargs=True)
    net.register_forward_hook(after, with_kwargs=True)
    fast = compile(net)
    return fast(t(2, 4), scale=1.5), fast(t(2, 4), scale=2.0), seen


@scenario
def test_order_of_hooks(compile):
    net, seen = made(), []
    net.register_forward_hook(lambda *a: seen.append("after 1"))
    net.register_forward_hook(lambda *a: seen.append("after 2"), prepend=True)
    net.register_forward_pre_hook(lambda *a: seen.append("before 1"))
    net.register_forward_pre_hook(lambda *a: seen.append("before 2"), prepend=True)
    net.first.register_forward_hook(lambda *a: seen.append("first"))
    return compile(net)(t(2, 4)), seen


@scenario
def test_hook_removed_between_calls(compile):
    net = made()
    fast = compile(net)
    out = [fast(t(2, 4))]
    one = net.first.register_forward_hook(lambda m, a, o: o + 1)
    two = net.first.register_forward_hook(lambda m, a, o: o * 2)
    out.append(fast(t(2, 4)))
    one.remove()
    out.append(fast(t(2, 4)))
    two.remove()
    out.append(fast(t(2, 4)))
    return out


@scenario
def test_hook_replaced_between_calls(compile):
    net = made()
    fast = compile(net)
    out = []
    for k in (1, 2, 3):
        handle = net.second.register_forward_hook(lambda m, a, o, k=k: o * k)
        out.append(fast(t(2, 4)))
        handle.remove()
    return out


@scenario
def test_hook_that_removes_itself(compile):
    net, calls = made(), []

    def once(module, args, output):
        calls.append(1)
        handle.remove()
        return output * 10

    handle = net.first.register_forward_hook(once)
    fast = compile(net)
    return [fast(t(2, 4)) for _ in range(3)], calls


@scenario
def test_hook_counts_on_the_module(compile):
    net = made()
    net.calls = 0

    def count(module, args):
        module.calls += 1

    net.register_forward_pre_hook(count)
    fast = compile(net)
    out = [fast(t(2, 4)) for _ in range(3)]
    return out, net.calls


@scenario
def test_always_called_hook(compile):
    net, seen = made(), []

    class Failing(nn.Module):
        def forward(self, x):
            if x.shape[0] > 2:
                raise ValueError("too many")
            return x + 1

    net = Failing()
    net.register_forward_hook(lambda m, a, o: seen.append(o is None), always_call=True)
    fast = compile(net)
    out = [fast(t(2, 4))]
    for n in (3, 1):
        try:
            out.append(fast(t(n, 4)))
        except ValueError as error:
            out.append(str(error))
    return out, seen


@scenario
def test_hook_that_raises(compile):
    net = made()

    def refuse(module, args, output):
        raise RuntimeError(f"refused by {type(module).__name__}")

    handle = net.second.register_forward_hook(refuse)
    fast, out = compile(net), []
    for _ in range(2):
        try:
            out.append(fast(t(2, 4)))
        except RuntimeError as error:
            out.append(str(error))
        handle.remove()
    return out


@scenario
def test_global_forward_hooks(compile):
    net, seen = made(), []
    fast = compile(net)
    out = [fast(t(2, 4))]
    one = module_hooks.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__))
    two = module_hooks.register_module_forward_pre_hook(lambda m, a: seen.append("before"))
    try:
        out.append(fast(t(2, 4)))
        out.append(fast(t(2, 4)))
    finally:
        one.remove()
        two.remove()
    out.append(fast(t(2, 4)))
    return out, seen


@scenario
def test_global_hook_that_changes_the_output(compile):
    net = made()
    fast = compile(net)
    handle = module_hooks.register_module_forward_hook(lambda m, a, o: o * 2)
    try:
        out = [fast(t(2, 4))]
    finally:
        handle.remove()
    return [*out, fast(t(2, 4))]


@scenario
def test_backward_hooks_in_inference(compile):
    net, seen = made(), []
    net.first.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    net.first.register_full_backward_pre_hook(lambda m, go: seen.append("pre"))
    return compile(net)(t(2, 4)), seen


@scenario(expect="breaks")
def test_backward_hooks_in_training(compile):
    net, seen = made(), []
    net.first.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    fast = compile(net)
    with torch.enable_grad():
        fast(t(2, 4)).sum().backward()
    return net.first.weight.grad, seen


@scenario
def test_hook_on_the_wrapper(compile):
    net = made()
    fast = compile(net)
    out = [fast(t(2, 4))]
    handle = fast.register_forward_hook(lambda m, a, o: o + 5)
    out.append(fast(t(2, 4)))
    handle.remove()
    return [*out, fast(t(2, 4))]


@scenario(expect="breaks")
def test_hook_that_prints(compile):
    net, seen = made(), []

    def show(module, args, output):
        seen.append(f"{output.mean().item():.4f}")

    net.first.register_forward_hook(show)
    fast = compile(net)
    return fast(t(2, 4)), fast(t(2, 4) * 2), seen


@scenario
def test_hook_object_with_state(compile):
    class Recorder:
        def __init__(self):
            self.total, self.n = torch.zeros(4), 0

        def __call__(self, module, args, output):
            self.total = self.total + output.sum(0)
            self.n += 1

    net, recorder = made(), Recorder()
    net.first.register_forward_hook(recorder)
    fast = compile(net)
    return [fast(t(2, 4)) for _ in range(3)], recorder.total, recorder.n


@scenario
def test_state_dict_hooks(compile):
    net, seen = made(), []
    net.register_state_dict_post_hook(lambda m, state, prefix, meta: seen.append(len(state)))
    net.register_load_state_dict_post_hook(lambda m, keys: seen.append("loaded"))
    fast = compile(net)
    out = [fast(t(2, 4))]
    state = {k: v * 2 for k, v in fast.state_dict().items()}
    net.load_state_dict(state)
    return [*out, fast(t(2, 4))], seen
