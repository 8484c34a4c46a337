"""A proposal tree in a fixed number of rows: `ProposalTree`'s verbs as tensor operations of fixed shape, any device.

Nothing here reads a value on the host or copies one to the device, so that CUDA graphs can hold it.  Knows tokens and
parents; knows no model, no cache and no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from longgraft.runtime.devices import sent
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

SIZES = (1, 8, 16, 32, 64)      # rows of verified trees, each a set of recorded launches
FIELDS = 6                      # int64 columns of a record: tokens, parents, depths, scores' bits, origin, live


def size_of(nodes: int) -> int:
    """The fewest rows that hold these nodes; ValueError beyond the largest size."""
    for size in SIZES:
        if nodes <= size:
            return size
    raise ValueError(f"A tree of {nodes} nodes was asked for; at most {SIZES[-1]} rows are verified at once. "
                     f"Lower the budget to {SIZES[-1]}.")


@dataclass(frozen=True, eq=False)
class PaddedTree:
    """n rows, some of which are live: the nodes, parents before children, the root in row 0.

    tokens:  [n] int64; 0 where dead
    parents: [n] int64, rows; -1 at the root, 0 where dead
    depths:  [n] int64; 0 where dead
    scores:  [n] float32, log-probabilities as a `ProposalTree` has them; anything where dead
    origin:  [n] int8, bits ROOT | DRAFT | RETRIEVED; 0 where dead
    live:    [n] bool; a tree is compact where the live rows come first
    deepest: no node is deeper; known on the host, it says how many doublings reach every ancestor
    most:    live rows at most, known on the host
    stage:   as a `ProposalTree` has it

    Nothing that is computed stays with the tree: in a recorded region it would be that of the first run.
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
        """A host tree on `device`, compact: one copy, which does not wait."""
        padded = cls.unpack(sent(cls.pack(tree, rows), device), int(tree.depths.max()), tree.stage)
        return replace(padded, most=len(tree))

    @staticmethod
    def pack(tree: ProposalTree, rows: int) -> Tensor:
        """[FIELDS, rows] int64 on the host: all but the stage."""
        n = len(tree)
        assert n <= rows, f"{n} nodes in {rows} rows"
        record = torch.zeros(FIELDS, rows, dtype=torch.int64)
        columns = tree.tokens, tree.parents, tree.depths, tree.scores.view(torch.int32), tree.origin
        for row, column in zip(record, columns, strict=False):
            row[:n] = column
        record[-1, :n] = 1
        return record

    @classmethod
    def unpack(cls, record: Tensor, deepest: int | None = None, stage: int | None = None) -> PaddedTree:
        """The tree of a record, on the record's device; deepest: None where nothing is known of it."""
        tokens, parents, depths, bits, origin, live = record.unbind()
        deepest = record.shape[1] - 1 if deepest is None else deepest
        return cls(tokens, parents, depths, bits.int().view(torch.float32), origin.to(torch.int8), live.bool(),
                   deepest, record.shape[1], stage)

    @classmethod
    def drafted(cls, root: Tensor, nodes: Sequence[Tensor], rows: int, stage: int | None, deepest: int) -> PaddedTree:
        """A root [1] int64 and drafted nodes below it: (tokens, parents, depths [s] int64, scores [s] float32)."""
        tokens, parents, depths, scores = nodes
        n, device = 1 + len(tokens), tokens.device
        tokens, parents, depths = pad(torch.stack([
            torch.cat([root, tokens]), pad(parents, (1, 0), value=-1), pad(depths, (1, 0))]), (0, rows - n))
        index = torch.arange(rows, device=device)
        live = index < n
        origin = torch.where(index == 0, ROOT, DRAFT).to(torch.int8) * live
        return cls(tokens, parents, depths, pad(scores, (1, rows - n)), origin, live, deepest, n, stage)

    def record(self) -> Tensor:
        """[FIELDS, n] int64 on the tree's device, so that the tree comes to the host in one copy."""
        return torch.stack([self.tokens, self.parents, self.depths, self.scores.view(torch.int32).long(),
                            self.origin.long(), self.live.long()])

    @staticmethod
    def host(record: Tensor, stage: int | None = None) -> ProposalTree:
        """The live nodes of a record that is on the host, in their order."""
        tree = PaddedTree.unpack(record, stage=stage)
        nodes = tree.live.nonzero().flatten().tolist()
        return ProposalTree(tree.tokens, tree.parents, tree.scores, tree.origin, stage).select(nodes)

    def __len__(self) -> int:
        """Live nodes at most."""
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
        """[n] int64: each node's parent; the root and dead rows stand above themselves."""
        return torch.where(self.live, self.parents, self.index).clamp(min=0)

    @property
    def ancestors(self) -> Tensor:
        """[n, n] bool: row i sees column j when j is i or one of its ancestors; a dead row sees itself."""
        index = self.index
        seen = index[:, None] == index
        for jump in jumps_of(self.above, self.deepest):
            seen = seen | seen[jump]
        return seen

    def top(self, budget: int) -> PaddedTree:
        """The best `budget` nodes as `ProposalTree.top` ranks them; the others are dead."""
        if self.rows <= budget:
            return self
        # Stable sorts, the last key first; nan sorts behind all numbers, and by row.  No score is above the root's.
        shallow = (self.depths * (self.scores == self.scores)).argsort(stable=True)
        order = shallow[(0 - self.scores)[shallow].argsort(stable=True)]
        rank, above = torch.empty_like(order).scatter_(0, order, self.index), self.above
        # Reached before it: each ancestor must rank above the node below it.
        fit = all_above(self.live & (rank[above] <= rank), jumps_of(above, self.deepest))[order]
        best = (fit & (fit.cumsum(0) <= budget))[rank]
        return self._only(best | (self.live & (self.live.sum() <= budget)), min(self.deepest, budget - 1))

    def shallower(self, depth: int | Tensor) -> PaddedTree:
        """The nodes deeper than `depth`, a number or [1] int64, are dead."""
        if isinstance(depth, int) and depth >= self.deepest:
            return self
        return self._only(self.live & (self.depths <= depth), depth if isinstance(depth, int) else self.deepest)

    def _only(self, live: Tensor, deepest: int) -> PaddedTree:
        return replace(self, tokens=self.tokens * live, parents=self.parents * live, depths=self.depths * live,
                       origin=self.origin * live, live=live, deepest=deepest)

    def first(self, budget: int, rows: int) -> PaddedTree:
        """The first `budget` nodes at most, in their order, as a compact tree of `rows` rows."""
        assert budget <= rows, f"{budget} nodes in {rows} rows"
        place = self.live.cumsum(0) - 1
        kept = self.live & (place < budget)
        put = torch.where(kept, place, rows)
        parents = torch.where(self.parents < 0, -1, place[self.above])
        tokens, parents, depths = _put(self.tokens.new_zeros(3, rows + 1), put,
                                       torch.stack([self.tokens, parents, self.depths]))
        scores, origin, live = (_put(column.new_zeros(rows + 1), put, column)
                                for column in (self.scores, self.origin, kept))
        return PaddedTree(tokens, parents, depths, scores, origin, live, min(self.deepest, budget - 1),
                          min(self.most, budget), self.stage)

    def merge(self, other: PaddedTree, at: int | Tensor, budget: int) -> PaddedTree:
        """`ProposalTree.merge` of a compact tree, in as many rows; at: a row, as a number or [1] int64.

        Two nodes are the same where the tokens on the ways from `at` and from other's root to them are.
        """
        assert budget <= self.rows, f"{budget} nodes in {self.rows} rows"
        index, below = self.index, other.above
        here = index == at
        same = (other.tokens[:, None] == self.tokens) & ~here & other.live[:, None]
        same = torch.cat([here[None], same[1:]])
        # Ways end at `at` and at other's root, dead rows' where they begin: all that do not get to both at once meet a
        # pair that differs.
        pairs = below[:, None] * self.rows + torch.where(here, index, self.above)
        known, match = all_above(same, jumps_of(pairs, other.deepest)).max(1)
        new = other.live & ~known
        slot = new.cumsum(0) + (self.live.sum() - 1)
        new = new & (slot < budget)
        place = torch.where(new, slot, match)
        put = torch.where(new | known, place, self.rows)[1:]        # other's root says nothing of node `at`
        tokens, parents, depths = _put(
            _longer(torch.stack([self.tokens, self.parents, self.depths])), put,
            torch.stack([other.tokens, place[below], other.depths + self.depths[at]])[:, 1:])
        scores = _put(_longer(self.scores), torch.where(new, slot, self.rows), other.scores)
        origin = _longer(self.origin)
        origin = _put(origin, put, origin[put] | other.origin[1:])
        live = _put(_longer(self.live), put, other.live[1:])
        reached = other.deepest if isinstance(at, int) and at == 0 else self.deepest + other.deepest
        deepest = max(self.deepest, min(reached, budget - 1))
        return PaddedTree(tokens, parents, depths, scores, origin, live, deepest, max(self.most, budget), self.stage)

    def walk(self, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """draws [n] int64, a token after each node -> (path [n] int64, rows from the root to the last accepted node,
        then -1; its length [1]; the token that follows it [1]).

        A node is accepted when it and its ancestors carry what was drawn at their parents.
        """
        index = self.index
        drawn = (self.tokens == draws[self.above]) | (index == 0)
        accepted = (drawn | ~self.ancestors).all(1) & self.live
        # Siblings differ, so that one node at most is accepted per depth.
        path = _put(self.tokens.new_full((self.rows + 1,), -1), torch.where(accepted, self.depths, self.rows),
                    index)
        length = accepted.sum(0, keepdim=True)
        return path, length, draws[path[length - 1]]

    def update_order(self, path: Tensor) -> Tensor:
        """path as `walk` gives it -> [n] int64, all rows: rejected ones without a score from the last, rejected ones
        by score, then the path; dead rows lie anywhere before it."""
        # Scores are at most 0: the path comes last, by depth.
        kept = (path[:, None] == self.index).any(0)
        worth = torch.where(kept, self.depths + 1.0, self.scores.nan_to_num(nan=float("-inf"), neginf=float("-inf")))
        return self.rows - 1 - worth.flip(0).argsort(stable=True)


Tree = ProposalTree | PaddedTree


def on_host(tree: Tree) -> ProposalTree:
    """The tree as a host's; of a padded one the live nodes, for one wait."""
    return tree if isinstance(tree, ProposalTree) else PaddedTree.host(tree.record().cpu(), tree.stage)


def jumps_of(above: Tensor, deepest: int) -> list[Tensor]:
    """1, 2, 4, .. steps up, as many as reach every ancestor; above: places in itself, flattened."""
    jumps = [above] if deepest else []
    while 1 << len(jumps) <= deepest:
        jumps.append(jumps[-1].take(jumps[-1]))
    return jumps


def all_above(flags: Tensor, jumps: Sequence[Tensor]) -> Tensor:
    """Whether a flag is set, and those of all ancestors: pointer doubling."""
    for jump in jumps:
        flags = flags & flags.take(jump)
    return flags


def _put(rows: Tensor, put: Tensor, columns: Tensor) -> Tensor:
    """rows [.., n + 1], written over, with columns [.., m] at places put [m]; what is put at n is not kept."""
    return rows.scatter_(-1, put.expand_as(columns), columns)[..., :-1]


def _longer(rows: Tensor) -> Tensor:
    """A copy of rows [.., n] with one more to write what is not kept."""
    return torch.cat([rows, rows[..., -1:]], -1)
