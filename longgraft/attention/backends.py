"""Attention of a few new rows over a long prefix and over each other.

Knows tensors and row geometry; knows no model and no cache class.  A backend is a function
(q, k, v, layout, scale, window) -> out; `dense` is the reference that every other equals.

Letters: H query heads, Hkv key heads, G = H / Hkv, n new rows, P prefix rows, C columns, D head size.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.attention.layout import Layout

HALF = (torch.float16, torch.bfloat16)


Backend = Callable[[Tensor, Tensor, Tensor, Layout, float, "int | None"], Tensor]


def packed(q: Tensor, heads: int) -> Tensor:
    """[1, H, n, D] -> [1, Hkv, G * n, D]: the query heads of one key head become rows, so KV is read once."""
    return q.reshape(1, heads, -1, q.shape[3])


def dense(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None,
          softcap: float | None = None) -> Tensor:
    """The reference, in float32 with every mask written out.  Also serves logit soft-capping (Gemma 2)."""
    end, group = layout.end, q.shape[1] // k.shape[1]
    keys = k[:, :, :end].float()
    scores = packed(q, k.shape[1]).float() @ keys.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~layout.dense(window).repeat(group, 1), float("-inf"))
    out = scores.softmax(-1) @ v[:, :, :end].float()
    return out.view(1, q.shape[1], layout.rows, -1).to(q.dtype)


def one_row(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """Plain decoding, n = m = 1: the row sees one contiguous range, and no mask is needed."""
    first, end = layout.edges(window)[0], layout.end
    out = F.scaled_dot_product_attention(packed(q, k.shape[1]), k[:, :, first:end], v[:, :, first:end],
                                         scale=scale)
    return out.view(1, q.shape[1], 1, -1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """torch's own kernel with one dense mask [n, P + n]; runs everywhere."""
    if layout.plain:
        return one_row(q, k, v, layout, scale, window)
    end, group = layout.end, q.shape[1] // k.shape[1]
    mask = layout.dense(window).repeat(group, 1)
    out = F.scaled_dot_product_attention(packed(q, k.shape[1]), k[:, :, :end], v[:, :, :end],
                                         attn_mask=mask, scale=scale)
    return out.view(1, q.shape[1], layout.rows, -1)


def split(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None,
          prefix_part: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] | None = None) -> Tensor:
    """Unmasked prefix part and small masked part, merged by their log-sum-exps in float32.

    Hybrid tree attention (LongSpec, arXiv 2502.17421): out = w o1 + (1 - w) o2, w = sigmoid(lse1 - lse2).
    """
    if layout.plain:
        return one_row(q, k, v, layout, scale, window)
    heads, end = k.shape[1], layout.end
    first, every = layout.edges(window)
    q_rows = packed(q, heads)
    if first == every and layout.mask is None and not layout.slides(window):
        own, own_lse = _causal_part(q, k[:, :, layout.prefix:end], v[:, :, layout.prefix:end], scale)
        own, own_lse = packed(own, heads), own_lse.reshape(1, heads, -1)
    else:
        keys, values = (torch.cat([t[:, :, first:every], t[:, :, layout.prefix:end]], dim=2) for t in (k, v))
        bias = layout.bias(window, q.shape[1] // heads, torch.float32)
        own, own_lse = _masked_part(q_rows, keys, values, bias, scale)
    # An empty prefix must not reach the kernels: the CPU one stops the process on zero keys.
    if every < layout.prefix:
        part = prefix_part or _prefix_part
        far, far_lse = part(q_rows, k[:, :, every:layout.prefix], v[:, :, every:layout.prefix], scale)
        weight = torch.sigmoid(far_lse.float() - own_lse.float())[..., None]
        own = far.float() * weight + own.float() * (1 - weight)
    return own.to(q.dtype).view(1, q.shape[1], layout.rows, -1)


def flash(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """`split` with flash-attn's kv-cache kernel for the prefix part: it splits a long prefix over the GPU."""
    return split(q, k, v, layout, scale, window, prefix_part=_flash_attn_part)


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "split": split, "flash": flash}


def available() -> dict[str, str]:
    """Backend -> "" where it can run here, else the reason why not."""
    reasons = {"sdpa": "", "split": "", "flash": ""}
    if not torch.cuda.is_available():
        reasons["flash"] = "no CUDA device"
    elif importlib.util.find_spec("flash_attn") is None:
        reasons["flash"] = "flash-attn is not installed (pip install 'longgraft[flash]')"
    return reasons


def choose(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that `name` stands for on this device; "auto" takes flash, else split, else sdpa."""
    if name == "auto":
        if device.type == "cuda" and dtype in HALF and not available()["flash"]:
            return "flash"
        return "split" if device.type in ("cpu", "cuda") else "sdpa"
    if name not in BACKENDS:
        raise ValueError(f"Attention {name!r} is unknown. Known: auto, {', '.join(BACKENDS)}.")
    if reason := available()[name]:
        raise ValueError(f"Attention {name!r} cannot run here: {reason}. Use --attention auto.")
    if name == "flash" and dtype not in HALF:
        raise ValueError(f"Attention 'flash' needs float16 or bfloat16, and the model is {dtype}. Use split.")
    if name == "split" and device.type not in ("cpu", "cuda"):
        raise ValueError(f"Attention 'split' runs on cpu and cuda, and the model is on {device}. Use sdpa.")
    return name


def _flash_runs(q: Tensor) -> bool:
    """torch's flash kernel: half precision, Ampere or later, head sizes in eights up to 256."""
    return (q.dtype in HALF and q.shape[3] % 8 == 0 and q.shape[3] <= 256
            and torch.cuda.get_device_capability(q.device) >= (8, 0))


def _prefix_part(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """No mask.  q [1, Hkv, m, D], k and v [1, Hkv, P, D] -> out [1, Hkv, m, D], lse [1, Hkv, m] float32."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=scale)
    if _flash_runs(q):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False, scale=scale)[:2]
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)[:2]
    return out, lse[:, :, :q.shape[2]]      # the kernel pads the rows of lse to a multiple of 32


def _flash_attn_part(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`_prefix_part` by flash_attn_with_kvcache, which wants [1, rows, heads, D] and returns natural-log lse."""
    from flash_attn import flash_attn_with_kvcache

    out, lse = flash_attn_with_kvcache(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                       softmax_scale=scale, causal=False, return_softmax_lse=True)
    return out.transpose(1, 2), lse


def _causal_part(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """A prompt chunk over itself.  q [1, H, n, D], k [1, Hkv, n, D] -> out [1, H, n, D], lse [1, H, n]."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)     # n columns only: cheap
    if _flash_runs(q):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)[:2]
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, True, scale=scale)[:2]
    return out, lse[:, :, :q.shape[2]]


def _masked_part(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [1, Hkv, m, D], k [1, Hkv, C, D], bias [m, C] -> out, lse.  Every row sees itself, so none is empty."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=bias[None, None], scale=scale)
    scores = q.float() @ k.float().mT * scale + bias
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ v.float(), lse
