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


class AcceptanceRule(Protocol):
    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]: ...


class _Draws:
    def __call__(self, tree: ProposalTree, logits: Tensor, positions: list[int]) -> tuple[Tensor, int]:
        return walk(tree, self.draw(logits, positions).tolist())


def walk(tree: ProposalTree, draws: list[int]) -> tuple[Tensor, int]:
    """(path [a] from the root to the last accepted node, the token drawn there)."""
    path = [0]
    while (child := tree.children.get((path[-1], draws[path[-1]]))) is not None:
        path.append(child)
    return torch.tensor(path), draws[path[-1]]


@dataclass(frozen=True)
class Greedy(_Draws):
    """The most probable token; of equal ones the first."""

    def draw(self, logits: Tensor, positions: list[int]) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True)
class Sampled(_Draws):
    """Temperature, top-k, top-p and min-p sampling, warped in transformers' order.

    The random number of a position depends on (seed, position) alone, so that a token does not depend on how
    many were drawn in the same pass: a speculative run equals plain decoding with the same seed.
    """

    temperature: float = 1.0
    top_k: int = 0          # 0: off
    top_p: float = 1.0      # 1: off
    min_p: float = 0.0      # 0: off
    seed: int = 0

    def draw(self, logits: Tensor, positions: list[int]) -> Tensor:
        # float64: the cumulative sum over a large vocabulary would otherwise move token boundaries.
        mass = self.probabilities(logits).double().cumsum(-1)
        uniform = torch.tensor([uniform_at(self.seed, p) for p in positions], dtype=torch.float64)
        target = uniform.to(mass.device)[:, None] * mass[:, -1:]
        return torch.searchsorted(mass, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[n, V] float32."""
        warped = logits.float() / self.temperature
        if 0 < self.top_k < warped.shape[-1]:
            least = warped.topk(self.top_k).values[:, -1:]
            warped = warped.masked_fill(warped < least, float("-inf"))
        if self.top_p < 1.0:
            ordered, index = warped.sort(descending=True, stable=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            dropped = torch.zeros_like(warped, dtype=torch.bool).scatter(1, index, before >= self.top_p)
            warped = warped.masked_fill(dropped, float("-inf"))
        probabilities = warped.softmax(-1)
        if self.min_p > 0.0:
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.where(probabilities >= least, 0.0)
        return probabilities


@dataclass(frozen=True)
class Replay(_Draws):
    """A recorded continuation takes the place of the draw; all forwards and costs stay real.

    tokens: the recording, whose first token stands at absolute position `start`.
    """

    tokens: Sequence[int]
    start: int

    def draw(self, logits: Tensor, positions: list[int]) -> Tensor:
        last = len(self.tokens) - 1
        # Nodes beyond the recording are never walked to: the session stops there.
        return torch.tensor([self.tokens[min(p - self.start, last)] for p in positions])


def uniform_at(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): two rounds of splitmix64 (Steele et al., OOPSLA 2014)."""
    # 53 bits: a float64 in [0, 1) that cannot round up to 1.
    return (_mix(_mix(seed & _MASK) + position * _GOLDEN) >> 11) / 2.0 ** 53


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
