"""The levels of losslessness, by name, and what is needed for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2

EPSILON = 0.1       # logits; near ties of half precision stay below, where one step of it is not wider
# Distance of neighbouring numbers in [1, 2).
STEPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}


@dataclass(frozen=True)
class Check:
    """An answer beside plain decoding's.

    tokens: compared; first_divergence: index, None where there is none; margin: between the target's two largest logits
    there, None where tokens were drawn and it means nothing; at: the larger of the two, None where it was not noted.
    """

    tokens: int
    first_divergence: int | None = None
    margin: float | None = None
    at: float | None = None

    def near(self, dtype: str) -> bool:
        """Whether the two logits were so close that half precision may swap them."""
        return self.margin is not None and self.margin <= tolerance(dtype, self.at)

    def held(self, promise: str, mode: str) -> bool:
        """Whether a method of this promise must decode the same tokens.  Of draws beside a replay, only greedy ones
        have a margin."""
        return not may_differ(promise, mode != "greedy" and self.margin is None)


def first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first difference, a missing token included; None where there is none."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def step_of(dtype: str, logit: float) -> float:
    """Distance of a logit from its neighbour in this precision: 0.125 for bfloat16 in [16, 32)."""
    return STEPS[dtype] * 2.0 ** floor(log2(abs(logit))) if logit else 0.0


def tolerance(dtype: str, at: float | None) -> float:
    """The margin up to which a divergence is a near tie: EPSILON, or a step of the precision where that is wider."""
    return EPSILON if at is None else max(EPSILON, step_of(dtype, at))


def may_differ(promise: str, sampled: bool) -> str:
    """Why a method of this promise need not have plain decoding's tokens, for people; empty where it must."""
    if promise == "lossy":
        return "it promises nothing"
    return "its law, not its tokens" if promise == "distribution" and sampled else ""


def level(checks: Sequence[Check], dtype: str) -> str:
    """`exact`, `greedy-bf16` or `none`."""
    parted = [check for check in checks if check.first_divergence is not None]
    if dtype == "float32":
        return "none" if parted else "exact"
    return "greedy-bf16" if all(check.near(dtype) for check in parted) else "none"
