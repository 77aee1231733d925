"""torch's operator database, without what importing it does to the process: it replaces how TorchScript functions are called.

Nor do samples look through the whole stack, source lines and all, for a `unittest.TestCase`: there is none.
"""

from __future__ import annotations

import torch

_CALLS = {kind: kind.__call__ for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)}

from torch.testing._internal import common_methods_invocations, common_utils  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402

for _kind, _call in _CALLS.items():
    _kind.__call__ = _call

for _module in (common_utils, core):
    if hasattr(_module, "extract_test_fn"):
        _module.extract_test_fn = lambda: None

op_db = common_methods_invocations.op_db

__all__ = ["common_methods_invocations", "op_db"]
