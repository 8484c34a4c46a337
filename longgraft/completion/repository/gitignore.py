"""Which files git ignores, by the .gitignore of every folder (pathspec); and folders of third-party or built code.

Knows names; reads .gitignore files only.  A user's global ignore file is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

# Folders that hold other people's code, or what a tool made, wherever they stand.
VENDORED = frozenset((
    ".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", "jspm_packages", "vendor", "vendored", "_vendor",
    "third_party", "third-party", "thirdparty", "site-packages", "__pycache__", "__pypackages__", ".venv", "venv",
    ".tox", ".nox", ".eggs", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints",
    ".cache", ".idea", ".vs", ".gradle", ".terraform", ".next", ".nuxt", ".svelte-kit", ".parcel-cache", ".turbo",
    ".yarn", ".dart_tool", "htmlcov", "Pods", "Carthage", "DerivedData"))
# Folders that hold what was built where they lie beside a project's manifest, and are no package themselves.
BUILT = frozenset(("build", "dist", "out", "target", "bin", "obj"))
MANIFESTS = frozenset(("package.json", "pyproject.toml", "setup.py", "setup.cfg", "Cargo.toml", "pom.xml", "build.sbt",
                       "build.gradle", "build.gradle.kts", "CMakeLists.txt", "Makefile"))
# A folder with one of these in it is a virtual environment, a cache, or another repository.
MARKS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG", ".git"))


def vendored(name: str, beside: set[str], within: set[str]) -> bool:
    """Whether a folder is left out by its name, the names beside it or the names in it."""
    return (name in VENDORED or name.endswith((".egg-info", ".dist-info")) or bool(within & MARKS)
            or (name in BUILT and bool(beside & MANIFESTS) and "__init__.py" not in within))


@dataclass(frozen=True)
class Rules:
    """What holds in one folder.  specs: (folder of the file with a slash behind, what to put before a path, patterns):
    the deeper ones last, since the last word counts."""

    specs: tuple[tuple[str, str, GitIgnoreSpec], ...] = ()

    def deeper(self, folder: str, spec: GitIgnoreSpec) -> Rules:
        """With a .gitignore of a folder ("", or with a slash behind) of the repository."""
        return Rules((*self.specs, (folder, "", spec)))

    def ignore(self, path: str) -> bool:
        """path: from the repository's root; a folder's ends with a slash."""
        for folder, before, spec in reversed(self.specs):
            said = spec.check_file(before + path[len(folder):]).include
            if said is not None:
                return said
        return False


def spec_of(path: str | os.PathLike[str]) -> GitIgnoreSpec | None:
    """The patterns of a file; None where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return GitIgnoreSpec(_patterns(text.splitlines()))


def _patterns(lines: Iterable[str]) -> Iterator[Any]:
    """The lines' patterns.  A line that is no pattern matches nothing, as in git."""
    for line in lines:
        try:
            yield from GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error):      # a lone ! or a backslash at the end; a range such as [z-a]
            continue


def files_above(root: Path) -> list[tuple[Path, str]]:
    """(file, what to put before a path) of what git reads outside a root, the root's folder in its repository: the
    repository's exclude file, and the .gitignore files above the root, the topmost first."""
    inner = [root, *root.parents]
    top = next((folder for folder in inner if (folder / ".git").exists()), root)
    above = inner[1:inner.index(top) + 1]
    excluded = (top / ".git" / "info" / "exclude", top)
    places = [excluded, *((folder / ".gitignore", folder) for folder in reversed(above))]
    return [(file, f"{root.relative_to(folder)}/".removeprefix("./").replace("\\", "/")) for file, folder in places]
