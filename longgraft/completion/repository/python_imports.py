"""Resolves Python imports to files and definitions of a repository.

It follows absolute and relative imports, source folders, names that a package's __init__ re-exports, and
folders that setuptools maps to packages.
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
    """Python files by module.

    Attributes:
        folders: Dotted package -> its folder, if a setting maps it to another folder.
    """

    def __init__(self, paths: Iterable[str], folders: dict[str, str]) -> None:
        self.paths = set(paths)
        self._folders = sorted(folders.items(), key=lambda item: -len(item[0]))
        # Last name -> [(stem, file)].
        self._named: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for path in sorted(self.paths):
            stem = path.rsplit(".", 1)[0].removesuffix("/__init__")
            self._named[stem.rsplit("/", 1)[-1]].append((stem, path))

    def find(self, module: str, level: int, importer: str) -> str | None:
        """Returns the file that an import means, None if the repository has none; level: number of leading dots."""
        stem = module.replace(".", "/")
        if level:
            parts = importer.split("/")
            if len(parts) < level:
                return None
            return self._at("/".join(filter(None, (*parts[:-level], stem))))
        for package, folder in self._folders:
            if (module + ".").startswith(package + "."):
                mapped = self._at("/".join(filter(None, (folder, stem[len(package) + 1:]))))
                if mapped:
                    return mapped
        importing, slash, _ = importer.rpartition("/")
        bases = (importing + slash, *SOURCE_FOLDERS)
        matches = []
        for path, file in self._named[stem.rsplit("/", 1)[-1]]:
            if path != stem and not path.endswith("/" + stem):
                continue
            folder = path[:len(path) - len(stem)]
            if f"{folder}__init__.py" not in self.paths and ("." in module or folder in bases):
                matches.append((-len(commonpath((file, importer))), len(folder), file))
        if matches:
            return min(matches)[2]
        return None

    def _at(self, stem: str) -> str | None:
        """Returns the file of a module path, or of a package's folder."""
        files = (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi", f"{stem}/__init__.pyi")
        return next((file for file in files if file in self.paths), None)


def mapped_folders(root: Path) -> dict[str, str]:
    """Returns setuptools' package-dir of a pyproject.toml, without the root mapping ("")."""
    try:
        project: dict[str, Any] = tomllib.loads(read_text(root / "pyproject.toml"))
        folders = project["tool"]["setuptools"]["package-dir"]
        return {package: str(folder).strip("/") for package, folder in folders.items() if package}
    except (ValueError, KeyError, AttributeError, TypeError):
        return {}


class Resolver:
    """A resolver of Python files' imports to files of the same repository."""

    def __init__(self, repository: Repository, sources: dict[str, Source]) -> None:
        self.repository = repository
        self.sources = sources
        self.modules = Modules(sources, mapped_folders(repository.root))

    def imported(self, path: str, outline: Outline) -> Iterator[tuple[Import, str, str, Definition | None]]:
        """Yields (import, name in the importing file, imported file, definition).

        The definition is None for a whole module; the name is "" for a star import.
        """
        for statement in outline.imports:
            module = self.modules.find(statement.module, statement.level, path)
            for name, alias in statement.names:
                submodule = self.modules.find(f"{statement.module}.{name}".lstrip("."), statement.level, path)
                if name == "*" and module:
                    yield statement, "", module, None
                elif submodule:
                    yield statement, alias, submodule, None
                elif module:
                    for file, definition in self.defined(module, name):
                        yield statement, alias, file, definition
            if not statement.names and module:
                yield statement, statement.alias, module, None

    def defined(self, path: str, name: str, visited: tuple[str, ...] = ()) -> list[tuple[str, Definition]]:
        """Returns (file, definition) of a module's name, followed through re-exports."""
        if path in visited or len(visited) == MOST_REEXPORTS or path not in self.sources:
            return []
        outline = self.repository.outline(self.sources[path])
        definitions = outline.named(name)
        if definitions:
            return [(path, definition) for definition in definitions]
        for statement in outline.imports:
            inner = next((inner for inner, alias in statement.names if alias == name or inner == "*"), None)
            if not inner:
                continue
            module = self.modules.find(statement.module, statement.level, path)
            if not module:
                continue
            if inner == "*":
                inner = name
            followed = self.defined(module, inner, (*visited, path))
            if followed:
                return followed
        return []
