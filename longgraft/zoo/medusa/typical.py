"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1): accepts tokens above a probability. Lossy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance.rules import AcceptanceRule, DrawThenWalk, Sampled, checked
from longgraft.runtime.devices import sent
from longgraft.trees.tree import ProposalTree


@dataclass(frozen=True)
class Typical:
    """A rule that accepts a node together with its parent if p(token) > min(epsilon, alpha * exp(-H(p))).

    The accepted path ends at the deepest accepted node; among equally deep ones the most probable path wins.
    The token after it is the target's own draw.
    """

    sampled: Sampled
    epsilon: float = 0.09
    alpha: float = 0.3

    @property
    def guesses(self) -> DrawThenWalk:
        return self.sampled.guesses

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        device = logits.device
        p = self.sampled.warp(logits).softmax(-1)
        thresholds = (self.alpha * torch.special.entr(p).sum(-1).neg().exp()).clamp(max=self.epsilon)
        parents = sent(tree.parents[1:], device)
        probabilities = p[parents, sent(tree.tokens[1:], device)]
        read = torch.stack([probabilities > thresholds[parents], probabilities.log()]).cpu()
        passed, logs = (column.tolist() for column in read)
        node = self._best(tree, passed, logs)
        path = [node]
        while path[-1]:
            path.append(int(tree.parents[path[-1]]))
        row = logits[node : node + 1]
        token = self.sampled.marked(row, self.sampled.draw(row, sent(positions[node : node + 1], device)))
        return torch.tensor(path[::-1]), checked(int(token))

    @staticmethod
    def _best(tree: ProposalTree, passed: list[float], logs: list[float]) -> int:
        """Returns the last node of the longest accepted path.

        Args:
            passed, logs: For each node but the root, if its token's probability is above the threshold, and
                its log-probability.
        """
        reached = {0: (0, 0.0)}  # depth and log-probability of the accepted nodes
        for node, parent in enumerate(tree.parents.tolist()[1:], 1):
            if passed[node - 1] and parent in reached:
                depth, log_probability = reached[parent]
                reached[node] = depth + 1, log_probability + logs[node - 1]
        return max(reached, key=lambda node: reached[node])


def typical(rule: AcceptanceRule, epsilon: float, alpha: float) -> AcceptanceRule:
    """Returns typical acceptance for sampled requests; greedy and replayed requests keep their exact rule."""
    if isinstance(rule, DrawThenWalk) and rule.sampled is not None:
        return Typical(rule.sampled, epsilon, alpha)
    return rule
