"""LogitSpec (arXiv 2507.01449): what the target found probable where it said the root, it may say after it.

Knows tokens and the last row's top-k; knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from longgraft.memories.token_history import TokenHistory, unbroken
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie


class LastTopK(Memory):
    """The top `width` of the newest committed position: past, so that guesses made of it cost no exactness."""

    name = "last row"

    def __init__(self, width: int) -> None:
        self.width, self.wants = width, Wants(topk=width)
        self._row: Tensor | None = None

    @property
    def tokens(self) -> list[int]:
        """[K], best first; none before the first observation."""
        return [] if self._row is None else self._row[:self.width].tolist()

    def reset(self, capacity: int) -> None:
        self._row = None

    def observe(self, seen: Observation) -> None:
        last, row = int(seen.path[-1]), None
        assert seen.topk is not None
        if seen.ranked is None:
            row = seen.topk[last]
        elif len(seen.ranked) and int(seen.ranked[-1]) == last:
            row = seen.topk[-1]         # else the prompt goes on, and has this token once more
        self._row = row

    def state(self) -> Tensor | None:
        return self._row

    def restore(self, state: Tensor | None) -> None:
        self._row = state

WIDTH = 64                          # of the last row, and nodes of the tree, root included: the official capacity
KEPT = ((8, 4), (32, 3))            # tokens of a guess with what follows it, by its rank at most; else the guess alone


class LogitSpec:
    """The continuation of the root's longest n-gram, then the last row's other tokens, each with its continuation.

    max_ngram, length: 3 and 20, the official settings.  The official tree holds a guess twice where the continuation
    begins with it, too; here both are one node, and its slot stays empty, so that as much is accepted as there.
    """

    def __init__(self, history: TokenHistory, row: LastTopK, vocab_size: int, max_ngram: int = 3, length: int = 20,
                 clock: Clock | None = None) -> None:
        self.memories = (history, row)
        self.max_ngram, self.length, self.clock = max_ngram, length, clock or Clock()
        self._history, self._row = history, row
        # Of each guess its place; of all other tokens, and last of what is no token, -1.
        self._slot = np.full(vocab_size + 1, -1, dtype=np.int64)

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text, tree, left = self._history.whole(ask.root), Trie(ask.root, ask.budget), ask.budget - 1
            main, match = continuation(text, self.max_ngram, self.length)
            tree.add(main[:left], match=match)
            left -= len(main)
            for guess, rest, match in self._guesses(text, ask.root):
                if left < 1:
                    break
                tree.add(rest[:left - 1], tree.add([guess]), match)
                left -= 1 + len(rest)
            return tree.tree()

    def _guesses(self, text: np.ndarray, root: int) -> Iterator[tuple[int, list[int], int]]:
        """(the last row's next token, what followed it, tokens of that match), the most probable first."""
        guesses, most = self._row.tokens, KEPT[-1][0] + 1       # beyond, they stand alone
        known = self._after(text, guesses[:most])
        for rank, guess in enumerate(guesses):
            if guess != root:
                at, match = known[rank] if rank < most else (0, 0)
                kept = next((tokens for last, tokens in KEPT if rank <= last), 1) if match else 1
                yield guess, unbroken(text[at:min(at + kept - 1, len(text) - 1)]).tolist(), match

    def _after(self, text: np.ndarray, guesses: Sequence[int]) -> list[tuple[int, int]]:
        """For each guess: (index of what followed the longest n-gram that ends with root and guess, its tokens)."""
        size, m = len(text) - 1, len(guesses)
        at, match = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
        self._slot[guesses] = np.arange(m)
        slots = self._slot[text[:size]]
        self._slot[guesses] = -1
        guessed = np.flatnonzero(slots[:max(0, size - 1)] >= 0)     # where one stands, and something follows
        for n in range(1, self.max_ngram + 1):
            if n > 1:       # of these those before which the text's end stands, too
                before = guessed - (n - 1)
                guessed = guessed[(before >= 0) & (text[before] == text[size - (n - 2)]) & (text[before] >= 0)]
            ends = newest(slots[guessed], guessed + 1, m, size - self.length)
            at, match = np.where(ends >= 0, ends, at), np.where(ends >= 0, n, match)
        return list(zip(at.tolist(), match.tolist(), strict=True))


def continuation(text: np.ndarray, max_ngram: int, length: int) -> tuple[list[int], int]:
    """text [t + 1], its last token the root, negative between texts -> (up to `length` tokens that followed the longest
    n-gram of its end, that n-gram's tokens); none and 0 where none was seen."""
    size = len(text) - 1
    ends = np.flatnonzero(text[:max(0, size - 1)] == text[size]) + 1
    found, match = -1, 0
    for n in range(1, min(max_ngram, size) + 1):
        before = ends - n
        ends = ends[(before >= 0) & (text[before] == text[size - (n - 1)]) & (text[before] >= 0)]
        if not len(ends):
            break
        found, match = int(newest(np.zeros(len(ends), dtype=np.int64), ends, 1, size - length)[0]), n
    return [] if found < 0 else unbroken(text[found:min(found + length, size)]).tolist(), match


def newest(keys: np.ndarray, ends: np.ndarray, count: int, last: int) -> np.ndarray:
    """[count] int64: for each key the newest of its `ends` up to `last`, where all is known that follows, else its
    oldest; -1 where it has none.  keys, ends: [k] int64, ends ascending.

    The official pool's rule: a continuation gives way to one that is as long.
    """
    found = np.full(count, -1, dtype=np.int64)
    full = int(np.searchsorted(ends, last, side="right"))
    # Of repeated indices numpy keeps the last.
    found[keys[full:][::-1]] = ends[full:][::-1]
    found[keys[:full]] = ends[:full]
    return found
