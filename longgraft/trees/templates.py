"""Static topologies of retrieved trees.

A node is named by its path: `r1 r2 ..` is the root's r1-th successor, then that token's r2-th successor, and so on.

Sources: the node counts of Graft (arXiv 2605.20104), Table 7; the tree published with Token Recycling (2408.08696).
"""

from __future__ import annotations

import importlib.resources
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

Path = tuple[int, ...]
# A node's weight by rank: docs/choices.md, templates.
WEIGHTS = (1.0, 0.27, 0.16, 0.09, 0.06, 0.045, 0.035, 0.028)
WIDEST = len(WEIGHTS)  # most children of a node
DEEPEST = 9  # layers in Graft's Table 7
STAGES = {"full": 80, "d0": 52, "d1": 36, "d5": 20}  # retrieved nodes by pruning stage: Graft, Table 7
SMALL: dict[int, tuple[Path, ...]] = {  # hand-made trees for small budgets: docs/choices.md, templates
    3: ((0,), (1,), (0, 0)),
    5: ((0,), (1,), (2,), (0, 0), (0, 0, 0)),
    6: ((0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0)),
}
# Number of children per path in the authors' tree (2408.08696); paths that are not listed have none.
RECYCLING = {
    "": 8,
    "0": 8,
    "1": 4,
    "2": 3,
    "3": 2,
    "4": 1,
    "5": 1,
    "6": 1,
    "7": 1,
    "00": 8,
    "01": 3,
    "02": 2,
    "03": 1,
    "04": 1,
    "05": 1,
    "06": 1,
    "07": 1,
    "10": 2,
    "11": 1,
    "20": 1,
    "30": 1,
    "40": 1,
    "50": 1,
    "000": 5,
    "001": 2,
    "002": 1,
    "003": 1,
    "004": 1,
    "010": 1,
    "020": 1,
    "100": 1,
    "200": 1,
    "300": 1,
    "0000": 3,
    "0001": 1,
    "0002": 1,
    "0010": 1,
    "0100": 1,
    "1000": 1,
    "00000": 2,
    "00010": 1,
}


@dataclass(frozen=True)
class Template:
    """A fixed tree; `paths` lists the nodes below the root, best first, parents before children."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def parents(self) -> list[int]:
        """[N + 1] each node's parent as a tree index; the root comes first with -1."""
        place = {path: node for node, path in enumerate([(), *self.paths])}
        return [-1] + [place[path[:-1]] for path in self.paths]

    @cached_property
    def ranks(self) -> list[int]:
        """[N + 1] each node's rank among its parent's successors; the root comes first with -1."""
        return [-1] + [path[-1] for path in self.paths]

    @property
    def counts(self) -> list[int]:
        """Nodes per depth, from depth 1."""
        by_depth = Counter(map(len, self.paths))
        return [by_depth[depth] for depth in range(1, max(by_depth) + 1)]

    def levels(self, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Returns (nodes, their parents, their ranks) for each depth, as index tensors on `device`."""
        return _levels(self, device)


@cache
def _levels(template: Template, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    levels = []
    for depth in range(1, max(map(len, template.paths), default=0) + 1):
        nodes = [node for node, path in enumerate(template.paths, 1) if len(path) == depth]
        parents = [template.parents[node] for node in nodes]
        ranks = [template.ranks[node] for node in nodes]
        levels.append(
            (
                torch.tensor(nodes, device=device),
                torch.tensor(parents, device=device),
                torch.tensor(ranks, device=device),
            )
        )
    return levels


@cache
def graft_templates() -> dict[str, Template]:
    """Returns the templates full, d0, d1 and d5 (docs/choices.md, templates)."""
    file = importlib.resources.files("longgraft.trees").joinpath("graft_templates.json")
    paths = json.loads(file.read_text("utf-8"))
    return {name: Template(tuple(map(tuple, paths[name]))) for name in STAGES}


@cache
def token_recycling() -> Template:
    """Returns the 80 nodes of Token Recycling's tree, by depth, then in lexicographic order."""
    paths = [(*tuple(map(int, parent)), rank) for parent, n in RECYCLING.items() for rank in range(n)]
    return Template(tuple(sorted(paths, key=lambda path: (len(path), path))))


@cache
def chain(length: int) -> Template:
    """Returns a chain of `length` first successors."""
    return Template(tuple((0,) * depth for depth in range(1, length + 1)))


@cache
def for_slots(n: int) -> Template:
    """Returns a template of exactly n nodes: a pruning stage's, a small one, or the nearest stage's scaled to n."""
    for name, size in STAGES.items():
        if n == size:
            return graft_templates()[name]
    if n in SMALL:
        return Template(SMALL[n])
    return _fill(_scaled(n))


@cache
def envelope(slots: int) -> Template:
    """Returns `for_slots(slots)` followed by the other nodes of the full template.

    These take the slots that duplicates leave free (docs/choices.md, duplicates).
    """
    return _followed(for_slots(slots), graft_templates()["full"])


@cache
def bounded(slots: int, depth: int, width: int) -> Template:
    """Returns an `envelope` of at most `depth` layers and `width` successors per node (Graft, Figure 6).

    It has as many nodes as these bounds allow.  Beyond the nine layers of Table 7 the last layer's count is
    repeated.
    """
    if (depth, width) == (DEEPEST, WIDEST):
        return envelope(slots)
    return _followed(*(_fill(_scaled(n, depth, width), width) for n in (slots, STAGES["full"])))


def _followed(first: Template, more: Template) -> Template:
    """Returns the first template with the nodes that only the other one has after it."""
    paths = set(first.paths)
    return Template(first.paths + tuple(path for path in more.paths if path not in paths))


def _scaled(n: int, deepest: int | None = None, width: int = WIDEST) -> list[int]:
    """Returns the number of nodes per depth, n in all: the nearest stage's counts times n / size.

    Counts are rounded by largest remainder.  If the bounds leave no room, the sum is below n.

    Args:
        n: Number of nodes.
        deepest: Bound of the depth; None: no bound.
        width: Bound of the children per node.
    """
    name = min(STAGES, key=lambda stage: abs(STAGES[stage] - n))
    counts = graft_templates()[name].counts
    if deepest is not None:
        counts = (counts + [counts[-1]] * deepest)[:deepest]
    exact = [count * n / sum(counts) for count in counts]
    scaled = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda depth: (scaled[depth] - exact[depth], depth))
    for depth in by_remainder[: n - sum(scaled)]:
        scaled[depth] += 1
    # A layer has at most `width` nodes per parent; what does not fit goes to deeper or shallower layers.
    rest = 0
    for depth in range(len(scaled)):
        most = width * (scaled[depth - 1] if depth else 1)
        over = max(0, scaled[depth] - most)
        scaled[depth] -= over
        if over and depth + 1 < len(scaled):
            scaled[depth + 1] += over
        elif over and deepest is None:
            scaled.append(over)
        else:
            rest += over
    if 0 in scaled:  # An empty layer ends the tree, so nodes below it widen the layers above.
        end = scaled.index(0)
        rest += sum(scaled[end:])
        scaled = scaled[:end]
    for depth in range(len(scaled)):
        room = min(rest, width * (scaled[depth - 1] if depth else 1) - scaled[depth])
        scaled[depth] += room
        rest -= room
    if deepest is not None:
        return scaled
    return scaled + [1] * rest


def _fill(counts: Sequence[int], width: int = WIDEST) -> Template:
    """Fills layer by layer with the children of largest path weight; the ranks of siblings are contiguous."""
    layer: list[tuple[float, Path]] = [(1.0, ())]
    paths: list[Path] = []
    for count in counts:
        children = [
            (weight * factor, (*path, rank)) for weight, path in layer for rank, factor in enumerate(WEIGHTS[:width])
        ]
        layer = sorted(children, key=lambda child: (-child[0], child[1]))[:count]
        paths += sorted(path for _, path in layer)
    return Template(tuple(paths))
