"""Chunked prefill: each chunk of the prompt is observed as a chain that is accepted whole.

Logits, features and masks never exist for the whole prompt: those of a chunk are freed once the memories have
observed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.model import TOPK_ROWS, Target
from longgraft.target_model.verifier import Verifier

LARGEST = 1024  # tokens of a prefill chunk, as in SpecPV
# Tokens of a prefill chunk on CUDA.  An H100 took 45 ms for a chunk of 1,024 of a 0.5B model, whatever its prefix; a
# sixth of that is work, by arithmetic.  Larger chunks were not measured yet (benchmarks/gpu, run D).
ON_CUDA = 8192
# Attributes of a configuration whose layers score a chunk against its columns with a mask, or in torch operations:
# temporaries of rows x columns, which grow with the square of a chunk.
SCORES = ("sliding_window", "attn_logit_softcapping")
# Tokens of a prefill chunk on a CPU: this halves the activations, and the memory that the C library keeps of
# them between layers, and costs 5 % of a prefill's time.
ON_CPU = 512


def read_prompt(
    verifier: Verifier,
    prompt: Tensor,
    wants: Wants,
    chunk: int | None = None,
    following: int | None = None,
    cell: int | None = None,
    most: Callable[[], int | None] = lambda: None,
) -> Iterator[Observation]:
    """Reads a prompt after the cache's committed rows; what is observed does not depend on `chunk`.

    If top-k is wanted, it is reported at each token's last occurrence, the one that a memory keyed by tokens
    keeps.

    Args:
        verifier: Runs the passes.
        prompt: [T] int64.
        wants: What the memories want reported.
        chunk: Tokens per pass; None: by free memory.
        following: The token after the prompt if it is known; None: the verifier's rule draws it.
        cell: Report top-k at the last occurrence within each `cell` tokens, counted from the cache's
            beginning, so that the reports of a cell do not depend on later ones; and end chunks where states
            can be kept.
        most: Called before each pass; returns a smaller number of tokens, or None.

    Yields:
        One observation per chunk; the last one's `next_token` is the first new token.
    """
    size = chunk or chunk_size(verifier.target, wants)
    last = None
    if wants.topk:
        last = last_occurrences(prompt, cell, verifier.cache.position)
    end = 0
    while end < len(prompt):
        start = end
        end = min(end + min(size, most() or size), len(prompt))
        if cell and verifier.cache.stateful:  # states are kept before the last token of a cell
            past = (verifier.cache.position + end - start + 1) % cell
            if end - past > start:
                end -= past
        ranked = None
        if last is not None:
            ranked = last[start:end].nonzero().flatten()
        next_token = following
        if end < len(prompt):
            next_token = int(prompt[end])
        yield verifier.read(prompt[start:end], wants, next_token, ranked)


def last_occurrences(prompt: Tensor, cell: int | None = None, position: int = 0) -> Tensor:
    """Tells for each token of a prompt if it is the token's last occurrence, [T] bool, within its cell if
    `cell` is given.

    Args:
        prompt: [T] int64 on the host.
        position: That of the first token.
    """
    ids = prompt.numpy()
    if cell is not None:
        ids = ids + (1 + ids.max(initial=0)) * ((position + np.arange(len(ids))) // cell)
    last = np.zeros(len(ids), bool)
    last[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]] = True
    return torch.from_numpy(last)


def chunk_size(target: Target, wants: Wants) -> int:
    """Returns the largest power of two, up to the device's limit, whose activations fit a quarter of free memory."""
    return largest_chunk(target.config, target.dtype, target.device, wants)


def largest_chunk(config: Any, dtype: torch.dtype, device: torch.device, wants: Wants) -> int:
    """Does `chunk_size` for a model of this text configuration."""
    size = LARGEST
    if device.type == "cpu":
        size = ON_CPU
    elif device.type == "cuda" and not any(getattr(config, name, None) for name in SCORES):
        size = ON_CUDA
    room = free_bytes(device) // 4
    while size > 16 and chunk_bytes(config, dtype, size, wants) > room:
        size //= 2
    return size


def chunk_bytes(config: Any, dtype: torch.dtype, rows: int, wants: Wants) -> int:
    """Returns the peak bytes of a chunk's activations: in a layer's MLP, or while the output logits are sorted."""
    hidden = config.hidden_size
    features = len(wants.layers)
    widths = getattr(config, "intermediate_size", None) or 4 * hidden
    # Gemma 3n: one per layer
    wide = widths
    if not isinstance(widths, int):
        wide = max(widths)
    # Per token: residual, norms, q, k, v or a drafter's equivalents; the MLP's gate, up and their product.
    layer = rows * (8 * hidden + 3 * wide + features * hidden)
    sorted_ = 0
    if wants.topk:
        sorted_ = min(rows, TOPK_ROWS) * config.vocab_size + rows * (features + 2) * hidden
    normalized = 0
    if wants.probabilities:  # the logits and their exponentials in float32
        normalized = 8 * min(rows, TOPK_ROWS) * config.vocab_size
    return max(dtype.itemsize * layer, dtype.itemsize * sorted_ + normalized)
