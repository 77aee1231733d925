"""The name "intarsia" among the backends that accelerate takes, and with it transformers' Trainer.

Accelerate asks an enumeration of its own whether it knows a backend before it hands the name to torch.compile:
`Accelerator(dynamo_backend="intarsia")`, `TrainingArguments(torch_compile_backend="intarsia")` and the variable
ACCELERATE_DYNAMO_BACKEND fail there. `import intarsia`, before or after accelerate, adds the one name.
Tried with accelerate 1.15.0 and transformers 5.23.0; where a release has no such enumeration, nothing is done.
"""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

from . import when_imported

NAME = "INTARSIA"  # accelerate asks in capitals, and gives torch.compile the name in small letters


def register(module: ModuleType) -> None:
    """Let `accelerate.utils.dataclasses.DynamoBackend` have a member of our name."""
    backends = getattr(module, "DynamoBackend", None)
    if not isinstance(backends, enum.EnumMeta) or str not in backends.__mro__ or NAME in backends.__members__:
        return
    kind: Any = backends
    member = str.__new__(kind, NAME)
    member._name_ = member._value_ = NAME
    before = kind._missing_

    def missing(cls: type, value: object) -> Any:
        return member if value == NAME else before(value)

    kind._missing_ = classmethod(missing)  # where an enumeration asks for values that it does not list


def install() -> None:
    """Register when accelerate is imported, or now where it has been."""
    when_imported("accelerate.utils.dataclasses", register)
