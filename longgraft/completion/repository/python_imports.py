"""Resolves Python imports to files and definitions of a repository.

It follows absolute and relative imports, source folders, names that a package's __init__ re-exports, and folders that
setuptools maps to packages.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import commonpath
from typing import Any

from longgraft.completion.repository.files import Repository
from longgraft.completion.repository.source import Source
from longgraft.completion.repository.symbols import Definition, Import, Outline
from longgraft.config.data_files import read_text

SOURCE_FOLDERS = ("", "src/", "lib/", "python/")        # folders in which a module without a package may lie
MOST_REEXPORTS = 5      # most files through which a name is followed


class Modules:
    """Python files by module.  folders: dotted package -> its folder, if a setting maps it to another folder."""

    def __init__(self, paths: Iterable[str], folders: dict[str, str]) -> None:
        self.paths = set(paths)
        self._folders = sorted(folders.items(), key=lambda one: -len(one[0]))
        self._named: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)    # last name -> [(stem, file)]
        for path in sorted(self.paths):
            stem = path.rsplit(".", 1)[0].removesuffix("/__init__")
            self._named[stem.rsplit("/", 1)[-1]].append((stem, path))

    def find(self, module: str, level: int, importer: str) -> str | None:
        """Returns the file that an import means, None if the repository has none; level: number of leading dots."""
        stem = module.replace(".", "/")
        if level:
            parts = importer.split("/")[:-level]
            return self._at("/".join([*parts, stem] if stem else parts)) if len(importer.split("/")) >= level else None
        for package, folder in self._folders:
            if (module + ".").startswith(package + ".") and (found := self._at(
                    "/".join(filter(None, (folder, stem[len(package) + 1:]))))):
                return found
        matches = [(one[:len(one) - len(stem)], file) for one, file in self._named[stem.rsplit("/", 1)[-1]]
                   if one == stem or one.endswith("/" + stem)]
        own_folder = importer.rpartition("/")[0] + "/" if "/" in importer else ""
        matches = [(folder, file) for folder, file in matches if f"{folder}__init__.py" not in self.paths
                   and ("." in module or folder in (own_folder, *SOURCE_FOLDERS))]
        return min(matches, key=lambda one: (-len(commonpath((one[1], importer))), len(one[0]), one[1]),
                   default=("", None))[1]

    def _at(self, stem: str) -> str | None:
        """Returns the file of a module path, or of a package's folder."""
        return next((path for path in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi", f"{stem}/__init__.pyi")
                     if path in self.paths), None)


def mapped_folders(root: Path) -> dict[str, str]:
    """Returns setuptools' package-dir of a pyproject.toml, without the root mapping ("")."""
    try:
        project: dict[str, Any] = tomllib.loads(read_text(root / "pyproject.toml"))
        found = project["tool"]["setuptools"]["package-dir"]
        return {package: str(folder).strip("/") for package, folder in found.items() if package}
    except (ValueError, KeyError, AttributeError, TypeError):
        return {}


class Resolver:
    """Resolves imports of Python files to files of the same repository."""

    def __init__(self, repository: Repository, sources: dict[str, Source]) -> None:
        self.repository, self.sources = repository, sources
        self.modules = Modules(sources, mapped_folders(repository.root))

    def imported(self, path: str, outline: Outline) -> Iterator[tuple[Import, str, str, Definition | None]]:
        """Yields (import, name in the importing file, imported file, definition).

        The definition is None for a whole module; the name is "" for a star import.
        """
        for one in outline.imports:
            module = self.modules.find(one.module, one.level, path)
            for name, alias in one.names:
                submodule = self.modules.find(f"{one.module}.{name}".lstrip("."), one.level, path)
                if name == "*" and module:
                    yield one, "", module, None
                elif submodule:
                    yield one, alias, submodule, None
                elif module:
                    yield from ((one, alias, file, found) for file, found in self.defined(module, name))
            if not one.names and module:
                yield one, one.alias, module, None

    def defined(self, path: str, name: str, visited: tuple[str, ...] = ()) -> list[tuple[str, Definition]]:
        """Returns (file, definition) of a module's name, followed through re-exports."""
        if path in visited or len(visited) == MOST_REEXPORTS or path not in self.sources:
            return []
        outline = self.repository.outline(self.sources[path])
        if found := outline.named(name):
            return [(path, one) for one in found]
        for one in outline.imports:
            inner = next((inner for inner, alias in one.names if alias == name or inner == "*"), None)
            if inner and (module := self.modules.find(one.module, one.level, path)) and (
                    found_there := self.defined(module, name if inner == "*" else inner, (*visited, path))):
                return found_there
        return []
