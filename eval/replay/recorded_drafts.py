"""Trees that a drafter proposed after each token of an answer, which `benchmarks.recorded` records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longgraft.files.whole_files import written_whole
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree


@dataclass
class RecordedDrafts:
    """Proposes the recorded draft below each token.

    Attributes:
        drafts: By position of the root.
        memories: None; the recorded drafter had them.
    """

    drafts: dict[int, ProposalTree] = field(default_factory=dict)
    memories: tuple[Memory, ...] = ()

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.position in self.drafts:
            return self.drafts[ask.position]
        return ProposalTree.root_only(ask.root)

    def save(self, path: Path) -> None:
        """Writes a compressed numpy file."""
        trees = self.drafts.values()
        columns: dict[str, Any] = {
            "positions": np.array(list(self.drafts), np.int32),
            "nodes": np.array([len(tree) for tree in trees], np.int32),
            "tokens": torch.cat([tree.tokens for tree in trees]).int().numpy(),
            "parents": torch.cat([tree.parents for tree in trees]).short().numpy(),
            "scores": torch.cat([tree.scores for tree in trees]).numpy(),
        }
        with written_whole(path) as part, open(part, "wb") as file:
            np.savez_compressed(file, **columns)

    @classmethod
    def load(cls, path: Path) -> RecordedDrafts:
        """Reads the file that `save` writes; nothing is drafted without it."""
        if not path.exists():
            return cls()
        found = cls()
        with np.load(path) as read:
            ends = read["nodes"].cumsum()[:-1]
            columns = (np.split(read[name], ends) for name in ("tokens", "parents", "scores"))
            for position, tokens, parents, scores in zip(read["positions"].tolist(), *columns, strict=True):
                origin = torch.full((len(tokens),), DRAFT, dtype=torch.int8)
                origin[0] = ROOT
                nodes = torch.from_numpy(tokens).long(), torch.from_numpy(parents).long(), torch.from_numpy(scores)
                found.drafts[position] = ProposalTree(*nodes, origin)
        return found
