"""Prefix cache across requests: a prompt is read from where it differs from earlier ones.

A prefix is rows of the target's cache, of the memories' caches, and of the reports on each token.  They are
kept in cells of a fixed number of tokens, keyed by the hash of all tokens up to the cell's end.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.prefill.cell_tokens import CellTokens
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache
from longgraft.trees.tree import ROOT, ProposalTree

CELL = 128  # tokens of a cell: at most so many known tokens are read again, if a memory wants ranks
TARGET = "target"
# Names of reports, [n, ...] each
RANKS = "ranks"
RANKED = "ranked"
PROBABILITIES = "probabilities"
FINAL = "final"
HIDDEN = "hidden."

Rows = Mapping[str, Tensor]


@dataclass(frozen=True)
class Cell:
    """The kept rows of a few successive tokens.

    Attributes:
        caches: Owner's name -> rows from `KVCache.copied`.
        reports: Report's name -> one row per token.
        states: The states of the target's cache before the last token, if a chunk ended there.
    """

    caches: Mapping[str, Rows]
    reports: Rows
    states: Mapping[int, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Number of tokens; a pinned prefix may end in a shorter cell."""
        return next(iter(self.caches[TARGET].values())).shape[2]

    def part(self, start: int, end: int) -> Cell:
        """Returns views of the tokens [start, end)."""
        caches = {}
        for owner, cache in self.caches.items():
            caches[owner] = {name: rows[:, :, start:end] for name, rows in cache.items()}
        return Cell(caches, {name: rows[start:end] for name, rows in self.reports.items()})

    @property
    def bytes(self) -> int:
        size = 0
        for part in (*self.caches.values(), self.reports):
            size += sum(rows.nbytes for rows in part.values())
        for state in self.states.values():
            size += sum(rows.nbytes for rows in state.tensors())
        return size


class Prefixes:
    """A prefix cache: cells of prompts, least recently used first; a tree whose paths are prompts.

    All cells were computed with the same weights.  Sessions may share it in one thread, not in several.
    Ancestors are fresher than descendants, so that eviction takes leaves.  Pinned cells are not counted and
    never evicted; the last cell of a pinned prefix may be short.

    Attributes:
        most: Most bytes of cells that are not pinned.
        cell: Tokens of a cell.
        bytes: Bytes of the cells that are not pinned.
        weights: State of the weights that the cells were computed with; None before the first prompt.

    Examples:
        `load` makes one, here of 1 GiB, and the second prompt is read from near its end:

        >>> import longgraft
        >>> session = longgraft.load(prefixes=1.0, tell=False)
        >>> text = "print(x); " * 64
        >>> session.generate(text + "if x", 2).stats.reused_tokens
        0
        >>> session.generate(text + "for x", 2).stats.reused_tokens
        255
    """

    def __init__(self, most: int, cell: int = CELL) -> None:
        self.most = most
        self.cell = cell
        self.bytes = 0
        self.weights: bytes | None = None  # state of those that the cells were computed with
        self._cells: OrderedDict[bytes, Cell] = OrderedDict()  # least recently used first
        self._pinned: dict[bytes, Cell] = {}
        self._tokens = CellTokens()
        # Key before -> its short cells (tokens, rows).
        self._ends: dict[bytes, list[tuple[list[int], Cell]]] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def keys(self, ids: Sequence[int]) -> list[bytes]:
        """Returns the keys of a prompt's whole cells; equal keys mean that all tokens up to the cells' ends
        are equal."""
        key = b""
        keys = []
        for cell in np.array(ids[: len(ids) // self.cell * self.cell], np.int64).reshape(-1, self.cell):
            key = hashlib.sha256(key + cell.tobytes()).digest()
            keys.append(key)
        return keys

    def known(self, keys: Sequence[bytes], ids: Sequence[int], most: int) -> list[Cell]:
        """Returns the cells of the prompt's longest known prefix of at most `most` tokens; keys: of its whole cells.

        The last one may be a part of a kept cell, unless it has ranks: they are reported for the whole cell's
        tokens.
        """
        prefix: list[Cell] = []
        for key in keys[: most // self.cell]:
            cell = self._cells.get(key) or self._pinned.get(key)
            if cell is None:
                break
            prefix.append(cell)
        before = _key_before(keys, len(prefix))
        rest = ids[len(prefix) * self.cell : most]
        parts = list(self._ends.get(before, ()))
        for key, tokens in self._tokens.after(before).items():
            cell = self._cells.get(key) or self._pinned[key]
            if RANKED not in cell.reports:
                parts.append((list(tokens), cell))
        lengths = [_common(tokens, rest) for tokens, _ in parts]
        longest = max(lengths, default=0)
        if longest:
            _, cell = parts[lengths.index(longest)]
            prefix.append(cell.part(0, longest))
        return prefix

    def first_difference(self, keys: Sequence[bytes], ids: Sequence[int]) -> int | None:
        """Returns the place of the first token in which a prompt differs from the kept one that it follows longest.

        None if it differs from none: it continues a kept prompt, is the beginning of one, or nothing is kept.
        The last tokens of a prompt, which fill no cell, are not kept.

        Args:
            keys: Of the prompt's whole cells.
        """
        whole = next((n for n, key in enumerate(keys) if not self._has(key)), len(keys))
        before = _key_before(keys, whole)
        start = whole * self.cell
        rest = ids[start : start + self.cell]
        earlier = list(self._tokens.after(before).values())
        earlier += [tokens for tokens, _ in self._ends.get(before, ())]
        candidates = []
        for tokens in earlier:
            equal = _common(tokens, rest)
            candidates.append((equal, equal - min(len(tokens), len(rest))))
        # If several have as many equal tokens, one that ends there comes first: the prompt continues it.
        equal, missing = max(candidates, default=(0, 0))
        if missing:
            return start + equal
        return None

    def lacks(self, keys: Sequence[bytes]) -> bool:
        """Tells if the cell of the last of these keys, which begin at a prompt's beginning, should be stored.

        It should if it is unknown, the cell before it is known, and the cache may hold anything at all.
        """
        *before, last = keys
        return self.most > 0 and not self._has(last) and all(map(self._has, before[-1:]))

    def _has(self, key: bytes) -> bool:
        return key in self._cells or key in self._pinned

    def pin(self, ids: Sequence[int], rows: Cell) -> None:
        """Keeps the rows of all tokens of a prefix permanently."""
        keys = self.keys(ids)
        whole = len(ids) // self.cell * self.cell
        for key, start in zip(keys, range(0, whole, self.cell), strict=True):
            cell = self._cells.pop(key, None)
            if cell is not None:
                self.bytes -= cell.bytes
            self._pinned.setdefault(key, rows.part(start, start + self.cell))
            before = _key_before(keys, start // self.cell)
            self._tokens.add(before, key, ids[start : start + self.cell])
        if whole < len(ids):
            ends = self._ends.setdefault(_key_before(keys, len(keys)), [])
            last = list(ids[whole:])
            if all(tokens != last for tokens, _ in ends):
                ends.append((last, rows.part(whole, len(ids))))

    def use(self, keys: Sequence[bytes]) -> None:
        """Marks these cells, which begin at a prompt's beginning, as just used: the first becomes the most recent."""
        for key in reversed(keys):
            if key in self._cells:
                self._cells.move_to_end(key)

    def put(self, keys: Sequence[bytes], cell: Cell, tokens: Sequence[int]) -> None:
        """Stores the cell of the last of these keys, and evicts until the bytes fit, if need be the new cell itself.

        Args:
            tokens: The cell's.
        """
        self.bytes += cell.bytes
        self._cells[keys[-1]] = cell
        self._tokens.add(_key_before(keys, len(keys) - 1), keys[-1], tokens)
        self.use(keys)
        while self.bytes > self.most:
            key, evicted = self._cells.popitem(last=False)
            self.bytes -= evicted.bytes
            self._tokens.remove(key)

    def belong_to(self, weights: bytes) -> None:
        """Drops all cells, also pinned ones, if they were computed with weights of another state."""
        if self.weights not in (None, weights):
            if self._pinned or self._ends:
                warnings.warn(
                    "The weights have changed, so the tokens of the prefix files are read again. "
                    "Save the files again and load them into a new session.",
                    stacklevel=2,
                )
            self.clear()
            self._pinned.clear()
            self._ends.clear()
            self._tokens = CellTokens()
        self.weights = weights

    def clear(self) -> None:
        """Drops all cells that are not pinned."""
        for key in self._cells:
            self._tokens.remove(key)
        self._cells.clear()
        self.bytes = 0


@dataclass
class PrefixReader:
    """A reader of one prompt, which recalls its known prefix and stores its new cells.

    Attributes:
        prefixes: The prefix cache.
        ids: Token ids of the prompt.
        cache: The target's cache, empty at first.
        memories: The method's memories, in order, empty at first.
        weights: Returns the state of the weights that the rows depend on.
        keys: Keys of the prompt's whole cells.
        first_difference: As in `Prefixes.first_difference`, when the prompt arrived.
    """

    prefixes: Prefixes
    ids: Sequence[int]
    cache: KVCache
    memories: Sequence[Memory]
    weights: Callable[[], bytes] = lambda: b""
    keys: Sequence[bytes] = field(init=False)
    first_difference: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._began_with = self.weights()
        self._changed = False
        self.prefixes.belong_to(self._began_with)
        self.keys = self.prefixes.keys(self.ids)
        self.first_difference = self.prefixes.first_difference(self.keys, self.ids)
        self._caches = caches(self.cache, self.memories)
        self._wants = reported(self.memories)
        self._reports: Rows = {}  # of the tokens after the last whole cell
        self._states: dict[int, Mapping[int, Any]] = {}  # number of a cell -> states before its last token

    @torch.inference_mode()
    def recall(self) -> int:
        """Restores caches and memories from the known prefix; returns its number of tokens."""
        cell = self.prefixes.cell
        last = len(self.ids) - max((memory.tail for memory in self.memories), default=1)
        prefix = list[Cell]()
        if not self._weights_changed():
            prefix = self.prefixes.known(self.keys, self.ids, max(0, last + 1))
        while self.cache.stateful and prefix and not prefix[-1].states:
            prefix.pop()
        # A row may depend on the next token, which is unknown for the last row: that row is dropped.
        until = sum(part.tokens for part in prefix) - 1
        if until < 1:
            return 0
        for owner, cache in self._caches.items():
            cache.extend([part.caches[owner] for part in prefix])
            cache.crop(until)
        self.cache.states = dict(prefix[-1].states)
        reports = joined([part.reports for part in prefix])
        # The tokens read next complete the cell that the prefix ends in.
        self._reports = {name: rows[until // cell * cell : until] for name, rows in reports.items()}
        observation = self._seen({name: rows[:until] for name, rows in reports.items()}, until)
        for memory in self.memories:
            memory.recall(observation)
        self.prefixes.use(self.keys[: (until + 1) // cell])
        return until

    @property
    def cell(self) -> int | None:
        """Tokens of a cell, whose reports must not depend on later tokens; None if no cells are kept."""
        if self.prefixes.most:
            return self.prefixes.cell
        return None

    @torch.inference_mode()
    def keep(self, seen: Observation) -> None:
        """Stores the cells that are completed by the prompt's chunk that was just observed."""
        if not self.prefixes.most or self._weights_changed():
            return
        self._reports = joined([self._reports, rows_of(seen, self._wants)])
        cell = self.prefixes.cell
        length = self.cache.length
        if self.cache.stateful and (length + 1) % cell == 0:
            self._states[length // cell] = dict(self.cache.states)
        for number in range((length - len(seen.tree)) // cell, length // cell):
            taken, self._reports = _split(self._reports, cell)
            if self.prefixes.lacks(self.keys[: number + 1]):
                start = number * cell
                end = (number + 1) * cell
                self.prefixes.put(self.keys[: number + 1], self._cell(number, taken), self.ids[start:end])

    def _weights_changed(self) -> bool:
        """True for the rest of the prompt once the weights have changed: its rows then depend on both."""
        states = {self.weights(), self.prefixes.weights}
        self._changed = self._changed or states != {self._began_with}
        return self._changed

    def _cell(self, number: int, reports: Rows) -> Cell:
        start = number * self.prefixes.cell
        end = (number + 1) * self.prefixes.cell
        return Cell(
            {owner: cache.copied(start, end) for owner, cache in self._caches.items()},
            reports,
            self._states.pop(number, {}),
        )

    def _seen(self, reports: Rows, until: int) -> Observation:
        """Returns the observation of the prompt's first `until` tokens, as if they were read in one pass."""
        ranked = topk = probabilities = cache = None
        if RANKED in reports:
            ranked = reports[RANKED].nonzero().flatten()
            topk = reports[RANKS][sent(ranked, reports[RANKS].device)]
            if PROBABILITIES in reports:
                probabilities = reports[PROBABILITIES][sent(ranked, reports[PROBABILITIES].device)]
        if self._wants.cache:
            cache = self.cache
        hidden = {}
        for name, rows in reports.items():
            if name.startswith(HIDDEN):
                hidden[int(name.removeprefix(HIDDEN))] = rows
        tree = ProposalTree.chain(torch.tensor(self.ids[:until]), origin=ROOT)
        return Observation(
            tree,
            torch.arange(until),
            self.ids[until],
            topk,
            hidden,
            reports.get(FINAL),
            prompt=True,
            ranked=ranked,
            cache=cache,
            topk_probabilities=probabilities,
        )


def _key_before(keys: Sequence[bytes], cells: int) -> bytes:
    """Returns the key of the last of a prompt's first cells; b"" for no cells."""
    if cells == 0:
        return b""
    return keys[cells - 1]


def caches(target: KVCache, memories: Iterable[Memory]) -> dict[str, KVCache]:
    """Returns owner's name -> cache with one row per token: the target's, and those of memories that have one."""
    by_owner = {TARGET: target}
    for memory in memories:
        if memory.aligned is not None:
            name = memory.name
            number = 1
            while name in by_owner:
                number += 1
                name = f"{memory.name} {number}"
            by_owner[name] = memory.aligned
    return by_owner


def reported(memories: Iterable[Memory]) -> Wants:
    """Returns the reports that a recalled prefix must contain: none for memories whose own cache is kept."""
    return Wants.union(memory.wants for memory in memories if memory.aligned is None)


def report_names(wants: Wants) -> list[str]:
    """Returns the names of the reports in `rows_of`."""
    hidden = (f"{HIDDEN}{layer}" for layer in wants.layers)
    ranks = [RANKS, RANKED] * bool(wants.topk)
    return [*hidden, *[FINAL] * wants.final, *ranks, *[PROBABILITIES] * wants.probabilities]


def rows_of(seen: Observation, wants: Wants) -> Rows:
    """Returns the wanted reports of a chunk, one row per token; ranks are zeros for tokens that were not ranked."""
    rows = {f"{HIDDEN}{layer}": seen.hidden[layer].clone() for layer in wants.layers}
    if wants.final and seen.final is not None:
        rows[FINAL] = seen.final.clone()
    if wants.topk and seen.topk is not None:
        n = len(seen.tree)
        ranked = seen.ranked
        if ranked is None:
            ranked = torch.arange(n)
        rows[RANKED] = torch.zeros(n, dtype=torch.bool).index_fill(0, ranked, True)
        places = sent(ranked, seen.topk.device)
        for name, reported in ((RANKS, seen.topk), (PROBABILITIES, seen.topk_probabilities)):
            if reported is not None:
                rows[name] = reported.new_zeros(n, reported.shape[1])
                rows[name][places] = reported
    return rows


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    for place, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return place
    return min(len(first), len(second))


def joined(parts: Sequence[Rows]) -> Rows:
    """Returns the rows of the parts, concatenated by name."""
    parts = [part for part in parts if part]
    if parts:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return {}


def _split(rows: Rows, n: int) -> tuple[Rows, Rows]:
    """Returns (copies of the first n rows, views of the rest)."""
    first = {name: part[:n].clone() for name, part in rows.items()}
    return first, {name: part[n:] for name, part in rows.items()}
