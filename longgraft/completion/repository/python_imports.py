"""Which file of a repository a Python import means, and which definition there: absolute and relative imports, source
folders, names that a package's __init__ hands on, and folders that setuptools maps to packages.

Knows paths and outlines; installed packages are none of its affair.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import commonpath
from typing import Any

from longgraft.completion.repository.files import Repository, Source
from longgraft.completion.repository.symbols import Definition, Import, Outline

SOURCE_FOLDERS = ("", "src/", "lib/", "python/")        # where a module without a package around it may lie
HANDED_ON = 5           # files that a name may be handed on by


class Modules:
    """Python files by the modules that they are.  folders: dotted package -> its folder, where it lies elsewhere."""

    def __init__(self, paths: Iterable[str], folders: dict[str, str]) -> None:
        self.paths = set(paths)
        self._folders = sorted(folders.items(), key=lambda one: -len(one[0]))
        self._named: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)    # last name -> [(module path, file)]
        for path in sorted(self.paths):
            way = path.rsplit(".", 1)[0].removesuffix("/__init__")
            self._named[way.rsplit("/", 1)[-1]].append((way, path))

    def find(self, module: str, level: int, importer: str) -> str | None:
        """The file of a module as a file names it; None where the repository has none."""
        way = module.replace(".", "/")
        if level:
            parts = importer.split("/")[:-level]
            return self._at("/".join([*parts, way] if way else parts)) if len(importer.split("/")) >= level else None
        for package, folder in self._folders:
            if (module + ".").startswith(package + ".") and (found := self._at(
                    "/".join(filter(None, (folder, way[len(package) + 1:]))))):
                return found
        fitting = [(one[:len(one) - len(way)], file) for one, file in self._named[way.rsplit("/", 1)[-1]]
                   if one == way or one.endswith("/" + way)]
        beside = importer.rpartition("/")[0] + "/" if "/" in importer else ""
        fitting = [(folder, file) for folder, file in fitting if f"{folder}__init__.py" not in self.paths
                   and ("." in module or folder in (beside, *SOURCE_FOLDERS))]
        return min(fitting, key=lambda one: (-len(commonpath((one[1], importer))), len(one[0]), one[1]),
                   default=("", None))[1]

    def _at(self, way: str) -> str | None:
        """The file of a module path, or of a package's folder."""
        return next((path for path in (f"{way}.py", f"{way}/__init__.py", f"{way}.pyi", f"{way}/__init__.pyi")
                     if path in self.paths), None)


def mapped_folders(root: Path) -> dict[str, str]:
    """setuptools' package-dir of a pyproject.toml; without the mapping of everything ("")."""
    try:
        project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        found = project["tool"]["setuptools"]["package-dir"]
        return {package: str(folder).strip("/") for package, folder in found.items() if package}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}


class Resolver:
    """Imports of Python files of one repository, as far as its own files answer them."""

    def __init__(self, repository: Repository, sources: dict[str, Source]) -> None:
        self.repository, self.sources = repository, sources
        self.modules = Modules(sources, mapped_folders(repository.root))

    def imported(self, path: str, outline: Outline) -> Iterator[tuple[Import, str, str, Definition | None]]:
        """(import, name in the importing file, file, definition): of a module that is imported whole the definition is
        None, and of a star's the name is ""."""
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

    def defined(self, path: str, name: str, by: tuple[str, ...] = ()) -> list[tuple[str, Definition]]:
        """(file, definition) of a name of a module, also where it is imported there from another."""
        if path in by or len(by) == HANDED_ON or path not in self.sources:
            return []
        outline = self.repository.outline(self.sources[path])
        if found := outline.named(name):
            return [(path, one) for one in found]
        for one in outline.imports:
            inner = next((inner for inner, alias in one.names if alias == name or inner == "*"), None)
            if inner and (module := self.modules.find(one.module, one.level, path)) and (
                    found_there := self.defined(module, name if inner == "*" else inner, (*by, path))):
                return found_there
        return []
