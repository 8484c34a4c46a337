"""The draft tree that the target verifies, an immutable value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from longgraft.trees.ranked_paths import RankedPaths

# Bits of ProposalTree.origin; a node that several sources found has several.
ROOT = 1
DRAFT = 2
RETRIEVED = 4
FORCED = 8  # a constraint allows nothing else
UNPRUNED = -1  # value of ProposalTree.stage for a drafted tree that no policy pruned


@dataclass(frozen=True, eq=False)
class ProposalTree:
    """The tokens to verify in one target pass, parents before children.  The tensors live on the host.

    Attributes:
        tokens: [n] int64; tokens[0] is the root: the last committed token, which is not in the target's KV
            cache yet.
        parents: [n] int64; parents[0] = -1, parents[i] < i; siblings have distinct tokens.
        scores: [n] float32, the proposer's estimate of the path's log-probability; 0 at the root, nan
            without an estimate.
        origin: [n] int8, bits ROOT | DRAFT | RETRIEVED | FORCED.
        stage: number of draft layers after which a policy stopped drafting or gave slots to retrieval;
            UNPRUNED if it did neither; None if nothing was drafted layer by layer.
        match: [n] int64, length in tokens of the context match that retrieved a node, 0 for other nodes;
            None if no retriever matched contexts.
        law: [n, V] float32 on the target's device, the probabilities that each token of a chain was sampled
            from, independently of the target; None if the tokens are a function of the past.

    Examples:
        Two drafted guesses at the token after the root, token 7, and one guess at the token after the first guess:

        >>> tree = ProposalTree.build(tokens=[7, 8, 9, 3], parents=[-1, 0, 0, 1], scores=[0.0, -0.1, -2.0, -0.5],
        ...                           origin=[ROOT, DRAFT, DRAFT, DRAFT])
        >>> tree.depths.tolist()
        [0, 1, 1, 2]
        >>> tree.children[1, 3]     # the child of node 1 with token 3
        3
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    origin: Tensor
    stage: int | None = None
    match: Tensor | None = None
    law: Tensor | None = None

    @classmethod
    def build(
        cls,
        tokens: list[int],
        parents: list[int],
        scores: list[float],
        origin: list[int],
        stage: int | None = None,
        match: list[int] | None = None,
    ) -> ProposalTree:
        """Builds a tree from plain lists with one item per node, root first; the arguments are as in the class."""
        lengths = None if match is None else torch.tensor(match)
        return cls(
            torch.tensor(tokens),
            torch.tensor(parents),
            torch.tensor(scores, dtype=torch.float32),
            torch.tensor(origin, dtype=torch.int8),
            stage,
            lengths,
        )

    @classmethod
    def chain(cls, tokens: Tensor, origin: int = DRAFT) -> ProposalTree:
        """Builds a chain of tokens [n]; the first is the root."""
        n = len(tokens)
        origins = torch.full((n,), origin, dtype=torch.int8)
        origins[:1] = ROOT
        scores = torch.full((n,), float("nan"))
        scores[:1] = 0.0
        return cls(tokens, torch.arange(-1, n - 1), scores, origins)

    @classmethod
    def root_only(cls, root: int) -> ProposalTree:
        """Builds the tree of plain decoding, which proposes nothing."""
        return cls.chain(torch.tensor([root]))

    @classmethod
    def ranked(cls, root: int, paths: RankedPaths, stage: int | None = None) -> ProposalTree:
        """Builds the tree of ranked paths below a root; stage: as in the class."""
        fields = torch.from_numpy(paths.fields.copy())
        tokens, parents, lengths, origin = fields
        tokens[0] = root
        scores = torch.from_numpy(np.log(paths.probabilities)).float()
        return cls(tokens, parents, scores, origin.to(torch.int8), stage, lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> Tensor:
        """[n] int64: 0 at the root."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return torch.tensor(depths)

    @cached_property
    def is_chain(self) -> bool:
        """True if each node's parent is the node before it; then every row sees all rows up to its own."""
        return torch.equal(self.parents, torch.arange(-1, len(self) - 1))

    @cached_property
    def mask(self) -> Tensor:
        """[n, n] bool: row i sees column j if j is i or one of its ancestors."""
        rows = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                rows[node] |= rows[parent]
        return torch.from_numpy(rows)

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """Maps (parent index, token) to the node index."""
        pairs = zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        return {pair: node for node, pair in enumerate(pairs) if node}

    def select(self, nodes: list[int]) -> ProposalTree:
        """Returns the sub-tree of these nodes: ascending, with the root first and the parent of each among them."""
        place = {node: i for i, node in enumerate(nodes)}
        index = torch.tensor(nodes)
        parents = torch.tensor([-1] + [place[parent] for parent in self.parents[index].tolist()[1:]])
        match = None if self.match is None else self.match[index]
        law = None if self.law is None else self.law[index.to(self.law.device)]
        return ProposalTree(self.tokens[index], parents, self.scores[index], self.origin[index], self.stage, match, law)

    def top(self, budget: int) -> ProposalTree:
        """Returns the best `budget` nodes, root included; ties go to shallower, then earlier nodes; nan ranks last."""
        if len(self) <= budget:
            return self
        scores = self.scores.tolist()
        depths = self.depths.tolist()
        parents = self.parents.tolist()

        def rank(node: int) -> tuple[bool, float, int, int]:
            return math.isnan(scores[node]), -scores[node], depths[node], node

        chosen = {0}
        for node in sorted(range(1, len(self)), key=rank):
            # A tie can rank a child before its parent, without which it cannot be verified.
            if len(chosen) == budget:
                break
            if parents[node] in chosen:
                chosen.add(node)
        return self.select(sorted(chosen))

    def shallower(self, depth: int) -> ProposalTree:
        """Returns the tree without the nodes deeper than `depth`."""
        if len(self) <= depth + 1 or int(self.depths.max()) <= depth:
            return self
        return self.select((self.depths <= depth).nonzero().flatten().tolist())

    def merge(self, other: ProposalTree, at: int, budget: int) -> ProposalTree:
        """Returns this tree with another tree's nodes added under one of its nodes, as in a trie.

        A node that exists already takes no slot: it gets the other's origin bits and children.

        Source: trie merge with refilling, Graft (arXiv 2605.20104), Equation 11.

        Args:
            other: The tree whose nodes are added, in order; its root stands for node `at`.
            at: Index of the node of this tree.
            budget: Most nodes of the result, root included.
        """
        tokens = self.tokens.tolist()
        parents = self.parents.tolist()
        scores = self.scores.tolist()
        origin = self.origin.tolist()
        children = dict(self.children)
        place = {0: at}  # node of the other tree -> node of the result
        rows = zip(
            other.tokens.tolist(), other.parents.tolist(), other.scores.tolist(), other.origin.tolist(), strict=True
        )
        for node, (token, parent, score, bits) in enumerate(rows):
            if node == 0 or parent not in place:
                continue
            key = (place[parent], token)
            if key in children:
                place[node] = children[key]
                origin[children[key]] |= bits
            elif len(tokens) < budget:
                place[node] = children[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                scores.append(score)
                origin.append(bits)
        return ProposalTree.build(tokens, parents, scores, origin, self.stage)
