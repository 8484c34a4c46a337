"""Methods from outside: by object, by file, by entry point; what they need, and what the registry promises."""

from __future__ import annotations

import ast

import pytest
from conftest import answered, toy_parts, toy_prompt, toy_session, toy_target
from oracle import plain
from test_layout import modules

import longgraft
from longgraft.compose import Plain
from longgraft.loading import _needs
from longgraft.methods import METHODS, Method, as_method, build, find, installed, known
from longgraft.needs import HEAD, Missing, Need, Sources
from longgraft.roles import COMPARED, DEFAULT, DENSE, GROUPS, HEADLESS, PLAIN
from longgraft.sampling import Sampling

SOURCE = '''
from longgraft.methods import METHODS, Method
from longgraft.retrievers.prompt_lookup import PromptLookup

TWO = Method("two", "copies two tokens", "-", lambda parts: PromptLookup(parts.history(), length=2), budget=3)
WRONG = 7
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_method_of_a_file_is_found_and_decodes(file):
    method = find(f"{file}:TWO")
    assert (method.name, method.budget, method.promise) == ("two", 3, "exact")
    assert find(f"{file}:TWO") is method        # the file is run once
    found = answered(toy_session(method), toy_prompt(60), 24)
    assert found.token_ids == plain("llama", 60, 24, Sampling())
    assert max(found.stats.accepted_per_step) <= 2


def test_an_object_that_proposes_is_a_method():
    assert isinstance(find(Plain()), Method)
    session = longgraft.load(method=Plain(), tell=False)
    assert "method Plain, budget" in session.about[-1]


@pytest.mark.parametrize("what, said", [
    ("nope", "`longgraft methods` lists"), ("{file}:NOPE", "has no attribute 'NOPE'"), ("{file}:WRONG", "is a int"),
    ("nowhere.py:X", "cannot be loaded"), ("no.such.module:X", "No module named"), (".foo:bar", "cannot be loaded"),
    (":x", "cannot be loaded")])
def test_what_is_no_method_is_named(file, what, said):
    with pytest.raises(ValueError, match=said):
        find(what.format(file=file))


def test_an_installed_package_registers_methods(file, tmp_path, monkeypatch):
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[longgraft.methods]\ntwo = mine:TWO\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    try:
        assert find("two").budget == 3 and list(known())[-1] == "two"
        for entry, said in (("two = mine:WRONG", "registered by an installed package as 'mine:WRONG'"),
                            ("two = mine:TWO\nalso = mine:TWO", "'two', which there is already")):
            (info / "entry_points.txt").write_text(f"[longgraft.methods]\n{entry}\n")
            installed.cache_clear()
            with pytest.raises(ValueError, match=said):
                find("two")
            assert find(PLAIN)      # ours need no package
    finally:
        installed.cache_clear()


def test_a_missing_need_is_told_and_a_default_falls_back():
    def unknown(sources):
        raise Missing("no such thing is known.\nPass --thing.")

    need = Need("thing", "a thing", unknown)
    strict = Method("strict", "-", "-", METHODS[PLAIN].build, (need,))
    with pytest.raises(ValueError, match=r"'strict' needs a thing: no such thing is known"):
        _needs(strict, Sources(toy_target()))
    loose = Method("loose", "-", "-", METHODS[PLAIN].build, (need,), fallback=HEADLESS)
    method, given, notes = _needs(loose, Sources(toy_target()))
    assert method.name == HEADLESS and given == {}
    assert notes == (f"no such thing is known; decoding with method {HEADLESS} instead of loose",)
    with pytest.raises(ValueError, match="needs a thing"):      # who says which drafter is told, not helped
        _needs(loose, Sources(toy_target(), drafter=None))


def test_parts_without_what_a_method_needs_are_refused():
    bare = toy_parts().__class__(toy_target())
    with pytest.raises(ValueError, match="'eagle3' needs an EAGLE-3 drafter for llama"):
        build(DENSE, bare)
    assert build(PLAIN, bare).memories == () and bare.head is None and toy_parts().the(HEAD) is toy_parts().head


def test_roles_and_groups_name_methods_that_there_are():
    from longgraft.eval.runs.variants import Variant

    assert {PLAIN, DENSE, DEFAULT, HEADLESS, *COMPARED} <= set(METHODS)
    assert all(Variant.parse(name) for names in GROUPS.values() for name in names)
    assert as_method(METHODS[PLAIN], "x") is METHODS[PLAIN]


def test_no_code_outside_the_registry_asks_for_a_method_by_name():
    """Checkpoint layouts have names of their own, one of which is a method's, too."""
    allowed = ("longgraft.registry", "longgraft.roles", "longgraft.yarn_drafters", "longgraft.cli.training")
    for module, path in modules():
        if not module.startswith(allowed):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Constant) and node.value in METHODS
                assert not named, f"{module}:{node.lineno} names {node.value!r}"
