"""Passes whose rows belong to several requests, and the attention of each request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.attention.backends import dense
from longgraft.attention.layout import DeviceLayout, Layout, words
from toys.trees import random_tree

NAN = float("nan")
GAP = 7  # rows of the buffer between two requests
NOWHERE = (7_000, 0, 900_000)  # a slot without rows may name any place
# Prefix rows and rows of the pass of each slot.
SLOTS = {
    "one slot": [(37, 12)],
    "four slots": [(37, 5), (0, 1), (90, 7), (5, 0)],
    "full slots": [(40, 33), (0, 64)],
    "sixteen slots": [(11 * s % 50, s % 3) for s in range(16)],
}


@dataclass(frozen=True)
class SlotPass:
    """A pass over slots; whatever belongs to no request is NaN, or all bits set.

    Attributes:
        q: [1, H, n, D], as transformers passes it.
        k: [1, Hkv, capacity, D].
        v: Likewise.
        layout: The geometry.
        requests: Each request's rows of the pass, its rows of the buffer, and its own layout.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    layout: DeviceLayout
    requests: list[tuple[slice, slice, Layout]]

    @classmethod
    def random(cls, sizes: Sequence[tuple[int, int]], heads: tuple[int, int], device: torch.device) -> SlotPass:
        """Builds random rows; sizes: each slot's prefix rows and rows."""
        torch.manual_seed(len(sizes))
        rows = sum(count + 1 for _, count in sizes)  # a row in no slot follows each slot
        capacity = sum(prefix + count + GAP for prefix, count in sizes)
        wide = -(-max(count for _, count in sizes) // 32) * 32
        q = torch.full((1, rows, heads[0], 16), NAN, device=device).transpose(1, 2)
        k, v = torch.full((2, 1, heads[1], capacity, 16), NAN, device=device).unbind(0)
        depths = torch.full((rows,), 9, dtype=torch.int32, device=device)
        bits = torch.full((rows, wide // 32), -1, dtype=torch.int32, device=device)
        slots = []
        requests = []
        row, base = 0, capacity
        for prefix, count in sizes:
            base -= prefix + count + GAP
            slots.append((row, count, base) if count else NOWHERE)
            if count:
                tree = random_tree(count, row)
                own, part = slice(row, row + count), slice(base, base + prefix + count)
                for numbers, place in ((q, own), (k, part), (v, part)):
                    numbers[:, :, place] = torch.randn(numbers[:, :, place].shape, device=device)
                depths[own] = tree.depths.int().to(device)
                bits[own] = words(F.pad(tree.mask, (0, wide - count))).to(device)
                requests.append((own, part, Layout(prefix, tree.depths, tree.mask, device)))
            row += count + 1
        lengths = torch.tensor([prefix for prefix, _ in sizes], dtype=torch.int32, device=device)
        places = torch.tensor(slots, dtype=torch.int32, device=device).T.contiguous()
        return cls(q, k, v, DeviceLayout(lengths, depths, depths, bits, places), requests)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that differs between two passes of as many rows and slots."""
        fields = self.layout
        return [self.q, self.k, self.v, fields.length, fields.depths, fields.words, fields.slots]

    def alone(self, window: int | None, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        """Computes each request by the reference on its own rows and cache; rows in no slot are zeros."""
        out = torch.zeros_like(self.q)
        for own, part, layout in self.requests:
            k, v = self.k[:, :, part], self.v[:, :, part]
            out[:, :, own] = dense(self.q[:, :, own], k, v, layout, 0.25, window, softcap, sinks)
        return out
