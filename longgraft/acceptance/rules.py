"""Draw, then walk: one target draw per node, then down the tree as long as a child carries the drawn token.

Exact for every proposer that is deterministic given the past: the output has the target's distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import torch
from torch import Tensor

from longgraft.acceptance.gumbel import GOLDEN, gumbel, mix, of_seed
from longgraft.acceptance.warping import nucleus
from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree


class AcceptanceRule(Protocol):
    """Which path of a tree is accepted, and the target's token after it."""

    @property
    def guesses(self) -> DrawThenWalk:
        """How a draft model draws its tokens, to agree with the target most often."""

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        """logits [n, V] -> (path [a] int64 from the root to the last accepted node, the token that follows it).

        positions: [n] int64 on the host, absolute positions of the tokens after the nodes.
        """


def walk(tree: ProposalTree, draw: Callable[[int], int], goes_on: Callable[[], bool] = lambda: True
         ) -> tuple[Tensor, int]:
    """Walk from the root as long as a child carries the drawn token.

    Args:
        draw: The token after a node. It is called once for each node of the path, in order.
        goes_on: Whether another node may be accepted.

    Returns:
        The path [a] from the root to the last accepted node, and the token drawn there.
    """
    path = [0]
    while (child := tree.children.get((path[-1], token := draw(path[-1])))) is not None and goes_on():
        path.append(child)
    return torch.tensor(path), token


class DrawThenWalk(ABC):
    """A rule that draws one token of the target per node, whatever else is in the tree, and walks along the draws."""

    @property
    @abstractmethod
    def law(self) -> Hashable:
        """What `choose` depends on besides its arguments: rules that differ in the seed alone share a recording."""

    @abstractmethod
    def keys(self, positions: Tensor) -> Tensor:
        """[n] int64: all that a draw at these positions [n] takes besides the logits."""

    @abstractmethod
    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        """logits [n, V], keys [n] int64 -> the tokens drawn [n] int64, each by its own row alone; no host read."""

    @property
    def guesses(self) -> DrawThenWalk:
        """This rule: drafts drawn with the target's own noise agree with its draws most often (Daliri et al., arXiv
        2408.07978), and stay a function of the past."""
        return self

    @final
    def draw(self, logits: Tensor, positions: Tensor) -> Tensor:
        """logits [n, V], positions [n] int64 on their device -> the tokens drawn there [n] int64; no host read."""
        return self.choose(logits, self.keys(positions))

    @final
    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        # Only the walked nodes' draws are needed: a CPU draws one at a time; on a GPU each would be a device sync.
        if logits.device.type == "cpu":
            return walk(tree, lambda node: int(self.draw(logits[node:node + 1], positions[node:node + 1])))
        return walk(tree, self.draw(logits, sent(positions, logits.device)).tolist().__getitem__)


@dataclass(frozen=True)
class Greedy(DrawThenWalk):
    """The most probable token; of equal ones the first."""

    law = "greedy"

    def keys(self, positions: Tensor) -> Tensor:
        return positions

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True)
class Replay(DrawThenWalk):
    """A recorded continuation takes the place of the draw; all forwards and costs stay real.

    tokens: the recording, whose first token stands at absolute position `start`.
    """

    tokens: Sequence[int]
    start: int
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    law = "replay"

    @property
    def guesses(self) -> DrawThenWalk:
        """Greedy: a drafter does not know the recording."""
        return Greedy()

    def keys(self, positions: Tensor) -> Tensor:
        device = positions.device
        if device not in self._copies:
            self._copies[device] = sent(torch.as_tensor(self.tokens, dtype=torch.int64), device)
        # No walk passes the recording's end: the session stops there.  Padding may have positions before its start.
        return self._copies[device][(positions - self.start).clamp(0, len(self.tokens) - 1)]

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        return keys


@dataclass(frozen=True)
class Sampled(DrawThenWalk):
    """Temperature, top-k, top-p and min-p sampling: the warped logits plus Gumbel noise, and the largest wins.

    The noise of a token depends on (seed, position, token) alone, not on what else is drawn in the same pass: a
    speculative run equals plain decoding with the same seed.  The argmax has the softmax's distribution (Gumbel-max,
    Maddison et al., arXiv 1411.0030).  Another rounding of the logits changes a draw only where the two largest
    sums lie within it, or where it moves the drawn token across the border of top-k, top-p or min-p.
    """

    temperature: float = 1.0
    top_k: int = 0          # 0: off
    top_p: float = 1.0      # 1: off
    min_p: float = 0.0      # 0: off
    seed: int = 0           # in [0, 2^63)

    @property
    def law(self) -> Hashable:
        return replace(self, seed=0)

    def keys(self, positions: Tensor) -> Tensor:
        return mix(positions * GOLDEN + of_seed(self.seed))

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        return gumbel(keys[:, None], tokens).add_(self.warp(logits)).argmax(-1)

    def apart(self, stream: int) -> Sampled:
        """The same distribution with noise independent of this rule's and of other streams'; stream: 1 or more."""
        return replace(self, seed=int(mix(torch.tensor(of_seed(self.seed) + stream))) & ((1 << 63) - 1))

    def warp(self, logits: Tensor) -> Tensor:
        """logits [n, V] -> [n, V] float32, -inf where a token cannot be drawn: transformers' warpers in their order.

        Of equal tokens at top-p's border the later ones stay, as in transformers where its sort is stable; at the
        borders of top-k and min-p all of them stay.
        """
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        if self.top_p < 1.0:
            scores = nucleus(scores, self.top_p)
        if self.min_p > 0.0:
            probabilities = scores.softmax(-1)
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < least, float("-inf"))
        return scores


