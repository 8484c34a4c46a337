"""The prompt, chunk by chunk: each chunk is an observation of a chain that is kept whole.

Knows target, cache and proposers; knows no method.  At no time do logits, features or masks of the whole prompt
exist: a chunk's are dropped when its observers have seen them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longgraft.acceptance import AcceptanceRule
from longgraft.kv import KVCache
from longgraft.observation import Clock, Observation, Proposer, Wants
from longgraft.target.model import TOPK_ROWS, Target
from longgraft.tree import ROOT, ProposalTree

LARGEST = 1024      # SpecPV's chunk; larger ones gained nothing where it was measured
BAR_FROM = 8192     # tokens from which a progress bar is worth its lines


def chunk_size(target: Target, wants: Wants) -> int:
    """The largest power of two up to 1,024 whose activations fit a quarter of the free memory."""
    free = _free_bytes(target.device)
    if free is None:
        return LARGEST
    config, item = target.config, target.dtype.itemsize
    widths = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    wide = widths if isinstance(widths, int) else max(widths)       # Gemma 3n: one per layer
    # Per token: residual, q, k, v, and the MLP's two wide activations, in work at once in one layer.
    row = item * (8 * config.hidden_size + 3 * wide + len(wants.features) * config.hidden_size)
    room = free // 4 - TOPK_ROWS * target.vocab_size * 4 * bool(wants.topk)
    size = LARGEST
    while size > 16 and size * row > room:
        size //= 2
    return size


def prefill(target: Target, cache: KVCache, prompt: Tensor, observers: Sequence[Proposer], rule: AcceptanceRule,
            clock: Clock, chunk: int | None = None, progress: bool | None = None) -> int:
    """Feed prompt [T] int64 to target and observers; returns the first new token, drawn by `rule`.

    What the cache holds already is the prompt's beginning, and the observers have seen it.  The
    result does not depend on `chunk`.  progress: None shows a bar for long prompts on a terminal.
    """
    from tqdm import tqdm

    wants = Wants()
    for observer in observers:
        wants = wants | observer.wants
    size = chunk or chunk_size(target, wants)
    total, root = len(prompt), -1
    hidden = (None if total >= BAR_FROM else True) if progress is None else not progress
    with tqdm(total=total, desc="prefill", unit="tok", unit_scale=True, disable=hidden, leave=False) as bar:
        for start in range(0, total, size):
            tokens = prompt[start:start + size]
            end = start + len(tokens)
            chain = ProposalTree.chain(tokens, origin=ROOT)
            with clock.part("verify"):
                seen = target.run(chain, cache, wants, rows="last" if end == total else "none")
            path = torch.arange(len(tokens))
            cache.keep(path)
            if end < total:
                following = int(prompt[end])
            else:
                with clock.part("accept"):
                    following = root = int(rule.draw(seen.logits, [cache.length])[0])
            observation = Observation(chain, path, following, seen.topk, seen.features, prompt=True)
            for observer in observers:
                observer.observe(observation)
            bar.update(len(tokens))
    return root


def _free_bytes(device: torch.device) -> int | None:
    """Memory that is free now; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except OSError:
        return None
