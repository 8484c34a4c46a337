"""EAGLE-3 (arXiv 2503.01840): a one-layer network drafts a beam of paths; the best nodes of all levels form a tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from longgraft.drafters.pruning import UNREAD
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, PruningPolicy, Verdict
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import SIZES, PaddedTree, Tree, size_of
from longgraft.trees.tree import DRAFT, ROOT, UNPRUNED, ProposalTree

LEVELS = 9  # draft levels: EAGLE's depth 8 and the root's own step, the paper's setting
TOP_K = 10  # beam width and branching: EAGLE-3's released setting

T = TypeVar("T")


@dataclass(frozen=True)
class _DraftedLevel:
    """A drafted level: its c candidates, and the beam of the best b, which the next expansion feeds."""

    tokens: Tensor  # [c] int64
    parents: Tensor  # [c] int64, indices into the pool of all levels
    scores: Tensor  # [c] float32, scores of the paths
    beam: Tensor  # [b] indices of the best candidates of this level
    hidden: Tensor  # [1, b, H], the states of the beam's parents
    visible: Tensor  # [b, m] bool, the scratch rows that each of the beam sees, its own included
    distribution: Callable[[], Tensor]  # -> [r, V] float32, log-probabilities after each of the candidates' r parents


class Eagle3Drafter:
    """Drafts trees of at most 1 + levels levels; rows of drafted tokens are scratch rows in `memory`.

    If regions are fixed, each level is one region, or all are if the policy reads none.  Trees of up to 64 nodes
    then stay on the device.
    """

    def __init__(
        self,
        memory: Eagle3Cache,
        policy: PruningPolicy,
        levels: int = LEVELS,
        top_k: int = TOP_K,
        clock: Clock | None = None,
    ) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.network = memory.network
        self.policy = policy
        self.levels = levels
        self.top_k = min(top_k, self.network.config.draft_vocab_size)
        self.clock = clock or Clock()
        self.device = memory.device
        self.regions = memory.regions
        memory.room(self.levels * self.top_k)

    @torch.inference_mode()
    def propose(self, ask: Ask) -> Tree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            self.memory.begin(ask.root)
            return self._draft(ask)

    def _draft(self, ask: Ask) -> Tree:
        policy = ask.pruning or self.policy
        most = self.levels
        if self.top_k == 1:  # a chain has one node a level
            most = min(most, ask.budget - 1)
        unread = type(policy) in UNREAD and self.regions.fixed
        if unread:
            levels = list(self._region(("levels", most), partial(self._all, most)))
        else:
            levels = [self._region("root", self._first)]
        level: Level | None = None
        for index in range(most):
            last = index == most - 1
            drafted = levels[index]
            level = Level(index, drafted.scores, last, ask.budget, drafted.distribution, level)
            verdict = policy(level)
            if last or not verdict.expand:
                break
            self.clock.ran("draft")
            if index + 1 == len(levels):
                levels.append(self._region(index, partial(self._next, drafted, index)))
        stage = index if verdict.stage is None else verdict.stage
        if verdict == Verdict():
            stage = UNPRUNED
        slots = min(ask.budget - 1, sum(len(level.tokens) for level in levels))
        if verdict.slots is not None:
            slots = min(slots, verdict.slots)
        if self.regions.fixed and slots < SIZES[-1]:
            rows = size_of(1 + slots)
            # The selection reads the tensors of the recording that drafted the levels.
            name = "select", unread, index, slots, stage
            return self._region(name, lambda: self._on_device(levels, slots, stage, rows))
        return self._on_host(ask.root, levels, slots, stage)

    def _region(self, name: Hashable, region: Callable[[], T]) -> T:
        # Drafters of one memory share recordings of the same levels.
        return self.regions((self.memory, self.top_k, self.memory.cache.age, name), region)

    def _all(self, most: int) -> list[_DraftedLevel]:
        """Drafts all levels in one region, for a policy that reads none of them."""
        levels = [self._first()]
        for index in range(most - 1):
            levels.append(self._next(levels[index], index))
        return levels

    def _first(self) -> _DraftedLevel:
        """Runs the root's own draft step."""
        k = self.top_k
        device = self.device
        ids, gains, distribution = self.memory.first(k)  # [1, k]
        parents = torch.full((k,), -1, device=device)
        hidden = self.memory.start.expand(1, k, -1)
        itself = torch.eye(k, dtype=torch.bool, device=device)
        return _DraftedLevel(ids[0], parents, gains[0], torch.arange(k, device=device), hidden, itself, distribution)

    def _next(self, before: _DraftedLevel, index: int) -> _DraftedLevel:
        """Expands the level `before`; the first expansion has index 0."""
        k = self.top_k
        states = self.memory.expand(before.hidden, before.tokens[before.beam], index, before.visible)
        ids, gains, distribution = self.memory.children(states, k)  # [b, k]
        # Pool index of the level before's first candidate.
        offset = 0 if index == 0 else k + (index - 1) * k * k
        scores, parents, best, above, visible = self.memory.beam(
            before.scores, before.beam, gains, before.visible, offset
        )
        return _DraftedLevel(ids.flatten(), parents, scores, best, states[:, above], visible, distribution)

    @staticmethod
    def _best(levels: list[_DraftedLevel], slots: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the best candidates of all levels, parents before children: (index, token, parent's index, score).

        Each is [s].  A stable sort of float32 scores puts a parent before its child even if they tie, so
        that each kept node's parent is kept; with EAGLE's half-precision sums it may not be.
        """
        tokens = torch.cat([level.tokens for level in levels])
        scores = torch.cat([level.scores for level in levels])
        parents = torch.cat([level.parents for level in levels])
        best = scores.sort(descending=True, stable=True).indices[:slots].sort().values
        return best, tokens[best], parents[best], scores[best]

    def _on_host(self, root: int, levels: list[_DraftedLevel], slots: int, stage: int) -> ProposalTree:
        # One copy to the host: float64 holds ids and float32 scores exactly.
        picked = torch.stack([column.double() for column in self._best(levels, slots)]).cpu()
        best, ids, above = picked[:3].long()
        tokens = torch.cat([torch.tensor([root]), ids])
        parents = torch.cat([torch.tensor([-1]), _places(best, above)])
        scores = torch.cat([torch.zeros(1), picked[3].float()])
        origin = torch.full((len(tokens),), DRAFT, dtype=torch.int8)
        origin[0] = ROOT
        return ProposalTree(tokens, parents, scores, origin, stage)

    def _on_device(self, levels: list[_DraftedLevel], slots: int, stage: int, rows: int) -> PaddedTree:
        best, tokens, above, scores = self._best(levels, slots)
        parents = _places(best, above)
        depths = torch.cat([torch.full_like(level.tokens, depth) for depth, level in enumerate(levels, 1)])
        nodes = tokens, parents, depths[best], scores
        return PaddedTree.drafted(self.memory.root, nodes, rows, stage, len(levels))


def _places(best: Tensor, above: Tensor) -> Tensor:
    """Returns the parents' nodes, 0 for the root.

    The kept candidates are in order, so a parent's place is the number of kept ones before it.

    Args:
        best: [s], indices of the kept candidates in the pool, ascending.
        above: [s], their parents' indices, which are kept, too; -1: the root.
    """
    return torch.where(above < 0, 0, torch.searchsorted(best, above) + 1)
