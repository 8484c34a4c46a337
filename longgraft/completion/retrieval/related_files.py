"""Tells by their names which files belong together."""

from __future__ import annotations

import re
from posixpath import splitext


def counterpart(path: str) -> str:
    """Returns the name of a file without test prefix or suffix, which is the same for a file and its tests."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return re.sub(r"^test_|_test$|_tests$|\.test$|\.spec$|_spec$|(?<=[a-z])Tests?$|^Test(?=[A-Z])", "",
                  stem).strip("_")


def is_test(path: str) -> bool:
    """True if a file is a test by its name, or by its folder's name."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return counterpart(path) != stem.strip("_") or bool(re.search(r"(?:^|/)(?:tests?|__tests__|spec)/", path))
