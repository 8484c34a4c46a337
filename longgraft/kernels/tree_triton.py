"""Tree and walk of a pass of fixed shape in Triton, one launch each, equal to `target_model/pass_geometry.py`.

One program holds the whole tree: a row's ancestors are the bits of one int64, so a tree has at most 64 rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.trees.padded import FIELDS, SIZES

WARPS = 4
BITS = 32  # columns of a word


def geometry(inputs: Tensor) -> tuple[Tensor, ...]:
    """Does `pass_geometry.geometry` for at most 64 rows."""
    rows = _rows_of(inputs)
    scores = inputs.new_empty(rows, dtype=torch.float32)
    origin = inputs.new_empty(rows, dtype=torch.int8)
    live = inputs.new_empty(rows, dtype=torch.bool)
    words = inputs.new_empty(rows, triton.cdiv(rows, BITS), dtype=torch.int32)
    sizes = inputs.new_empty(rows + 1, dtype=torch.int32)
    places = inputs.new_empty(3, rows)
    with torch.cuda.device_of(inputs):
        _geometry[(1,)](
            inputs,
            scores,
            origin,
            live,
            words,
            sizes,
            places,
            rows,
            (rows - 1).bit_length(),
            words.shape[1],
            triton.next_power_of_2(rows),
            num_warps=WARPS,
        )
    return scores, origin, live, words, sizes, places


def accepted(inputs: Tensor, words: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Does `pass_geometry.accepted` for at most 64 rows."""
    rows = _rows_of(inputs)
    record = inputs.new_empty((FIELDS + 1) * rows + 2)
    kept = inputs.new_empty(2, rows)
    with torch.cuda.device_of(inputs):
        _accepted[(1,)](
            inputs,
            words,
            draws,
            record,
            kept,
            rows,
            FIELDS,
            words.shape[1],
            triton.next_power_of_2(rows),
            num_warps=WARPS,
        )
    return record, kept


def _rows_of(inputs: Tensor) -> int:
    rows = (len(inputs) - 2) // FIELDS
    assert rows <= SIZES[-1], f"{rows} rows; the bits of an int64 hold {SIZES[-1]}"
    return rows


@triton.jit
def _geometry(
    INPUTS,
    SCORES,
    ORIGIN,
    LIVE,
    WORDS,
    DEPTHS,
    PLACES,
    rows,
    DOUBLINGS: tl.constexpr,
    WIDE: tl.constexpr,
    N: tl.constexpr,
):
    row = tl.arange(0, N)
    inside = row < rows
    parents = tl.load(INPUTS + rows + row, mask=inside, other=0)
    depths = tl.load(INPUTS + 2 * rows + row, mask=inside, other=0)
    bits = tl.load(INPUTS + 3 * rows + row, mask=inside, other=0)
    origin = tl.load(INPUTS + 4 * rows + row, mask=inside, other=0)
    live = tl.load(INPUTS + 5 * rows + row, mask=inside, other=0) != 0
    length = tl.load(INPUTS + 6 * rows)
    position = tl.load(INPUTS + 6 * rows + 1)
    tl.store(SCORES + row, bits.to(tl.int32).to(tl.float32, bitcast=True), mask=inside)
    tl.store(ORIGIN + row, origin.to(tl.int8), mask=inside)
    tl.store(LIVE + row, live, mask=inside)
    # The root and dead rows point to themselves.
    jump = tl.maximum(tl.where(live, parents, row), 0).to(tl.int32)
    seen = tl.full([N], 1, tl.int64) << row
    for _ in tl.static_range(DOUBLINGS):
        seen = seen | tl.gather(seen, jump, 0)
        jump = tl.gather(jump, jump, 0)
    for word in tl.static_range(WIDE):
        tl.store(WORDS + row * WIDE + word, (seen >> (32 * word)).to(tl.int32), mask=inside)
    tl.store(DEPTHS + row, depths.to(tl.int32), mask=inside)
    tl.store(DEPTHS + rows, length.to(tl.int32))
    tl.store(PLACES + row, length + row, mask=inside)
    tl.store(PLACES + rows + row, position + depths, mask=inside)
    tl.store(PLACES + 2 * rows + row, position + depths + 1, mask=inside)


@triton.jit
def _accepted(INPUTS, WORDS, DRAWS, RECORD, KEPT, rows, FIELDS: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, N)
    inside = row < rows
    for field in tl.static_range(FIELDS):
        numbers = tl.load(INPUTS + field * rows + row, mask=inside, other=0)
        tl.store(RECORD + field * rows + row, numbers, mask=inside)
    tokens = tl.load(INPUTS + row, mask=inside, other=0)
    parents = tl.load(INPUTS + rows + row, mask=inside, other=0)
    depths = tl.load(INPUTS + 2 * rows + row, mask=inside, other=0)
    live = tl.load(INPUTS + 5 * rows + row, mask=inside, other=0) != 0
    above = tl.maximum(tl.where(live, parents, row), 0)
    drawn = (tokens == tl.load(DRAWS + above, mask=inside, other=0)) | (row == 0)
    seen = tl.zeros([N], tl.int64)
    for word in tl.static_range(WIDE):
        bits = tl.load(WORDS + row * WIDE + word, mask=inside, other=0).to(tl.uint32, bitcast=True)
        seen = seen | (bits.to(tl.int64) << (32 * word))
    missed = tl.sum(tl.where(drawn | ~inside, 0, tl.full([N], 1, tl.int64) << row), 0)  # distinct bits never carry
    accepted = ((seen & missed) == 0) & live & inside
    # Siblings have distinct tokens, so at most one row is accepted per depth.
    at_depth = accepted[None, :] & (depths[None, :] == row[:, None])
    path = tl.max(tl.where(at_depth, row[None, :], -1), 1)
    length = tl.sum(accepted.to(tl.int32), 0)
    last = tl.sum(tl.where(row == length - 1, path, 0), 0)
    tl.store(RECORD + FIELDS * rows + row, path.to(tl.int64), mask=inside)
    tl.store(RECORD + (FIELDS + 1) * rows, length.to(tl.int64))
    tl.store(RECORD + (FIELDS + 1) * rows + 1, tl.load(DRAWS + last))
    nodes = tl.where(path < 0, row, path).to(tl.int64)
    tl.store(KEPT + row, nodes, mask=inside)
    tl.store(KEPT + rows + row, tl.load(INPUTS + FIELDS * rows) + nodes, mask=inside)
