"""Samples a model's own continuations of many prompts at once, for training data.

Knows transformers' models and tensors; knows no text and no file.  Not exact decoding: rows of a batch are padded, and
run in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "longgraft_batched"
COMPACT = 0.8       # of the rows are unfinished: then the finished ones leave the cache
ROOM = 1.25         # growth of a full cache


@dataclass(frozen=True)
class Sampled:
    """A continuation.  ended: by an end token, which `tokens` does not hold; else by the limit."""

    tokens: list[int]
    ended: bool


class _GrowingLayer(DynamicLayer):
    """Keys and values with room ahead, where transformers' own layer copies all of them at each token.

    Keys lie transposed, [B, Hkv, D, room]: few queries multiply them three times as fast on a CPU.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        new = [key_states.mT, value_states.mT]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.held, self.stored = 0, [block[..., :0] for block in new]
        end = self.held + key_states.shape[-2]
        if end > self.stored[0].shape[-1]:
            room = int(end * ROOM) + 16
            self.stored = [_roomier(old[..., :self.held], room, kind) for kind, old in enumerate(self.stored)]
        for block, states in zip(self.stored, new, strict=True):
            block[..., self.held:end] = states
        self.held = end
        self.keys, self.values = (block[..., :end].mT for block in self.stored)
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch."""
        keys, values = self.stored
        self.stored = [keys[rows], values.mT[rows].mT]      # indexing would lose the order of the numbers


def _roomier(old: Tensor, room: int, values: int) -> Tensor:
    """`old` [B, Hkv, D, n] with place for `room` tokens; values lie token by token."""
    shape = (*old.shape[:-1], room)
    new = old.new_empty(*shape[:-2], room, shape[-2]).mT if values else old.new_empty(shape)
    new[..., :old.shape[-1]] = old
    return new


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
               scaling: float | None = None, **more: Any) -> tuple[Tensor, None]:
    """One query per row in grouped products, without a copy of the keys for each query head; else torch's attention."""
    batch, heads, rows, size = query.shape
    if rows > 1 or more.get("softcap"):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    grouped = query.view(batch, key.shape[1], heads // key.shape[1], size)
    scores = (grouped @ key.mT).float() * (scaling if scaling is not None else size ** -0.5)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    return (scores.softmax(-1).to(value.dtype) @ value).view(batch, 1, heads, size), None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@torch.inference_mode()
def sample_batch(model: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]],
                 temperatures: Sequence[float], most: int, ends: Sequence[int]) -> list[Sampled]:
    """A continuation of each prompt, of at most `most` tokens.

    seeds: of each row's own random numbers, so that they do not depend on the other rows (the logits do, by rounding);
    temperatures: 0 takes the most probable token; ends: ids that end a row
    """
    device = next(model.parameters()).device
    model.set_attn_implementation(ATTENTION)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    # [B, most]: one uniform number per token
    draws = torch.tensor(np.stack([np.random.default_rng(list(s)).random(most) for s in seeds]), device=device)
    heat = torch.tensor(temperatures, device=device, dtype=torch.float32)
    finished, last = torch.zeros(len(prompts), dtype=torch.bool, device=device), torch.tensor(list(ends), device=device)
    rows = torch.arange(len(prompts), device=device)        # which prompt each row of the batch answers
    cache, taken = Cache(layer_class_to_replicate=_GrowingLayer), [[] for _ in prompts]     # type: list[list[int]]
    ended = [False] * len(prompts)
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    for step in range(most):
        logits = model(ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True,
                       logits_to_keep=1).logits[:, -1].float()
        tokens = _drawn(logits, heat[rows], draws[rows, step])
        over = torch.isin(tokens, last)
        for place in (~finished).nonzero().flatten().tolist():
            row = int(rows[place])
            ended[row] = bool(over[place])
            taken[row] += [] if ended[row] else [int(tokens[place])]
        finished |= over
        if finished.all():
            break
        if (~finished).float().mean() < COMPACT:
            keep = (~finished).nonzero().flatten()
            rows, tokens, seen, positions, finished = (t[keep] for t in (rows, tokens, seen, positions, finished))
            for layer in cache.layers:
                layer.select(keep)
        ids, positions = tokens[:, None], positions[:, -1:] + 1
        seen = torch.cat([seen, torch.ones_like(ids)], dim=1)
    return [Sampled(tokens, end) for tokens, end in zip(taken, ended, strict=True)]


def _drawn(logits: Tensor, temperature: Tensor, draw: Tensor) -> Tensor:
    """[B] ids: logits [B, V], temperature [B], draw [B] in [0, 1), by the inverse of the distribution function."""
    greedy = logits.argmax(-1)
    summed = (logits / temperature.clamp(min=1e-3)[:, None]).softmax(-1).cumsum(-1)
    # Scaled by the sum, which rounding keeps from 1.
    found = torch.searchsorted(summed, (draw.float() * summed[:, -1])[:, None]).flatten()
    return torch.where(temperature > 0, found.clamp(max=logits.shape[-1] - 1), greedy)
