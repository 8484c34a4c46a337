"""Measures the costs of a pair on this machine: its passes, and the rest of a step of the default method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longgraft.budget.cost_measurement import Extent, measure
from longgraft.budget.cost_model import Costs
from longgraft.budget.sample_text import sample_tokens
from longgraft.methods.assembly import Loaded

PARTS = ("draft", "verify", "accept")  # parts of a step whose seconds passes, levels and feeds already include
# Tokens that are read and decoded to measure the rest of a step.
PROMPT = 256
ANSWER = 33


def measured(loaded: Loaded, prefixes: Sequence[int], seconds: float) -> Costs:
    """Measures costs; the rest of a step is 0 if positions allow no answer after the prompt, or it ends at once."""
    costs = measure(
        loaded.target,
        loaded.parts.head,
        Extent(prefixes, seconds),
        loaded.parts.regions,
        sample_tokens(loaded.tokenizer),
    )
    session = loaded.session()
    read = min(PROMPT, min(session.engine.limits.values()) - ANSWER)
    if read < 1:
        return costs
    stats = session.generate([token % loaded.target.vocab_size for token in range(read)], ANSWER).stats
    besides = sum(spent for part, spent in stats.seconds_by_part.items() if part not in PARTS)
    return replace(costs, host=besides / max(1, stats.steps))
