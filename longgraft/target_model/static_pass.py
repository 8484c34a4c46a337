"""The target's pass over a fixed number of rows, with all inputs on the device.

The launches are the same for every prefix and every tree, so they are recorded once and replayed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

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


class StaticPass:
    """A pass of `rows` rows on one cache: `load` a tree, then `forward`, then `settle`.

    Logits and top-k cover all rows; dead rows see the prefix and themselves, and are never accepted.
    """

    def __init__(self, target: Target, cache: KVCache, rows: int, wants: Wants, regions: Regions) -> None:
        self.target = target
        self.cache = cache
        self.rows = rows
        self.wants = wants
        self.regions = regions
        device = target.device
        self.inputs = torch.zeros(FIELDS * rows + NUMBERS, dtype=torch.int64, device=device)
        self.draws = torch.zeros(rows, dtype=torch.int64, device=device)
        self.keys: dict[int, Tensor] = {}  # of a rule whose keys have so many dimensions
        self._geometry: Geometry | None = None  # of the tree that was loaded, once `forward` ran

    def load(self, tree: Tree) -> None:
        """Copies the pass's inputs to the device at once; for a tree on the device only the `NUMBERS` are
        copied."""
        numbers = torch.tensor([0, self.rows, 0, self.cache.length, self.cache.position])
        if isinstance(tree, ProposalTree):
            record = torch.cat([PaddedTree.pack(tree, self.rows).flatten(), numbers])
            self.inputs.copy_(sent(record, self.inputs.device))
        else:
            self.inputs[:-NUMBERS] = tree.record().flatten()
            self.inputs[-NUMBERS:] = sent(numbers, self.inputs.device)

    def forward(self) -> tuple[Report, Tensor]:
        """Returns (report of all rows, absolute position [n] int64 of the token after each row)."""
        report, self._geometry = self.regions((self, "forward"), self._forward)
        return report, self._geometry.places[2]

    def _forward(self) -> tuple[Report, Geometry]:
        target = self.target
        kernels = target.fused_kernels
        given = geometry(self.inputs, 1) if kernels is None else Geometry(*kernels.geometry(self.inputs, 1))
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

    def settle(self, report: Report, positions: Tensor, rule: DrawThenWalk) -> tuple[Walked, Report, Tensor]:
        """Draws one token per node, walks, and moves the path's rows in the cache.

        The caller raises the cache's length.

        Returns:
            The walk, the report with hidden and final rows in path order, and [m] int64 for `unpack`: the
            tree's record, the path, its length and the next token.
        """
        given = rule.keys(positions)
        if given.ndim not in self.keys:
            self.keys[given.ndim] = torch.zeros_like(given)
        keys = self.keys[given.ndim]
        keys.copy_(given)
        self.regions.latest((self, "draw"), rule.law, lambda: self._draw(report.logits, keys, rule))
        walked, kept, record, moved = self.regions((self, "settle"), lambda: self._settle(report))
        self.regions((self, "commit"), lambda: self.cache.put(self._known.places[0], moved))
        return walked, kept, record

    def _draw(self, logits: Tensor, keys: Tensor, rule: DrawThenWalk) -> None:
        self.draws.copy_(rule.marked(logits, rule.choose(logits, keys)))

    def _settle(self, report: Report) -> tuple[Walked, Report, Tensor, list[Tensor]]:
        given = self._known
        kernels = self.target.fused_kernels
        walk = accepted if kernels is None else kernels.accepted
        record, (nodes, places) = walk(self.inputs, given.words, self.draws, 1)
        moved = self.cache.gathered(places)
        hidden = {layer: rows[nodes] for layer, rows in report.hidden.items()}
        final = None if report.final is None else report.final[nodes]
        kept = replace(report, hidden=hidden, final=final)
        path, length, _ = record[FIELDS * self.rows :].split([self.rows, 1, 1])
        return Walked(given.tree(self.inputs), path, length, report.topk), kept, record, moved

    def unpack(self, record: Tensor, tree: Tree) -> tuple[ProposalTree, Tensor, Tensor, int]:
        """Brings the results to the host, by the step's one device sync.

        Returns:
            The loaded tree, the rows of its nodes, its path and the next token.

        Raises:
            ValueError: the logits after the path are NaN or infinite.
        """
        copied = record.to("cpu", copy=True)  # also from a CPU, because the next pass overwrites the record
        fields, path, (length, following) = copied.split([FIELDS * self.rows, self.rows, 2])
        fields = fields.view(FIELDS, self.rows)
        path = path[: int(length)]
        live = PaddedTree.unpack(fields).live
        if isinstance(tree, PaddedTree):
            path = (live.cumsum(0) - 1)[path]
            tree = PaddedTree.host(fields, tree.stage)
        return tree, live.nonzero().flatten(), path, checked(int(following))

    @property
    def _known(self) -> Geometry:
        assert self._geometry is not None, "settle follows forward"
        return self._geometry
