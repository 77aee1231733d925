"""A file for a report of an error inside capture: a program that shows it again, as far as that can be written down."""

from __future__ import annotations

import inspect
import platform
import tempfile
import textwrap
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..breaks.pieces import Piece
from ..errors import CaptureError
from ..torch_private.fake import is_leaf
from ..values.kinds import isinstance

__all__ = ["write_reproducer"]


def write_reproducer(error: CaptureError, target: Any, values: Mapping[str, Any]) -> Path | None:
    """Write `reproducer.py` into a new folder: the function's source, a call with arguments like the present ones, the
    traceback. None when the disk does not take it."""
    lines = [
        f'"""An error inside intarsia: {type(error).__name__}.',
        "",
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}",
        "",
        *"".join(traceback.format_exception(error)).replace("\\", "\\\\").replace('"""', "'''").splitlines(),
        '"""',
        "",
        "import torch",
        "",
        "import intarsia",
        "",
        *_source(target),
        "",
        *(f"{name} = {_argument(value)}" for name, value in values.items()),
        f"compiled = intarsia.compile({_name(target)}, options={{'on_error': 'raise'}})",
        f"compiled({', '.join(values)})",
    ]
    try:
        path = Path(tempfile.mkdtemp(prefix="intarsia-")) / "reproducer.py"
        path.write_text("\n".join(lines) + "\n")
    except OSError:
        return None
    return path


def _function(target: Any) -> Any:
    if isinstance(target, Piece):
        return target.code
    if isinstance(target, nn.Module):
        return type(target)
    return getattr(target, "__func__", target)


def _name(target: Any) -> str:
    if isinstance(target, Piece):
        return target.code.co_name
    if isinstance(target, nn.Module):
        return f"{type(target).__name__}()"
    return str(getattr(target, "__name__", "function"))


def _source(target: Any) -> list[str]:
    try:
        return textwrap.dedent(inspect.getsource(_function(target))).splitlines()
    except (OSError, TypeError):
        return [f"# the source of {_name(target)} is not available"]


def _argument(value: Any) -> str:
    """An expression for a value like this one; what cannot be written down is named in a comment."""
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
        facts = f"{list(value.shape)}, {list(value.stride())}, dtype={value.dtype}, device={str(value.device)!r}"
        grad = ".requires_grad_()" if value.requires_grad and is_leaf(value) else ""
        return f"torch.empty_strided({facts}).zero_(){grad}"
    if isinstance(value, bool | int | float | str | bytes | type(None) | torch.dtype | torch.device):
        return repr(value)
    if type(value) in (list, tuple):
        items = ", ".join(map(_argument, value))
        return f"[{items}]" if type(value) is list else f"({items}{',' if len(value) == 1 else ''})"
    if type(value) is dict and all(isinstance(k, str | int) for k in value):
        return "{" + ", ".join(f"{k!r}: {_argument(v)}" for k, v in value.items()) + "}"
    return f"...  # an object of type {type(value).__module__}.{type(value).__qualname__}"
