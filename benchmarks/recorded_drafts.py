"""Records what a drafter proposes after each token of recorded answers, for replays by `longgraft estimate`.

python -m benchmarks.recorded_rows smollm2 answers.jsonl --data ROWS --drafter auto
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.node_ranking import POOL
from longgraft.engine.session import Session
from longgraft.engine.session import answer as replayed
from longgraft.eval.replay.recorded_drafts import RecordedDrafts
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.trees.padded import on_host
from longgraft.trees.tree import ProposalTree

NODES = POOL * 59 + 1  # of a draft: as many as a tree of 60 nodes ranks


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
