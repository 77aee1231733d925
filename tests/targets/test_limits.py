"""The machine's limits are measured once, and kept."""

import json

import torch

from intarsia.targets.measure import limits
from intarsia.targets.measure.limits import Limits


def test_they_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    found = Limits("cpu", tmp_path)
    copies, products = found.copies(), found.products(torch.float32)
    assert copies > 1e8 and products > 1e8 and "thread" in found.name
    (path,) = tmp_path.iterdir()
    table = json.loads(path.read_text())
    assert sorted(table.values()) == sorted([copies, products])
    path.write_text(json.dumps(dict.fromkeys(table, 7.0)))
    assert Limits("cpu", tmp_path).copies() == 7.0
    path.write_text("damaged")
    assert Limits("cpu", tmp_path).copies() > 1e8


def test_what_does_not_exist_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    assert Limits("cpu", None).products(torch.bool) == 0.0
