"""What a package is told on import, whichever comes first."""

from __future__ import annotations

import subprocess
import sys

from test_training_loops import needs

ASKS = """
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
import copy, pickle
member = DynamoBackend("INTARSIA")
assert TorchDynamoPlugin(backend="intarsia").to_dict()["backend"] == "intarsia"
assert member is DynamoBackend("INTARSIA") is copy.deepcopy(member) is pickle.loads(pickle.dumps(member))
assert member != DynamoBackend.NO and str(member) == "INTARSIA" and "INTARSIA" in DynamoBackend
assert "OTHER" not in DynamoBackend
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("intarsia")]
"""


@needs("accelerate")
def test_accelerate_knows_the_name() -> None:
    """Intarsia first, then a look-up that imports nothing; the other order is that of a module that is there (below)."""
    looked_up = "import importlib.util, accelerate; importlib.util.find_spec('accelerate.utils.dataclasses')"
    program = f"import sys, intarsia\n{looked_up}\n{ASKS}"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_a_module_is_told_of_once_and_nothing_waits_longer(tmp_path, monkeypatch) -> None:
    from intarsia.integrations import when_imported

    (tmp_path / "waited_for.py").write_text("number = 3")
    monkeypatch.syspath_prepend(str(tmp_path))
    before, seen = list(sys.meta_path), []
    when_imported("waited_for", lambda module: seen.append(module.number))
    assert sys.meta_path != before and not seen
    assert __import__("importlib.util").util.find_spec("waited_for") is not None and not seen
    __import__("waited_for")
    assert seen == [3] and sys.meta_path == before
    when_imported("waited_for", lambda module: seen.append(module.number + 1))
    assert seen == [3, 4] and sys.meta_path == before
    del sys.modules["waited_for"]
