"""One pass of the target on a part of its cache, heads that look further ahead, and frequent n-grams: TokenSwift
(arXiv 2502.18890), without its repetition penalty, which would change what the target says.

Knows target, partial caches, heads and n-grams; knows no rule by name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longgraft.memories.frequent import FrequentNgrams
from longgraft.memories.partial_kv import PartialCache
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Segment, Target
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree
from longgraft.yarn_drafters.medusa import MedusaHeads


class TokenSwift:
    """The target's own next token, below it `branches` guesses of each of up to three heads, and the n-grams that begin
    with it."""

    def __init__(self, target: Target, heads: MedusaHeads, memories: tuple[PartialCache, FrequentNgrams],
                 sizes: tuple[int, int], clock: Clock | None = None) -> None:
        """sizes: (branches, n-grams at most)."""
        self.memories = memories
        self.target, self.heads, self.clock = target, heads, clock or Clock()
        self.partial, self.frequent = memories
        self.branches, self.most = sizes

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            token, gain, guesses = self._guessed(ask)
            drafted = self._tree(ask.root, (token, gain), guesses)
        with self.clock.part("retrieve"):
            grams = self.frequent.after(token, self.most)
            # Where both do not fit, n-grams get up to half of what stands behind the first token.
            tree = drafted.top(ask.budget - min(sum(map(len, grams)), (ask.budget - 2) // 2))
            for gram in grams:
                chain = ProposalTree.chain(torch.tensor([token, *gram]), RETRIEVED)
                tree = tree.merge(chain, at=1, budget=ask.budget)
        return tree.merge(drafted, at=0, budget=ask.budget)

    def _guessed(self, ask: Ask) -> tuple[int, float, list[tuple[list[int], list[float]]]]:
        """(the next token, its log-probability, each head's best tokens and theirs)."""
        cache = self.partial.fresh()
        self.clock.ran("own")
        report, = self.target.run([Segment(ProposalTree.root_only(ask.root), cache)], Wants(final=True))
        assert report.final is not None
        at = torch.tensor([ask.position + 1], device=report.logits.device)
        drawn = ask.draws.draw(report.logits, at)
        gain = report.logits.float().log_softmax(-1).gather(1, drawn[:, None])
        ahead = self.heads.logits(report.final, self.target.logits)[0, :3].float().log_softmax(-1)      # [3, V]
        gains, ids = ahead.topk(min(self.branches, ahead.shape[1]))
        found = _on_host(drawn, gain, ids, gains)
        width = ids.shape[1]
        rows = [(list(map(int, row[:width])), row[width:]) for row in found[1:]]
        return int(found[0][0]), found[0][1], rows

    @staticmethod
    def _tree(root: int, first: tuple[int, float], guesses: list[tuple[list[int], list[float]]]) -> ProposalTree:
        tokens, parents, scores = [root, first[0]], [-1, 0], [0.0, first[1]]
        level = [1]
        for ids, gains in guesses:
            below = [(node, token, gain) for node in level for token, gain in zip(ids, gains, strict=True)]
            level = [*range(len(tokens), len(tokens) + len(below))]
            for node, token, gain in below:
                tokens.append(token)
                parents.append(node)
                scores.append(scores[node] + gain)
        return ProposalTree.build(tokens, parents, scores, [ROOT] + [DRAFT] * (len(tokens) - 1))


def _on_host(drawn: Tensor, gain: Tensor, ids: Tensor, gains: Tensor) -> list[list[float]]:
    """[[the drawn token, its gain], each head's ids and gains]: one wait; float64 holds ids and float32 exactly."""
    ahead = torch.cat([ids.double(), gains.double()], 1).flatten()
    flat = torch.cat([drawn.double(), gain[0].double(), ahead]).tolist()
    width = 2 * ids.shape[1]
    return [flat[:2], *(flat[i:i + width] for i in range(2, len(flat), width))]
