"""Every slow test is run by one of as many commits as there are shares; what is named is always run."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests import shares
from tests.shares import SHARES, Slow

ALL = shares.read(shares.TABLE.read_text(encoding="utf-8"))


def suite(seed: int) -> tuple[list[str], dict[str, Slow], dict[str, float]]:
    """Tests, a table and marks that are drawn."""
    draw = random.Random(seed)
    nodes: list[str] = []
    table: dict[str, Slow] = {}
    for file in (f"room/test_{number}.py" for number in range(draw.randint(1, 12))):
        if draw.random() < 0.2:
            table[file] = Slow(draw.uniform(1, 30))
        for function in (f"{file}::test_{number}" for number in range(draw.randint(1, 6))):
            cases = [f"[{case}]" for case in range(draw.randint(1, 9))] if draw.random() < 0.5 else [""]
            nodes += [f"tests/{function}{case}" for case in cases]
            if draw.random() < 0.6 and file not in table:
                always = draw.choice(["", "0", "gone"]) if cases != [""] else ""
                table[function] = Slow(draw.uniform(0.1, 5), always)
    marked = {node: 1.0 for node in nodes if draw.random() < 0.1}
    return nodes, table, marked


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("first", [0, 5, 1234])
def test_as_many_commits_as_there_are_shares_run_everything_slow_once(seed: int, first: int) -> None:
    nodes, table, marked = suite(seed)
    slow = shares.drawn(nodes, table, marked)
    runs = [set(nodes) - shares.left_out(nodes, table, marked, first + step) for step in range(SHARES)]
    for node in nodes:
        assert sum(node in run for run in runs) == (1 if node in slow else SHARES), node


@pytest.mark.parametrize("seed", range(20))
def test_what_always_runs(seed: int) -> None:
    nodes, table, marked = suite(seed)
    slow = shares.drawn(nodes, table, marked)
    for node in nodes:
        place = shares.Node.of(node)
        row = table.get(place.file) or table.get(place.function)
        if row is None:
            assert (node in slow) == (node in marked)
        elif place.file in table:
            assert slow[node] == (place.file, row.seconds)  # together
        elif row.always:
            assert (node in slow) == (place.case != "0")  # also the first of a case that is gone
        else:
            assert slow[node] == (node, row.seconds)


@pytest.mark.parametrize("seed", range(20))
def test_hands_take_about_as_long(seed: int) -> None:
    draw = random.Random(seed)
    units = {
        f"unit {number}": draw.choice([0.3, 1, 5, 20]) * draw.uniform(1, 2) for number in range(draw.randint(1, 400))
    }
    totals = [0.0] * SHARES
    for unit, hand in shares.dealt(units).items():
        totals[hand] += units[unit]
    assert max(totals) - min(totals) <= 2 * max(units.values())


@pytest.mark.parametrize(
    ("arguments", "chosen", "whole"),
    [
        (["tests"], [], True),
        (["tests/"], ["", None, False], True),
        (["."], [], True),
        (["tests", "tests"], [], True),
        (["tests/e2e"], [], False),
        (["tests/test_site.py"], [], False),
        (["tests", "tests/test_site.py"], [], False),
        (["tests/test_site.py::test_links"], [], False),
        (["elsewhere"], [], False),
        (["tests"], ["", "slow"], False),
        (["tests"], [True], False),
    ],
)
def test_a_share_is_taken_of_the_whole_suite_alone(arguments: list[str], chosen: list[object], whole: bool) -> None:
    assert shares.is_whole_suite(arguments, chosen, shares.ROOT) == whole
    assert not shares.is_whole_suite(["tests/test_site.py"], [], shares.ROOT)
    assert not shares.is_whole_suite(["tests"], [], shares.ROOT / "docs")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_next_commit_takes_the_next_share(tmp_path: Path) -> None:
    assert shares.of_commit(tmp_path / "none") == 0
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir()
    git(whole, "init", "-q")
    assert shares.of_commit(whole) == 0  # no commit yet
    for number in range(1, 4):
        git(whole, "commit", "-q", "--allow-empty", "-m", "one")
        assert shares.of_commit(whole) == shares.of_commit(whole) == number
    git(tmp_path, "clone", "-q", "--depth", "1", whole.as_uri(), "part")
    assert shares.of_commit(part) > 2**64  # not all are there: its hash, for not all commits to take the same share


def test_the_table_is_read_as_it_is_written() -> None:
    assert shares.read(shares.written(ALL)) == ALL
    assert len(set(shares.dealt({key: slow.seconds for key, slow in ALL.items()}).values())) == SHARES


@pytest.mark.parametrize("basic", shares.NEVER)
def test_basics_always_run(basic: str) -> None:
    assert not [key for key in ALL if key.startswith(basic)]
    assert (shares.ROOT / "tests" / basic.partition("::")[0]).exists()


def test_the_database_of_operators_always_has_a_part() -> None:
    assert ALL["opdb/test_opdb.py::test_operators"].always and ALL["opdb/test_gradients.py::test_gradients"].always


def test_the_table_follows_from_what_was_measured() -> None:
    times = {
        **{"tests/a.py::test_dear[x]": 9.0, "tests/a.py::test_dear[y]": 0.2, "tests/a.py::test_dear[z]": 0.1},
        **{"tests/a.py::test_many[0]": 1.5, "tests/a.py::test_many[1]": 1.5, "tests/a.py::test_cheap": 0.1},
        **{
            "tests/b.py::test_alone": 1.0,
            "tests/b.py::test_beside": 8.0,
        },  # the cheapest of a file that has nothing else
        **{"tests/c.py::test_first": 30.0, "tests/c.py::test_second": 0.0},
        "tests/conformance/d.py::test_dear": 20.0,
    }
    before = {"c.py": Slow(7), "a.py::test_dear": Slow(1, "y"), "a.py::test_gone": Slow(1)}
    assert shares.measured(times, before) == {
        "a.py::test_dear": Slow(3.1, "y"),
        "a.py::test_many": Slow(1.5),
        "b.py::test_beside": Slow(8),
        "c.py": Slow(30),
    }
