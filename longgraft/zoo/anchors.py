"""Anchors: places in the text that resemble its end.

An anchor holds the root's own token, or a similar one; the best anchor is the one whose context is most like
the root's.
Sources: PLD+ (arXiv 2412.01447), AdaPLD (2606.05742).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import torch
from torch import Tensor

from longgraft.memories.token_history import TokenHistory, unbroken
from longgraft.methods.building import history
from longgraft.methods.parts import Parts
from longgraft.methods.registry.suffix import occurrences
from longgraft.prefill.chunked import last_occurrences
from longgraft.runtime.devices import sent
from longgraft.zoo.hidden_states import HiddenStates

# Depth of the layer whose states are compared, as a share: Vicuna-7B, Qwen3-8B
USUAL = 9 / 32
OF_QWEN3 = 29 / 36


# Shortest and longest match in a prediction, in tokens; it has no hidden states to compare
LEAST = 2
LONGEST = 32
MOST = 4096  # newest anchors of one token whose contexts are compared; this bounds a step's cost


class Anchors:
    """A finder of anchors in a text: positions with a context whose continuation may be copied.

    A text is [t + 1] int64, the root last; its anchors are positions 1 to t - 1, ascending.

    Attributes:
        context: Row j is the target's hidden state at position j.
        never: Tokens that are never anchors: end and padding tokens, whose neighbours are unrelated.
    """

    def __init__(self, history: TokenHistory, context: HiddenStates, never: Set[int] = frozenset()) -> None:
        self.history = history
        self.context = context
        self.never = never

    def after_prediction(self, text: np.ndarray, length: int) -> tuple[list[int], int]:
        """Returns up to `length` tokens that followed the last occurrence of the text's longest match in a prediction.

        The result is (tokens, length of the match); ([], 0) if the match is too short.
        """
        before = self.history.before()
        places, matches = occurrences(before, text[-LONGEST:])
        if not len(places) or matches.max() < LEAST:
            return [], 0
        at = places[matches == matches.max()][-1]
        return unbroken(before[at : at + length]).tolist(), int(matches.max())

    def of(self, text: np.ndarray, token: int) -> np.ndarray:
        """Returns the positions [m] of this token."""
        if token in self.never:
            return np.empty(0, dtype=np.int64)
        return (np.flatnonzero(text[1:-1] == token) + 1)[-MOST:]

    @torch.inference_mode()
    def like(self, text: np.ndarray, tokens: Sequence[int], embedding: Tensor, least: float) -> list[np.ndarray]:
        """Returns for each token the positions [m] of tokens whose embedding has at least the cosine `least`
        with its own.

        Args:
            embedding: [V, H]; its rows for the distinct tokens of the text are compared, in one product.
        """
        last_tokens = text[1:-1][last_occurrences(torch.from_numpy(text[1:-1])).numpy()]
        last_tokens = last_tokens[~np.isin(last_tokens, list(self.never))]
        if not len(last_tokens):
            return [last_tokens for _ in tokens]
        rows = embedding[sent(torch.from_numpy(np.concatenate([last_tokens, tokens])), embedding.device)].float()
        near = (cosines(rows[: len(last_tokens)], rows[len(last_tokens) :]) >= least).cpu().numpy()
        return [(np.flatnonzero(np.isin(text[1:-1], last_tokens[column])) + 1)[-MOST:] for column in near.T]

    @torch.inference_mode()
    def closest(self, groups: Sequence[np.ndarray], position: int) -> list[int]:
        """Returns for each group the anchor whose context is most like that at `position`.

        All groups are compared in one product, with one device sync.
        """
        rows = self.context.rows
        before = torch.from_numpy(np.concatenate(groups) - 1)
        states = rows[sent(before, rows.device)].float()
        likeness = cosines(states, rows[position : position + 1].float())[:, 0].cpu()
        parts = likeness.split([len(group) for group in groups])
        return [int(group[int(part.argmax())]) for group, part in zip(groups, parts, strict=True)]


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the cosines [m, n] of rows [m, H] and columns [n, H], float32; 0 for rows of zeros."""
    norms = torch.linalg.vector_norm(rows, dim=-1)[:, None] * torch.linalg.vector_norm(columns, dim=-1)
    return rows @ columns.T / norms.clamp(min=1e-20)


def anchors(p: Parts, never: frozenset[int] = frozenset()) -> Anchors:
    """Anchors by the chosen layer, or the usual one; raises ValueError if the target has no such layer."""
    depth = p.target.config.num_hidden_layers
    layer = p.choices.layer
    if layer is None:
        layer = round(depth * (OF_QWEN3 if p.target.config.model_type.startswith("qwen3") else USUAL))
    if layer >= depth:
        raise ValueError(f"layer is {layer}, and {p.target.name} has layers 0 to {depth - 1}. Choose one of them.")
    return Anchors(history(p), states(p, layer), never)


def states(p: Parts, layer: int | None) -> HiddenStates:
    """A layer's inputs at all positions; None: the final norm's outputs."""
    return p.once(("states", layer), lambda: HiddenStates(layer))
