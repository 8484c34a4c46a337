"""A tree of products holds the most probable paths, and no others."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from longgraft.zoo.dflash.drafter import products

ROOT = 9


def best_tokens(positions: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and log-probabilities [L, K], best first."""
    torch.manual_seed(seed)
    logs, tokens = torch.randn(positions, 20).log_softmax(-1).topk(width)
    return tokens, logs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [2, 9, 30])
def test_nodes_of_a_product_tree_are_the_most_probable_of_all_paths(seed, budget):
    tokens, logs = best_tokens(4, 5, seed)
    tree = products(ROOT, tokens, logs, budget)
    every = [
        sum(float(logs[i, rank]) for i, rank in enumerate(path))
        for depth in range(1, 5)
        for path in product(range(5), repeat=depth)
    ]
    assert len(tree) == budget
    assert tree.scores[1:].tolist() == pytest.approx(sorted(every, reverse=True)[: budget - 1], abs=1e-5)


def test_each_node_has_its_parent_s_score_and_its_own_and_siblings_differ():
    tokens, logs = best_tokens(5, 8, 1)
    tree = products(ROOT, tokens, logs, 40)
    parents, scores = tree.parents.tolist(), tree.scores.tolist()
    for node in range(1, len(tree)):
        assert parents[node] < node
        rank = tokens[int(tree.depths[node]) - 1].tolist().index(int(tree.tokens[node]))
        gain = float(logs[int(tree.depths[node]) - 1, rank])
        assert scores[node] == pytest.approx(scores[parents[node]] + gain, abs=1e-5)
    assert len(tree.children) == len(tree) - 1
