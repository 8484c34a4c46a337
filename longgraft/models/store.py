"""The cache of models: one folder, whose files are whole or not there.  Knows files and hashes; knows no format.

    models/NAME.gguf            of the catalogue
    models/SHA256-DTYPE/        dequantised: an ordinary transformers folder
    models/hashes/              SHA-256 of files elsewhere, by path, size and time of change
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from longgraft.config.cache import cache_folder
from longgraft.config.file_errors import reason
from longgraft.runtime.fingerprint import digest

ROOM = 1.05         # of the bytes that are written


def models_folder() -> Path:
    return cache_folder() / "models"


@contextmanager
def making(what: str, path: Path, size: int) -> Iterator[Path | None]:
    """An empty folder to make `path` in: the caller moves the result there.  None where `path` is there already.

    One process at a time makes anything; what an interrupted one left is removed.  ValueError where the cache cannot be
    written, or has no room.  size: bytes that will be written at most
    """
    if path.exists():
        yield None
        return
    part = models_folder() / "partial"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with open(part.with_name("lock"), "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)        # freed by the system where a process dies
            if path.exists():
                yield None
                return
            shutil.rmtree(part, ignore_errors=True)
            if (free := shutil.disk_usage(part.parent).free) < ROOM * size:
                raise OSError(f"{size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} are free")
            part.mkdir()
            try:
                yield part
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ValueError(f"{what} cannot be kept in {part.parent}: {reason(error)}. Make room, or set "
                         "LONGGRAFT_CACHE to another folder.") from error


def sha256_of(path: Path) -> str:
    """Of a file; remembered by path, size and time of change."""
    found = path.stat()
    known = models_folder() / "hashes" / digest([str(path.resolve()), found.st_size, found.st_mtime_ns])
    if known.exists():
        return known.read_text(encoding="ascii")
    sha256 = hashed(path)
    with suppress(OSError):     # a cache that cannot be written only costs time
        part = known.with_name(f"{known.name}.{os.getpid()}.partial")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(sha256, encoding="ascii")
        part.replace(known)
    return sha256


def hashed(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
