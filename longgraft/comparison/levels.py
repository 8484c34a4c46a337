"""The levels of losslessness, by name, and the condition of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2

from pydantic import FiniteFloat, NonNegativeInt

# Logits: near ties of half precision are closer, unless one step of the precision is wider.
EPSILON = 0.1
# Distance of neighbouring numbers in [1, 2).
STEPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Check:
    """The comparison of an answer with plain decoding's.

    Attributes:
        tokens: Number of compared tokens.
        first_divergence: Index of the first difference; None if there is none.
        margin: Difference of the target's two largest logits there; None if tokens were drawn, where it has
            no meaning.
        at: The larger of the two logits; None if it was not noted.
    """

    tokens: NonNegativeInt
    first_divergence: NonNegativeInt | None
    margin: FiniteFloat | None = None
    at: FiniteFloat | None = None

    def near(self, dtype: str) -> bool:
        """True if the two logits were so close that half precision may swap them."""
        return self.margin is not None and self.margin <= tolerance(dtype, self.at)

    def held(self, promise: str, mode: str) -> bool:
        """True if a method of this promise must decode the same tokens.

        When a replay is compared, only greedy tokens have a margin.
        """
        return not may_differ(promise, mode != "greedy" and self.margin is None)


def first_divergence(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Returns the index of the first difference, also of a missing token; None if there is none."""
    for index, (token, expected) in enumerate(zip(ours, theirs, strict=False)):
        if token != expected:
            return index
    if len(ours) == len(theirs):
        return None
    return min(len(ours), len(theirs))


def step_of(dtype: str, logit: float) -> float:
    """Returns the distance of a logit from its neighbour in this precision: 0.125 for bfloat16 in [16, 32)."""
    if not logit:
        return 0.0
    return STEPS[dtype] * 2.0 ** floor(log2(abs(logit)))


def tolerance(dtype: str, at: float | None) -> float:
    """Returns the margin up to which a divergence is a near tie: EPSILON, or one step of the precision if wider."""
    if at is None:
        return EPSILON
    return max(EPSILON, step_of(dtype, at))


def may_differ(promise: str, sampled: bool) -> str:
    """Returns why a method of this promise may have other tokens than plain decoding, for people; "" if it may not."""
    if promise == "lossy":
        return "it promises nothing"
    if promise == "distribution" and sampled:
        return "its law, not its tokens"
    return ""


def level(checks: Sequence[Check], dtype: str) -> str:
    """Returns the level of these checks: `exact`, `greedy-bf16` or `none`."""
    parted = [check for check in checks if check.first_divergence is not None]
    if dtype == "float32":
        return "none" if parted else "exact"
    if all(check.near(dtype) for check in parted):
        return "greedy-bf16"
    return "none"
