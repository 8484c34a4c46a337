"""Chooses the prompts for each length bucket, in prompt tokens, and cuts longer prompts to the bucket's length.

A prompt is cut only at one side of its body, at a boundary of its unit.  Text to be continued (code, books) keeps its
end, so that a recorded continuation stays true.  A document or meeting with a question about it keeps its beginning,
which introduces its topic, and continues without a gap.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from longgraft.eval.prompts.example import Example

# The gap between two units; at a cut it is dropped.
GAPS = {
    "turn": re.compile(r"\n+(?=[^\n:]{1,100}:)"),  # a turn starts a line with its speaker: "PhD A: ..."
    "line": re.compile(r"\n"),
    # A full stop after an initial or a title ends no sentence.
    "sentence": re.compile(
        r"(?:(?<=[.!?])|(?<=[.!?][\"')\]\u201d\u2019]))"
        r"(?<!\b[A-Z]\.)(?<!\b[DM]r\.)(?<!\bMs\.)(?<!\bMrs\.)\s+|"
        r"(?<=[\u3002\uff01\uff1f])|\n\s*\n"
    ),  # Chinese full stop, ! and ?
    "word": re.compile(r"\s+"),
}
# Units to try in order: a finer one if a unit is so long that the prompt would fall out of its bucket.
FINER = {"turn": ("turn", "sentence", "word"), "sentence": ("sentence", "word"), "line": ("line", "sentence", "word")}

WHOLE = 0  # stands for the length of prompts that are not cut


@dataclass(frozen=True)
class Bucket:
    """A range of prompt lengths: more than `low` and at most `high` tokens."""

    low: int
    high: int

    def __contains__(self, tokens: int) -> bool:
        return self.low < tokens <= self.high

    @classmethod
    def of(cls, example: Example, length: int, below: int = 0, most: int | None = None) -> Bucket:
        """Returns the bucket that ends at `length`, or at `most` tokens, beyond which an answer has no room.

        It begins at the next shorter length, `below`, but not under half of its own: a prompt must represent its
        length, and a longer one is cut to the shorter bucket.  Questions have no length to choose and cannot be cut.
        """
        low = below
        if example.body:
            low = max(below, length // 2)
        high = length
        if most is not None:
            high = min(length, most)
        return cls(low, high)


@dataclass(frozen=True)
class Fitted:
    """A prompt that represents a length."""

    example: Example  # the uncut prompt
    ids: tuple[int, ...]  # the ids that are fed
    bucket: Bucket  # the lengths that it represents
    cut_characters: int = 0  # how much of the body was cut
    cut_tokens: int = 0  # how many tokens fewer than uncut that makes


def fit(example: Example, tokenizer: Any, length: int) -> Fitted | None:
    """Returns the example in the bucket that ends at `length`, cut if needed; None if it is too short or uncuttable."""
    return _Measured(example, tokenizer).fit(Bucket.of(example, length))


def plan(
    examples: Sequence[Example], tokenizer: Any, lengths: Sequence[int], prompts: int, most: int | None = None
) -> dict[int, list[Fitted]]:
    """Returns at most `prompts` prompts for every length, the same ones wherever possible; [] if there are none.

    Prompts that fill the longest bucket and can be cut to all others come first, then the others by the longest bucket
    that each reaches, otherwise in the given order.  Reading stops when the first kind suffices, because tokenizing is
    the cost.  Prompts of a fixed length are uncut in their bucket, evenly spread over the suite.

    Args:
        lengths: Of the buckets, in tokens.
        prompts: Most prompts of a bucket.
        most: Most tokens of any prompt; None: any number.
    """
    if not lengths or min(lengths) < 1 or prompts < 1:
        raise ValueError(f"A plan needs lengths and prompts of 1 or more; found {list(lengths)} and {prompts}.")
    ladder = sorted(set(lengths))
    varying = [example for example in examples if example.fixed_length is None]
    chosen = _chosen(varying, tokenizer, ladder, prompts, most)
    for length in ladder:
        fixed = [example for example in examples if example.fixed_length == length]
        chosen[length].extend(_of_fixed_length(fixed, tokenizer, prompts - len(chosen[length]), most))
    return chosen


def _chosen(
    examples: Sequence[Example], tokenizer: Any, ladder: Sequence[int], prompts: int, most: int | None
) -> dict[int, list[Fitted]]:
    """Returns `plan` for prompts that are chosen by their length."""
    pool: list[dict[int, Fitted]] = []
    rest: list[tuple[int, _Measured]] = []
    longest = min(ladder[-1], most or ladder[-1])
    for example in examples:
        if len(pool) == prompts:
            break
        measured = _Measured(example, tokenizer, most)
        fits: dict[int, Fitted] = {}
        if len(measured.ids) >= longest:
            fits = measured.climb(ladder)
        if len(fits) == len(ladder):
            pool.append(fits)
        else:
            rest.append((measured.reach(ladder), measured))
    chosen = {length: [fits[length] for fits in pool] for length in ladder}
    for _, measured in sorted(rest, key=lambda reached: -reached[0]):  # stable: else in the given order
        short = [length for length in ladder if len(chosen[length]) < prompts]
        for length, fitted in measured.climb(ladder, short).items():
            chosen[length].append(fitted)
    return chosen


def _of_fixed_length(examples: Sequence[Example], tokenizer: Any, prompts: int, most: int | None) -> list[Fitted]:
    """Returns at most `prompts` prompts uncut, evenly spread, without those that have more than `most` tokens."""
    fitted = [as_it_is(example, tokenizer) for example in _spread(examples, prompts)]
    return [prompt for prompt in fitted if most is None or len(prompt.ids) <= most]


def whole(examples: Sequence[Example], tokenizer: Any, prompts: int) -> dict[int, list[Fitted]]:
    """Returns at most `prompts` prompts uncut, evenly spread."""
    return {WHOLE: [as_it_is(example, tokenizer) for example in _spread(examples, prompts)]}


def _spread(examples: Sequence[Example], prompts: int) -> list[Example]:
    """Returns at most `prompts` examples, evenly spread, because a suite has its kinds one after the other."""
    count = min(prompts, len(examples))
    return [examples[number * len(examples) // count] for number in range(count)]


def as_it_is(example: Example, tokenizer: Any) -> Fitted:
    """Returns the example uncut."""
    ids = tuple(example.encode(tokenizer))
    return Fitted(example, ids, Bucket(WHOLE, len(ids)))


class _Measured:
    """An example's ids, and its cuts.

    The whole is encoded once; a cut is estimated from where its tokens lie, and then encoded as it is fed.
    """

    def __init__(self, example: Example, tokenizer: Any, most: int | None = None) -> None:
        self.example = example
        self._tokenizer = tokenizer
        self._most = most
        self.ids = array("i", example.encode(tokenizer))  # an array, because books have hundreds of thousands

    def reach(self, ladder: Sequence[int]) -> int:
        """Returns how many buckets of an ascending ladder begin below this prompt's length."""
        reached = 0
        for below, length in pairwise((0, *ladder)):
            if len(self.ids) > self._bucket(length, below).low:
                reached += 1
        return reached

    def climb(self, ladder: Sequence[int], wanted: Sequence[int] | None = None) -> dict[int, Fitted]:
        """Returns length -> this example in its bucket, for the wanted lengths of an ascending ladder that have it."""
        fits = {}
        for below, length in pairwise((0, *ladder)):
            if wanted is not None and length not in wanted:
                continue
            fitted = self.fit(self._bucket(length, below))
            if fitted is not None:
                fits[length] = fitted
        return fits

    def _bucket(self, length: int, below: int) -> Bucket:
        return Bucket.of(self.example, length, below, self._most)

    def fit(self, bucket: Bucket) -> Fitted | None:
        """Returns the example in a bucket, cut if needed; None if it is too short or cannot be cut to it."""
        if len(self.ids) in bucket:
            return Fitted(self.example, tuple(self.ids), bucket)
        if len(self.ids) <= bucket.low:
            return None
        for unit in FINER[self.example.unit]:
            fitted = self._cut(unit, bucket)
            if fitted is not None and len(fitted.ids) in bucket:
                return fitted
        return None

    def _cut(self, unit: str, bucket: Bucket) -> Fitted | None:
        """Returns the example with the longest part of the body, up to or from a boundary, with which it fits."""
        body = self.example.body
        parts = self._parts(unit)
        encoded: dict[int, tuple[int, ...]] = {}

        def tokens(index: int) -> int:
            encoded[index] = tuple(self.example.encode(self._tokenizer, body[parts[index]]))
            return len(encoded[index])

        guess = bisect_right(parts, bucket.high, key=self._estimate) - 1
        last = _last_within(tokens, len(parts), bucket.high, guess)
        if last is None:
            return None
        ids = encoded[last]
        kept = len(body[parts[last]])
        return Fitted(self.example, ids, bucket, len(body) - kept, len(self.ids) - len(ids))

    def _parts(self, unit: str) -> list[slice]:
        """Returns the parts of the body up to a boundary, or from one if text is continued; shortest first."""
        body = self.example.body
        gaps = GAPS[unit].finditer(body)
        if self.example.chat:
            return [slice(0, gap.start()) for gap in gaps if 0 < gap.start() < len(body)]
        parts = [slice(gap.end(), None) for gap in gaps if 0 < gap.end() < len(body)]
        return parts[::-1]

    def _estimate(self, part: slice) -> int:
        """Estimates how many tokens the prompt has with this part of the body."""
        starts = self._starts
        if part.stop is not None:
            within = bisect_left(starts, part.stop)
        else:
            within = len(starts) - bisect_left(starts, part.start)
        return len(self.ids) - len(starts) + within

    @cached_property
    def _starts(self) -> Sequence[int]:
        """The character at which each token of the body starts; evenly spread if the tokenizer does not tell."""
        body = self.example.body
        if getattr(self._tokenizer, "is_fast", False):
            offsets = self._tokenizer(body, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            return [start for start, _ in offsets]
        count = max(1, len(self.ids) * len(body) // len(self.example.prompt()))
        return range(0, len(body), max(1, len(body) // count))


def _last_within(tokens: Callable[[int], int], count: int, most: int, guess: int) -> int | None:
    """Returns the last index below `count` with tokens(index) <= most, None if none; tokens must grow with the index.

    It gallops from a guess; a guess that is right costs two calls.
    """
    low = -1
    high = count
    index = min(max(guess, 0), count - 1)
    step = 1
    while high - low > 1:
        if tokens(index) <= most:
            low = index
        else:
            high = index
        bounded = low >= 0 and high < count
        if bounded and step > 1:
            index = (low + high) // 2
        elif low >= 0:
            index = min(low + step, high - 1)
        else:
            index = max(high - step, 0)
        step *= 2
    if low < 0:
        return None
    return low
