"""LongSpec (arXiv 2502.17421): a beam of fixed widths, drafted from a window and the target's last keys and values.

Knows the drafter's memory and the target's output layer; knows no retriever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from longgraft.memories.windowed import WindowMemory
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import DRAFT, ROOT, UNPRUNED, ProposalTree

SHAPE = (4, 16, 16, 16, 16)     # nodes of each level; the official code's


class LongSpecDrafter:
    """A level's nodes are the best of all children of the level before, by the probability of their paths; a tree that
    has less room than the shape has nodes gets the best of them."""

    def __init__(self, memory: WindowMemory, shape: Sequence[int] = SHAPE, clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory, self.shape, self.clock = memory, tuple(shape), clock or Clock()
        self.nodes = 1 + sum(shape)
        memory.room(1 + sum(shape[:-1]))

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            self.memory.feed()
            return self._draft(ask.root).top(ask.budget)

    def _draft(self, root: int) -> ProposalTree:
        device = self.memory.device
        tokens, scores = torch.tensor([root], device=device), torch.zeros(1, device=device)
        seen, levels = torch.ones(1, 1, dtype=torch.bool, device=device), list[Tensor]()
        starts = [0, *accumulate((1, *self.shape))]         # of each level's nodes; the root is level 0
        for depth, width in enumerate(self.shape):
            depths = torch.repeat_interleave(torch.arange(depth + 1), torch.tensor((1, *self.shape[:depth])))
            self.clock.ran("draft")
            states = self.memory.expand(tokens, depth, seen, depths)
            k = min(width, self.memory.target.vocab_size)
            gains, ids = self.memory.target.logits(states).float().log_softmax(-1).topk(k)      # [b, k]
            scores, best = (scores[:, None] + gains).flatten().topk(width)
            above, tokens = best // k, ids.flatten()[best]
            seen = torch.cat([seen[above], torch.eye(width, dtype=torch.bool, device=device)], dim=1)
            # float64 holds ids and float32 scores exactly: one copy to the host brings all.
            levels.append(torch.stack([tokens.double(), (starts[depth] + above).double(), scores.double()]))
        ids, parents, scores = torch.cat(levels, dim=1).cpu()
        return ProposalTree(torch.cat([torch.tensor([root]), ids.long()]),
                            torch.cat([torch.tensor([-1]), parents.long()]),
                            torch.cat([torch.zeros(1), scores.float()]),
                            torch.tensor([ROOT] + [DRAFT] * len(ids), dtype=torch.int8), UNPRUNED)
