"""The files of a repository that may be shown to a model: walked, filtered, and kept while unchanged.

Links are not followed, because a target within the repository is found at its own path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

from pathspec import GitIgnoreSpec

from longgraft.completion.repository.gitignore import Rules, files_above, spec_of, vendored
from longgraft.completion.repository.index import Index, Known
from longgraft.completion.repository.languages import family
from longgraft.completion.repository.secret_files import secret_folder, secret_name, secret_text
from longgraft.completion.repository.source import SECRET, Identity, Source, identity_of, read_source

MOST = 20_000  # most files visited, those nearest to the cursor first


@dataclass(frozen=True)
class LeftOut:
    """Files that were left out."""

    counts: dict[str, int]  # files and folders by reason
    secrets: tuple[str, ...]  # paths of files and folders


class Repository:
    """A repository at `root`, a resolved folder.

    A file is read again when its modification time or size changes, also in another process: see `Index`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = Lock()
        self._index = Index(root)
        self._sources: dict[str, Known] = self._index.load()
        # Paths of files whose rows must be written or removed.
        self._unsaved = set[str]()
        self._deleted = set[str]()
        self._above = files_above(root)
        self._specs: dict[Path, tuple[Identity | None, GitIgnoreSpec | None]] = {}
        self._ignored: dict[str, bool] = {}  # by path; cleared when a pattern changes

    def sources(self, near: str) -> tuple[dict[str, Source], LeftOut]:
        """Returns (path -> file for all files of the languages of `near`, ordered by path; what was left out)."""
        out: Counter[str] = Counter()
        secrets: list[str] = []
        shown: dict[str, Source] = {}
        wanted = family(near)
        met = set[str]()
        visited = 0
        for path, identity in self._walk(near, out, secrets):
            if visited == MOST:
                out[f"beyond the first {MOST:,} files"] += 1
                break
            visited += 1
            if family(path) != wanted:
                out["in other languages"] += 1
                continue
            met.add(path)
            indexed = self._sources.get(path)
            if indexed is None or indexed[0] != identity:
                indexed = self._sources[path] = (identity, read_source(self.root, path, identity[1]))
                self._unsaved.add(path)
            if isinstance(indexed[1], Source):
                shown[path] = indexed[1]
            elif indexed[1] == SECRET:
                secrets.append(path)
            else:
                out[indexed[1]] += 1
        for deleted in [path for path in self._sources if path not in met and family(path) == wanted]:
            del self._sources[deleted]
            self._deleted.add(deleted)
        return dict(sorted(shown.items())), LeftOut(dict(sorted(out.items())), tuple(sorted(secrets)))

    def text(self, path: str) -> str:
        """Returns the text of a file from `sources`; "" if it was deleted since, or now holds a secret."""
        try:
            text = (self.root / path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return ""
        if secret_text(text):
            return ""
        return text

    def shows(self, path: str) -> bool:
        """True if the last call of `sources` for the file's languages returned this file."""
        indexed = self._sources.get(path)
        return indexed is not None and isinstance(indexed[1], Source)

    def save(self) -> None:
        """Writes to disk what was read since the last call."""
        if self._unsaved or self._deleted:
            changed = {path: self._sources[path] for path in self._unsaved if path in self._sources}
            self._index.save(changed, self._deleted - changed.keys())
            self._unsaved = set()
            self._deleted = set()

    def _walk(self, near: str, out: Counter[str], secrets: list[str]) -> Iterator[tuple[str, Identity]]:
        """Yields (path, identity) of files that no name excludes, nearest folders first."""
        above = []
        for file, before in self._above:
            spec = self._spec(file)
            if spec is not None:
                above.append(("", before, spec))
        pending = [("", Rules(tuple(above)), self._entries("", out))]
        while pending:
            folder, rules, entries = pending.pop()
            names = {entry.name for entry in entries}
            inner = []
            spec = self._spec(self.root / folder / ".gitignore", ".gitignore" in names)
            if spec is not None:
                rules = rules.deeper(folder, spec)
            for entry in entries:
                path = folder + entry.name
                if entry.is_symlink():
                    out["links"] += 1
                elif not entry.name.isprintable():  # an undecodable byte, or a line break
                    out["names that cannot be printed"] += 1
                elif (secret_folder if entry.is_dir() else secret_name)(entry.name):
                    secrets.append(path)
                elif entry.is_dir():
                    within = self._entries(path, out)
                    if vendored(entry.name, names, {item.name for item in within}):
                        out["vendored or built"] += 1
                    elif self._ignores(rules, path + "/"):
                        out["ignored by git"] += 1
                    else:
                        inner.append((path + "/", rules, within))
                elif self._ignores(rules, path):
                    out["ignored by git"] += 1
                elif entry.is_file():
                    identity = identity_of(Path(entry.path))
                    if identity is not None:  # else deleted
                        yield path, identity
            pending += sorted(inner, key=lambda item: (near.startswith(item[0]), item[0]))

    def _entries(self, folder: str, out: Counter[str]) -> list[os.DirEntry[str]]:
        try:
            return sorted(os.scandir(self.root / folder), key=lambda entry: entry.name)
        except FileNotFoundError:  # deleted
            return []
        except OSError:
            out["in folders that cannot be read"] += 1
            return []

    def _spec(self, file: Path, exists: bool = True) -> GitIgnoreSpec | None:
        """Returns the patterns of an ignore file, parsed once; if the file changes, cached decisions are cleared."""
        identity = None
        if exists:
            identity = identity_of(file)
        cached = self._specs.get(file)
        if cached is not None and cached[0] == identity:
            return cached[1]
        self._ignored.clear()
        spec = None
        if identity is not None:
            spec = spec_of(file)
        self._specs[file] = (identity, spec)
        return spec

    def _ignores(self, rules: Rules, path: str) -> bool:
        if path not in self._ignored:
            self._ignored[path] = rules.ignore(path)
        return self._ignored[path]


@lru_cache(maxsize=4)
def _opened(root: Path) -> Repository:
    return Repository(root)


def repository(root: str | os.PathLike[str]) -> Repository:
    """Returns the repository at a folder, with its cache; raises ValueError if there is no folder."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder. Pass the repository's root.")
    return _opened(folder.resolve())
