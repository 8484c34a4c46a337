"""Lookahead decoding: its tree, its window and its n-grams are those of the official loop."""

from __future__ import annotations

import pytest
import torch
from toys.observations import prompt_chunk
from toys.sessions import answered, toy_prompt, toy_session
from toys.trees import shape_of

from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.lookahead import Lookahead, Trajectories

SIZES = [(5, 7, 7), (3, 2, 4), (4, 5, 1)]  # n-gram, width, guesses


def next_of(context: list[int]) -> int:
    """Returns the next token of a target that depends on its last three tokens and repeats itself."""
    a, b, c = ([0, 0, *context])[-3:]
    return (7 * a + 3 * b + 11 * c + 5) % 23


class Loop:
    """Lookahead decoding with this target."""

    def __init__(self, memory: Trajectories, prompt: list[int]) -> None:
        self.memory, self.proposer, self.text = memory, Lookahead(memory), [*prompt]
        memory.observe(Observation(prompt_chunk(prompt).tree, torch.arange(len(prompt)), next_of(prompt), prompt=True))

    def step(self, budget: int = 1000) -> ProposalTree:
        root = next_of(self.text)
        tree = self.proposer.propose(Ask(root, budget, len(self.text)))
        draws, path = [], [0]
        ways: list[list[int]] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            ways.append([*(ways[parent] if parent >= 0 else self.text), token])
            draws.append(next_of(ways[-1]))
        while (child := tree.children.get((path[-1], draws[path[-1]]))) is not None:
            path.append(child)
        self.memory.observe(Observation(tree, torch.tensor(path), draws[path[-1]], torch.tensor(draws)[:, None]))
        self.text = ways[path[-1]]
        return tree


class Official:
    """The authors' loop, written plainly: the rows of the window, and n-grams by first token, oldest first."""

    def __init__(self, ngram: int, width: int, most: int, row: list[int]) -> None:
        self.ngram, self.width, self.most, self.rows, self.pool = ngram, width, most, [row], {}

    def step(self, text: list[int], root: int) -> None:
        first = [root, *self.rows[0]]
        contexts = [
            [*text, *first[: column + 1], *(row[column] for row in self.rows[1:])] for column in range(len(first))
        ]
        new = [next_of(context) for context in contexts]
        if len(self.rows) < self.ngram - 1:
            self.rows = [row[1:] for row in self.rows] + [new[1:]]
            return
        for column, key in enumerate(first):
            gram, grams = [*(row[column] for row in self.rows[1:]), new[column]], self.pool.setdefault(key, [])
            if gram in grams:
                grams.remove(gram)
            elif len(grams) == self.most:
                del grams[0]
            grams.append(gram)
        self.rows = [self.rows[1][1:], *self.rows[2:], new] if len(self.rows) > 1 else [new[1:]]


@pytest.mark.parametrize("size", [*SIZES, (2, 3, 2), (5, 1, 7)], ids=str)
def test_window_and_n_grams_are_those_of_the_official_loop(size):
    loop = Loop(Trajectories(*size), toy_prompt(40))
    theirs, accepted = Official(*size, list(loop.memory.rows[0])), 0
    for _ in range(40):
        text, root = loop.text, next_of(loop.text)
        tree = loop.step()
        assert {(root, *gram) for gram in theirs.pool.get(root, [])} <= shape_of(tree)
        theirs.step(text, root)
        assert [list(row) for row in loop.memory.rows] == theirs.rows
        for key, grams in theirs.pool.items():
            assert [list(gram) for gram in loop.memory.after(key)] == grams
        accepted += len(loop.text) - len(text) - 1
    # Pairs predict little of a target that depends on three tokens.
    assert accepted > (0 if size[0] > 2 else -1) and sum(map(len, theirs.pool.values())) > 5


def test_lookahead_without_a_window_has_only_the_n_grams_of_the_text():
    memory = Trajectories(3, 0, 2, from_prompt=True)
    memory.observe(prompt_chunk([1, 2, 3, 1, 4, 5, 1, 2, 3, 9, 1, 6]))  # then 0
    tree = Lookahead(memory).propose(Ask(1, 20, 13))
    assert tree.tokens.tolist() == [1, 6, 0, 2, 3] and tree.parents.tolist() == [-1, 0, 1, 0, 3]
    assert len(Lookahead(memory).propose(Ask(8, 20, 13))) == 1


def test_a_column_that_was_not_verified_stays_and_gives_no_n_gram():
    loop = Loop(Trajectories(4, 5, 3), toy_prompt(40))
    for _ in range(6):
        loop.step()
    before, learnt, text = loop.memory.rows, dict(loop.memory._pool), loop.text
    loop.step(budget=9)  # two or three of five columns
    after = loop.memory.rows
    assert after[-1][3:] == before[-1][3:] and after[:2] == (before[1][1:], before[2])
    changed = {key for key, grams in loop.memory._pool.items() if grams != learnt.get(key)}
    assert changed and changed <= {next_of(text), *before[0][:2]}


def test_lookahead_accepts_tokens_that_its_window_predicted():
    found = answered(toy_session("lookahead"), toy_prompt(60), 48)
    assert sum(found.stats.accepted_per_step) > 0
