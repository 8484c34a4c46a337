"""A Triton kernel for the attention of a tree's rows over prefix and tree: one launch for any prefix length.

Programs split the columns of a key head, each with a tile of its query heads' rows (flash decoding), and a
second kernel merges their results.  The number of programs depends only on shapes and the length is read on the
device, so that a recorded launch can be replayed at any length.

Letters: H query heads, Hkv key heads, G = H / Hkv, n new rows, m own columns, D head size, S splits; BM rows and
BN columns of a tile, BT columns of a masked tile, BD the power of two that D is padded to.  Row r of a key head
is row r % n of its query head r // n.

If a layout has slots, each program serves one of them, and n and m are those of its slot.  The slots are read on
the device, too, so that a recorded launch serves any requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.attention.launch_plan import Chip, Plan, padded
from longgraft.attention.layout import DeviceLayout

LOG2E = tl.constexpr(1.4426950408889634)


def tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: DeviceLayout,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Computes q [1, H, n, D] over the whole buffers k and v [1, Hkv, capacity, D], each row contiguous.

    Sinks are [H].

    Returns:
        [1, H, n, D], a view of [1, n, H, D].
    """
    _, query_heads, n, size = q.shape
    heads = k.shape[1]
    group = query_heads // heads
    assert q.stride(3) == k.stride(3) == v.stride(3) == 1 and layout.words.is_contiguous()
    assert layout.slots is None or layout.slots.is_contiguous()
    slots = len(layout.length)
    words = layout.words.shape[1]
    of_slot = n if layout.slots is None else min(n, 32 * words)  # most rows of a slot
    plan = plan or Plan.of(group * n, k.shape, q.dtype, Chip.of(q.device), slots)
    parts = q.new_empty(plan.splits, heads, group * n, size, dtype=torch.float32)
    weight = q.new_empty(plan.splits, heads, group * n, dtype=torch.float32)
    out = q.new_empty(1, n, query_heads, size)
    # The softcap's tanh(x) is computed from exp(2x), in powers of two like the softmax: scores are scaled to 2x.
    factor = scale if softcap is None else 2 * scale / softcap
    precision = "tf32"
    if q.dtype == torch.float32:
        precision = "ieee"
    with torch.cuda.device_of(q):
        _parts[(-(-group * of_slot // plan.rows) * slots, plan.splits, heads)](
            q,
            k,
            v,
            layout.length,
            layout.depths,
            layout.column_depths,
            layout.words,
            layout.slots,
            parts,
            weight,
            q.stride(1),
            q.stride(2),
            k.stride(1),
            k.stride(2),
            v.stride(1),
            v.stride(2),
            n,
            len(layout.column_depths),
            factor * LOG2E.value,
            (softcap or 0.0) * LOG2E.value,
            G=group,
            D=size,
            BD=padded(size),
            BM=plan.rows,
            BN=plan.columns,
            BT=min(32 if layout.slots is None else 16, plan.columns),  # wide heads over slots have few registers left
            WORDS=words,
            SLOTS=slots,
            WINDOW=window or 0,
            CAPPED=softcap is not None,
            PRECISION=precision,
            num_warps=plan.warps,
            num_stages=plan.stages,
        )
        _merge[(group * n, heads)](
            parts,
            weight,
            sinks,
            layout.slots,
            out,
            n,
            plan.splits,
            G=group,
            D=size,
            BD=padded(size),
            BS=triton.next_power_of_2(plan.splits),
            SLOTS=slots,
        )
    return out.transpose(1, 2)


@triton.jit
def _visible(
    start, offs_n, rows_ok, row, position, length, m, column_depths, words, WORDS: tl.constexpr, WINDOW: tl.constexpr
):
    """[BM, BN] bool: the columns from `start` on that each row sees."""
    columns = start + offs_n
    own_columns = columns - length  # below 0 in the prefix
    word = tl.zeros([row.shape[0], offs_n.shape[0]], tl.int32)
    for w in tl.static_range(WORDS):  # a load per row and word: a gather of [BM, BN] spills
        row_word = tl.load(words + row * WORDS + w, mask=rows_ok, other=0)
        word = tl.where(((own_columns >> 5) == w)[None, :], row_word[:, None], word)
    visible = (own_columns < 0)[None, :] | (((word >> (own_columns & 31)[None, :]) & 1) != 0)
    if WINDOW > 0:
        depth = tl.load(column_depths + own_columns, mask=(own_columns >= 0) & (own_columns < m), other=0)
        column_position = tl.where(own_columns < 0, columns, length + depth)
        visible = visible & (column_position[None, :] > (position - WINDOW)[:, None])
    return visible & (own_columns < m)[None, :]


@triton.jit
def _tile(
    q,
    k,
    v,
    start,
    kn,
    vn,
    offs_n,
    offs_d,
    total,
    top,
    sums,
    acc,
    visible,
    scale,
    cap,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds a tile of columns to a running softmax.  visible: [BM, BN] if MASKED; rows from `total` may be NaN."""
    kp = k + start * kn.to(tl.int64) + (offs_n[None, :] * kn + offs_d[:, None])  # [BD, BN]
    vp = v + start * vn.to(tl.int64) + (offs_n[:, None] * vn + offs_d[None, :])  # [BN, BD]
    written = start + offs_n < total
    sized = offs_d < D
    if MASKED:
        keys = tl.load(kp, mask=written[None, :] & sized[:, None], other=0.0)
    elif offs_d.shape[0] == D:
        keys = tl.load(kp)
    else:
        keys = tl.load(kp, mask=sized[:, None], other=0.0)
    s = tl.dot(q, keys, input_precision=PRECISION) * scale  # in base 2; if CAPPED, 2x of tanh(x)
    if CAPPED:
        s = cap - 2 * cap / (1 + tl.exp2(s))  # cap * tanh
    if MASKED:
        s = tl.where(visible, s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    base = higher
    if MASKED:
        base = tl.where(higher == float("-inf"), 0.0, higher)  # -inf: the row has seen no column yet
    p = tl.exp2(s - base[:, None])
    fade = tl.exp2(top - base)
    if MASKED:
        values = tl.load(vp, mask=written[:, None] & sized[None, :], other=0.0)
    elif offs_d.shape[0] == D:
        values = tl.load(vp)
    else:
        values = tl.load(vp, mask=sized[None, :], other=0.0)
    sums = sums * fade + tl.sum(p, 1)
    acc = acc * fade[:, None] + tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
    return higher, sums, acc


@triton.jit
def _parts(
    Q,
    K,
    V,
    Length,
    Depths,
    ColumnDepths,
    Words,
    Slots,
    Parts,
    Weight,
    qh,
    qn,
    kh,
    kn,
    vh,
    vn,
    n,
    m,
    scale,
    cap,
    G: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
    WORDS: tl.constexpr,
    SLOTS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of a slot's rows over one split of its columns: softmax output [S, Hkv, G * n, D], log2 of its sum."""
    tile = tl.program_id(0)
    split = tl.program_id(1)
    head = tl.program_id(2)
    rows = n
    if Slots is not None:
        slot = tile % SLOTS
        tile = tile // SLOTS
        rows = tl.load(Slots + SLOTS + slot)
        if tile * BM >= G * rows:
            return
        m = rows
        # From here on row 0 is the slot's first row, and column 0 the first of its prefix.
        first_row = tl.load(Slots + slot)
        base = tl.load(Slots + 2 * SLOTS + slot).to(tl.int64)
        Length += slot
        Depths += first_row
        ColumnDepths += first_row
        Words += first_row * WORDS
        Parts += first_row * G * D
        Weight += first_row * G
        Q += first_row * qn
        K += base * kn
        V += base * vn
    length = tl.load(Length)
    total = length + m
    r = tile * BM + tl.arange(0, BM)
    rows_ok = r < G * rows
    row = r % rows
    offs_n = tl.arange(0, BN)
    offs_d = tl.arange(0, BD)
    offs_t = tl.arange(0, BT)
    position = length + tl.load(Depths + row)
    first = 0
    free = 0  # the first column that every row sees
    if WINDOW > 0:
        first = tl.minimum(length, tl.maximum(0, tl.min(position, 0) - WINDOW + 1)) // BN * BN
        free = tl.cdiv(tl.maximum(0, tl.max(position, 0) - WINDOW + 1), BN) * BN
    tiles = tl.cdiv(total - first, BN)
    low = first + tiles * split // tl.num_programs(1) * BN
    high = first + tiles * (split + 1) // tl.num_programs(1) * BN
    top = tl.full([BM], float("-inf"), tl.float32)
    sums = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    at = (split * tl.num_programs(2) + head) * (G * n) + r
    if low < high:
        q_mask = rows_ok[:, None] & (offs_d < D)[None, :]
        q_rows = Q + (head * G + r // rows) * qh + row * qn
        q = tl.load(q_rows[:, None] + offs_d[None, :], mask=q_mask, other=0.0)
        k = K + head.to(tl.int64) * kh
        v = V + head.to(tl.int64) * vh
        free_low = tl.minimum(tl.maximum(low, free), high)
        free_high = tl.maximum(tl.minimum(high, length // BN * BN), free_low)
        if WINDOW > 0:
            for start in tl.range(low, free_low, BT, num_stages=1):
                visible = _visible(start, offs_t, rows_ok, row, position, length, m, ColumnDepths, Words, WORDS, WINDOW)
                top, sums, acc = _tile(
                    q,
                    k,
                    v,
                    start,
                    kn,
                    vn,
                    offs_t,
                    offs_d,
                    total,
                    top,
                    sums,
                    acc,
                    visible,
                    scale,
                    cap,
                    D,
                    True,
                    CAPPED,
                    PRECISION,
                )
        for start in tl.range(free_low, free_high, BN):
            top, sums, acc = _tile(
                q,
                k,
                v,
                start,
                kn,
                vn,
                offs_n,
                offs_d,
                total,
                top,
                sums,
                acc,
                None,
                scale,
                cap,
                D,
                False,
                CAPPED,
                PRECISION,
            )
        for start in tl.range(free_high, high, BT, num_stages=1):
            visible = _visible(start, offs_t, rows_ok, row, position, length, m, ColumnDepths, Words, WORDS, WINDOW)
            top, sums, acc = _tile(
                q,
                k,
                v,
                start,
                kn,
                vn,
                offs_t,
                offs_d,
                total,
                top,
                sums,
                acc,
                visible,
                scale,
                cap,
                D,
                True,
                CAPPED,
                PRECISION,
            )
        safe = tl.where(sums > 0, sums, 1.0)
        tl.store(Parts + at[:, None] * D + offs_d[None, :], acc / safe[:, None], mask=q_mask)
        top += tl.log2(safe)
    tl.store(Weight + at, top, mask=rows_ok)


@triton.jit
def _merge(
    Parts,
    Weight,
    Sinks,
    Slots,
    Out,
    n,
    splits,
    G: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Merges the splits of a row by their weights; -inf marks a split without columns, which wrote nothing."""
    r = tl.program_id(0)
    head = tl.program_id(1)
    query_head = head * G + r // n
    offs_s = tl.arange(0, BS)
    offs_d = tl.arange(0, BD)
    weighed = offs_s < splits
    part = r
    if Slots is not None:  # a slot's rows follow one another for each query head; those in no slot were not written
        offs = tl.arange(0, SLOTS)
        first_rows = tl.load(Slots + offs)
        rows = tl.load(Slots + SLOTS + offs)
        row = r % n
        inside = (row >= first_rows) & (row < first_rows + rows)
        part = row + tl.sum(tl.where(inside, first_rows * (G - 1) + r // n * rows, 0), 0)
        weighed = weighed & (tl.max(inside.to(tl.int32), 0) > 0)
    at = (offs_s * tl.num_programs(1) + head) * (G * n) + part
    weight = tl.load(Weight + at, mask=weighed, other=float("-inf"))
    top = tl.max(weight, 0)
    if Sinks is not None:
        sink = tl.load(Sinks + query_head).to(tl.float32) * LOG2E
        top = tl.maximum(top, sink)
    top = tl.where(top == float("-inf"), 0.0, top)  # a row that sees nothing: zeros
    share = tl.exp2(weight - top)
    total = tl.sum(share, 0)
    if Sinks is not None:
        total += tl.exp2(sink - top)
    mask = (share > 0)[:, None] & (offs_d < D)[None, :]
    parts = tl.load(Parts + at[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    out = tl.sum(parts * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    out_row = Out + ((r % n) * (tl.num_programs(1) * G) + query_head) * D
    tl.store(out_row + offs_d, out.to(Out.dtype.element_ty), mask=offs_d < D)
