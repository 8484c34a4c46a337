"""Lookahead decoding (arXiv 2402.02057): verifies n-grams, and grows new ones in the same pass.

The window is a tree: column c of row r is a child of column c of row r - 1, and the first row is a chain from
the root.  The n-grams are chains from the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie

Row = tuple[int, ...]


class Trajectories(Memory):
    """The window and the pool of n-grams.

    The first row, whose column 0 is the root, begins as tokens of the prompt drawn with a fixed seed.  Each
    step adds a row, until there are `ngram` - 1; from then on each column gives an n-gram, the first row is
    dropped, and the window moves on by one token, however many were accepted (the authors' ALWAYS_FWD_ONE).

    Attributes:
        ngram: Tokens of an n-gram.
        width: Columns of the full window, 0 for no window.
        most: n-grams kept for each first token.
        from_prompt: True if n-grams are also taken from the text.
    """

    name = "trajectories"
    wants = Wants(topk=1)

    def __init__(self, ngram: int, width: int, most: int, from_prompt: bool = False) -> None:
        self.ngram = ngram
        self.width = width
        self.most = most
        self.from_prompt = from_prompt
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self._text: list[int] = []
        self._prompt = 0
        self._rows: tuple[Row, ...] | None = None
        self._pool: dict[int, tuple[Row, ...]] = {}
        # Pool entries before each change, for `rewind`.
        self._before: list[tuple[int, tuple[Row, ...]]] = []

    def observe_prediction(self, tokens: Tensor) -> None:
        text = tokens.tolist()
        for end in range(self.ngram, len(text) + 1):
            self._learn(tuple(text[end - self.ngram : end]))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The window below the root; the first row is one token shorter than the others, because its column 0
        is the root."""
        if self._rows is None:
            self._rows = (self._begin(),) if self.width else ()
        return self._rows

    def after(self, token: int) -> tuple[Row, ...]:
        """Returns the rests of the n-grams that begin with this token, the newest last."""
        return self._pool.get(token, ())

    def observe(self, seen: Observation) -> None:
        tokens = seen.kept.tolist()
        new = [*(tokens[1:] if self._text else tokens), seen.next_token]
        if seen.prompt:
            self._prompt += len(tokens)
        elif self.rows:
            assert seen.topk is not None
            self._advance(seen.tree, seen.topk[:, 0].tolist())
        for token in new:
            self._text.append(token)
            if self.from_prompt and len(self._text) >= self.ngram:
                self._learn(tuple(self._text[-self.ngram :]))

    def _begin(self) -> Row:
        """Draws the first row, with one extra token per missing row: each step that adds a row drops a column."""
        places = torch.randint(
            max(1, self._prompt), (self.width + self.ngram - 3,), generator=torch.Generator().manual_seed(0)
        )
        return tuple(self._text[place] for place in places.tolist())

    def _advance(self, tree: ProposalTree, draws: list[int]) -> None:
        """Moves the window on; draws: the target's most probable token after each node.

        A cell that was not verified, because slots or remaining tokens did not suffice, keeps its token.
        """
        rows = self.rows
        root = int(tree.tokens[0])
        nodes = cells(rows, tree.children)
        # If there is only one row, the root's own draw is the next root, not a guess.
        last = (root, *rows[0]) if len(rows) == 1 else rows[-1]
        drawn = tuple(token if node is None else draws[node] for token, node in zip(last, nodes, strict=True))
        if len(rows) < self.ngram - 1:
            self._rows = (*(row[1:] for row in rows), drawn[1:])
            return
        for column, first in enumerate((root, *rows[0])):
            if nodes[column] is not None:
                self._learn((first, *(row[column] for row in rows[1:]), drawn[column]))
        below = (*rows[1:], drawn)
        self._rows = (below[0][1:], *below[1:])

    def _learn(self, gram: Row) -> None:
        """Adds an n-gram as the newest of its first token, and drops the oldest if there are too many."""
        first = gram[0]
        rest = gram[1:]
        had = self.after(first)
        self._before.append((first, had))
        remaining = [continuation for continuation in had if continuation != rest]
        self._pool[first] = (*remaining, rest)[-self.most :]

    def mark(self) -> Any:
        return len(self._before), len(self._text), self._prompt, self._rows

    def rewind(self, mark: Any) -> None:
        learnt, length, self._prompt, self._rows = mark
        while len(self._before) > learnt:
            first, had = self._before.pop()
            self._pool[first] = had
        del self._text[length:]

    def release(self) -> None:
        self.reset(0)


def cells(rows: tuple[Row, ...], children: Mapping[tuple[int, int], int]) -> list[int | None]:
    """Returns, for each column of the window's last row (the root's included), its node in a tree with these children.

    Nodes are found by the path to them; None if the tree lacks the node.
    """
    nodes: list[int | None] = [0]
    for token in rows[0]:
        nodes.append(_child(children, nodes[-1], token))
    for row in rows[1:]:
        nodes = [_child(children, node, token) for node, token in zip(nodes, row, strict=True)]
    return nodes


def _child(children: Mapping[tuple[int, int], int], node: int | None, token: int) -> int | None:
    if node is None:
        return None
    return children.get((node, token))


class Lookahead:
    """A proposer of the window, then the n-grams that begin with the root, the newest first.

    If slots are few, n-grams are dropped first, down to one, then the window's last columns with all their rows.
    """

    def __init__(self, memory: Trajectories, clock: Clock | None = None) -> None:
        self.memories = (memory,)
        self.memory = memory
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            tree = Trie(ask.root, ask.budget)
            rows = self.memory.rows
            guesses = self.memory.after(ask.root)
            room = ask.budget - (self.memory.ngram - 1 if guesses else 0)
            columns = 0
            if rows:
                columns = max(0, room // len(rows))
            nodes = [0][:columns]
            for row in rows[:1]:
                for token in row[: max(0, columns - 1)]:
                    nodes.append(tree.add([token], nodes[-1]))
            for row in rows[1:]:
                nodes = [tree.add([token], node) for token, node in zip(row[:columns], nodes, strict=True)]
            for guess in reversed(guesses):
                tree.add(guess, match=1)
            return tree.tree()


@dataclass(frozen=True)
class LookaheadChoices(Checked):
    """Choices of `lookahead`; a full tree has (ngram - 1) (columns + guesses) nodes."""

    ngram: Annotated[int, Ge(2)] = option(5, "Tokens of an n-gram, its first one included", source="the authors' 7B")
    columns: Annotated[int, Ge(0)] = option(7, "Columns of the window; 0: n-grams alone", source="the authors' 7B")
    guesses: Annotated[int, Ge(1)] = option(
        7, "N-grams kept and verified of each first token", source="the authors' 7B"
    )
    from_prompt: bool = option(False, "Take n-grams also from the prompt and the answer", source="POOL_FROM_PROMPT")


def lookahead(p: Parts) -> Lookahead:
    """Lookahead decoding with trajectories of the chosen shape."""
    chosen: LookaheadChoices = p.choices
    shape = chosen.ngram, chosen.columns, chosen.guesses, chosen.from_prompt
    return Lookahead(p.once(("trajectories", *shape), lambda: Trajectories(*shape)), p.clock)


METHOD = Method(
    "lookahead",
    "n-grams from earlier guesses of the text ahead, and new guesses in the same pass",
    "Lookahead decoding (arXiv 2402.02057)",
    lookahead,
    budget=56,
    choices=LookaheadChoices(),
    looks_up=True,
)
