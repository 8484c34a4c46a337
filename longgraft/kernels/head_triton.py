"""The bookkeeping of an EAGLE-3 draft's beam in Triton, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.kernels.topk_triton import _key, _rank


def beam(scores: Tensor, best: Tensor, gains: Tensor, visible: Tensor, offset: int) -> tuple[Tensor, ...]:
    """Does `trees.beams.beam` in one launch; of equal scores the first is the best."""
    b, k = gains.shape
    m = visible.shape[1]
    sums = gains.new_empty(b * k)
    parents = gains.new_empty(b * k, dtype=torch.int64)
    chosen, above = gains.new_empty(2, k, dtype=torch.int64)
    following = visible.new_empty(k, m + k)
    with torch.cuda.device_of(gains):
        _beam[(1,)](
            scores,
            best,
            gains,
            visible.view(torch.uint8),
            sums,
            parents,
            chosen,
            above,
            following.view(torch.uint8),
            offset,
            m,
            B=b,
            K=k,
            WIDTH=triton.next_power_of_2(b * k),
            COLUMNS=triton.next_power_of_2(m + k),
            num_warps=4,
        )
    return sums, parents, chosen, above, following


@triton.jit
def _beam(
    SCORES,
    BEST,
    GAINS,
    VISIBLE,
    SUMS,
    PARENTS,
    CHOSEN,
    ABOVE,
    FOLLOWING,
    offset,
    m,
    B: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    child = tl.arange(0, WIDTH)
    inside = child < B * K
    parent = tl.load(BEST + child // K, mask=inside, other=0)
    score = tl.load(SCORES + parent, mask=inside, other=0.0) + tl.load(GAINS + child, mask=inside, other=0.0)
    tl.store(SUMS + child, score, mask=inside)
    tl.store(PARENTS + child, offset + parent, mask=inside)
    ranks = _rank(_key(score, inside), child)
    column = tl.arange(0, COLUMNS)
    for place in tl.static_range(K):
        highest = tl.max(ranks, 0)
        found = (highest & 2147483647).to(tl.int32) ^ 2147483647
        tl.store(CHOSEN + place, found)
        tl.store(ABOVE + place, found // K)
        seen = tl.load(VISIBLE + found // K * m + column, mask=column < m, other=0)
        seen = tl.where(column == m + place, 1, seen).to(tl.int8)
        tl.store(FOLLOWING + place * (m + K) + column, seen, mask=column < m + K)
        ranks = tl.where(ranks == highest, -9223372036854775807 - 1, ranks)
