"""The exact acceptance rules: draw one target token per node, then walk down the tree along the draws.

The walk goes on as long as a child carries the drawn token.  It is exact for every proposer that is
deterministic given
the past: the output has the target's distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import torch
from torch import Tensor

from longgraft.acceptance.cpu_draws import nucleus_by_sort, winner
from longgraft.acceptance.gumbel import GOLDEN, gumbel, mix, of_seed
from longgraft.acceptance.warping import nucleus
from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree

BROKEN = -2  # drawn from logits with NaN or infinity; a CUDA graph cannot raise


def checked(token: int) -> int:
    """Returns a token that was drawn; raises ValueError if it is BROKEN."""
    if token == BROKEN:
        raise ValueError(
            "The target's logits are NaN or infinite, so its answer has no next token. Fetch its weights again, or "
            "load them as bfloat16 or float32 if float16 is too small for them."
        )
    return token


class AcceptanceRule(Protocol):
    """Decides which path of a tree is accepted, and which token of the target follows it."""

    @property
    def guesses(self) -> DrawThenWalk:
        """The rule by which a draft model draws its tokens, to agree with the target as often as possible."""

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        """Accepts a path.

        Args:
            tree: n nodes.
            logits: [n, V], the target's logits after each node.
            positions: [n] int64 on the host, absolute positions of the tokens after the nodes.

        Returns:
            (path [a] int64 from the root to the last accepted node, the token that follows it).
        """


def walk(
    tree: ProposalTree, draw: Callable[[int], int], goes_on: Callable[[], bool] = lambda: True
) -> tuple[Tensor, int]:
    """Walks from the root as long as a child carries the drawn token.

    Args:
        tree: The tree.
        draw: The token after a node. It is called once for each node of the path, in order.
        goes_on: Whether another node may be accepted.

    Returns:
        The path [a] from the root to the last accepted node, and the token drawn there.

    Raises:
        ValueError: a node on the path has logits that are NaN or infinite.
    """
    path = [0]
    while True:
        token = checked(draw(path[-1]))
        child = tree.children.get((path[-1], token))
        if child is None or not goes_on():
            return torch.tensor(path), token
        path.append(child)


class DrawThenWalk(ABC):
    """A rule that draws one target token per node, independently of the rest of the tree, and walks along the draws."""

    @property
    @abstractmethod
    def law(self) -> Hashable:
        """All that `choose` depends on besides its arguments; rules that differ only in the seed share a CUDA graph."""

    @abstractmethod
    def keys(self, positions: Tensor) -> Tensor:
        """Returns int64 [n] or [n, k]: all that the draws at these positions [n] depend on besides logits and `law`."""

    @abstractmethod
    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        """Draws tokens [n] int64 from logits [n, V] and keys; each row by itself, without a host read."""

    def choose_on_cpu(self, logits: Tensor, keys: Tensor) -> Tensor:
        """Returns the tokens that `choose` draws, and may read values."""
        return self.choose(logits, keys)

    @property
    def sampled(self) -> Sampled | None:
        """The distribution that it draws from; None if it does not sample."""
        return None

    @property
    def guesses(self) -> DrawThenWalk:
        """This rule itself.

        Drafts drawn with the target's own noise agree with its draws most often (Daliri et al., arXiv
        2408.07978) and remain a function of the past.
        """
        return self

    def marked(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Returns drawn tokens [n], but BROKEN for those whose logit in [n, V] is NaN or infinite.

        That shows every row with NaN or positive infinity, because these win each draw.
        """
        drawn = logits.gather(-1, tokens[:, None])[:, 0]
        return torch.where(drawn - drawn == 0, tokens, BROKEN)

    @final
    def draw(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Draws tokens [n] int64 from logits [n, V] at positions [n] int64 on their device, without a host read."""
        keys = self.keys(positions)
        if logits.device.type == "cpu":
            return self.choose_on_cpu(logits, keys)
        return self.choose(logits, keys)

    @final
    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        # Only draws on the walk are needed.  A CPU makes them one by one; on a GPU each would be a device sync.
        def drawn(rows: Tensor, positions: Tensor) -> Tensor:
            return self.marked(rows, self.draw(rows, positions))

        if logits.device.type == "cpu":
            return walk(tree, lambda node: int(drawn(logits[node : node + 1], positions[node : node + 1])))
        return walk(tree, drawn(logits, sent(positions, logits.device)).tolist().__getitem__)


@dataclass(frozen=True)
class Greedy(DrawThenWalk):
    """Draws the most probable token; the first one of equals."""

    law = "greedy"

    def keys(self, positions: Tensor) -> Tensor:
        return positions

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True)
class Replay(DrawThenWalk):
    """Replays a recorded continuation in place of the draws; all forwards and costs stay real.

    Attributes:
        tokens: The recording.
        start: Absolute position of its first token.
    """

    tokens: Sequence[int]
    start: int
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    law = "replay"

    @property
    def guesses(self) -> DrawThenWalk:
        """Greedy, because a draft model does not know the recording."""
        return Greedy()

    def keys(self, positions: Tensor) -> Tensor:
        device = positions.device
        if device not in self._copies:
            self._copies[device] = sent(torch.as_tensor(self.tokens, dtype=torch.int64), device)
        # The session stops at the recording's end, so no walk passes it.  Padded rows may lie before its start.
        return self._copies[device][(positions - self.start).clamp(0, len(self.tokens) - 1)]

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        return keys

    def marked(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return tokens  # a recording is replayed whatever the logits are


@dataclass(frozen=True)
class Sampled(DrawThenWalk):
    """Temperature, top-k, top-p and min-p sampling by Gumbel-max: the largest sum of warped logit and noise wins.

    The noise of a token depends on (seed, position, token) only, not on what else is drawn in the same
    pass, so a speculative run equals plain decoding with the same seed.  The argmax has the softmax's
    distribution (Maddison et al., arXiv 1411.0030).  If logits are rounded differently, a draw changes only
    if the two largest sums are closer than the rounding error, or if the drawn token moves across the
    border of top-k, top-p or min-p.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    seed: int = 0  # in [0, 2^63)

    @property
    def law(self) -> Hashable:
        return replace(self, seed=0)

    @property
    def sampled(self) -> Sampled:
        return self

    def keys(self, positions: Tensor) -> Tensor:
        return mix(positions * GOLDEN + of_seed(self.seed))

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        return gumbel(keys[:, None], tokens).add_(self.warp(logits)).argmax(-1)

    def choose_on_cpu(self, logits: Tensor, keys: Tensor) -> Tensor:
        scores = self.warp(logits, nucleus_by_sort)
        return torch.stack([winner(row, key) for row, key in zip(scores, keys, strict=True)])

    def apart(self, stream: int) -> Sampled:
        """Returns the same distribution with independent noise; stream: a number from 1 up, one per use."""
        return replace(self, seed=int(mix(torch.tensor(of_seed(self.seed) + stream))) & ((1 << 63) - 1))

    def warp(self, logits: Tensor, drop: Callable[[Tensor, float], Tensor] = nucleus) -> Tensor:
        """Applies transformers' warpers in their order: logits [n, V] -> [n, V] float32, -inf for excluded tokens.

        Of equal tokens at top-p's border the later ones stay, as in transformers where its sort is stable;
        at the borders of top-k and min-p all of them stay.

        Args:
            logits: The target's.
            drop: Applies top-p to scores [n, V], as `nucleus` does.
        """
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        if self.top_p < 1.0:
            scores = drop(scores, self.top_p)
        if self.min_p > 0.0:
            probabilities = scores.softmax(-1)
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < least, float("-inf"))
        return scores
