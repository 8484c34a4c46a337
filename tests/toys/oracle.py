"""Answers of the target alone, computed without this project's sampling: transformers' warpers and integer noise."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from longgraft.acceptance.sampling import Sampling
from toys.models import toy_model
from toys.sessions import toy_prompt


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """Warps logits [n, V] as transformers' generate does for these settings, in its order."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature))])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers(torch.zeros(len(logits), 1, dtype=torch.int64), logits.float())


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Returns scores [n, V] with -inf outside the fewest largest tokens that reach top_p, found by a stable sort."""
    ordered, tokens = scores.sort(stable=True)
    share = scores.softmax(-1).gather(1, tokens).double()
    kept = share.cumsum(-1).float() > 1 - top_p
    kept[:, -1] = True
    return torch.full_like(scores, float("-inf")).scatter(1, tokens, ordered.where(kept, float("-inf")))


def noise(seed: int, position: int, token: int) -> float:
    """Returns Gumbel noise from three steps of SplitMix64, one for each number."""
    state = 0
    for number in (seed, position, token):
        state = splitmix64((state + number * 0x9E3779B97F4A7C15) % 2**64)
    return -math.log(-math.log(((state >> 12) + 0.5) / 2**52))


def splitmix64(state: int) -> int:
    """Returns the generator's output for this state, as in Vigna's reference code."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def draw(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Draws a token from logits [V] for this position."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scores = warped(logits[None], sampling)[0].tolist()
    return max(range(len(scores)), key=lambda token: scores[token] + noise(sampling.seed, position, token))


@cache
def plain(family: str, length: int, new: int, sampling: Sampling) -> list[int]:
    """Returns a toy model's answer to `toy_prompt(length)`, with a forward over the whole text for each token."""
    ids = toy_prompt(length)
    for _ in range(new):
        text = torch.tensor([ids])
        with torch.no_grad():
            logits = toy_model(family)(text, attention_mask=torch.ones_like(text), use_cache=False).logits[0, -1]
        ids.append(draw(logits, sampling, len(ids)))
    return ids[length:]
