"""The adjacency matrix: for each token, the K tokens that the target last preferred after it.

It is Token Recycling's memory (arXiv 2408.08696), seeded by the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longgraft.runtime.devices import sent

UNSEEN = -1  # id in the rows of tokens that were not seen
WIDTH = 8  # successors per token, as in Token Recycling; the templates' largest rank is 7


class AdjacencyMatrix:
    """The K tokens that the target last preferred after each token.

    Args:
        vocab_size: Number of tokens V.
        width: Successors per token K.
        device: The target's device.
        unseen: Id in the rows of tokens that were not seen (Token Recycling uses 0).
    """

    def __init__(
        self, vocab_size: int, width: int = WIDTH, device: torch.device | str = "cpu", unseen: int = UNSEEN
    ) -> None:
        self.vocab_size = vocab_size
        self.width = min(width, vocab_size)
        self.unseen = unseen
        # One row more than tokens: overwritten occurrences go there, and it is never read.
        self._rows = torch.full((vocab_size + 1, self.width), unseen, dtype=torch.int32, device=device)
        self._latest = torch.full((vocab_size + 1,), -1, dtype=torch.int64, device=device)

    @property
    def rows(self) -> Tensor:
        """[V, K] int32."""
        return self._rows[: self.vocab_size]

    def update(self, tokens: Tensor, topk: Tensor) -> None:
        """Sets rows[tokens[i]] = topk[i] in order: the last occurrence of a token wins.

        They are the target's own tokens and top-k, so they are in range by construction; checking the
        values would cost a host sync.  Writing one row twice is undefined on a GPU, so losers go to the
        dummy row; maxima do not depend on order, so two runs are bit-identical.

        Args:
            tokens: [n] int64, ids below V (V itself is written to no row).
            topk: [n, K], ids.
        """
        if tokens.ndim != 1 or topk.shape != (tokens.numel(), self.width):
            raise ValueError(
                f"tokens are {tuple(tokens.shape)} and topk is {tuple(topk.shape)}; (n,) and "
                f"(n, {self.width}) are needed."
            )
        device = self._rows.device
        tokens = sent(tokens, device)
        topk = topk.to(device, torch.int32)
        order = torch.arange(len(tokens), device=device)
        self._latest.scatter_reduce_(0, tokens, order, reduce="amax")
        wins = self._latest[tokens] == order
        self._rows[torch.where(wins, tokens, self.vocab_size)] = topk
        self._latest.index_fill_(0, tokens, -1)  # `[tokens] = -1` would wait for a copy from the host

    def fill_in(self, tokens: Tensor, rows: Tensor) -> None:
        """Sets rows[tokens[i]] = rows[i] for tokens without a row.

        Args:
            tokens: [n] int64, distinct.
            rows: [n, K] int32.
        """
        has_row = _seen(self._rows[tokens], self.unseen)
        self._rows[torch.where(has_row, self.vocab_size, tokens)] = rows

    def take_out(self, tokens: Tensor, rows: Tensor) -> None:
        """Undoes `fill_in` of the same tokens and rows, for rows that were not overwritten since."""
        same = (self._rows[tokens] == rows).all(1)
        self._rows.index_fill_(0, torch.where(same, tokens, self.vocab_size), self.unseen)

    def lookup(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """Returns the rank-th successor of each token, [n] int64; unseen tokens and ranks beyond K have none."""
        successors = self._rows[tokens.clamp(min=0), ranks.clamp(max=self.width - 1)].long()
        return torch.where((tokens < 0) | (ranks >= self.width), self.unseen, successors)

    def fill(self, levels: Sequence[tuple[Tensor, Tensor, Tensor]], root: int | Tensor) -> Tensor:
        """Fills a template: returns the tokens [N + 1] of its nodes, the root first (Graft, Eq. 10).

        Each level takes one gather.  Below an unseen token everything is unseen; if unseen is 0, token 0 is
        drafted and its row is read (Token Recycling).

        Args:
            levels: (nodes, their parents, their ranks) per depth, as `Template.levels` gives them.
            root: An id, or [1] int64 on the device.
        """
        size = 1 + sum(len(nodes) for nodes, _, _ in levels)
        if isinstance(root, int):
            tokens = torch.full((size,), root, device=self._rows.device)
        else:
            tokens = root.expand(size).clone()
        for nodes, parents, ranks in levels:
            tokens[nodes] = self.lookup(tokens[parents], ranks)
        return tokens

    def snapshot(self) -> Tensor:
        """Returns a copy for `restore`."""
        return self._rows.clone()

    def restore(self, snapshot: Tensor | None) -> None:
        """Sets the rows to those of a snapshot; None: empty rows."""
        if snapshot is None:
            return self.clear()
        # Without this check copy_ would silently broadcast a snapshot of width 1.
        if snapshot.shape != self._rows.shape:
            raise ValueError(f"The snapshot is {tuple(snapshot.shape)}; this matrix needs {tuple(self._rows.shape)}.")
        self._rows.copy_(snapshot)

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.fill_(self.unseen)

    def touched(self) -> int:
        """Returns the number of tokens that have a row."""
        return int(_seen(self.rows, self.unseen).sum())

    def bytes(self) -> int:
        """Returns the size on the device in bytes."""
        return self._rows.numel() * 4 + self._latest.numel() * 8


def _seen(rows: Tensor, unseen: int) -> Tensor:
    """Returns [V] bool, True for rows that were written.

    Any id of a row counts, because with unseen = 0 a written row may begin with token 0.
    """
    return (rows != unseen).any(1)
