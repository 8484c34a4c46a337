"""The folder of files that are kept between runs: compiled kernels, calibrations, models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns $LONGGRAFT_CACHE, else longgraft in $XDG_CACHE_HOME, else ~/.cache/longgraft; it may not exist yet."""
    if given := os.environ.get("LONGGRAFT_CACHE"):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longgraft"
