"""Predicts the next token from repetitions of the text (prediction by partial matching, Cleary and Witten 1984).

For contexts of 1 to 32 tokens the model counts which tokens followed.  A prediction starts with the longest context
that was seen before and goes on to shorter ones, at most LEVELS in all.  Each context takes a share of the remaining
probability, for those of its tokens that the longer contexts did not have.  The share is learned: how often was the
next token among such tokens in similar contexts (secondary escapes of PPMII, Shkarin 2002)?  Passages of a corpus are
counted apart.  They take part only if they match a longer context than the text does; their share is learned by its
length.  Rows are what the target model itself predicted after a token, or after two; where there is one, both
distributions are mixed (docs/choices.md, rows beside the text).  A ranking mixes in a drafter's nodes likewise.
`continuations.cpp` does the work, and holds the other constants.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import finalize

import numpy as np

from longgraft.kernels.build import NotBuilt, loaded, with_memory
from longgraft.trees.ranked_paths import FIELDS, ROOT, Probabilities, RankedPaths

ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # context lengths, in tokens
FAR = ORDERS[-1]  # longest context
LEVELS = 4  # contexts that are blended
KEPT = 24  # continuations that a context keeps, the newest ones
WIDTH = 8  # tokens of a row
RATES = (6 + 2) * len(ORDERS)  # rates that are learnt, as continuations.cpp describes
SHARES = 4 * 5 + 5  # shares of the text that are learnt, likewise


class Rows(NamedTuple):
    """The target's most probable next tokens at m nodes of a tree of n nodes, in writing order.

    Attributes:
        before: The token before the tree's root; -1: none.
        tokens: [n] int32.
        parents: [n] int32.
        nodes: [m] int32, whose rows these are.
        ids: [m, WIDTH] int32, best first; -1 where there are fewer.
        probabilities: [m, WIDTH] float32.
    """

    before: int
    tokens: np.ndarray
    parents: np.ndarray
    nodes: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray


class Draft(NamedTuple):
    """A drafted tree of n nodes, parents before children.

    Attributes:
        tokens: [n] int64.
        parents: [n] int64.
        scores: [n] float32, log-probabilities of paths; nodes without one (nan), and those below them, are left out.
        origin: [n] int8, bits as in `ProposalTree`.
    """

    tokens: np.ndarray
    parents: np.ndarray
    scores: np.ndarray
    origin: np.ndarray


NO_DRAFT = Draft(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int8))


class Continuation(NamedTuple):
    """A token that may come next."""

    token: int
    probability: float


class Continuations(Protocol):
    """Counts of a growing text.  A negative id ends a text: no context reaches across it."""

    @property
    def rates(self) -> np.ndarray | None:
        """[RATES, 2] float64: hits and trials of contexts of each kind.  No tokens are among them."""

    shares: np.ndarray
    """[SHARES, 2] float64: what was learnt of the text's share beside rows and drafted nodes.  It can be set."""

    def answer(self) -> None:
        """Marks the beginning of the answer, which may repeat more or less than its prompt does."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learns from these tokens, in order, and from the first ones how good the last ranked draft was."""

    def read(self, passage: Sequence[int]) -> None:
        """Counts continuations in a passage of a corpus, which may contain the end of this text."""

    def write(self, rows: Rows) -> None:
        """Writes rows: each stands for the last token of its node's path, and for the last two if there are two."""

    def after(self, path: Sequence[int]) -> tuple[list[Continuation], int]:
        """Returns what may follow the text and this path, and the length of the longest context."""

    def rank(self, floors: Probabilities, draft: Draft = NO_DRAFT) -> RankedPaths:
        """Returns the most probable paths below the text's last token, with at most as many nodes as floors.

        Args:
            floors: floors[n] is the probability that the node after n nodes must exceed.
            draft: Nodes that are ranked beside the text's.
        """


class CompiledContinuations:
    """`Continuations` in C++."""

    def __init__(self, functions: ctypes.CDLL, rates: np.ndarray | None = None) -> None:
        self._functions = functions
        self._model = functions.longgraft_text_new(None if rates is None else _at(rates))
        # Without atexit it would run at the interpreter's end, when a thread may still decode.
        finalize(self, functions.longgraft_text_free, self._model).atexit = False
        room = LEVELS * KEPT + WIDTH
        self._after = np.empty(room, np.int32), np.empty(room), np.empty(1, np.int32)

    @property
    def rates(self) -> np.ndarray:
        rates = np.empty((RATES, 2))
        self._functions.longgraft_text_rates(self._model, _at(rates))
        return rates

    @property
    def shares(self) -> np.ndarray:
        shares = np.empty((SHARES, 2))
        self._functions.longgraft_text_shares(self._model, _at(shares), 0)
        return shares

    @shares.setter
    def shares(self, shares: np.ndarray) -> None:
        self._functions.longgraft_text_shares(self._model, _at(shares), 1)

    def answer(self) -> None:
        self._functions.longgraft_text_answer(self._model)

    def extend(self, tokens: Sequence[int]) -> None:
        array = np.asarray(tokens, dtype=np.int32)
        self._functions.longgraft_text_extend(self._model, _at(array), len(array))

    def read(self, passage: Sequence[int]) -> None:
        array = np.asarray(passage, dtype=np.int32)
        self._functions.longgraft_text_read(self._model, _at(array), len(array))

    def write(self, rows: Rows) -> None:
        self._functions.longgraft_text_rows(
            self._model,
            rows.before,
            _at(rows.tokens),
            _at(rows.parents),
            len(rows.nodes),
            _at(rows.nodes),
            _at(rows.ids),
            _at(rows.probabilities),
        )

    def after(self, path: Sequence[int]) -> tuple[list[Continuation], int]:
        array = np.asarray(path, dtype=np.int32)
        tokens, probabilities, longest = self._after
        n = self._functions.longgraft_text_after(
            self._model, _at(array), len(array), _at(tokens), _at(probabilities), _at(longest)
        )
        following = list(map(Continuation, tokens[:n].tolist(), probabilities[:n].tolist()))
        return following, int(longest[0])

    def rank(self, floors: Probabilities, draft: Draft = NO_DRAFT) -> RankedPaths:
        budget = len(floors)
        fields = np.empty((FIELDS, budget), np.int64)
        probabilities = np.empty(budget)
        n = self._functions.longgraft_text_rank(
            self._model,
            budget,
            _at(np.asarray(floors, dtype=np.float64)),
            len(draft.tokens),
            *map(_at, draft),
            _at(fields),
            _at(probabilities),
        )
        return RankedPaths(fields[:, :n], probabilities[:n])


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)  # the pointer keeps the array alive


class NoContinuations:
    """`Continuations` that count and predict nothing, where nothing is compiled: the answer stays the same."""

    rates = None
    shares = np.empty((0, 2))

    def answer(self) -> None:
        pass

    def write(self, rows: Rows) -> None:
        pass

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    read = extend

    def after(self, path: Sequence[int]) -> tuple[list[Continuation], int]:
        return [], 0

    def rank(self, floors: Probabilities, draft: Draft = NO_DRAFT) -> RankedPaths:
        """Ranks the draft's nodes alone."""
        scores = np.zeros(max(1, len(draft.tokens)))
        for node in range(1, len(scores)):
            scores[node] = np.minimum(scores[draft.parents[node]], draft.scores[node])  # nan below nan
        order = np.argsort(-scores, kind="stable")
        best = order[: len(floors)]
        chances = np.exp(scores[best])
        refused = np.flatnonzero(~(chances > np.asarray(floors)[: len(best)])[1:])
        if len(refused):
            best = best[: 1 + refused[0]]
        fields = np.zeros((FIELDS, len(best)), np.int64)
        fields[1, :1] = -1
        fields[3, :1] = ROOT
        if len(best) > 1:
            place = np.argsort(order)
            fields[0, 1:] = draft.tokens[best[1:]]
            fields[1, 1:] = place[draft.parents[best[1:]]]
            fields[3, 1:] = draft.origin[best[1:]]
        return RankedPaths(fields, chances[: len(best)])


def continuations(rates: np.ndarray | None = None) -> Continuations:
    """Returns the model of an empty text; rates: those that an earlier text has taught; None: the first ones."""
    functions = compiled()
    if isinstance(functions, NotBuilt):
        return NoContinuations()
    return CompiledContinuations(functions, rates)


@cache
def compiled() -> ctypes.CDLL | NotBuilt:
    """Returns the compiled functions, or the reason why there are none; a build is tried once."""
    try:
        functions = loaded(Path(__file__).with_name("continuations.cpp"))
    except NotBuilt as error:
        return error
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    for name, result, arguments in (
        ("new", pointer, [pointer]),
        ("free", None, [pointer]),
        ("answer", number, [pointer]),
        ("rates", number, [pointer, pointer]),
        ("extend", number, [pointer, pointer, number]),
        ("read", number, [pointer, pointer, number]),
        ("rows", number, [pointer, number, pointer, pointer, number, *[pointer] * 3]),
        ("shares", number, [pointer, pointer, number]),
        ("rank", number, [pointer, number, pointer, number, *[pointer] * 6]),
        ("after", number, [pointer, pointer, number, *[pointer] * 3]),
    ):
        function = getattr(functions, f"longgraft_text_{name}")
        function.restype = result
        function.argtypes = arguments
        if name != "free":
            function.errcheck = with_memory
    return functions
