"""`intarsia.report`: what the compiler made of a function, as one page to look at.

intarsia.report(model, x, path="report.html")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..compile import check_function
from ..explaining.explanation import Explanation, explain
from ..passes.core.base import Pass
from .gather import facts_of
from .page import file_of, write
from .record import recording


@dataclass
class ReportPage:
    """A report that was written.

    Attributes:
        path: the page.
        explanation: what `explain` tells of the same call; `explanation.result` is what the call gave.
        facts: what the page shows, as plain data.
    """

    path: Path
    explanation: Explanation
    facts: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.explanation.name}: {self.path}"


def report(
    fn: Any,
    *args: Any,
    path: str | Path = "report.html",
    timed: bool = True,
    backward: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    passes: Sequence[Pass] = (),
    **kwargs: Any,
) -> ReportPage:
    """Compile a function for these arguments, and write a page that shows how it went. The page is one file, and loads nothing.

    The call is made once, with all its effects. The function is compiled anew, out of no cache, so that the passes can be seen at work; one that
    `intarsia.compile` has compiled is compiled again, with its own settings.

    Args:
        path: where the page is written; folders are made.
        timed: time every kernel and library call, many times each, with the call's own arguments.
        backward: run backward as well, from the sum of all results that require gradients. The gradients are dropped: `.grad`
            stays as it is. What autograd has kept for it is used up then.
        dynamic, options, passes: as for `intarsia.compile`.
        kwargs: all others are the function's own. One that is called as one of these goes through a lambda.

    Raises:
        TypeError: `fn` cannot be called.
        OSError: the page cannot be written; IsADirectoryError before the call, where `path` is a folder.
        What the call raises.
    """
    check_function(fn, "report")
    file_of(path)  # before anything runs
    settings: dict[str, Any] = {"timed": timed, "dynamic": dynamic, "options": options, "passes": passes}
    with recording() as recorded:
        explanation = explain(fn, **settings)(*args, **kwargs)
        if backward:
            _run_backward(explanation.result)
    facts = facts_of(explanation, recorded)
    return ReportPage(write(facts, path), explanation, facts)


def _run_backward(result: Any) -> None:
    """Gradients of all leaves, which nobody receives."""
    found = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = _leaves(found)
    if found and leaves:
        torch.autograd.grad([x.sum() for x in found], leaves, allow_unused=True)


def _leaves(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that gradients of these results would be added to."""
    seen, todo, leaves = set[Any](), [x.grad_fn for x in results], list[torch.Tensor]()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            leaves.append(variable)
        todo += [each for each, _ in node.next_functions]
    return leaves
