"""The floors of the architecture: a file imports only from lower floors or its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from toys.sources import MAPPED, ROOT, modules

# From the lowest; a room is named by the longest dotted name that fits, and may use the rooms left of it on its floor.
FLOORS = [
    ["files", "runtime", "config"],
    ["trees", "attention", "corpora"],
    ["acceptance", "kernels", "protocol"],
    ["target_model"],
    ["prefill", "models", "yarn_drafters"],
    ["memories", "engine"],
    ["drafters", "budget"],
    ["methods", "yarn_drafters.training"],
    ["loading", "comparison", "transformers_generate"],
    ["zoo", "eval", "completion"],
    ["serve", "__init__"],
    ["cli", "plugins", "benchmarks", "__main__"],
]
CORE_FLOORS = 9  # the library itself: it never imports the zoo, measurements, the server or commands
# Modules that answer requests import nothing that measures.
NOT_OF_EVAL = (
    "serve",
    "completion",
    "cli.app",
    "cli.root",
    "cli.chat",
    "cli.commands",
    "cli.complete",
    "cli.corpus",
    "cli.generate",
    "cli.models",
    "cli.opening",
    "cli.prefill",
    "cli.prompts",
    "cli.serve",
)


def room(module: str) -> str:
    """Returns the longest name in FLOORS that this module's dotted name begins with."""
    parts = module.removeprefix("longgraft").strip(".").split(".")
    names = [".".join(parts[:n]) or "__init__" for n in range(len(parts), 0, -1)]
    return next(name for name in names if any(name in rooms for rooms in FLOORS))


def floor(module: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if room(module) in rooms)


def place(module: str) -> tuple[int, int]:
    """Returns a module's floor, and the place of its room on that floor."""
    level = floor(module)
    return level, FLOORS[level].index(room(module))


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
            assert place(imported) <= place(module), (
                f"{module} (floor {floor(module)}) imports {imported} (floor {floor(imported)})"
            )
    assert seen > 100


def test_the_core_names_no_module_of_the_zoo():
    """Its methods are found by entry points, as those of other packages."""
    for module, path in modules():
        if floor(module) < CORE_FLOORS:
            assert "longgraft.zoo." not in path.read_text(), module


def test_every_method_of_the_zoo_is_registered_by_an_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = set(project["entry-points"]["longgraft.methods.v2"].values())
    made = {
        f"{module}:{node.targets[0].id}"
        for module, path in modules()
        if room(module) == "zoo"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Method(")
    }
    assert made == registered and len(made) > 20


def test_tests_lie_in_rooms_of_the_package_and_have_names_of_their_own():
    rooms = {room(module).split(".")[-1] for module, _ in modules()} | {"whole"}
    files = list((ROOT / "tests").rglob("test_*.py"))
    for path in files:
        assert path.parent.name in rooms and path.parent.parent == ROOT / "tests", path
    assert len({path.name for path in files}) == len(files) > 150


def test_tests_import_from_toys_and_not_from_one_another():
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert not [name for name in imports(path) if name.startswith(("test_", "conftest"))], path


def ours_in(path: Path, known: set[str]):
    """Yields our modules that a file imports, even within functions, except those for type checkers only."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
        for node in ast.walk(test)
    }
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
    found = {
        module if path.name == "__init__.py" else module.rsplit(".", 1)[0]
        for module, path in modules()
        if not module.startswith("benchmarks")
    }
    assert found == set(project["packages"])


def test_every_file_of_data_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for path in (ROOT / "longgraft").glob("**/*.*"):
        if path.suffix in (".toml", ".json", ".html", ".h", ".cpp"):
            package = ".".join(path.parent.relative_to(ROOT).parts)
            assert any(map(path.match, project["package-data"][package])), path


def test_every_module_of_a_checkout_has_the_path_of_its_name():
    """So editors, type checkers and tests find them without an installation."""
    for module, path in modules():
        named = ROOT / module.replace(".", "/")
        file = named / "__init__.py" if path.stem == "__init__" else named.with_suffix(".py")
        assert file.samefile(path), module


def test_importing_longgraft_loads_nothing_heavy():
    code = "import longgraft, sys; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
