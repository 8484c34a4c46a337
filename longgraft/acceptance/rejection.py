"""Rejection sampling for a draft chain whose tokens were sampled independently of the target.

A drafted token is accepted with probability min(1, p / q); at the first rejection the next token is drawn
from the part of p that exceeds q (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).  The output
has the target's distribution, but its tokens differ from plain decoding's: a draft changes the noise that
they are drawn with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance.gumbel import gumbel, uniform
from longgraft.acceptance.rules import BROKEN, DrawThenWalk, Sampled, checked
from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree

# Noise streams.
DRAFTED = 1  # drafted tokens
ACCEPTED = 2  # their acceptance
CORRECTED = 3  # the token after them


@dataclass(frozen=True)
class Rejection:
    """Rejection sampling; `sampled` is the target's distribution.

    Drafts must be drawn with `sampled.apart(DRAFTED)`, or with other independent noise.  All noise depends
    on a token's position, so that a run can be repeated.  After a rejection the same positions are drafted
    again with the same noise; this is safe because no emitted token depends on it.
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
        # If the logits of a node are NaN or infinite, so are all of its probabilities.
        following = torch.where(p[accepted, 0].isnan(), BROKEN, following)
        stop, token = torch.stack([accepted, following]).tolist()
        return torch.arange(1 + stop), checked(token)

    def settle(self, p: Tensor, q: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Settles any number of chains of n nodes at once, without a host read.

        Args:
            p: [.., n, V], the target's distribution after each node.
            q: [.., n, V], the distribution that each node's token was drawn from (the root's is not read).
            tokens: [.., n] int64.
            positions: [.., n] int64, the position of the token after each node.

        Returns:
            (number of accepted drafted tokens [..], the token that follows them [..]), int64.
        """
        drawn = tokens[..., 1:, None]
        before = positions[..., :-1]
        threshold = uniform(self.sampled.apart(ACCEPTED).keys(before), torch.zeros_like(before))
        probabilities = p[..., :-1, :].gather(-1, drawn)[..., 0]
        passed = threshold * q[..., 1:, :].gather(-1, drawn)[..., 0] < probabilities
        accepted = passed.long().cumprod(-1).sum(-1)
        # Nothing was drafted after the last node: q is 0 there, and the residual is p.
        at = accepted[..., None, None]
        last_p = p.take_along_dim(at, -2)[..., 0, :]
        last_q = torch.cat([q[..., 1:, :], torch.zeros_like(q[..., :1, :])], -2).take_along_dim(at, -2)[..., 0, :]
        residual = (last_p - last_q).clamp(min=0)
        # Two distributions that differ only by rounding may leave no residual.
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, last_p)
        noise = self.sampled.apart(CORRECTED).keys(positions.gather(-1, accepted[..., None]))
        vocabulary = torch.arange(p.shape[-1], device=p.device)
        return accepted, (gumbel(noise, vocabulary) + residual.double().log()).argmax(-1)
