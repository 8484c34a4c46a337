"""LogitSpec: the official pools and trees, and the parts that are our own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from toys.observations import prompt_chunk
from toys.trees import shape_of

from longgraft.memories.token_history import TokenHistory
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.logitspec import WIDTH, LastTopK, LogitSpec, Rounds, longest

VOCAB = 512


def after_prompt(history: list[int], row: Iterable[int]) -> LogitSpec:
    """Returns a proposer that has read this prompt; `row` ranks the tokens after its last one."""
    proposer = LogitSpec(TokenHistory(), LastTopK(WIDTH), VOCAB)
    proposer.memories[0].reset(len(history))
    row = torch.tensor(list(row)).int()[None].expand(len(history), -1)
    for memory in proposer.memories:
        memory.observe(prompt_chunk(history, row))
    return proposer


def verified(tokens: list[int], topk: torch.Tensor | None = None) -> Observation:
    """Returns the observation of a verified chain that was kept whole."""
    return replace(prompt_chunk(tokens, topk), prompt=False)


def paths(root: int, chains: Iterable[Iterable[int]]) -> set[tuple[int, ...]]:
    """Returns the path of every node of these chains below the root."""
    return {(root,)} | {(root, *chain[:n]) for chain in map(tuple, chains) for n in range(1, len(chain) + 1)}


def official(pools: list[dict], history: list[int], root: int, row: list[int], capacity: int = 64) -> list[list[int]]:
    """Returns the chains of a tree by the official rule, written plainly."""

    def after(context: list[int]) -> list[int]:
        keys = [tuple(context[-n:]) for n in (3, 2, 1)]
        return next((pools[len(key) - 1][key] for key in keys if key in pools[len(key) - 1]), [])

    chains = [after([*history, root])[: capacity - 1]]
    for rank, guess in enumerate(row):
        room = capacity - 1 - sum(map(len, chains))
        if guess != root and room > 0:
            chain = [guess, *after([*history, root, guess])]
            chains.append(chain[: min(room, 4 if rank <= 8 else 3 if rank <= 32 else 1)])
    return chains


def pooled(prompt: list[int], rounds: Iterable[list[int]] = ()) -> list[dict]:
    """Maps n-grams to continuations of up to 20 tokens; a later one that is as long replaces the earlier one.

    The prompt is read whole; each round reads the n-grams that begin in the last 40 tokens.
    """
    pools: list[dict] = [{}, {}, {}]
    history, first = list(prompt), 0
    for new in ([], *rounds):
        history += new
        first = max(0, len(history) - 40) if new else 0
        for n, pool in enumerate(pools, 1):
            for end in range(first + n, len(history)):
                key, found = tuple(history[end - n : end]), history[end : end + 20]
                if len(found) >= len(pool.get(key, [])):
                    pool[key] = found
    return pools


@pytest.mark.parametrize("case", [0, 1])
def test_continuations_are_those_of_the_official_pools(golden, case):
    case, compared = json.loads((golden / "logitspec/cases.json").read_text())[case], 0
    prompt, rounds = case["history"], Rounds()
    for pools, new in ((case["pool_before"], []), (case["pool_after"], case["update"])):
        history, followed = prompt + new, pooled(prompt, [new] if new else [])
        rounds.observe(verified(new) if new else prompt_chunk(prompt))
        for n, pool in enumerate(pools, 1):
            theirs = {tuple(map(int, key.split())): found for key, found in pool.items() if len(key.split()) == n}
            assert theirs == followed[n - 1]
            for key, found in theirs.items():
                ends = np.array([end for end in range(n, len(history)) if tuple(history[end - n : end]) == key])
                known = rounds.pooled(ends, n, 20, 0)
                (best,) = longest(np.zeros(len(ends), int), known, 1)
                assert history[ends[best] : ends[best] + known[best]] == found, key
                compared += 1
    assert compared > 40


@pytest.mark.parametrize("case", range(4))
def test_trees_after_rounds_of_many_accepted_tokens_are_the_official_ones(golden, case):
    case = json.loads((golden / "logitspec/rounds.json").read_text())[case]
    prompt, done = case["prompt"], []
    proposer = after_prompt(prompt, case["rounds"][0]["row"])
    for now in case["rounds"]:
        done.append(now["tokens"])
        row = torch.tensor(now["row"]).int()[None].expand(len(now["tokens"]), -1)
        for memory in proposer.memories:
            memory.observe(verified(now["tokens"], row))
        root, history = now["row"][0], [*prompt, *chain.from_iterable(done)]
        chains = official(pooled(prompt, done), history, root, now["row"], 24)
        assert [one for one in chains if one] == now["candidates"]
        assert shape_of(proposer.propose(Ask(root, 24, 0))) == paths(root, now["candidates"])


def test_trees_for_random_histories_follow_the_official_rule():
    generator, merged, matched = np.random.default_rng(0), 0, 0
    for size in range(1, 161):
        history = generator.integers(0, generator.integers(2, 9), size).tolist()
        row, rounds = generator.permutation(12).tolist(), []
        root, budget = row[generator.integers(0, 3)], int(generator.integers(1, 65))
        proposer = after_prompt(history, row)
        for new in generator.integers(1, 22, size % 7):
            rounds.append(generator.integers(0, 9, new).tolist())
            for memory in proposer.memories:
                memory.observe(verified(rounds[-1], torch.tensor(row).int()[None].expand(new, -1)))
        text = [*history, *chain.from_iterable(rounds)]
        chains = official(pooled(history, rounds), text, root, row, budget)
        tree = proposer.propose(Ask(root, budget, len(text)))
        assert shape_of(tree) == paths(root, chains) and len(tree) <= budget
        merged += len(tree) < 1 + sum(map(len, chains))
        matched += int(tree.match.max()) == 3
    assert merged > 10 and matched > 10


def test_matches_are_counted_for_continuations_and_not_for_guesses():
    tree = after_prompt([1, 2, 3, 4, 1, 2, 5, 6], [2, 3, 9]).propose(Ask(1, 20, 8))
    nodes = {tuple(path): match for path, match in zip(_paths(tree), tree.match.tolist(), strict=True)}
    assert nodes[1, 2] == 1 and nodes[1, 2, 3] == 1  # after the earliest 1, as no later one has 20 tokens after it
    assert nodes[1, 3] == 0 and nodes[1, 3, 4] == 1 and nodes[1, 9] == 0


def _paths(tree: ProposalTree) -> list[list[int]]:
    found: list[list[int]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        found.append([token] if parent < 0 else [*found[parent], token])
    return found


def test_the_row_is_that_of_the_last_kept_node():
    row = LastTopK(2)
    topk = torch.arange(12).view(4, 3).int()
    tree = ProposalTree.build([1, 2, 3, 4], [-1, 0, 0, 2], [0.0] * 4, [2] * 4)
    row.observe(Observation(tree, torch.tensor([0, 2]), 9, topk))
    assert row.tokens == [6, 7]
    row.observe(Observation(tree, torch.arange(4), 9, topk[:2], prompt=True, ranked=torch.tensor([1, 3])))
    assert row.tokens == [3, 4]
    row.observe(Observation(tree, torch.arange(4), 9, topk[:2], prompt=True, ranked=torch.tensor([0, 2])))
    assert row.tokens == []
    row.reset(9)
    assert row.tokens == []
