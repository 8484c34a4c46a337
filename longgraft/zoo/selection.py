"""Selectors: they choose the cache rows that a drafting pass attends to, by position, by attention or by blocks.

A selector is a function (keys [Hkv, T, D], queries [Hq, w, D]) -> rows, ascending: [m] int64, or [Hkv, m] if
heads differ; m depends only on T.  If the budget holds all T rows, all are selected.

Letters: H query heads, Hkv key heads, G = H / Hkv, T rows, w queries, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Selector(Protocol):
    """A selector of rows of one layer of the target's KV cache."""

    @property
    def queries(self) -> int:
        """Number of newest queries that the selector needs; 0: none."""

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Returns the selected rows, ascending."""


@dataclass(frozen=True)
class Recent:
    """A selector of attention sinks (the first rows) and the newest rows: StreamingLLM (arXiv 2309.17453)."""

    budget: int
    sinks: int = 4
    queries: int = 0

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        return _with(keys, self.sinks, None, max(self.sinks, keys.shape[1] - (self.budget - self.sinks)))


@dataclass(frozen=True)
class Attended:
    """A selector of the rows that the last queries attend to most, and these queries' own rows: SnapKV (arXiv
    2404.14469), in MagicDec's version.

    Attention weights are summed over queries and over heads that share a key head, and averaged over `pooled` rows.
    """

    budget: int
    queries: int = 32
    pooled: int = 5

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        length = keys.shape[1]
        window = queries.shape[1]
        if length <= self.budget:
            return _all(keys)
        before = length - window
        # One key head at a time, because the weights of a whole layer would be [Hq, w, T].
        grouped = _grouped(queries, keys)
        weights = torch.stack([self._weights(head_keys, rows) for head_keys, rows in zip(keys, grouped, strict=True)])
        pooled = F.avg_pool1d(weights[:, :before], self.pooled, stride=1, padding=self.pooled // 2)
        return _with(keys, 0, pooled.topk(self.budget - window).indices, before)

    @staticmethod
    def _weights(keys: Tensor, queries: Tensor) -> Tensor:
        """keys [T, D], queries [G, w, D] of the last w rows -> [T] float32, each row's summed attention weight."""
        window = queries.shape[1]
        length = keys.shape[0]
        scores = (queries @ keys.mT).float() * keys.shape[1] ** -0.5
        ahead = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
        scores[..., length - window :].masked_fill_(ahead, float("-inf"))
        return scores.softmax(-1).sum((0, 1))


@dataclass(frozen=True)
class Nearest:
    """A selector of sinks and the keys with the largest products with the last query: TokenSwift (arXiv 2502.18890)."""

    budget: int
    sinks: int = 16
    newest: int = 0  # number of newest rows within the budget; 0 in the paper's code
    queries: int = 1

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        if keys.shape[1] <= self.budget:
            return _all(keys)
        until = keys.shape[1] - self.newest
        products = (_grouped(queries, keys)[:, :, -1] @ keys[:, self.sinks : until].mT).float().sum(1)
        best = self.sinks + products.topk(self.budget - self.sinks - self.newest).indices
        return _with(keys, self.sinks, best, until)


@dataclass(frozen=True)
class Chunks:
    """A selector of the first chunk and the chunks whose mean key has the largest product with the last
    query:
    TriForce (2404.11912).

    An incomplete chunk before the newest rows is selected, too.
    """

    budget: int
    newest: int = 0  # number of newest rows within the budget; 0 in the paper's code
    size: int = 8
    queries: int = 1

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        count = max(0, keys.shape[1] - self.newest) // self.size
        chosen_blocks = (self.budget - self.newest) // self.size
        if count <= chosen_blocks:
            return _all(keys)
        means = _blocks(keys, 0, count, self.size).mean(2)  # [Hkv, count, D]
        products = (_grouped(queries, keys)[:, :, -1] @ means.mT).float().sum(1)
        best = 1 + products[:, 1:].topk(chosen_blocks - 1).indices
        return _with(keys, self.size, _rows(best, 0, self.size), count * self.size)


@dataclass(frozen=True)
class Quest:
    """A selector of sinks, the newest blocks, and those blocks in between whose keys may have the largest products.

    Quest (2406.10774), in SpecPV's version.  Scores are averaged over the queries and over the heads that
    share a key head.  An incomplete block before the newest ones is selected, too; SpecPV leaves it out.
    """

    sinks: int
    retrieved: int
    local: int
    block: int = 16
    queries: int = 64
    # True: a block's score is the larger of a query's products with the block's componentwise maximum and minimum, as
    # in SpecPV's code; False: Quest's bound, the sum over components of the larger product.
    corners: bool = True

    def __call__(self, keys: Tensor, queries: Tensor) -> Tensor:
        first = self.sinks * self.block
        count = max(0, keys.shape[1] - self.local * self.block - first) // self.block
        if count <= self.retrieved:
            return _all(keys)
        chosen = self.scores(keys, queries, count).topk(self.retrieved).indices
        return _with(keys, first, _rows(chosen, first, self.block), first + count * self.block)

    def scores(self, keys: Tensor, queries: Tensor, count: int) -> Tensor:
        """Returns the scores of the blocks after the sinks, [Hkv, count] float32."""
        blocks = _blocks(keys, self.sinks * self.block, count, self.block)
        # [Hkv, count, D]
        most = blocks.amax(2)
        least = blocks.amin(2)
        q = _grouped(queries, keys).flatten(1, 2)  # [Hkv, G * w, D]
        if self.corners:
            return torch.maximum(q @ most.mT, q @ least.mT).float().mean(1)
        return (q.clamp(min=0) @ most.mT + q.clamp(max=0) @ least.mT).float().mean(1)


def _grouped(queries: Tensor, keys: Tensor) -> Tensor:
    """[Hq, w, D] -> [Hkv, G, w, D]."""
    return queries.unflatten(0, (keys.shape[0], -1))


def _blocks(keys: Tensor, first: int, count: int, size: int) -> Tensor:
    """Returns keys [Hkv, T, D] from row `first` on as [Hkv, count, size, D]."""
    return keys[:, first : first + count * size].unflatten(1, (count, size))


def _rows(blocks: Tensor, first: int, size: int) -> Tensor:
    """Returns the rows [Hkv, b * size] of blocks [Hkv, b], which are counted from row `first`."""
    return (first + blocks[..., None] * size + torch.arange(size, device=blocks.device)).flatten(1)


def _all(keys: Tensor) -> Tensor:
    return torch.arange(keys.shape[1], device=keys.device)


def _with(keys: Tensor, sinks: int, chosen: Tensor | None, newest: int) -> Tensor:
    """Returns the first `sinks` rows, the chosen rows [Hkv, c], and all rows from `newest` on, ascending."""
    every = _all(keys)
    around = every[:sinks], every[newest:]
    if chosen is None:
        return torch.cat(around)
    heads = keys.shape[0]
    return torch.cat([around[0].expand(heads, -1), chosen.sort(-1).values, around[1].expand(heads, -1)], dim=1)
