"""Attention of a few new rows over a long prefix and over each other.

A backend is a function (q, k, v, layout, scale, window) -> out; `dense` is the reference for all others.

Letters: H query heads, Hkv key heads, G = H / Hkv, n new rows, P prefix rows, C columns, D head size.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.attention.layout import DeviceLayout, Layout

HALF = (torch.float16, torch.bfloat16)
EXTRAS = {"flash": "flash-attn", "triton": "triton"}  # backend on CUDA -> the package that it needs
FEW = 64  # rows of the largest tree; a prompt chunk usually has more


Backend = Callable[[Tensor, Tensor, Tensor, Any, float, "int | None"], Tensor]


def packed(q: Tensor, heads: int) -> Tensor:
    """Returns queries [1, H, n, D] as [1, Hkv, G * n, D].

    Query heads of one key head become rows, so that its keys and values are read once.
    """
    return q.reshape(1, heads, -1, q.shape[3])


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout | DeviceLayout,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Computes the reference: float32 with explicit masks; a row that sees no column gets zeros.

    Args:
        q: [1, H, n, D].
        k: [1, Hkv, capacity, D].
        v: Likewise.
        layout: What the rows see.
        scale: Scale of the scores.
        window: Window of the layer; None: none.
        softcap: Bound of the scores (Gemma 2).
        sinks: [H], one extra score per head in the softmax, which has no value (gpt-oss).
    """
    keys, values, mask = _masked(k, v, layout, window, q.shape[1] // k.shape[1])
    scores = packed(q, k.shape[1]).float() @ keys.float().mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        per_row = sinks.float().view(k.shape[1], -1).repeat_interleave(layout.rows, 1)  # [Hkv, G * n]
        scores = torch.cat([scores, per_row[None, ..., None]], dim=-1)
    out = scores.softmax(-1)[..., : values.shape[2]] @ values.float()
    out = out.masked_fill(~mask.any(-1, keepdim=True), 0)
    return out.view(1, q.shape[1], layout.rows, -1).to(q.dtype)


def whole(q: Tensor, k: Tensor, v: Tensor, layout: Layout | DeviceLayout, scale: float, window: int | None) -> Tensor:
    """Computes torch's SDPA with one dense mask [n, C], on any device.

    With a `DeviceLayout` it covers the whole buffer, so that the host reads nothing.
    """
    keys, values, mask = _masked(k, v, layout, window, q.shape[1] // k.shape[1])
    out = F.scaled_dot_product_attention(packed(q, k.shape[1]), keys, values, attn_mask=mask, scale=scale)
    out = out.masked_fill(~mask.any(-1, keepdim=True), 0)  # torch's kernels differ here
    return out.reshape(1, q.shape[1], layout.rows, -1)


def everywhere(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Computes attention without a mask: q [1, H, n, D], k and v [1, Hkv, C, D] -> [1, H, n, D]."""
    q_rows = packed(q, k.shape[1])
    if q.device.type == "cuda" and q.shape[3] % 8 == 0:
        # On Hopper torch would choose cuDNN, which builds a new plan for each number of keys: for every token.
        out = _torch_part(q_rows, k, v, scale)[0]
    else:
        out = F.scaled_dot_product_attention(q_rows, k, v, scale=scale)
    return out.reshape(1, q.shape[1], q.shape[2], -1)


def one_row(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """Computes the attention of plain decoding (n = m = 1): the row sees one range of columns, unmasked."""
    first, _ = layout.edges(window)
    return everywhere(q, k[:, :, first : layout.end], v[:, :, first : layout.end], scale)


def sdpa(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """Computes torch's SDPA with one dense mask [n, P + n]; runs on any device."""
    if layout.plain:
        return one_row(q, k, v, layout, scale, window)
    return whole(q, k, v, layout, scale, window)


def split(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    scale: float,
    window: int | None,
    prefix_part: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Computes an unmasked part for the prefix and a small masked part, merged by their log-sum-exps in float32.

    Hybrid tree attention (LongSpec, arXiv 2502.17421): out = w o1 + (1 - w) o2, w = sigmoid(lse1 - lse2).

    Args (the others as in `dense`):
        prefix_part: Computes the part of the prefix; None: torch's kernels.
        sinks: They are merged like a part that has a score and no value.
    """
    if q.stride(3) != 1:  # torch's flash kernel for CPUs would read other numbers, without an error
        q = q.contiguous()
    if layout.plain and sinks is None:
        return one_row(q, k, v, layout, scale, window)
    heads = k.shape[1]
    _, every = layout.edges(window)
    q_rows = packed(q, heads)
    out, lse = _tree_part(q, q_rows, k, v, layout, scale, window)
    # An empty prefix must not reach the kernels: the CPU kernel aborts the process on zero keys.
    if every < layout.prefix:
        part = prefix_part or _torch_part
        far, far_lse = part(q_rows, k[:, :, every : layout.prefix], v[:, :, every : layout.prefix], scale)
        weight = torch.sigmoid(far_lse.float() - lse.float())[..., None]
        out = far.float() * weight + out.float() * (1 - weight)
        if sinks is not None:
            lse = torch.logaddexp(far_lse.float(), lse.float())
    if sinks is not None:
        per_row = sinks.float().view(heads, -1).repeat_interleave(layout.rows, 1)  # [Hkv, G * n]
        out = out.float() * torch.sigmoid(lse.float() - per_row)[..., None]
    return out.to(q.dtype).reshape(1, q.shape[1], layout.rows, -1)


def _tree_part(
    q: Tensor, q_rows: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Computes the masked part of `split`: the rows' own columns, and the ragged ones at the window's edge.

    q_rows: q, packed
    """
    heads = k.shape[1]
    first, every = layout.edges(window)
    keys = k[:, :, layout.prefix : layout.end]
    values = v[:, :, layout.prefix : layout.end]
    if first == every and layout.mask is None and not layout.slides(window):
        if q.device.type != "cpu":  # a GPU's kernels take as many key heads as query heads
            keys = keys.repeat_interleave(q.shape[1] // heads, 1)
            values = values.repeat_interleave(q.shape[1] // heads, 1)
        out, lse = _torch_part(q, keys, values, scale, causal=True)
        return packed(out, heads), lse.reshape(1, heads, -1)
    if first < every:
        keys = torch.cat([k[:, :, first:every], keys], dim=2)
        values = torch.cat([v[:, :, first:every], values], dim=2)
    dtype = q.dtype if q.device.type == "cuda" else torch.float32
    bias = layout.bias(window, q.shape[1] // heads, dtype)
    return _torch_part(q_rows, keys, values, scale, bias=bias)


def flash(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """Computes `split` with flash-attn's KV cache kernel, which splits a long prefix over the GPU."""
    return split(q, k, v, layout, scale, window, prefix_part=_flash_attn_part)


def triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout | DeviceLayout,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Runs one Triton kernel over prefix and tree; chunks of more than `FEW` rows go to `split` or `dense`."""
    if isinstance(layout, Layout):
        if layout.rows > FEW and softcap is None and sinks is None:
            return split(q, k, v, layout, scale, window)
        if layout.rows > FEW:
            return dense(q, k, v, layout, scale, window, softcap, sinks)
        layout = layout.on_device
    from longgraft.attention.triton import tree_attention

    return tree_attention(q, k, v, layout, scale, window, softcap, sinks)


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "split": split, "flash": flash, "triton": triton}


def available() -> dict[str, str]:
    """Returns, for each backend, "" if it can run here, else the reason why it cannot."""
    reasons = dict.fromkeys(BACKENDS, "")
    for name, package in EXTRAS.items():
        if not torch.cuda.is_available():
            reasons[name] = "no CUDA device"
        elif importlib.util.find_spec(package.replace("-", "_")) is None:
            reasons[name] = f"{package} is not installed (pip install 'longgraft[{name}]')"
    return reasons


def choose(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Returns the backend of this name, which must fit device and dtype; "auto": flash, else split, else sdpa."""
    if name == "auto":
        if device.type == "cuda" and dtype in HALF and not available()["flash"]:
            return "flash"
        if device.type in ("cpu", "cuda"):
            return "split"
        return "sdpa"
    if name not in BACKENDS:
        raise ValueError(f"Attention {name!r} is unknown. Known: auto, {', '.join(BACKENDS)}.")
    reason = available()[name]
    if reason:
        raise ValueError(f"Attention {name!r} cannot run here: {reason}. Use --attention auto.")
    if name == "flash" and dtype not in HALF:
        raise ValueError(f"Attention 'flash' needs float16 or bfloat16, and the model is {dtype}. Use split.")
    if name == "triton" and device.type != "cuda":
        raise ValueError(f"Attention 'triton' runs on cuda, and the model is on {device}. Use split.")
    if name == "split" and device.type not in ("cpu", "cuda"):
        raise ValueError(f"Attention 'split' runs on cpu and cuda, and the model is on {device}. Use sdpa.")
    return name


def fixed_backend(device: torch.device) -> Backend:
    """Returns the backend for a `DeviceLayout` on this device: triton if it can run, else `whole`."""
    if device.type == "cuda" and not available()["triton"]:
        return triton
    return whole


def _masked(
    k: Tensor, v: Tensor, layout: Layout | DeviceLayout, window: int | None, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (k, v [1, Hkv, C, D], the mask of the packed rows [G * n, C] bool).

    Unwritten rows of a whole buffer may hold NaN, and NaN times a weight of zero is NaN.  So they are
    zeroed in a copy, which costs one more pass over the buffer.
    """
    if isinstance(layout, Layout):
        return k[:, :, : layout.end], v[:, :, : layout.end], layout.dense(window).repeat(group, 1)
    mask = layout.dense(k.shape[2], window)
    hidden = ~mask.any(0)[:, None]
    return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0), mask.repeat(group, 1)


def _flash_runs(q: Tensor) -> bool:
    """True if torch's flash kernel runs: half precision, Ampere or later, head sizes of 8, 16 and so on to 256."""
    return (
        q.dtype in HALF
        and q.shape[3] % 8 == 0
        and q.shape[3] <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _torch_part(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes attention by torch's kernel for the device; q may be packed.

    causal: row i sees columns 0 to i; bias: [n, C] of 0 and -inf, with a column for every row

    Returns:
        (out as q, log-sum-exps [1, H, n] float32).
    """
    if q.device.type == "cpu":
        mask = None if bias is None else bias[None, None]
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
    if bias is None and _flash_runs(q):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    if bias is not None:
        bias = bias.expand(*q.shape[:2], *bias.shape)
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)[:2]
    return out, lse[:, :, : q.shape[2]]  # the kernel pads the rows of lse to a multiple of 32


def _flash_attn_part(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Does `_torch_part` with flash_attn_with_kvcache, which takes [1, rows, heads, D]; lse is natural."""
    from flash_attn import flash_attn_with_kvcache

    out, lse = flash_attn_with_kvcache(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        softmax_scale=scale,
        causal=False,
        return_softmax_lse=True,
    )
    return out.transpose(1, 2), lse
