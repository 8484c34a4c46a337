"""Proposals from the texts of an engine's requests: trees with their ancestors, or the best chain."""

from __future__ import annotations

import logging
from collections.abc import Hashable

import numpy as np

from longgraft.plugins.options import TextOptions
from longgraft.plugins.texts import Text, Texts, Tokens
from longgraft.trees.ranked_paths import RankedPaths

WIDTH = 4  # nodes that are ranked for each place of a chain: the best chain may begin with the second best token
REPORT = 1_000  # steps between two lines of the log


class TextTrees:
    """Proposals for the requests of one engine.

    Attributes:
        texts: The requests' texts, by key.
        proposed: Tokens that were proposed.
        accepted: Those of them that the target accepted.
    """

    def __init__(self, options: TextOptions, log: logging.Logger) -> None:
        self.texts = Texts(options)
        self.proposed = 0
        self.accepted = 0
        self._log = log
        self._steps = 0

    def begin_step(self) -> None:
        """Counts a step, forgets texts of requests that are gone, and writes a line to the log now and then."""
        self.texts.begin_step()
        self._steps += 1
        if self._steps % REPORT == 0:
            megabytes = self.texts.bytes // 2**20
            self._log.info(
                f"longgraft: {self._steps:,} steps, {self.proposed:,} tokens proposed, "
                f"{self.accepted:,} of them accepted; {len(self.texts)} texts, {megabytes:,} MB"
            )

    def follow(self, key: Hashable, new: Tokens) -> Text | None:
        """Returns a text after a step's new tokens; None if there is none, or no room for them."""
        text = self.texts.get(key)
        if text is None:
            return None
        if len(new):
            self.accepted += min(len(new) - 1, text.proposed)
            text.proposed = 0
            text.extend(new)
        return text

    def chain(self, text: Text, most: int, running: int) -> list[int]:
        """Returns the chain with the most expected tokens, which is empty where no token is worth its row.

        Args:
            text: The text to go on with.
            most: Most tokens of the chain.
            running: Requests that decode in the pass.  A row delays them all.
        """
        floor = self.texts.options.price * running
        chain = best_chain(text.model.rank([floor] * (1 + WIDTH * most)))[:most]
        text.proposed = len(chain)
        self.proposed += len(chain)
        return chain

    def tree(self, text: Text | None, root: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens [nodes] of the most probable tree, root first, and their ancestors [nodes, nodes].

        Places that the text leaves are a chain of zeros below the last node.  None of them has siblings: a sampler
        that walks over two siblings with the same token would count its probability twice.
        """
        tokens = [root]
        parents = [-1]
        if text is not None:
            found = text.model.rank([0.0] * nodes)
            tokens += found.tokens[1:].tolist()
            parents = found.parents.tolist()
            text.proposed = len(found) - 1
            self.proposed += text.proposed
        for node in range(len(tokens), nodes):
            tokens.append(0)
            parents.append(node - 1)
        ancestors = np.eye(nodes, dtype=bool)
        for node in range(1, nodes):
            ancestors[node] |= ancestors[parents[node]]
        return np.array(tokens), ancestors


def best_chain(ranked: RankedPaths) -> list[int]:
    """Returns the tokens of the path below the root whose probabilities have the largest sum."""
    tokens = ranked.tokens.tolist()
    parents = ranked.parents.tolist()
    probabilities = ranked.probabilities.tolist()
    worth = list(probabilities)  # of the best path that begins at a node
    following = [0] * len(tokens)  # its next node; 0: it ends here
    for node in range(len(tokens) - 1, 0, -1):
        parent = parents[node]
        if probabilities[parent] + worth[node] > worth[parent]:
            worth[parent] = probabilities[parent] + worth[node]
            following[parent] = node
    chain = []
    node = following[0]
    while node:
        chain.append(tokens[node])
        node = following[node]
    return chain
