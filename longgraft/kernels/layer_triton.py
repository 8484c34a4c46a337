"""Products of a decoder layer in Triton, for few rows.

With two norms, `rope_write` and attention, a layer is nine launches.

A product reads up to three weights without a copy that joins them, and adds biases and the residual.  Numbers are
rounded where the layer's modules round them.  A tile has the same shape for any number of rows, so that the sums of a
row do not depend on the other rows.

With `pdl`, a program starts before the launch before it has ended, asks for its first weights, and then waits
(programmatic dependent launch, from sm_90 on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longgraft.kernels.activation_triton import activated

ROWS = 64  # rows of a tile, as many as the largest tree has
COLUMNS = 32  # rows of a weight in a tile: the products of an 8B model are 128 to 448 programs
BYTES = 256  # bytes of each row and weight that a tile reads at once
WARPS = 4
STAGES = 4  # tiles in flight: 96 KB in half precision
GATED_STAGES = 3  # the same with the tiles of two weights


def product(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    residual: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """Returns x [n, K] times one to three weights [N_i, K] side by side, [n, sum of N_i], of one dtype.

    Args:
        x: Each row contiguous.
        weights: Contiguous.
        biases: One per weight; all or none are None.
        residual: Contiguous [n, sum of N_i], added to the rounded products.
        pdl: Whether the launch is a dependent one.
    """
    n, k = x.shape
    sizes = [len(weight) for weight in weights]
    out = x.new_empty(n, sum(sizes))
    missing = 3 - len(weights)
    biased = biases[0] is not None
    tiles = sum(triton.cdiv(size, COLUMNS) for size in sizes)
    with torch.cuda.device_of(x):
        _product[(triton.cdiv(n, ROWS), tiles)](
            x,
            *weights,
            *[x] * missing,
            *(biases if biased else weights),
            *[x] * missing,
            x if residual is None else residual,
            out,
            n,
            *sizes,
            *[0] * missing,
            x.stride(0),
            out.stride(0),
            K=k,
            BIAS=biased,
            RESIDUAL=residual is not None,
            BM=ROWS,
            BN=COLUMNS,
            BK=BYTES // x.element_size(),
            PDL=pdl,
            num_stages=STAGES,
            **_options(pdl),
        )
    return out


def gated_product(x: Tensor, gate: Tensor, up: Tensor, activation: str, pdl: bool = False) -> Tensor:
    """Returns activation(x Wg) * (x Wu) [n, N] for x [n, K], each row contiguous, and contiguous weights [N, K].

    The activation is one of `target_model.module_forms.ACTIVATIONS`.
    """
    n, k = x.shape
    out = x.new_empty(n, len(gate))
    with torch.cuda.device_of(x):
        _gated_product[(triton.cdiv(n, ROWS), triton.cdiv(len(gate), COLUMNS))](
            x,
            gate,
            up,
            out,
            n,
            len(gate),
            x.stride(0),
            out.stride(0),
            K=k,
            ACTIVATION=activation,
            BM=ROWS,
            BN=COLUMNS,
            BK=BYTES // x.element_size(),
            PDL=pdl,
            num_stages=GATED_STAGES,
            **_options(pdl),
        )
    return out


def _options(pdl: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}
    if pdl:
        options["launch_pdl"] = True
    return options


@triton.jit
def _read(pointers, inside, k, left, EVEN: tl.constexpr):
    """Reads a tile [rows, BK], with zeros outside; EVEN: no tile crosses the end of the rows."""
    mask = inside[:, None]
    if not EVEN:
        mask = mask & (k < left)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _read_once(pointers, inside, k, left, EVEN: tl.constexpr):
    """`_read` of weights, which need not stay in the chip's cache."""
    mask = inside[:, None]
    if not EVEN:
        mask = mask & (k < left)[None, :]
    return tl.load(pointers, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _ask(weight, column, inside, K: tl.constexpr, BK: tl.constexpr):
    """Asks for the first four tiles of some rows of a weight, 64 numbers of half precision at a time."""
    if 4 * BK <= K:
        rows = weight + tl.where(inside, column, 0)[:, None].to(tl.int64) * K
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [rows + tl.arange(0, BK // 16)[None, :] * 64],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _product(
    X,
    W0,
    W1,
    W2,
    B0,
    B1,
    B2,
    R,
    Y,
    n,
    n0,
    n1,
    n2,
    x_row,
    y_row,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(1)
    tiles_0 = tl.cdiv(n0, BN)
    tiles_1 = tl.cdiv(n1, BN)
    weight, bias, size, first = W0, B0, n0, 0
    if tile >= tiles_0 + tiles_1:
        weight, bias, size, first = W2, B2, n2, n0 + n1
        tile -= tiles_0 + tiles_1
    elif tile >= tiles_0:
        weight, bias, size, first = W1, B1, n1, n0
        tile -= tiles_0
    column = tile * BN + tl.arange(0, BN)
    inside = column < size
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < n
    k = tl.arange(0, BK)
    EVEN: tl.constexpr = K % BK == 0
    if PDL:
        _ask(weight, column, inside, K, BK)
        tl.extra.cuda.gdc_wait()
    w = weight + column[:, None].to(tl.int64) * K + k[None, :]
    x = X + row[:, None] * x_row + k[None, :]
    sums = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        weights = _read_once(w + start, inside, k, K - start, EVEN)
        states = _read(x + start, live, k, K - start, EVEN)
        sums = tl.dot(states, weights.T, sums, input_precision="ieee")
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    kind = Y.dtype.element_ty
    if BIAS:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    written = live[:, None] & inside[None, :]
    at = row[:, None] * y_row + (first + column)[None, :]
    if RESIDUAL:
        sums = sums.to(kind).to(tl.float32) + tl.load(R + at, mask=written, other=0.0).to(tl.float32)
    tl.store(Y + at, sums.to(kind), mask=written)


@triton.jit
def _gated_product(
    X,
    G,
    U,
    Y,
    n,
    size,
    x_row,
    y_row,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = column < size
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < n
    k = tl.arange(0, BK)
    EVEN: tl.constexpr = K % BK == 0
    if PDL:
        _ask(G, column, inside, K, BK)
        _ask(U, column, inside, K, BK)
        tl.extra.cuda.gdc_wait()
    offsets = column[:, None].to(tl.int64) * K + k[None, :]
    x = X + row[:, None] * x_row + k[None, :]
    gate = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        gates = _read_once(G + offsets + start, inside, k, K - start, EVEN)
        ups = _read_once(U + offsets + start, inside, k, K - start, EVEN)
        states = _read(x + start, live, k, K - start, EVEN)
        gate = tl.dot(states, gates.T, gate, input_precision="ieee")
        up = tl.dot(states, ups.T, up, input_precision="ieee")
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    kind = Y.dtype.element_ty
    acted = activated(gate.to(kind).to(tl.float32), ACTIVATION).to(kind).to(tl.float32)
    gated = acted * up.to(kind).to(tl.float32)
    at = row[:, None] * y_row + column[None, :]
    tl.store(Y + at, gated.to(kind), mask=live[:, None] & inside[None, :])
