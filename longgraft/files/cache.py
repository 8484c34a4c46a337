"""The folder of files that are kept between runs: compiled kernels, calibrations, models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns $LONGGRAFT_CACHE, else longgraft in $XDG_CACHE_HOME, else ~/.cache/longgraft; it may not exist yet."""
    folder = os.environ.get("LONGGRAFT_CACHE")
    if folder:
        return Path(folder).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "longgraft"
