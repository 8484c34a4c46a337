"""A proposal tree in a fixed number of rows: `ProposalTree`'s operations with fixed tensor shapes, on any device.

Only `of`, `host` and `on_host` copy between the host and the device, so that CUDA graphs can record the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longgraft.runtime.devices import sent
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

SIZES = (1, 8, 16, 32, 64)  # allowed row counts of a verified tree; one CUDA graph is recorded per size
# Int64 rows of a record: tokens, parents, depths, bits of the scores, origin, live.
FIELDS = 6


def size_of(nodes: int) -> int:
    """Returns the smallest of `SIZES` that holds this many nodes; raises ValueError beyond the largest."""
    for size in SIZES:
        if nodes <= size:
            return size
    raise ValueError(
        f"A tree of {nodes} nodes was requested; at most {SIZES[-1]} rows are verified at once. "
        f"Lower the budget to {SIZES[-1]}."
    )


@dataclass(frozen=True, eq=False)
class PaddedTree:
    """A draft tree stored in n rows; the rows marked live are its nodes, parents before children, the root in row 0.

    Properties are not cached: a recorded CUDA graph would keep the values of its first run.

    Attributes:
        tokens: [n] int64; 0 in dead rows.
        parents: [n] int64, row numbers; -1 at the root, 0 in dead rows.
        depths: [n] int64; 0 in dead rows.
        scores: [n] float32, log-probabilities as in `ProposalTree`; undefined in dead rows.
        origin: [n] int8, bits ROOT | DRAFT | RETRIEVED; 0 in dead rows.
        live: [n] bool; a tree is called compact if its live rows come first.
        deepest: Upper bound of the depths, known on the host; ancestors take about log2(deepest) pointer
            doublings.
        most: Upper bound of the number of live rows, known on the host.
        stage: As in `ProposalTree`.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    origin: Tensor
    live: Tensor
    deepest: int
    most: int
    stage: int | None = None

    @classmethod
    def of(cls, tree: ProposalTree, rows: int, device: torch.device) -> PaddedTree:
        """Copies a host tree to `device` as a compact tree, in one asynchronous copy."""
        padded = cls.unpack(sent(cls.pack(tree, rows), device), int(tree.depths.max()), tree.stage)
        return replace(padded, most=len(tree))

    @staticmethod
    def pack(tree: ProposalTree, rows: int) -> Tensor:
        """Returns the record [FIELDS, rows] int64 of a tree, on the host: all fields but the stage."""
        n = len(tree)
        assert n <= rows, f"{n} nodes in {rows} rows"
        record = np.zeros((FIELDS, rows), np.int64)  # numpy: a copy takes a tenth of torch's time
        columns = tree.tokens, tree.parents, tree.depths, tree.scores.view(torch.int32), tree.origin
        for row, column in zip(record, columns, strict=False):
            row[:n] = column.numpy()
        record[-1, :n] = 1
        return torch.from_numpy(record)

    @classmethod
    def unpack(cls, record: Tensor, deepest: int | None = None, stage: int | None = None) -> PaddedTree:
        """Returns the tree of a record, on the record's device.

        Args:
            record: [FIELDS, n] int64.
            deepest: Upper bound of the depths; None if no bound below n - 1 is known.
            stage: As in `ProposalTree`.
        """
        tokens, parents, depths, bits, origin, live = record.unbind()
        rows = record.shape[1]
        if deepest is None:
            deepest = rows - 1
        return cls(
            tokens,
            parents,
            depths,
            bits.int().view(torch.float32),
            origin.to(torch.int8),
            live.bool(),
            deepest,
            rows,
            stage,
        )

    @classmethod
    def drafted(cls, root: Tensor, nodes: Sequence[Tensor], rows: int, stage: int | None, deepest: int) -> PaddedTree:
        """Builds a tree of a root [1] int64 and its nodes: (tokens, parents, depths, scores), each [s]."""
        tokens, parents, depths, scores = nodes
        n = 1 + len(tokens)
        columns = [torch.cat([root, tokens]), pad(parents, (1, 0), value=-1), pad(depths, (1, 0))]
        tokens, parents, depths = pad(torch.stack(columns), (0, rows - n))
        index = torch.arange(rows, device=tokens.device)
        live = index < n
        origin = torch.where(index == 0, ROOT, DRAFT).to(torch.int8) * live
        return cls(tokens, parents, depths, pad(scores, (1, rows - n)), origin, live, deepest, n, stage)

    def record(self) -> Tensor:
        """Returns the tree as one tensor [FIELDS, n] int64, so that one copy brings it to the host."""
        return torch.stack(
            [
                self.tokens,
                self.parents,
                self.depths,
                self.scores.view(torch.int32).long(),
                self.origin.long(),
                self.live.long(),
            ]
        )

    @staticmethod
    def host(record: Tensor, stage: int | None = None) -> ProposalTree:
        """Returns the host tree of the live nodes of a record that lies on the host."""
        tree = PaddedTree.unpack(record, stage=stage)
        nodes = tree.live.nonzero().flatten().tolist()
        return ProposalTree(tree.tokens, tree.parents, tree.scores, tree.origin, stage).select(nodes)

    def __len__(self) -> int:
        """Returns an upper bound of the number of live nodes."""
        return self.most

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def index(self) -> Tensor:
        """[n] int64: 0, 1, .. n - 1."""
        return torch.arange(self.rows, device=self.tokens.device)

    @property
    def above(self) -> Tensor:
        """[n] int64: each node's parent; the root and dead rows point to themselves."""
        return torch.where(self.live, self.parents, self.index).clamp(min=0)

    def top(self, budget: int) -> PaddedTree:
        """Returns the tree of the best `budget` nodes by the order of `ProposalTree.top`; the others become dead."""
        if self.rows <= budget:
            return self
        # Stable sorts, the last key first; nan scores sort last, by row.  The root's score is the maximum.
        shallow = (self.depths * (self.scores == self.scores)).argsort(stable=True)
        order = shallow[(0 - self.scores)[shallow].argsort(stable=True)]
        rank = torch.empty_like(order).scatter_(0, order, self.index)
        above = self.above
        # A node fits if each of its ancestors ranks before the ancestor's child on the path to it.
        fit = all_above(self.live & (rank[above] <= rank), jumps_of(above, self.deepest))[order]
        best = (fit & (fit.cumsum(0) <= budget))[rank]
        return self._only(best | (self.live & (self.live.sum() <= budget)), min(self.deepest, budget - 1))

    def shallower(self, depth: int | Tensor) -> PaddedTree:
        """Returns the tree with the nodes deeper than `depth` (a number, or a tensor [1] int64) dead."""
        deepest = depth if isinstance(depth, int) else self.deepest
        if isinstance(depth, int) and depth >= self.deepest:
            return self
        return self._only(self.live & (self.depths <= depth), deepest)

    def _only(self, live: Tensor, deepest: int) -> PaddedTree:
        return replace(
            self,
            tokens=self.tokens * live,
            parents=self.parents * live,
            depths=self.depths * live,
            origin=self.origin * live,
            live=live,
            deepest=deepest,
        )

    def first(self, budget: int, rows: int) -> PaddedTree:
        """Returns at most the first `budget` live nodes, in order, as a compact tree of `rows` rows."""
        assert budget <= rows, f"{budget} nodes in {rows} rows"
        place = self.live.cumsum(0) - 1
        fits = self.live & (place < budget)
        dest = torch.where(fits, place, rows)
        parents = torch.where(self.parents < 0, -1, place[self.above])
        columns = torch.stack([self.tokens, parents, self.depths])
        tokens, parents, depths = _scatter(self.tokens.new_zeros(3, rows + 1), dest, columns)
        scores, origin, live = (
            _scatter(column.new_zeros(rows + 1), dest, column) for column in (self.scores, self.origin, fits)
        )
        deepest = min(self.deepest, budget - 1)
        most = min(self.most, budget)
        return PaddedTree(tokens, parents, depths, scores, origin, live, deepest, most, self.stage)

    def merge(self, other: PaddedTree, at: int | Tensor, budget: int) -> PaddedTree:
        """Does what `ProposalTree.merge` does, into a compact tree, which keeps its number of rows.

        Two nodes are the same if the tokens on the paths to them, from `at` and from other's root, are equal.

        Args:
            other: The tree whose nodes are added.
            at: The row under which `other` is merged, a number or [1] int64.
            budget: Most nodes of the result, root included.
        """
        assert budget <= self.rows, f"{budget} nodes in {self.rows} rows"
        index = self.index
        below = other.above
        is_at = index == at
        same = (other.tokens[:, None] == self.tokens) & ~is_at & other.live[:, None]
        same = torch.cat([is_at[None], same[1:]])
        # Going up, a path stops at `at`, at other's root, or at once in a dead row: unless both paths
        # arrive together, some pair on the way differs.
        pairs = below[:, None] * self.rows + torch.where(is_at, index, self.above)
        exists, match = all_above(same, jumps_of(pairs, other.deepest)).max(1)
        new = other.live & ~exists
        slot = new.cumsum(0) + (self.live.sum() - 1)
        new = new & (slot < budget)
        place = torch.where(new, slot, match)
        # Without other's root: node `at` keeps its fields.
        dest = torch.where(new | exists, place, self.rows)[1:]
        before = torch.stack([self.tokens, self.parents, self.depths])
        added = torch.stack([other.tokens, place[below], other.depths + self.depths[at]])
        tokens, parents, depths = _scatter(_with_spare(before), dest, added[:, 1:])
        scores = _scatter(_with_spare(self.scores), torch.where(new, slot, self.rows), other.scores)
        origin = _with_spare(self.origin)
        origin = _scatter(origin, dest, origin[dest] | other.origin[1:])
        live = _scatter(_with_spare(self.live), dest, other.live[1:])
        reached = other.deepest
        if not isinstance(at, int) or at:
            reached += self.deepest
        deepest = max(self.deepest, min(reached, budget - 1))
        return PaddedTree(tokens, parents, depths, scores, origin, live, deepest, max(self.most, budget), self.stage)

    def update_order(self, path: Tensor) -> Tensor:
        """Returns the order [n] int64 in which all rows update memories.

        Rejected rows come first: those without a score, last row first, then the others by rising score.  The accepted
        path comes last.  Dead rows may stand anywhere before the path.

        Args:
            path: [n] int64: rows from the root to the last accepted node, then -1.
        """
        # Scores are at most 0, so the path, ranked by depth + 1, comes last.
        accepted = (path[:, None] == self.index).any(0)
        scores = self.scores.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
        rank = torch.where(accepted, self.depths + 1.0, scores)
        return self.rows - 1 - rank.flip(0).argsort(stable=True)


Tree = ProposalTree | PaddedTree


def on_host(tree: Tree) -> ProposalTree:
    """Returns the tree on the host; a padded tree loses its dead rows and costs one device sync."""
    if isinstance(tree, ProposalTree):
        return tree
    return PaddedTree.host(tree.record().cpu(), tree.stage)


def jumps_of(above: Tensor, deepest: int) -> list[Tensor]:
    """Returns the ancestors 1, 2, 4, .. steps up, as far as `deepest` needs.

    Args:
        above: Indices into itself, flattened.
        deepest: Upper bound of the depths.
    """
    jumps = [above] if deepest else []
    while 1 << len(jumps) <= deepest:
        jumps.append(jumps[-1].take(jumps[-1]))
    return jumps


def all_above(flags: Tensor, jumps: Sequence[Tensor]) -> Tensor:
    """Tells for each node, by pointer doubling, if its flag and the flags of all its ancestors are set."""
    for jump in jumps:
        flags = flags & flags.take(jump)
    return flags


def _scatter(rows: Tensor, dest: Tensor, columns: Tensor) -> Tensor:
    """Writes columns [.., m] in place to rows [.., n + 1] at indices dest [m]; returns [.., n] without the spare n."""
    return rows.scatter_(-1, dest.expand_as(columns), columns)[..., :-1]


def _with_spare(rows: Tensor) -> Tensor:
    """Returns a copy of rows [.., n] with a spare last element, to which `_scatter` writes what is dropped."""
    return torch.cat([rows, rows[..., -1:]], -1)
