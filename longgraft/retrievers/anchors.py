"""Places in the text that look like its end: the root's own token, or one like it, in the context most like the root's.

PLD+ (arXiv 2412.01447), AdaPLD (2606.05742).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import torch
from torch import Tensor

from longgraft.memories.hidden_states import HiddenStates
from longgraft.memories.token_history import TokenHistory, unbroken
from longgraft.prefill.chunked import last_occurrences
from longgraft.retrievers.suffix_decoding import occurrences
from longgraft.runtime.devices import sent

LEAST, LONGEST = 2, 32      # tokens of a match in a prediction, which has no hidden states to compare
MOST = 4096     # newest anchors of one token whose contexts are compared: it bounds a step's cost


class Anchors:
    """text: [t + 1] int64, the root last; anchors are positions from 1 to t - 1, ascending: each has a context.

    context:  row j is the target's hidden state at position j
    never:    tokens that are never anchors: end and padding tokens, whose neighbours are unrelated
    """

    def __init__(self, history: TokenHistory, context: HiddenStates, never: Set[int] = frozenset()) -> None:
        self.history, self.context, self.never = history, context, never

    def after_prediction(self, text: np.ndarray, length: int) -> tuple[list[int], int]:
        """(up to `length` tokens that followed the text's longest match in a prediction, its last occurrence; tokens of
        that match); none and 0 where it is too short."""
        before = self.history.before()
        places, matches = occurrences(before, text[-LONGEST:])
        if not len(places) or matches.max() < LEAST:
            return [], 0
        at = places[matches == matches.max()][-1]
        return unbroken(before[at:at + length]).tolist(), int(matches.max())

    def of(self, text: np.ndarray, token: int) -> np.ndarray:
        """[m] positions of this token."""
        if token in self.never:
            return np.empty(0, dtype=np.int64)
        return (np.flatnonzero(text[1:-1] == token) + 1)[-MOST:]

    @torch.inference_mode()
    def like(self, text: np.ndarray, tokens: Sequence[int], embedding: Tensor, least: float) -> list[np.ndarray]:
        """For each of these tokens [m] positions of tokens whose embedding's cosine with its own is at least `least`.

        embedding: [V, H]; its rows of the distinct tokens of the text are compared, in one product.
        """
        seen = text[1:-1][last_occurrences(torch.from_numpy(text[1:-1])).numpy()]
        seen = seen[~np.isin(seen, list(self.never))]
        if not len(seen):
            return [seen for _ in tokens]
        rows = embedding[sent(torch.from_numpy(np.concatenate([seen, tokens])), embedding.device)].float()
        near = (cosines(rows[:len(seen)], rows[len(seen):]) >= least).cpu().numpy()
        return [(np.flatnonzero(np.isin(text[1:-1], seen[column])) + 1)[-MOST:] for column in near.T]

    @torch.inference_mode()
    def closest(self, groups: Sequence[np.ndarray], position: int) -> list[int]:
        """Of each group of anchors the one whose context is most like that at `position`; all are compared in one
        product, with one device sync."""
        rows = self.context.rows
        before = torch.from_numpy(np.concatenate(groups) - 1)
        likeness = cosines(rows[sent(before, rows.device)].float(), rows[position:position + 1].float())[:, 0].cpu()
        parts = likeness.split([len(group) for group in groups])
        return [int(group[int(part.argmax())]) for group, part in zip(groups, parts, strict=True)]


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    """rows [m, H], others [n, H] float32 -> [m, n]; 0 for rows of zeros."""
    norms = torch.linalg.vector_norm(rows, dim=-1)[:, None] * torch.linalg.vector_norm(others, dim=-1)
    return rows @ others.T / norms.clamp(min=1e-20)
