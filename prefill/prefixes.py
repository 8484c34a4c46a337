"""Prefix cache across requests: a prompt is read from where it differs from earlier ones.

A prefix is rows of the target's cache, of the memories' caches, and of the reports on each token.  They are kept in
cells of a fixed number of tokens, keyed by the hash of all tokens up to the cell's end.
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

CELL = 128          # tokens of a cell: at most so many known tokens are read again, if a memory wants ranks
TARGET = "target"
RANKS, RANKED, FINAL, HIDDEN = "ranks", "ranked", "final", "hidden."     # names of reports, [n, ...] each

Rows = Mapping[str, Tensor]


@dataclass(frozen=True)
class Cell:
    """The kept rows of a few successive tokens.

    caches: owner's name -> rows from `KVCache.copied`; reports: name -> one row per token; states: those of the
    target's cache before the last token, if a chunk ended there
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
        return Cell({owner: {name: rows[:, :, start:end] for name, rows in cache.items()}
                     for owner, cache in self.caches.items()},
                    {name: rows[start:end] for name, rows in self.reports.items()})

    @property
    def bytes(self) -> int:
        rows = [one for part in (*self.caches.values(), self.reports) for one in part.values()]
        return sum(one.nbytes for one in (*rows, *(one for state in self.states.values() for one in state.tensors())))


class Prefixes:
    """A prefix cache: cells of prompts, least recently used first; a tree whose paths are prompts.

    All cells were computed with the same weights.  Sessions may share it in one thread, not in several.  Ancestors are
    fresher than descendants, so that eviction takes leaves.  Pinned cells are not counted and never evicted; the last
    cell of a pinned prefix may be short.

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
        self.most, self.cell = most, cell
        self.bytes = 0
        self.weights: bytes | None = None       # state of those that the cells were computed with
        self._cells: OrderedDict[bytes, Cell] = OrderedDict()       # least recently used first
        self._pinned: dict[bytes, Cell] = {}
        self._tokens = CellTokens()
        self._ends: dict[bytes, list[tuple[list[int], Cell]]] = {}     # key before -> its short cells (tokens, rows)

    def __len__(self) -> int:
        return len(self._cells)

    def keys(self, ids: Sequence[int]) -> list[bytes]:
        """Returns the keys of a prompt's whole cells; equal keys mean that all tokens up to the cells' ends are
        equal."""
        key, found = b"", []
        for cell in np.array(ids[:len(ids) // self.cell * self.cell], np.int64).reshape(-1, self.cell):
            key = hashlib.sha256(key + cell.tobytes()).digest()
            found.append(key)
        return found

    def known(self, keys: Sequence[bytes], ids: Sequence[int], most: int) -> list[Cell]:
        """Returns the cells of the prompt's longest known prefix of at most `most` tokens; keys: of its whole cells.

        The last one may be a part of a kept cell, unless it has ranks: they are reported for the whole cell's tokens.
        """
        found: list[Cell] = []
        for key in keys[:most // self.cell]:
            if (cell := self._cells.get(key) or self._pinned.get(key)) is None:
                break
            found.append(cell)
        before, rest = keys[len(found) - 1] if found else b"", ids[len(found) * self.cell:most]
        parts = list(self._ends.get(before, ()))
        for key, tokens in self._tokens.after(before).items():
            cell = self._cells.get(key) or self._pinned[key]
            if RANKED not in cell.reports:
                parts.append((list(tokens), cell))
        lengths = [_common(tokens, rest) for tokens, _ in parts]
        longest = max(lengths, default=0)
        if longest:
            found.append(parts[lengths.index(longest)][1].part(0, longest))
        return found

    def first_difference(self, keys: Sequence[bytes], ids: Sequence[int]) -> int | None:
        """Returns the place of the first token in which a prompt differs from the kept one that it follows longest.

        None if it differs from none: it continues a kept prompt, is the beginning of one, or nothing is kept.  The last
        tokens of a prompt, which fill no cell, are not kept.  keys: of the prompt's whole cells
        """
        known = next((n for n, key in enumerate(keys) if not self._has(key)), len(keys))
        before, at = keys[known - 1] if known else b"", known * self.cell
        rest = ids[at:at + self.cell]
        ends = [tokens for tokens, _ in self._ends.get(before, ())]
        others = [*self._tokens.after(before).values(), *ends]
        # If several have as many equal tokens, one that ends there comes first: the prompt continues it.
        equal, left = max(((n := _common(other, rest), n - min(len(other), len(rest))) for other in others),
                          default=(0, 0))
        return at + equal if left else None

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
        keys, whole = self.keys(ids), len(ids) // self.cell * self.cell
        for key, start in zip(keys, range(0, whole, self.cell), strict=True):
            if (cell := self._cells.pop(key, None)) is not None:
                self.bytes -= cell.bytes
            self._pinned.setdefault(key, rows.part(start, start + self.cell))
            self._tokens.add(keys[start // self.cell - 1] if start else b"", key, ids[start:start + self.cell])
        if whole < len(ids):
            ends = self._ends.setdefault(keys[-1] if keys else b"", [])
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

        tokens: the cell's
        """
        self.bytes += cell.bytes
        self._cells[keys[-1]] = cell
        self._tokens.add(keys[-2] if len(keys) > 1 else b"", keys[-1], tokens)
        self.use(keys)
        while self.bytes > self.most:
            key, evicted = self._cells.popitem(last=False)
            self.bytes -= evicted.bytes
            self._tokens.remove(key)

    def belong_to(self, weights: bytes) -> None:
        """Drops all cells, also pinned ones, if they were computed with weights of another state."""
        if self.weights not in (None, weights):
            if self._pinned or self._ends:
                warnings.warn("The weights have changed, so the tokens of the prefix files are read again. Save the "
                              "files again and load them into a new session.", stacklevel=2)
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
    """Recalls the known prefix of one prompt, and stores its new cells.

    cache: the target's; memories: the method's, in order; all are empty at first
    weights: returns the state of the weights that the rows depend on
    first_difference: as in `Prefixes.first_difference`, when the prompt arrived
    """

    prefixes: Prefixes
    ids: Sequence[int]
    cache: KVCache
    memories: Sequence[Memory]
    weights: Callable[[], bytes] = lambda: b""
    keys: Sequence[bytes] = field(init=False)
    first_difference: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._began_with, self._changed = self.weights(), False
        self.prefixes.belong_to(self._began_with)
        self.keys = self.prefixes.keys(self.ids)
        self.first_difference = self.prefixes.first_difference(self.keys, self.ids)
        self._caches = caches(self.cache, self.memories)
        self._wants = reported(self.memories)
        self._reports: Rows = {}        # of the tokens after the last whole cell
        self._states: dict[int, Mapping[int, Any]] = {}     # number of a cell -> states before its last token

    @torch.inference_mode()
    def recall(self) -> int:
        """Restores caches and memories from the known prefix; returns its number of tokens."""
        cell, last = self.prefixes.cell, len(self.ids) - max((one.tail for one in self.memories), default=1)
        # A row may depend on the next token, which is unknown for the last row: that row is dropped.
        known = [] if self._weights_changed() else self.prefixes.known(self.keys, self.ids, max(0, last + 1))
        while self.cache.stateful and known and not known[-1].states:
            known.pop()
        until = sum(one.tokens for one in known) - 1
        if until < 1:
            return 0
        for owner, cache in self._caches.items():
            cache.extend([one.caches[owner] for one in known])
            cache.crop(until)
        self.cache.states = dict(known[-1].states)
        reports = joined([one.reports for one in known])
        # The tokens read next complete the cell that the prefix ends in.
        self._reports = {name: rows[until // cell * cell:until] for name, rows in reports.items()}
        seen = self._seen({name: rows[:until] for name, rows in reports.items()}, until)
        for memory in self.memories:
            memory.recall(seen)
        self.prefixes.use(self.keys[:(until + 1) // cell])
        return until

    @property
    def cell(self) -> int | None:
        """Tokens of a cell, whose reports must not depend on later tokens; None if no cells are kept."""
        return self.prefixes.cell if self.prefixes.most else None

    @torch.inference_mode()
    def keep(self, seen: Observation) -> None:
        """Stores the cells that are completed by the prompt's chunk that was just observed."""
        if not self.prefixes.most or self._weights_changed():
            return
        self._reports = joined([self._reports, rows_of(seen, self._wants)])
        cell, length = self.prefixes.cell, self.cache.length
        if self.cache.stateful and (length + 1) % cell == 0:
            self._states[length // cell] = dict(self.cache.states)
        for number in range((length - len(seen.tree)) // cell, length // cell):
            taken, self._reports = _split(self._reports, cell)
            if self.prefixes.lacks(self.keys[:number + 1]):
                start, end = number * cell, (number + 1) * cell
                self.prefixes.put(self.keys[:number + 1], self._cell(number, taken), self.ids[start:end])

    def _weights_changed(self) -> bool:
        """True for the rest of the prompt once the weights have changed: its rows then depend on both."""
        states = {self.weights(), self.prefixes.weights}
        self._changed = self._changed or states != {self._began_with}
        return self._changed

    def _cell(self, number: int, reports: Rows) -> Cell:
        start, end = number * self.prefixes.cell, (number + 1) * self.prefixes.cell
        return Cell({owner: cache.copied(start, end) for owner, cache in self._caches.items()}, reports,
                    self._states.pop(number, {}))

    def _seen(self, reports: Rows, until: int) -> Observation:
        """Returns the observation of the prompt's first `until` tokens, as if they were read in one pass."""
        ranked = reports[RANKED].nonzero().flatten() if RANKED in reports else None
        return Observation(
            ProposalTree.chain(torch.tensor(self.ids[:until]), origin=ROOT), torch.arange(until), self.ids[until],
            None if ranked is None else reports[RANKS][sent(ranked, reports[RANKS].device)],
            {int(name.removeprefix(HIDDEN)): rows for name, rows in reports.items() if name.startswith(HIDDEN)},
            reports.get(FINAL), prompt=True, ranked=ranked, cache=self.cache if self._wants.cache else None)


def caches(target: KVCache, memories: Iterable[Memory]) -> dict[str, KVCache]:
    """Returns owner's name -> cache with one row per token: the target's, and those of memories that have one."""
    found = {TARGET: target}
    for memory in memories:
        if memory.aligned is not None:
            name, number = memory.name, 1
            while name in found:
                number += 1
                name = f"{memory.name} {number}"
            found[name] = memory.aligned
    return found


def reported(memories: Iterable[Memory]) -> Wants:
    """Returns the reports that a recalled prefix must contain: none for memories whose own cache is kept."""
    return Wants.union(memory.wants for memory in memories if memory.aligned is None)


def report_names(wants: Wants) -> list[str]:
    """Returns the names of the reports in `rows_of`."""
    hidden = (f"{HIDDEN}{layer}" for layer in wants.layers)
    return [*hidden, *[FINAL] * wants.final, *[RANKS, RANKED] * bool(wants.topk)]


def rows_of(seen: Observation, wants: Wants) -> Rows:
    """Returns the wanted reports of a chunk, one row per token; ranks are zeros for tokens that were not ranked."""
    rows = {f"{HIDDEN}{layer}": seen.hidden[layer].clone() for layer in wants.layers}
    if wants.final and seen.final is not None:
        rows[FINAL] = seen.final.clone()
    if wants.topk and seen.topk is not None:
        n, ranked = len(seen.tree), torch.arange(len(seen.tree)) if seen.ranked is None else seen.ranked
        rows[RANKED] = torch.zeros(n, dtype=torch.bool).index_fill(0, ranked, True)
        rows[RANKS] = seen.topk.new_zeros(n, seen.topk.shape[1])
        rows[RANKS][sent(ranked, seen.topk.device)] = seen.topk
    return rows


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def joined(parts: Sequence[Rows]) -> Rows:
    """Returns the rows of the parts, concatenated by name."""
    parts = [part for part in parts if part]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _split(rows: Rows, n: int) -> tuple[Rows, Rows]:
    """Returns (copies of the first n rows, views of the rest)."""
    return ({name: one[:n].clone() for name, one in rows.items()}, {name: one[n:] for name, one in rows.items()})
