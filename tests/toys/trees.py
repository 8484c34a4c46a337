"""Trees: random ones, those that a method proposes, and what two of them have in common."""

from __future__ import annotations

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ProposalTree
from toys.models import VOCAB, toy_target
from toys.sessions import toy_prompt


def random_tree(nodes: int, seed: int) -> ProposalTree:
    """Distinct siblings by construction."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1] + [int(torch.randint(0, i, (1,), generator=generator)) for i in range(1, nodes)]
    return ProposalTree.build([(7 * i + 3) % VOCAB for i in range(nodes)], parents, [0.0] * nodes, [2] * nodes)


def path_to(tree: ProposalTree, node: int) -> list[int]:
    """Nodes from the root to this one."""
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    return path


def shape_of(tree: ProposalTree):
    """A tree without its node order: the set of its paths."""
    paths, parents, tokens = [], tree.parents.tolist(), tree.tokens.tolist()
    for node, parent in enumerate(parents):
        paths.append((tokens[node],) if parent < 0 else (*paths[parent], tokens[node]))
    return set(paths)


def golden_shape(tokens, depths, parents):
    """`shape_of` an official tree."""
    return shape_of(ProposalTree.build(list(map(int, tokens)), [-1, *map(int, parents)], [0.0] * len(tokens),
                                       [2] * len(tokens)))


def trees(proposer, steps=8, budget=60):
    """The trees that a method proposes while it decodes."""
    target, prompt = toy_target(), torch.tensor(toy_prompt(60))
    verifier = Verifier(target, target.cache(400), Greedy(), Clock())
    wants = Wants.union(memory.wants for memory in proposer.memories)
    for memory in proposer.memories:
        memory.reset(400)
    for seen in read_prompt(verifier, prompt, wants, 16):
        for memory in proposer.memories:
            memory.observe(seen)
    out = []
    for _ in range(steps):
        out.append(proposer.propose(Ask(seen.next_token, budget, verifier.cache.position)))
        seen = verifier.verify(out[-1], wants)
        for memory in proposer.memories:
            memory.observe(seen)
    return out


def same(a: ProposalTree, b: ProposalTree) -> bool:
    return all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.scores, b.scores)))
