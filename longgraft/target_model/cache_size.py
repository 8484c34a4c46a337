"""The memory of a target's keys and values, from its configuration alone."""

from __future__ import annotations

from typing import Any

import torch

from longgraft.runtime.byte_rows import row_bytes
from longgraft.target_model.supported import WITHOUT_ATTENTION


def attention_layers(text: Any) -> int:
    """Returns the number of layers that attend.

    Args:
        text: Configuration of a text model.
    """
    kinds = getattr(text, "layer_types", None) or [""] * text.num_hidden_layers
    return sum(kind not in WITHOUT_ATTENTION for kind in kinds)


def head_size(text: Any) -> int:
    """Returns the numbers of an attention head."""
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def cache_bytes_per_token(text: Any, dtype: torch.dtype) -> int:
    """Returns the bytes of one token's keys and values in all layers; at least 1, also for a model without attention.

    Args:
        text: Configuration of a text model.
        dtype: Dtype of the cache.
    """
    layers = attention_layers(text)
    if not layers:
        return 1
    rank = getattr(text, "kv_lora_rank", None)
    if rank:  # latents are kept, which all heads expand
        return layers * (row_bytes(rank, dtype) + row_bytes(text.qk_rope_head_dim, dtype))
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * layers * heads * row_bytes(head_size(text), dtype)
