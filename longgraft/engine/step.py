"""The result of one step of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.trees.tree import ProposalTree

FinishReason = Literal["stop", "length", "eos", "cancelled"]


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Attributes:
        read: Prompt tokens read; 0 in a decode step.
        tokens: New tokens.
        origins: For each new token the sources that proposed it (bits of `ProposalTree.origin`); ROOT: only
            the target.
        text: New text that is final: incomplete characters and the beginning of a stop string are held back.
        tree: The verified tree of a decode step; None in a prefill step.
        path: Its accepted nodes, the root first; () in a prefill step.
        reused: How many of the read tokens were recalled from an earlier prompt.
        logprobs: One entry per new token, if they were asked for.
        prompt_logprobs: One entry for each token of the prompt that follows one of those read, if they were
            asked for.
    """

    read: int = 0
    tokens: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    text: str = ""
    tree: ProposalTree | None = None
    path: tuple[int, ...] = ()
    reused: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the step's pass; 1 if it ran none."""
        if self.tree is not None:
            return len(self.tree)
        return max(1, self.read - self.reused)
