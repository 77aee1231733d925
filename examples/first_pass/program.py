"""The pass in a program: what it computes with and without it, and where the report shows it."""

import tempfile
from pathlib import Path

import torch
from root_of_square import RootOfSquare

import intarsia


def length(x):
    return torch.sqrt(x * x) + 1


with torch.no_grad():
    x = torch.tensor([3.0, -4.0, 1e30])
    print("eager:        ", length(x).tolist())
    print("without pass: ", intarsia.compile(length)(x).tolist())
    print("with the pass:", intarsia.compile(length, passes=[RootOfSquare()])(x).tolist())
    page = intarsia.report(length, x, path=Path(tempfile.mkdtemp()) / "report.html", passes=[RootOfSquare()])
ran = page.facts["graphs"][0]["programs"][0]["passes"]
print("in the report:", [(one["name"], one["changed"]) for one in ran if one["name"] == "root-of-square"])
