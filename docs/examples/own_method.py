"""A method of one's own: it proposes how a known text goes on after the latest token.

    python docs/examples/own_method.py

`docs/adding-a-method.md` explains the parts, and has a method with a memory.
"""

import torch

import longgraft
from longgraft.methods import Method
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import RETRIEVED, ProposalTree


class Boilerplate:
    """Proposes what follows the latest token where a known text has it first."""

    memories = ()

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def propose(self, ask: Ask) -> ProposalTree:
        chain = [ask.root]
        if ask.root in self.tokens:
            place = self.tokens.index(ask.root)
            chain += self.tokens[place + 1 : place + ask.budget]
        return ProposalTree.chain(torch.tensor(chain), RETRIEVED)


known = longgraft.load(method="ar", tell=False).encode(":\n    return a + b\n\n\ndef subtract(a, b)")
method = Method("boilerplate", "how a known text goes on", "-", lambda parts: Boilerplate(known), budget=8)

prompt = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n"
answer = longgraft.generate(prompt, method=method, max_new_tokens=48)
plain = longgraft.generate(prompt, method="ar", max_new_tokens=48)

print(answer.text)
print(f"{answer.stats.mat:.2f} guesses accepted per step; identical answers:", answer.token_ids == plain.token_ids)
