"""Attention layouts: which columns each of a few new rows sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.runtime.devices import sent

ALIGNED = 16  # columns that a bias is padded to: CUDA's kernels read it in pieces of up to 16 numbers


class Layout:
    """The visible columns, among P + m, of each of the n new rows.

    There are P prefix columns and m own columns, the last n of which are the new rows.  Row i is at position
    P + depths[i].  With a window W it sees positions above P + depths[i] - W, so the lower edge differs by
    row.  These few ragged columns go to the masked part; the rest of the prefix needs no mask.

    Args:
        prefix: Number of prefix columns P.
        depths: [n].
        mask: [n, m] bool; None for a chain (then m = n).
        device: Device of the rows.
        column_depths: [m]; None: `depths`.
    """

    def __init__(
        self,
        prefix: int,
        depths: Tensor,
        mask: Tensor | None,
        device: torch.device,
        column_depths: Tensor | None = None,
    ) -> None:
        self.prefix = prefix
        self.rows = len(depths)
        self.device = device
        self.deepest = int(depths.max())  # read here, on the host: on a GPU it would cost a device sync
        columns = depths if column_depths is None else column_depths
        self.end = prefix + len(columns)
        self._depths = depths
        self._mask = mask
        self._column_depths = column_depths
        self._cache: dict[tuple, Tensor] = {}

    @cached_property
    def depths(self) -> Tensor:
        """[n] int64 on the device; copied on first use, because plain decoding does not need it."""
        return sent(self._depths, self.device)

    @cached_property
    def column_depths(self) -> Tensor:
        """[m] int64 on the device."""
        if self._column_depths is None:
            return self.depths
        return sent(self._column_depths, self.device)

    @cached_property
    def mask(self) -> Tensor | None:
        """[n, m] bool on the device; None for a chain."""
        if self._mask is None:
            return None
        return sent(self._mask, self.device)

    @property
    def plain(self) -> bool:
        """True for one row that sees all columns within its window."""
        return self.rows == 1 and self.end == self.prefix + 1

    def slides(self, window: int | None) -> bool:
        """True if the window hides any column from any row."""
        return window is not None and self.prefix + self.deepest + 1 > window

    def own(self, window: int | None) -> Tensor:
        """Returns [n, m] bool: which own columns each row sees."""
        visible = self.mask
        if visible is None:
            visible = torch.ones(self.rows, self.rows, dtype=torch.bool, device=self.device).tril()
        if window is not None and self.slides(window):
            visible = visible & (self.depths[:, None] - self.column_depths[None, :] < window)
        return visible

    def edges(self, window: int | None) -> tuple[int, int]:
        """Returns the first prefix columns that (any row sees, every row sees)."""
        if not self.slides(window):
            return 0, 0
        assert window is not None
        any_row = max(0, self.prefix - window + 1)
        every_row = max(0, self.prefix + self.deepest - window + 1)
        return any_row, min(self.prefix, every_row)

    def by_position(self, window: int | None) -> tuple[Tensor, Tensor | None]:
        """Returns the geometry by token position, for kernels that read the cache in that order.

        Returns:
            (the first position that each row sees, [n] int64; for each row and slot the own column at
            position P + slot, -1 for none, [n, slots] int32, or None for a chain, whose columns lie at
            their positions).
        """
        key = ("first", window)
        if key not in self._cache:
            if window is not None and self.slides(window):
                first = (self.prefix + self.depths - window + 1).clamp(min=0)
            else:
                first = torch.zeros_like(self.depths)
            if self.mask is not None:
                order, at_positions = self._order(self.own(window))
                self._cache["order", window] = order
                if not at_positions:  # the window is in the order already, and slots are no positions
                    first = first.clamp(max=self.prefix)
            self._cache[key] = first
        return self._cache[key], self._cache.get(("order", window))

    def _order(self, visible: Tensor) -> tuple[Tensor, bool]:
        """Returns ([n, slots] int32 for `by_position`, True if each column is at its position's slot).

        If a row sees several columns of one depth, its columns follow one another.
        """
        rows, columns = visible.nonzero().unbind(1)
        slots = self.column_depths[columns]
        order = torch.full((self.rows, int(self.column_depths.max()) + 1), -1, dtype=torch.int32)
        order[rows, slots] = columns.int()
        if int((order >= 0).sum()) < len(columns):
            order = torch.full((self.rows, int(visible.sum(1).max())), -1, dtype=torch.int32)
            for row in range(self.rows):
                of_row = columns[rows == row]
                of_row = of_row[self.column_depths[of_row].argsort(stable=True)]
                order[row, : len(of_row)] = of_row.int()
            return order, False
        return order, True

    def dense(self, window: int | None) -> Tensor:
        """Returns the whole mask, [n, P + m] bool."""
        key = ("dense", window)
        if key not in self._cache:
            columns = torch.arange(self.prefix, device=self.device)
            before = torch.ones(self.rows, self.prefix, dtype=torch.bool, device=self.device)
            if window is not None and self.slides(window):
                before = self.prefix + self.depths[:, None] - columns[None, :] < window
            self._cache[key] = torch.cat([before, self.own(window)], dim=1)
        return self._cache[key]

    def masked_part(self, window: int | None) -> Tensor:
        """Returns the mask of the masked part, [n, R + m] bool: R ragged prefix columns, then own columns."""
        key = ("masked", window)
        if key not in self._cache:
            first, every = self.edges(window)
            visible = self.own(window)
            if first < every:
                columns = torch.arange(first, every, device=self.device)
                ragged = self.prefix + self.depths[:, None] - columns[None, :] < (window or 0)
                visible = torch.cat([ragged, visible], dim=1)
            self._cache[key] = visible
        return self._cache[key]

    def bias(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """Returns `masked_part` as a bias [G * n, R + m] of 0 and -inf, repeated for each head of a group."""
        key = ("bias", window, group, dtype)
        if key not in self._cache:
            visible = self.masked_part(window)
            columns = visible.shape[1]
            padded = -(-columns // ALIGNED) * ALIGNED
            bias = torch.zeros(self.rows, padded, dtype=dtype, device=self.device)
            bias[:, :columns].masked_fill_(~visible, float("-inf"))
            self._cache[key] = bias.repeat(group, 1)[:, :columns]
        return self._cache[key]

    @cached_property
    def on_device(self) -> DeviceLayout:
        """The same geometry, computed on the device; the host provides only the prefix length."""
        prefix = torch.full((1,), self.prefix, dtype=torch.int32, device=self.device)
        return DeviceLayout.of(prefix, self.depths, self.column_depths, self.own(None))


@dataclass(frozen=True, eq=False)
class DeviceLayout:
    """Row geometry in tensors on the device: one recorded launch serves every prefix and every tree of n rows.

    Own columns are the cache rows length .. length + m; row i is at position length + depths[i], and with a
    window W it sees positions above that minus W.

    The rows can belong to S requests, whose caches are ranges of one buffer.  Then the rows of a request, which
    follow one another, are its slot: they are its own columns, and their places in the buffer follow its prefix.
    A row in no slot sees nothing, and a slot may have no rows.

    Attributes:
        length: [S] int32, number of prefix rows of each slot; S is a power of two, and 1 without slots.
        depths: [n] int32.
        column_depths: [m] int32; with slots m = n.
        words: [n, W] int32; bit j of word w of row i is set if row i sees own column 32 w + j of its slot.  A
            slot has at most 32 W rows.
        slots: [3, S] int32: each slot's first row, its number of rows, and the row of the buffer where its
            prefix begins.  None: one slot, which has all rows and begins at row 0 of the buffer.
    """

    length: Tensor
    depths: Tensor
    column_depths: Tensor
    words: Tensor
    slots: Tensor | None = None

    @classmethod
    def of(cls, length: Tensor, depths: Tensor, column_depths: Tensor, visible: Tensor) -> DeviceLayout:
        """Builds the layout from integers of any dtype, and visible [n, m] bool: own columns that a row sees."""
        return cls(length.int(), depths.int(), column_depths.int(), words(visible))

    @property
    def rows(self) -> int:
        return len(self.depths)

    def dense(self, capacity: int, window: int | None) -> Tensor:
        """Returns the mask over the whole buffer, [n, capacity] bool, without a host read."""
        first, count, base, length = self._ranges()
        columns = torch.arange(capacity, dtype=torch.int32, device=self.length.device) - base
        own_columns = columns - length  # below 0 in the prefix
        clamped = own_columns.clamp(0, 32 * self.words.shape[1] - 1)
        bits = self.words.gather(1, (clamped >> 5).long().expand(self.rows, -1)) >> (clamped & 31) & 1
        visible = (columns >= 0) & ((own_columns < 0) | ((own_columns < count) & (bits == 1)))
        if window is None:
            return visible
        own_depths = self.column_depths[(first + own_columns).clamp(0, len(self.column_depths) - 1)]
        positions = torch.where(own_columns < 0, columns, length + own_depths)
        return visible & (length + self.depths[:, None] - positions < window)

    def _ranges(self) -> tuple[int | Tensor, ...]:
        """Returns (first row, number of rows, base, length) of each row's slot, [n, 1]; zeros for a row in no slot."""
        if self.slots is None:
            return 0, len(self.column_depths), 0, self.length
        ranges = torch.cat([self.slots, self.length[None]])[:, None]  # [4, 1, S]
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.length.device)[:, None]
        inside = (rows >= ranges[0]) & (rows < ranges[0] + ranges[1])  # [n, S]
        return (ranges * inside).sum(2, keepdim=True, dtype=torch.int32).unbind(0)


def words(visible: Tensor) -> Tensor:
    """Packs [n, m] bool into bits, [n, ceil(m / 32)] int32; bit 31 is the sign."""
    padded = F.pad(visible, (0, -visible.shape[1] % 32)).int().unflatten(1, (-1, 32))
    bits = torch.arange(32, dtype=torch.int32, device=visible.device)
    return (padded << bits).sum(-1, dtype=torch.int32)  # distinct bits: the sum never carries
