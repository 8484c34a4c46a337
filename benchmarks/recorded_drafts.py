"""Records what a drafter proposes after each token of recorded answers, for replays by `benchmarks.policies`.

python -m benchmarks.recorded_rows smollm2 answers.jsonl --data ROWS --drafter auto
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.node_ranking import POOL
from longgraft.engine.session import Session
from longgraft.engine.session import answer as replayed
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.trees.padded import on_host
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

NODES = POOL * 59 + 1  # of a draft: as many as a tree of 60 nodes ranks


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
        np.savez_compressed(
            path,
            positions=np.array(list(self.drafts), np.int32),
            nodes=np.array([len(tree) for tree in trees], np.int32),
            tokens=torch.cat([tree.tokens for tree in trees]).int().numpy(),
            parents=torch.cat([tree.parents for tree in trees]).short().numpy(),
            scores=torch.cat([tree.scores for tree in trees]).numpy(),
        )

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


class _Recorder:
    """Records a drafter's trees and proposes nothing, so that each step decodes one token."""

    def __init__(self, drafter: Proposer) -> None:
        self.drafter = drafter
        self.memories = drafter.memories
        self.found = RecordedDrafts()

    def propose(self, ask: Ask) -> ProposalTree:
        self.found.drafts[ask.position] = on_host(self.drafter.propose(replace(ask, budget=NODES)))
        return ProposalTree.root_only(ask.root)


def recorded_drafts(session: Session, prompt: Sequence[int], answer: Sequence[int]) -> RecordedDrafts:
    """Returns what the session's drafter proposes after each token of an answer but the last."""
    (lane,) = session.engine.lanes
    recorder = _Recorder(lane.proposer)
    lane.proposer = recorder
    try:
        replayed(session.open(list(prompt), len(answer), Sampling(replay=tuple(answer)), eos=()), progress=False)
    finally:
        lane.proposer = recorder.drafter
    return recorder.found
