"""torch's operator database, without what importing it does to the process: it replaces how TorchScript functions are called."""

from __future__ import annotations

import torch

_CALLS = {kind: kind.__call__ for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)}

from torch.testing._internal import common_methods_invocations  # noqa: E402

for _kind, _call in _CALLS.items():
    _kind.__call__ = _call

op_db = common_methods_invocations.op_db

__all__ = ["common_methods_invocations", "op_db"]
