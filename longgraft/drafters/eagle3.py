"""EAGLE-3 (arXiv 2503.01840): a one-layer network drafts a beam of paths; the best nodes of all levels make a tree.

Knows the drafter network and its own cache; knows no target and no retriever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.attention.backends import BACKENDS, choose
from longgraft.attention.layout import Layout
from longgraft.kv import KVCache
from longgraft.observation import Clock, Level, Observation, PruningPolicy, Verdict, Wants
from longgraft.tree import DRAFT, ROOT, ProposalTree
from longgraft.yarn_drafters.network import Eagle3Network

LEVELS = 9      # EAGLE's depth 8, the paper's setting
TOP_K = 10      # EAGLE-3's released setting


@dataclass
class _Beam:
    """What one expansion feeds and what the next one needs.  b rows; m scratch rows so far, these included."""

    candidates: Tensor      # [b] indices into the pool
    hidden: Tensor          # [1, b, H] the parents' states
    ancestors: Tensor       # [b, m'] bool over the scratch rows before this level


class Eagle3Drafter:
    """Proposes trees of at most 1 + levels levels; its cache holds the committed tokens' pairs.

    Slot t pairs feature t with token t + 1 at position t, so the root's pair is the last one observed.
    window: tokens of its own past that each slot sees, itself included; None: the network's own choice.  Rotary
    embeddings only know differences, so a window needs no other positions: none above it is ever met.
    """

    def __init__(self, network: Eagle3Network, policy: PruningPolicy, levels: int = LEVELS, top_k: int = TOP_K,
                 clock: Clock | None = None, window: int | None = None) -> None:
        self.network, self.policy, self.levels = network, policy, levels
        self.window = window or network.config.window
        self.top_k = min(top_k, network.config.draft_vocab_size)
        self.clock = clock or Clock()
        self.wants = Wants(features=network.config.feature_layers)
        weight = network.fc.weight
        self.device, self.backend = weight.device, BACKENDS[choose("auto", weight.device, weight.dtype)]
        self.cache = KVCache(network.config.layers, 0)
        self.state: Tensor | None = None        # [1, 1, H] of the newest pair

    def reset(self, capacity: int) -> None:
        self.cache.reserve(capacity + self.levels * self.top_k)
        self.state = None

    @torch.no_grad()
    def observe(self, seen: Observation) -> None:
        """Feed the kept tokens' pairs with the target's own features; expansion rows were never kept."""
        assert seen.features is not None
        with self.clock.part("draft"):
            n = len(seen.path)
            features = seen.features if n == len(seen.tree) else seen.features[seen.path.to(self.device)]
            tokens = torch.cat([seen.tree.tokens[seen.path][1:], torch.tensor([seen.next_token])])
            hidden = self.network.fuse(features[None].to(self.device, self.network.fc.weight.dtype))
            layout = Layout(self.cache.length, torch.arange(n), None, self.device)
            states = self._forward(hidden, tokens.to(self.device), self.cache.length + torch.arange(n), layout)
            self.cache.length += n
            self.state = states[:, -1:]

    @torch.no_grad()
    def propose(self, root: int, budget: int) -> ProposalTree:
        if budget < 2:
            return ProposalTree.root_only(root)
        assert self.state is not None, "the drafter has observed nothing"
        with self.clock.part("draft"):
            committed = self.cache.length
            try:
                return self._draft(root, budget, committed)
            finally:
                self.cache.crop(committed)

    def _draft(self, root: int, budget: int, committed: int) -> ProposalTree:
        k, device = self.top_k, self.device
        assert self.state is not None
        ids, gains = self._children(self.state)                                 # [1, k]
        tokens, scores = [ids[0]], [gains[0]]
        parents = [torch.full((k,), -1, device=device)]
        beam = _Beam(torch.arange(k, device=device), self.state.expand(1, k, -1),
                     torch.zeros(k, 0, dtype=torch.bool, device=device))
        offset = 0      # pool index of the newest level's first candidate
        for index in range(self.levels):
            last = index == self.levels - 1
            verdict = self.policy(Level(index, scores[-1], last, budget))
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
        return self._select(root, budget, verdict, [torch.cat(x) for x in (tokens, scores, parents)])

    def _expand(self, beam: _Beam, tokens: Tensor, committed: int, depth: int) -> tuple[Tensor, Tensor]:
        """States [1, b, H] of the beam's nodes, and which scratch rows [b, m] each of them saw."""
        b, before = len(tokens), self.cache.length - committed
        mask = torch.zeros(b, before + b, dtype=torch.bool, device=self.device)
        mask[:, :beam.ancestors.shape[1]] = beam.ancestors
        mask[:, before:] = torch.eye(b, dtype=torch.bool, device=self.device)
        layout = Layout(committed, torch.full((b,), depth), mask, self.device,
                        column_depths=torch.arange(depth + 1).repeat_interleave(b))
        states = self._forward(beam.hidden, tokens, torch.full((b,), committed + depth), layout)
        self.cache.length += b
        return states, mask

    def _forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        scale = self.network.config.head_dim ** -0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.update(k, v, layer)
            return self.backend(q, keys, values, layout, scale, self.window)

        return self.network(hidden, tokens[None], positions[None].to(self.device), attend)

    def _children(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """states [1, b, H] -> the k best next tokens, target ids [b, k] and log-probabilities [b, k] float32."""
        gains, ids = self.network.logits(states[0]).float().log_softmax(-1).topk(self.top_k)
        return self.network.target_ids(ids), gains

    def _select(self, root: int, budget: int, verdict: Verdict, pool: list[Tensor]) -> ProposalTree:
        """The best candidates of all levels, parents before children.

        A stable sort of float32 scores puts a parent before its child even where they tie, so the kept set is
        closed; EAGLE's half-precision sums are not.
        """
        slots = budget - 1 if verdict.slots is None else min(budget - 1, verdict.slots)
        tokens, scores, parents = pool
        best = scores.sort(descending=True, stable=True).indices[:slots].sort().values
        # One copy to the host: float64 holds ids and float32 scores exactly.
        picked = torch.stack([x.double() for x in (best, tokens[best], parents[best], scores[best])]).cpu()
        nodes, ids, above = picked[:3].long().tolist()
        place = {-1: 0} | {node: i + 1 for i, node in enumerate(nodes)}
        return ProposalTree.build([root, *ids], [-1, *(place[parent] for parent in above)],
                                  [0.0, *picked[3].tolist()], [ROOT] + [DRAFT] * len(nodes), verdict.stage)
