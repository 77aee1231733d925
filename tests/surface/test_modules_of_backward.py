"""Steps of both halves of a training graph say which module they belong to."""

from __future__ import annotations

import re

import torch
from torch import fx, nn

import intarsia
from intarsia.partition.input_names import name_inputs


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x):
        return torch.softmax(self.q(self.norm(x)), -1) * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for layer in self.layer:
            x = layer(x)
        return x


def modules_of(half, info):
    (graph,) = info.graphs
    found = [*graph.kernels, *graph.library_calls]
    return {module for each in found if each.half == half for module in each.modules}


def test_steps_of_both_halves_name_their_modules():
    net, x = Net(), torch.randn(16, 32, requires_grad=True)
    compiled = intarsia.compile(net)
    intarsia.explain(compiled)(x).result.sum().backward()
    info = intarsia.explain(compiled)(x)
    wanted = {f"layer.{k}.{part}" for k in (0, 1) for part in ("q", "norm")}
    assert {"layer.0.q", "layer.1.q", "layer.0.norm"} <= modules_of("forward", info) <= wanted | {"layer.0", "layer.1"}
    backward = modules_of("backward", info)
    assert {"layer.0.q", "layer.1.q"} <= backward and any(m.startswith("layer.0") for m in backward)
    assert backward <= wanted | {"layer", "layer.0", "layer.1"}
    assert re.search(r"backward: .* of layer\.[01]", " ".join(str(info).split()))


def graph_of(names, given):
    forward, backward = fx.Graph(), fx.Graph()
    inputs = [forward.placeholder(f"primals_{k + 1}") for k in range(given)]
    made = forward.call_function(torch.add, (inputs[0], inputs[1]))
    forward.output((made, inputs[0]))
    saved = [backward.placeholder(n) for n in ("primals_1", made.name, "tangents_1")]
    backward.output(tuple(saved))
    name_inputs(names, forward, backward)
    return [n.meta.get("source_name") for n in (*inputs, *saved)]


def test_a_name_is_given_only_where_numbers_say_which_input_it_is():
    assert graph_of(["x", "self.a.w"], 2) == ["x", "self.a.w", "x", "self.a.add", None]
    assert graph_of(["x", ""], 2) == ["x", None, "x", None, None]
    assert graph_of(["x", "y", "self.a.w"], 2) == [None] * 5  # two inputs became one
