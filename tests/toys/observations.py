"""Observations of tokens alone."""

from __future__ import annotations

import torch

from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree


def seen(tokens: list[int], following: int = 1, prompt: bool = False, topk: torch.Tensor | None = None) -> Observation:
    """Tokens that were all kept.  following: the token after them; topk: [n, K] int32, the best successors of each."""
    return Observation(ProposalTree.chain(torch.tensor(tokens)), torch.arange(len(tokens)), following, topk,
                       prompt=prompt)


def prompt_chunk(tokens: list[int], topk: torch.Tensor | None = None) -> Observation:
    """Of a prompt, before token 0."""
    return seen(tokens, 0, True, topk)
