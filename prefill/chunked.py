"""The prompt, chunk by chunk: each chunk is an observation of a chain that is kept whole.

Knows verifiers; knows no method.  At no time do logits, features or masks of the whole prompt exist: a chunk's are
dropped when its observers have seen them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.model import TOPK_ROWS, Target
from longgraft.target_model.verifier import Verifier

LARGEST = 1024      # SpecPV's chunk; larger ones gained nothing where it was measured
# Half the activations, and half of what the C library keeps of them between layers, for 5 % of a prefill's time.
ON_CPU = 512


def read_prompt(verifier: Verifier, prompt: Tensor, wants: Wants, chunk: int | None = None,
                following: int | None = None, cell: int | None = None) -> Iterator[Observation]:
    """prompt [T] int64, read behind what the cache holds; what is observed does not depend on `chunk`.

    Where top-k is wanted it is of each token's last occurrence: what a memory by tokens would keep of it.
    cell: its last occurrence in each so many tokens, counted from the cache's beginning: then what is reported of one
    does not depend on what follows.
    chunk: tokens per pass; None: by memory.  following: the token after the prompt where it is known; None: the
    verifier's rule draws it.  The last observation's `next_token` is the first new token.
    """
    size = chunk or chunk_size(verifier.target, wants)
    last = last_occurrences(prompt, cell, verifier.cache.position) if wants.topk else None
    for start in range(0, len(prompt), size):
        end = start + size
        ranked = None if last is None else last[start:end].nonzero().flatten()
        yield verifier.read(prompt[start:end], wants, int(prompt[end]) if end < len(prompt) else following, ranked)


def last_occurrences(prompt: Tensor, cell: int | None = None, position: int = 0) -> Tensor:
    """prompt [T] int64 on the host -> [T] bool: whether the token comes no more, in its cell where there are cells;
    position: of the first token."""
    ids = prompt.numpy()
    if cell is not None:
        ids = ids + (1 + ids.max(initial=0)) * ((position + np.arange(len(ids))) // cell)
    last = np.zeros(len(ids), bool)
    last[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]] = True
    return torch.from_numpy(last)


def chunk_size(target: Target, wants: Wants) -> int:
    """The largest power of two, up to what pays, whose activations fit a quarter of the free memory."""
    return largest_chunk(target.config, target.dtype, target.device, wants)


def largest_chunk(config: Any, dtype: torch.dtype, device: torch.device, wants: Wants) -> int:
    """`chunk_size` of a model of this text configuration."""
    size, room = ON_CPU if device.type == "cpu" else LARGEST, free_bytes(device) // 4
    while size > 16 and chunk_bytes(config, dtype, size, wants) > room:
        size //= 2
    return size


def chunk_bytes(config: Any, dtype: torch.dtype, rows: int, wants: Wants) -> int:
    """Activations of a chunk at their most: inside a layer's MLP, or where the head's product is sorted."""
    hidden, features = config.hidden_size, len(wants.layers)
    widths = getattr(config, "intermediate_size", None) or 4 * hidden
    wide = widths if isinstance(widths, int) else max(widths)       # Gemma 3n: one per layer
    # Of a token: residual, norms, q, k, v or a drafter's likes of them; the MLP's gate, up and their product.
    layer = rows * (8 * hidden + 3 * wide + features * hidden)
    sorted_ = min(rows, TOPK_ROWS) * config.vocab_size + rows * (features + 2) * hidden if wants.topk else 0
    return dtype.itemsize * max(layer, sorted_)
