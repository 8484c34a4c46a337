"""The adjacency matrix: the last occurrence wins, and official runs of Token Recycling are replayed bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.trees.templates import graft_templates, token_recycling

VOCAB = 96
HOST = torch.device("cpu")


def random_update(n: int, seed: int = 0, distinct: int = VOCAB) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens [n] with many duplicates, and their topk [n, 8]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, distinct, (n,), generator=generator)
    return tokens, torch.randint(0, VOCAB, (n, 8), generator=generator).int()


def filled(seed: int = 0, n: int = 300) -> AdjacencyMatrix:
    matrix = AdjacencyMatrix(VOCAB)
    matrix.update(*random_update(n, seed))
    return matrix


@pytest.mark.parametrize("n, distinct", [(0, 5), (1, 1), (200, 1), (200, 12), (1024, 90)])
def test_an_update_overwrites_rows_in_order(n, distinct):
    tokens, topk = random_update(n, distinct=distinct)
    matrix, expected = AdjacencyMatrix(VOCAB), {}
    matrix.update(tokens, topk)
    for token, row in zip(tokens.tolist(), topk.tolist(), strict=True):
        expected[token] = row
    assert [matrix.rows[token].tolist() for token in expected] == list(expected.values())
    assert matrix.touched() == len(expected)
    assert (matrix.rows[[token for token in range(VOCAB) if token not in expected]] == -1).all()


def test_two_runs_are_identical_and_leave_nothing_behind():
    tokens, topk = random_update(500, distinct=20)
    once, again = AdjacencyMatrix(VOCAB), AdjacencyMatrix(VOCAB)
    once.update(tokens, topk)
    for _ in range(3):  # without a reset of the scratch buffer, an old position would win
        again.update(tokens.flip(0), topk.flip(0))
        again.update(tokens, topk)
    assert torch.equal(once.rows, again.rows)


@pytest.mark.parametrize(
    "tokens, topk", [((3,), (4, 8)), ((3,), (3, 7)), ((3,), (24,)), ((3, 1), (3, 8)), ((), (1, 8))]
)
def test_shapes_that_do_not_fit_are_refused(tokens, topk):
    with pytest.raises(ValueError, match=r"are needed"):
        AdjacencyMatrix(VOCAB).update(torch.zeros(tokens).long(), torch.zeros(topk).int())


def test_a_vocabulary_smaller_than_the_width_narrows_it():
    matrix = AdjacencyMatrix(5)
    matrix.update(torch.tensor([4]), torch.tensor([[0, 1, 2, 3, 4]]))
    assert matrix.width == 5 and matrix.rows.shape == (5, 5) and matrix.rows[4].tolist() == [0, 1, 2, 3, 4]


def test_filling_walks_the_template_and_leaves_nodes_below_unseen_tokens_unseen():
    matrix = AdjacencyMatrix(VOCAB)
    # Token 0 and the last token have rows too, and an unseen token, -1, must find neither.
    rows = [list(range(first, first + 8)) for first in (10, 20, 40, 50)]
    matrix.update(torch.tensor([1, 10, 0, VOCAB - 1]), torch.tensor(rows))
    template = graft_templates()["full"]
    tokens = matrix.fill(template.levels(HOST), 1).tolist()
    for node, path in enumerate(template.paths, 1):
        # Only 1 and 10 have rows, so only the root's children and those of its rank-0 child are filled.
        expected = 10 + path[0] if len(path) == 1 else 20 + path[1] if len(path) == 2 and path[0] == 0 else -1
        assert tokens[node] == expected
    zeros = AdjacencyMatrix(VOCAB, unseen=0)
    assert zeros.fill(template.levels(HOST), 7).tolist() == [7] + [0] * 80


def test_a_snapshot_is_restored_whatever_came_after():
    matrix = filled()
    rows, snapshot = matrix.rows.clone(), matrix.snapshot()
    matrix.update(*random_update(100, seed=9))
    assert not torch.equal(matrix.rows, rows)
    matrix.restore(snapshot)
    assert torch.equal(matrix.rows, rows)
    matrix.clear()
    assert matrix.touched() == 0
    with pytest.raises(ValueError, match="needs"):  # one column would be copied into all eight
        matrix.restore(snapshot[:, :1])


def test_a_row_that_begins_with_token_zero_counts_as_seen():
    matrix = AdjacencyMatrix(VOCAB, unseen=0)
    matrix.update(torch.tensor([5]), torch.arange(8)[None])
    assert matrix.touched() == 1


@pytest.mark.parametrize("kind", ["rand", "aligned"])
@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_official_token_recycling_is_replayed_exactly(golden, kind, prompt):
    saved = np.load(golden / f"token_recycling/matrix_{kind}_p{prompt}.npz")
    matrix = AdjacencyMatrix(512, unseen=0)
    matrix.rows.copy_(torch.from_numpy(saved["matrix_start"]))
    checked = 0
    # Only the first twelve of 21 or more rounds are recorded, so matrix_end cannot be checked.
    for done, (tokens, rows) in enumerate(zip(saved["tree_tokens"], saved["verify_top8"], strict=True), 1):
        assert matrix.fill(token_recycling().levels(HOST), int(tokens[0])).tolist() == tokens.tolist()
        matrix.update(torch.from_numpy(tokens).long(), torch.from_numpy(rows))
        if f"matrix_after_round{done}" in saved:
            np.testing.assert_array_equal(matrix.rows.numpy(), saved[f"matrix_after_round{done}"])
            checked += 1
    assert (checked, done) == (2, 12)
