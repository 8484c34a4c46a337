"""Draws whose logits depend on the tokens before them: constraints, penalties, biases and log-probabilities.

A draw at a node depends only on the path to the node, as in plain decoding, so the answer equals plain decoding's under
the same settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance.constraints import Constraint, DeadEnd
from longgraft.acceptance.rules import DrawThenWalk, walk
from longgraft.acceptance.sampling import LogitOptions
from longgraft.runtime.devices import sent
from longgraft.trees.tree import FORCED, ProposalTree

DEAD = -1       # drawn below the root where the constraint allows no token

@dataclass(frozen=True)
class TokenLogprob:
    """A decoded token's log-probability by the target's own logits, before biases, penalties, constraint and sampling.

    top: (token, log-probability) of the most probable tokens, best first
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Shaping:
    """Changes the logits depending on one answer's tokens so far; `advance` moves it past each drawn token."""

    def __init__(self, options: LogitOptions, prompt: Sequence[int], constraint: Constraint | None = None) -> None:
        self.options, self.constraint = options, constraint
        self._prompt, self._answer = prompt, list[int]()
        self._counts = self._seen = self._bias = torch.empty(0)
        self._logprobs: list[TokenLogprob] = []

    def shaped(self, logits: Tensor) -> Tensor:
        """Returns the next token's logits after biases, penalties and constraint: [1, V] -> [1, V] float32.

        Biases and penalties apply in the order of transformers' and vLLM's processors; forbidden tokens get -inf.
        """
        options, scores = self.options, logits.float()
        if self._counts.shape[0] != logits.shape[-1]:
            self._begin(logits)
        scores = scores + self._bias
        if options.repetition_penalty != 1:
            repeated = torch.where(scores < 0, scores * options.repetition_penalty, scores / options.repetition_penalty)
            scores = torch.where(self._seen, repeated, scores)
        if options.presence_penalty or options.frequency_penalty:
            scores = scores - options.frequency_penalty * self._counts - options.presence_penalty * (self._counts > 0)
        if self.constraint is not None:
            scores = scores.masked_fill(~sent(self.constraint.allowed(), logits.device), float("-inf"))
        return scores

    def advance(self, token: int, logits: Tensor) -> None:
        """Moves past a drawn token; logits: [1, V], the unshaped logits that it was drawn from."""
        self._counts[token] += 1
        self._seen[token] = True
        if self.constraint is not None:
            self.constraint.advance(token)
        if (top := self.options.logprobs) is not None:
            logs = logits[0].float().log_softmax(-1)
            values, tokens = logs.topk(top)
            pairs = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
            self._logprobs.append(TokenLogprob(token, float(logs[token]), pairs))

    def taken(self, tokens: int) -> tuple[TokenLogprob, ...]:
        """Returns and clears the log-probabilities of the last step's first `tokens` tokens; () if none are wanted."""
        found, self._logprobs = tuple(self._logprobs[:tokens]), []
        return found

    def fitted(self, tree: ProposalTree, budget: int) -> ProposalTree:
        """Fits a tree to the constraint: removes forbidden nodes and adds what must or may follow.

        A text that is forced after the root is always added, and displaces other nodes; up to `budget` nodes, texts
        that are among few possible ones are added after the root and the leaves.
        """
        if (rule := self.constraint) is None or rule.ended:
            return tree
        tree = _without_forbidden(tree, rule)
        at_root = rule.continuations()
        if len(at_root) == 1:
            tree = tree.top(max(1, budget - len(at_root[0])))
        waiting = deque([0, *_leaves(tree)])
        while waiting and len(tree) < budget:
            node = waiting.popleft()
            for tokens in rule.continuations(_path(tree, node)) if node else at_root:
                chain = ProposalTree.chain(torch.tensor([0, *tokens]), origin=FORCED)
                tree = tree.merge(chain, at=node, budget=budget)
                last = node
                for token in tokens:
                    last = tree.children.get((last, token), 0)
                if last:
                    waiting.append(last)
        return tree

    def _begin(self, logits: Tensor) -> None:
        """Counts and biases on the device of the logits."""
        self._counts, self._bias = logits.new_zeros(2, logits.shape[-1], dtype=torch.float32)
        self._seen = self._counts.bool()
        self._seen[torch.tensor(self._prompt, device=logits.device)] = True
        for token, bias in (self.options.logit_bias or {}).items():
            self._bias[token] = bias


@dataclass(frozen=True)
class Shaped:
    """A rule that draws, at each node of the walk, from the shaped logits.  Nodes off the walk are not looked at.

    It also takes the place of rejection sampling and of typical acceptance: its answers are plain decoding's.
    """

    rule: DrawThenWalk
    shaping: Shaping

    @property
    def guesses(self) -> DrawThenWalk:
        return self.rule.guesses

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        path, token = walk(tree, _InOrder(self, logits, positions))
        # The answer may end before a dead end, at a stop string. If it does not, the next step raises.
        return (path, token) if token != DEAD else (path[:-1], int(tree.tokens[path[-1]]))


@dataclass(frozen=True)
class _InOrder:
    """Draws of a walk, each made when it is read, once."""

    of: Shaped
    logits: Tensor
    positions: Tensor

    def __getitem__(self, node: int) -> int:
        logits = self.logits[node:node + 1]
        positions = sent(self.positions[node:node + 1], logits.device)
        try:
            token = int(self.of.rule.draw(self.of.shaping.shaped(logits), positions))
            self.of.shaping.advance(token, logits)
        except DeadEnd:
            if node:
                return DEAD
            raise
        return token


def _without_forbidden(tree: ProposalTree, constraint: Constraint) -> ProposalTree:
    kept = {0}
    for leaf in _leaves(tree):
        nodes = _nodes(tree, leaf)
        kept.update(nodes[:constraint.accepted(tree.tokens[nodes].tolist())])
    return tree if len(kept) == len(tree) else tree.select(sorted(kept))


def _leaves(tree: ProposalTree) -> list[int]:
    """Those below the root, the most probable first; those without an estimate last."""
    inner, scores = set(tree.parents.tolist()), tree.scores.tolist()
    leaves = [node for node in range(1, len(tree)) if node not in inner]
    return sorted(leaves, key=lambda node: (scores[node] != scores[node], -scores[node]))


def _nodes(tree: ProposalTree, node: int) -> list[int]:
    """Returns the path from the root's child to the node."""
    nodes = []
    while node:
        nodes.append(node)
        node = int(tree.parents[node])
    return nodes[::-1]


def _path(tree: ProposalTree, node: int) -> list[int]:
    return tree.tokens[_nodes(tree, node)].tolist()

