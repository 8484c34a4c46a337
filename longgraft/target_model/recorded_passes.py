"""Recorded passes over the buffers of one cache: the trees of all requests that wait become one pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from longgraft.protocol.observation import Walked, Wants
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.kv_pool import SCRATCH
from longgraft.target_model.model import Target
from longgraft.target_model.passes import SHARED, Report
from longgraft.target_model.static_pass import Slot, StaticPass
from longgraft.trees.padded import size_of
from longgraft.trees.tree import ProposalTree

ROWS = (8, 16, 32, 64, 128, SCRATCH)  # allowed row counts of a pass of several trees
SLOTS = (4, 16)  # allowed numbers of trees of such a pass


class _Run:
    """One run of a pass.

    Attributes:
        seconds: From the launch until the host had its record; 0.0 if the device had ended it before the host asked,
            because then the host's other work was timed.
    """

    def __init__(self, fixed: StaticPass) -> None:
        self.fixed = fixed
        self.seconds = 0.0
        self._since = time.perf_counter()
        self.walked, self.report, self._record = fixed.settle(*fixed.forward())
        self._copied: Tensor | None = None
        self._done: torch.cuda.Event | None = None
        if fixed.target.device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record()

    @property
    def on_host(self) -> Tensor:
        """The record, brought to the host by the one device sync of all slots."""
        if self._copied is None:
            over = self._done is not None and self._done.query()
            self._copied = self._record.to("cpu", copy=True)  # also from a CPU: the next pass overwrites the record
            if not over:
                self.seconds = time.perf_counter() - self._since
        return self._copied


class Launched:
    """A tree whose pass was launched.  Before the same pass runs for others, its results are taken.

    Attributes:
        walked: As in `StaticPass.settle`; None once the pass ran for others.
        seconds: As in `_Run`, once the result is taken.
    """

    def __init__(self, run: _Run, index: int) -> None:
        self.walked: Walked | None = run.walked
        self.seconds = 0.0
        self._run: _Run | None = run
        self._index = index
        self._loaded = run.fixed.loaded[index]
        self._taken: tuple[ProposalTree, Tensor, int, Report] | None = None
        self._error: ValueError | None = None

    @torch.inference_mode()
    def take(self) -> None:
        """Waits for the pass, and copies what the slot reports."""
        if self._run is None:
            return
        run = self._run
        self._run = None
        record = run.on_host
        self.seconds = run.seconds
        try:
            tree, nodes, path, following = run.fixed.unpack(record, self._index, self._loaded)
        except ValueError as error:
            self._error = error
            return
        self._taken = tree, path, following, _own(run.report, self._loaded.rows, nodes, len(path))

    def result(self) -> tuple[ProposalTree, Tensor, int, Report]:
        """Returns the tree, the accepted path [a], the token after it, and the report.

        Its top-k has the tree's nodes, its hidden and final rows those of the path.

        Raises:
            ValueError: the logits after the path are NaN or infinite.
        """
        self.take()
        if self._error is not None:
            raise self._error
        assert self._taken is not None
        return self._taken


class RecordedPasses:
    """A runner of recorded passes; `together` merges those of several requests.

    Args:
        target: The target.
        cache: The cache whose buffers all of them use: a pool's, or a request's own.
        regions: Holds the recordings.

    Attributes:
        packs: True if several requests share a pass; set to False when such a pass fails.
    """

    drafts = False

    def __init__(self, target: Target, cache: KVCache, regions: Regions) -> None:
        self.target = target
        self.cache = cache
        self.regions = regions
        self.packs = True
        self._passes: dict[tuple[int, int, int, Wants], StaticPass] = {}
        self._launched: dict[StaticPass, WeakSet[Launched]] = {}

    @property
    def name(self) -> str:
        return f"{self.target.name}, recorded,"

    def turn(self, wants: Wants) -> int:
        """Returns -1: they are launched before prompts are read."""
        return -1

    def run(self, slot: Slot, wants: Wants) -> Launched:
        """Launches the pass over a tree; inside `together`, one pass for all requests that wait for theirs."""
        shared = SHARED.get()
        if shared is None:
            (launched,) = self.forward([slot], wants)
        else:
            (launched,) = shared(self, [slot], wants)
        return launched

    @torch.inference_mode()
    def forward(self, slots: Sequence[Slot], wants: Wants) -> list[Launched]:
        """Launches passes over these trees, in one pass if they fit."""
        groups = enumerate(_groups(slots))
        return [launched for number, group in groups for launched in self._launch(group, wants, number)]

    def _launch(self, slots: Sequence[Slot], wants: Wants, number: int) -> list[Launched]:
        """Launches a group of slots; each group of a step has passes of its own, so that none waits for another."""
        fixed = self._pass(slots, wants, number)
        for earlier in self._launched.get(fixed, ()):  # of requests that rest
            earlier.take()
            earlier.walked = None
        fixed.load(*slots)
        run = _Run(fixed)
        launched = [Launched(run, index) for index in range(len(slots))]
        self._launched[fixed] = WeakSet(launched)
        return launched

    def _pass(self, slots: Sequence[Slot], wants: Wants, number: int) -> StaticPass:
        """Returns the smallest pass of a group that holds these trees."""
        rows = sum(slot.rows for slot in slots)
        if len(slots) == 1:
            key = size_of(rows), 1, number, wants
        else:
            key = _least(ROWS, rows), _least(SLOTS, len(slots)), number, wants
        if key not in self._passes:
            rows, most, *_ = key
            self._passes[key] = StaticPass(self.target, self.cache, rows, wants, self.regions, most)
        return self._passes[key]


def _least(sizes: Sequence[int], number: int) -> int:
    return next(size for size in sizes if size >= number)


def _groups(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Yields groups of slots, in order, each of which fits into a pass."""
    group: list[Slot] = []
    for slot in slots:
        if group and (len(group) == SLOTS[-1] or sum(one.rows for one in group) + slot.rows > ROWS[-1]):
            yield group
            group = []
        group.append(slot)
    yield group


def _own(report: Report, rows: slice, nodes: Tensor, kept: int) -> Report:
    """Returns copies of a slot's part of a report; its logits alone are a view, which the next run overwrites.

    Args:
        report: The report, with hidden and final rows in the order of the paths.
        rows: The rows of the slot.
        nodes: [m] int64 on the host, the nodes of its tree among these.
        kept: Length of its path.
    """
    path = slice(rows.start, rows.start + kept)
    return Report(
        report.logits[rows],
        _copied(report.topk, rows, nodes),
        {layer: states[path].clone() for layer, states in report.hidden.items()},
        None if report.final is None else report.final[path].clone(),
        {},
        _copied(report.topk_probabilities, rows, nodes),
    )


def _copied(report: Tensor | None, rows: slice, nodes: Tensor) -> Tensor | None:
    """Returns a copy of the rows `nodes`, ascending and on the host, of a slot; None for none."""
    if report is None:
        return None
    own = report[rows]
    if nodes[-1] == len(nodes) - 1:  # usually they are the first rows, and a slice suffices
        return own[: len(nodes)].clone()
    return own[sent(nodes, own.device)]
