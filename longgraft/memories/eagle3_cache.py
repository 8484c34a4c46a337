"""EAGLE-3's cache: keys and values of the committed tokens, and the newest state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longgraft.attention.layout import DeviceLayout, Layout, words
from longgraft.kernels.cpu import CpuKernels
from longgraft.memories.draft_cache import DraftCache
from longgraft.memories.head_passes import HeadPasses, HeadRows, Part
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache, index_copy
from longgraft.target_model.fused_modules import FusedModules, Kernels
from longgraft.target_model.topk import MOST_CHILDREN, children
from longgraft.target_model.weight_identity import drafter_identity
from longgraft.trees.beams import beam
from longgraft.trees.padded import SIZES, size_of
from longgraft.yarn_drafters.network import Eagle3Network

MOST_LEVELS = 64  # of a draft, as the settings allow


class Children(NamedTuple):
    """The k best next tokens after each of b states."""

    tokens: Tensor  # [b, k] int64, the target's ids
    gains: Tensor  # [b, k] float32, log-probabilities
    distribution: Callable[[], Tensor]  # -> [b, D] float32, log-probabilities over the draft vocabulary


def _log_probs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)


class Eagle3Cache(DraftCache):
    """The input pairs of an EAGLE-3 head.

    Slot t pairs feature t with token t + 1 at position t, so the root's pair is the last one observed.

    Args:
        window: Tokens of its own past that each slot sees, including itself; None: the network's own
            choice.  Rotary embeddings depend only on differences of positions, so a window needs no other
            positions: no difference exceeds it.
        clock: What measures the parts of a step.
        kernels: A CPU's compiled kernels; None: torch.
        regions: If they are fixed, passes have fixed shapes.
        fused: Kernels with which fixed regions take fewer launches.
        passes: The engine's; None: its own.
    """

    name = "drafter"

    def __init__(
        self,
        network: Eagle3Network,
        window: int | None = None,
        clock: Clock | None = None,
        kernels: CpuKernels | None = None,
        regions: Regions = EAGER,
        fused: Kernels | None = None,
        passes: HeadPasses | None = None,
    ) -> None:
        super().__init__(KVCache(network.config.layers, 0), 0, clock)
        self.network = network
        self.regions = regions
        self.window = window or network.config.window
        self.wants = Wants(layers=tuple(sorted(set(network.config.feature_layers))))
        self.positions = None if self.window else network.config.max_positions
        weight = network.fc.weight
        self.device = weight.device
        self.passes = passes or HeadPasses(network, self.window, kernels)
        self._kernels = fused
        self._fused = nullcontext if fused is None else FusedModules(network, fused)
        self._write = index_copy if fused is None else fused.write
        # Inputs of regions, set before each run: `cache.length`, the root, and the newest state.
        self.committed, self.root = torch.zeros(2, 1, dtype=torch.int64, device=weight.device)
        self.start = torch.zeros(1, 1, network.config.hidden_size, dtype=weight.dtype, device=weight.device)
        self._prefix = torch.zeros(1, dtype=torch.int32, device=weight.device)  # `committed`, as a layout reads it
        self._newest: Tensor | None = None

    @property
    def identity(self) -> dict[str, str]:
        return drafter_identity(self.network, self.window)

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (self.network,)

    def _columns(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """Returns the kept tokens' pairs, with the target's own features; rows of drafted tokens are never kept."""
        return seen.features(self.network.config.feature_layers), seen.following

    def newest(self) -> Tensor:
        """Returns the state of the newest pair, [1, 1, H], from which drafting starts."""
        self.feed()
        assert self._newest is not None, "the drafter has observed nothing"
        return self._newest

    def _read(self, columns: list[Tensor]) -> None:
        self.clock.ran("draft")
        tokens = columns.pop()
        features = columns.pop()
        n = len(tokens)
        features = features.to(self.device, self.network.fc.weight.dtype)
        # A region cannot be recorded on an empty cache, which has no buffers.
        if self.regions.fixed and self.cache.length and n <= SIZES[-1]:
            states = self._feed_rows(features, tokens)
        else:
            hidden = self.passes.run(HeadRows(features), Part.FUSE)
            del features  # they are several times as wide as `hidden`
            layout = Layout(self.cache.length, torch.arange(n), None, self.device)
            positions = torch.arange(self.cache.length, self.cache.length + n, device=self.device)
            rows = HeadRows(hidden, sent(tokens, self.device), positions, self.cache, layout)
            states = self.passes.run(rows, Part.FEED)[None]
        # Copied, because a view would keep a prompt chunk's states alive.
        self._newest = states[:, n - 1 : n].clone()

    def _feed_rows(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Feeds features [n, F] and tokens [n]; returns states [1, m, H] of m >= n rows; those after n are scratch."""
        n = len(tokens)
        rows = size_of(n)
        key = self, "feed", self.cache.age, rows

        def buffers() -> tuple[Tensor, Tensor]:
            wide = features.new_zeros(rows, features.shape[1])
            return wide, torch.zeros(rows, dtype=torch.int64, device=self.device)

        wide, following = self.regions.kept(key, buffers)
        wide[:n] = features
        following[:n] = sent(tokens, self.device)
        self.committed.fill_(self.cache.length)
        return self.regions(key, lambda: self._extend(wide, following))

    def _extend(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Reads a chain of features [n, F] and tokens [n] in fixed buffers, and returns its states [1, n, H]."""
        n = len(tokens)
        depths = torch.arange(n, device=self.device)
        layout = DeviceLayout.of(self.committed, depths, depths, depths[:, None] >= depths)
        with self.cache.at(self.committed + depths, self._write), self._fused():
            hidden = self._run(HeadRows(features), Part.FUSE)
            rows = HeadRows(hidden, tokens, self.committed + depths, self.cache, layout)
            return self._run(rows, Part.FEED)[None]

    def begin(self, root: int) -> None:
        """Begins a proposal: feeds waiting tokens and sets the inputs of regions."""
        self.start.copy_(self.newest())
        self.root.fill_(root)
        self.committed.fill_(self.cache.length)

    def first(self, k: int) -> Children:
        """Returns the newest state's k children, and prepares what all levels of this draft read.

        That is the prefix, and the rotations, which depend on a level's depth alone.
        """
        if self.regions.fixed:
            self._prefix.copy_(self.committed)
            depths = torch.arange(MOST_LEVELS, device=self.device)
            for table, made in zip(self._rotations(), self.network.cos_sin(self.committed + depths), strict=True):
                table.copy_(made)
        return self.children(self.start, k)

    def _rotations(self) -> tuple[Tensor, Tensor]:
        """Returns a draft's rotations by depth, [MOST_LEVELS, D] each, in a fixed place."""

        def tables() -> tuple[Tensor, Tensor]:
            cos, sin = torch.zeros(2, MOST_LEVELS, self.network.config.head_dim, device=self.device)
            return cos, sin

        return self.regions.kept((self, "rotations"), tables)

    def _columns_of(self, m: int, b: int) -> tuple[Tensor, Tensor]:
        """Returns the numbers of m scratch rows, int64, and their depths if each depth has b rows, int32."""

        def columns() -> tuple[Tensor, Tensor]:
            at = torch.arange(m, device=self.device)
            return at, (at // b).int()

        return self.regions.kept((self, "columns", m, b), columns)

    def children(self, states: Tensor, k: int) -> Children:
        """Returns the k most probable next tokens after each of states [1, b, H], with their log-probabilities."""
        with self._fused() if self.regions.fixed else nullcontext():
            logits = self._run(HeadRows(states[0]), Part.OUTPUT)
        offsets = self.network.d2t
        if self._kernels is not None and self._takes(k):
            return Children(*self._kernels.children(logits, k, offsets), partial(_log_probs, logits))
        log_probs = _log_probs(logits)
        return Children(*children(log_probs, k, offsets), lambda: log_probs)

    def beam(self, scores: Tensor, best: Tensor, gains: Tensor, visible: Tensor, offset: int) -> tuple[Tensor, ...]:
        """Does `trees.beams.beam`, in one launch if regions are fixed."""
        if self._kernels is not None and self._takes(gains.shape[1]):
            return self._kernels.beam(scores, best, gains, visible, offset)
        return beam(scores, best, gains, visible, offset)

    def _takes(self, k: int) -> bool:
        return self.regions.fixed and k <= MOST_CHILDREN

    def expand(self, hidden: Tensor, tokens: Tensor, depth: int, seen: Tensor, depths: Tensor | None = None) -> Tensor:
        """Returns the states [1, b, H] of b scratch rows that lie `depth` after the committed ones, after m - b others.

        Args:
            hidden: [1, b, H].
            tokens: [b].
            depth: Depth of the rows, the last b of `depths`.
            seen: [b, m] bool, the scratch rows that each sees, including its own.
            depths: [m] int64 of the scratch rows, on the device if regions are fixed, else on the host;
                None: b rows of each depth.
        """
        b, m = seen.shape
        if self.regions.fixed:
            at, levels = self._columns_of(m, b)
            if depths is not None:
                levels = depths.int()
            fixed = DeviceLayout(self._prefix, levels[m - b :], levels, words(seen))
            with self.cache.at(self.committed + at[m - b :], self._write), self._fused():
                cos, sin = (table[depth].expand(b, -1) for table in self._rotations())
                rows = HeadRows(hidden[0], tokens, None, self.cache, fixed, (cos, sin))
                return self._run(rows, Part.LEVEL)[None]
        if depths is None:
            depths = torch.arange(m) // b
        committed = self.cache.length
        layout = Layout(committed, torch.full((b,), depth), seen, self.device, depths)
        self.cache.length += m - b
        try:
            positions = torch.full((b,), committed + depth, device=self.device)
            return self._run(HeadRows(hidden[0], tokens, positions, self.cache, layout), Part.LEVEL)[None]
        finally:
            self.cache.length = committed

    def _run(self, rows: HeadRows, part: Part) -> Tensor:
        """Runs a pass; other requests share it unless it may be recorded, as a recording holds one request's cache."""
        if self.regions.fixed:
            return self.passes.forward([rows], part)[0]
        return self.passes.run(rows, part)

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self._newest = None

    def mark(self) -> Any:
        return super().mark(), self._newest

    def rewind(self, mark: Any) -> None:
        rows, self._newest = mark
        super().rewind(rows)

    def release(self) -> None:
        super().release()
        self._newest = None
