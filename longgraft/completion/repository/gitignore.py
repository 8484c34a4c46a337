"""Files that git ignores, by the .gitignore of every folder (pathspec), and folders of third-party or built code.

A user's global ignore file is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

# Folders of third-party code and of the output of tools, at any depth.
VENDORED = frozenset(
    name
    for names in (
        ".git .hg .svn .jj",
        "node_modules bower_components jspm_packages vendor vendored _vendor third_party third-party thirdparty",
        "site-packages __pycache__ __pypackages__ .venv venv .tox .nox .eggs",
        ".mypy_cache .ruff_cache .pytest_cache .hypothesis .ipynb_checkpoints .cache .idea .vs .gradle .terraform",
        ".next .nuxt .svelte-kit .parcel-cache .turbo .yarn .dart_tool htmlcov Pods Carthage DerivedData",
    )
    for name in names.split()
)
# Folders of build output, if a project's manifest lies beside the folder and the folder is no Python package.
BUILT = frozenset(("build", "dist", "out", "target", "bin", "obj"))
MANIFESTS = frozenset(
    name
    for names in (
        "package.json pyproject.toml setup.py setup.cfg Cargo.toml pom.xml",
        "build.sbt build.gradle build.gradle.kts CMakeLists.txt Makefile",
    )
    for name in names.split()
)
# A folder that contains one of these is a virtual environment, a cache, or another repository.
MARKS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG", ".git"))


def vendored(name: str, siblings: set[str], children: set[str]) -> bool:
    """True if a folder is left out because of its name, its siblings' names or its children's."""
    return (
        name in VENDORED
        or name.endswith((".egg-info", ".dist-info"))
        or bool(children & MARKS)
        or (name in BUILT and bool(siblings & MANIFESTS) and "__init__.py" not in children)
    )


@dataclass(frozen=True)
class Rules:
    """The ignore patterns of one folder."""

    # (folder of the ignore file, ending in a slash; prefix of paths; patterns), the deepest last; the last match
    # decides.
    specs: tuple[tuple[str, str, GitIgnoreSpec], ...] = ()

    def deeper(self, folder: str, spec: GitIgnoreSpec) -> Rules:
        """Returns these rules and the .gitignore of a folder within, whose path is "" or ends in a slash."""
        return Rules((*self.specs, (folder, "", spec)))

    def ignore(self, path: str) -> bool:
        """True if git ignores the path, which is relative to the repository's root; a folder's path ends in a slash."""
        for folder, before, spec in reversed(self.specs):
            ignored = spec.check_file(before + path[len(folder) :]).include
            if ignored is not None:
                return ignored
        return False


def spec_of(path: str | os.PathLike[str]) -> GitIgnoreSpec | None:
    """Returns the patterns of a file; None if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return None
    return GitIgnoreSpec(_patterns(text.split("\n")))


def _patterns(lines: Iterable[str]) -> Iterator[Any]:
    """Yields the lines' patterns; an invalid pattern matches nothing, as in git."""
    for line in lines:
        try:
            yield from GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error):  # a lone ! or a backslash at the end; a range such as [z-a]
            continue


def files_above(root: Path) -> list[tuple[Path, str]]:
    """Returns (ignore file, prefix of paths) for all ignore files outside a root that git reads.

    If the root lies within a repository, these are the repository's exclude file, then the .gitignore files
    above the root, the topmost first.
    """
    inner = [root, *root.parents]
    top = next((folder for folder in inner if (folder / ".git").exists()), root)
    above = inner[1 : inner.index(top) + 1]
    excluded = (top / ".git" / "info" / "exclude", top)
    places = [excluded, *((folder / ".gitignore", folder) for folder in reversed(above))]
    return [(file, f"{root.relative_to(folder)}/".removeprefix("./").replace("\\", "/")) for file, folder in places]
