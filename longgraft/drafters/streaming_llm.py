"""A small model that drafts from a window of the text: its first and its newest tokens, as in TriForce.

StreamingLLM (arXiv 2309.17453) keeps rows that depend on evicted tokens; here the window is recomputed as a separate
text when it moves, which is that paper's baseline.  So no prompt is too long for the model, the model reads no prompt,
and its drafts depend only on the history.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longgraft.memories.draft_model import DraftModelCache
from longgraft.memories.token_history import TokenHistory
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

MOVES = 4       # the window moves by 1 / MOVES of its newest tokens at a time, so that it is rarely recomputed


class StreamingDrafter:
    """Drafts a chain of up to `length` tokens.  small: a cache without committed tokens, used by this proposer only."""

    def __init__(self, small: DraftModelCache, history: TokenHistory, sizes: tuple[int, int, int],
                 clock: Clock | None = None) -> None:
        """sizes: (sinks, tokens of the window, length)."""
        self.memories = (history,)
        self.small, self.history, self.clock = small, history, clock or Clock()
        self.sinks, self.window, self.length = sizes
        self._held: list[int] = []

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        length = min(self.length, ask.budget - 1)
        text, scores = self.text(ask.root), [0.0]
        begin = len(text) - 1
        with self.clock.part("draft"):
            while len(scores) <= length:
                token, score = ask.drawn(self._after(text)[None], len(scores))
                text.append(token)
                scores.append(scores[-1] + score)
        tokens = text[begin:]
        return ProposalTree.build(tokens, [*range(-1, length)], scores, [ROOT] + [DRAFT] * length)

    def text(self, root: int) -> list[int]:
        """Returns the window, the root last."""
        tokens = self.history.up_to(root)
        newest = self.window - self.sinks
        if len(tokens) <= self.window:
            return tokens.tolist()
        step = max(1, newest // MOVES)
        start = -(-(len(tokens) - newest) // step) * step
        return [*tokens[:self.sinks].tolist(), *tokens[start:].tolist()]

    def _after(self, text: list[int]) -> Tensor:
        """Returns logits [V] of the next token; tokens that are in the cache already are not read again."""
        if not self._held:
            self.small.reset(self.window + self.length)
        held, self._held = self._held, []       # after an interrupted pass the cache's content is unknown
        pairs = enumerate(zip(held, text[:-1], strict=False))
        known = next((i for i, (one, token) in pairs if one != token), min(len(held), len(text) - 1))
        self.small.back(known)
        logits = self.small.extend(torch.tensor(text[known:]))
        self._held = list(text)
        return logits
