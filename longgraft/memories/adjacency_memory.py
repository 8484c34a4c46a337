"""The adjacency matrix as a memory.

Rows are written from verified nodes and the prompt; tokens without a row take their successors from
predictions.
Sources: Graft (arXiv 2605.20104, Eq. 12, 14), Token Recycling (2408.08696).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longgraft.memories.adjacency import UNSEEN, AdjacencyMatrix
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Walked, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent

MOST_WAITING = 64  # passes whose observations wait to be written at most

Rows = tuple[Tensor, Tensor]
"""Tokens [n] int64 and their top-k [n, K], in writing order."""


class MatrixWrites:
    """Rows that wait to be written to a matrix, by one memory or by those of several requests that share it.

    One update writes all of them.  Its order is defined, because the later of two writes to one row stands:
    passes in turn; within a pass first the rejected nodes of every request, then what each request kept;
    requests in the order of their memories.
    """

    def __init__(self, matrix: AdjacencyMatrix) -> None:
        self.matrix = matrix
        self._memories = 0
        self._running: set[int] = set()
        self._passes: list[dict[int, tuple[Rows, Rows]]] = []  # of each pass: (rejected, kept) by memory

    def join(self, snapshot: Tensor | None) -> int:
        """Returns the number of a new memory; the first one sets the matrix to a snapshot."""
        if not self._memories:
            self.matrix.restore(snapshot)
        self._memories += 1
        return self._memories - 1

    @property
    def alone(self) -> bool:
        """True if one memory writes, so that no other request's rows belong to the same pass."""
        return self._memories == 1

    def begin(self, memory: int) -> bool:
        """Begins a request; returns True if no other one runs."""
        self._running.add(memory)
        return len(self._running) == 1

    def end(self, memory: int) -> None:
        """Ends a request; what it observed is still written."""
        self._running.discard(memory)

    def add(self, memory: int, rejected: Rows, kept: Rows) -> None:
        """Adds an observation; a memory has one a pass."""
        if not self._passes or memory in self._passes[-1]:
            if len(self._passes) == MOST_WAITING:
                self.write()
            self._passes.append({})
        self._passes[-1][memory] = rejected, kept

    def write(self) -> None:
        """Writes all that waits."""
        if not self._passes:
            return
        rows = []
        for observations in self._passes:
            memories = sorted(observations)
            rows += [observations[memory][0] for memory in memories]  # rejected
            rows += [observations[memory][1] for memory in memories]  # kept
        self._passes = []
        tokens, topk = (torch.cat(column) for column in zip(*rows, strict=True))
        self.matrix.update(tokens, topk)

    def restore(self, snapshot: Tensor | None) -> None:
        """Sets the matrix to a snapshot; nothing waits then."""
        self._passes = []
        self.matrix.restore(snapshot)


@dataclass(frozen=True)
class MatrixKind:
    """The properties by which adjacency matrices differ; methods that ask for equal ones share a memory.

    Attributes:
        warm: Each request starts from the calibration's rows, if any.
        unseen: Id in the rows of tokens that were not seen.
        shared: All lanes of the engine write to one matrix.
        seeded: Prompt positions write rows; Token Recycling's do not.
        in_order: Write in the tree's row order (Token Recycling); False: the worst nodes first, the accepted path last.
        lasting: Rows outlive the request.
    """

    warm: bool = True
    unseen: int = UNSEEN
    shared: bool = False
    seeded: bool = True
    in_order: bool = False
    lasting: bool = False


class AdjacencyMemory(Memory):
    """The adjacency matrix as a memory.

    Args:
        writes: The matrix.  If memories of requests that run at once share it, a request starts from the snapshot only
            if it runs alone.
        snapshot: Warm rows [V + 1, K] that each request starts from; None: empty rows.
        clock: What measures the parts of a step.
        regions: If they are fixed, passes of fixed shape are written at once, on the device.
    """

    name = "matrix"

    def __init__(
        self,
        writes: MatrixWrites,
        kind: MatrixKind = MatrixKind(),
        snapshot: Tensor | None = None,
        clock: Clock | None = None,
        regions: Regions = EAGER,
    ) -> None:
        self._matrix = writes.matrix
        self.snapshot = snapshot
        self.regions = regions
        self.lasting = kind.lasting
        self.kind = kind
        self.clock = clock or Clock()
        self.wants = Wants(topk=writes.matrix.width)
        self._predictions: tuple[Rows, ...] = ()  # what was filled in
        self._writes = writes
        self._number = self._writes.join(snapshot)

    @property
    def device(self) -> torch.device:
        return self._matrix.rows.device

    @property
    def matrix(self) -> AdjacencyMatrix:
        """The matrix with all observations written."""
        self._write()
        return self._matrix

    def reset(self, capacity: int) -> None:
        self._forget_predictions()
        if self._writes.begin(self._number) and not self.lasting:
            self._writes.restore(self.snapshot)

    def release(self) -> None:
        self._forget_predictions()
        self._writes.end(self._number)

    def _forget_predictions(self) -> None:
        for tokens, rows in self._predictions:
            self.matrix.take_out(tokens, rows)
        self._predictions = ()

    @torch.inference_mode()
    def observe_prediction(self, tokens: Tensor) -> None:
        """Gives tokens without a row their most frequent successors in the prediction."""
        matrix = self.matrix
        firsts, rows = (sent(part, self.device) for part in _successors(tokens, matrix.width, matrix.unseen))
        matrix.fill_in(firsts, rows)
        self._predictions += ((firsts, rows),)

    def observe(self, seen: Observation) -> None:
        if seen.prompt and not self.kind.seeded:
            return
        if seen.walked is not None:
            return self._observe_walked(seen.walked)
        assert seen.topk is not None
        # The pass reports the widest top-k that any memory wants.
        tokens = seen.tree.tokens
        topk = seen.topk[:, : self._matrix.width]
        rejected = 0
        if seen.ranked is not None:
            tokens = tokens[seen.ranked]
        elif not (seen.prompt or self.kind.in_order):
            order = _worst_first(seen)
            tokens = tokens[order]
            topk = topk[sent(order, topk.device)]
            rejected = len(order) - len(seen.path)
        self._writes.add(self._number, (tokens[:rejected], topk[:rejected]), (tokens[rejected:], topk[rejected:]))
        if seen.prompt and self._writes.alone:  # a part of reading, and not of the first step
            self._write()

    @torch.inference_mode()
    def _observe_walked(self, walked: Walked) -> None:
        self._write()
        with self.clock.part("update"):
            # The walk's tensors belong to its pass and are the same at each replay.
            self.regions((self, walked), lambda: self._update(walked))

    def _update(self, walked: Walked) -> None:
        tree = walked.tree
        topk = walked.topk
        assert topk is not None
        if self.kind.in_order:
            rows = len(tree.tokens)
            order = torch.arange(rows, device=topk.device)
        else:
            order = tree.update_order(walked.path)
        # Dead nodes write to no row.
        tokens = torch.where(tree.live, tree.tokens, self._matrix.vocab_size)
        self._matrix.update(tokens[order], topk[:, : self._matrix.width][order])

    def _write(self) -> None:
        """Writes waiting observations.  Called before rows are read, so steps that read none write none."""
        with self.clock.part("update"):
            self._writes.write()

    def mark(self) -> tuple[Tensor, tuple[Rows, ...]]:
        return self.matrix.snapshot(), self._predictions

    def rewind(self, mark: tuple[Tensor, tuple[Rows, ...]]) -> None:
        rows, self._predictions = mark
        self._writes.restore(rows)


def _successors(tokens: Tensor, width: int, unseen: int) -> tuple[Tensor, Tensor]:
    """Returns the m distinct tokens [m] that something follows, and their successors [m, K] int32, most frequent first.

    tokens: [n] int64; width: successors per token; unseen: id where there are fewer
    """
    pairs, counts = np.unique(np.stack([tokens[:-1].numpy(), tokens[1:].numpy()]), axis=1, return_counts=True)
    firsts, seconds = pairs[:, np.lexsort((-counts, pairs[0]))]
    distinct, starts, places = np.unique(firsts, return_index=True, return_inverse=True)
    ranks = np.arange(len(firsts)) - starts[places]
    rows = np.full((len(distinct), width), unseen, dtype=np.int32)
    fits = ranks < width
    rows[places[fits], ranks[fits]] = seconds[fits]
    return torch.from_numpy(distinct), torch.from_numpy(rows)


def _worst_first(seen: Observation) -> Tensor:
    """Returns the n nodes in writing order: rejected retrieved ones latest first, rejected drafted ones by
    score, the path.

    If two nodes carry the same token, the later write stands, so what the target accepted must come last
    (docs/choices.md, order of writes).
    """
    path = seen.path.tolist()
    kept = set(path)
    scores = seen.tree.scores.tolist()
    rejected = [node for node in range(len(seen.tree)) if node not in kept]

    def order(node: int) -> tuple[float, int]:
        # nan has no order: retrieved nodes (score nan) count as -inf, later ones as worse.
        score = float("-inf") if math.isnan(scores[node]) else scores[node]
        return score, -node

    rejected.sort(key=order)
    return torch.tensor(rejected + path)
