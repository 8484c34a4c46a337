"""Which columns each of a few new rows sees.  Knows row geometry; knows no kernel and no model."""

from __future__ import annotations

import torch
from torch import Tensor


class Layout:
    """Which of the P + m columns each of the n new rows sees: P of the prefix, the last n of the m are the rows.

    depths: [n]; mask: [n, m] bool, None for a chain (then m = n); column_depths: [m], by default `depths`.
    Row i stands at position P + depths[i].  With a window W it sees positions above P + depths[i] - W, so the
    lower edge is ragged: its few columns go to the masked part, and the rest of the prefix needs no mask.
    """

    def __init__(self, prefix: int, depths: Tensor, mask: Tensor | None, device: torch.device,
                 column_depths: Tensor | None = None) -> None:
        self.prefix, self.rows, self.device = prefix, len(depths), device
        self.deepest = int(depths.max())        # before the copy: on a GPU it would be a sync
        self.depths = depths.to(device)
        self.column_depths = self.depths if column_depths is None else column_depths.to(device)
        self.mask = None if mask is None else mask.to(device)
        self.end = prefix + len(self.column_depths)
        self._cache: dict[tuple, Tensor] = {}

    @property
    def plain(self) -> bool:
        """One row that sees all columns, but for a window."""
        return self.rows == 1 and self.end == self.prefix + 1

    def slides(self, window: int | None) -> bool:
        """Whether the window hides anything from any row."""
        return window is not None and self.prefix + self.deepest + 1 > window

    def own(self, window: int | None) -> Tensor:
        """[n, m] bool: new rows among themselves and rows appended before them."""
        among = torch.ones(self.rows, self.rows, dtype=torch.bool, device=self.device).tril() \
            if self.mask is None else self.mask
        if window is not None and self.slides(window):
            among = among & (self.depths[:, None] - self.column_depths[None, :] < window)
        return among

    def edges(self, window: int | None) -> tuple[int, int]:
        """(first column any row sees, first column that every row sees) of the prefix."""
        if not self.slides(window):
            return 0, 0
        assert window is not None
        return max(0, self.prefix - window + 1), min(self.prefix, max(0, self.prefix + self.deepest - window + 1))

    def ranges(self, window: int | None) -> tuple[Tensor, Tensor]:
        """(the first prefix column that each row sees [n] int64, `own` [n, m] as contiguous bool)."""
        key = ("lowest", window)
        if key not in self._cache:
            lowest = torch.zeros_like(self.depths)
            if window is not None and self.slides(window):
                lowest = (self.prefix + self.depths - window + 1).clamp(0, self.prefix)
            self._cache[key], self._cache["seen", window] = lowest, self.own(window).contiguous()
        return self._cache[key], self._cache["seen", window]

    def dense(self, window: int | None) -> Tensor:
        """[n, P + m] bool."""
        key = ("dense", window)
        if key not in self._cache:
            columns = torch.arange(self.prefix, device=self.device)
            before = torch.ones(self.rows, self.prefix, dtype=torch.bool, device=self.device)
            if window is not None and self.slides(window):
                before = self.prefix + self.depths[:, None] - columns[None, :] < window
            self._cache[key] = torch.cat([before, self.own(window)], dim=1)
        return self._cache[key]

    def masked_part(self, window: int | None) -> Tensor:
        """[n, R + m] bool over the R ragged prefix columns, then the own rows."""
        key = ("masked", window)
        if key not in self._cache:
            first, every = self.edges(window)
            columns = torch.arange(first, every, device=self.device)
            ragged = self.prefix + self.depths[:, None] - columns[None, :] < (window or 0)
            self._cache[key] = torch.cat([ragged, self.own(window)], dim=1)
        return self._cache[key]

    def bias(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """[G * n, R + m]: `masked_part` as 0 / -inf, once per query head of a group."""
        key = ("bias", window, group, dtype)
        if key not in self._cache:
            seen = self.masked_part(window)
            zero = torch.zeros(seen.shape, dtype=dtype, device=self.device)
            self._cache[key] = zero.masked_fill(~seen, float("-inf")).repeat(group, 1)
        return self._cache[key]
