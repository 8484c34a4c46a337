"""The beam of a drafted level: the best of all children of the beam before."""

from __future__ import annotations

import torch
from torch import Tensor


def beam(scores: Tensor, best: Tensor, gains: Tensor, visible: Tensor, offset: int) -> tuple[Tensor, ...]:
    """Scores the k children of each of b nodes, and chooses the best k of all.

    Args:
        scores: [c] float32, scores of the paths to the candidates of the level before.
        best: [b] int64, its nodes among them.
        gains: [b, k] float32, log-probabilities of the nodes' children.
        visible: [b, m] bool, the scratch rows that each node sees, its own included.
        offset: Index of the level before's first candidate among those of all levels.

    Returns:
        (the children's scores [b k], their parents among the candidates of all levels [b k], the chosen
        children [k], the nodes above these [k], the scratch rows that these see [k, m + k]).
    """
    k = gains.shape[1]
    sums = (scores[best][:, None] + gains).flatten()  # Eq. 5
    chosen = sums.topk(k).indices
    above = chosen // k
    itself = torch.eye(k, dtype=torch.bool, device=gains.device)
    parents = (offset + best).repeat_interleave(k)
    return sums, parents, chosen, above, torch.cat([visible[above], itself], dim=1)
