"""A trie: a draft tree of chains that share their common prefixes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree


class Trie:
    """Collects retrieved chains below a root, up to `budget` nodes including the root."""

    def __init__(self, root: int, budget: int) -> None:
        self.budget = budget
        self._tokens = [root]
        self._parents = [-1]
        self._match = [0]
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, chain: Iterable[int], at: int = 0, match: int = 0) -> int:
        """Adds a chain below node `at`, as far as the budget allows, and returns the last node of the chain that fits.

        A node that exists already takes no slot.

        Args:
            chain: Tokens of the chain.
            at: The node.
            match: The value of `ProposalTree.match` for new nodes.
        """
        for token in chain:
            node = self._children.get((at, token))
            if node is None:
                if len(self) == self.budget:
                    break
                node = self._children[at, token] = len(self)
                self._tokens.append(token)
                self._parents.append(at)
                self._match.append(match)
            at = node
        return at

    def tree(self) -> ProposalTree:
        """Returns the tree of all nodes, in the order in which they were added."""
        n = len(self) - 1
        scores = torch.full((n + 1,), float("nan"))
        scores[0] = 0.0
        origin = torch.tensor([ROOT] + [RETRIEVED] * n, dtype=torch.int8)
        return ProposalTree(
            torch.tensor(self._tokens), torch.tensor(self._parents), scores, origin, match=torch.tensor(self._match)
        )
