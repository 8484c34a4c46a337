"""SAM-Decoding (arXiv 2411.10666): copies, as a chain, what followed the first occurrence of the longest match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Checked, option
from longgraft.config.settings import Drafting
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import RETRIEVED, ProposalTree
from longgraft.zoo.either import Either, matched
from longgraft.zoo.token_recycling import recycling

SAM = "SAM-Decoding (arXiv 2411.10666)"
LINK = -1  # in the undo log in place of a token: a suffix link was changed


Mark = tuple[int, int, int, int]
"""Numbers of tokens, of states and of logged changes, and the state of the whole text."""


class SuffixAutomaton(Memory):
    """The textbook's online suffix automaton: a state stands for all strings that end at the same places of the text.

    A state has transitions, a suffix link, the length of its longest string, and the place where that first
    ended.  The whole text's state links to the longest end of the text that occurred before, so no match has
    to be stored.  From the first mark on, changes of older states are logged for `rewind`.
    """

    name = "automaton"

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._last = 0
        # (state, token or LINK, previous target; -1: none).
        self._undo: list[tuple[int, int, int]] | None = None

    def observe_prediction(self, tokens: Tensor) -> None:
        self.extend(tokens.tolist())
        # The separator is unique, so no string that contains it occurs again.
        self.extend([LINK - 1 - len(self.text)])

    def observe(self, seen: Observation) -> None:
        self.extend(seen.kept.tolist())

    def following(self, at: int, most: int) -> list[int]:
        """Returns up to `most` tokens from `at` on, up to the end of the prediction or of the text."""
        tokens = self.text[at : at + max(0, most)]
        return tokens[: next((n for n, token in enumerate(tokens) if token < 0), len(tokens))]

    def after(self, root: int, least: int = 0) -> tuple[int, int]:
        """Finds the longest earlier match of the text's end followed by `root`.

        Args:
            least: If fewer tokens follow, the index is that of a shorter match, if there is one.

        Returns:
            (tokens of the match, index after its first occurrence); (0, length of the text) without a match.
        """
        state = max(self._link[self._last], 0)
        while state and root not in self._next[state]:
            state = self._link[state]
        match = self._length[state] + 1
        following = self._next[state].get(root)
        if following is None:
            return 0, len(self.text)
        while self._link[following] and len(self.text) - self._end[following] < least:
            following = self._link[following]
        return match, self._end[following]

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends committed tokens, in order."""
        follow = self._next
        link = self._link
        length = self._length
        undo = self._undo
        for token in tokens:
            self.text.append(token)
            state = self._last
            whole = self._state({}, len(self.text), len(self.text))
            while state >= 0 and token not in follow[state]:
                follow[state][token] = whole
                if undo is not None:
                    undo.append((state, token, -1))
                state = link[state]
            if state >= 0:
                target = follow[state][token]
                if length[target] > length[state] + 1:
                    target = self._split(target, state, token)
                link[whole] = target
            self._last = whole

    def _split(self, target: int, state: int, token: int) -> int:
        """Splits off a state for those strings of `target` that also end here."""
        follow = self._next
        link = self._link
        part = self._state(follow[target].copy(), self._length[state] + 1, self._end[target], link[target])
        undo = [] if self._undo is None else self._undo
        while state >= 0 and follow[state].get(token) == target:
            follow[state][token] = part
            undo.append((state, token, target))
            state = link[state]
        undo.append((target, LINK, link[target]))
        link[target] = part
        return part

    def _state(self, follow: dict[int, int], length: int, end: int, link: int = 0) -> int:
        self._next.append(follow)
        self._length.append(length)
        self._end.append(end)
        self._link.append(link)
        return len(self._next) - 1

    def mark(self) -> Mark:
        if self._undo is None:
            self._undo = []
        return len(self.text), len(self._next), len(self._undo), self._last

    def rewind(self, mark: Mark) -> None:
        assert self._undo is not None
        tokens, states, undone, self._last = mark
        while len(self._undo) > undone:
            state, token, before = self._undo.pop()
            if token == LINK:
                self._link[state] = before
            elif before < 0:
                del self._next[state][token]
            else:
                self._next[state][token] = before
        for column in (self._next, self._link, self._length, self._end):
            del column[states:]
        del self.text[tokens:]

    def release(self) -> None:
        self.reset(0)


class SamChain:
    """A proposer of a chain; `match` is always the length of the longest match.

    Attributes:
        length: Most nodes, root included.
        growth: Drafted tokens per token of the match (4 for the authors' retrieval alone); None: always `length`
            tokens, from a shorter match if too few follow the longest (the authors' choice beside a drafter).
    """

    def __init__(
        self, automaton: SuffixAutomaton, length: int = 60, growth: float | None = 4.0, clock: Clock | None = None
    ) -> None:
        self.memories = (automaton,)
        self._automaton = automaton
        self.length = length
        self.growth = growth
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            most = min(self.length, ask.budget)
            least = 0
            if self.growth is None:
                least = most
            match, at = self._automaton.after(ask.root, least)
            if self.growth is not None:
                most = min(most, 1 + int(self.growth * match))
            chain = ProposalTree.chain(torch.tensor([ask.root, *self._automaton.following(at, most - 1)]), RETRIEVED)
            return replace(chain, match=torch.tensor([0] + [match] * (len(chain) - 1)))


@dataclass(frozen=True)
class SamdChoices(Checked):
    """Choices of `samd`."""

    growth: Annotated[float, Ge(0), Le(64)] = option(
        4.0, "Drafted tokens per token of the match", source="the authors' code"
    )


@dataclass(frozen=True)
class SamdRouteChoices(Checked):
    """Choices of `samd-recycling`, and some of `samd-eagle3`."""

    threshold: Annotated[int, Ge(1), Le(4096)] = option(
        5,
        "Tokens of a match from which its chain is verified instead of a tree",
        unit="tokens",
        source="the authors' code",
    )
    length: Annotated[int, Ge(2), Le(4096)] = option(
        40, "Nodes of the chain, root included", source="the authors' code"
    )


@dataclass(frozen=True)
class SamdDraftChoices(Drafting, SamdRouteChoices):
    """Choices of `samd-eagle3`."""


def _automaton(p: Parts, length: int = 60, growth: float | None = None) -> SamChain:
    return SamChain(p.once("automaton", SuffixAutomaton), length, growth, p.clock)


def _routed(p: Parts, fallback: Proposer) -> Either:
    threshold = p.choices.threshold
    return Either(_automaton(p, p.choices.length), fallback, matched, lambda _: threshold)


ALONE = Method(
    "samd",
    "what followed the first occurrence of the longest match",
    SAM,
    lambda p: _automaton(p, growth=p.choices.growth),
    choices=SamdChoices(),
    looks_up=True,
)
OR_RECYCLING = Method(
    "samd-recycling",
    "the same where the match is long, else token-recycling",
    SAM,
    lambda p: _routed(p, recycling(p)),
    budget=81,
    choices=SamdRouteChoices(),
    looks_up=True,
)
OR_EAGLE3 = Method(
    "samd-eagle3",
    "the same where the match is long, else eagle3's tree",
    SAM,
    lambda p: _routed(p, drafter(p)),
    (HEAD,),
    choices=SamdDraftChoices(),
)
