"""Checks that a method's memories can be rewound and restored."""

from __future__ import annotations

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.methods.find import build
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ProposalTree
from toys.models import toy_target
from toys.sessions import toy_parts, toy_prompt


class Run:
    """A method that has read a prompt and is stepped by the test."""

    def __init__(self, name: str, **parts) -> None:
        self.parts = toy_parts(**parts)
        self.proposer = build(name, self.parts)
        self.wants = Wants.union(memory.wants for memory in self.proposer.memories)
        self.verifier = Verifier(toy_target(), toy_target().cache(300), Greedy(), Clock())
        for memory in self.proposer.memories:
            memory.reset(300)
            memory.observe_prediction(torch.tensor(toy_prompt(60)[40:]))
            memory.observe_prediction(torch.tensor(toy_prompt(30, seed=2)))
        for seen in read_prompt(self.verifier, torch.tensor(toy_prompt(60)), self.wants, 16):
            self.observe(seen)

    def observe(self, seen: Observation) -> None:
        self.root = seen.next_token
        for memory in self.proposer.memories:
            memory.observe(seen)

    def propose(self) -> ProposalTree:
        return self.proposer.propose(Ask(self.root, 30, self.verifier.cache.position))

    def steps(self, count: int) -> list[ProposalTree]:
        trees = []
        for _ in range(count):
            trees.append(self.propose())
            self.observe(self.verifier.verify(trees[-1], self.wants))
        return trees


def same(a: ProposalTree, b: ProposalTree) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.parents, b.parents)


def assert_rewinds(name) -> None:
    """Checks that memories rewound to a mark, once or twice, make the same proposals again."""
    run = Run(name)
    run.steps(2)
    marks, length, root = [m.mark() for m in run.proposer.memories], run.verifier.cache.length, run.root
    first = run.steps(3)
    for _ in range(2):
        for memory, mark in zip(run.proposer.memories, marks, strict=True):
            memory.rewind(mark)
        run.verifier.cache.crop(length)
        run.root = root
        assert all(same(a, b) for a, b in zip(first, run.steps(3), strict=True))
