"""A drafter with a window over its own past ignores what is farther back, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys.models import VOCAB, toy_network

from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.memories.head_passes import HeadPasses, Part
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ROOT, ProposalTree


def proposed(tokens: torch.Tensor, features: torch.Tensor, window: int | None, chunk: int = 64, levels: int = 9):
    """Returns the tree after a prompt whose pairs are observed `chunk` at a time."""
    memory = Eagle3Cache(toy_network(), window)
    drafter = Eagle3Drafter(memory, Dense(), levels=levels)
    memory.reset(len(tokens) + 100)
    for start in range(0, len(tokens) - 1, chunk):
        end = min(start + chunk, len(tokens) - 1)
        chain = ProposalTree.chain(tokens[start:end], origin=ROOT)
        hidden = dict(zip((1, 2, 3), features[start:end].split(32, dim=1), strict=True))
        memory.observe(Observation(chain, torch.arange(end - start), int(tokens[end]), hidden=hidden, prompt=True))
    return drafter.propose(Ask(int(tokens[-1]), 60, len(tokens) - 1))


def text(length: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randint(1, VOCAB, (length,)), torch.randn(length, 96)


def same(a: ProposalTree, b: ProposalTree) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.parents, b.parents)


def test_a_window_over_the_whole_text_changes_nothing():
    assert same(proposed(*text(), 1000), proposed(*text(), None))
    assert not same(proposed(*text(), 4), proposed(*text(), None))


@pytest.mark.parametrize("window", [3, 6, 12])  # narrower than the tree is deep, and wider
def test_tokens_before_the_window_have_no_effect(window):
    tokens, features = text()
    other, others = tokens.clone(), features.clone()
    far = len(tokens) - 1 - window  # slot t sees slots t - window + 1 .. t; the newest is len - 2
    other[1:far], others[: far - 1] = 1, 0.0
    assert same(proposed(tokens, features, window), proposed(other, others, window))
    other[far], others[far - 1] = 1 + other[far] % (VOCAB - 2), 9.0
    assert not same(proposed(tokens, features, window + 1), proposed(other, others, window + 1))


@pytest.mark.parametrize("window", [3, 12])
def test_the_tree_does_not_depend_on_chunk_size(window):
    assert same(proposed(*text(), window, chunk=1), proposed(*text(), window, chunk=64))


def test_positions_are_relative_so_that_far_prompts_draft_as_near_ones_do(monkeypatch):
    """Drafts from the same window of text at the beginning and 40,000 positions later."""
    tokens, features = text(14)
    far, passes = HeadPasses.forward, []

    def shifted(self, rows, part):
        passes.append(part)
        return far(
            self,
            [one if one.positions is None else replace(one, positions=one.positions + 40_000) for one in rows],
            part,
        )

    near = proposed(tokens, features, 13)
    monkeypatch.setattr(HeadPasses, "forward", shifted)
    assert same(near, proposed(tokens, features, 13)) and Part.LEVEL in passes
