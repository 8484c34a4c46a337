"""The tokens of kept cells, to find where a prompt first differs from the kept prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class CellTokens:
    """The tokens of cells by their keys, and the cells that follow each cell; the key before a first cell is b""."""

    def __init__(self) -> None:
        self._followers: dict[bytes, dict[bytes, np.ndarray]] = {}
        self._before: dict[bytes, bytes] = {}

    def add(self, before: bytes, key: bytes, tokens: Sequence[int]) -> None:
        """Adds a cell.

        Args:
            before: Key of the cell before it.
        """
        self._followers.setdefault(before, {})[key] = np.array(tokens, np.int32)
        self._before[key] = before

    def remove(self, key: bytes) -> None:
        """Removes a cell, if it is there."""
        before = self._before.pop(key, None)
        if before is not None:
            followers = self._followers[before]
            del followers[key]
            if not followers:
                del self._followers[before]

    def after(self, key: bytes) -> dict[bytes, Sequence[int]]:
        """Returns the keys of the cells that follow this one, with their tokens."""
        return {follower: tokens.tolist() for follower, tokens in self._followers.get(key, {}).items()}
