"""Observations of tokens alone."""

from __future__ import annotations

import torch

from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree


def seen(tokens: list[int], following: int = 1, prompt: bool = False, topk: torch.Tensor | None = None) -> Observation:
    """Returns an observation of kept tokens, the token after them, and each token's top successors [n, K], int32."""
    return Observation(
        ProposalTree.chain(torch.tensor(tokens)), torch.arange(len(tokens)), following, topk, prompt=prompt
    )


def prompt_chunk(tokens: list[int], topk: torch.Tensor | None = None) -> Observation:
    """Returns an observation of prompt tokens that token 0 follows."""
    return seen(tokens, 0, True, topk)
