"""TALON (arXiv 2601.07353): each layer keeps its probable nodes, until the tree is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Checked, option
from longgraft.config.settings import Drafting, DraftTopK, DraftWindow
from longgraft.drafters.eagle3 import TOP_K
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.methods.building import drafter_cache
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import SIZES
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

SHARE = 0.03  # least share of the layer's most probable path; the paper's value, except for Qwen3: 0.01
DEEPEST = 15  # most layers


@dataclass(frozen=True)
class _TreeLayer:
    """w nodes, the most probable first; nodes with the score -inf are padding."""

    tokens: Tensor  # [w] int64
    parents: Tensor  # [w] int64, indices into the layer before
    scores: Tensor  # [w] float32, scores of the paths
    hidden: Tensor  # [1, w, H] the states of their parents
    ancestors: Tensor  # [w, m] bool over the scratch rows of the layers before
    depths: Tensor  # [m] int64 of those rows, on the device if regions are fixed, else on the host

    @property
    def record(self) -> Tensor:
        """[3, w] float64: tokens, parents and scores, which it holds exactly, for one copy to the host."""
        return torch.stack([self.tokens.double(), self.parents.double(), self.scores.double()])

    def first(self, nodes: int) -> _TreeLayer:
        """Returns the most probable `nodes` nodes."""
        return _TreeLayer(
            self.tokens[:nodes],
            self.parents[:nodes],
            self.scores[:nodes],
            self.hidden[:, :nodes],
            self.ancestors[:nodes],
            self.depths,
        )


class TalonDrafter:
    """A drafter of a first layer of `top_k` nodes, then layers of continuations, until the tree has `ask.budget` nodes.

    A layer keeps the continuations whose paths have at least the share `share` of the best one's probability,
    and the best of them if there are too many.  If regions are fixed, layers of trees of up to 64 nodes are
    padded to the largest size that the budget allows.
    """

    def __init__(
        self,
        memory: Eagle3Cache,
        share: float = SHARE,
        deepest: int = DEEPEST,
        top_k: int = TOP_K,
        clock: Clock | None = None,
    ) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.network = memory.network
        self.share = share
        self.deepest = deepest
        self.top_k = min(top_k, self.network.config.draft_vocab_size)
        self.clock = clock or Clock()
        self.device = memory.device
        self.regions = memory.regions
        self._free = torch.zeros(1, dtype=torch.int64, device=self.device)
        # Layers without padding have no more rows than the tree, for which there is room.
        memory.room(self.deepest * SIZES[-1] if self.regions.fixed else 0)

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            self.memory.begin(ask.root)
            return self._grow(ask)

    def _grow(self, ask: Ask) -> ProposalTree:
        padded = self.regions.fixed and ask.budget <= SIZES[-1]
        tokens = [ask.root]
        parents = [-1]
        scores = [0.0]
        above = 0
        width = min(self.top_k, ask.budget - 1)
        widest = ask.budget - 1 - width
        layer, record = self._region(padded, (width, "root"), partial(self._first, width))
        for index in range(self.deepest):
            ids, places, paths = record.cpu().tolist()
            nodes = sum(path > -math.inf for path in paths)
            first_child = len(tokens)
            free = ask.budget - len(tokens) - nodes
            tokens += map(int, ids[:nodes])
            parents += [above + int(place) for place in places[:nodes]]
            scores += paths[:nodes]
            if not free or index == self.deepest - 1:
                break
            above = first_child
            self._free.fill_(free)
            self.clock.ran("draft")
            if padded:
                grow = partial(self._next, layer, index, widest)
            else:
                grow = partial(self._next, layer.first(nodes), index, free)
            layer, record = self._region(padded, (width, widest, index), grow)
        return ProposalTree.build(tokens, parents, scores, [ROOT] + [DRAFT] * (len(tokens) - 1), index)

    def _region(self, padded: bool, name: Hashable, grow: Callable[[], _TreeLayer]) -> tuple[_TreeLayer, Tensor]:
        def region() -> tuple[_TreeLayer, Tensor]:
            layer = grow()
            return layer, layer.record

        if padded:
            return self.regions((self, self.memory, self.memory.cache.age, name), region)
        return region()

    def _first(self, width: int) -> _TreeLayer:
        """The root's own draft step."""
        children = self.memory.first(width)
        ids = children.tokens[0]
        where = self.device
        if not self.regions.fixed:
            where = torch.device("cpu")
        return _TreeLayer(
            ids,
            torch.zeros_like(ids),
            children.gains[0],
            self.memory.start.expand(1, width, -1),
            torch.zeros(width, 0, dtype=torch.bool, device=self.device),
            torch.zeros(0, dtype=torch.int64, device=where),
        )

    def _next(self, before: _TreeLayer, index: int, width: int) -> _TreeLayer:
        """Returns the next layer, `width` nodes; nodes beyond the free slots are padding."""
        n = len(before.tokens)
        ancestors = torch.cat([before.ancestors, torch.eye(n, dtype=torch.bool, device=self.device)], dim=1)
        depths = torch.cat([before.depths, torch.full((n,), index, device=before.depths.device)])
        states = self.memory.expand(before.hidden, before.tokens, index, ancestors, depths)
        # [n, k]: at most `width` per parent.
        ids, gains, _ = self.memory.children(states, min(width, self.network.config.draft_vocab_size))
        paths = (before.scores[:, None] + gains).flatten()
        scores, best = paths.topk(min(width, len(paths)))
        rank = torch.arange(len(best), device=self.device)
        expanded = (scores >= scores[0] + math.log(self.share)) & (rank < self._free)
        parents = best // gains.shape[1]
        return _TreeLayer(
            ids.flatten()[best],
            parents,
            scores.masked_fill(~expanded, -math.inf),
            states[:, parents],
            ancestors[parents],
            depths,
        )


@dataclass(frozen=True)
class TalonChoices(Checked):
    """Choices of `talon`."""

    share: Annotated[float, Ge(1e-9), Le(1)] = option(
        SHARE, "Least probability of a path, as a share of its layer's best; use 0.01 for Qwen3", source="TALON, mu"
    )
    deepest: Annotated[int, Ge(1), Le(64)] = option(DEEPEST, "Layers at most", unit="layers")
    top_k: DraftTopK = Drafting.top_k
    window: DraftWindow = None


def talon(parts: Parts) -> TalonDrafter:
    """The drafter with its choices."""
    chosen = parts.choices
    return TalonDrafter(drafter_cache(parts, chosen.window), chosen.share, chosen.deepest, chosen.top_k, parts.clock)


METHOD = Method(
    "talon",
    "layers as wide as their probable paths, until the budget is spent",
    "TALON (arXiv 2601.07353)",
    talon,
    (HEAD,),
    choices=TalonChoices(),
)
