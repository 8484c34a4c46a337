"""The rule for a chain whose tokens were sampled independently of the target: accept with min(1, p / q), on the first
rejection draw from what p has more than q (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).

Knows laws, positions and chains; knows no model and no proposer.  The law of what is said is the target's own; the
tokens are not plain decoding's, because a draft changes which noise they are drawn by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance.gumbel import gumbel, uniform
from longgraft.acceptance.rules import DrawThenWalk, Sampled
from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree

DRAFTED, ACCEPTED, CORRECTED = 1, 2, 3      # streams of noise: of drafted tokens, of their acceptance, of what follows


@dataclass(frozen=True)
class Rejection:
    """sampled: the target's law.  Drafted tokens must come from `sampled.apart(DRAFTED)`, or other noise of their own.

    All noise is that of a token's position, so that a run repeats; what is drafted behind a rejection is drafted anew
    from the same noise, which nothing that was said depends on.
    """

    sampled: Sampled

    @property
    def guesses(self) -> DrawThenWalk:
        return self.sampled

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        assert tree.law is not None and tree.is_chain, "tokens sampled independently of the target make a chain"
        device = logits.device
        p = self.sampled.warp(logits).softmax(-1)
        accepted, following = self.settle(p, tree.law, sent(tree.tokens, device), sent(positions, device))
        stop, token = torch.stack([accepted, following]).tolist()
        return torch.arange(1 + stop), token

    def settle(self, p: Tensor, q: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(drafted tokens that are accepted [..], the token that follows them [..]), int64; no host read.

        Of any number of chains of n nodes: p [.., n, V], what the target says after each node; q [.., n, V], the law
        that its own token was drawn from (the root's is not read); tokens [.., n]; positions [.., n] int64 of what
        follows each node.
        """
        drawn, before = tokens[..., 1:, None], positions[..., :-1]
        threshold = uniform(self.sampled.apart(ACCEPTED).keys(before), torch.zeros_like(before))
        likely = p[..., :-1, :].gather(-1, drawn)[..., 0]
        right = threshold * q[..., 1:, :].gather(-1, drawn)[..., 0] < likely
        accepted = right.long().cumprod(-1).sum(-1)
        # Behind the last node nothing was drafted: what p has more than nothing is p.
        at = accepted[..., None, None]
        here = p.take_along_dim(at, -2)[..., 0, :]
        below = torch.cat([q[..., 1:, :], torch.zeros_like(q[..., :1, :])], -2).take_along_dim(at, -2)[..., 0, :]
        rest = (here - below).clamp(min=0)
        # Of two laws that differ by their rounding alone, nothing may be left.
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, here)
        noise = self.sampled.apart(CORRECTED).keys(positions.gather(-1, accepted[..., None]))
        words = torch.arange(p.shape[-1], device=p.device)
        return accepted, (gumbel(noise, words) + rest.double().log()).argmax(-1)
