"""Measures costs on this machine, in about half a second: the passes of decoding itself, on caches of its own.

The caches are dropped afterwards; no session's cache or memory is touched.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from longgraft.acceptance.rules import Greedy
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.memories.adjacency import WIDTH
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.device_memory import free_bytes
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.experts import is_router
from longgraft.target_model.model import Target
from longgraft.target_model.passes import SHARED
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.yarn_drafters.network import Eagle3Network

PREFIXES = (256, 2048)  # tokens
# Prefixes if passes are recorded: a recording fits all of them, so a longer one costs a replay at load instead of new
# recordings within a request (0.5 to 0.7 s on an H100).
RECORDED_PREFIXES = (*PREFIXES, 8192, 32768, 131072)
# Rows of a target pass; the first two are always measured.  Blocks of rows often end at 8 and 16, hence 9 and 17.
ROWS = (1, 16, 2, 8, 9, 17, 60)
# Recorded passes are padded to few sizes and cost nearly the same; each would be recorded, which no limit bounds.
RECORDED_ROWS = (1, 60)
WIDTHS = (8, 2)  # nodes that a draft level feeds; if recorded, only the first
FED = (1, 16)  # observed tokens that are fed
LEVELS = 2  # expansions of the draft that is timed
# Tokens of a mixture whose keys and values fill the target's cache again and again.  After them, rows are as alike as
# rows of a text; after zeros they wake more experts.  In twelve random models with 2 of 32 experts, 8 rows woke 0.94
# times as many experts as rows of random texts after 32 repeated tokens, 0.87 times after 8, and 1.4 times after zeros.
CONTEXT = 32
SHARE = 0.05  # share of the free memory that the caches may take

# Costs by model, and the longest prefix at which they were to be measured, shared by all of its sessions.
_MEASURED: WeakKeyDictionary[nn.Module, dict[tuple, tuple[Costs, int]]] = WeakKeyDictionary()

Point = tuple[str, int, int]
"""(name of the cost table, prefix, rows)"""


class Extent(NamedTuple):
    """Extent of a measurement."""

    prefixes: Sequence[int]  # prefixes in tokens, cut to what positions and memory allow
    seconds: float = 0.5  # time after which no measurement is begun; missing ones are interpolated from the others


def key_of(target: Target, network: Eagle3Network | None, regions: Regions = EAGER) -> dict[str, str]:
    """Returns all that costs depend on; for a drafter only its shape."""
    device = target.device
    drafter = "none"
    if network is not None:
        config = network.config
        drafter = f"{config.layout}, {config.layers} x {config.hidden_size:,}, vocabulary {config.draft_vocab_size:,}"
    key = {
        "model": Path(target.name).name,
        "drafter": drafter,
        "dtype": str(target.dtype)[6:],
        "attention": target.attention,
        "kernels": "compiled" if target.kernels else "none",
        "weights": target.weights,
        "cache": str(target.cache_dtype or target.dtype)[6:],
    }
    if device.type == "cuda":
        key["device"] = torch.cuda.get_device_name(device)
        key["launches"] = "graphs" if regions.fixed else "single"
    else:
        key["device"] = f"{device.type.upper()} ({platform.machine()})"
        key["threads"] = str(torch.get_num_threads())
    return key


def measure(
    target: Target,
    network: Eagle3Network | None,
    extent: Extent | None = None,
    regions: Regions = EAGER,
    text: Sequence[int] = (),
) -> Costs:
    """Measures the costs of this target and drafter on this machine.

    Args:
        network: The drafter's network; None: no drafter.
        extent: Extent of the measurement; None: the usual one.
        regions: The session's: passes are recorded or not, as there.
        text: Tokens of which context and rows are taken; a short one is not used.
    """
    regions = regions.anew()
    extent = extent or Extent(PREFIXES)
    rig = _Rig(target, network, extent.prefixes, regions, text)
    spent = rig.times(extent.seconds)
    regions.forget()  # recordings and what they run on refer to each other
    grids: dict[str, dict[int, dict[int, float]]] = {"passes": {}, "levels": {}, "feeds": {}, "heads": {}}
    for (what, length, rows), seconds in spent.items():
        # A draft of several levels, minus one that only reads the root's candidates.
        if what == "levels":
            seconds = max(0.0, seconds - spent["heads", length, WIDTHS[0]]) / LEVELS
        grids[what].setdefault(length, {})[rows] = seconds
    skipped = [f"{what} of {rows} at {length:,}" for what, length, rows in rig.actions.keys() - spent.keys()]
    source = "measured here"
    if skipped:
        source += f"; not, for want of time: {', '.join(sorted(skipped))}"
    return Costs(key_of(target, network, regions), source, grids["passes"], grids["levels"], grids["feeds"])


def costs_for(
    target: Target, network: Eagle3Network | None, path: str | None, regions: Regions = EAGER, text: Sequence[int] = ()
) -> LiveCosts:
    """Returns a file's costs, which stay fixed, or without a file this machine's, which follow timed steps.

    Args:
        network: The drafter's network; None: no drafter.
        path: File of costs; None: they are measured here.
        regions: The session's.
        text: As in `measure`.

    Raises:
        ValueError: the file belongs to another model, drafter or machine.
    """
    key = key_of(target, network, regions)
    if path is None:
        return _measured_costs(target, network, key, regions, text)
    costs = Costs.load(Path(path))
    advice = "Measure them here with `longgraft costs --out FILE`, or leave --costs out."
    differences = costs.fits(key)
    if differences:
        raise ValueError(f"{path} holds the costs of another session: here is {'; '.join(differences)}.\n{advice}")
    if network is not None and not (costs.levels and costs.feeds):
        raise ValueError(f"{path} has no costs of a drafter, and this session has one.\n{advice}")
    return LiveCosts(costs, frozen=True)


def _measured_costs(
    target: Target, network: Eagle3Network | None, key: dict[str, str], regions: Regions, text: Sequence[int]
) -> LiveCosts:
    """Returns this machine's costs, which are measured once for all sessions of a model."""
    measured = _MEASURED.setdefault(target.model, {})
    entry = tuple(key.items())
    if entry not in measured:
        prefixes = RECORDED_PREFIXES if regions.fixed else PREFIXES
        measured[entry] = measure(target, network, Extent(prefixes), regions, text), max(prefixes)

    def further(prefix: int, seconds: float) -> Costs:
        costs, reached = measured[entry]
        if prefix > reached:
            shared = SHARED.set(None)  # passes of other requests would be timed, too
            try:
                more = measure(target, network, Extent((prefix,), seconds), regions, text)
            finally:
                SHARED.reset(shared)
            costs = replace(
                costs,
                passes={**costs.passes, **more.passes},
                levels={**costs.levels, **more.levels},
                feeds={**costs.feeds, **more.feeds},
            )
            measured[entry] = costs, prefix
        return costs

    costs, _ = measured[entry]
    return LiveCosts(costs, measure=further)


class _Rig:
    """Runs the passes of decoding on caches of its own.

    Attributes:
        actions: Passes in the order in which they are timed.
        needed: Those that are timed in any case.
    """

    def __init__(
        self,
        target: Target,
        network: Eagle3Network | None,
        prefixes: Sequence[int],
        regions: Regions,
        text: Sequence[int],
    ) -> None:
        self.target = target
        self.regions = regions
        self.context, self.tokens = _tokens(text, target.vocab_size)
        self.rows: Sequence[int] = ROWS
        self.widths: Sequence[int] = WIDTHS
        most = max(*ROWS, *FED)
        if regions.fixed:
            self.rows = RECORDED_ROWS
            self.widths = WIDTHS[:1]
            most = max(most, SIZES[-1])
        most += LEVELS + 1
        room = int(SHARE * free_bytes(target.device) / target.cache_bytes_per_token())
        room = min(room, target.max_positions)
        memory = None
        # A recorded pass is usually one of a GPU, where rows of predictions are used.
        self.wants = Wants(topk=WIDTH, probabilities=regions.fixed)
        if network:
            room = min(room, network.config.max_positions)
            memory = Eagle3Cache(network, kernels=target.kernels, regions=regions, fused=target.fused_kernels)
            self.wants |= memory.wants
        room = max(1, room - most)
        self.lengths = sorted({min(prefix, room) for prefix in prefixes}, reverse=True)
        longest = self.lengths[0]
        self.verifier = Verifier(target, target.cache(longest + most), Greedy(), Clock(), regions)
        if not any(map(is_router, target.model.modules())):
            self.context = self.context[:1]  # only a mixture's costs depend on it
        observation = self.verifier.read(self.context, self.wants)
        _repeat(self.verifier.cache, len(self.context))
        self.actions = dict(self._passes())
        self.needed = [("passes", longest, rows) for rows in self.rows[:2]]
        if memory is not None:
            self.features = {layer: rows.new_zeros(1, rows.shape[1]) for layer, rows in observation.hidden.items()}
            self.actions |= dict(self._drafts(memory, most))
            self.needed += [("heads", longest, WIDTHS[0]), ("levels", longest, WIDTHS[0]), ("feeds", longest, FED[0])]
        self.actions = {point: self.actions[point] for point in (*self.needed, *self.actions)}

    def _passes(self) -> Iterator[tuple[Point, Callable[[], object]]]:
        for rows in self.rows:  # two chains side by side give a pass with a mask, like that of a tree
            parents = [-1, *(max(0, n - 2) for n in range(1, rows))]
            tree = ProposalTree.build(self.tokens[:rows], parents, [0.0] * rows, [ROOT] + [DRAFT] * (rows - 1))
            for length in self.lengths:
                yield ("passes", length, rows), partial(self._verify, tree, length)

    def _verify(self, tree: ProposalTree, length: int) -> None:
        self.verifier.cache.length = length
        self.verifier.verify(tree, self.wants)

    def _drafts(self, memory: Eagle3Cache, most: int) -> Iterator[tuple[Point, Callable[[], object]]]:
        root = Eagle3Drafter(memory, Dense(), 1, WIDTHS[0])
        deep = {width: Eagle3Drafter(memory, Dense(), 1 + LEVELS, width) for width in self.widths}
        memory.reset(self.lengths[0] + most)
        self._draft(root, 0, 1)
        _zero(memory.cache)
        for length in self.lengths:
            for rows in FED:
                yield ("feeds", length, rows), partial(self._draft, root, length, rows)
            yield ("heads", length, WIDTHS[0]), partial(self._draft, root, length)
            for width in self.widths:
                yield ("levels", length, width), partial(self._draft, deep[width], length)

    def _draft(self, drafter: Eagle3Drafter, length: int, fed: int = 0) -> None:
        drafter.memory.cache.length = length
        if fed:
            tree = ProposalTree.chain(torch.zeros(fed, dtype=torch.int64))
            hidden = {layer: row.expand(fed, -1) for layer, row in self.features.items()}
            drafter.memory.observe(Observation(tree, torch.arange(fed), 0, hidden=hidden))
        drafter.propose(Ask(0, max(ROWS), length + fed))

    def times(self, seconds: float) -> dict[Point, float]:
        """Returns the least seconds of each action.

        Each runs once, then the one that had the least time, until the limit; the needed ones run in any
        case.  On a GPU the needed ones run twice, because a kernel is loaded at its first launch.
        Recordings are made before, untimed.
        """
        spent: dict[Point, float] = {}
        if self.regions.fixed:
            for action in self.actions.values():
                action()
        device = self.target.device
        end = time.perf_counter() + seconds

        def take(point: Point) -> None:
            began = _now(device)
            self.actions[point]()
            spent[point] = min(spent.get(point, math.inf), _now(device) - began)

        for point in self.needed * (2 if device.type == "cuda" else 1):
            take(point)
        totals = {point: spent.get(point, 0.0) for point in self.actions}
        while True:
            point = min(totals, key=totals.__getitem__)
            if time.perf_counter() + spent.get(point, 0.0) >= end:
                return spent
            take(point)
            totals[point] += spent[point]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _tokens(text: Sequence[int], vocabulary: int) -> tuple[torch.Tensor, list[int]]:
    """Returns tokens of the context and of the rows: of a text, or without one from the whole vocabulary.

    The vocabulary's first tokens, which are special tokens and single bytes, may wake other experts than a text.
    """
    most = max(ROWS)
    if len(text) >= CONTEXT + most and max(text) < vocabulary:  # a given tokenizer may be another model's
        return torch.tensor(text[:CONTEXT]), list(text[CONTEXT : CONTEXT + most])
    apart = max(1, vocabulary // most)
    return torch.arange(CONTEXT) * apart + apart // 2, [apart * n for n in range(most)]


def _repeat(cache: KVCache, count: int) -> None:
    """Fills the buffers with their first rows; what they held before may be NaN, or denormal and slow."""
    for layer in cache.layers:
        if not layer.is_initialized:
            continue
        for rows in (layer.keys, layer.values):
            filled = count
            while filled < cache.capacity:
                more = min(filled, cache.capacity - filled)
                rows[:, :, filled : filled + more] = rows[:, :, :more]
                filled += more


def _zero(cache: KVCache) -> None:
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys.zero_()
            layer.values.zero_()
