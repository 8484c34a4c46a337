"""The most probable tokens of logits and their probabilities, or their logarithms, in Triton, in one launch.

A program reads one row and keeps, for each place of a tile, the largest logit and the sum of exponentials.  Then, K
times, it takes the best token and searches the V / TILE tokens of the same place for the next one.  A row is not split
over programs: passes that want top-k have tens of rows, and merging the parts would take a second launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 16
TILE = 4096  # tokens that a program reads at once

LAST = tl.constexpr(2147483647)  # above all ids; as a key, a NaN
NO_KEY = tl.constexpr(-2147483648)  # below the keys of all logits
NO_RANK = tl.constexpr(-9223372036854775808)


def topk(logits: Tensor, k: int, probabilities: bool, tile: int = TILE) -> tuple[Tensor, Tensor | None]:
    """Does `target_model.topk.best`: of equal logits the lowest ids are the best, and NaN is larger than all numbers.

    Args:
        logits: [n, V] float32, bfloat16 or float16, each row contiguous.
        k: Number of tokens per row, at most V.
        probabilities: True to return these too.
        tile: Tokens that a program reads at once, a power of two.

    Returns:
        ([n, k] int32, [n, k] float32 or None).
    """
    rows = len(logits)
    ids = logits.new_empty(rows, k, dtype=torch.int32)
    shares = logits.new_empty(rows, k, dtype=torch.float32) if probabilities else None
    _launch(logits, ids, shares, None, tile)
    return ids, shares


def children(logits: Tensor, k: int, offsets: Tensor, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """Returns a draft head's k best tokens, as the target's, and their log-probabilities, [n, k] int64 and float32.

    Args:
        logits: As in `topk`, over the draft vocabulary.
        k: Number of tokens per row, at most V.
        offsets: [V] int64, the target's id of each token less its own.
        tile: As in `topk`.
    """
    ids = logits.new_empty(len(logits), k, dtype=torch.int64)
    gains = logits.new_empty(len(logits), k, dtype=torch.float32)
    _launch(logits, ids, gains, offsets, tile)
    return ids, gains


def _launch(logits: Tensor, ids: Tensor, shares: Tensor | None, offsets: Tensor | None, tile: int) -> None:
    rows, vocabulary = logits.shape
    k = ids.shape[1]
    column = triton.next_power_of_2(triton.cdiv(vocabulary, tile))
    with torch.cuda.device_of(logits):
        _topk[(rows,)](logits, ids, shares, offsets, vocabulary, logits.stride(0), k, tile, column, num_warps=WARPS)


@triton.jit
def _flipped(bits):
    """Turns a float's bits into an int32 that sorts as the float does, and back."""
    return bits ^ ((bits >> 31) & 2147483647)


@triton.jit
def _key(x, inside):
    """int32 that sort as the logits do: equal for 0 and -0, one for all NaNs, which are the largest."""
    key = _flipped((x + 0.0).to(tl.int32, bitcast=True))
    return tl.where(inside, tl.where(x != x, LAST, key), NO_KEY)


@triton.jit
def _rank(keys, tokens):
    """Distinct int64 that sort by logit, then from the highest id to the lowest."""
    return (keys.to(tl.int64) << 32) | (tokens ^ LAST).to(tl.int64)


@triton.jit
def _shrunk(x, highest):
    """exp(x - highest), also 1 where both are infinite."""
    return tl.where(x == highest, 1.0, tl.exp(x - highest))


@triton.jit
def _topk(
    LOGITS,
    IDS,
    SHARES,
    OFFSETS,
    vocabulary,
    logits_row,
    K: tl.constexpr,
    TILE: tl.constexpr,
    COLUMN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * logits_row
    place = tl.arange(0, TILE)
    keys = tl.full([TILE], NO_KEY, tl.int32)
    firsts = tl.zeros([TILE], tl.int32)
    tops = tl.full([TILE], float("-inf"), tl.float32)
    sums = tl.zeros([TILE], tl.float32)  # of exp(logit - tops); NaN if a logit is
    for start in range(0, vocabulary, TILE):
        tokens = start + place
        inside = tokens < vocabulary
        x = tl.load(logits + tokens, mask=inside, other=float("-inf")).to(tl.float32)
        key = _key(x, inside)
        higher = key > keys
        if SHARES is not None:
            # One exponential serves both cases: the sum shrinks, or the new term is small.
            small = _shrunk(tl.where(higher, tops, x), tl.where(higher, x, tops))
            sums = tl.where(higher, sums * small + 1.0, sums + small)
            tops = tl.where(higher, x, tops)
        firsts = tl.where(higher, tokens, firsts)
        keys = tl.where(higher, key, keys)
    if SHARES is not None:
        highest = tl.max(tops, 0)
        total = tl.sum(sums * _shrunk(tops, highest), 0)
    ranks = _rank(keys, firsts)
    for found in tl.static_range(K):
        best = tl.max(ranks, 0)
        token = (best & LAST).to(tl.int32) ^ LAST
        if SHARES is not None:
            x = _flipped((best >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        if OFFSETS is None:
            tl.store(IDS + row * K + found, token)
            if SHARES is not None:
                tl.store(SHARES + row * K + found, tl.div_rn(tl.exp(x - highest), total))
        else:
            tl.store(IDS + row * K + found, token + tl.load(OFFSETS + token))
            tl.store(SHARES + row * K + found, x - highest - tl.log(total))
        if found + 1 < K:
            tokens = token % TILE + tl.arange(0, COLUMN) * TILE
            inside = tokens < vocabulary
            x = tl.load(logits + tokens, mask=inside, other=float("-inf")).to(tl.float32)
            others = _rank(_key(x, inside), tokens)
            following = tl.max(tl.where(others < best, others, NO_RANK), 0)
            ranks = tl.where(ranks == best, following, ranks)
