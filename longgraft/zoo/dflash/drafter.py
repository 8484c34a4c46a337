"""DFlash (arXiv 2602.06036): one forward drafts all tokens of a block: as a chain, a tree, or with a retrieved tail."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch import Tensor

from longgraft.acceptance.rules import DrawThenWalk, Greedy
from longgraft.protocol.proposer import Ask, Retriever, memories_of
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import on_host
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.zoo.dflash.cache import DFlashCache


def products(root: int, tokens: Tensor, logs: Tensor, budget: int) -> ProposalTree:
    """Returns a tree of the most probable paths: `budget` nodes, root included, best first; fewer if there are no more.

    DDTree (arXiv 2604.12989): best-first search over rank paths, whose probabilities are products, so that
    after a path only its next sibling and its first child are new candidates.

    Args:
        tokens: [L, K] int64, candidates at each of L positions after the root, distinct, best first.
        logs: [L, K] float32, their log-probabilities; both on the host.  Of equally probable paths the one
            reached first wins.
    """
    ids = tokens.tolist()
    gains = logs.tolist()
    built = [root]
    parents = [-1]
    scores = [0.0]
    depths = [0]
    # (negative score, order of arrival, parent, rank); a node's next sibling enters when the node is taken.
    waiting: list[tuple[float, int, int, int]] = []
    arrived = 0

    def offer(parent: int, rank: int) -> None:
        nonlocal arrived
        depth = depths[parent]
        if depth < len(ids) and rank < len(ids[depth]):
            heappush(waiting, (-scores[parent] - gains[depth][rank], arrived, parent, rank))
            arrived += 1

    offer(0, 0)
    while waiting and len(built) < budget:
        minus, _, parent, rank = heappop(waiting)
        built.append(ids[depths[parent]][rank])
        parents.append(parent)
        scores.append(-minus)
        depths.append(depths[parent] + 1)
        offer(parent, rank + 1)
        offer(len(built) - 1, 0)
    return ProposalTree.build(built, parents, scores, [ROOT] + [DRAFT] * (len(built) - 1))


@dataclass(frozen=True)
class Drawn:
    """The tokens of a block after the root, on the host."""

    tokens: Tensor  # [L] int64, drawn independently
    logs: Tensor  # [L] float32, their log-probabilities
    surest: Tensor  # [L] float32, the log-probabilities of each position's most probable token


class DFlashDrafter:
    """A proposer of the block as a chain.

    Attributes:
        coupled: Draw with the request's own draws instead of taking each position's most probable token.
    """

    def __init__(self, memory: DFlashCache, coupled: bool = False, clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.coupled = coupled
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        return drawn_chain(ask.root, self.drawn(ask))

    @torch.inference_mode()
    def drawn(self, ask: Ask) -> Drawn:
        """Draws the block's tokens, at most as many as the budget has room for."""
        if ask.budget < 2:
            return Drawn(torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(0))
        logits = self.memory.guesses(ask.root)[: ask.budget - 1]
        with self.clock.part("draft"):
            positions = torch.arange(ask.position + 1, ask.position + 1 + len(logits), device=logits.device)
            rule: DrawThenWalk = ask.draws
            if not self.coupled:
                rule = Greedy()
            tokens = rule.draw(logits, positions)
            log_probs = logits.float().log_softmax(-1)
            # One copy to the host: float64 holds ids and float32 numbers exactly.
            record = torch.stack(
                [tokens.double(), log_probs.gather(1, tokens[:, None])[:, 0].double(), log_probs.amax(-1).double()]
            ).cpu()
        return Drawn(record[0].long(), record[1].float(), record[2].float())


class DFlashTreeDrafter:
    """A proposer of the most probable paths of the block's positions, as if these were independent (DDTree,
    2604.12989)."""

    def __init__(self, memory: DFlashCache, clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.clock = clock or Clock()

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        logits = self.memory.guesses(ask.root)
        with self.clock.part("draft"):
            logs, tokens = logits.float().log_softmax(-1).topk(min(ask.budget - 1, logits.shape[-1]))
            record = torch.stack([tokens.double(), logs.double()]).cpu()
        with self.clock.part("merge"):
            return products(ask.root, record[0].long(), record[1].float(), ask.budget)


class GraftedDFlashDrafter:
    """A proposer of the block up to its first unsure token, then a retrieved chain, then the block's own tokens again.

    Source: Graft (arXiv 2605.20104), App. F.

    Attributes:
        threshold: A position is unsure if its most probable token is less probable than this.
        both: Keep the whole block, and make the retrieved chain a branch where the block would have been cut.
    """

    def __init__(self, drafter: DFlashDrafter, retriever: Retriever, threshold: float, both: bool = False) -> None:
        self.drafter = drafter
        self.retriever = retriever
        self.threshold = threshold
        self.both = both
        self.memories = memories_of([drafter, retriever])
        self.clock = drafter.clock

    def propose(self, ask: Ask) -> ProposalTree:
        drawn = self.drafter.drawn(ask)
        chain = drawn_chain(ask.root, drawn)
        sure_nodes = sure(drawn.surest, self.threshold)
        slots = ask.budget - (len(chain) if self.both else 1 + sure_nodes)
        retrieved = on_host(self.retriever.candidates(int(chain.tokens[sure_nodes]), slots))
        if len(retrieved) == 1:
            return chain
        with self.clock.part("merge"):
            if self.both:
                return chain.merge(retrieved, at=sure_nodes, budget=ask.budget)
            cut = chain.select(list(range(1 + sure_nodes))).merge(retrieved, at=sure_nodes, budget=ask.budget)
            return followed(cut, chain.tokens[len(cut) :])


def sure(surest: Tensor, threshold: float) -> int:
    """Returns how many log-probabilities [L] come before the first whose probability is below the threshold."""
    unsure = (surest.exp() < threshold).nonzero()
    if len(unsure):
        return int(unsure[0])
    return len(surest)


def drawn_chain(root: int, drawn: Drawn) -> ProposalTree:
    """Returns the drawn tokens as a chain; a path's score is the sum of its tokens' log-probabilities."""
    n = len(drawn.tokens)
    return ProposalTree.build(
        [root, *drawn.tokens.tolist()], list(range(-1, n)), [0.0, *drawn.logs.cumsum(0).tolist()], [ROOT] + [DRAFT] * n
    )


def followed(chain: ProposalTree, tokens: Tensor) -> ProposalTree:
    """Appends drafted tokens to the chain, without a score (nan)."""
    n = len(chain)
    return ProposalTree.build(
        [*chain.tokens.tolist(), *tokens.tolist()],
        list(range(-1, n + len(tokens) - 1)),
        chain.scores.tolist() + [float("nan")] * len(tokens),
        chain.origin.tolist() + [DRAFT] * len(tokens),
    )
