"""Activations of gated products in Triton, rounded as torch's are: exponentials are split as in CUDA's expf."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _exp(x):
    """e ** x for -104 <= x <= 104, as 2 ** whole * 2 ** rest with |rest| <= 1/2."""
    whole = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = tl.fma(x, 1.925963033500011e-08, tl.fma(x, 1.4426950216293335, -whole))  # log2(e) in two pieces
    return tl.exp2(whole) * tl.exp2(rest)


@triton.jit
def _bounded(x):
    return tl.minimum(tl.maximum(x, -104.0), 104.0)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of float32 numbers, one of `target_model.module_forms.ACTIVATIONS`."""
    if ACTIVATION == "silu":
        acted = tl.div_rn(x, 1.0 + _exp(_bounded(-x)))
    else:  # GELU by tanh
        u = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        tanh = 1.0 - tl.div_rn(2.0, 1.0 + _exp(_bounded(2.0 * tl.abs(u))))
        acted = 0.5 * x * (1.0 + tl.where(u < 0, -tanh, tanh))
    return acted
