"""The most probable paths of a ranking, in arrays.  This file imports no torch: engines' plug-ins need none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FIELDS = 4  # integers of a node
ROOT = 1  # origin of the root, as in tree.py

Probabilities = Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class RankedPaths:
    """Nodes below the end of a text, the most probable first; so the first n of them are a tree.

    Attributes:
        fields: [FIELDS, n] int64, the next four attributes.
        probabilities: [n] float64, estimated probabilities of the nodes' paths; 1 at the root.
    """

    fields: np.ndarray
    probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def tokens(self) -> np.ndarray:
        """[n] int64; the root's is a placeholder, 0."""
        return self.fields[0]

    @property
    def parents(self) -> np.ndarray:
        """[n] int64; -1 at the root."""
        return self.fields[1]

    @property
    def lengths(self) -> np.ndarray:
        """[n] int64: tokens of the longest context above a node that the text knows, 0 for other nodes."""
        return self.fields[2]

    @property
    def origin(self) -> np.ndarray:
        """[n] int64, bits as in `ProposalTree`."""
        return self.fields[3]

    @property
    def expected(self) -> float:
        """Expected accepted tokens."""
        return float(self.probabilities[1:].sum())

    def first(self, nodes: int) -> RankedPaths:
        """Returns the best so many nodes, the root included."""
        return RankedPaths(self.fields[:, :nodes], self.probabilities[:nodes])
