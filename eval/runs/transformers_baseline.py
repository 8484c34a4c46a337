"""The other baseline: the target's own `generate` of transformers, from a cache of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from longgraft.engine.fork import Fork
from longgraft.engine.stats import Stats
from longgraft.runtime.byte_rows import numbers_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target


def generate(
    target: Target, fork: Fork, clock: Clock, limit: int, eos: Sequence[int], how: Mapping[str, Any]
) -> tuple[list[int], Stats]:
    """Decodes greedily from a copy of the fork's cache; how: further arguments of `generate`.

    The model's own settings, such as a repetition penalty, are set aside, because they would decode something else.
    """
    from transformers import GenerationConfig

    model = target.model
    prompt = list(fork.snapshot.ids)
    steps = _Steps()
    ids = torch.tensor([prompt], device=target.device)
    cache = _copied(target, fork.rewound(), ids)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=limit, pad_token_id=0, eos_token_id=list(eos) or None, use_cache=True, **how
    )
    clock.lap()
    with _set_aside(model, settings, len(prompt)), torch.no_grad(), clock.part("host"):
        out: Any = model.generate(
            ids, attention_mask=torch.ones_like(ids), streamer=steps, **{target.cache_name: cache}
        )
    tokens = out[0, len(prompt) :].tolist()
    seconds = clock.lap()
    # The pass over the last prompt token is timed here and not for our methods, so it counts as one more token.
    return tokens, Stats(
        prompt_tokens=len(prompt),
        new_tokens=len(tokens) + 1,
        accepted_per_step=tuple(size - 1 for size in steps.sizes),
        prefill_seconds=fork.target_seconds,
        decode_seconds=sum(seconds.values()),
        seconds_by_part=seconds,
    )


def _copied(target: Target, cache: KVCache, ids: torch.Tensor) -> Any:
    """Returns transformers' cache of the prompt without its last token."""
    from transformers import DynamicCache

    if cache.stateful:  # states are kept in a form of our own: its cache reads the prompt, untimed
        with torch.no_grad():
            return getattr(target.model.get_decoder()(ids[:, :-1], use_cache=True), target.cache_name)
    copied: Any = DynamicCache()
    for index, rows in enumerate(cache.state().rows):
        if rows is not None:
            copied.update(*(numbers_of(part, target.dtype) for part in rows), index)
    return copied


@contextmanager
def _set_aside(model: Any, settings: Any, prompt_tokens: int) -> Iterator[None]:
    """Gives the model these generation settings for a while, and lets its first assisted pass use the cache."""
    usual_settings = model.generation_config
    prepare = model.prepare_inputs_for_generation

    @wraps(prepare)  # generate reads its signature
    def prepared(ids: torch.Tensor, next_sequence_length: int | None = None, **more: Any) -> Any:
        # Its first assisted pass would otherwise read the whole prompt again, although the cache has it.
        return prepare(ids, next_sequence_length=next_sequence_length or ids.shape[1] - prompt_tokens + 1, **more)

    model.generation_config = settings
    model.prepare_inputs_for_generation = prepared
    try:
        yield
    finally:
        model.generation_config = usual_settings
        del model.prepare_inputs_for_generation  # the class's method is visible again


class _Steps:
    """A streamer of transformers that records how many tokens each pass brought."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._begun = False

    def put(self, ids: torch.Tensor) -> None:
        if self._begun:  # the first are the prompt's
            self.sizes.append(ids.numel())
        self._begun = True

    def end(self) -> None:
        """Does nothing: no token is held back."""
