"""A text whose tokens stand for those of prompts where passes are timed: a mixture's price depends on the tokens."""

from __future__ import annotations

from typing import Any

from longgraft.engine.encoder import continuation

SAMPLE = '''The station stands on the north shore, where two of the older buildings were moved in 1962. Since then its
staff have measured rain, wind and the height of the lake every morning, and written the numbers into a book that
anyone may read.

def mean_of(values: list[float], first: int = 0) -> float:
    """Returns the mean of the values from the first one on."""
    chosen = values[first:]
    if not chosen:
        raise ValueError("There are no values. Give at least one.")
    return sum(chosen) / len(chosen)
'''


def sample_tokens(tokenizer: Any) -> list[int]:
    """Returns the tokens of the text; none without a tokenizer."""
    if tokenizer is None:
        return []
    return continuation(tokenizer, SAMPLE)
