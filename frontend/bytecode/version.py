"""What differs between the versions of CPython, beside the disassembly of `instruction`."""

from __future__ import annotations

import sys

METHOD_SLOT_FIRST = sys.version_info < (3, 13)  # the empty slot of a call lies below the callable
CLOSE_RETURNS = sys.version_info >= (3, 13)  # `generator.close()` gives what the generator returns
