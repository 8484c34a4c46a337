"""The prompt, chunk by chunk: each chunk is an observation of a chain that is kept whole.

Knows verifiers; knows no method.  At no time do logits, features or masks of the whole prompt exist: a chunk's are
dropped when its observers have seen them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from longgraft.observation import Observation, Wants
from longgraft.target.model import TOPK_ROWS, Target
from longgraft.usage import free_bytes
from longgraft.verifier import Verifier

LARGEST = 1024      # SpecPV's chunk; larger ones gained nothing where it was measured


def read_prompt(verifier: Verifier, prompt: Tensor, wants: Wants, chunk: int | None = None,
                following: int | None = None) -> Iterator[Observation]:
    """prompt [T] int64, read behind what the cache holds; what is observed does not depend on `chunk`.

    chunk: tokens per pass; None: by memory.  following: the token after the prompt where it is known; None: the
    verifier's rule draws it.  The last observation's `next_token` is the first new token.
    """
    size = chunk or chunk_size(verifier.target, wants)
    for start in range(0, len(prompt), size):
        end = start + size
        yield verifier.read(prompt[start:end], wants, int(prompt[end]) if end < len(prompt) else following)


def chunk_size(target: Target, wants: Wants) -> int:
    """The largest power of two up to 1,024 whose activations fit a quarter of the free memory."""
    free = free_bytes(target.device)
    config, item = target.config, target.dtype.itemsize
    widths = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    wide = widths if isinstance(widths, int) else max(widths)       # Gemma 3n: one per layer
    # Per token: residual, q, k, v, and the MLP's two wide activations, in work at once in one layer.
    row = item * (8 * config.hidden_size + 3 * wide + len(wants.layers) * config.hidden_size)
    room = free // 4 - TOPK_ROWS * target.vocab_size * 4 * bool(wants.topk)
    size = LARGEST
    while size > 16 and size * row > room:
        size //= 2
    return size
