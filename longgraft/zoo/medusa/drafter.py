"""Medusa (arXiv 2401.10774): each head guesses one later position independently; a static tree combines the guesses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.templates import Template
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.zoo.medusa.heads import MedusaHeads


class LastHidden(Memory):
    """The target's hidden state, after its final norm, at the token before the root: the root was drawn from it."""

    name = "last hidden state"
    wants = Wants(final=True)

    def __init__(self) -> None:
        self.newest: Tensor | None = None  # [1, H]

    def reset(self, capacity: int) -> None:
        self.newest = None

    def observe(self, seen: Observation) -> None:
        assert seen.final is not None, "final hidden states were wanted"
        self.newest = seen.final[-1:].clone()  # copied, because a view would keep a whole chunk's states

    def mark(self) -> Tensor | None:
        return self.newest  # never written to

    def rewind(self, mark: Tensor | None) -> None:
        self.newest = mark


# The authors' tree of 63 nodes, ranks as digits, in their order: by acceptance on their calibration text.
OFFICIAL = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 "
    "005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
)


@cache
def official(nodes: int, depth: int) -> Template:
    """Returns the first `nodes` paths of the authors' tree that are at most `depth` deep."""
    paths = [tuple(map(int, path)) for path in OFFICIAL.split() if len(path) <= depth]
    return Template(tuple(paths[:nodes]))


class Medusa:
    """A proposer of a tree of the heads' best tokens; a token does not depend on those above it.

    Attributes:
        read_out: The target's output layer, from states [.., H] to logits [.., V].
    """

    def __init__(
        self, hidden: LastHidden, heads: MedusaHeads, read_out: Callable[[Tensor], Tensor], clock: Clock | None = None
    ) -> None:
        self.memories = (hidden,)
        self.hidden = hidden
        self.heads = heads
        self.read_out = read_out
        self.clock = clock or Clock()

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            template = official(ask.budget - 1, self.heads.config.heads)
            gains, ids = self._guesses(1 + max(template.ranks))
            tokens = [ask.root]
            scores = [0.0]
            for path, parent in zip(template.paths, template.parents[1:], strict=True):
                head = len(path) - 1
                rank = path[-1]
                tokens.append(ids[head][rank])
                scores.append(scores[parent] + gains[head][rank])
            return ProposalTree.build(tokens, template.parents, scores, [ROOT] + [DRAFT] * len(template))

    def _guesses(self, count: int) -> tuple[list[list[float]], list[list[int]]]:
        """Returns (log-probabilities, ids) of each head's best tokens, best first."""
        assert self.hidden.newest is not None, "the heads have observed nothing"
        logits = self.heads.logits(self.hidden.newest, self.read_out)[0].float()
        gains, ids = logits.log_softmax(-1).topk(min(count, logits.shape[-1]))
        # One copy to the host: float64 holds ids and float32 scores exactly.
        both = torch.stack([gains.double(), ids.double()]).cpu()
        return both[0].tolist(), both[1].long().tolist()
