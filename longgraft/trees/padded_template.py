"""Retrieval templates on the device: padded trees of a fixed topology, built from the tokens that fill their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longgraft.trees.padded import PaddedTree, all_above, jumps_of
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree


@dataclass(frozen=True, eq=False)
class Pattern:
    """The topology of a template of n nodes on a device; built once, outside recorded CUDA graphs.

    Attributes:
        bare: The template's tree, all nodes live, all tokens 0.
        above: [n] int64: each node's parent; the root is its own parent.
        level: [n, n] bool: True for pairs of nodes of the same depth.
        jumps: [n, n] int64 each: the pair of ancestors 1, 2, 4, .. steps above each pair of nodes.
    """

    bare: PaddedTree
    above: Tensor
    level: Tensor
    jumps: tuple[Tensor, ...]

    @classmethod
    def of(cls, parents: Sequence[int], device: torch.device) -> Pattern:
        """Builds the pattern from parents [n]: the root first with -1, parents before children."""
        n = len(parents)
        tree = ProposalTree.build(
            [0] * n, list(parents), [0.0] + [float("nan")] * (n - 1), [ROOT] + [RETRIEVED] * (n - 1)
        )
        bare = PaddedTree.of(tree, n, device)
        above = bare.parents.clamp(min=0)
        return cls(
            bare, above, bare.depths[:, None] == bare.depths, tuple(jumps_of(above[:, None] * n + above, bare.deepest))
        )


def filled(tokens: Tensor, pattern: Pattern) -> PaddedTree:
    """Returns the tree of the template nodes that have a token.

    Descendants of a node without a token are dead.  Siblings with the same token become one node, the
    first, which takes over the children of all; the same rule then applies to these children.

    Args:
        tokens: [n], negative for nodes without a token.
        pattern: The template's topology.
    """
    # Nodes of one depth are the same if the paths to them have the same tokens; the first of them is their row.
    alike = (tokens[:, None] == tokens) & (tokens >= 0) & pattern.level
    first = all_above(alike, pattern.jumps).max(1).indices
    bare = pattern.bare
    live = first == torch.arange(len(tokens), device=tokens.device)
    # A node's representative never comes after it, so the minimum only restores the root's -1.
    parents = torch.minimum(first[pattern.above], bare.parents)
    return replace(
        bare,
        tokens=tokens * live,
        parents=parents * live,
        depths=bare.depths * live,
        origin=bare.origin * live,
        live=live,
    )
