"""Rotation of queries and keys and the cache write in Triton, in one launch, rounded where the modules round."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.kernels.head_norms import HeadNorms


def rope_write(
    qkv: Tensor,
    tables: tuple[Tensor, Tensor],
    buffers: tuple[Tensor, Tensor],
    rows: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Rotates queries and keys by halves, and writes keys and values to a cache.

    Rows outside the buffers, which would be our mistake, are not written.

    Args:
        qkv: [n, (H + 2 Hkv) D], each row contiguous.
        tables: cos and sin [1, n, D], of qkv's dtype or float32.
        buffers: Keys and values [1, Hkv, capacity, D], each row contiguous.
        rows: [n] int64, the rows of the buffers.
        norms: Norms of the heads; None: none.

    Returns:
        The rotated queries [1, H, n, D], a view of [1, n, H, D].
    """
    cos, sin = tables
    keys, values = buffers
    kv_heads, capacity, size = keys.shape[1:]
    heads = qkv.shape[1] // size - 2 * kv_heads
    q = qkv.new_empty(1, len(qkv), heads, size)
    strides = [stride for buffer in buffers for stride in buffer.stride()[1:3]]
    of_q, of_k, epsilon, form = norms or (qkv, qkv, 0.0, "")
    with torch.cuda.device_of(qkv):
        _rope_write[(len(qkv), heads + 2 * kv_heads)](
            qkv,
            cos,
            sin,
            of_q,
            of_k,
            q,
            keys,
            values,
            rows,
            capacity,
            qkv.stride(0),
            cos.stride(1),
            sin.stride(1),
            *strides,
            heads,
            kv_heads,
            epsilon,
            D=size,
            WIDTH=triton.next_power_of_2(size // 2),
            FORM=form,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return q.transpose(1, 2)


@triton.jit
def _rope_write(
    QKV,
    COS,
    SIN,
    QNORM,
    KNORM,
    Q,
    KEYS,
    VALUES,
    ROWS,
    capacity,
    qkv_row,
    cos_row,
    sin_row,
    keys_head,
    keys_row,
    values_head,
    values_row,
    heads,
    kv_heads,
    epsilon,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
):
    new, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    HALF: tl.constexpr = D // 2
    column = tl.arange(0, WIDTH)
    inside = column < HALF
    source = QKV + new * qkv_row + head * D + column
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    row = tl.load(ROWS + new)
    written = inside & (row >= 0) & (row < capacity)
    if head >= heads + kv_heads:
        to = VALUES + (head - heads - kv_heads) * values_head + row * values_row + column
        tl.store(to, first, mask=written)
        tl.store(to + HALF, second, mask=written)
    else:
        to = KEYS + (head - heads) * keys_head + row * keys_row + column
        weight = KNORM + column
        if head < heads:
            to = Q + (new * heads + head) * D + column
            weight = QNORM + column
            written = inside
        left, right = first.to(tl.float32), second.to(tl.float32)
        if FORM != "":
            square = tl.sum(left * left, 0) + tl.sum(right * right, 0)
            scale = tl.rsqrt(square * (1.0 / D) + epsilon)
            left = _normed(left * scale, tl.load(weight, mask=inside, other=0.0), first.dtype, FORM)
            right = _normed(right * scale, tl.load(weight + HALF, mask=inside, other=0.0), first.dtype, FORM)
        wide = COS.dtype.element_ty  # products and sums round to it
        cos, sin = COS + new * cos_row + column, SIN + new * sin_row + column
        along = (left * tl.load(cos, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
        across = (-right * tl.load(sin, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
        tl.store(to, (along + across).to(wide).to(first.dtype), mask=written)
        along = (right * tl.load(cos + HALF, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
        across = (left * tl.load(sin + HALF, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
        tl.store(to + HALF, (along + across).to(wide).to(first.dtype), mask=written)


@triton.jit
def _normed(x, weight, kind: tl.constexpr, FORM: tl.constexpr):
    """float32 numbers over their root mean square, times the weight, rounded as `fused_triton.norm` rounds."""
    weight = weight.to(tl.float32)
    if FORM == "rounded":
        x = x.to(kind).to(tl.float32)
    if FORM == "from one":
        weight = 1.0 + weight
    return (x * weight).to(kind).to(tl.float32)
