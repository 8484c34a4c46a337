"""Draws whose logits depend on the tokens before them: constraints, penalties, biases and log-probabilities.

A draw at a node depends only on the path to the node, as in plain decoding, so the answer equals plain
decoding's under the same settings.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance.constraints import FIT_SECONDS, Constraint, DeadEnd
from longgraft.acceptance.rules import DrawThenWalk, checked, walk
from longgraft.acceptance.sampling import LogitOptions
from longgraft.runtime.devices import sent
from longgraft.trees.tree import FORCED, ProposalTree

DEAD = -1  # drawn behind the root where the constraint allows no token
# CPU time of a step for draws under a constraint, after which no further node is accepted.
WALK_SECONDS = 0.03


@dataclass(frozen=True)
class TokenLogprob:
    """A decoded token's log-probability by the target's own logits, before biases, penalties, constraint and sampling.

    Attributes:
        token: The token.
        logprob: Its log-probability.
        top: (token, log-probability) of the most probable tokens, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Shaping:
    """Changes the logits depending on one answer's tokens so far; `advance` moves it past each drawn token."""

    def __init__(self, options: LogitOptions, prompt: Sequence[int], constraint: Constraint | None = None) -> None:
        self.options = options
        self.constraint = constraint
        self._prompt = prompt
        self._counts = self._seen = self._bias = torch.empty(0)
        self._logprobs: list[TokenLogprob] = []
        self._of_prompt: list[TokenLogprob] = []
        self.seconds = 0.0  # CPU time of the last step for constraint and draws

    def shaped(self, logits: Tensor) -> Tensor:
        """Returns the next token's logits after biases, penalties and constraint: [1, V] -> [1, V] float32.

        Biases and penalties apply in the order of transformers' and vLLM's processors; forbidden tokens get
        -inf.
        """
        options = self.options
        scores = logits.float()
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
        """Moves past a drawn token.

        Args:
            token: The token.
            logits: [1, V], the unshaped logits that it was drawn from.
        """
        self._counts[token] += 1
        self._seen[token] = True
        if self.constraint is not None:
            self.constraint.advance(token)
        top = self.options.logprobs
        if top is not None:
            self._logprobs += logprobs_of(logits, torch.tensor([token]), top)

    @property
    def reads_prompt(self) -> bool:
        """True if `read` needs the logits of the prompt."""
        return self.options.prompt_logprobs is not None

    def read(self, logits: Tensor, following: Tensor) -> None:
        """Reads a part of the prompt.

        Args:
            logits: [n, V] on the part.
            following: [m] int64, m <= n, its tokens from the second on, and the one after it.
        """
        top = self.options.prompt_logprobs
        if top is not None:
            self._of_prompt += logprobs_of(logits[: len(following)], following, top)

    def taken_of_prompt(self) -> tuple[TokenLogprob, ...]:
        """Returns and clears the log-probabilities of the last part's tokens; () if none are wanted."""
        logprobs = tuple(self._of_prompt)
        self._of_prompt = []
        return logprobs

    def taken(self, tokens: int) -> tuple[TokenLogprob, ...]:
        """Returns and clears the log-probabilities of the last step's first `tokens` tokens; () if none are wanted."""
        logprobs = tuple(self._logprobs[:tokens])
        self._logprobs = []
        return logprobs

    def fitted(self, tree: ProposalTree, budget: int) -> ProposalTree:
        """Fits a tree to the constraint: drops forbidden nodes, and adds texts that may follow the root or a leaf.

        The only text that may follow the root displaces other nodes; nothing else does. The tree only
        decides how fast the answer is found, so a slow constraint gets a smaller one (FIT_SECONDS).
        """
        rule = self.constraint
        if rule is None or rule.ended:
            return tree
        began = time.thread_time()
        deadline = began + FIT_SECONDS
        tree = _without_forbidden(tree, rule, deadline)
        at_root = [tokens[:budget] for tokens in rule.continuations()]
        if len(at_root) == 1:
            tree = tree.top(max(1, budget - len(at_root[0])))
        waiting = deque([0, *_leaves(tree)])
        while waiting and len(tree) < budget and time.thread_time() < deadline:
            node = waiting.popleft()
            texts = rule.continuations(_path(tree, node)) if node else at_root
            for tokens in texts:
                chain = ProposalTree.chain(torch.tensor([0, *tokens[:budget]]), origin=FORCED)
                tree = tree.merge(chain, at=node, budget=budget)
                last = node
                for token in tokens:
                    last = tree.children.get((last, token), 0)
                if last:
                    waiting.append(last)
        self.seconds = time.thread_time() - began
        return tree

    def _begin(self, logits: Tensor) -> None:
        """Makes the counts and biases on the device of the logits."""
        self._counts, self._bias = logits.new_zeros(2, logits.shape[-1], dtype=torch.float32)
        self._seen = self._counts.bool()
        self._seen.index_fill_(0, torch.tensor(self._prompt, device=logits.device), True)
        for token, bias in (self.options.logit_bias or {}).items():
            self._bias[token] = bias


def logprobs_of(logits: Tensor, tokens: Tensor, top: int) -> list[TokenLogprob]:
    """Returns the log-probabilities of tokens [n] int64 by their logits [n, V], with the `top` most probable tokens."""
    logs = logits.float().log_softmax(-1)
    drawn = logs.gather(1, sent(tokens, logs.device)[:, None])[:, 0]
    best_logs, best = logs.topk(top)
    logprobs = []
    for token, log, *pairs in zip(tokens.tolist(), drawn.tolist(), best.tolist(), best_logs.tolist(), strict=True):
        logprobs.append(TokenLogprob(token, log, tuple(zip(*pairs, strict=True))))
    return logprobs


@dataclass(frozen=True)
class Shaped:
    """A rule that draws from the shaped logits at each node of the walk, and at no other node.

    It also replaces rejection sampling and typical acceptance: its answers are plain decoding's.
    """

    rule: DrawThenWalk
    shaping: Shaping

    @property
    def guesses(self) -> DrawThenWalk:
        return self.rule.guesses

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        """Draws and walks.  The walk may stop before a leaf (WALK_SECONDS); the next step goes on from there."""
        began = time.thread_time()

        def draw_and_advance(node: int) -> int:
            row = logits[node : node + 1]
            try:
                drawn = self.rule.draw(self.shaping.shaped(row), sent(positions[node : node + 1], row.device))
                token = checked(int(self.rule.marked(row, drawn)))
                self.shaping.advance(token, row)
            except DeadEnd:
                if node:
                    return DEAD
                raise
            return token

        path, token = walk(tree, draw_and_advance, lambda: time.thread_time() < began + WALK_SECONDS)
        self.shaping.seconds += time.thread_time() - began
        # The answer may end before a dead end, at a stop string. If it does not, the next step raises.
        if token == DEAD:
            return path[:-1], int(tree.tokens[path[-1]])
        return path, token


def _without_forbidden(tree: ProposalTree, constraint: Constraint, deadline: float) -> ProposalTree:
    """Returns the tree without nodes that the constraint forbids, as far as `deadline` allows to look."""
    allowed = {0}
    for leaf in _leaves(tree):
        nodes = _nodes(tree, leaf)
        allowed.update(nodes[: constraint.accepted(tree.tokens[nodes].tolist(), deadline)])
    if len(allowed) == len(tree):
        return tree
    return tree.select(sorted(allowed))


def _leaves(tree: ProposalTree) -> list[int]:
    """Returns the leaves below the root, the most probable first and those without an estimate last."""
    inner = set(tree.parents.tolist())
    scores = tree.scores.tolist()
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
