"""Passes of an EAGLE-3 head over the rows of one or several requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from longgraft.attention.backends import BACKENDS, Backend, choose, fixed_backend
from longgraft.attention.layout import DeviceLayout, Layout
from longgraft.kernels.cpu import CpuKernels
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.packed_cache import PackedCache
from longgraft.target_model.passes import SHARED
from longgraft.yarn_drafters.network import Eagle3Network


class Part(IntEnum):
    """Parts of the head that a pass runs, in the order in which a draft needs them."""

    FUSE = 0  # features to states
    FEED = 1  # the layers, on observed tokens
    OUTPUT = 2  # the output layer
    LEVEL = 3  # the layers, on drafted tokens


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Rows of one request in a pass.  Only the layers need more than the inputs."""

    inputs: Tensor  # [n, A * Ht], the target's features, for FUSE; otherwise states [n, H]
    tokens: Tensor | None = None  # [n]
    positions: Tensor | None = None  # [n]
    cache: KVCache | None = None  # keys and values are written after its length, or at its `rows`
    layout: Layout | DeviceLayout | None = None  # what the rows see
    cos_sin: tuple[Tensor, Tensor] | None = None  # rotations [n, D], if the request is alone; None: of the positions


class HeadPasses:
    """A head that all lanes of an engine draft with; rows of several requests may share a pass.

    A row's result depends on its own request alone, up to rounding; with compiled kernels bit for bit as
    far as docs/exactness.md says.

    Attributes:
        packs: True if several requests may share a pass; set to False when such a pass fails.
    """

    name = "the EAGLE-3 head"
    drafts = True

    def __init__(self, network: Eagle3Network, window: int | None = None, kernels: CpuKernels | None = None) -> None:
        """Takes a head, and its window as in `Eagle3Cache`."""
        self.network = network
        self.window = window
        self.packs = True
        weight = network.fc.weight
        # Both fall back to torch for what they do not support: many rows, another device or another dtype.
        self.product = kernels.product if kernels else linear
        self._backend = kernels.attention if kernels else BACKENDS[choose("auto", weight.device, weight.dtype)]
        self._fixed_backend = fixed_backend(weight.device)

    def run(self, rows: HeadRows, part: Part) -> Tensor:
        """Returns states [n, H], or for OUTPUT logits [n, D] over the draft vocabulary.

        Inside `together`, one pass runs for all requests that wait for the same part.
        """
        shared = SHARED.get()
        if shared is None:
            (result,) = self.forward([rows], part)
        else:
            (result,) = shared(self, [rows], part)
        return result

    def turn(self, part: Part) -> int:
        """Returns the order of passes that wait at the same time: the part that a draft needs first runs first."""
        return part

    @torch.inference_mode()
    def forward(self, rows: Sequence[HeadRows], part: Part) -> list[Tensor]:
        """Does `run` for these requests alone, in one pass."""
        counts = [len(share.inputs) for share in rows]
        inputs = _joined([share.inputs for share in rows])
        if part is Part.OUTPUT:
            return list(self.network.logits(inputs, self.product).split(counts))
        if part is Part.FUSE:
            return list(self.network.fuse(inputs, self.product).split(counts))
        caches: Any = [share.cache for share in rows]
        layouts: Any = [share.layout for share in rows]
        tokens: Any = [share.tokens for share in rows]
        positions: Any = [share.positions for share in rows]
        cache = caches[0] if len(rows) == 1 else PackedCache(caches, counts)
        scale = self.network.config.head_dim**-0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.update(k, v, layer)
            if len(rows) == 1:
                return self._attention(q, keys, values, layouts[0], scale)
            shares = zip(q.split(counts, dim=2), keys, values, layouts, strict=True)
            return torch.cat([self._attention(*share, scale) for share in shares], dim=2)

        cos, sin = rows[0].cos_sin or self.network.cos_sin(_joined(positions))
        cos_sin = cos[None], sin[None]
        states = self.network(inputs[None], _joined(tokens)[None], cos_sin, attend, self.product)
        return list(states[0].split(counts))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout | DeviceLayout, scale: float) -> Tensor:
        backend: Backend = self._backend if isinstance(layout, Layout) else self._fixed_backend
        return backend(q, k, v, layout, scale, self.window)


def _joined(columns: Sequence[Tensor]) -> Tensor:
    """Joins columns of rows; a single one is not copied."""
    if len(columns) == 1:
        return columns[0]
    return torch.cat(list(columns))
