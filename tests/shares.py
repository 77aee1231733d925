"""Which of the slow tests a run takes: all that were named, or the share of them that belongs to the commit.

Slow is what tests/slow.txt lists, and what carries `@pytest.mark.slow(seconds=...)`. All other tests always run, and so
does one cheap case of most functions that are listed. The rest is dealt into SHARES hands of about equal time; the next
commit takes the next hand, so that as many commits as there are hands run everything.

    make test-all ARGUMENTS=--junitxml=build/tests.xml
    python -m tests.shares build/tests.xml    # writes tests/slow.txt anew
"""

from __future__ import annotations

import heapq
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "slow.txt"
SHARES = 20
OPTION = "--slow"

# What makes a function slow: the mean of its cases, or all of them, in seconds of the run that was recorded.
MEAN, ALL = 0.2, 1.5
CHEAP, CHEAP_OF_A_FILE = 0.5, 3.0  # a case that always runs; the one of a file that has nothing else
NEVER = (  # what promises "never silently wrong" as a whole, and this
    *("conformance/", "test_lit.py", "test_rooms.py", "test_site.py", "test_testing.py", "test_shares.py"),
    "test_examples.py::test_readme",
)
HEADER = """\
# Slow tests, written and read by tests/shares.py. Seconds are of one case, or of a file whose tests share what they
# start and are taken or left as one. Behind | stands the case that always runs.
"""


@dataclass(frozen=True)
class Slow:
    seconds: float
    always: str = ""  # the case of a parametrised function that every run takes


@dataclass(frozen=True)
class Node:
    """A test's place: `tests/e2e/test_loops.py::test_loops[teacher-whole]`."""

    file: str
    function: str
    case: str

    @staticmethod
    def of(nodeid: str) -> Node:
        file, _, rest = nodeid.partition("::")
        function, _, case = rest.partition("[")
        return Node(file.removeprefix("tests/"), f"{file.removeprefix('tests/')}::{function}", case.removesuffix("]"))


# ---- the table


def read(text: str) -> dict[str, Slow]:
    """By file, where its tests are taken as one, or by function."""
    found: dict[str, Slow] = {}
    file = ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        head, _, always = line.partition(" | ")
        name, _, seconds = head.strip().partition(" ")
        if not line.startswith(" "):
            file = name
        if seconds:
            found[f"{file}::{name}" if line.startswith(" ") else file] = Slow(float(seconds), always)
    return found


def written(table: dict[str, Slow]) -> str:
    files: dict[str, list[str]] = defaultdict(list)
    for key, slow in sorted(table.items()):
        file, _, function = key.partition("::")
        case = f" | {slow.always}" if slow.always else ""
        files[file].append(f"    {function} {slow.seconds:g}{case}" if function else f"{file} {slow.seconds:g}")
    return HEADER + "".join(
        "\n".join(lines if not lines[0].startswith(" ") else [file, *lines]) + "\n" for file, lines in files.items()
    )


def measured(times: dict[str, float], before: dict[str, Slow]) -> dict[str, Slow]:
    """The table for a run's seconds by test. Files taken as one still are; a case that always ran still does while it is cheap."""
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    files: dict[str, float] = defaultdict(float)
    for nodeid, seconds in times.items():
        node = Node.of(nodeid)
        functions[node.function][node.case] = seconds
        files[node.file] += seconds
    table = {key: Slow(round(files.get(key, slow.seconds), 1)) for key, slow in before.items() if "::" not in key}
    at_once: dict[str, bool] = defaultdict(bool)  # whether a file has what always runs
    for function, cases in functions.items():
        file, mean = function.partition("::")[0], sum(cases.values()) / len(cases)
        if file in table or function.startswith(NEVER):
            at_once[file] |= file not in table
            continue
        if mean < MEAN and sum(cases.values()) < ALL:
            at_once[file] = True
            continue
        seconds, always = min((seconds, case) for case, seconds in cases.items())
        if (kept := before.get(function, Slow(0)).always) in cases and len(cases) > 1 and cases[kept] < 2 * CHEAP:
            seconds, always = 0, kept
        keeps = len(cases) > 1 and seconds < CHEAP
        at_once[file] |= keeps
        table[function] = Slow(max(round(mean, 1), 0.1), always if keeps else "")
    for file in {key.partition("::")[0] for key in table if "::" in key and not at_once[key.partition("::")[0]]}:
        of_file = [function for function in table if function.startswith(f"{file}::")]
        seconds, function, always = min(
            (s, function, case) for function in of_file for case, s in functions[function].items()
        )
        if seconds <= CHEAP_OF_A_FILE and always:
            table[function] = Slow(table[function].seconds, always)
        elif seconds <= CHEAP_OF_A_FILE:
            del table[function]
    return table


# ---- the deal


def dealt(units: dict[str, float], shares: int = SHARES) -> dict[str, int]:
    """The hand of each unit. The dearest are dealt first, each to the hand that has least: all hands take about as long."""
    hands = {}
    taken = [(0.0, hand) for hand in range(shares)]
    for unit in sorted(units, key=lambda unit: (-units[unit], unit)):
        seconds, hands[unit] = heapq.heappop(taken)
        heapq.heappush(taken, (seconds + units[unit], hands[unit]))
    return hands


def drawn(nodeids: Iterable[str], table: dict[str, Slow], marked: dict[str, float]) -> dict[str, tuple[str, float]]:
    """The unit that a test belongs to and its seconds, of the tests that not every run takes.

    `marked`: seconds of tests that are slow by their own mark. Where the case that always runs is gone, the first does.
    """
    nodes = {nodeid: Node.of(nodeid) for nodeid in nodeids}
    cases: dict[str, list[str]] = defaultdict(list)
    for node in nodes.values():
        cases[node.function].append(node.case)
    found = {}
    for nodeid, node in nodes.items():
        if (whole := table.get(node.file)) is not None:
            found[nodeid] = node.file, whole.seconds
        elif (slow := table.get(node.function)) is not None:
            there = cases[node.function]
            always = slow.always if slow.always in there else there[0]
            if not slow.always or node.case != always:
                found[nodeid] = nodeid, slow.seconds
        elif nodeid in marked:
            found[nodeid] = nodeid, marked[nodeid]
    return found


def left_out(nodeids: Sequence[str], table: dict[str, Slow], marked: dict[str, float], share: int) -> set[str]:
    """The tests that the share does not take."""
    units = drawn(nodeids, table, marked)
    hands = dealt(dict(units.values()))
    return {nodeid for nodeid, (unit, _) in units.items() if hands[unit] != share % SHARES}


# ---- what a run takes


def is_whole_suite(arguments: Iterable[str], chosen: Iterable[object], here: Path, root: Path = ROOT) -> bool:
    """Whether nothing but the folder of all tests was named, and nothing `chosen` by -k, -m or --lf.

    Only then tests are left out.
    """
    return not any(chosen) and all((here / argument).resolve() in (root, root / "tests") for argument in arguments)


def of_commit(root: Path = ROOT) -> int:
    """How many commits lead to this one: the next takes the next share. In a shallow clone its hash; without git, 0."""
    try:
        shallow, commit = _git(root, "rev-parse", "--is-shallow-repository", "HEAD").split()
        return int(commit, 16) if shallow == "true" else int(_git(root, "rev-list", "--count", "HEAD"))
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout


def said(share: str) -> str | None:
    if share == "all":
        return None
    again = f"pytest {OPTION} {share} tests"
    return f"slow tests: share {share} of 0 to {SHARES - 1}; all of them: make test-all; these again: {again}"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        metavar="SHARE",
        choices=["all", *map(str, range(SHARES))],
        help=f"all slow tests, or a share, 0 to {SHARES - 1} (default: the commit's if the whole suite runs, else all)",
    )


def decide(config: pytest.Config) -> None:
    """Once, in the process that was started: workers get the options as they are then."""
    if config.option.slow is None:
        chosen = (config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "failedfirst"))
        whole = is_whole_suite(config.args, chosen, config.invocation_params.dir)
        config.option.slow = str(of_commit() % SHARES) if whole else "all"


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what the table lists, and takes away what is not the share's."""
    table, marked = read(TABLE.read_text(encoding="utf-8")), {}
    for item in items:
        node = Node.of(item.nodeid)
        if (slow := table.get(node.file) or table.get(node.function)) is not None:
            item.add_marker(pytest.mark.slow(seconds=slow.seconds))
        elif (mark := item.get_closest_marker("slow")) is not None:
            marked[item.nodeid] = float(mark.kwargs.get("seconds", 1))
    if config.option.slow == "all":
        return
    left = left_out([item.nodeid for item in items], table, marked, int(config.option.slow))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]


def main(path: str) -> None:
    times: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        module, name = str(case.get("classname")), str(case.get("name"))
        if case.find("skipped") is not None or case.find("error") is not None:
            continue
        times[f"{module.replace('.', '/')}.py::{name}"] += float(case.get("time", 0))
    TABLE.write_text(written(measured(times, read(TABLE.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
