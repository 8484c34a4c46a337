"""A lock on a run's folder, because two processes in one would overwrite each other's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def sole_writer(folder: Path, who: str) -> Iterator[Path]:
    """Locks a folder until the block ends, and yields the lock's file.

    Args:
        who: Subject of the error, such as "sweep is writing into".

    Raises:
        ValueError: another process has the lock.
    """
    lock = FileLock(folder / "lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as held:
        raise ValueError(f"Another {who} {folder}.\nGive --out another folder, or wait until it has ended.") from held
    try:
        yield folder / "lock"
    finally:
        lock.release()
