"""AdaPLD (arXiv 2606.05742): a copied chain, and branches of tokens that the target found probable at its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longgraft.memories.hidden_states import HiddenStates
from longgraft.protocol.proposer import Ask
from longgraft.retrievers.anchors import Anchors
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie


@dataclass(frozen=True)
class Likeness:
    """Decides which tokens may replace a missing one: embedding: [V, H]; least: lowest cosine with the token's own."""

    embedding: Tensor
    least: float


@dataclass(frozen=True)
class Branches:
    """The tokens that the target found most probable at an anchor.

    count:      number of tokens, not counting the copied one
    final:      the final norm's output at every committed position
    logits:     [H] -> [V]; computed for one anchor per step, so that nothing of the vocabulary's size is stored
    successors: True if each token is followed by one more
    """

    count: int
    final: HiddenStates
    logits: Callable[[Tensor], Tensor]
    successors: bool = True

    @torch.inference_mode()
    def at(self, position: int, without: Sequence[int]) -> list[int]:
        """Returns the `count` most probable tokens after this position, except those in `without`."""
        best = self.logits(self.final.rows[position]).topk(self.count + len(without)).indices.tolist()
        return [token for token in best if token not in without][:self.count]


class AdaPld:
    """Proposes a copied chain with branches.

    length: most tokens that are copied; likeness: None: only the root's own token is an anchor; branches: None: a chain
    without branches

    If there are few slots, the chain gets half of them and the branches the rest.
    """

    def __init__(self, anchors: Anchors, length: int, likeness: Likeness | None, branches: Branches | None,
                 clock: Clock | None = None) -> None:
        self.anchors, self.length, self.likeness, self.branches = anchors, length, likeness, branches
        self.memories = (anchors.history, anchors.context, *((branches.final,) if branches else ()))
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text, tree = self.anchors.history.up_to(ask.root), Trie(ask.root, ask.budget)
            if ask.budget > 1:
                self._grow(tree, text, ask.root)
            return tree.tree()

    def _grow(self, tree: Trie, text: np.ndarray, root: int) -> None:
        copied, match = self.anchors.after_prediction(text, self.length)
        (found, same), = self._anchors(text, [root])
        if not len(found):
            tree.add(copied, match=match)
            return
        at, = self.anchors.closest([found], len(text) - 2)
        # Nothing is copied after a token that is only similar to the root.
        main = copied or (text[at + 1:at + 1 + self.length].tolist() if same else [])
        branches = self._branches_at(text, at, main[:1]) if self.branches else []
        slots = tree.budget - 1
        tree.add(main[:max(slots - sum(map(len, branches)), (slots + 1) // 2)], match=match or 1)
        for branch in branches:
            tree.add(branch)

    def _branches_at(self, text: np.ndarray, at: int, copied: Sequence[int]) -> list[list[int]]:
        """Returns the branches, most probable first, each followed by its token's successor if there is one."""
        assert self.branches is not None
        tokens = self.branches.at(at, copied)
        if not self.branches.successors:
            return [[token] for token in tokens]
        found = {token: group for token, (group, _) in zip(tokens, self._anchors(text, tokens), strict=True)
                 if len(group)}
        # A branch has no hidden state yet, so its anchor's is compared.
        places = dict(zip(found, self.anchors.closest([*found.values()], at), strict=True)) if found else {}
        return [[token, int(text[places[token] + 1])] if token in places else [token] for token in tokens]

    def _anchors(self, text: np.ndarray, tokens: Sequence[int]) -> list[tuple[np.ndarray, bool]]:
        """Returns for each token (its anchors, True if they hold the token itself)."""
        found = {token: (self.anchors.of(text, token), True) for token in tokens}
        missing = [token for token, (group, _) in found.items() if not len(group)]
        missing = [token for token in missing if token not in self.anchors.never]
        if missing and self.likeness is not None:
            like = self.anchors.like(text, missing, self.likeness.embedding, self.likeness.least)
            found |= {token: (group, False) for token, group in zip(missing, like, strict=True)}
        return [found[token] for token in tokens]
