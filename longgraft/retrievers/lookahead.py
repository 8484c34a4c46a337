"""Lookahead decoding (arXiv 2402.02057): verifies n-grams, and grows new ones in the same pass.

Its window is a tree: row r's column c stands below row r - 1's, the first row is a chain from the root, and n-grams are
chains from the root.  Knows trajectories only.
"""

from __future__ import annotations

from longgraft.memories.trajectories import Trajectories
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie


class Lookahead:
    """The window, then the n-grams that begin with the root, the newest first.

    Where slots are few n-grams give way first, down to one; then the window's far columns, all rows of each.
    """

    def __init__(self, memory: Trajectories, clock: Clock | None = None) -> None:
        self.memories, self.memory, self.clock = (memory,), memory, clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            tree, rows, guesses = Trie(ask.root, ask.budget), self.memory.rows, self.memory.after(ask.root)
            room = ask.budget - (self.memory.ngram - 1 if guesses else 0)
            columns = max(0, room // len(rows)) if rows else 0
            nodes = [0][:columns]
            for row in rows[:1]:
                for token in row[:max(0, columns - 1)]:
                    nodes.append(tree.add([token], nodes[-1]))
            for row in rows[1:]:
                nodes = [tree.add([token], node) for token, node in zip(row[:columns], nodes, strict=True)]
            for guess in reversed(guesses):
                tree.add(guess, match=1)
            return tree.tree()
