"""Draws in one Triton launch: temperature, top-k, top-p and min-p, then Gumbel-max, each row with settings of its own.

A program draws one row's token.  It neither sorts nor writes tensors of the vocabulary's size, and sums integers,
so a draw depends neither on the tiles nor on the other rows.  The steps:

1. Find the largest score.
2. Find top-k's border by bisection over the bits of the scores (counts).
3. Sum the exponentials.
4. List the tokens that can be inside top-p: all others together have less mass than may be dropped.
5. Find top-p's border by bisection over the listed tokens' bits (masses).
6. Find the largest sum of score and noise.  Only tiles in which a token can still win compute noise.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # a * b + c rounds twice, as on a CPU
WARPS = 16
TILE = 4096  # tokens that a program reads at once
LISTED = 8192  # most listed tokens of a row; a row with more searches its whole vocabulary
# Numbers of a row: position, seed (`of_seed`), temperature and min-p (as float32 bits), top-k, mass that top-p drops.
COLUMNS = 6
# By dtype, (bits that the order of its numbers does not need, the others, rounded up to an even number).
ORDER_BITS = {torch.float32: (0, 32), torch.bfloat16: (16, 16), torch.float16: (13, 20)}

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)  # the constants of SplitMix64, as in `gumbel`
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)
MOST_NOISE = tl.constexpr(37.0)  # above the noise of the largest uniform number
MOST_BITS = tl.constexpr(4503599627370495)  # 2 ** 52 - 1, the largest random number of `_random_bits`
ONE = tl.constexpr(4611686018427387904.0)  # 2 ** 62, probability 1 as an integer
FIXED = tl.constexpr(8796093022208.0)  # 2 ** 43, one exponential as an integer


def draw(logits: Tensor, keys: Tensor, tile: int = TILE, listed: int = LISTED) -> Tensor:
    """Draws tokens as `Sampled.choose_on_cpu` does.

    Args:
        logits: [n, V] float32, bfloat16 or float16, each row contiguous.
        keys: [n, COLUMNS] int64, a row's position and settings.
        tile: Tokens that a program reads at once, a power of two.
        listed: Most listed tokens of a row.

    Returns:
        [n] int64.
    """
    rows, vocabulary = logits.shape
    out = keys.new_empty(rows)
    scratch = keys.new_empty(rows, listed, dtype=torch.int32)
    shift, bits = ORDER_BITS[logits.dtype]
    with torch.cuda.device_of(logits):
        _draw[(rows,)](
            logits,
            keys,
            scratch,
            out,
            vocabulary,
            logits.stride(0),
            keys.stride(0),
            shift,
            bits,
            tile,
            listed,
            num_warps=WARPS,
            **EXACT,
        )
    return out


@triton.jit
def _mixed(x):
    """SplitMix64's output for these states, uint64."""
    x = x + GOLDEN
    x = (x ^ (x >> 30)) * FIRST
    x = (x ^ (x >> 27)) * SECOND
    return x ^ (x >> 31)


@triton.jit
def _random_bits(tokens, key):
    """52 random bits for each token, int64."""
    return (_mixed(tokens.to(tl.uint64) * GOLDEN + key) >> 12).to(tl.int64)


@triton.jit
def _noise(bits):
    """Gumbel noise, float64."""
    return -tl.log(-tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16))


@triton.jit
def _ordered(x):
    """uint32 that sort as the numbers do; equal for 0 and -0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _scores(logits, tokens, inside, temperature, SHIFT: tl.constexpr):
    """Scores and ordered keys of tokens; those outside have score -inf, and key 0, which no number has."""
    x = tl.load(logits + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    score = tl.div_rn(x, temperature)
    # Numbers of half precision stay apart when they are divided, and have fewer bits to search.
    key = _ordered(x if SHIFT else score) >> SHIFT
    return score, tl.where(inside, key, 0)


@triton.jit
def _mass(score, highest, total):
    """Probabilities as integers."""
    return (tl.div_rn(tl.exp(score - highest), total).to(tl.float64) * ONE).to(tl.int64)


@triton.jit
def _token(scratch, places, inside, listed):
    """The token at each place: of the list, or the place itself if the whole vocabulary is searched."""
    return tl.where(listed, tl.load(scratch + places, mask=inside & listed, other=0), places)


@triton.jit
def _draw(
    LOGITS,
    ROW_KEYS,
    SCRATCH,
    OUT,
    vocabulary,
    logits_row,
    keys_row,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    LISTED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * logits_row
    scratch = SCRATCH + row * LISTED
    own = ROW_KEYS + row * keys_row
    position = tl.load(own).to(tl.uint64, bitcast=True)
    seed = tl.load(own + 1).to(tl.uint64, bitcast=True)
    temperature = _float(tl.load(own + 2))
    min_p = _float(tl.load(own + 3))
    top_k = tl.load(own + 4)
    dropped = tl.load(own + 5)
    key = _mixed(position * GOLDEN + seed)
    has_top_k = (top_k > 0) & (top_k < vocabulary)
    has_top_p = dropped >= 0
    index = tl.arange(0, TILE)

    # 1. The largest score and its first token.  NaN counts as larger than all numbers, as in torch's argmax.
    tops = tl.full([TILE], float("-inf"), tl.float32)  # of each place of a tile; reduced after the loop
    firsts = tl.zeros([TILE], tl.int32)
    nans = tl.full([TILE], 2147483647, tl.int32)
    for start in range(0, vocabulary, TILE):
        tokens = start + index
        score, _ = _scores(logits, tokens, tokens < vocabulary, temperature, SHIFT)
        nans = tl.minimum(nans, tl.where(score != score, tokens, 2147483647))
        higher = score > tops
        firsts = tl.where(higher, tokens, firsts)
        tops = tl.where(higher, score, tops)
    highest = tl.max(tops, 0)
    best = tl.min(tl.where(tops == highest, firsts, vocabulary), 0)
    nan = tl.minimum(tl.min(nans, 0), vocabulary)
    finite = (nan == vocabulary) & (tl.abs(highest) < float("inf"))
    if nan < vocabulary:
        best = nan
    if finite:
        # 2. top-k: the largest key that at least k tokens reach.
        lowest = tl.zeros([], tl.uint32)
        if has_top_k:
            for step in range(BITS // 2):
                unit = tl.full([], 1, tl.uint32) << (BITS - 2 - 2 * step)
                reach_1 = tl.zeros([TILE], tl.int32)
                reach_2 = tl.zeros([TILE], tl.int32)
                reach_3 = tl.zeros([TILE], tl.int32)
                for start in range(0, vocabulary, TILE):
                    tokens = start + index
                    inside = tokens < vocabulary
                    _, keys = _scores(logits, tokens, inside, temperature, SHIFT)
                    reach_1 += (inside & (keys >= lowest + unit)).to(tl.int32)
                    reach_2 += (inside & (keys >= lowest + 2 * unit)).to(tl.int32)
                    reach_3 += (inside & (keys >= lowest + 3 * unit)).to(tl.int32)
                digit = (tl.sum(reach_1, 0) >= top_k).to(tl.uint32)
                digit += (tl.sum(reach_2, 0) >= top_k).to(tl.uint32)
                digit += (tl.sum(reach_3, 0) >= top_k).to(tl.uint32)
                lowest += digit * unit
        count = vocabulary  # of the tokens to search
        listed = False
        total = 1.0
        border = lowest
        drop = tl.zeros([], tl.int64)  # tokens at the border that are dropped, the first ones
        if has_top_p:
            # 3. The sum of exponentials.
            sums = tl.zeros([TILE], tl.int64)
            for start in range(0, vocabulary, TILE):
                tokens = start + index
                score, keys = _scores(logits, tokens, tokens < vocabulary, temperature, SHIFT)
                share = tl.where(keys >= lowest, tl.exp(score - highest), 0.0)
                sums += (share.to(tl.float64) * FIXED).to(tl.int64)
            total = (tl.sum(sums, 0).to(tl.float64) / FIXED).to(tl.float32)
            # 4. The tokens that can be inside.
            least_mass = dropped // vocabulary // 100 * 99
            found = tl.zeros([], tl.int32)
            all_masses = tl.zeros([TILE], tl.int64)
            unlisted_masses = tl.zeros([TILE], tl.int64)
            for start in range(0, vocabulary, TILE):
                tokens = start + index
                score, keys = _scores(logits, tokens, tokens < vocabulary, temperature, SHIFT)
                mass = tl.where(keys >= lowest, _mass(score, highest, total), 0)
                can = mass > least_mass
                all_masses += mass
                unlisted_masses += tl.where(can, 0, mass)
                place = found + tl.cumsum(can.to(tl.int32), 0) - 1
                tl.store(scratch + place, tokens, mask=can & (place < LISTED))
                found += tl.sum(can.to(tl.int32), 0)
            tl.debug_barrier()  # other threads read what was written
            least = tl.minimum(tl.sum(all_masses, 0) - 1, dropped)
            listed = found <= LISTED
            below = tl.sum(unlisted_masses, 0)
            if listed:
                count = found
            else:
                below = tl.zeros([], tl.int64)
            # 5. top-p: the largest key below which there is no more mass than may be dropped.
            border = tl.zeros([], tl.uint32)
            for step in range(BITS // 2):
                unit = tl.full([], 1, tl.uint32) << (BITS - 2 - 2 * step)
                mass_1 = tl.zeros([TILE], tl.int64)
                mass_2 = tl.zeros([TILE], tl.int64)
                mass_3 = tl.zeros([TILE], tl.int64)
                for start in range(0, count, TILE):
                    inside = start + index < count
                    tokens = _token(scratch, start + index, inside, listed)
                    score, keys = _scores(logits, tokens, inside, temperature, SHIFT)
                    mass = tl.where(inside & (keys >= lowest), _mass(score, highest, total), 0)
                    mass_1 += tl.where(keys < border + unit, mass, 0)
                    mass_2 += tl.where(keys < border + 2 * unit, mass, 0)
                    mass_3 += tl.where(keys < border + 3 * unit, mass, 0)
                digit = (below + tl.sum(mass_1, 0) <= least).to(tl.uint32)
                digit += (below + tl.sum(mass_2, 0) <= least).to(tl.uint32)
                digit += (below + tl.sum(mass_3, 0) <= least).to(tl.uint32)
                border += digit * unit
            # All tokens at the border have one mass; the first of them are dropped.
            at_border = tl.zeros([], tl.int64)
            for start in range(0, count, TILE):
                inside = start + index < count
                tokens = _token(scratch, start + index, inside, listed)
                score, keys = _scores(logits, tokens, inside, temperature, SHIFT)
                mass = tl.where(inside & (keys >= lowest), _mass(score, highest, total), 0)
                below += tl.sum(tl.where(keys < border, mass, 0), 0)
                at_border = tl.maximum(at_border, tl.max(tl.where(keys == border, mass, 0), 0))
            drop = (least - below) // tl.maximum(at_border, 1)
        # 6. The winner.
        floor = highest - MOST_NOISE - 1.0
        if dropped < 0:  # without top-p the most probable token is inside, and its noise is known
            first = _noise(_random_bits(best, key))
            floor = (highest.to(tl.float64) + first - MOST_NOISE - 0.001).to(tl.float32)
        won = tl.full([], float("-inf"), tl.float64)
        passed = tl.zeros([], tl.int64)
        for start in range(0, count, TILE):
            inside = start + index < count
            tokens = _token(scratch, start + index, inside, listed)
            score, keys = _scores(logits, tokens, inside, temperature, SHIFT)
            kept = inside & (keys >= border)
            if has_top_p:
                same = kept & (keys == border)
                kept = kept & (~same | (passed + tl.cumsum(same.to(tl.int64), 0) > drop))
                passed += tl.sum(same.to(tl.int64), 0)
            kept = kept & (tl.exp(score - highest) >= min_p)
            kept = kept & (score >= floor)
            if tl.sum(kept.to(tl.int32), 0) > 0:
                bits = _random_bits(tokens, key)
                # A token beats `won` only if -log(u) <= exp(score - won), and 1 - u is below -log(u).
                chance = tl.exp((score.to(tl.float64) - won).to(tl.float32)) * 1.001 * 4503599627370496.0
                kept = kept & ((bits ^ MOST_BITS).to(tl.float32) <= chance)  # of u to 1
                if tl.sum(kept.to(tl.int32), 0) > 0:
                    reached = tl.where(kept, _noise(bits) + score.to(tl.float64), float("-inf"))
                    top = tl.max(reached, 0)
                    if top > won:
                        won = top
                        best = tl.min(tl.where(reached == top, tokens, vocabulary), 0)
    tl.store(OUT + row, best.to(tl.int64))
