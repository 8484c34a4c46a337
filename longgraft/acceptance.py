"""Draw, then walk: one target draw per node, then down the tree as long as a child carries the drawn token.

Knows logits, positions and trees; knows no model, no cache and no proposer.  Exact for every proposer that is
deterministic given the past: the law of the walk is the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from longgraft.tree import ProposalTree

CANDIDATES = 4096       # of a larger vocabulary, nearly always enough to hold top_p of the probability


class AcceptanceRule(Protocol):
    """How far a tree is right, and what the target says after it."""

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]:
        """logits [n, V] -> (path [a] int64 from the root to the last accepted node, the token that follows it).

        positions[i]: absolute position of the token that node i is followed by.
        """


class Draws(Protocol):
    """A token per node; a list, or what draws when it is asked."""

    def __getitem__(self, node: int, /) -> int:
        """The token drawn after this node."""


def walk(tree: ProposalTree, draws: Draws) -> tuple[Tensor, int]:
    """(path [a] from the root to the last accepted node, the token drawn there); asks once per node of the path."""
    path = [0]
    while (child := tree.children.get((path[-1], token := draws[path[-1]]))) is not None:
        path.append(child)
    return torch.tensor(path), token


@dataclass(frozen=True)
class Greedy:
    """The most probable token; of equal ones the first."""

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]:
        return walk(tree, logits.argmax(-1).tolist())


@dataclass(frozen=True)
class Replay:
    """A recorded continuation takes the place of the draw; all forwards and costs stay real.

    tokens: the recording, whose first token stands at absolute position `start`.
    """

    tokens: Sequence[int]
    start: int

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]:
        last = len(self.tokens) - 1
        # Nodes beyond the recording are never walked to: the session stops there.
        return walk(tree, [self.tokens[min(p - self.start, last)] for p in positions])


@dataclass(frozen=True)
class Sampled:
    """Temperature, top-k, top-p and min-p sampling: the warped logits plus Gumbel noise, and the largest wins.

    The noise of a token depends on (seed, position, token) alone, not on what else is drawn in the same pass: a
    speculative run equals plain decoding with the same seed.  The largest sum has the softmax's law (Gumbel-max,
    Maddison et al., arXiv 1411.0030).  Another rounding of the logits changes a draw only where the two largest
    sums lie within it, or where it moves that very token across the border of top-k, top-p or min-p.
    """

    temperature: float = 1.0
    top_k: int = 0          # 0: off
    top_p: float = 1.0      # 1: off
    min_p: float = 0.0      # 0: off
    seed: int = 0           # in [0, 2^63)

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]:
        # Noise is the dear part, and only the walked nodes' is needed; but a GPU would wait at each of them.
        each = logits.device.type == "cpu"
        return walk(tree, _OneByOne(self, logits, positions) if each else self.draw(logits, positions))

    def draw(self, logits: Tensor, positions: Sequence[int]) -> list[int]:
        """logits [n, V] -> the n tokens drawn for these positions."""
        # Nodes of one depth share their noise, which is the dear part: they are taken together.
        order, distinct = sorted(range(len(positions)), key=positions.__getitem__), sorted(set(positions))
        blocks = self.warp(logits)[order].split([positions.count(p) for p in distinct])
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        drawn = [block.double().add_(gumbel(self.seed, position, tokens)).argmax(-1)
                 for block, position in zip(blocks, distinct, strict=True)]
        place = dict(zip(order, torch.cat(drawn).tolist(), strict=True))        # the step's one copy to the host
        return [place[node] for node in range(len(positions))]

    def warp(self, logits: Tensor) -> Tensor:
        """logits [n, V] -> [n, V] float32, -inf where a token cannot be drawn: transformers' warpers in their order.

        Of equal tokens at top-p's border the later ones stay, as in transformers wherever its sort is stable; at
        the borders of top-k and min-p all equal ones stay.
        """
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        if self.top_p < 1.0:
            if scores.device.type == "cpu":
                scores = torch.cat([_nucleus(row, self.top_p, _candidates(row, self.top_p)) for row in scores.split(1)])
            else:
                # A GPU sorts cheaply, and asking whether a row needs it would be a second copy to the host.
                scores = _nucleus(scores, self.top_p, _everything(scores))
        if self.min_p > 0.0:
            probabilities = scores.softmax(-1)
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < least, float("-inf"))
        return scores


@dataclass(frozen=True)
class _OneByOne:
    """`Sampled.draw` of a node when it is asked for."""

    rule: Sampled
    logits: Tensor
    positions: Sequence[int]

    def __getitem__(self, node: int) -> int:
        token, = self.rule.draw(self.logits[node:node + 1], self.positions[node:node + 1])
        return token


def gumbel(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise of these tokens [m] at this position: [m] float64, on the tokens' device.

    Seed, position and token are taken in by one step of SplitMix64 each (Steele et al., OOPSLA 2014): integers, the
    same on every device and for every part of the vocabulary.
    """
    key = _mix(_mix(torch.tensor(seed) * _GOLDEN) + torch.tensor(position) * _GOLDEN)
    bits = _mix(tokens * _GOLDEN + key) >> 12 & (1 << 52) - 1
    # 52 bits and a half: strictly inside (0, 1) in float64.
    uniform = bits.double().add_(0.5).mul_(2.0 ** -52)
    return uniform.log_().neg_().log_().neg_()


def _nucleus(scores: Tensor, top_p: float, tokens: Tensor) -> Tensor:
    """scores [n, V] with -inf outside the fewest largest tokens that reach top_p, all of them among tokens [n, m]."""
    probabilities = scores.softmax(-1)
    ordered, index = scores.gather(1, tokens).sort(stable=True)
    tokens = tokens.gather(1, index)
    share = probabilities.gather(1, tokens).double()
    # Summed from the smallest, as transformers does; what is not among the tokens comes before.
    rest = probabilities.sum(-1, keepdim=True, dtype=torch.float64) - share.sum(-1, keepdim=True)
    kept = (share.cumsum(-1) + rest).float() > 1 - top_p
    kept[:, -1] = True
    return torch.full_like(scores, float("-inf")).scatter(1, tokens, ordered.where(kept, float("-inf")))


def _candidates(row: Tensor, top_p: float) -> Tensor:
    """row [1, V] -> tokens [1, m] in ascending order, among them all that equal or surpass top-p's border."""
    if row.shape[-1] <= CANDIDATES:
        return _everything(row)
    best, tokens = row.topk(CANDIDATES)
    # Of the tokens that equal the least candidate some may be missing: the border must lie above it.
    surely = row.softmax(-1).gather(1, tokens).masked_fill(best == best[:, -1:], 0.0).sum()
    return tokens.sort().values if float(surely) > top_p + 1e-5 else _everything(row)


def _everything(scores: Tensor) -> Tensor:
    """All tokens [n, V] of the vocabulary."""
    return torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)        # int64 arithmetic wraps at 2^64


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's output for these states, int64."""
    x = x + _GOLDEN
    x = (x ^ _right(x, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _right(x, 27)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _right(x, 31)


def _right(x: Tensor, bits: int) -> Tensor:
    """x shifted as if it had no sign."""
    return x >> bits & (1 << 64 - bits) - 1
