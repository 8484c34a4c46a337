"""Templates on the device: which rows of a matrix a tree takes, in a fixed number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longgraft.trees.padded import PaddedTree, all_above, jumps_of
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree


@dataclass(frozen=True, eq=False)
class Pattern:
    """What hangs on what in a template of n nodes, on a device; made once, outside recorded regions.

    bare:  its tree, all live, with tokens of 0
    above: [n] int64: each node's parent; the root stands above itself
    level: [n, n] bool: which nodes are of one depth
    jumps: [n, n] int64 each: the pair of ancestors 1, 2, 4, .. steps above each pair of nodes
    """

    bare: PaddedTree
    above: Tensor
    level: Tensor
    jumps: tuple[Tensor, ...]

    @classmethod
    def of(cls, parents: Sequence[int], device: torch.device) -> Pattern:
        """parents [n], before their children, the root first with -1."""
        n = len(parents)
        tree = ProposalTree.build([0] * n, list(parents), [0.0] + [float("nan")] * (n - 1),
                                  [ROOT] + [RETRIEVED] * (n - 1))
        bare = PaddedTree.of(tree, n, device)
        above = bare.parents.clamp(min=0)
        return cls(bare, above, bare.depths[:, None] == bare.depths,
                   tuple(jumps_of(above[:, None] * n + above, bare.deepest)))


def filled(tokens: Tensor, pattern: Pattern) -> PaddedTree:
    """tokens [n] of a template's nodes, negative where unseen -> the tree of the seen ones.

    What hangs below an unseen node is dead.  Of siblings with one token the first stands for all, and what hangs
    below the others hangs below it, by the same rule.
    """
    # Nodes of one depth are the same where the tokens on the ways to them are; the first of them is their row.
    alike = (tokens[:, None] == tokens) & (tokens >= 0) & pattern.level
    first = all_above(alike, pattern.jumps).max(1).indices
    bare = pattern.bare
    live = first == torch.arange(len(tokens), device=tokens.device)
    # No node's first is behind it, so that the minimum only restores the root's -1.
    parents = torch.minimum(first[pattern.above], bare.parents)
    return replace(bare, tokens=tokens * live, parents=parents * live, depths=bare.depths * live,
                   origin=bare.origin * live, live=live)
