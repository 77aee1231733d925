"""The pass manager: registry, order, pipeline text, running, failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core import manager, plugins
from intarsia.passes.core.base import LEVELS, Pass, PassError
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.fingerprint import pass_fingerprint
from intarsia.passes.core.levels import module_levels
from intarsia.passes.core.manager import (
    check_road,
    order,
    registered,
)
from intarsia.passes.core.run import PassFailure, run_pipeline
from intarsia.passes.core.syntax import Default, Insertion, PipelineError, pipeline_text, split_pipeline
from intarsia.passes.pipeline import CPU, GPU, default_pipeline, is_for_gpu, registry

CPU_NAMES, GPU_NAMES = [name for name, _ in CPU], [name for name, _ in GPU]

MODULE = """
prim.func @main() {symbols = []} ({
^bb0(%x: !prim.tensor<[4], f32>):
  %0 = prim.neg(%x) : !prim.tensor<[4], f32>
  %1 = prim.neg(%0) : !prim.tensor<[4], f32>
  %2 = prim.exp(%1) : !prim.tensor<[4], f32>
  prim.return(%2)
})
"""


@dataclass(frozen=True)
class Nothing(Pass):
    """Does nothing."""

    name: ClassVar[str] = "nothing"
    number: int = 1

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        ctx.diagnostics.count(self.name, "runs")


@dataclass(frozen=True)
class Late(Pass):
    """Runs at the end of the prim level."""

    name: ClassVar[str] = "a-late"
    after: ClassVar[tuple[str, ...]] = ("dce",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None: ...


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    name: ClassVar[str] = "broken"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        raise KeyError("lost")


@dataclass(frozen=True)
class Corrupts(Pass):
    """Leaves a module that does not verify."""

    name: ClassVar[str] = "corrupts"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in module.walk():
            if op.name == "prim.exp":
                op.operands = []


def names(passes: list[Pass]) -> list[str]:
    return [p.name for p in passes]


@pytest.mark.parametrize(("gpu", "listed"), [(False, CPU_NAMES), (True, GPU_NAMES)])
def test_passes_run_as_they_are_listed(gpu: bool, listed: list[str]) -> None:
    assert names(default_pipeline(gpu=gpu)) == listed


def test_a_road_leads_through_all_levels() -> None:
    for gpu in (False, True):
        assert [p.gives for p in default_pipeline(gpu=gpu) if p.gives] == list(LEVELS[1:])


def test_a_list_that_contradicts_an_edge_is_an_error_that_names_both() -> None:
    kinds = {item.name: type(item) for gpu in (False, True) for item in default_pipeline(gpu=gpu)}
    right = ("decompose", "dce", "hoist", "fuse", "layout", "lower", "split-reductions", "keep", "schedule")
    check_road([kinds[name] for name in right])
    for order_, message in [
        (("decompose", "hoist", "dce", "fuse"), "'hoist' stands before 'dce', and has to run after it"),
        (
            ("decompose", "fuse", "hoist"),
            "'hoist' works at level 'prim', and stands where the module is at level 'kernel'",
        ),
        (("decompose", "fuse", "lower"), "'lower' requires 'layout', which does not stand before it"),
    ]:
        with pytest.raises(PipelineError) as error:
            check_road([kinds[name] for name in order_])
        assert str(error.value) == f"the list of passes is in a wrong order: {message}"


def test_a_pass_that_stands_twice_is_right_where_one_of_its_places_is() -> None:
    kinds = {item.name: type(item) for item in default_pipeline()}
    check_road([kinds[name] for name in ("decompose", "canonicalize", "cse", "dce", "cse", "hoist", "dce", "fuse")])


def test_a_pass_that_is_listed_under_another_name_is_an_error() -> None:
    with pytest.raises(PipelineError, match="graph.cse:CSE is called 'cse', and listed as 'ces'"):
        manager.Registry.collect([("ces", "graph.cse:CSE")])


@pytest.mark.parametrize(("device", "gpu"), [("", False), (', "cuda:0"', True)])
def test_the_road_of_a_module_follows_from_where_its_values_lie(device: str, gpu: bool) -> None:
    assert is_for_gpu(parse_module(MODULE.replace("f32>", f"f32{device}>"))) is gpu


def test_until_cuts_the_default_order() -> None:
    assert names(default_pipeline(until="cse")) == CPU_NAMES[: CPU_NAMES.index("cse") + 1]
    assert names(default_pipeline(gpu=True, until="kernel")) == GPU_NAMES[: GPU_NAMES.index("fuse") + 1]
    assert default_pipeline(until="aten") == []
    with pytest.raises(PipelineError, match="unknown pass or level 'kernal'; did you mean 'kernel'"):
        default_pipeline(until="kernal")


def test_a_given_instance_is_placed_by_its_edges() -> None:
    found = default_pipeline([Late(), Nothing(number=3)])
    assert names(found).index("dce") < names(found).index("a-late") < names(found).index("fuse")
    assert Nothing(number=3) in found


def test_an_instance_replaces_the_default_of_its_class() -> None:
    cse = type(registry().make("cse"))
    assert names(default_pipeline([cse()])) == CPU_NAMES


def test_registered_adds_by_name_and_to_the_default_order_and_ends() -> None:
    with registered(Nothing, Late):
        assert "nothing" in names(default_pipeline())
        assert registry().parse("nothing{number=7}") == [Nothing(number=7)]
    assert names(default_pipeline()) == CPU_NAMES


def test_two_passes_of_one_name() -> None:
    other = type("Other", (Nothing,), {"__module__": "elsewhere"})
    with pytest.raises(PipelineError, match="two passes are called 'nothing': .*Nothing and elsewhere.Other"):
        registry([Nothing, other])


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "nothing", "somewhere:Nothing"

        def load(self) -> type[Pass]:
            return Nothing

    monkeypatch.setattr(plugins, "entry_points", lambda group: [Point()] if group == "intarsia.passes" else [])
    assert "nothing" in registry().classes


def test_a_cycle_names_its_passes() -> None:
    first = type("First", (Nothing,), {"name": "first", "after": ("second",)})
    second = type("Second", (Nothing,), {"name": "second", "after": ("first",)})
    with pytest.raises(PipelineError, match=r"cycle: (first -> second -> first|second -> first -> second)"):
        order([], [first(), second(), Nothing()])


def test_an_edge_against_the_levels_is_a_cycle() -> None:
    wrong = type("Wrong", (Nothing,), {"name": "wrong", "after": ("fuse",)})
    with pytest.raises(PipelineError, match="cycle"):
        default_pipeline([wrong()])


def test_levels_order_passes_that_name_nobody() -> None:
    early = type("Early", (Nothing,), {"name": "z-early", "level": "aten"})
    found = names(default_pipeline([early()]))
    assert found.index("z-early") < found.index("decompose")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("cse", [("cse", {})]),
        ("cse,dce , cse", [("cse", {}), ("dce", {}), ("cse", {})]),
        ("fuse{max-ops=8,remarks=true},schedule", [("fuse", {"max-ops": "8", "remarks": "true"}), ("schedule", {})]),
        ("fuse{}", [("fuse", {})]),
        ("builtin.module(cse, dce)", [("cse", {}), ("dce", {})]),
        ("default,cse", [Default(), ("cse", {})]),
        (
            "default{after=fuse: cse,fuse{max-ops=2}; before=dce:cse;without=cse, dce}",
            [
                Default(
                    (
                        Insertion("after", "fuse", (("cse", {}), ("fuse", {"max-ops": "2"}))),
                        Insertion("before", "dce", (("cse", {}),)),
                    ),
                    ("cse", "dce"),
                )
            ],
        ),
    ],
)
def test_pipeline_text(text: str, expected: object) -> None:
    assert split_pipeline(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "cse,,dce",
        "fuse{max-ops=8",
        "fuse}",
        "fuse{max-ops}",
        "{a=1}",
        "fuse{a=1}x",
        ",",
        "default{fuse}",
        "default{after=fuse}",
        "default{after=fuse:}",
        "default{max-ops=2}",
    ],
)
def test_malformed_pipeline_text(text: str) -> None:
    with pytest.raises(PipelineError, match="malformed pipeline"):
        split_pipeline(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothng", "unknown pass 'nothng'; did you mean 'nothing'?"),
        ("qqqq", "unknown pass 'qqqq'"),
        ("nothing{numbr=1}", "pass 'nothing' has no option 'numbr'; did you mean 'number'?; it has: number, remarks"),
        ("nothing{number=x}", "pass 'nothing': option 'number' takes an integer, not 'x'"),
        ("cse{a=1}", "pass 'cse' has no option 'a'; it has: remarks"),
    ],
)
def test_unknown_passes_and_options(text: str, message: str) -> None:
    with registered(Nothing), pytest.raises(PipelineError) as error:
        registry().parse(text)
    assert str(error.value) == message


def test_the_default_pipeline_as_an_element() -> None:
    with registered(Nothing):
        standard = default_pipeline()
        text = "default{after=fuse: nothing{number=4},cse; before=fuse:nothing; without=keep,stream},canonicalize"
        found = registry().parse(text, standard)
        wanted = pipeline_text([p for p in standard if p.name not in ("keep", "stream")])
        assert (
            pipeline_text(found) == wanted.replace(",fuse,", ",nothing,fuse,nothing{number=4},cse,") + ",canonicalize"
        )
        with pytest.raises(PipelineError, match="the default pipeline has no pass 'fus' here; did you mean 'fuse'?"):
            registry().parse("default{after=fus: cse}", standard)
        with pytest.raises(PipelineError, match="replaces the default pipeline"):
            registry().parse("default")


@pytest.mark.parametrize("name", ["default", "a,b", "a{", "a b", "../a", "a\n"])
def test_names_that_a_pipeline_cannot_spell(name: str) -> None:
    with pytest.raises(PipelineError, match="cannot be called"):
        registry([type("Odd", (Nothing,), {"name": name})()])


def test_pipeline_text_round_trips() -> None:
    with registered(Nothing):
        text = "canonicalize,nothing{number=4},canonicalize,nothing"
        assert pipeline_text(registry().parse(text)) == text


def test_run_changes_counts_times_and_tells() -> None:
    module, ctx, heard = parse_module(MODULE), CompileContext(), []
    run = run_pipeline(
        ctx,
        module,
        registry().parse("canonicalize,cse,canonicalize"),
        verify_each=True,
        on_pass=lambda name, module, seconds, phase: heard.append((name, phase)),
    )
    assert print_module(module).count("prim.neg") == 0
    assert heard[:4] == [("canonicalize", "before"), ("canonicalize", "after"), ("cse", "before"), ("cse", "after")]
    assert [name for name, _ in run.seconds if name != "(verify)"] == ["canonicalize", "cse", "canonicalize"]
    assert ctx.diagnostics.statistics["canonicalize"]["rewrites"] == 1


def test_a_level_that_does_not_hold_names_the_pass_that_establishes_it() -> None:
    with pytest.raises(PassError) as error:
        run_pipeline(CompileContext(), parse_module(MODULE), registry().parse("plan-buffers"))
    assert "works at level 'loop', but the module is at level 'prim'" in str(error.value)
    assert "the pass 'lower' establishes it: run it before" in str(error.value)


@pytest.mark.parametrize("kind", [Broken, Corrupts])
def test_a_failure_leaves_a_reproducer_with_the_module_before(kind: type[Pass], tmp_path: Path) -> None:
    module = parse_module(MODULE)
    with registered(kind), pytest.raises(PassFailure) as error:
        passes = registry().parse(f"canonicalize,{kind.name}")
        run_pipeline(CompileContext(), module, passes, reproducer_dir=tmp_path / "new", verify_each=True)
    path = error.value.reproducer
    assert path is not None and str(path) in str(error.value) and error.value.pass_name == kind.name
    text = path.read_text()
    assert f"// pipeline: {kind.name}\n" in text and f"// run: passes-opt --run-reproducer {path}\n" in text
    before = parse_module(MODULE)
    run_pipeline(CompileContext(), before, registry().parse("canonicalize"))
    assert text.endswith(print_module(before))


def test_an_unwritable_reproducer_folder_does_not_hide_the_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        registered(Broken),
        pytest.raises(
            PassFailure, match=r"'broken' \(.*Broken, which is not Intarsia's own\) failed: KeyError: 'lost'"
        ) as error,
    ):
        run_pipeline(
            CompileContext(), parse_module(MODULE), registry().parse("broken"), reproducer_dir=tmp_path / "file" / "x"
        )
    assert error.value.reproducer is None


def test_no_folder_no_reproducer() -> None:
    with registered(Broken), pytest.raises(PassFailure) as error:
        run_pipeline(CompileContext(), parse_module(MODULE), registry().parse("broken"))
    assert error.value.reproducer is None and isinstance(error.value.__cause__, KeyError)


class Adrift(Pass):
    """Says nothing of where it runs."""

    name: ClassVar[str] = "adrift"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        pass


@pytest.mark.parametrize("where", ["after", "before", "requires"])
def test_a_name_that_is_no_pass_is_an_error(where: str) -> None:
    wrong = type("Wrong", (Adrift,), {"name": "wrong", where: ("canonicalise",)})
    with registered(wrong), pytest.raises(PipelineError) as error:
        registry()
    assert str(error.value) == (
        f"pass 'wrong': '{where}' names 'canonicalise', which is no pass and no level; did you mean 'canonicalize'?"
    )
    with registered(type("Text", (Adrift,), {"name": "text", where: "cse"})), pytest.raises(PipelineError) as error:
        registry()
    assert f"'{where}' is a tuple of names, not 'cse'" in str(error.value)


def test_the_order_does_not_follow_from_the_spelling_of_names() -> None:
    """Two passes without edges between them run as they were registered, whatever they are called."""
    for first, second in (("aaa", "zzz"), ("zzz", "aaa")):
        kinds = [type(name, (Adrift,), {"name": name, "level": "prim"}) for name in (first, second)]
        with registered(*kinds):
            found = names(default_pipeline())
        assert found.index(first) < found.index(second)
        assert [n for n in found if n not in ("aaa", "zzz")] == CPU_NAMES
        assert names(order([], [kind() for kind in kinds])) == [first, second]


def test_an_instance_of_a_standard_pass_stands_where_its_class_does() -> None:
    given = [registry().make("hoist", {"min-elements": "7"}), registry().make("fuse", {"max-ops": "3"})]
    found = default_pipeline(given)
    assert names(found) == CPU_NAMES and all(item in found for item in given)


def test_an_instance_of_a_pass_of_the_other_road_is_placed_by_its_edges() -> None:
    found = names(default_pipeline([registry().make("choose-products")]))
    assert found.index("fuse") < found.index("choose-products") < found.index("layout")
    assert [name for name in found if name != "choose-products"] == CPU_NAMES


@pytest.mark.parametrize("rest", ["", ",cse,dce"])
def test_what_others_leave_is_checked_where_it_stands(rest: str) -> None:
    with registered(Corrupts), pytest.raises(PassFailure) as error:
        run_pipeline(CompileContext(), parse_module(MODULE), registry().parse(f"canonicalize,{Corrupts.name}{rest}"))
    assert error.value.pass_name == Corrupts.name
    assert f"({Corrupts.__module__}.{Corrupts.__qualname__}, which is not Intarsia's own)" in str(error.value)


@dataclass(frozen=True)
class ChangesAttributes(Pass):
    """Changes nothing but an attribute: strides for two arguments of a function that has one."""

    name: ClassVar[str] = "changes-attributes"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in module.body.block.ops:
            func["arg_strides"] = (None, None)  # type: ignore[index]


def test_a_pass_that_changes_attributes_alone_is_named_too() -> None:
    passes = [registry().make("cse"), ChangesAttributes(), registry().make("dce")]
    with pytest.raises(PassFailure, match="arg_strides has 2 entries for 1 arguments") as error:
        run_pipeline(CompileContext(), parse_module(MODULE), passes)
    assert error.value.pass_name == "changes-attributes" and "not Intarsia's own" in str(error.value)


def test_others_are_not_blamed_for_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Cse", (Corrupts,), {"name": "own-corrupts", "__module__": "intarsia.passes.own"})
    with registered(own, Adrift), pytest.raises(PassFailure) as error:
        run_pipeline(CompileContext(), parse_module(MODULE), registry().parse("own-corrupts,adrift,cse"))
    assert error.value.pass_name == "own-corrupts" and error.value.owner == ""


def test_fingerprint_follows_options_and_the_source_of_custom_passes(tmp_path: Path) -> None:
    assert pass_fingerprint([Nothing()]) == pass_fingerprint([Nothing()])
    assert pass_fingerprint([Nothing()]) != pass_fingerprint([Nothing(number=2)])
    found = []
    for body in ("1", "2"):
        space: dict[str, object] = {"__name__": "typed_in"}
        exec(
            "from dataclasses import dataclass\nfrom intarsia.passes.core.base import Pass\n@dataclass(frozen=True)\n"
            f"class Typed(Pass):\n    name = 'typed'\n    def apply(self, ctx, module):\n        return {body}\n",
            space,
        )
        kind = space["Typed"]
        assert isinstance(kind, type)
        found.append(pass_fingerprint([kind()]))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("body", "levels"),
    [
        ("prim.return(%x)", {"aten", "prim", "kernel", "loop", "buffer"}),
        ('%0 = kernel.extern<aten.a.b>(%x) {operands = ["self"]} : !T\n prim.return(%0)', {"prim", "kernel", "loop"}),
        ('%0 = aten.a.b(%x) {operands = ["self"]} : !T\n prim.return(%0)', {"aten"}),
        ("%0 = prim.exp(%x) : !T\n prim.return(%0)", {"prim"}),
        ("%0 = kernel.fused(%x) ({\n^bb0(%a: !T):\n kernel.yield(%a)\n}) : !T\n prim.return(%0)", {"kernel"}),
        ("%0 = loop.launch @k(%x) : !T\n prim.return(%0)", {"loop"}),
        ('%0 = aten.a.b(%x) {operands = ["self"]} : !T\n %1 = prim.exp(%0) : !T\n prim.return(%1)', {"aten"}),
        (
            '%0 = aten.a.b(%x) {operands = ["self"]} : !T\n %1 = loop.launch @k(%0) : !T\n prim.return(%1)',
            set(),
        ),
    ],
)
def test_levels_of_a_module(body: str, levels: set[str]) -> None:
    text = f"prim.func @main() {{symbols = []}} ({{\n^bb0(%x: !T):\n {body}\n}})\n"
    assert module_levels(parse_module(text.replace("!T", "!prim.tensor<[4], f32>"))) == levels
