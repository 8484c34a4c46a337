"""The target's pass over a fixed number of rows, with all inputs on the device.

The launches are the same for every prefix, every tree and every request of a pool, so they are recorded once and
replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from longgraft.acceptance.rules import DrawThenWalk, checked
from longgraft.attention.backends import available
from longgraft.protocol.observation import Walked, Wants
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache, index_copy
from longgraft.target_model.attention_interface import PassContext
from longgraft.target_model.hooks import decoder_output
from longgraft.target_model.model import Target
from longgraft.target_model.pass_geometry import NUMBERS, Geometry, accepted, geometry
from longgraft.target_model.passes import Report
from longgraft.target_model.topk import best
from longgraft.trees.padded import FIELDS, PaddedTree, Tree
from longgraft.trees.tree import ProposalTree


def why_not_fixed(attention: str) -> str:
    """Returns why passes with this attention cannot have a fixed shape; "" if they can."""
    if attention not in ("auto", "triton"):
        return f"attention {attention} reads the length on the host"
    return available()["triton"]


@dataclass(frozen=True, eq=False)
class Slot:
    """A tree of one request in a pass.

    Attributes:
        tree: The tree.
        cache: The request's cache.
        rule: Draws the target's tokens after the nodes.
    """

    tree: Tree
    cache: KVCache
    rule: DrawThenWalk

    @property
    def rows(self) -> int:
        """Rows that it needs, those of dead nodes included."""
        if isinstance(self.tree, PaddedTree):
            return self.tree.rows
        return len(self.tree)


class Loaded(NamedTuple):
    """A slot and its rows of a pass."""

    slot: Slot
    rows: slice


class StaticPass:
    """A pass of `rows` rows on the buffers of one cache: `load` trees, then `forward`, then `settle`.

    Logits and top-k cover all rows; dead rows see the prefix and themselves, and are never accepted.

    Args:
        target: The target.
        cache: The cache itself, or the whole of the pool that the requests' caches are parts of.
        rows: Number of rows.
        wants: What the target reports.
        regions: Record the pass, or run it anew each time.
        slots: Most trees.  The only one of a pass for one has all rows.
    """

    def __init__(
        self, target: Target, cache: KVCache, rows: int, wants: Wants, regions: Regions, slots: int = 1
    ) -> None:
        self.target = target
        self.cache = cache
        self.rows = rows
        self.wants = wants
        self.regions = regions
        self.slots = slots
        device = target.device
        self.inputs = torch.zeros(FIELDS * rows + NUMBERS * slots, dtype=torch.int64, device=device)
        self.draws = torch.zeros(rows, dtype=torch.int64, device=device)
        self.loaded: list[Loaded] = []
        self._keys: dict[tuple, Tensor] = {}  # by the name of a draw and the shape of its keys
        self._drawing: dict[Hashable, Tensor] = {}  # by the name of a draw, the rows that draw by it
        self._geometry: Geometry | None = None  # of the trees that were loaded, once `forward` ran

    def load(self, *slots: Slot) -> None:
        """Copies the pass's inputs to the device at once; trees that are there already follow."""
        record = torch.zeros(FIELDS, self.rows, dtype=torch.int64)
        numbers = torch.zeros(NUMBERS, self.slots, dtype=torch.int64)
        self.loaded = []
        first = 0
        for index, slot in enumerate(slots):
            count = self.rows if self.slots == 1 else slot.rows
            rows = slice(first, first + count)
            if isinstance(slot.tree, ProposalTree):
                record[:, rows] = PaddedTree.pack(slot.tree, count)
            cache = slot.cache
            numbers[:, index] = torch.tensor([first, count, cache.base, cache.length, cache.position])
            self.loaded.append(Loaded(slot, rows))
            first += count
        numbers[0, len(slots) :] = first
        self.inputs.copy_(sent(torch.cat([record.flatten(), numbers.flatten()]), self.inputs.device))
        for slot, rows in self.loaded:
            if isinstance(slot.tree, PaddedTree):
                self._record(self.inputs)[:, rows] = slot.tree.record()

    def _record(self, inputs: Tensor) -> Tensor:
        """Returns the trees' part [FIELDS, rows] of a pass's numbers."""
        return inputs[: FIELDS * self.rows].view(FIELDS, self.rows)

    def forward(self) -> tuple[Report, Tensor]:
        """Returns (report of all rows, absolute position [n] int64 of the token after each row)."""
        report, self._geometry = self.regions((self, "forward"), self._forward)
        return report, self._geometry.places[2]

    def _forward(self) -> tuple[Report, Geometry]:
        target = self.target
        kernels = target.fused_kernels
        if kernels is None:
            given = geometry(self.inputs, self.slots)
        else:
            given = Geometry(*kernels.geometry(self.inputs, self.slots))
        places, positions, _ = given.places
        run = PassContext([given.layout], target.fixed_backend)
        with ExitStack() as stack:
            stack.enter_context(target.engaged(run))
            if target.fused is not None:
                stack.enter_context(target.fused())
            write = index_copy if kernels is None else kernels.write
            stack.enter_context(self.cache.at(places, write))
            hidden = stack.enter_context(target.inputs_of(self.wants.layers))
            last = stack.enter_context(decoder_output(target.model)) if self.wants.final else {}
            out = target.model(
                input_ids=self.inputs[None, : self.rows],
                position_ids=positions[None],
                attention_mask=None,
                use_cache=True,
                logits_to_keep=0,
                **{target.cache_name: self.cache},
            )
        target.check(run)
        logits = out.logits[0]
        topk = probabilities = None
        if self.wants.topk:
            topk, probabilities = best(logits, self.wants, kernels)
        hidden = {layer: rows[0] for layer, rows in hidden.items()}
        return Report(logits, topk, hidden, last.get("hidden"), {}, probabilities), given

    def settle(self, report: Report, positions: Tensor) -> tuple[Walked | None, Report, Tensor]:
        """Draws one token per node, walks, and moves the paths' rows in the cache.

        The caller raises the lengths of the caches.

        Returns:
            The walk, if the pass is for one tree and was recorded; the report with hidden and final rows in the order
            of the paths; and [m] int64 for `unpack`: the trees' record, the paths, their lengths and the next tokens.
        """
        laws: dict[Hashable, list[Loaded]] = {}
        for loaded in self.loaded:
            laws.setdefault(loaded.slot.rule.law, []).append(loaded)
        kinds = Counter[type]()
        for members in laws.values():
            kind = type(members[0].slot.rule)
            self._draw(report.logits, positions, (kind, kinds[kind]), members, len(laws) > 1)
            kinds[kind] += 1
        walked, kept, record, moved = self.regions((self, "settle"), lambda: self._settle(report))
        self.regions((self, "commit"), lambda: self.cache.put(self._known.places[0], moved))
        if self.slots > 1 or self.regions.runs_eagerly:
            return None, kept, record
        return walked, kept, record

    def _draw(self, logits: Tensor, positions: Tensor, name: Hashable, members: Sequence[Loaded], mixed: bool) -> None:
        """Draws by one law.

        Args:
            logits: [n, V].
            positions: [n], those of the tokens after the rows.
            name: Of the recording, which is kept for the latest law alone.
            members: The slots with this law.
            mixed: Other slots have another law, so only the rows of these draw.
        """
        rule = members[0].slot.rule
        keys = self._keys_of(positions, name, members)
        if not mixed:
            self.regions.latest((self, "draw", name), rule.law, lambda: self._draw_rows(logits, keys, rule))
            return
        mine = torch.zeros(self.rows, dtype=torch.bool)
        for _, rows in members:
            mine[rows] = True
        if name not in self._drawing:
            self._drawing[name] = torch.zeros(self.rows, dtype=torch.bool, device=logits.device)
        drawing = self._drawing[name]
        drawing.copy_(sent(mine, logits.device))
        self.regions.latest((self, "mixed draw", name), rule.law, lambda: self._draw_rows(logits, keys, rule, drawing))

    def _keys_of(self, positions: Tensor, name: Hashable, members: Sequence[Loaded]) -> Tensor:
        """Returns the keys of all rows, in a buffer of the name's own."""
        if all(slot.rule == members[0].slot.rule for slot, _ in members):
            members = [Loaded(members[0].slot, slice(None))]  # one call for all rows
        for slot, rows in members:
            given = slot.rule.keys(positions[rows])
            key = name, *given.shape[1:]
            if key not in self._keys:
                self._keys[key] = given.new_zeros(self.rows, *given.shape[1:])
            self._keys[key][rows].copy_(given)
        return self._keys[key]

    def _draw_rows(self, logits: Tensor, keys: Tensor, rule: DrawThenWalk, drawing: Tensor | None = None) -> None:
        """Draws for the rows that are `drawing` [n] bool; None: for all rows."""
        drawn = rule.marked(logits, rule.choose(logits, keys))
        self.draws.copy_(drawn if drawing is None else torch.where(drawing, drawn, self.draws))

    def _settle(self, report: Report) -> tuple[Walked, Report, Tensor, list[Tensor]]:
        given = self._known
        kernels = self.target.fused_kernels
        walk = accepted if kernels is None else kernels.accepted
        record, (nodes, places) = walk(self.inputs, given.words, self.draws, self.slots)
        moved = self.cache.gathered(places)
        hidden = {layer: rows[nodes] for layer, rows in report.hidden.items()}
        final = None if report.final is None else report.final[nodes]
        kept = replace(report, hidden=hidden, final=final)
        path, lengths, _ = record[FIELDS * self.rows :].split([self.rows, self.slots, self.slots])
        return Walked(given.tree(self.inputs), path, lengths[:1], report.topk), kept, record, moved

    def unpack(self, record: Tensor, index: int, loaded: Loaded) -> tuple[ProposalTree, Tensor, Tensor, int]:
        """Reads a tree's results.

        Args:
            record: What `settle` returned, on the host.
            index: The number of the slot.
            loaded: The slot and its rows, as they were loaded.

        Returns:
            The loaded tree, the rows of its nodes among those of the slot, its path and the next token.

        Raises:
            ValueError: the logits after the path are NaN or infinite.
        """
        _, path, lengths, following = record.split([FIELDS * self.rows, self.rows, self.slots, self.slots])
        fields = self._record(record)[:, loaded.rows]
        path = path[loaded.rows][: int(lengths[index])]
        live = PaddedTree.unpack(fields).live
        tree = loaded.slot.tree
        if isinstance(tree, PaddedTree):
            path = (live.cumsum(0) - 1)[path]
            tree = PaddedTree.host(fields, tree.stage)
        return tree, live.nonzero().flatten(), path, checked(int(following[index]))

    @property
    def _known(self) -> Geometry:
        assert self._geometry is not None, "settle follows forward"
        return self._geometry
