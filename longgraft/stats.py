"""What a generation cost and what its proposals were worth.  Knows trees and seconds; knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longgraft.tree import DRAFT, RETRIEVED, UNPRUNED, ProposalTree


@dataclass(frozen=True)
class Stats:
    """Of one request, so far.

    prompt_tokens, new_tokens: counts; the prefill, which yields the first new token, is no step
    accepted_per_step:  proposed tokens that were emitted, per verification step, without the bonus token
    accepted_by_origin: those by who proposed them: draft, retrieved or both
    stages:             drafted trees by where drafting was cut: d0, d1, ... (expansions), or none
    seconds_by_part:    of decoding; prefill_seconds and decode_seconds are wall-clock seconds
    peak_memory_bytes:  the device's, during the request
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted_per_step: tuple[int, ...] = ()
    accepted_by_origin: Mapping[str, int] = field(default_factory=lambda: dict(draft=0, retrieved=0, both=0))
    stages: Mapping[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    seconds_by_part: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0

    @property
    def steps(self) -> int:
        """Verification passes."""
        return len(self.accepted_per_step)

    @property
    def mat(self) -> float:
        """Mean accepted tokens per step, bonus excluded."""
        return sum(self.accepted_per_step) / self.steps if self.steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """mat + 1: with the bonus, but for one that an end inside the last step cut off; 1 for plain decoding."""
        return (self.new_tokens - 1) / self.steps if self.steps else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, over decoding time alone."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens, "steps": self.steps,
            "accepted_per_step": list(self.accepted_per_step), "mat": self.mat,
            "tokens_per_step": self.tokens_per_step, "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds, "decode_tokens_per_second": self.decode_tokens_per_second,
            "accepted_by_origin": dict(self.accepted_by_origin), "stages": dict(self.stages),
            "seconds_by_part": dict(self.seconds_by_part), "peak_memory_bytes": self.peak_memory_bytes}


class Tally:
    """Counts a request's steps as they come."""

    def __init__(self) -> None:
        self.new_tokens = 0
        self._accepted: list[int] = []
        self._origins: Counter[str] = Counter(draft=0, retrieved=0, both=0)
        self._stages: Counter[str] = Counter()

    def first(self) -> None:
        """The token that the prefill yields."""
        self.new_tokens += 1

    def count(self, tree: ProposalTree, path: Sequence[int], emitted: int) -> None:
        """Credit one step: its path below the root, as far as it was among the `emitted` new tokens.

        What was emitted ends with the bonus token, unless an end token or a stop string cut it inside the path: then
        the cut token ended the answer, and no bonus followed.
        """
        accepted = path[1:1 + emitted]
        self.new_tokens += emitted
        self._accepted.append(len(accepted))
        origins = tree.origin.tolist()
        self._origins.update(_origin(origins[node]) for node in accepted)
        if tree.stage is not None:
            self._stages["none" if tree.stage == UNPRUNED else f"d{tree.stage}"] += 1

    def stats(self, **figures: Any) -> Stats:
        """What was counted; figures: the fields of `Stats` that are no counts."""
        return Stats(new_tokens=self.new_tokens, accepted_per_step=tuple(self._accepted),
                     accepted_by_origin=dict(self._origins), stages=dict(self._stages), **figures)


def _origin(bits: int) -> str:
    if bits & DRAFT and bits & RETRIEVED:
        return "both"
    return "draft" if bits & DRAFT else "retrieved"
