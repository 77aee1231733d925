"""Guards that dicts of modules decide: every change of a module is noticed, whenever it comes, and nothing else is held alive."""

import sys
import threading
import types
from collections import OrderedDict

import pytest
import torch
from harness import compiled
from torch import nn

from intarsia.frontend.guards import watch as guards_watch
from intarsia.frontend.guards.watch import Watch, can_watch

X = torch.randn(2, 4)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale, self.name = nn.Linear(4, 4), 2.0, "one"
        self.register_buffer("shift", torch.ones(4))
        self.pair = (1, 2)

    def forward(self, x):
        y = self.linear(x) * self.scale + self.shift * self.pair[1]
        return y.relu() if self.name == "one" else y


class Stack(nn.Module):
    def __init__(self, layers=16):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.settings = {"depth": layers}

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.settings["depth"]


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


def watch_of(fast):
    return next(v for v in fast._runtime.entries[0].__globals__.values() if isinstance(v, Watch))


def watched(model, calls=40):
    """The compiled model, called so often that its dicts are watched."""
    fast, log = compiled(model, fullgraph=True)
    for _ in range(calls):
        fast(X)
    assert watch_of(fast).check()
    return fast, log


def test_dicts_can_be_watched_here():
    assert can_watch()


CHANGES = {
    "a number": lambda m: setattr(m.layers[3], "scale", 3.0),
    "a text": lambda m: setattr(m.layers[15], "name", "two"),
    "a tuple": lambda m: setattr(m.layers[2], "pair", (1, 5)),
    "through __dict__": lambda m: m.layers[3].__dict__.update(scale=3.0),
    "through vars": lambda m: vars(m.layers[0]).__setitem__("scale", 5.0),
    "a parameter": lambda m: setattr(m.layers[1].linear, "weight", nn.Parameter(torch.randn(4, 4))),
    "a parameter's dict": lambda m: m.layers[1].linear._parameters.update(bias=nn.Parameter(torch.randn(4))),
    "no parameter": lambda m: m.layers[1].linear.register_parameter("bias", None),
    "a buffer": lambda m: m.layers[7].register_buffer("shift", torch.zeros(4)),
    "a submodule": lambda m: setattr(m.layers[4], "linear", nn.Linear(4, 4)),
    "a layer": lambda m: m.layers.__setitem__(5, Layer()),
    "one layer more": lambda m: m.layers.append(Layer()),
    "one layer less": lambda m: m.layers.__delitem__(-1),
    "another order": lambda m: m.layers._modules.update({"0": m.layers[1], "1": m.layers[0]}),
    "forward": lambda m: setattr(m.layers[6], "forward", lambda x: x),
    "a hook": lambda m: m.layers[8].register_forward_hook(lambda module, args, out: out * 2),
    "a hook before": lambda m: m.layers[8].linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "another dict of modules": lambda m: m.layers.__dict__.update(_modules={"0": m.layers[0]}),
    "a deeper dict": lambda m: m.settings.update(depth=3),
    "another class": lambda m: setattr(m.layers[9], "__class__", type("Other", (Layer,), {"forward": lambda s, x: x})),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("calls", [1, 15, 16, 17, 40])
def test_every_change_is_noticed(change, calls):
    model = Stack()
    fast, _ = compiled(model)
    for _ in range(calls):
        fast(X)
    before = model(X)
    CHANGES[change](model)
    for _ in range(3):
        torch.testing.assert_close(fast(X), model(X))
    assert not torch.equal(before, model(X)) or change in ("a text", "another class")


def test_a_change_and_back_needs_no_capture_and_is_watched_again():
    model = Stack()
    fast, log = watched(model)
    watch = watch_of(fast)
    for _ in range(20):
        model.layers[0].scale = 3.0
        model.layers[0].scale = 2.0
        assert not watch.check()
        torch.testing.assert_close(fast(X), model(X))
    assert not log.recompiles
    for _ in range(100):
        fast(X)
    assert watch.check()


def test_what_a_forward_counts_on_a_module_costs_no_watch_in_each_call(monkeypatch):
    class Counting(Stack):
        def forward(self, x):
            self.calls = x.sum()
            return super().forward(x)

    made = []
    real = guards_watch.dict_watch
    monkeypatch.setattr(guards_watch, "dict_watch", lambda dicts: made.append(1) or real(dicts))
    model = Counting()
    fast, log = compiled(model, fullgraph=True)
    for _ in range(300):
        torch.testing.assert_close(fast(X), model(X))
    assert len(made) <= 6 and not log.recompiles


def test_a_program_that_calls_seldom_pays_nothing(monkeypatch):
    monkeypatch.setattr(guards_watch, "dict_watch", lambda dicts: pytest.fail("watched"))
    fast, _ = compiled(Stack(), fullgraph=True)
    for _ in range(10):
        fast(X)


def test_without_support_all_guards_run_in_each_call(monkeypatch):
    monkeypatch.setattr(guards_watch, "can_watch", lambda: False)
    model = Stack()
    fast, log = compiled(model, fullgraph=True)
    for _ in range(20):
        fast(X)
    assert not any(isinstance(v, Watch) for v in fast._runtime.entries[0].__globals__.values())
    model.layers[3].scale = 4.0
    torch.testing.assert_close(fast(X), model(X))
    assert len(log.recompiles) == 1


def test_what_can_change_without_its_dict_is_not_settled():
    class Settings:
        depth = 1

    class Odd(dict):
        pass

    class Model(Stack):
        def __init__(self):
            super().__init__()
            self.plain, self.odd, self.items = Settings(), Odd(depth=2), [1]

        def forward(self, x):
            return super().forward(x) * self.plain.depth * self.odd["depth"] * len(self.items)

    for change in (
        lambda m: setattr(m.plain, "depth", 5),
        lambda m: setattr(Settings, "depth", 7),
        lambda m: m.odd.update(depth=6),
        lambda m: m.items.append(2),
        lambda m: setattr(m.plain, "__class__", type("More", (), {"depth": 9})),
    ):
        model = Model()
        fast, _ = watched(model)
        change(model)
        torch.testing.assert_close(fast(X), model(X))
        Settings.depth = 1


def test_an_ordered_dict_in_another_order_is_another():
    class Model(Stack):
        def __init__(self):
            super().__init__()
            self.table = OrderedDict(a=2.0, b=3.0)

        def forward(self, x):
            x = super().forward(x)
            for value in self.table.values():
                x = x * value + value
            return x

    model = Model()
    fast, _ = watched(model)
    model.table.move_to_end("a")
    torch.testing.assert_close(fast(X), model(X))


def test_a_change_between_reading_and_watching_is_not_lost(monkeypatch):
    """Another thread replaces a dict while the watch is made."""
    model = Stack()
    fast, _ = compiled(model, fullgraph=True)
    fast(X)
    watch, real = watch_of(fast), guards_watch.dict_watch

    def interrupted(dicts):
        model.layers.__dict__["_modules"] = dict(model.layers._modules)
        return real(dicts)

    monkeypatch.setattr(guards_watch, "dict_watch", interrupted)
    watch.count = watch.due - 1
    assert watch.holds() and not watch.check()
    monkeypatch.undo()
    watch.count = watch.due - 1
    assert watch.holds() and watch.check()
    model.layers._modules["0"] = Layer()
    torch.testing.assert_close(fast(X), model(X))


def test_a_miss_names_the_class():
    model = Stack()
    fast, log = watched(model)
    CHANGES["another class"](model)
    fast(X)
    assert "type(self.layers.9): expected Layer, got Other" in log.recompiles[0]


def test_threads_see_every_change():
    model = Stack()
    fast, _ = watched(model)
    wrong, stop = [], threading.Event()

    def call():
        with torch.no_grad():
            while not stop.is_set():
                if not torch.isfinite(fast(X)).all():
                    wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    [t.start() for t in threads]
    for n in range(30):
        model.layers[0].scale = 1.5 if n % 2 else 2.0
        torch.testing.assert_close(fast(X), model(X))
    stop.set()
    [t.join() for t in threads]
    assert not wrong


PACKAGE = "\n".join(
    [
        "table = {'scale': 2.0}",
        *(f"def step{i}(x): return abs(x) * len(table) + factor{i}" for i in range(12)),
        *(f"factor{i} = {i}" for i in range(12)),
        f"def forward(x): return {' + '.join(f'step{i}(x)' for i in range(12))} * table['scale']",
    ]
)


def test_names_of_an_installed_package_are_watched(monkeypatch):
    package = types.ModuleType("watched_package")
    package.__file__ = "/usr/lib/site-packages/watched_package.py"
    monkeypatch.setitem(sys.modules, "watched_package", package)
    exec(PACKAGE, package.__dict__)

    class Model(nn.Module):
        def forward(self, x):
            return package.forward(x)

    fast, log = watched(Model())
    changes = [
        lambda: setattr(package, "factor3", 30),
        lambda: setattr(package, "step4", package.step5),
        lambda: setattr(package, "len", lambda _: 3),  # in front of the builtin
        lambda: package.table.update(scale=4.0),
        lambda: setattr(package, "table", {"scale": 4.0, "other": 1}),
        lambda: package.__dict__.pop("len"),
    ]
    for count, change in enumerate(changes, 1):
        change()
        for _ in range(40):
            torch.testing.assert_close(fast(X), package.forward(X))
        assert len(log.recompiles) == count
    del package.factor7
    with pytest.raises(NameError, match="factor7"):
        fast(X)
