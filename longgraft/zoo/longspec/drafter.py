"""LongSpec (arXiv 2502.17421): a beam of fixed widths, drafted from a window and the KV cache of the target's
last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from longgraft.attention.backends import BACKENDS, Backend, choose, everywhere
from longgraft.attention.layout import Layout
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.byte_rows import numbers_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.trees.tree import DRAFT, ROOT, UNPRUNED, ProposalTree
from longgraft.zoo.longspec.network import LongSpecNetwork, SharedParts


class LongSpecCache(Memory):
    """Rows of the newest tokens, at most twice the network's window: constant memory at any length.

    It is fed when a tree is proposed; until then it keeps only the window's token ids, from which the layer's
    keys and values are computed.  Tokens further back are read from the target's own cache: the committed
    rows of its last layer, without the scratch rows of the next pass.
    """

    name = "LongSpec drafter"
    wants = Wants(cache=True)

    def __init__(self, network: LongSpecNetwork, target: Target) -> None:
        self.network = network
        self.target = target
        self.shared = SharedParts(target)
        self.window = network.config.window
        weight = network.mlp.up_proj.weight
        self.device = weight.device
        self._like = weight
        # Both fall back to torch for what they do not support: many rows, another device or another dtype.
        kernels = target.kernels
        self.product = kernels.product if kernels else linear
        if kernels:
            self._backend: Backend = kernels.attention
        else:
            self._backend = BACKENDS[choose("auto", self.device, weight.dtype)]
        self.cache = KVCache(1, 0)
        self._scratch = 0
        self._forget()

    def _forget(self) -> None:
        self.cache.clear()
        self._waiting = torch.empty(0, dtype=torch.int64)
        self._theirs: KVCache | None = None
        self._rows = 0

    def room(self, rows: int) -> None:
        """Reserves at least this many scratch rows after the committed ones."""
        self._scratch = max(self._scratch, rows)

    def reset(self, capacity: int) -> None:
        self._forget()
        self.cache.reserve(min(capacity, 2 * self.window) + self._scratch)

    def observe(self, seen: Observation) -> None:
        assert seen.cache is not None, "the target's cache was not reported"
        self._theirs = seen.cache
        self._rows = seen.cache.length
        self._waiting = torch.cat([self._waiting, seen.kept])
        more = len(self._waiting) - self.window
        if more >= 0:  # no later token sees the rows before the window
            self._waiting = self._waiting[more:]
            position = self.cache.position + more
            self.cache.clear()
            self.cache.skipped = position

    @torch.inference_mode()
    def feed(self) -> None:
        """Computes keys and values of waiting tokens."""
        cache = self.cache
        n = len(self._waiting)
        if n:
            if cache.length + n > 2 * self.window:
                self._slide()
            angles = self._angles(torch.arange(cache.position, cache.position + n, device=self.device))
            keys, values = self.network.rows(self._embedded(self._waiting), angles)
            cache.update(keys, values, 0)
            cache.length += n
            self._waiting = self._waiting[:0]

    def _slide(self) -> None:
        """Moves the newest window to the front."""
        cache = self.cache
        first = self.cache.length - self.window
        copies = cache.gathered(torch.arange(first, cache.length, device=self.device))
        cache.put(torch.arange(self.window, device=self.device), copies)
        cache.crop(self.window)
        cache.skipped += first

    def expand(self, tokens: Tensor, depth: int, visible: Tensor, depths: Tensor) -> Tensor:
        """Returns the states of b scratch rows that lie `depth` after the committed ones.

        The states are [b, H], inputs of the target's output layer.

        Args:
            tokens: [b] int64.
            visible: [b, m] bool, the scratch rows so far, including their own, that they see.
            depths: [m] int64 of these scratch rows.
        """
        b, m = visible.shape
        cache = self.cache
        target_cache = self._theirs
        committed = self.cache.length
        assert target_cache is not None, "the drafter has observed nothing"
        layout = Layout(committed, torch.full((b,), depth), visible, self.device, depths)
        scale = self.network.config.head_dim**-0.5
        last_keys, last_values = (rows[:, :, : self._rows] for rows in target_cache.last)

        def attend_self(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.update(k, v, 0)
            return self._backend(q, keys, values, layout, scale, self.window + 1)

        def far(q: Tensor) -> Tensor:
            return everywhere(q, numbers_of(last_keys, q.dtype), numbers_of(last_values, q.dtype), scale)

        angles = self._angles(torch.full((b,), cache.position + depth, device=self.device))
        cache.length += m - b
        try:
            return self.network(self._embedded(tokens), angles, attend_self, far, self.product)[0]
        finally:
            cache.length = committed

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.shared.embed(sent(tokens, self.device)[None], self._like)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.shared.angles(positions[None], self.network.config.head_dim)

    def mark(self) -> Any:
        return self.cache.state(), self._waiting, self._theirs, self._rows

    def rewind(self, mark: Any) -> None:
        rows, self._waiting, self._theirs, self._rows = mark
        self.cache.reserve(len(self._waiting) + rows.length + self._scratch)
        self.cache.restore(rows)

    def release(self) -> None:
        self._forget()
        self.cache.release()


SHAPE = (4, 16, 16, 16, 16)  # nodes of each level, as in the official code


class LongSpecDrafter:
    """A drafter of trees: each level keeps the most probable paths of all children of the level before.

    A smaller budget keeps the best nodes of the full shape.
    """

    def __init__(self, memory: LongSpecCache, shape: Sequence[int] = SHAPE, clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.shape = tuple(shape)
        self.clock = clock or Clock()
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
        tokens = torch.tensor([root], device=device)
        scores = torch.zeros(1, device=device)
        visible = torch.ones(1, 1, dtype=torch.bool, device=device)
        levels = list[Tensor]()
        starts = [0, *accumulate((1, *self.shape))]  # of each level's nodes; the root is level 0
        for depth, width in enumerate(self.shape):
            depths = torch.repeat_interleave(torch.arange(depth + 1), torch.tensor((1, *self.shape[:depth])))
            self.clock.ran("draft")
            states = self.memory.expand(tokens, depth, visible, depths)
            k = min(width, self.memory.target.vocab_size)
            gains, ids = self.memory.target.logits(states).float().log_softmax(-1).topk(k)  # [b, k]
            scores, best = (scores[:, None] + gains).flatten().topk(width)
            above = best // k
            tokens = ids.flatten()[best]
            visible = torch.cat([visible[above], torch.eye(width, dtype=torch.bool, device=device)], dim=1)
            # float64 holds ids and float32 scores exactly, so one copy to the host brings all.
            levels.append(torch.stack([tokens.double(), (starts[depth] + above).double(), scores.double()]))
        ids, parents, scores = torch.cat(levels, dim=1).cpu()
        return ProposalTree(
            torch.cat([torch.tensor([root]), ids.long()]),
            torch.cat([torch.tensor([-1]), parents.long()]),
            torch.cat([torch.zeros(1), scores.float()]),
            torch.tensor([ROOT] + [DRAFT] * len(ids), dtype=torch.int8),
            UNPRUNED,
        )
