"""Norms, gated products, rotary embeddings and cache writes in Triton, one launch each, rounded where the modules that
they replace round.

Only the summation order of a norm and the last bit of tanh differ from
torch's kernels: products are not fused into multiply-adds, and exponentials are split as in CUDA's expf.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.kernels.activation_triton import activated
from longgraft.kernels.head_triton import beam as beam
from longgraft.kernels.layer_triton import gated_product as gated_product
from longgraft.kernels.layer_triton import product as product
from longgraft.kernels.rope_write_triton import rope_write as rope_write
from longgraft.kernels.topk_triton import children as children
from longgraft.kernels.topk_triton import topk as topk
from longgraft.kernels.tree_triton import accepted as accepted
from longgraft.kernels.tree_triton import geometry as geometry

EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # a * b + c rounds twice, as in separate launches
TILE = 1024  # elements per program, or one row where that is more


def norm(x: Tensor, weight: Tensor, epsilon: float, form: str) -> Tensor:
    """Returns x [.., size] over its root mean square, times weight [size], of one dtype, with x's strides.

    Args:
        x: Contiguous up to a permutation of its leading dimensions.
        weight: The norm's weight.
        epsilon: The norm's epsilon.
        form: One of `target_model.module_forms.NORMS`.
    """
    size = x.shape[-1]
    out = torch.empty_like(x)
    width = triton.next_power_of_2(size)
    together = max(1, TILE // width)
    rows = x.numel() // size
    with torch.cuda.device_of(x):
        _norm[(triton.cdiv(rows, together),)](
            x,
            weight,
            out,
            rows,
            epsilon,
            size,
            form,
            together,
            width,
            num_warps=min(16, max(1, together * width // 512)),
            **EXACT,
        )
    return out


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Returns activation(gate) * up of [.., size], each row contiguous.

    The activation is one of `target_model.module_forms.ACTIVATIONS`.
    """
    size = gate.shape[-1]
    gates = gate.reshape(-1, size)
    ups = up.reshape(-1, size)
    out = gate.new_empty(gate.shape)
    with torch.cuda.device_of(gate):
        _gated[(len(gates), triton.cdiv(size, TILE))](
            gates, ups, out, gates.stride(0), ups.stride(0), size, activation, TILE, num_warps=4, **EXACT
        )
    return out


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates q [1, H, n, D] and k [1, Hkv, n, D] by halves, each row contiguous.

    Cos and sin are [1, n, D], of their dtype or float32.
    """
    heads, rows, size = q.shape[1:]
    q_out = torch.empty_like(q)
    k_out = torch.empty_like(k)
    strides = [stride for each in (q, k, q_out, k_out) for stride in each.stride()[1:3]]
    with torch.cuda.device_of(q):
        _rotary[(rows, heads + k.shape[1])](
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            heads,
            *strides,
            cos.stride(1),
            sin.stride(1),
            size // 2,
            triton.next_power_of_2(size // 2),
            num_warps=1,
            **EXACT,
        )
    return q_out, k_out


def write(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
    """Writes k, v [1, Hkv, n, D] to `rows` [n] int64 of keys, values [1, Hkv, capacity, D]; each row contiguous.

    Rows outside the buffers, which would be our mistake, are not written.
    """
    heads, n, size = k.shape[1:]
    strides = [stride for each in (keys, values, k, v) for stride in each.stride()[1:3]]
    with torch.cuda.device_of(keys):
        _write[(n, heads)](
            keys,
            values,
            k,
            v,
            rows,
            keys.shape[2],
            *strides,
            size,
            v.shape[3],
            triton.next_power_of_2(max(size, v.shape[3])),
            num_warps=1,
        )


@triton.jit
def _norm(X, W, Y, rows, epsilon, size: tl.constexpr, FORM: tl.constexpr, TOGETHER: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    at = row.to(tl.int64)[:, None] * size + column[None, :]
    kind = Y.dtype.element_ty
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(W + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    normed = x * tl.rsqrt(tl.sum(x * x, 1) * (1.0 / size) + epsilon)[:, None]
    if FORM == "rounded":
        normed = normed.to(kind).to(tl.float32)
    if FORM == "from one":
        weight = 1.0 + weight
    tl.store(Y + at, (normed * weight).to(kind), mask=inside)


@triton.jit
def _gated(G, U, Y, gate_row, up_row, size, ACTIVATION: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < size
    kind = Y.dtype.element_ty
    x = tl.load(G + row * gate_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(U + row * up_row + column, mask=inside, other=0.0).to(tl.float32)
    acted = activated(x, ACTIVATION)
    tl.store(Y + row * size + column, (acted.to(kind).to(tl.float32) * up).to(kind), mask=inside)


@triton.jit
def _rotary(
    Q,
    K,
    QOUT,
    KOUT,
    COS,
    SIN,
    heads,
    q_head,
    q_row,
    k_head,
    k_row,
    qout_head,
    qout_row,
    kout_head,
    kout_row,
    cos_row,
    sin_row,
    half,
    HALF: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, HALF)
    inside = column < half
    if head < heads:
        source, to = Q + head * q_head + row * q_row, QOUT + head * qout_head + row * qout_row
    else:
        source = K + (head - heads) * k_head + row * k_row
        to = KOUT + (head - heads) * kout_head + row * kout_row
    wide = COS.dtype.element_ty  # products and sums round to it
    cos, sin = COS + row * cos_row + column, SIN + row * sin_row + column
    first = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half + column, mask=inside, other=0.0).to(tl.float32)
    along = (first * tl.load(cos, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
    across = (-second * tl.load(sin, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
    tl.store(to + column, (along + across).to(wide).to(Q.dtype.element_ty), mask=inside)
    along = (second * tl.load(cos + half, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
    across = (first * tl.load(sin + half, mask=inside, other=0.0).to(tl.float32)).to(wide).to(tl.float32)
    tl.store(to + half + column, (along + across).to(wide).to(Q.dtype.element_ty), mask=inside)


@triton.jit
def _write(
    KEYS,
    VALUES,
    K,
    V,
    ROWS,
    capacity,
    keys_head,
    keys_row,
    values_head,
    values_row,
    k_head,
    k_row,
    v_head,
    v_row,
    size,
    v_size,
    WIDTH: tl.constexpr,
):
    new, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    row = tl.load(ROWS + new)
    there = (row >= 0) & (row < capacity)
    key = tl.load(K + head * k_head + new * k_row + column, mask=column < size, other=0.0)
    value = tl.load(V + head * v_head + new * v_row + column, mask=column < v_size, other=0.0)
    tl.store(KEYS + head * keys_head + row * keys_row + column, key, mask=there & (column < size))
    tl.store(VALUES + head * values_head + row * values_row + column, value, mask=there & (column < v_size))
