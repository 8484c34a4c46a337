"""Random trees, the trees that a method proposes, and comparisons of trees."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ProposalTree
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
