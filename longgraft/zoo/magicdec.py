"""MagicDec (arXiv 2408.11049): the target drafts for itself on a part of its cache.

Each drafted token costs a pass of the whole target, so it pays only if reading the cache takes longer than
reading the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.zoo.partial_kv import PartialKVCache, chain_length, partial
from longgraft.zoo.selection import Attended, Recent, Selector


class MagicDecDrafter:
    """A drafter of a chain of up to `length` tokens."""

    def __init__(self, target: Target, partial: PartialKVCache, length: int, clock: Clock | None = None) -> None:
        self.memories = (partial,)
        self.target = target
        self.partial = partial
        self.length = length
        self.clock = clock or Clock()
        partial.room(length)

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        length = chain_length(self.target, ask, self.length)
        if length < 1:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            cache = self.partial.fresh()
            committed = cache.length
            tokens = [ask.root]
            scores = [0.0]
            while len(tokens) <= length:
                token, score = self._next(ask, tokens)
                tokens.append(token)
                scores.append(scores[-1] + score)
            cache.crop(committed)
        return ProposalTree.build(tokens, [*range(-1, length)], scores, [ROOT] + [DRAFT] * length)

    def _next(self, ask: Ask, tokens: list[int]) -> tuple[int, float]:
        """Returns (the token after these, its log-probability)."""
        cache = self.partial.cache
        self.clock.ran("own")
        (report,) = self.target.run([Segment(ProposalTree.root_only(tokens[-1]), cache)], Wants())
        cache.keep(torch.tensor([0]))
        return ask.drawn(report.logits, len(tokens))


@dataclass(frozen=True)
class MagicDecChoices(Checked):
    """Choices of `magicdec`."""

    rows: Annotated[int, Ge(40), Le(1_000_000)] = option(
        512, "Rows kept of each head's cache", unit="rows", source="the paper has 257 to 4,097"
    )
    drafts: Annotated[int, Ge(1), Le(64)] = option(
        4, "Drafted tokens a step", unit="tokens", source="the paper has 3 to 7"
    )
    keep: Literal["attended", "recent"] = option(
        "attended",
        "Kept rows: those that the prompt's end attends to, or sinks and the newest",
        source="SnapKV, StreamingLLM",
    )

    def select(self) -> Selector:
        """Returns the selector of the kept rows."""
        if self.keep == "attended":
            return Attended(self.rows)
        return Recent(self.rows)


METHOD = Method(
    "magicdec",
    "the target drafts for itself on a part of its cache",
    "MagicDec (arXiv 2408.11049)",
    # Rows are selected once, at the prompt's end.
    lambda p: MagicDecDrafter(p.target, partial(p, p.choices.select()), p.choices.drafts, p.clock),
    budget=8,
    choices=MagicDecChoices(),
)
