"""EAGLE-3 (arXiv 2503.01840): a one-layer network drafts a beam of paths; the best nodes of all levels make a tree.

Knows the drafter network and its memory; knows no target and no retriever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.attention.layout import Layout
from longgraft.clock import Clock
from longgraft.memories.drafted import DrafterMemory
from longgraft.proposer import Ask, Level, PruningPolicy, Verdict
from longgraft.tree import DRAFT, ROOT, UNPRUNED, ProposalTree

LEVELS = 9      # EAGLE's depth 8, the paper's setting
TOP_K = 10      # EAGLE-3's released setting


@dataclass
class _Beam:
    """What one expansion feeds and what the next one needs.  b rows; m scratch rows so far, these included."""

    candidates: Tensor      # [b] indices into the pool
    hidden: Tensor          # [1, b, H] the parents' states
    ancestors: Tensor       # [b, m'] bool over the scratch rows before this level


class Eagle3Drafter:
    """Proposes trees of at most 1 + levels levels from what `memory` knows; its own rows there are scratch."""

    def __init__(self, memory: DrafterMemory, policy: PruningPolicy, levels: int = LEVELS, top_k: int = TOP_K,
                 clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory, self.network, self.policy, self.levels = memory, memory.network, policy, levels
        self.top_k = min(top_k, self.network.config.draft_vocab_size)
        self.clock, self.device = clock or Clock(), memory.device
        memory.room(self.levels * self.top_k)

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            state = self.memory.newest()
            committed = self.memory.cache.length
            try:
                return self._draft(ask, state, committed)
            finally:
                self.memory.cache.crop(committed)

    def _draft(self, ask: Ask, state: Tensor, committed: int) -> ProposalTree:
        k, device = self.top_k, self.device
        ids, gains = self._children(state)                                      # [1, k]
        tokens, scores = [ids[0]], [gains[0]]
        parents = [torch.full((k,), -1, device=device)]
        beam = _Beam(torch.arange(k, device=device), state.expand(1, k, -1),
                     torch.zeros(k, 0, dtype=torch.bool, device=device))
        offset = 0      # pool index of the newest level's first candidate
        for index in range(self.levels):
            last = index == self.levels - 1
            verdict = self.policy(Level(index, scores[-1], last, ask.budget))
            if last or not verdict.expand:
                break
            fed = tokens[-1][beam.candidates - offset]
            states, mask = self._expand(beam, fed, committed, index)
            ids, gains = self._children(states)                                 # [b, k]
            level = scores[-1][beam.candidates - offset][:, None] + gains       # Eq. 5
            offset += len(tokens[-1])
            tokens.append(ids.flatten())
            scores.append(level.flatten())
            parents.append(beam.candidates.repeat_interleave(k))
            best = level.flatten().topk(min(k, level.numel())).indices
            rows = best // k
            beam = _Beam(offset + best, states[:, rows], mask[rows])
        stage = UNPRUNED if verdict == Verdict() else index
        return self._select(ask, verdict.slots, stage, [torch.cat(x) for x in (tokens, scores, parents)])

    def _expand(self, beam: _Beam, tokens: Tensor, committed: int, depth: int) -> tuple[Tensor, Tensor]:
        """States [1, b, H] of the beam's nodes, and which scratch rows [b, m] each of them saw."""
        b, before = len(tokens), self.memory.cache.length - committed
        mask = torch.zeros(b, before + b, dtype=torch.bool, device=self.device)
        mask[:, :beam.ancestors.shape[1]] = beam.ancestors
        mask[:, before:] = torch.eye(b, dtype=torch.bool, device=self.device)
        layout = Layout(committed, torch.full((b,), depth), mask, self.device,
                        column_depths=torch.arange(depth + 1).repeat_interleave(b))
        states = self.memory.forward(beam.hidden, tokens, torch.full((b,), committed + depth), layout)
        self.memory.cache.length += b
        return states, mask

    def _children(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """states [1, b, H] -> the k best next tokens, target ids [b, k] and log-probabilities [b, k] float32."""
        gains, ids = self.network.logits(states[0], self.memory.product).float().log_softmax(-1).topk(self.top_k)
        return self.network.target_ids(ids), gains

    def _select(self, ask: Ask, slots: int | None, stage: int, pool: list[Tensor]) -> ProposalTree:
        """The best candidates of all levels, parents before children.

        A stable sort of float32 scores puts a parent before its child even where they tie, so the kept set is
        closed; EAGLE's half-precision sums are not.
        """
        slots = ask.budget - 1 if slots is None else min(ask.budget - 1, slots)
        tokens, scores, parents = pool
        best = scores.sort(descending=True, stable=True).indices[:slots].sort().values
        # One copy to the host: float64 holds ids and float32 scores exactly.
        picked = torch.stack([x.double() for x in (best, tokens[best], parents[best], scores[best])]).cpu()
        nodes, ids, above = picked[:3].long().tolist()
        place = {-1: 0} | {node: i + 1 for i, node in enumerate(nodes)}
        return ProposalTree.build([ask.root, *ids], [-1, *(place[parent] for parent in above)],
                                  [0.0, *picked[3].tolist()], [ROOT] + [DRAFT] * len(nodes), stage)
