"""Random trees, the trees that a method proposes, and comparisons of trees."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import PaddedTree
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree
from toys.models import VOCAB, toy_target
from toys.sessions import toy_prompt


def random_tree(nodes: int, seed: int) -> ProposalTree:
    """Returns a random tree whose siblings have different tokens."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1] + [int(torch.randint(0, i, (1,), generator=generator)) for i in range(1, nodes)]
    return ProposalTree.build([(7 * i + 3) % VOCAB for i in range(nodes)], parents, [0.0] * nodes, [2] * nodes)


def path_to(tree: ProposalTree, node: int) -> list[int]:
    """Returns the nodes from the root to this one."""
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    return path


def shape_of(tree: ProposalTree):
    """Returns the set of a tree's paths, which does not depend on the order of its nodes."""
    paths, parents, tokens = [], tree.parents.tolist(), tree.tokens.tolist()
    for node, parent in enumerate(parents):
        paths.append((tokens[node],) if parent < 0 else (*paths[parent], tokens[node]))
    return set(paths)


def golden_shape(tokens, depths, parents):
    """Returns `shape_of` an official implementation's tree."""
    return shape_of(
        ProposalTree.build(list(map(int, tokens)), [-1, *map(int, parents)], [0.0] * len(tokens), [2] * len(tokens))
    )


def scored(tree: ProposalTree) -> dict[tuple[int, ...], float]:
    """Returns the score of each path below the root."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        found.append(() if parent < 0 else (*found[parent], token))
    return dict(zip(found[1:], tree.scores.tolist()[1:], strict=True))


def begun(
    target: Target, memories: Iterable[Memory], prompt: list[int], chunk: int = 16, following: int | None = None
) -> tuple[Verifier, Wants, int]:
    """Reads a prompt with these memories, and returns (verifier, what the memories want, the first root)."""
    memories = tuple(memories)
    verifier = Verifier(target, target.cache(len(prompt) + 200), Greedy(), Clock())
    wants = Wants.union(memory.wants for memory in memories)
    for memory in memories:
        memory.reset(len(prompt) + 200)
    for seen in read_prompt(verifier, torch.tensor(prompt), wants, chunk, following):
        for memory in memories:
            memory.observe(seen)
    return verifier, wants, seen.next_token


def trees(proposer, steps=8, budget=60):
    """Returns the trees that a method proposes while it decodes."""
    verifier, wants, root = begun(toy_target(), proposer.memories, toy_prompt(60))
    out = []
    for _ in range(steps):
        out.append(proposer.propose(Ask(root, budget, verifier.cache.position)))
        seen = verifier.verify(out[-1], wants)
        for memory in proposer.memories:
            memory.observe(seen)
        root = seen.next_token
    return out


def same(a: ProposalTree, b: ProposalTree) -> bool:
    return all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.scores, b.scores)))


def grown(dice: random.Random, nodes: int, root: int = 0, near: int = 99, vocabulary: int = 4) -> ProposalTree:
    """Returns a tree of at most `nodes` nodes with parents among the last `near` (1 makes chains).  Scores take few
    values so that they tie; in some trees no node has more than its parent, as in drafters' trees."""
    falling = dice.random() < 0.5
    tokens, parents, scores, origin = [root], [-1], [0.0], [ROOT]
    taken = set()
    for _ in range(nodes - 1):
        pair = dice.randrange(max(0, len(tokens) - near), len(tokens)), dice.randrange(vocabulary)
        if pair not in taken:
            taken.add(pair)
            parents.append(pair[0])
            tokens.append(pair[1])
            gain = dice.choice([float("nan"), -0.0, -0.5, -0.5, -1.25, -dice.random(), float("-inf")])
            scores.append(scores[pair[0]] + dice.choice([-0.0, -0.5, -0.5, gain]) if falling else gain)
            origin.append(dice.choice([DRAFT, RETRIEVED, DRAFT | RETRIEVED]))
    return ProposalTree.build(tokens, parents, scores, origin, stage=dice.choice([None, 1]))


def scattered(dice: random.Random, tree: ProposalTree, rows: int) -> PaddedTree:
    """Returns the tree in rows of which some are dead; dead rows hold values that would be valid elsewhere."""
    places = [0, *sorted(dice.sample(range(1, rows), len(tree) - 1))]
    whole = PaddedTree.of(tree, rows, torch.device("cpu"))
    live = torch.zeros(rows, dtype=torch.bool)
    live[places] = True

    def spread(column, dead):
        out = torch.full((rows,), dead, dtype=column.dtype)
        out[places] = column[: len(tree)]
        return out

    parents = torch.tensor([-1] + [places[parent] for parent in tree.parents[1:].tolist()])
    return replace(
        whole,
        tokens=spread(tree.tokens, 0),
        parents=spread(parents, 0),
        depths=spread(tree.depths, 0),
        scores=spread(tree.scores, dice.choice([0.0, float("nan"), -0.1])),
        origin=spread(tree.origin, 0),
        live=live,
    )


def drawn(dice: random.Random, tree: ProposalTree) -> list[int]:
    """Returns one drawn token per node, mostly one of its children's."""
    return [
        dice.choice([token for (parent, token) in tree.children if parent == node] or [0])
        if dice.random() < 0.9
        else dice.randrange(9)
        for node in range(len(tree))
    ]
