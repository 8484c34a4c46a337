"""For each token, the K tokens that the target last preferred after it.

Token Recycling's memory (arXiv 2408.08696), seeded by the prompt.  Knows ids; knows no tree and no template.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

UNSEEN = -1
WIDTH = 8       # Token Recycling's; the templates' largest rank is 7 (METHODS.md A7)


class AdjacencyMatrix:
    """rows: [V, K] int32 on the target's device; `unseen` where a token was never seen (Token Recycling: 0)."""

    def __init__(self, vocab_size: int, width: int = WIDTH, device: torch.device | str = "cpu",
                 unseen: int = UNSEEN) -> None:
        self.vocab_size, self.width, self.unseen = vocab_size, min(width, vocab_size), unseen
        # One row more than tokens: overwritten occurrences are written there, and it is never read.
        self._rows = torch.full((vocab_size + 1, self.width), unseen, dtype=torch.int32, device=device)
        self._latest = torch.full((vocab_size,), -1, dtype=torch.int64, device=device)

    @property
    def rows(self) -> Tensor:
        """[V, K] int32."""
        return self._rows[:self.vocab_size]

    def update(self, tokens: Tensor, topk: Tensor) -> None:
        """rows[tokens[i]] = topk[i] in order: the last occurrence of a token wins.

        tokens [n] int64, topk [n, K].  Writing one row twice is undefined on a GPU, so losers go to the dummy row;
        maxima do not depend on order, so two runs are bit-identical.  No host sync (METHODS.md A9).
        """
        if topk.shape != (len(tokens), self.width):
            raise ValueError(f"topk is {tuple(topk.shape)} for {len(tokens)} tokens; "
                             f"({len(tokens)}, {self.width}) is needed.")
        device = self._rows.device
        tokens, topk = tokens.to(device), topk.to(device, torch.int32)
        order = torch.arange(len(tokens), device=device)
        self._latest.scatter_reduce_(0, tokens, order, reduce="amax")
        wins = self._latest[tokens] == order
        self._rows[torch.where(wins, tokens, self.vocab_size)] = topk
        self._latest[tokens] = -1

    def lookup(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """The rank-th successor of each token, [n] int64; unseen tokens have unseen successors."""
        found = self._rows[tokens.clamp(min=0), ranks].long()
        return torch.where(tokens < 0, self.unseen, found)

    def snapshot(self) -> Tensor:
        """A copy to restore."""
        return self._rows.clone()

    def restore(self, snapshot: Tensor | None) -> None:
        """The rows of a snapshot; None: empty."""
        if snapshot is None:
            self._rows.fill_(self.unseen)
        else:
            self._rows.copy_(snapshot)

    def touched(self) -> int:
        """How many tokens have a row."""
        return int((self.rows[:, 0] != self.unseen).sum())

    def bytes(self) -> int:
        """Size on the device."""
        return self._rows.numel() * 4 + self._latest.numel() * 8


def save_rows(path: Path, snapshot: Tensor, metadata: Mapping[str, str]) -> None:
    """The seen rows of a snapshot in one safetensors file, with `metadata`."""
    from safetensors.torch import save_file

    rows = snapshot[:-1].cpu()
    seen = (rows[:, 0] != UNSEEN).nonzero().flatten()
    save_file({"tokens": seen.int(), "rows": rows[seen].contiguous()}, path, dict(metadata))


def load_rows(path: Path, vocab_size: int, device: torch.device) -> tuple[Tensor, dict[str, str]]:
    """(a snapshot [V + 1, K], the metadata) of a file of `save_rows`."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tokens, rows = file.get_tensor("tokens").long(), file.get_tensor("rows")
    if len(tokens) and int(tokens.max()) >= vocab_size:
        raise ValueError(f"row {int(tokens.max())} of a vocabulary of {vocab_size}")
    snapshot = torch.full((vocab_size + 1, rows.shape[1]), UNSEEN, dtype=torch.int32)
    snapshot[tokens] = rows
    return snapshot.to(device), metadata
