"""LogitSpec (arXiv 2507.01449): guesses after the root are the top-k at the position that produced the root."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from longgraft.memories.token_history import TokenHistory, unbroken
from longgraft.methods.building import history
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie

# Size of the last top-k, and nodes of the tree, root included: the official capacity.
WIDTH = 64
# (highest rank, tokens of a guess with its continuation); above these ranks the guess alone.
KEPT = ((8, 4), (32, 3))


class LastTopK(Memory):
    """The top-k at the position that produced the root; it is observed before it is used, so decoding stays exact."""

    name = "last top-k"

    def __init__(self, width: int) -> None:
        self.width = width
        self.wants = Wants(topk=width)
        self._topk: Tensor | None = None

    @property
    def tokens(self) -> list[int]:
        """[K] tokens, best first; none before the first observation."""
        if self._topk is None:
            return []
        return self._topk[: self.width].tolist()

    def reset(self, capacity: int) -> None:
        self._topk = None

    def observe(self, seen: Observation) -> None:
        last = int(seen.path[-1])
        row = None
        assert seen.topk is not None
        if seen.ranked is None:
            row = seen.topk[last]
        elif len(seen.ranked) and int(seen.ranked[-1]) == last:
            row = seen.topk[-1]  # otherwise the prompt goes on, and its next chunk repeats this token
        self._topk = row

    def mark(self) -> Tensor | None:
        return self._topk

    def rewind(self, mark: Tensor | None) -> None:
        self._topk = mark


class Rounds(Memory):
    """The text's length after the prompt and after each verified tree; it tells what the official pool held,
    and when."""

    name = "rounds"

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()

    def reset(self, capacity: int) -> None:
        self._sizes = ()

    def observe(self, seen: Observation) -> None:
        size = len(seen.path)
        if self._sizes:
            size += self._sizes[-1]
        if seen.prompt:
            self._sizes = ()
        self._sizes = (*self._sizes, size)

    def mark(self) -> tuple[int, ...]:
        return self._sizes

    def rewind(self, mark: tuple[int, ...]) -> None:
        self._sizes = mark

    def pooled(self, ends: np.ndarray, ngram: int, length: int, before: int) -> np.ndarray:
        """Returns [k] int64: the number of tokens that the official pool holds after each n-gram.

        The pool is built from the prompt.  After each round `Pool.update_pool` visits the n-grams that begin
        in the last 2 * length tokens (generate_drafts_util.py:51 at 659bba9), so a continuation stays short
        where long rounds pass over it.

        Args:
            ends: [k], the positions after the n-grams.
            ngram: Tokens of an n-gram.
            length: Most tokens of a continuation.
            before: Tokens of predictions, which lie before the prompt and are pooled with it.
        """
        sizes = before + np.array(self._sizes, dtype=np.int64)
        last = np.searchsorted(sizes, ends - ngram + 2 * length, side="right") - 1
        first = np.searchsorted(sizes, ends, side="right")
        return np.minimum(length, sizes[np.maximum(first, last)] - ends)


class LogitSpec:
    """A proposer of the continuation of the root's longest n-gram, then the last top-k's other tokens with
    continuations.

    Attributes:
        max_ngram, length: 3 and 20 are the official settings.  The official tree holds a guess twice if the
            continuation also begins with it; here both are one node, and the second slot stays empty, so that
            acceptance is the same.
    """

    def __init__(
        self,
        history: TokenHistory,
        topk: LastTopK,
        vocab_size: int,
        max_ngram: int = 3,
        length: int = 20,
        clock: Clock | None = None,
    ) -> None:
        self._history = history
        self._topk = topk
        self._rounds = Rounds()
        self.memories = (history, topk, self._rounds)
        self.max_ngram = max_ngram
        self.length = length
        self.clock = clock or Clock()
        # A guess's rank, indexed by token; -1 for all other tokens.  The last entry takes ids that are not tokens.
        self._slot = np.full(vocab_size + 1, -1, dtype=np.int64)

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text = self._history.whole(ask.root)
            tree = Trie(ask.root, ask.budget)
            left = ask.budget - 1
            main, match = continuation(text, self.max_ngram, self._pooled)
            tree.add(main[:left], match=match)
            left -= len(main)
            for guess, rest, match in self._guesses(text, ask.root):
                if left < 1:
                    break
                tree.add(rest[: left - 1], tree.add([guess]), match)
                left -= 1 + len(rest)
            return tree.tree()

    def _pooled(self, ends: np.ndarray, ngram: int) -> np.ndarray:
        return self._rounds.pooled(ends, ngram, self.length, len(self._history.before()))

    def _guesses(self, text: np.ndarray, root: int) -> Iterator[tuple[int, list[int], int]]:
        """Yields (a token of the last top-k, its continuation, tokens of the match), the most probable first."""
        # Lower ranks get no continuation
        guesses = self._topk.tokens
        most = KEPT[-1][0] + 1
        continuations = self._after(text, guesses[:most])
        for rank, guess in enumerate(guesses):
            if guess != root:
                at, pooled, match = 0, 0, 0
                if rank < most:
                    at, pooled, match = continuations[rank]
                length_of_guess = next((tokens for last, tokens in KEPT if rank <= last), 1)
                yield guess, unbroken(text[at : at + min(length_of_guess - 1, pooled)]).tolist(), match

    def _after(self, text: np.ndarray, guesses: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns for each guess (index after the longest n-gram that ends with root and guess, pooled tokens
        from there, tokens of the n-gram)."""
        size = len(text) - 1
        m = len(guesses)
        continuations = np.zeros((m, 3), dtype=np.int64)
        self._slot[guesses] = np.arange(m)
        slots = self._slot[text[:size]]
        self._slot[guesses] = -1
        guessed = np.flatnonzero(slots[: max(0, size - 1)] >= 0)  # guesses that a token follows
        for n in range(1, self.max_ngram + 1):
            if n > 1:  # keep only those that are preceded by the text's end
                before = guessed - (n - 1)
                preceding = text[before]
                guessed = guessed[(before >= 0) & (preceding == text[size - (n - 2)]) & (preceding >= 0)]
            pooled = self._pooled(guessed + 1, n)
            best = longest(slots[guessed], pooled, m)
            has = best >= 0
            best = best[best >= 0]
            continuations[has, 0] = guessed[best] + 1
            continuations[has, 1] = pooled[best]
            continuations[has, 2] = n
        return [(at, pooled_tokens, match) for at, pooled_tokens, match in continuations.tolist()]


def continuation(
    text: np.ndarray, max_ngram: int, pooled: Callable[[np.ndarray, int], np.ndarray]
) -> tuple[list[int], int]:
    """Returns (the pooled tokens that followed the longest n-gram at the text's end, tokens of that n-gram).

    The result is ([], 0) if no n-gram was seen before.

    Args:
        text: [t + 1], the root last, negative between texts.
        pooled: `Rounds.pooled` as a function of ends and n.
    """
    size = len(text) - 1
    ends = np.flatnonzero(text[: max(0, size - 1)] == text[size]) + 1
    place = slice(0, 0)
    match = 0
    for n in range(1, min(max_ngram, size) + 1):
        before = ends - n
        ends = ends[(before >= 0) & (text[before] == text[size - (n - 1)]) & (text[before] >= 0)]
        if not len(ends):
            break
        lengths = pooled(ends, n)
        best = int(longest(np.zeros(len(ends), dtype=np.int64), lengths, 1)[0])
        place = slice(ends[best], ends[best] + lengths[best])
        match = n
    return unbroken(text[place]).tolist(), match


def longest(keys: np.ndarray, pooled: np.ndarray, count: int) -> np.ndarray:
    """Returns [count] int64: for each key the last index of its largest `pooled`; -1 for a key that does not occur.

    Args:
        keys, pooled: [k] int64.  It is the official pool's rule: a later continuation replaces one of the same length.
    """
    best = np.full(count, -1, dtype=np.int64)
    order = np.argsort(pooled, kind="stable")
    best[keys[order]] = order  # for repeated indices numpy keeps the last
    return best


def logitspec(p: Parts) -> LogitSpec:
    """LogitSpec over the history and the last top-k."""
    topk = p.once(("last top-k", WIDTH), lambda: LastTopK(WIDTH))
    return LogitSpec(history(p), topk, p.target.vocab_size, clock=p.clock)


METHOD = Method(
    "logitspec",
    "copies what followed the same n-gram, and guesses what was probable one token ago",
    "LogitSpec (arXiv 2507.01449)",
    logitspec,
    budget=WIDTH,
    looks_up=True,
)
