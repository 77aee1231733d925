"""The bound that `benchmarks/idea_bytes.py` compares fusion policies with is one: no policy moves fewer bytes."""

import pytest
import torch
from torch import nn

import intarsia
from benchmarks.idea_bytes import CountLeast, OneReduction
from benchmarks.ideas import GreedyByProducer


def gathers(x):
    rows = x[torch.arange(0, 8, 2)].softmax(-1)
    return rows, x.t()[1:3].exp() @ rows[:1].expand(8, 16)


@pytest.mark.parametrize("program", [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.SiLU()), gathers])
def test_no_policy_moves_fewer_bytes_than_the_least(program):
    x = torch.randn(8, 16)
    with torch.no_grad():
        default = intarsia.lower(program, x, passes=[CountLeast()]).counts
        others = [intarsia.lower(program, x, passes=[p]).counts["fuse"] for p in (OneReduction(), GreedyByProducer())]
    least = default["count-least"]["bytes"]
    assert 0 < least <= default["fuse"]["bytes"] <= others[0]["bytes"] and least <= others[1]["bytes"]
