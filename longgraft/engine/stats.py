"""Statistics of a generation: its costs, and the acceptance of its proposals."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from longgraft.trees.tree import DRAFT, RETRIEVED, UNPRUNED, ProposalTree

MATCH_ENDS = (1, 2, 4, 8, 16)  # upper ends of the bins of match lengths, in tokens
MATCHES = ("1", "2", "3-4", "5-8", "9-16", "17+")  # names of these bins


@dataclass(frozen=True)
class Stats:
    """Statistics of one request so far.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        new_tokens: Tokens of the answer; the prefill yields the first one and is not a step.
        accepted_per_step: Proposed tokens emitted per verification step, without the bonus token.
        accepted_by_origin: These tokens by the source that proposed them: draft, retrieved or both; forced: a
            constraint alone.
        stages: Number of drafted trees by where drafting was pruned: d0, d1, ... (expansions), or none.
        kinds: Number of steps by what was proposed: plain (nothing), memory (nothing drafted), draft.
        forwards: Decode forwards other than verifications: draft (a draft network), own (the target).
        by_probability: Proposed nodes by the estimated probability of their path, in tenths named by the
            lower edge, such as "0.9": (nodes, sum of the estimates, accepted nodes); nodes without an
            estimate are left out.
        by_match: Retrieved nodes by the length in tokens of the match that retrieved them; values as in
            by_probability.
        prefill_seconds: Wall-clock seconds of the prefill; shared passes include the work of other requests.
        decode_seconds: Wall-clock seconds of decoding, likewise.
        seconds_by_part: Seconds of decoding by part of a step.
        peak_memory_bytes: Peak of the device's memory during the request; of several requests, since the last
            began.
        reused_tokens: Prompt tokens that were recalled from an earlier prompt instead of read.
        proposed_by_depth: Number of proposed nodes at each depth of the trees, from depth 1.
        first_difference: Place of the first token in which the prompt differs from the kept prompt that it
            follows longest; None if it continues a kept prompt, or if none is kept.
        recording_seconds: Seconds of decoding in which CUDA graphs were recorded, which later requests replay.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted_per_step: tuple[int, ...] = ()
    accepted_by_origin: Mapping[str, int] = field(default_factory=lambda: dict(draft=0, retrieved=0, both=0))
    stages: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    forwards: Mapping[str, int] = field(default_factory=dict)
    by_probability: Mapping[str, tuple[int, float, int]] = field(default_factory=dict)
    by_match: Mapping[str, tuple[int, float, int]] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    seconds_by_part: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    reused_tokens: int = 0
    proposed_by_depth: tuple[int, ...] = ()
    first_difference: int | None = None
    recording_seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Number of verification passes."""
        return len(self.accepted_per_step)

    @property
    def mat(self) -> float:
        """Mean accepted tokens per step, bonus excluded."""
        return _ratio(sum(self.accepted_per_step), self.steps)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens per step; 1 for plain decoding.

        This is mat + 1, except that an end inside the last step cuts off that step's bonus token.
        """
        return _ratio(self.new_tokens - 1, self.steps)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, divided by the seconds of decoding alone."""
        return _ratio(self.new_tokens - 1, self.decode_seconds)

    @property
    def replayed_tokens_per_second(self) -> float:
        """The same without the seconds in which CUDA graphs were recorded, as in later requests."""
        return _ratio(self.new_tokens - 1, self.decode_seconds - self.recording_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON, without what depends on other requests."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "new_tokens": self.new_tokens,
            "steps": self.steps,
            "accepted_per_step": list(self.accepted_per_step),
            "mat": self.mat,
            "tokens_per_step": self.tokens_per_step,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "accepted_by_origin": dict(self.accepted_by_origin),
            "stages": dict(self.stages),
            "kinds": dict(self.kinds),
            "forwards": dict(self.forwards),
            "by_probability": dict(self.by_probability),
            "by_match": dict(self.by_match),
            "seconds_by_part": dict(self.seconds_by_part),
            "peak_memory_bytes": self.peak_memory_bytes,
        }


class Tally:
    """Counts of a request's steps."""

    def __init__(self) -> None:
        self.new_tokens = 0
        self._accepted: list[int] = []
        self._origins: Counter[str] = Counter(draft=0, retrieved=0, both=0)
        self._stages: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._by_probability = Bins()
        self._by_match = Bins()
        self._proposed: Counter[int] = Counter()

    def first(self) -> None:
        """Counts the token that the prefill yields."""
        self.new_tokens += 1

    def count(self, tree: ProposalTree, path: Sequence[int], emitted: int) -> None:
        """Counts one step: the tokens of its path below the root that are among the `emitted` new tokens.

        The last emitted token is the bonus token, unless an end token or a stop string cut the path.
        """
        accepted = path[1 : 1 + emitted]
        self.new_tokens += emitted
        self._accepted.append(len(accepted))
        self._proposed.update(tree.depths.tolist()[1:])
        origins = tree.origin.tolist()
        self._origins.update(_origin(origins[node]) for node in accepted)
        if tree.stage == UNPRUNED:
            self._stages["none"] += 1
        elif tree.stage is not None:
            self._stages[f"d{tree.stage}"] += 1
        if len(tree) == 1:
            self._kinds["plain"] += 1
        elif tree.stage is not None or any(bits & DRAFT for bits in origins):
            self._kinds["draft"] += 1
        else:
            self._kinds["memory"] += 1
        self._bin_estimates(tree, set(accepted))

    def _bin_estimates(self, tree: ProposalTree, accepted: Set[int]) -> None:
        """Bins the nodes' estimated probabilities with their acceptance."""
        match = [0] * len(tree) if tree.match is None else tree.match.tolist()
        for node, score in enumerate(tree.scores.tolist()):
            if node and score == score:
                probability = math.exp(score)
                right = node in accepted
                self._by_probability.add(f"0.{min(9, int(10 * probability))}", probability, right)
                if match[node]:
                    self._by_match.add(MATCHES[bisect_left(MATCH_ENDS, match[node])], probability, right)

    def stats(self, **figures: Any) -> Stats:
        """Returns the `Stats` of these counts; figures: its other fields."""
        depths = range(1, len(self._proposed) + 1)
        return Stats(
            new_tokens=self.new_tokens,
            accepted_per_step=tuple(self._accepted),
            accepted_by_origin=dict(self._origins),
            stages=dict(self._stages),
            kinds=dict(self._kinds),
            by_probability=self._by_probability.rows(),
            by_match=self._by_match.rows(),
            proposed_by_depth=tuple(map(self._proposed.__getitem__, depths)),
            **figures,
        )


class Bins:
    """Bins of nodes by a name: (nodes, sum of their estimates, accepted nodes) each."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, name: str, estimate: float, accepted: bool) -> None:
        """Counts one node."""
        sums = self._sums.setdefault(name, [0, 0.0, 0])
        sums[0] += 1
        sums[1] += estimate
        sums[2] += accepted

    def rows(self) -> dict[str, tuple[int, float, int]]:
        """Returns the bins, ascending."""
        rows = {}
        for name in sorted(self._sums, key=_leading):
            nodes, estimates, accepted = self._sums[name]
            rows[name] = int(nodes), estimates, int(accepted)
        return rows


def _ratio(count: float, of_total: float) -> float:
    return count / of_total if of_total else 0.0


def _leading(name: str) -> float:
    return float(name.rstrip("+").partition("-")[0])


def _origin(bits: int) -> str:
    if bits & DRAFT and bits & RETRIEVED:
        return "both"
    if bits & DRAFT:
        return "draft"
    if bits & RETRIEVED:
        return "retrieved"
    return "forced"
