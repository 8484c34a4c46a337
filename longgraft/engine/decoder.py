"""The loop after the prompt: propose, verify, observe.  Knows verifier, proposer and text; knows no method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.stats import Tally
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree

FinishReason = Literal["stop", "length", "eos", "cancelled"]


@dataclass(frozen=True)
class Step:
    """What one step brought.

    read:    prompt tokens that were read; 0 of a decoding step
    reused:  of these, how many an earlier prompt had brought
    tokens:  new tokens; origins: who proposed each (bits of `ProposalTree.origin`; ROOT: the target alone)
    text:    new text that is certain: bytes that are no character yet and the beginning of a stop string are held back
    tree, path: what a decoding step verified, and the nodes that it kept, the root first; None and () of a prompt's
    """

    read: int = 0
    tokens: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    text: str = ""
    tree: ProposalTree | None = None
    path: tuple[int, ...] = ()
    reused: int = 0


@dataclass(frozen=True)
class Goal:
    """When an answer ends: after `limit` tokens, with an end token, or before a stop string."""

    limit: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()


class Decoder:
    """The loop after the prompt: propose, verify, observe.  Counts what it emits.

    goal.stop is looked for in the text, where there is one; a tree is cut to the depth that can still be emitted, so
    that no position beyond the last is ever used.
    """

    def __init__(self, verifier: Verifier, proposer: Proposer, budget: int, goal: Goal,
                 text: Detokenizer | None = None) -> None:
        self.verifier, self.proposer, self.budget, self.goal, self.text = verifier, proposer, budget, goal, text
        self.wants = Wants.union(memory.wants for memory in proposer.memories)
        self.tally = Tally()
        self.finish_reason: FinishReason | None = None
        self._root = -1

    def begin(self, root: int) -> Step:
        """The token that the prefill drew, which is the first new one."""
        self._root = root
        _, text = self._cut([root])
        self.tally.first()
        return Step(tokens=(root,), origins=(ROOT,), text=text)

    def step(self) -> Step:
        """One verification pass."""
        left = self.goal.limit - self.tally.new_tokens
        ask = Ask(self._root, self.budget, self.verifier.cache.position, self.verifier.rule.guesses)
        tree = self.proposer.propose(ask).shallower(left - 1)
        seen = self.verifier.verify(tree, self.wants)
        path = seen.path.tolist()
        new, text = self._cut([*seen.kept[1:].tolist(), seen.next_token])
        self.tally.count(seen.tree, path, len(new))
        if self.finish_reason is None:
            self.observe(seen)
        self._root = seen.next_token
        origins = [*seen.tree.origin[seen.path[1:]].tolist(), ROOT]
        return Step(tokens=tuple(new), origins=tuple(origins[:len(new)]), text=text, tree=seen.tree, path=tuple(path))

    def observe(self, seen: Observation) -> None:
        """Show it to every memory."""
        for memory in self.proposer.memories:
            memory.observe(seen)

    def _cut(self, new: list[int]) -> tuple[list[int], str]:
        """(new tokens up to the one that ends the answer, if any, and their text); sets the finish reason."""
        end = next((i for i, token in enumerate(new) if token in self.goal.eos), None)
        if end is not None:
            new, self.finish_reason = new[:end + 1], "eos"
        elif self.tally.new_tokens + len(new) >= self.goal.limit:
            self.finish_reason = "length"
        if self.text is None:
            return new, ""
        pieces = []
        for n, token in enumerate(new, 1):
            if token not in self.goal.eos:      # some tokenizers would spell it
                pieces.append(self.text.push([token]))
            if self.text.stopped:
                new, self.finish_reason = new[:n], "stop"
                break
        if self.finish_reason is not None:
            pieces.append(self.text.finish())
            if self.text.stopped:       # a stop string that only the last, held back bytes complete
                self.finish_reason = "stop"
        return new, "".join(pieces)
