"""Output paths, checked before the work starts: nothing is overwritten."""

from __future__ import annotations

import os
from pathlib import Path


def new_file(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file that does not exist or is empty, in a folder that does; else raises ValueError."""
    path = Path(path)
    if path.exists() and not (path.is_file() and not path.stat().st_size):
        raise ValueError(_exists(path, "file"))
    _check_writable(path, path.absolute().parent)
    return path


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a folder that can be made or is empty; raises ValueError for any other."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(_exists(path, "folder"))
    _check_writable(path, next(parent for parent in (path, *path.absolute().parents) if parent.exists()))
    return path


def _exists(path: Path, kind: str) -> str:
    return f"{path} exists already, and nothing is overwritten. Give a new {kind}."


def _check_writable(path: Path, parent: Path) -> None:
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise ValueError(
            f"{path} cannot be written: {parent} is no folder that you can write to. Make it, or give another path."
        )
