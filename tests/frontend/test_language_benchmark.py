"""The benchmark that runs CPython's own tests: what it counts, on tests that break, fail and pass."""

import unittest

from benchmarks import language
from intarsia.frontend.runtime.callable import compile_callable


class Sample(unittest.TestCase):
    """Tests of which it is known what they come to."""

    __test__ = False  # not pytest's

    def test_right(self):
        self.assertEqual([n * 2 for n in range(3)], [0, 2, 4])

    def test_wrong(self):
        self.assertEqual(1, 2)

    def test_breaks(self):
        with self.assertRaises(ValueError):
            compile("(", "", "exec") if False else int("x")
        open("/dev/null").close()

    @unittest.skip("not here")
    def test_skipped(self):
        raise AssertionError


def _row(name):
    told = language.Told()
    test = Sample(name)
    eager = language.outcome(test, lambda f: f)
    ours = language.outcome(test, lambda f: compile_callable(f, backend=language.as_it_is, observer=told))
    return {"test": name, "eager": eager, "ours": ours, "reasons": told.reasons}


def test_outcomes():
    rows = {name: _row(name) for name in ("test_right", "test_wrong", "test_breaks")}
    assert rows["test_right"] == {"test": "test_right", "eager": "passes", "ours": "passes", "reasons": []}
    assert rows["test_wrong"]["eager"].startswith("AssertionError: 1 != 2")
    assert rows["test_breaks"]["ours"] == "passes"
    assert any("_io.open" in r or "io.open" in r or "file" in r for r in rows["test_breaks"]["reasons"])
    found = {"module": "sample", "all": 4, "rows": list(rows.values())}
    assert language.counts(found) == {
        **{"tests": 4, "run": 3, "eager passes": 2, "no break": 1},
        **{"interpreter": 0, "right": 2, "error": 0},
    }
    ended = {"test": "x", "eager": "passes", "ours": "the process ends: no word", "reasons": []}
    text = language.table(
        [{"module": "sample", "all": 4, "rows": [*rows.values(), ended]}, {"module": "gone", "missing": "no file"}]
    )
    assert "| sample | 4 | 4 | 3 | 1 | 0 | 2 | 1 |" in text
    assert "Without a break: 33.3 %. Right: 66.7 %." in text
    assert "Not there: gone (no file)" in text
    assert "- x: the process ends" in text


def test_what_speaks_of_the_interpreter():
    traced = "a C function that capture does not know is called: sys.settrace"
    dropped = "a Thing is made, whose finalizer runs when CPython drops it"
    for reason, told in (
        (traced, True),
        (dropped, True),
        ("exec is called", False),
        ("id() of an object is read", False),
    ):
        row = {"test": "t", "eager": "passes", "ours": "passes", "reasons": [reason, traced]}
        assert language.of_interpreter(row) is told
        assert not language.of_interpreter({**row, "ours": "another result"})
        found = {"module": "m", "all": 2, "rows": [row, {**row, "reasons": []}]}
        assert language.counts(found)["interpreter"] == told
        text = language.table([found])
        assert "Without a break: 50.0 %" in text and (f"{reason} (interpreter)" in text) is told
        assert f"interpreter itself: {100 if told else 50}.0 %" in text


def test_a_wrong_tensor_is_another_result():
    def wrong(f):
        return lambda x, body: (body(), f(x, lambda: None) + 1)[1]

    assert language.outcome(Sample("test_right"), wrong) == "another result"


def test_tests_of_a_module():
    import sys

    names = [t._testMethodName for t in language.tests_of(sys.modules[__name__])]
    assert names == ["test_breaks", "test_right", "test_skipped", "test_wrong"]


def test_a_sample_of_all_modules():
    drawn = language.draw(["bool", "binop", "no_such_module", "keywordonlyarg"], 12, 5)
    assert sum(map(len, drawn.values())) == 12 and set(drawn) <= {"bool", "binop", "keywordonlyarg"}
    assert all(one.startswith(f"test.test_{name}.") for name, tests in drawn.items() for one in tests)
    assert drawn == language.draw(["bool", "binop", "no_such_module", "keywordonlyarg"], 12, 5)
    whole = language.draw(["binop", "keywordonlyarg"], 10_000, 5)
    assert len(whole["binop"]) > len(drawn.get("binop", [])) and len(set(whole["binop"])) == len(whole["binop"])


def test_tests_that_are_named():
    (name,) = language.draw(["keywordonlyarg"], 1, 0)["keywordonlyarg"]
    found = language.measure("keywordonlyarg", 10_000, 0, (name,))
    assert [row["test"] for row in found["rows"]] == [name] and found["rows"][0]["ours"] == "passes"
