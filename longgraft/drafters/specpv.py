"""SpecPV (arXiv 2512.02337): verifies on a part of the KV cache, and only now and then on the whole cache.

It is lossy: tokens that are accepted on a part are kept, whatever the whole cache would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longgraft.acceptance.rules import AcceptanceRule, DrawThenWalk
from longgraft.memories.partial_kv import PartialKVCache
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.cuda_graphs import EAGER
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import Tree, on_host
from longgraft.trees.tree import ROOT, ProposalTree


@dataclass(frozen=True)
class _Behind:
    """The rule for a tree that follows `rows` tokens, which are kept unconditionally."""

    rule: AcceptanceRule
    own: ProposalTree
    rows: int

    @property
    def guesses(self) -> DrawThenWalk:
        return self.rule.guesses

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        path, token = self.rule(self.own, logits[self.rows:], positions[self.rows:])
        return torch.cat([torch.arange(self.rows), self.rows + path]), token


class PartialVerifier(Verifier):
    """Verifies on `partial`; if more than `most` tokens wait, the next tree is verified in full, together with them.

    The full pass gives the waiting tokens their true rows, and its queries select rows again; the first pass after the
    prompt is full, too.  If the selection leaves no row out, all passes are full.  cache: the cache of the next pass
    """

    def __init__(self, full: Verifier, partial: PartialKVCache, most: int) -> None:
        super().__init__(full.target, full.cache, full.rule, full.clock, full.regions, full.reads)
        self._full, self._partial, self._most = full, partial, most
        self._part = replace(full, cache=partial.cache, regions=EAGER)
        self._waiting: list[int] = []
        partial.reset(full.cache.capacity)

    def verify(self, tree: Tree, wants: Wants) -> Observation:
        """Commits the path that is accepted, on the part or in full."""
        if self.cache is self._full.cache or len(self._waiting) > self._most:
            return self._in_full(on_host(tree), wants)
        seen = self._part.verify(tree, wants)
        self._waiting += seen.kept.tolist()
        return seen

    def _in_full(self, tree: ProposalTree, wants: Wants) -> Observation:
        rows = len(self._waiting)
        behind = replace(self._full, rule=_Behind(self.rule, tree, rows)) if rows else self._full
        seen = behind.verify(_hung(tree, self._waiting), wants | self._partial.wants)
        self._waiting = []
        self._partial.observe(seen)
        self.cache = self._full.cache if self._partial.chosen().whole else self._partial.fresh()
        return _without(seen, tree, rows) if rows else seen


def _hung(tree: ProposalTree, tokens: list[int]) -> ProposalTree:
    """Returns the tree below a chain of these tokens."""
    if not tokens:
        return tree
    chain = ProposalTree.chain(torch.tensor(tokens), ROOT)
    return ProposalTree(torch.cat([chain.tokens, tree.tokens]), torch.cat([chain.parents, tree.parents + len(tokens)]),
                        torch.cat([chain.scores, tree.scores]), torch.cat([chain.origin, tree.origin]))


def _without(seen: Observation, tree: ProposalTree, rows: int) -> Observation:
    """Returns the observation of the tree alone, without the `rows` nodes before it, which were observed earlier."""
    return replace(seen, tree=tree, path=seen.path[rows:] - rows, topk=None if seen.topk is None else seen.topk[rows:],
                   hidden={layer: states[rows:] for layer, states in seen.hidden.items()},
                   final=None if seen.final is None else seen.final[rows:])
