"""SuffixDecoding (arXiv 2411.04975): the most frequent continuations of the text's end, in this request and
in earlier answers.

The authors' suffix trees with counts are computed from the text itself: a node is the set of places where a
string occurs, and all nodes up to the longest match are found by one comparison with the text and ever
smaller gathers.  Counts, and so drafts, are those of the authors' trees, except that no draft ends at a depth
limit, and that long matches are distinguished at the newest COMPARED places only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Ge, Le

from longgraft.config.options import Checked, Share, option
from longgraft.memories.past_answers import PastAnswers
from longgraft.memories.token_history import TokenHistory, unbroken
from longgraft.methods.building import history
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

SUFFIX = "SuffixDecoding (arXiv 2411.04975)"
AUTHORS = "ArcticInference's default"
# Tokens of a match that are compared one by one; the rest is compared at once, at the few places left.
SIFTED = 4
COMPARED = 512  # newest places at which longer matches are compared; a repetitive text has thousands


class Text(Protocol):
    """A memory that holds tokens in order."""

    def whole(self, root: int) -> np.ndarray:
        """Returns [t + 1] int64, the root last; negative where there is no token."""


@dataclass(frozen=True)
class Speculation(Checked):
    """The rule for how many tokens are drafted after a match."""

    depth: Annotated[int, Ge(1), Le(4096)] = option(64, "Tokens of a match at most", unit="tokens", source=AUTHORS)
    factor: Annotated[float, Ge(0), Le(64)] = option(1.0, "Drafted tokens per token of the match", source=AUTHORS)
    offset: Annotated[float, Ge(-64), Le(64)] = option(0.0, "Drafted tokens beyond those", source=AUTHORS)
    least: Share = option(0.1, "Least probability of a drafted path", source=AUTHORS)

    def tokens(self, match: int) -> int:
        """Returns the most tokens that are drafted after a match of `match` tokens."""
        return max(0, int(self.factor * match + self.offset + 1e-6))


@dataclass(frozen=True)
class _Draft:
    """A draft after one match; the root has index 0.

    Attributes:
        match: Length of the context's match, in tokens.
        tokens, parents, probabilities: Those of the nodes below the root.
    """

    match: int
    tokens: list[int]
    parents: list[int]
    probabilities: list[float]

    @property
    def score(self) -> float:
        """Expected accepted tokens, if counts are taken as probabilities."""
        return sum(self.probabilities)


NOTHING = _Draft(0, [], [], [])


class SuffixDecoding:
    """A proposer of the text's draft with the most expected tokens, the first of ties; scores are log shares
    of counts."""

    def __init__(self, texts: tuple[Text, ...], rule: Speculation | None = None, clock: Clock | None = None) -> None:
        self.memories: tuple[Memory, ...] = texts  # type: ignore[assignment]
        self._texts = texts
        self.rule = rule or Speculation()
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            best = NOTHING
            context = self._texts[0].whole(ask.root)[-self.rule.depth :]
            context = unbroken(context[::-1])[::-1]
            for text in self._texts:
                candidate = drafted(text.whole(ask.root), context, self.rule, ask.budget - 1)
                best = max(best, candidate, key=lambda draft: draft.score)
            n = len(best.tokens)
            return ProposalTree.build(
                [ask.root, *best.tokens],
                [-1, *best.parents],
                [0.0, *map(math.log, best.probabilities)],
                [ROOT] + [RETRIEVED] * n,
                match=[0] + [best.match] * n,
            )


def drafted(text: np.ndarray, context: np.ndarray, rule: Speculation, most: int) -> _Draft:
    """Returns the draft with the highest score over all matches of the context's end in the text.

    It has at most `most` tokens; of ties the longest match wins.
    """
    places, matches = occurrences(text, context)
    best = NOTHING
    # Match lengths in between have the same places as the next longer one, which may draft more.
    for match in np.unique(matches)[::-1].tolist():
        tokens = min(most, rule.tokens(match))
        if best.score >= tokens:  # no shorter match can score more
            break
        best = max(best, _draft(text, places[matches >= match], match, tokens, rule.least), key=lambda d: d.score)
    return best


def occurrences(text: np.ndarray, context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (indices in the text after each match of the context's end, ascending; length of each match).

    The text's own end is included, because a node of a suffix tree counts it.
    """
    places = np.flatnonzero(text == context[-1]) + 1
    matches = np.ones(len(places), dtype=np.int64)
    alive = np.arange(len(places))
    for n in range(1, min(SIFTED, len(context))):
        at = places[alive] - 1 - n
        alive = alive[(text[np.maximum(at, 0)] == context[-1 - n]) & (at >= 0)]
        matches[alive] = n + 1
    alive = alive[-COMPARED:]
    if len(alive) and len(context) > SIFTED:
        at = places[alive, None] - 1 - np.arange(SIFTED, len(context))
        same = (text[np.maximum(at, 0)] == context[-1 - SIFTED :: -1]) & (at >= 0)
        matches[alive] += np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return places, matches


def _draft(text: np.ndarray, places: np.ndarray, match: int, most: int, least: float) -> _Draft:
    """Drafts the best paths first; a path's probability is the product of the shares of its tokens."""
    draft = _Draft(match, [], [], [])
    entered = 0
    # -probability, order, parent, token, places after it.
    heap: list[tuple[float, int, int, int, np.ndarray]] = []
    node = 0
    probability = 1.0
    while len(draft.tokens) < most:
        for token, share, after in _children(text, places, least / probability):
            entered += 1
            heappush(heap, (-probability * share, entered, node, token, after))
        if not heap:
            break
        negative, _, parent, token, places = heappop(heap)
        draft.tokens.append(token)
        draft.parents.append(parent)
        draft.probabilities.append(-negative)
        node = len(draft.tokens)
        probability = -negative
    return draft


def _children(text: np.ndarray, places: np.ndarray, least: float) -> list[tuple[int, float, np.ndarray]]:
    """Returns (token, its share of the places, the places after it) for tokens with at least the share `least`.

    The most frequent token comes first, and the newest of ties.
    """
    inside = places[places < len(text)]
    following = text[inside]
    if not len(inside):
        return []
    if (following == following[0]).all():  # the usual case; the shortcut takes a tenth of the time
        shares = [(int(following[0]), len(inside) / len(places), inside + 1)]
    else:
        tokens, newest, counts = np.unique(following[::-1], return_index=True, return_counts=True)
        order = np.lexsort((newest, -counts))[: np.count_nonzero(counts >= least * len(places))]
        shares = [(int(tokens[n]), counts[n] / len(places), inside[following == tokens[n]] + 1) for n in order]
    return [child for child in shares if child[0] >= 0 and child[1] >= least]


@dataclass(frozen=True)
class SuffixChoices(Speculation):
    """Choices of `suffix`."""

    outputs: Annotated[int, Ge(0), Le(2**26)] = option(
        2**18, "Tokens of earlier answers that are remembered; 0: none", unit="tokens"
    )


def suffix(p: Parts) -> SuffixDecoding:
    """Lookups in the history, and in earlier answers if any are remembered."""
    c = p.choices
    texts: tuple[TokenHistory | PastAnswers, ...] = (history(p),)
    if c.outputs:
        texts += (p.once(("outputs", c.outputs), lambda: PastAnswers(c.outputs)),)
    return SuffixDecoding(texts, c, p.clock)


METHODS: tuple[Method, ...] = (
    Method(
        "suffix",
        "what most often followed the longest matches, here and in earlier answers",
        SUFFIX,
        suffix,
        budget=17,
        choices=SuffixChoices(),
        looks_up=True,
    ),
)
