"""Speculative decoding with a smaller model that drafts a chain.

Sources: Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from longgraft.acceptance.rejection import DRAFTED
from longgraft.acceptance.rules import DrawThenWalk
from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.small_model import SMALL, DraftModelCache, small_model

SPS = "Speculative decoding (arXiv 2211.17192, 2302.01318)"


@dataclass(frozen=True)
class SpsChoices(Checked):
    """Choices of a small model's chains."""

    schedule: Literal["constant", "heuristic"] = option(
        "constant",
        "How many tokens are drafted: all that fit, or two more after a step that "
        "accepted all and one fewer after others",
        source="Spec-Bench",
    )


class DraftLength(Memory):
    """The number of tokens to draft, by transformers' heuristic schedule (Spec-Bench's).

    It rises by two after a step that accepted all, and falls by one after any other, to one at least.
    """

    name = "draft length"

    def __init__(self, first: int = 5) -> None:
        self.first = self.tokens = first

    def reset(self, capacity: int) -> None:
        self.tokens = self.first

    def observe(self, seen: Observation) -> None:
        drafted = len(seen.tree) - 1  # may be fewer than `tokens`, if no more fitted
        if not seen.prompt and drafted:
            if len(seen.path) == len(seen.tree):
                self.tokens = drafted + 2
            else:
                self.tokens = max(1, drafted - 1)

    def mark(self) -> int:
        return self.tokens

    def rewind(self, mark: int) -> None:
        self.tokens = mark


class DraftModelChain:
    """A drafter of as many tokens as fit the budget, at most those of `length`.

    Attributes:
        coupled: True: drafts are drawn with the noise of the target's own draws, and follow from the past; False: for
            requests that sample, they are drawn with independent noise, and the tree holds the distributions.
    """

    def __init__(
        self,
        small: DraftModelCache,
        length: DraftLength | None = None,
        coupled: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.memories = (small,) if length is None else (small, length)
        self.small = small
        self.length = length
        self.coupled = coupled
        self.clock = clock or Clock()

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        # Tokens at positions beyond the small model's last are never drafted.
        count = min(ask.budget - 1, (self.small.positions or ask.position) - ask.position)
        if self.length is not None:
            count = min(count, self.length.tokens)
        if count < 1:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            own_draws = None
            if not self.coupled and ask.draws.sampled is not None:
                own_draws = ask.draws.sampled.apart(DRAFTED)
            tokens, logits = self._drafted(ask, own_draws or ask.draws, count)
            law = None
            if own_draws is not None:
                drawn_from = own_draws.warp(logits).softmax(-1)
                law = torch.cat([torch.zeros_like(drawn_from[:1]), drawn_from])
            gains = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            # One copy to the host: float64 holds ids and float32 scores exactly.
            ids, scores = torch.stack([tokens.double(), gains.cumsum(0).double()]).cpu()
        chain = ProposalTree.chain(torch.cat([torch.tensor([ask.root]), ids.long()]))
        return ProposalTree(
            chain.tokens, chain.parents, torch.cat([chain.scores[:1], scores.float()]), chain.origin, law=law
        )

    def _drafted(self, ask: Ask, draws: DrawThenWalk, count: int) -> tuple[Tensor, Tensor]:
        """Returns (tokens [count] int64, the logits that each was drawn from [count, V]), on the model's device."""
        self.small.begin()
        token = torch.tensor([ask.root])
        tokens = list[Tensor]()
        rows = list[Tensor]()
        for ahead in range(1, count + 1):
            logits = self.small.extend(token)[None]
            token = draws.draw(logits, torch.full((1,), ask.position + ahead, device=logits.device))
            tokens.append(token)
            rows.append(logits)
        return torch.cat(tokens), torch.cat(rows)


def chain(p: Parts, coupled: bool) -> Proposer:
    """A small model's chain."""
    length = None
    if p.choices.schedule == "heuristic":
        length = p.once("draft-length", DraftLength)
    return DraftModelChain(small_model(p), length, coupled, p.clock)


INDEPENDENT = Method(
    "sps",
    "a chain that a smaller model draws, accepted with min(1, p / q)",
    SPS,
    lambda p: chain(p, False),
    (SMALL,),
    "distribution",
    budget=6,
    choices=SpsChoices(),
)
COUPLED = Method(
    "sps-gumbel",
    "the same, drawn with the noise of the target's own draws",
    "arXiv 2408.07978",
    lambda p: chain(p, True),
    (SMALL,),
    budget=6,
    choices=SpsChoices(),
)
