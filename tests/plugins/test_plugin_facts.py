"""The plug-ins use what the engines' packages have, and the pretended engines have the real signatures."""

from __future__ import annotations

import ast
import json
import tomllib

import pytest
from toys.engine_facts import CLASSES, FACTS, PLUGINS, STATEMENTS, TESTS, members, used
from toys.sources import ROOT

from longgraft.plugins.options import TRIED

READ = json.loads(FACTS.read_text())
PRETENDED = {
    "sglang.py: SpeculativeAlgorithm": "SpeculativeAlgorithm",
    "sglang_algorithm.py: SpeculativeAlgorithm": "SpeculativeAlgorithm",
    "sglang_algorithm.py: self": "CustomSpecAlgo",
    "sglang_worker.py: self": "NGRAMWorker",
    "llama_cpp.py: self": "LlamaDraftModel",
}


def binds(ours: str, args: list, keywords: list[str]) -> bool:
    """Tells if a method with our parameters, as text, takes these arguments beside `self`."""
    scope: dict = {}
    exec(f"def method({ours}): pass", scope)
    try:
        scope["method"](None, *args, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def ours(engine: str) -> dict[str, str]:
    """Returns all that our classes for an engine define."""
    return {name: its for file in CLASSES[engine] for name, its in members(PLUGINS, f"{file}:").items()}


def test_facts_are_of_the_versions_that_the_plug_ins_name():
    assert set(READ) == {f"{engine}=={version}" for engine, versions in TRIED.items() for version in versions}


@pytest.mark.parametrize("read", READ)
def test_all_that_the_plug_ins_use_is_in_the_package(read):
    engine = read.partition("==")[0]
    absent = {use for use in used(engine) if use not in READ[read]["uses"]}
    own = {use for use in absent if ": self." in use and use.rpartition(".")[2] in ours(engine)}
    assert absent == own and set(READ[read]["uses"]) <= set(used(engine))
    assert set(READ[read]["statements"]) == set(STATEMENTS[engine])


@pytest.mark.parametrize("read", READ)
def test_our_methods_take_what_the_engine_passes(read):
    defined = ours(read.partition("==")[0])
    for name, statement in READ[read]["statements"].items():
        call = ast.parse(statement).body[0].value
        if name in defined:
            assert binds(defined[name], call.args, [one.arg for one in call.keywords]), (name, statement)
    for use, parameters in READ[read]["uses"].items():
        name = use.rpartition(".")[2]
        if ": self." in use and parameters and name != "__init__":
            theirs = ast.parse(f"def method({parameters}): pass").body[0].args
            positional = [*theirs.posonlyargs, *theirs.args][1:]
            assert binds(defined[name], positional, []), (name, parameters)


@pytest.mark.parametrize("read", READ)
def test_pretended_engines_have_the_real_signatures(read):
    compared = 0
    for use, parameters in READ[read]["uses"].items():
        owner, _, name = use.rpartition(".")
        toy = members(TESTS / "toys", f"engines.py:{PRETENDED[owner]}") if owner in PRETENDED else {}
        if toy.get(name):
            assert toy[name] == parameters, use
            compared += 1
    assert compared or read.startswith("vllm")


def test_sglangs_options_without_effect_have_its_defaults():
    (read,) = (READ[one] for one in READ if one.startswith("sglang"))
    tree = ast.parse((PLUGINS / "sglang_algorithm.py").read_text())
    (unused,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "UNUSED")
    for name, usual in ast.literal_eval(unused).items():
        assert eval(read["uses"][f"sglang_algorithm.py: args.{name}"]) == usual, name


def test_our_algorithm_has_all_methods_of_sglangs_enum():
    (read,) = (READ[one] for one in READ if one.startswith("sglang"))
    own = {"from_string", "register", "get_platform_worker_cls"}  # the enum's own, which nobody calls on an algorithm
    algorithm = (PLUGINS / "sglang_algorithm.py").read_text()
    assert all(f"def {name}(" in algorithm or f"{name} = " in algorithm for name in set(read["lacks"]) - own)


def test_sglang_looks_for_our_entry_point():
    (read,) = (READ[one] for one in READ if one.startswith("sglang"))
    group = ast.literal_eval(read["statements"]["entry points"].partition(" = ")[2])
    assert group in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
