"""Samples a model's own continuations of many prompts in one padded batch, for training data on a GPU.

Not exact decoding: rows of a batch are padded, and run in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from longgraft.target_model.module_forms import cache_name
from longgraft.target_model.stateful_modules import StatefulModules
from longgraft.yarn_drafters.training.turns import AnyTurn, NextTurns, SampledTurn

ATTENTION = "longgraft_batched"
GROWTH = 1.25  # factor by which a full cache grows
PROMPT_TOKENS = 32768  # prompt tokens that are read together, padding included
# Batches of turns that are sorted by length together, so that rows need little padding.
SORTED_BATCHES = 4


def _padded(block: Tensor, width: int) -> Tensor:
    """Returns rows [..., width, D] with zeros before those of a block."""
    return F.pad(block, (0, 0, width - block.shape[-2], 0))


class _GrowingLayer(DynamicLayer):
    """Keys and values with spare room; transformers' own layer copies all of them at each token.

    Keys lie transposed, [B, Hkv, D, room]: few queries multiply them three times as fast on a CPU.
    """

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._store(key_states[:, :, :0], value_states[:, :, :0])
        end = self.held + key_states.shape[-2]
        if end > self.stored[0].shape[-2]:
            self._store(self.keys, self.values, end)
        for block, states in zip(self.stored, (key_states, value_states), strict=True):
            block[:, :, self.held : end] = states
        self._show(end)
        return self.keys, self.values

    def keep(self, rows: list[int], first: int) -> None:
        """Keeps only these rows of the batch, from token `first` on."""
        self._store(self.keys[rows, :, first:], self.values[rows, :, first:])

    def join(self, joining: _GrowingLayer) -> None:
        """Adds the rows of another batch, aligned so that the last tokens of both are in the same column."""
        width = max(self.held, joining.held)
        keys = torch.cat([_padded(self.keys, width), _padded(joining.keys, width)])
        values = torch.cat([_padded(self.values, width), _padded(joining.values, width)])
        self._store(keys, values)

    def _store(self, keys: Tensor, values: Tensor, length: int = 0) -> None:
        """Copies keys and values [B, Hkv, n, D] to new memory with room for more than `length` tokens."""
        batch, heads, held, size = keys.shape
        room = int(max(held, length) * GROWTH) + 16
        self.stored = keys.new_empty(batch, heads, size, room).mT, values.new_empty(batch, heads, room, size)
        for block, old in zip(self.stored, (keys, values), strict=True):
            block[:, :, :held] = old
        self._show(held)

    def _show(self, held: int) -> None:
        self.held = held
        self.keys, self.values = (block[:, :, :held] for block in self.stored)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of one query per row by grouped products, which copy no keys per query head; else torch's attention."""
    batch, heads, rows, size = query.shape
    if rows > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    grouped = query.view(batch, key.shape[1], heads // key.shape[1], size)
    scores = (grouped @ key.mT).float() * (size**-0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    return (scores.softmax(-1).to(value.dtype) @ value).view(batch, 1, heads, size), None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@dataclass
class _Row(Generic[AnyTurn]):
    """A turn and its tokens so far."""

    turn: AnyTurn
    draws: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def goes_on(self) -> bool:
        return not self.ended and len(self.tokens) < self.turn.most


@dataclass
class _Batch(Generic[AnyTurn]):
    """Rows that are continued together.

    Attributes:
        tokens, positions: [B], the last tokens, which are not in the cache yet.
        temperatures: [B].
        seen: [B, n], 1 for the cached tokens that are no padding.
    """

    rows: list[_Row[AnyTurn]]
    temperatures: Tensor
    tokens: Tensor
    positions: Tensor
    seen: Tensor
    cache: Cache

    @property
    def layers(self) -> list[_GrowingLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, _GrowingLayer)]

    def join(self, joining: _Batch[AnyTurn]) -> None:
        width = max(self.seen.shape[1], joining.seen.shape[1])
        self.seen = torch.cat([F.pad(part.seen, (width - part.seen.shape[1], 0)) for part in (self, joining)])
        self.rows = self.rows + joining.rows
        for name in ("temperatures", "tokens", "positions"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(joining, name)]))
        for layer, layer_joining in zip(self.layers, joining.layers, strict=True):
            layer.join(layer_joining)

    def keep(self, places: list[int]) -> None:
        """Keeps only these rows, without the columns that none of them sees."""
        first = int(self.seen[places].any(0).int().argmax())
        self.rows = [self.rows[place] for place in places]
        for name in ("temperatures", "tokens", "positions"):
            setattr(self, name, getattr(self, name)[places])
        self.seen = self.seen[places][:, first:]
        for layer in self.layers:
            layer.keep(places, first)


class _Sampler(Generic[AnyTurn]):
    """A sampler that begins and continues batches of one model."""

    def __init__(self, model: Any, ends: Sequence[int]) -> None:
        self.model = model
        self.ends = set(ends)
        self.device = next(model.parameters()).device
        self.cache_name = cache_name(model.forward)
        model.set_attn_implementation(ATTENTION)

    def begin(self, turns: Sequence[AnyTurn]) -> _Batch[AnyTurn]:
        """Reads these prompts and draws their first tokens."""
        longest = max(len(turn.prompt) for turn in turns)
        rows = []
        is_prompt = []
        for turn in turns:
            padding = [0] * (longest - len(turn.prompt))
            rows.append([*padding, *turn.prompt])
            is_prompt.append([*padding, *[1] * len(turn.prompt)])
        ids = torch.tensor(rows, device=self.device)
        seen = torch.tensor(is_prompt, device=self.device)
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        temperatures = torch.tensor([turn.temperature for turn in turns], device=self.device, dtype=torch.float32)
        batch = _Batch(
            [_Row(turn, np.random.default_rng(list(turn.seed))) for turn in turns],
            temperatures,
            ids,
            positions[:, -1],
            seen,
            Cache(layer_class_to_replicate=_GrowingLayer),
        )
        self._run(batch, ids, positions)
        return batch

    def step(self, batch: _Batch[AnyTurn]) -> None:
        """Draws the next token of each row."""
        batch.positions = batch.positions + 1
        batch.seen = F.pad(batch.seen, (0, 1), value=1)
        self._run(batch, batch.tokens[:, None], batch.positions[:, None])

    @torch.inference_mode()
    def _run(self, batch: _Batch[AnyTurn], ids: Tensor, positions: Tensor) -> None:
        logits = (
            self.model(
                ids,
                attention_mask=batch.seen,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self.cache_name: batch.cache},
            )
            .logits[:, -1]
            .float()
        )
        draws = torch.tensor([row.draws.random() for row in batch.rows], device=self.device)
        batch.tokens = _drawn(logits, batch.temperatures, draws)
        for row, token in zip(batch.rows, batch.tokens.tolist(), strict=True):
            if row.goes_on:
                row.ended = token in self.ends
                if not row.ended:
                    row.tokens.append(token)


def computes(model: Any) -> bool:
    """Returns True if a padded batch has this model's own logits: its attention has no soft cap, which torch's lacks
    too, and no sinks, and its layers keep nothing but keys and values."""
    config = model.config.get_text_config(decoder=True)
    capped = getattr(config, "attn_logit_softcapping", None)
    has_sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    return not capped and not has_sinks and not StatefulModules(model)


def sample(
    model: Any, more: NextTurns[AnyTurn], ends: Sequence[int], batch: int = 64
) -> Iterator[tuple[AnyTurn, SampledTurn]]:
    """Yields (turn, continuation) as they end; `batch` rows run at once, and new ones begin when some end.

    A row's random numbers do not depend on the other rows; its logits do, by rounding.

    Args:
        model: A transformers causal language model.
        more: Returns about as many next turns as asked for; sampling ends when it returns none and no row is
            running.
        ends: Token ids that end a row.
        batch: Maximum number of rows at once.
    """
    sampler: _Sampler[AnyTurn] = _Sampler(model, ends)
    live: _Batch[AnyTurn] | None = None
    waiting: list[AnyTurn] = []
    while True:
        # Sorted by length, so that rows of one batch need little padding.
        waiting = waiting or sorted(more(SORTED_BATCHES * batch), key=lambda turn: len(turn.prompt))
        free = batch - (0 if live is None else len(live.rows))
        if waiting and free >= max(1, batch // 8):
            count = max(1, min(free, PROMPT_TOKENS // len(waiting[-1].prompt)))
            new = sampler.begin(waiting[-count:])
            waiting = waiting[:-count]
            if live is None:
                live = new
            else:
                live.join(new)
        elif live is not None:
            sampler.step(live)
        else:
            return
        going = [place for place, row in enumerate(live.rows) if row.goes_on]
        ended = [row for row in live.rows if not row.goes_on]
        if going and len(ended) < max(1, len(live.rows) // 8):
            continue
        if going:
            live.keep(going)
        else:
            live = None
        yield from ((row.turn, SampledTurn(row.tokens, row.ended)) for row in ended)


def _drawn(logits: Tensor, temperature: Tensor, draw: Tensor) -> Tensor:
    """Returns [B] ids drawn by the inverse distribution function.

    Args:
        logits: [B, V].
        temperature: [B].
        draw: [B] in [0, 1).
    """
    greedy = logits.argmax(-1)
    summed = (logits / temperature.clamp(min=1e-3)[:, None]).softmax(-1).cumsum(-1)
    # The draw is scaled by the sum, which is not exactly 1 because of rounding.
    indices = torch.searchsorted(summed, (draw.float() * summed[:, -1])[:, None]).flatten()
    return torch.where(temperature > 0, indices.clamp(max=logits.shape[-1] - 1), greedy)
