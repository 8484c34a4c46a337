"""Trees and walks of a pass of fixed shape in Triton, one launch each, equal to `target_model/pass_geometry.py`.

One program holds the tree of one slot: a row's ancestors are the bits of one int64, so a slot has at most 64 rows.
Slots that have rows come first and lie one after another; the program of the last slot also writes the rows after them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.trees.padded import FIELDS, SIZES

WARPS = 4
BITS = 32  # columns of a word


def geometry(inputs: Tensor, slots: int) -> tuple[Tensor, ...]:
    """Does `pass_geometry.geometry`."""
    rows = (len(inputs) - 5 * slots) // FIELDS
    size = min(triton.next_power_of_2(rows), SIZES[-1])
    scores = inputs.new_empty(rows, dtype=torch.float32)
    origin = inputs.new_empty(rows, dtype=torch.int8)
    live = inputs.new_empty(rows, dtype=torch.bool)
    words = inputs.new_empty(rows, triton.cdiv(size, BITS), dtype=torch.int32)
    sizes = inputs.new_empty(rows + 4 * slots, dtype=torch.int32)
    places = inputs.new_empty(3, rows)
    with torch.cuda.device_of(inputs):
        _geometry[(slots,)](
            inputs,
            scores,
            origin,
            live,
            words,
            sizes,
            places,
            rows,
            slots,
            (size - 1).bit_length(),
            words.shape[1],
            size,
            num_warps=WARPS,
        )
    return scores, origin, live, words, sizes, places


def accepted(inputs: Tensor, words: Tensor, draws: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Does `pass_geometry.accepted`."""
    rows = len(draws)
    record = inputs.new_empty((FIELDS + 1) * rows + 2 * slots)
    kept = inputs.new_empty(2, rows)
    with torch.cuda.device_of(inputs):
        _accepted[(slots,)](
            inputs,
            words,
            draws,
            record,
            kept,
            rows,
            slots,
            FIELDS,
            words.shape[1],
            min(triton.next_power_of_2(rows), SIZES[-1]),
            num_warps=WARPS,
        )
    return record, kept


@triton.jit
def _geometry(
    INPUTS,
    SCORES,
    ORIGIN,
    LIVE,
    WORDS,
    SIZES,
    PLACES,
    rows,
    slots,
    DOUBLINGS: tl.constexpr,
    WIDE: tl.constexpr,
    N: tl.constexpr,
):
    slot = tl.program_id(0)
    numbers = INPUTS + 6 * rows + slot
    first = tl.load(numbers).to(tl.int32)
    end = first + tl.load(numbers + slots).to(tl.int32)
    start = tl.load(numbers + 2 * slots) + tl.load(numbers + 3 * slots)
    position = tl.load(numbers + 4 * slots)
    for number in tl.static_range(4):
        tl.store(SIZES + rows + number * slots + slot, tl.load(numbers + number * slots).to(tl.int32))
    local = tl.arange(0, N)
    stop = tl.where(slot == slots - 1, rows, end)
    # After the first round, which holds the whole slot, only rows of no slot follow.
    for begin in range(first, stop, N):
        row = begin + local
        written = row < stop
        inside = row < end
        parents = tl.load(INPUTS + rows + row, mask=written, other=0)
        depths = tl.load(INPUTS + 2 * rows + row, mask=inside, other=0)
        bits = tl.load(INPUTS + 3 * rows + row, mask=written, other=0)
        origin = tl.load(INPUTS + 4 * rows + row, mask=written, other=0)
        live = tl.load(INPUTS + 5 * rows + row, mask=inside, other=0) != 0
        tl.store(SCORES + row, bits.to(tl.int32).to(tl.float32, bitcast=True), mask=written)
        tl.store(ORIGIN + row, origin.to(tl.int8), mask=written)
        tl.store(LIVE + row, live, mask=written)
        # The root and dead rows point to themselves.
        jump = tl.maximum(tl.where(live, parents, local), 0).to(tl.int32)
        seen = tl.where(inside, tl.full([N], 1, tl.int64) << local, 0)
        for _ in tl.static_range(DOUBLINGS):
            seen = seen | tl.gather(seen, jump, 0)
            jump = tl.gather(jump, jump, 0)
        for word in tl.static_range(WIDE):
            tl.store(WORDS + row * WIDE + word, (seen >> (32 * word)).to(tl.int32), mask=written)
        tl.store(SIZES + row, depths.to(tl.int32), mask=written)
        places = tl.where(inside, start + local, row)
        positions = tl.where(inside, position + depths, 0)
        tl.store(PLACES + row, places, mask=written)
        tl.store(PLACES + rows + row, positions, mask=written)
        tl.store(PLACES + 2 * rows + row, positions + 1, mask=written)


@triton.jit
def _accepted(
    INPUTS, WORDS, DRAWS, RECORD, KEPT, rows, slots, FIELDS: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr
):
    slot = tl.program_id(0)
    numbers = INPUTS + FIELDS * rows + slot
    first = tl.load(numbers).to(tl.int32)
    end = first + tl.load(numbers + slots).to(tl.int32)
    start = tl.load(numbers + 2 * slots) + tl.load(numbers + 3 * slots)
    local = tl.arange(0, N)
    stop = tl.where(slot == slots - 1, rows, end)
    length = 0
    last = 0
    # After the first round, which holds the whole slot, only rows of no slot follow.
    for begin in range(first, stop, N):
        row = begin + local
        written = row < stop
        inside = row < end
        for field in tl.static_range(FIELDS):
            numbers_of_field = tl.load(INPUTS + field * rows + row, mask=written, other=0)
            tl.store(RECORD + field * rows + row, numbers_of_field, mask=written)
        tokens = tl.load(INPUTS + row, mask=inside, other=0)
        parents = tl.load(INPUTS + rows + row, mask=inside, other=0)
        depths = tl.load(INPUTS + 2 * rows + row, mask=inside, other=0)
        live = tl.load(INPUTS + 5 * rows + row, mask=inside, other=0) != 0
        above = first + tl.maximum(tl.where(live, parents, local), 0)
        drawn = (tokens == tl.load(DRAWS + above, mask=inside, other=0)) | (local == 0)
        seen = tl.zeros([N], tl.int64)
        for word in tl.static_range(WIDE):
            bits = tl.load(WORDS + row * WIDE + word, mask=inside, other=0).to(tl.uint32, bitcast=True)
            seen = seen | (bits.to(tl.int64) << (32 * word))
        bit = tl.full([N], 1, tl.int64) << local
        missed = tl.sum(tl.where(drawn | ~inside, 0, bit), 0)  # distinct bits never carry
        accepted = ((seen & missed) == 0) & live
        # Siblings have distinct tokens, so at most one row is accepted per depth.
        at_depth = accepted[None, :] & (depths[None, :] == local[:, None])
        path = tl.max(tl.where(at_depth, local[None, :], -1), 1)
        length += tl.sum(accepted.to(tl.int32), 0)
        last = tl.maximum(last, tl.max(tl.where(accepted, local, 0), 0))  # parents come before children
        nodes = tl.where(path < 0, row, first + path)
        tl.store(RECORD + FIELDS * rows + row, path.to(tl.int64), mask=written)
        tl.store(KEPT + row, nodes.to(tl.int64), mask=written)
        tl.store(KEPT + rows + row, tl.where(inside, start + (nodes - first), nodes), mask=written)
    results = RECORD + (FIELDS + 1) * rows + slot
    tl.store(results, tl.full([], length, tl.int64))
    tl.store(results + slots, tl.load(DRAWS + first + last, mask=length > 0, other=0))
