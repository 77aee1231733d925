"""Pages of the site that are made from the code: one for each dialect, and one for each pass with an example from its tests."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

from intarsia.ir import document
from intarsia.passes.core.base import Pass
from intarsia.passes.pipeline import default_pipeline, registry
from intarsia.tools.opt import show
from intarsia.tools.opt.main import main as passes_opt

ROOT = Path(__file__).parents[2]
LONGEST = 60  # lines of IR that an example may have, before and after together, to be shown whole


def dialects() -> dict[str, str]:
    """The name and text of a page for each dialect: the parts of docs/ir.md under the headings `Dialect`."""
    found = re.split(r"^## ", document.document(), flags=re.M)
    parts = {title: body for title, _, body in (part.partition("\n") for part in found)}
    made = {}
    for title, body in parts.items():
        if named := re.fullmatch(r"Dialect `(\w+)`", title):
            made[f"dialects/{named[1]}.md"] = f"# {title}\n{body}"
    made["dialects/scalar.md"] = "# Scalar operations and reductions\n" + "\n".join(
        f"## {title}\n{parts[title]}" for title in ("Scalar table", "Reductions")
    )
    return made


def passes() -> dict[str, str]:
    """The name and text of a page for each pass, in the order in which they run."""
    roads = [[item.name for item in default_pipeline(gpu=gpu)] for gpu in (False, True)]
    classes = registry().classes
    return {f"passes/{name}.md": _pass_page(classes[name]) for name in show.merged(*roads)}


def notebooks() -> dict[str, str]:
    """The name and text of a page for each notebook: its words, its code, and what the code printed."""
    return {
        f"notebooks/{path.stem}.md": _notebook(path)
        for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    }


def _notebook(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        printed = "".join(line for output in cell.get("outputs", ()) for line in output["text"]).rstrip()
        parts += [f"```text\n{printed}\n```"] if printed else []
    place = path.relative_to(ROOT)
    return "\n\n".join([*parts, f"This page is the notebook [{place.name}](../../{place}).\n"])


def _pass_page(kind: type[Pass]) -> str:
    told, _, facts = show.help_pass(kind).partition("\n\n  level:")
    text = re.sub(r"^.*?: ", "", told, count=1, flags=re.S)
    page = f"# {kind.name}\n\n{text}\n\n```text\n  level:{facts}```\n"
    example = _example(kind.name)
    return page + (example or "\nThis pass has no short example among its tests.\n")


def _example(name: str) -> str:
    """The shortest of the pass's tests that has a command of its own: what goes in, and what comes out of it."""
    best: tuple[int, Path, str, str, str] | None = None
    for path in sorted((ROOT / "tests" / "passes" / name.replace("-", "_")).glob("*.ir")):
        lines = path.read_text(encoding="utf-8").splitlines()
        command = re.fullmatch(r"// RUN: passes-opt (.*) %s \| filecheck %s", lines[0])
        if command is None or name not in command[1] or "default" in command[1]:
            continue
        before = "\n".join(line for line in lines[1:] if not line.startswith("// CHECK")).strip()
        after = _output([*command[1].split(), "--no-loc", str(path)])
        size = before.count("\n") + after.count("\n")
        if after and (best is None or size < best[0]):
            best = (size, path, command[1], before, after)
    if best is None or best[0] > LONGEST:
        return ""
    _, path, flags, before, after = best
    place = path.relative_to(ROOT)
    return (
        f"\n## Example\n\n[{place}](../../{place}) goes in:\n\n```text\n{before}\n```\n\n"
        f"`passes-opt {flags} {path.name}` prints:\n\n```text\n{after.rstrip()}\n```\n"
    )


def _output(flags: list[str]) -> str:
    """What the tool prints with these flags; nothing where it fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = passes_opt(flags)
    return out.getvalue() if code == 0 else ""
