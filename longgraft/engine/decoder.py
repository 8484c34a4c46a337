"""The decoding loop: propose, verify, observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longgraft.acceptance.shaping import Shaping, TokenLogprob
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.stats import Tally
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import SINGLE_REQUEST, Ask, BatchLoad, Proposer
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import on_host
from longgraft.trees.tree import ROOT, ProposalTree

FinishReason = Literal["stop", "length", "eos", "cancelled"]


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Attributes:
        read: Prompt tokens read; 0 in a decode step.
        tokens: New tokens.
        origins: For each new token the sources that proposed it (bits of `ProposalTree.origin`); ROOT: only the target.
        text: New text that is final: incomplete characters and the beginning of a stop string are held back.
        tree: The verified tree of a decode step; None in a prefill step.
        path: Its accepted nodes, the root first; () in a prefill step.
        reused: How many of the read tokens were recalled from an earlier prompt.
        logprobs: One entry per new token, if they were asked for.
        prompt_logprobs: One entry for each token of the prompt that follows one of those read, if they were asked for.
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


@dataclass(frozen=True)
class Goal:
    """The end of an answer: after `limit` tokens, with an end token (`eos`) or stop token, or before a stop string."""

    limit: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    @property
    def last_tokens(self) -> frozenset[int]:
        """The tokens with which the answer ends; its text ends before them."""
        return self.eos | self.stop_tokens


class Decoder:
    """The decoding loop: propose, verify, observe.  It counts what it emits.

    Stop strings are searched in the text, if there is a detokenizer.  A tree is cut to the depth that can still be
    emitted, so that no position beyond the limit is ever used.
    """

    def __init__(self, verifier: Verifier, proposer: Proposer, budget: int, goal: Goal,
                 text: Detokenizer | None = None, shaping: Shaping | None = None) -> None:
        self.verifier, self.proposer, self.budget, self.goal, self.text = verifier, proposer, budget, goal, text
        self.shaping = shaping
        self.wants = Wants.union(memory.wants for memory in proposer.memories)
        self.tally = Tally()
        self.finish_reason: FinishReason | None = None
        self._root = -1

    def begin(self, root: int) -> Step:
        """Starts with the first new token, which the prefill drew."""
        self._root = root
        _, text = self._cut([root])
        self.tally.first()
        return Step(tokens=(root,), origins=(ROOT,), text=text, logprobs=self._logprobs(1))

    def step(self, batch: BatchLoad = SINGLE_REQUEST) -> Step:
        """Proposes and verifies one tree."""
        left = self.goal.limit - self.tally.new_tokens
        ask = Ask(self._root, self.budget, self.verifier.cache.position, self.verifier.rule.guesses,
                  batch=batch)
        # Nothing is proposed for the last token, because the pass after it is never run.
        tree = self.proposer.propose(ask) if left > 1 else ProposalTree.root_only(self._root)
        if self.shaping is not None:
            tree = self.shaping.fitted(on_host(tree), self.budget)
        tree = tree.shallower(left - 1)
        seen = self.verifier.verify(tree, self.wants)
        path = seen.path.tolist()
        new, text = self._cut([*seen.kept[1:].tolist(), seen.next_token])
        self.tally.count(seen.tree, path, len(new))
        if self.finish_reason is None:
            self.observe(seen)
        self._root = seen.next_token
        origins = [*seen.tree.origin[seen.path[1:]].tolist(), ROOT]
        return Step(tokens=tuple(new), origins=tuple(origins[:len(new)]), text=text, tree=seen.tree, path=tuple(path),
                    logprobs=self._logprobs(len(new)))

    def observe(self, seen: Observation) -> None:
        """Passes an observation to every memory."""
        for memory in self.proposer.memories:
            memory.observe(seen)

    def _logprobs(self, tokens: int) -> tuple[TokenLogprob, ...]:
        return () if self.shaping is None else self.shaping.taken(tokens)

    def _cut(self, new: list[int]) -> tuple[list[int], str]:
        """Cuts new tokens after the one that ends the answer, if any; returns them and their text.

        Sets the finish reason.
        """
        last_tokens = self.goal.last_tokens
        end = next((i for i, token in enumerate(new) if token in last_tokens), None)
        if end is not None:
            new, self.finish_reason = new[:end + 1], "eos" if new[end] in self.goal.eos else "stop"
        elif self.tally.new_tokens + len(new) >= self.goal.limit:
            self.finish_reason = "length"
        if self.text is None:
            return new, ""
        pieces = []
        for n, token in enumerate(new, 1):
            if token not in last_tokens:        # some tokenizers would decode it to text
                pieces.append(self.text.push([token]))
            if self.text.stopped:
                new, self.finish_reason = new[:n], "stop"
                break
        if self.finish_reason is not None:
            pieces.append(self.text.finish())
            if self.text.stopped:       # the held-back last bytes may complete a stop string
                self.finish_reason = "stop"
        return new, "".join(pieces)
