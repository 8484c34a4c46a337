"""Methods given as objects, files and entry points; their needs; and the promises of the registry."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoints

import pytest
from toys.models import toy_model, toy_target
from toys.oracle import plain
from toys.sessions import METHODS, TOYS, answered, toy_parts, toy_prompt, toy_session
from toys.sources import modules

import longgraft
from longgraft.acceptance.sampling import Sampling
from longgraft.config.method_roles import COMPARED, DEFAULT, DENSE, GROUPS, HEADLESS, PLAIN
from longgraft.config.method_syntax import joined, split
from longgraft.config.settings import Bounds, Retrieving, Settings
from longgraft.methods.assembly import load_needs
from longgraft.methods.chosen import VARIANT_SETTINGS, chosen_method
from longgraft.methods.combinators import PlainDecoding
from longgraft.methods.find import CORE, Method, as_method, build, find, installed, known, zoo
from longgraft.methods.needs import HEAD, Missing, Need, Sources
from longgraft.methods.registry.graft import GraftChoices
from longgraft.methods.summaries import ENTRY_POINTS

SOURCE = """
from longgraft.methods.building import history
from longgraft.methods.find import Method
from longgraft.methods.registry.pld import PromptLookup

TWO = Method("two", "copies two tokens", "-", lambda parts: PromptLookup(history(parts), length=2), budget=3)
WRONG = 7
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_method_of_a_file_is_found_and_decodes(file):
    method = find(f"{file}:TWO")
    assert (method.name, method.budget, method.promise) == ("two", 3, "exact")
    assert find(f"{file}:TWO") is method  # the file is run once
    found = answered(toy_session(method), toy_prompt(60), 24)
    assert found.token_ids == plain("llama", 60, 24, Sampling())
    assert max(found.stats.accepted_per_step) <= 2


def test_an_object_that_proposes_is_a_method():
    assert isinstance(find(PlainDecoding()), Method)
    session = longgraft.load(method=PlainDecoding(), tell=False)
    assert "method PlainDecoding, budget" in session.about[-1]


@pytest.mark.parametrize(
    "reference, message",
    [
        ("nope", "`longgraft methods` lists"),
        ("{file}:NOPE", "has no attribute 'NOPE'"),
        ("{file}:WRONG", "is a int"),
        ("nowhere.py:X", "cannot be loaded"),
        ("no.such.module:X", "No module named"),
        (".foo:bar", "cannot be loaded"),
        (":x", "cannot be loaded"),
    ],
)
def test_an_invalid_method_reference_is_named(file, reference, message):
    with pytest.raises(ValueError, match=message):
        find(reference.format(file=file))


@pytest.fixture
def register(file, tmp_path, monkeypatch) -> Iterator[Callable[[str], None]]:
    """Returns a function that installs the package `mine` with these entry points."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def registered(entry_points: str) -> None:
        (info / "entry_points.txt").write_text(entry_points)
        installed.cache_clear()

    yield registered
    installed.cache_clear()


def test_an_installed_package_registers_methods(register):
    register(f"[{ENTRY_POINTS}]\ntwo = mine:TWO\n")
    assert find("two").budget == 3 and list(known())[-1] == "two"


@pytest.mark.parametrize(
    "entry_points, said",
    [
        (f"[{ENTRY_POINTS}]\ntwo = mine:WRONG", "registered by an installed package as 'mine:WRONG'"),
        (f"[{ENTRY_POINTS}]\ntwo = mine:TWO\nalso = mine:TWO", "'two', which exists already"),
        (
            "[longgraft.methods]\ntwo = mine:TWO",
            "'two', .*'mine:TWO', was made for version 1 .* version 2: .*CHANGELOG",
        ),
        ("[longgraft.methods.v3]\ntwo = mine:TWO", "'two', .*'mine:TWO', was made for version 3 .* version 2: "),
    ],
)
def test_a_package_whose_methods_cannot_be_used_is_refused(register, entry_points, said):
    register(entry_points)
    with pytest.raises(ValueError, match=said):
        find("two")
    assert find(PLAIN) and find("triforce")  # those of this package need no other one


def test_a_package_may_register_for_several_versions_of_the_interface(register):
    register(f"[longgraft.methods]\nold = mine:WRONG\n[{ENTRY_POINTS}]\ntwo = mine:TWO\n")
    assert list(installed()) == ["two"]


@pytest.mark.parametrize("field", ["build", "adaptive", "verifies"])
def test_a_method_that_reads_parts_of_an_earlier_version_is_refused(field):
    old = replace(METHODS["pld"], name="old", **{field: lambda parts: parts.history()})
    with pytest.raises(ValueError, match=r"'old' reads `parts.history`, which version 2 .* CHANGELOG.md says"):
        toy_session(old, adaptive=True)


def test_an_attribute_that_is_missing_elsewhere_is_not_blamed_on_the_interface():
    with pytest.raises(AttributeError, match="nothing"):
        build(replace(METHODS["pld"], build=lambda parts: parts.target.nothing), toy_parts())


@pytest.fixture
def anew() -> Iterator[None]:
    """Finds the zoo anew in a test, and once more after it."""
    zoo.cache_clear()
    yield
    zoo.cache_clear()


def test_the_zoo_of_a_checkout_needs_no_installation(anew, monkeypatch):
    monkeypatch.setattr("longgraft.methods.summaries.entry_points", lambda: EntryPoints(()))
    assert len(zoo()) > 20 and find("triforce").name == "triforce" and not set(zoo()) & set(CORE)


def test_the_zoo_of_an_installed_package_is_found_by_its_entry_points(anew, tmp_path, monkeypatch):
    info = tmp_path / "longgraft-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: longgraft\nVersion: 9.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nddd = longgraft.zoo.ddd:METHOD\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("longgraft.methods.summaries.PROJECT", tmp_path / "pyproject.toml")
    assert set(zoo()) == {"ddd"} and "ddd" not in installed()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')  # a stray file of someone else
    zoo.cache_clear()
    assert set(zoo()) == {"ddd"}


def test_a_missing_need_is_reported_and_a_default_falls_back():
    def unknown(sources):
        raise Missing("no such thing is known.\nPass --thing.")

    need = Need("thing", "a thing", unknown)
    strict = Method("strict", "-", "-", METHODS[PLAIN].build, (need,))
    with pytest.raises(ValueError, match=r"'strict' needs a thing: no such thing is known"):
        load_needs(strict, Sources(toy_target()))
    loose = Method("loose", "-", "-", METHODS[PLAIN].build, (need,), fallback=HEADLESS)
    method, given, notes = load_needs(loose, Sources(toy_target()))
    assert method.name == HEADLESS and given == {}
    assert notes == (f"no such thing is known; decoding with method {HEADLESS} instead of loose",)
    assert load_needs(loose, Sources(toy_target(), drafter=None))[0].name == HEADLESS
    with pytest.raises(ValueError, match="needs a thing"):  # a drafter that was named has no fallback
        load_needs(loose, Sources(toy_target(), drafter="some/head"))


@pytest.mark.parametrize("method", ["graft+retrieval=none", "graft-x+text=false", "graft-x+source=pld+text=false"])
def test_a_choice_of_a_method_has_no_fallback(method):
    """Another method would ignore the choice: graft without retrieval is not retrieval alone."""
    if find(method).needs:
        with pytest.raises(ValueError, match="needs an EAGLE-3 drafter"):
            load_needs(find(method), Sources(toy_target(), drafter=None))
    else:
        assert load_needs(find(method), Sources(toy_target(), drafter=None))[0].name == "graft-x"


@pytest.mark.parametrize(
    "method, wrong",
    [("graft+retrieved=20", "never pruned"), ("graft+pruning=none+retrieval=none", "frees slots for retrieval")],
)
def test_choices_that_contradict_one_another_are_refused(method, wrong):
    with pytest.raises(ValueError, match=wrong):
        find(method)


@pytest.mark.parametrize("drafter", [None, "none", "auto"])
def test_without_a_drafter_the_fallback_decodes(drafter):
    session = longgraft.load((toy_model("qwen3"), None), drafter, tell=False)
    assert session.method == HEADLESS and f"with method {HEADLESS} instead of graft-x" in session.about[0]


def test_a_session_on_a_cpu_has_few_nodes_unless_it_is_told_how_many():
    model = (toy_model("qwen3"), None)

    def nodes(method: str, budget: int | str | None) -> int:
        return longgraft.load(model, None, tell=False, method=method, budget=budget).engine.budget

    assert [nodes("retrieval", budget) for budget in (None, "paper", 30)] == [16, find("retrieval").budget, 30]
    assert [nodes(PLAIN, budget) for budget in (None, "paper", 30)] == [1, 1, 1]  # it proposes nothing


def test_the_size_of_the_prefix_cache_is_given_in_gib():
    model = (toy_model("qwen3"), None)
    for size, most in ((1.0, 2**30), (0.5, 2**29)):
        assert longgraft.load(model, None, tell=False, method=PLAIN, prefixes=size).engine.prefixes.most == most
    assert longgraft.load(model, None, tell=False, method=PLAIN).engine.prefixes is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ar+budget=8", "ar does not read budget. It reads no settings."),
        ("pld+levels=3", "pld does not read levels. It reads budget."),
    ],
)
def test_a_setting_that_a_method_does_not_read_is_refused(name, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        chosen_method(Settings(method=name))


@pytest.mark.parametrize(
    ("method", "option", "said"),
    [
        (
            "pld",
            "draft_levels",
            "'pld+levels=3': pld does not read levels. It reads budget. These methods read levels",
        ),
        ("graft-x", "retrieved_depth", "graft-x does not read depth."),
        ("graft-x+source=pld", "draft_top_k", "graft-x is over 'pld', which does not read top_k. Leave +top_k=3 out"),
    ],
)
def test_a_bound_that_the_method_does_not_read_is_refused(method, option, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        longgraft.load(method=Bounds(**{option: 3}).of(method), tell=False)
    readers = {"retrieved_depth": "read depth: retrieval, graft", "draft_levels": "eagle3"}
    assert readers.get(option, "") in str(refused.value)


def test_a_bound_in_a_name_that_the_other_method_does_not_read_is_refused():
    with pytest.raises(ValueError, match=r"graft-x is over 'pld', which does not read levels\. Leave \+levels=2 out"):
        find("graft-x+source=pld+levels=2")
    assert find("graft-x+source=pld", {"levels": 2}).source == "pld"  # a sweep's other methods read it


def test_settings_in_a_methods_name_replace_the_sessions():
    model = (toy_model("qwen3"), None)
    session = longgraft.load(model, None, tell=False, method="graft-x-text+budget=8", budget=30)
    assert (session.engine.budget, session.method) == (8, "graft-x-text")
    named = Settings(method="graft+levels=3+width=2+budget=paper")
    assert chosen_method(named)[1] == Settings(method="graft+width=2+levels=3", budget="paper")
    with pytest.raises(ValueError, match="warm names a calibration of a sweep"):
        longgraft.load(model, None, tell=False, method="graft+warm=none")


def test_bounds_become_choices_unless_the_name_sets_them():
    bounds = Bounds(draft_levels=3, retrieved_width=2)
    assert find(bounds.of("graft")).choices == GraftChoices(levels=3, width=2)
    assert find(bounds.of("graft+levels=9")).choices.levels == 9
    assert find("longspec+levels=2", {"levels": 3}).choices.levels == 2  # its own, which is no bound
    assert find("graft", {"top_k": 4}).bounds["top_k"] == 4
    assert Bounds().of("graft") == "graft" and str(find(bounds.of("graft"))) == "graft+width=2+levels=3"


def test_a_method_that_takes_anothers_place_has_its_bounds():
    over, parts = find("graft-x+source=eagle3+levels=2"), toy_parts()
    assert build(over, parts).drafter.proposer.levels == 2
    method, _ = chosen_method(Settings(method="graft+depth=2"))
    assert load_needs(method, Sources(toy_target(), None))[0].choices == Retrieving(depth=2)
    with pytest.raises(ValueError, match="'graft' needs an EAGLE-3 drafter"):  # retrieval has no levels
        load_needs(find("graft+levels=2"), Sources(toy_target(), None))


def test_a_given_part_that_no_method_needs_is_refused():
    with pytest.raises(ValueError, match=r"--with smal-model was given, and the methods in use need small-model"):
        longgraft.load(method="sps", given={"smal-model": "x"}, tell=False)


def test_parts_without_what_a_method_needs_are_refused():
    bare = toy_parts().__class__(toy_target())
    with pytest.raises(ValueError, match="'eagle3' needs an EAGLE-3 drafter for llama"):
        build(DENSE, bare)
    assert build(PLAIN, bare).memories == () and bare.head is None and toy_parts().the(HEAD) is toy_parts().head


def test_roles_and_groups_name_existing_methods():
    from longgraft.eval.runs.variants import Variant

    assert {PLAIN, DENSE, DEFAULT, HEADLESS, *COMPARED} <= set(METHODS)
    assert all(Variant.parse(name) for names in GROUPS.values() for name in names)
    assert as_method(METHODS[PLAIN], "x") is METHODS[PLAIN]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_lists_its_choices_and_refuses_all_others(method):
    assert method.budget > 0 and method.clause and method.paper
    # A method is printed as its name, also where it is another method with changed choices.
    assert str(method) == method.name and find(str(method)).choices == method.choices
    assert method.takes <= set(VARIANT_SETTINGS) and method.takes.isdisjoint(one.name for one in method.own)
    for one in method.own:
        assert one.help and (one.choices or one.kind in (bool, str) or one.bounds), f"{one.name}: no help, or no bounds"
        one.check(one.default)
        # The printed form of a choice can be typed.
        assert find(f"{method.name}+{one.name}={one.text(one.default)}").choices == method.choices
        with pytest.raises(ValueError, match=f"{one.name}|Method ';' is unknown"):  # a choice may name a method
            find(f"{method.name}+{one.name}=;")
    with pytest.raises(ValueError, match="no choice"):
        method.choosing({"no_such_choice": "1"})


@pytest.mark.parametrize(
    "name, settings, printed",
    [
        ("svip", {"chain": "true"}, "svip+chain=true"),
        ("adapld", {"successors": "false"}, "adapld+successors=false"),
        ("adapld", {"likeness": "none"}, "adapld+likeness=none"),
        ("pld+", {"layer": "3"}, "pld++layer=3"),
        ("magicdec", {"keep": "recent"}, "magicdec+keep=recent"),
        ("ddd", {"threshold": "-1e-07"}, "ddd+threshold=-1e-07"),
        ("echo", {"depths": "2,4", "taus": "0.1,0.2"}, "echo+depths=2/4+taus=0.1/0.2"),
        ("specpv-exact", {"waiting": "20"}, "specpv-exact+waiting=20"),
    ],
)
def test_the_printed_form_of_a_changed_method_can_be_typed(name, settings, printed):
    method = METHODS[name].choosing(settings)
    assert str(method) == printed and method.choices != METHODS[name].choices
    assert find(printed).choices == method.choices == METHODS[name].choosing({}).choosing(settings).choices
    assert str(replace(METHODS[name], choices=method.choices)) == printed


@pytest.mark.parametrize(
    "need",
    {need.name: need for method in METHODS.values() for need in method.needs}.values(),
    ids=lambda need: need.name,
)
def test_a_need_has_a_toy_and_says_how_it_is_given(need):
    """Loads the need for a target without any known part."""
    assert need.name in TOYS and need.clause
    with pytest.raises(Missing, match=re.escape(need.switch.partition(" PATH")[0].partition("=")[0])):
        need.load(Sources(toy_target()))


@pytest.mark.parametrize(
    "name, parts",
    {
        "pld+": ("pld+", {}),
        "pld++budget=11": ("pld+", {"budget": "11"}),
        "pld+budget=11": ("pld", {"budget": "11"}),
        "a.py:X++k=1+l=b": ("a.py:X+", {"k": "1", "l": "b"}),
        "+budget=2": ("", {"budget": "2"}),
    }.items(),
)
def test_a_method_name_may_end_in_a_plus(name, parts):
    assert split(name) == parts and joined(*parts) == name


def test_no_code_outside_the_registry_asks_for_a_method_by_name():
    """Checkpoint layouts, API fields and parts of a prompt may have the name of a method; benchmarks and the trainer
    may name the methods that they measure and train, and figures those that have a colour of their own."""
    allowed = (
        "longgraft.methods.registry",
        "longgraft.zoo",
        "longgraft.config.method_roles",
        "longgraft.yarn_drafters",
        "longgraft.cli.train",
        "longgraft.eval.reports.panels",
        "benchmarks",
    )
    fields = {
        ("longgraft.serve.prompts", "suffix"),
        ("longgraft.serve.prompts", "echo"),
        ("longgraft.serve.formats.request_fields", "echo"),
        ("longgraft.serve.formats.unsupported_fields", "echo"),
        ("longgraft.serve.formats.unsupported_fields", "suffix"),
        ("longgraft.completion.prompt.fim", "suffix"),
    }
    for module, path in modules():
        if not module.startswith(allowed):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Constant) and node.value in METHODS and (module, node.value) not in fields
                assert not named, f"{module}:{node.lineno} names {node.value!r}"
