"""The cache of models: one folder whose files are either whole or absent.

models/NAME.gguf            a model of the catalogue
models/NAME.gguf.partial    its beginning, after an interrupted fetch
models/SHA256.VERSION/      configuration, tokenizer and table of tensors of a GGUF file
models/SHA256.VERSION-DTYPE/    its dequantized weights: an ordinary transformers folder
models/hashes/              SHA-256 of files elsewhere, by path, size and time of change
models/partial/             scratch folder of the process that holds models/lock
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from longgraft.files.cache import cache_folder
from longgraft.files.file_errors import reason
from longgraft.runtime.fingerprint import digest

ROOM = 1.05  # free bytes that are required per byte that will be written


def models_folder() -> Path:
    """Returns the folder of models, which may not exist yet."""
    return cache_folder() / "models"


@contextmanager
def making(what: str, path: Path, size: int) -> Iterator[Path | None]:
    """Yields an empty folder in which the caller makes a file or folder, and from which it moves that to `path`.

    Only one process at a time makes anything.  The folder is removed at the end.  Files that a killed process
    left in it are removed at the next call.

    Args:
        what: Name of what is made, with which error messages begin.
        path: The file or folder that is wanted.  If it exists, None is yielded.
        size: Most bytes that will be written.

    Raises:
        ValueError: The cache cannot be written, or has no room for `size` bytes.
    """
    with locked(what):
        if path.exists():
            yield None
            return
        check_room(size)
        part = _scratch()
        part.mkdir()
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Waits until no other process changes the cache of models, and clears what a killed one left there.

    Raises:
        ValueError: The cache cannot be written. Errors of reading and writing in the body are reported in the same way.
    """
    from safetensors import SafetensorError

    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # the system frees it when a process dies
            shutil.rmtree(_scratch(), ignore_errors=True)
            yield
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{what} cannot be kept in {folder}: {reason(error)}. Make room, or set LONGGRAFT_CACHE to another folder."
        ) from error


def check_room(size: int) -> None:
    """Raises an OSError if the disk of the cache has no room for `size` more bytes."""
    free = shutil.disk_usage(models_folder()).free
    if free < ROOM * size:
        raise OSError(f"{size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} are free")


def sha256_of(path: Path) -> str:
    """Returns a file's SHA-256 in hexadecimal, remembered by its path, size and time of change."""
    status = path.stat()
    name = digest([str(path.resolve()), status.st_size, status.st_mtime_ns])
    remembered = models_folder() / "hashes" / name
    if remembered.exists():
        return remembered.read_text(encoding="ascii")
    sha256 = hashed(path)
    with suppress(OSError):  # a cache that cannot be written only costs time
        part = remembered.with_name(f"{remembered.name}.{os.getpid()}.partial")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(sha256, encoding="ascii")
        part.replace(remembered)
    return sha256


def hashed(path: Path) -> str:
    """Computes a file's SHA-256, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scratch() -> Path:
    return models_folder() / "partial"
