"""Keeps what was read of a repository's files on disk, so that a new process reads only files that changed."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from longgraft.completion.repository.secret_files import IDENTITY as SECRET_FORMS
from longgraft.completion.repository.source import Identity, Source
from longgraft.files.cache import cache_folder

FORMAT = 2  # raise it when files are read in another way, so that older indexes are not used
WAIT = 0.5  # seconds to wait for another process that writes the index
TABLE = (
    "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, modified INTEGER, size INTEGER, left_out "
    "TEXT, names TEXT, lines INTEGER)"
)
Known = tuple[Identity, Source | str]


class Index:
    """The index of one repository, a SQLite file in the cache folder.

    It holds names and numbers of lines, and no text.  It only saves time: one that cannot be read is built again,
    and one that cannot be written is left as it is.
    """

    def __init__(self, root: Path) -> None:
        # Other forms of secrets leave out other files.
        name = hashlib.sha256(f"{FORMAT} {SECRET_FORMS} {root}".encode()).hexdigest()[:24]
        self.file = cache_folder() / "repositories" / f"{name}.sqlite"

    def load(self) -> dict[str, Known]:
        """Returns path -> (identity, what was read of the file, or why it was left out)."""
        if not self.file.exists():
            return {}
        try:
            with self._opened() as database:
                return dict(map(_known, database.execute("SELECT * FROM files")))
        except sqlite3.OperationalError:  # another process writes it, or has not made the table yet
            return {}
        except (sqlite3.Error, ValueError, TypeError):
            with suppress(OSError):
                self.file.unlink()
            return {}

    def save(self, changed: Mapping[str, Known], deleted: Iterable[str]) -> None:
        """Writes the rows of changed files, and removes those of deleted ones."""
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # names may be private
            with self._opened() as database:
                database.execute("PRAGMA synchronous = OFF")  # a broken index is built again
                database.execute(TABLE)
                database.executemany("DELETE FROM files WHERE path = ?", ((path,) for path in deleted))
                database.executemany(
                    "REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
                    (_row(path, *read) for path, read in changed.items()),
                )
                database.commit()
        except (sqlite3.Error, OSError):
            pass  # a full disk, or a folder that is read-only

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.file, timeout=WAIT)) as database:
            yield database


def _row(path: str, identity: Identity, read: Source | str) -> tuple[object, ...]:
    if isinstance(read, str):
        return path, *identity, read, "", 0
    return path, *identity, "", " ".join(read.names), read.lines


def _known(row: tuple[str, int, int, str, str, int]) -> tuple[str, Known]:
    path, modified, size, left_out, names, lines = row
    source = Source(path, frozenset(names.split()), lines)
    return path, ((modified, size), left_out or source)
