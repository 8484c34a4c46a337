"""Draw, then walk: one target draw per node, then down the tree as long as a child carries the drawn token.

Knows logits, positions and trees; knows no model, no cache and no proposer.  Exact for every proposer that is
deterministic given the past: the law of the walk is the target's own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from struct import pack, unpack
from typing import Protocol, final

import torch
from torch import Tensor

from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree


class AcceptanceRule(Protocol):
    """How far a tree is right, and what the target says after it."""

    @property
    def guesses(self) -> DrawThenWalk:
        """How a model that drafts draws its tokens, so that they are the target's most often."""

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        """logits [n, V] -> (path [a] int64 from the root to the last accepted node, the token that follows it).

        positions: [n] int64 on the host, absolute positions of the tokens that the nodes are followed by.
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


class DrawThenWalk(ABC):
    """A rule that draws one token of the target per node, whatever else is in the tree, and walks along the draws."""

    @property
    @abstractmethod
    def law(self) -> Hashable:
        """What `choose` depends on beside its arguments: rules that differ in a seed share one recorded region."""

    @abstractmethod
    def chance(self, positions: Tensor) -> Tensor:
        """[n] int64: all that a draw at these positions [n] takes besides the logits."""

    @abstractmethod
    def choose(self, logits: Tensor, chance: Tensor) -> Tensor:
        """logits [n, V], chance [n] int64 -> the tokens drawn [n] int64, each by its own row alone; no host read."""

    @property
    def guesses(self) -> DrawThenWalk:
        """This rule: with the noise of the target's own draw a draft agrees with it more often than with another
        (Daliri et al., arXiv 2408.07978), and stays a function of the past."""
        return self

    @final
    def draw(self, logits: Tensor, positions: Tensor) -> Tensor:
        """logits [n, V], positions [n] int64 on their device -> the tokens drawn there [n] int64; no host read."""
        return self.choose(logits, self.chance(positions))

    @final
    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        # Only the walked nodes' draws are needed, and a CPU makes no others; a GPU would wait at each of them.
        if logits.device.type == "cpu":
            return walk(tree, _OneByOne(self, logits, positions))
        return walk(tree, self.draw(logits, sent(positions, logits.device)).tolist())


@dataclass(frozen=True)
class _OneByOne:
    """A node's draw, when it is asked for."""

    rule: DrawThenWalk
    logits: Tensor
    positions: Tensor

    def __getitem__(self, node: int) -> int:
        return int(self.rule.draw(self.logits[node:node + 1], self.positions[node:node + 1]))


@dataclass(frozen=True)
class Greedy(DrawThenWalk):
    """The most probable token; of equal ones the first."""

    law = "greedy"

    def chance(self, positions: Tensor) -> Tensor:
        return positions

    def choose(self, logits: Tensor, chance: Tensor) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True)
class Replay(DrawThenWalk):
    """A recorded continuation takes the place of the draw; all forwards and costs stay real.

    tokens: the recording, whose first token stands at absolute position `start`.
    """

    tokens: Sequence[int]
    start: int
    _placed: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    law = "replay"

    @property
    def guesses(self) -> DrawThenWalk:
        """Greedy: who drafts does not know the recording."""
        return Greedy()

    def chance(self, positions: Tensor) -> Tensor:
        device = positions.device
        if device not in self._placed:
            self._placed[device] = sent(torch.as_tensor(self.tokens, dtype=torch.int64), device)
        # Nodes beyond the recording are never walked to: the session stops there.  Rows of no node may stand before it.
        return self._placed[device][(positions - self.start).clamp(0, len(self.tokens) - 1)]

    def choose(self, logits: Tensor, chance: Tensor) -> Tensor:
        return chance


@dataclass(frozen=True)
class Sampled(DrawThenWalk):
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

    @property
    def law(self) -> Hashable:
        return replace(self, seed=0)

    def chance(self, positions: Tensor) -> Tensor:
        return _mix(positions * _GOLDEN + _of_seed(self.seed))

    def choose(self, logits: Tensor, chance: Tensor) -> Tensor:
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        return gumbel(chance[:, None], tokens).add_(self.warp(logits)).argmax(-1)

    def apart(self, stream: int) -> Sampled:
        """The same law with noise of its own, independent of this rule's and of other streams'; stream: 1 or more."""
        return replace(self, seed=int(_mix(torch.tensor(_of_seed(self.seed) + stream))) & ((1 << 63) - 1))

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
            scores = _nucleus(scores, self.top_p)
        if self.min_p > 0.0:
            probabilities = scores.softmax(-1)
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < least, float("-inf"))
        return scores


def uniform(chance: Tensor, tokens: Tensor) -> Tensor:
    """Uniform noise of these tokens by a `Sampled`'s chance, float64, strictly inside (0, 1): both int64 on one device,
    broadcast.

    Seed, position and token are taken in by one step of SplitMix64 each (Steele et al., OOPSLA 2014): integers, the
    same on every device and for every part of the vocabulary.
    """
    bits = _mix(tokens * _GOLDEN + chance).bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
    # 52 bits and a half: never 0 or 1 in float64.
    return bits.double().add_(0.5).mul_(2.0 ** -52)


def gumbel(chance: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise of the same, float64."""
    return uniform(chance, tokens).log_().neg_().log_().neg_()


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """scores [n, V] with -inf outside the fewest largest tokens that reach top_p; of equal ones the later stay.

    No sort and no host read: the border is found by the digits of its bits, with the mass of the tokens of each digit.
    Masses are whole numbers, whose sums are the same in every order.
    """
    bits = (scores + 0.0).view(torch.int32)     # 0 for -0
    # Whole numbers from 0 to 2^32 - 1 in the order of the scores.
    order = (bits >> 31).bitwise_or_(-1 << 31).bitwise_xor_(bits).long().bitwise_and_((1 << 32) - 1)
    mass = scores.softmax(-1).double().mul_(_ONE).long()
    # The largest token stays, whatever top_p is.
    least = mass.sum(-1, keepdim=True).sub_(1).clamp_(max=_too_little(top_p))
    border, below = torch.zeros_like(least), torch.zeros_like(least)
    for shift, count in ((21, 2048), (10, 2048), (0, 1024)):
        digits = (order >> shift).bitwise_and_(count - 1)
        of_digit = mass.new_zeros(len(mass), count).scatter_add_(1, digits, mass)
        up_to = of_digit.cumsum(-1).add_(below)
        # A row of nan has no border; an index must be one all the same.
        digit = (up_to <= least).sum(-1, keepdim=True).clamp_(max=count - 1)
        below = (up_to - of_digit).gather(1, digit)
        border += digit << shift
        mass.masked_fill_(digits != digit, 0)
    # Of the tokens at the border, which alone have mass now, the later ones.
    kept = mass.cumsum(-1).add_(below).gt(least).logical_and_(mass > 0).logical_or_(order > border)
    return scores.masked_fill(kept.logical_not_(), float("-inf"))


def _too_little(top_p: float) -> int:
    """The largest mass that as a float32 is not above 1 - top_p, as transformers compares it."""
    bits, = unpack("i", pack("f", 1 - top_p))
    share, above = unpack("2f", pack("2i", bits, bits + 1))
    middle = (share + above) / 2 * _ONE         # is rounded to the one whose bits are even
    return math.ceil(middle) - 1 if bits % 2 else math.floor(middle)


_ONE = 1 << 62          # all of the probability, as a whole number
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)        # int64 arithmetic wraps at 2^64


@lru_cache
def _of_seed(seed: int) -> int:
    """The first of a noise's three steps, once per seed and on the host."""
    return int(_mix(torch.tensor(seed) * _GOLDEN))


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's output for these states, int64."""
    x = x + _GOLDEN
    x.bitwise_xor_(_right(x, 30)).mul_(0xBF58476D1CE4E5B9 - (1 << 64))
    x.bitwise_xor_(_right(x, 27)).mul_(0x94D049BB133111EB - (1 << 64))
    return x.bitwise_xor_(_right(x, 31))


def _right(x: Tensor, bits: int) -> Tensor:
    """x shifted as if it had no sign."""
    return (x >> bits).bitwise_and_((1 << 64 - bits) - 1)
