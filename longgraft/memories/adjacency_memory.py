"""The adjacency matrix as a memory.

Rows are written from verified nodes and the prompt; tokens without a row take their successors from predictions.
Sources: Graft (arXiv 2605.20104, Eq. 12, 14), Token Recycling (2408.08696).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Walked, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent

MOST_WAITING = 64       # most observations that wait to be written


class AdjacencyMemory(Memory):
    """The adjacency matrix as a memory.

    snapshot: warm rows [V + 1, K] that each request starts from; None: empty rows
    lasting:  True if rows outlive the request
    seeded:   True if prompt positions write rows; Token Recycling's do not
    in_order: write in the tree's row order (Token Recycling); False: the worst nodes first, the accepted path last
    regions:  if they are fixed, passes of fixed shape are written at once, on the device
    """

    name = "matrix"

    def __init__(self, matrix: AdjacencyMatrix, *, snapshot: Tensor | None = None, lasting: bool = False,
                 seeded: bool = True, in_order: bool = False, clock: Clock | None = None,
                 regions: Regions = EAGER) -> None:
        self._matrix, self.snapshot, self.regions = matrix, snapshot, regions
        self.lasting, self.seeded, self.in_order = lasting, seeded, in_order
        self.clock = clock or Clock()
        self.wants = Wants(topk=matrix.width)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._predictions: tuple[tuple[Tensor, Tensor], ...] = ()      # tokens and rows that were filled in
        matrix.restore(snapshot)

    @property
    def device(self) -> torch.device:
        return self._matrix.rows.device

    @property
    def matrix(self) -> AdjacencyMatrix:
        """The matrix with all observations written."""
        self._write()
        return self._matrix

    def reset(self, capacity: int) -> None:
        if self.lasting:
            for tokens, rows in self._predictions:
                self.matrix.take_out(tokens, rows)
        else:
            self._waiting = []
            self._matrix.restore(self.snapshot)
        self._predictions = ()

    @torch.inference_mode()
    def observe_prediction(self, tokens: Tensor) -> None:
        """Gives tokens without a row their most frequent successors in the prediction."""
        matrix = self.matrix
        firsts, rows = (sent(part, self.device) for part in _successors(tokens, matrix.width, matrix.unseen))
        matrix.fill_in(firsts, rows)
        self._predictions += ((firsts, rows),)

    def observe(self, seen: Observation) -> None:
        if seen.prompt and not self.seeded:
            return
        if seen.walked is not None:
            return self._observe_walked(seen.walked)
        assert seen.topk is not None
        # The pass reports the widest top-k that any memory wants.
        tokens, topk = seen.tree.tokens, seen.topk[:, :self._matrix.width]
        if seen.ranked is not None:
            tokens = tokens[seen.ranked]
        elif not (seen.prompt or self.in_order):
            order = _worst_first(seen)
            tokens, topk = tokens[order], topk[sent(order, topk.device)]
        self._waiting.append((tokens, topk))
        if seen.prompt or len(self._waiting) > MOST_WAITING:
            self._write()

    @torch.inference_mode()
    def _observe_walked(self, walked: Walked) -> None:
        self._write()
        with self.clock.part("update"):
            # The walk's tensors belong to its pass and are the same at each replay.
            self.regions((self, walked), lambda: self._update(walked))

    def _update(self, walked: Walked) -> None:
        tree, topk = walked.tree, walked.topk
        assert topk is not None
        order = torch.arange(len(tree.tokens), device=topk.device) if self.in_order else \
            tree.update_order(walked.path)
        tokens = torch.where(tree.live, tree.tokens, self._matrix.vocab_size)       # dead nodes write to no row
        self._matrix.update(tokens[order], topk[:, :self._matrix.width][order])

    def _write(self) -> None:
        """Writes waiting observations.  Called before rows are read, so steps that read none write none."""
        if not self._waiting:
            return
        with self.clock.part("update"):
            tokens, topk = (torch.cat(column) for column in zip(*self._waiting, strict=True))
            self._waiting = []
            self._matrix.update(tokens, topk)

    def mark(self) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
        return self.matrix.snapshot(), self._predictions

    def rewind(self, mark: tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]) -> None:
        self._waiting = []
        self._matrix.restore(mark[0])
        self._predictions = mark[1]


def _successors(tokens: Tensor, width: int, unseen: int) -> tuple[Tensor, Tensor]:
    """Returns the m distinct tokens [m] that something follows, and their successors [m, K] int32, most frequent first.

    tokens: [n] int64
    """
    pairs, counts = np.unique(np.stack([tokens[:-1].numpy(), tokens[1:].numpy()]), axis=1, return_counts=True)
    firsts, seconds = pairs[:, np.lexsort((-counts, pairs[0]))]
    distinct, starts, places = np.unique(firsts, return_index=True, return_inverse=True)
    ranks = np.arange(len(firsts)) - starts[places]
    rows = np.full((len(distinct), width), unseen, dtype=np.int32)
    kept = ranks < width
    rows[places[kept], ranks[kept]] = seconds[kept]
    return torch.from_numpy(distinct), torch.from_numpy(rows)


def _worst_first(seen: Observation) -> Tensor:
    """Returns the n nodes in writing order: rejected retrieved ones latest first, rejected drafted ones by score, the
    path.

    If two nodes carry the same token, the later write stands, so what the target accepted must come last
    (docs/choices.md, order of writes).
    """
    path = seen.path.tolist()
    kept = set(path)
    scores = seen.tree.scores.tolist()
    rejected = [node for node in range(len(seen.tree)) if node not in kept]
    # nan has no order: retrieved nodes (score nan) count as -inf, later ones as worse.
    rejected.sort(key=lambda node: (scores[node] if scores[node] == scores[node] else float("-inf"), -node))
    return torch.tensor(rejected + path)
