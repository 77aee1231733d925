"""Configuration of lit: `lit tests/passes` runs the RUN lines of all .ir files."""

import os
import sys

import lit.formats

config.name = "intarsia"  # type: ignore[name-defined]  # noqa: F821
config.test_format = lit.formats.ShTest()  # type: ignore[name-defined]  # noqa: F821
config.suffixes = [".ir"]  # type: ignore[name-defined]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # type: ignore[name-defined]  # noqa: F821
config.test_exec_root = os.path.join(os.path.dirname(__file__), "..", "build", "lit")  # type: ignore[name-defined]  # noqa: F821
config.environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # type: ignore[name-defined]  # noqa: F821
