"""The floors of the architecture: a file imports only from lower floors or its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from toys.sources import MAPPED, ROOT, modules

FLOORS = [      # from the lowest; a room is named by the longest dotted name that fits
    ["runtime", "config"], ["trees", "attention", "corpora"], ["acceptance", "kernels"], ["protocol"], ["target_model"],
    ["prefill", "yarn_drafters", "models"], ["memories", "engine"], ["drafters", "retrievers"], ["budget"],
    ["methods", "yarn_drafters.training"], ["loading"], ["comparison", "transformers_generate"],
    ["eval.scores", "eval.statistics"], ["eval.prompts", "eval.runs.rows"], ["eval", "completion.repository"],
    ["completion.snippets"], ["completion.retrieval", "completion.prompt"], ["completion"],
    ["serve"], ["serve.routes"], ["serve.app"], ["serve.replicas"], ["__init__"], ["cli"], ["benchmarks"]]
# Modules that answer requests import nothing that measures.
NOT_OF_EVAL = ("serve", "completion", "cli.app", "cli.root", "cli.commands", "cli.complete", "cli.corpus",
               "cli.generate", "cli.models", "cli.prefill", "cli.prompts", "cli.serve")


def room(module: str) -> str:
    """Returns the longest name in FLOORS that this module's dotted name begins with."""
    parts = module.removeprefix("longgraft").strip(".").split(".")
    names = [".".join(parts[:n]) or "__init__" for n in range(len(parts), 0, -1)]
    return next(name for name in names if any(name in rooms for rooms in FLOORS))


def floor(module: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if room(module) in rooms)


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_files_import_only_from_lower_floors():
    seen = 0
    for module, path in modules():
        for imported in imports(path):
            assert imported.split(".")[0] not in MAPPED, f"{path} imports {imported} without longgraft."
            if imported.split(".")[0] not in ("longgraft", "benchmarks"):
                continue
            seen += 1
            ours, theirs = floor(module), floor(imported)
            same_room = room(module) == room(imported)
            assert theirs < ours or same_room, (
                f"{module} (floor {ours}) imports {imported} (floor {theirs})")
    assert seen > 100


def test_tests_import_from_toys_and_not_from_one_another():
    for path in (ROOT / "tests").glob("test_*.py"):
        assert not [name for name in imports(path) if name.startswith(("test_", "conftest"))], path


def ours_in(path: Path, known: set[str]):
    """Yields our modules that a file imports, even within functions, except those for type checkers only."""
    tree = ast.parse(path.read_text())
    unseen = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
              for node in ast.walk(test)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & known or {node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def test_modules_that_answer_import_nothing_that_measures():
    for module, path in modules():
        if module.removeprefix("longgraft.").startswith(NOT_OF_EVAL):
            assert not [name for name in imports(path) if name.startswith("longgraft.eval")], module


def test_no_imports_go_in_a_circle():
    paths = dict(modules())
    left = {name: set(ours_in(path, set(paths))) - {name} for name, path in paths.items()}
    while free := [name for name, needed in left.items() if not needed & set(left)]:
        for name in free:
            del left[name]
    assert not left, f"these import one another: {', '.join(sorted(left))}"


def test_every_folder_of_the_package_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {module if path.name == "__init__.py" else module.rsplit(".", 1)[0] for module, path in modules()
             if not module.startswith("benchmarks")}
    assert found == set(project["packages"])


def test_importing_longgraft_loads_nothing_heavy():
    code = "import longgraft, sys; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
