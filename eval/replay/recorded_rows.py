"""Predictions of a target around an answer, which `benchmarks.recorded` records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from longgraft.files.whole_files import written_whole
from longgraft.memories.continuations import WIDTH
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree

Row = tuple[np.ndarray, np.ndarray]
"""The best next tokens [WIDTH] int32, best first, and their probabilities [WIDTH] float16."""


@dataclass(frozen=True)
class RecordedRows:
    """Predictions by where they were made.

    Attributes:
        rows: By (position of the last committed token, tokens after it).  The position counts from the prompt's first
            token; the tokens never go on as the answer does.
    """

    rows: dict[tuple[int, tuple[int, ...]], Row]

    def save(self, path: Path) -> None:
        """Writes a compressed numpy file."""
        positions = np.asarray([position for position, _ in self.rows], np.int32)
        lengths = np.asarray([len(tokens) for _, tokens in self.rows], np.int32)
        tokens = np.asarray([token for _, tokens in self.rows for token in tokens], np.int32)
        ids, probabilities = (np.stack(column) for column in zip(*self.rows.values(), strict=True))
        with written_whole(path) as part, open(part, "wb") as file:
            np.savez_compressed(
                file, positions=positions, lengths=lengths, tokens=tokens, ids=ids, probabilities=probabilities
            )

    @classmethod
    def load(cls, path: Path) -> RecordedRows:
        """Reads the file that `save` writes; none are known without it."""
        if not path.exists():
            return cls({})
        with np.load(path) as read:
            paths = np.split(read["tokens"], read["lengths"].cumsum()[:-1])
            keys = zip(read["positions"].tolist(), (tuple(one.tolist()) for one in paths), strict=True)
            return cls(dict(zip(keys, zip(read["ids"], read["probabilities"], strict=True), strict=True)))

    def beside(self, seen: Observation, position: int, following: Sequence[int]) -> Observation:
        """Returns the observation with the rows that are known.

        Args:
            position: That of the tree's root.
            following: The committed tokens after the root.
        """
        if not self.rows:
            nothing = np.empty((0, WIDTH))
            return _with_rows(seen, nothing.astype(np.int32), nothing.astype(np.float32), [])
        known = {
            node: self.rows[key] for node, key in enumerate(places(seen.tree, position, following)) if key in self.rows
        }
        ids = np.empty((len(known), WIDTH), np.int32)
        probabilities = np.empty((len(known), WIDTH), np.float32)
        for place, row in enumerate(known.values()):
            ids[place], probabilities[place] = row
        return _with_rows(seen, ids, probabilities, list(known))


def _with_rows(seen: Observation, ids: np.ndarray, probabilities: np.ndarray, nodes: list[int]) -> Observation:
    """Returns the observation with the rows of these nodes."""
    return replace(
        seen,
        topk=torch.from_numpy(ids),
        topk_probabilities=torch.from_numpy(probabilities),
        ranked=torch.tensor(nodes, dtype=torch.int64),
    )


def places(tree: ProposalTree, position: int, following: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the key of each node in `RecordedRows.rows`."""
    found: list[tuple[int, tuple[int, ...]]] = [(position, ())]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        at, path = found[parent]
        ahead = at - position
        if not path and ahead < len(following) and following[ahead] == token:
            found.append((at + 1, ()))
        else:
            found.append((at, (*path, token)))
    return found
