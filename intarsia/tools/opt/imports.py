"""`--from`: a program of another compiler in the place of a file of IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ...exchange.as_module import as_module
from ...exchange.from_stablehlo import from_stablehlo
from ...exchange.models.from_onnx import from_onnx
from ...ir.fx.importer import Imported
from .values import Inputs

SOURCES = ("stablehlo", "onnx")


def imported_model(path: str, sizes: Mapping[str, int]) -> Imported:
    """The module that a file of ONNX is, and its weights; `sizes` of its inputs that have names.

    Raises:
        ExchangeError: something in it is not taken; names the node.
    """
    return as_module(from_onnx(path, sizes))


def imported(text: str, name: str) -> Imported:
    """The module that a text in StableHLO is, and the tensors that it holds itself.

    Raises:
        ExchangeError: something in it is not taken; shows the line.
    """
    return as_module(from_stablehlo(text if "\n" in text else f"{text}\n", name))


def with_constants(inputs: Inputs, constants: Sequence[Tensor]) -> Inputs:
    """The last arguments are the program's own tensors."""
    return replace(inputs, args=(*inputs.args[: len(inputs.args) - len(constants)], *constants))
